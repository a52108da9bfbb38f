import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic import boxes

objectness = jax.jit(boxes.objectness)


def random_boxes(seed, shape, size=None):
    """Boxes [*shape, 4] in the image; with a size, their corners are those of its pixels."""
    rng = np.random.default_rng(seed)
    corners = (
        rng.uniform(size=(*shape, 2, 2))
        if size is None
        else rng.integers(0, size + 1, (*shape, 2, 2)) / size
    )
    return np.sort(corners, axis=-2).reshape(*shape, 4).astype(np.float32)


def covered_fraction(rows, size):
    """The share of pixels that a box covers, counted on a mask of size by size pixels."""
    mask = np.zeros((size, size), bool)
    for top, left, bottom, right in np.rint(rows * size).astype(int):
        mask[top:bottom, left:right] = True
    return mask.mean()


@pytest.mark.parametrize("num_boxes", [1, 2, 3, 7, 16])
def test_objectness_is_the_share_of_covered_pixels_exactly(num_boxes):
    rows = random_boxes(num_boxes, (50, num_boxes), size=32)  # float32 holds these areas exactly
    expected = [covered_fraction(boxes_of_image, 32) for boxes_of_image in rows]
    np.testing.assert_array_equal(objectness(jnp.asarray(rows)), np.float32(expected))
    assert len({*expected}) > 20


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_leading_axes_are_independent_also_when_compiled(shape):
    rows = random_boxes(0, shape)
    areas = jax.jit(boxes.objectness)(jnp.asarray(rows))
    assert areas.shape == shape[:-1]
    single = [boxes.objectness(jnp.asarray(x)) for x in rows.reshape(-1, *rows.shape[-2:])]
    np.testing.assert_allclose(np.ravel(areas), single, rtol=1e-6)


def test_order_copies_and_padding_change_no_union():
    rows = random_boxes(1, (40, 5))
    expected = objectness(jnp.asarray(rows))
    padding = np.zeros((40, 3, 4), np.float32)
    others = {
        "order": rows[:, ::-1],
        "copies": np.concatenate([rows, rows[:, 1:4]], axis=1),
        "padding": np.concatenate([padding, rows, padding], axis=1),
    }
    for name, other in others.items():
        found = objectness(jnp.asarray(other))
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=name)


def test_boxes_within_boxes_change_no_union():
    outer = random_boxes(2, (40, 1))
    low, high = outer[..., :2], outer[..., 2:]
    corners = np.concatenate([low, low], -1), np.concatenate([high - low, high - low], -1)
    inner = corners[0] + random_boxes(3, (40, 4)) * corners[1]
    both = objectness(jnp.asarray(np.concatenate([outer, inner], axis=1)))
    np.testing.assert_allclose(both, np.prod(high - low, axis=-1)[:, 0], rtol=1e-4, atol=1e-6)


def test_disjoint_boxes_add():
    left, right = random_boxes(4, (40, 3)), random_boxes(5, (40, 3))
    left[..., 1::2] /= 2
    right[..., 1::2] = 0.5 + right[..., 1::2] / 2
    parts = [objectness(jnp.asarray(x)) for x in (left, right)]
    union = objectness(jnp.asarray(np.concatenate([left, right], axis=1)))
    np.testing.assert_allclose(union, parts[0] + parts[1], rtol=1e-5, atol=1e-6)


def test_no_box_is_0_a_full_box_is_1_and_no_union_exceeds_1():
    full = np.float32([[0, 0, 1, 1]])
    no_area = np.float32([[0.2, 0.3, 0.2, 0.9], [0.5, 0.5, 0.5, 0.5], [0, 0, 0, 0]])
    assert objectness(jnp.asarray(no_area)) == 0
    assert objectness(jnp.asarray(full)) == 1
    many = np.concatenate([np.tile(full, (300, 1, 1)), random_boxes(6, (300, 15))], axis=1)
    areas = objectness(jnp.asarray(many))
    np.testing.assert_allclose(areas, 1, atol=1e-5)
    assert (areas <= 1).all()

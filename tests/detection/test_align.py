import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from heteroscedastic.detection.align import align

align = jax.jit(align, static_argnames=("size", "num_samples"))
RNG = np.random.default_rng(0)
MAPS = RNG.normal(size=(9, 13, 3)).astype(np.float32)
BOXES = np.array([[1.2, 0.7, 6.1, 9.9], [0.5, 0.5, 8.5, 12.5], [3.0, 4.0, 3.5, 4.2]], np.float32)
EXTENT = jnp.array([9, 13])


def test_it_is_exact_on_a_linear_map():
    rows, columns = np.meshgrid(np.arange(9) + 0.5, np.arange(13) + 0.5, indexing="ij")
    linear = (2 * rows - 3 * columns + 1)[..., None].astype(np.float32)
    found = align(jnp.asarray(linear), jnp.asarray(BOXES), EXTENT, size=4)[..., 0]
    cells = (np.arange(4) + 0.5) / 4
    for box, grid in zip(BOXES, found):
        y, x = (box[i] + cells * (box[i + 2] - box[i]) for i in (0, 1))
        np.testing.assert_allclose(grid, 2 * y[:, None] - 3 * x + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_samples", [1, 2])
def test_it_is_the_mean_of_crop_and_resize_of_tensorflow(num_samples):
    tf = pytest.importorskip("tensorflow")
    size = 7
    found = align(*map(jnp.asarray, (MAPS, BOXES)), EXTENT, size=size, num_samples=num_samples)
    # Its corners are the first and the last point, between centres that are 0 to 1 apart.
    n = size * num_samples
    first, last = BOXES[:, :2], BOXES[:, 2:]
    margin = (last - first) / (2 * n)
    corners = np.concatenate([first + margin, last - margin], axis=1) - 0.5
    points = tf.image.crop_and_resize(
        MAPS[None], corners / [8, 12, 8, 12], np.zeros(3, np.int32), (n, n)
    ).numpy()
    cells = points.reshape(3, size, num_samples, size, num_samples, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(found, cells, rtol=1e-4, atol=1e-5)


def test_the_mirror_image_of_a_box_is_mirrored():
    mirrored = BOXES[:, [0, 3, 2, 1]] * [1, -1, 1, -1] + [0, 13, 0, 13]
    found = align(jnp.asarray(MAPS), jnp.asarray(BOXES), EXTENT, size=5)
    other = align(jnp.asarray(MAPS[:, ::-1]), jnp.asarray(mirrored, jnp.float32), EXTENT, size=5)
    np.testing.assert_allclose(other[:, :, ::-1], found, rtol=1e-4, atol=1e-5)


def test_its_gradient_is_that_by_differences():
    check_grads(
        lambda maps: align(jnp.asarray(maps), jnp.asarray(BOXES), EXTENT, size=2),
        (MAPS,),
        order=1,
        modes=["rev"],
    )
    # A box between two centres moves in the linear part of the map.
    box = jnp.array([[2.6, 3.6, 3.4, 4.4]])
    check_grads(
        lambda box: align(jnp.asarray(MAPS), jnp.asarray(box), EXTENT, size=2),
        (box,),
        order=1,
        modes=["rev"],
        rtol=0.02,
    )


def test_what_lies_beyond_the_extent_has_no_effect():
    larger = np.pad(MAPS, ((0, 3), (0, 5), (0, 0)), constant_values=7.0)
    boxes = np.array([[5.0, 6.0, 9.0, 13.0]], np.float32)  # up to the border of the image
    np.testing.assert_array_equal(
        *(jax.jit(align, static_argnames="size")(m, boxes, EXTENT, size=7) for m in (MAPS, larger))
    )

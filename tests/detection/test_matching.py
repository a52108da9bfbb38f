import jax
import jax.numpy as jnp
import numpy as np

from heteroscedastic.detection import matching
from heteroscedastic.detection.anchors import anchors
from heteroscedastic.detection.coding import STDS, clipped, decoded, encoded

RNG = np.random.default_rng(0)


def random_boxes(n, size=100.0):
    corners = RNG.uniform(0, size, (n, 2))
    return jnp.asarray(np.hstack([corners, corners + RNG.uniform(5, 40, (n, 2))]), jnp.float32)


def test_decoding_inverts_encoding_and_a_far_offset_stays_finite():
    boxes, references = random_boxes(50), random_boxes(50)
    offsets = encoded(boxes, references, stds=STDS)
    np.testing.assert_allclose(decoded(offsets, references, stds=STDS), boxes, rtol=1e-4, atol=1e-3)
    # Equation 2 of the paper, with the standard deviations.
    y, log_width = offsets[:, 0], offsets[:, 3]
    centre, reference_centre = (b[:, [0, 2]].mean(axis=1) for b in (boxes, references))
    (height, _), (_, reference_width), (_, width) = (
        (b[:, 2:] - b[:, :2]).T for b in (references, references, boxes)
    )
    np.testing.assert_allclose(y, (centre - reference_centre) / height / 0.1, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(log_width, np.log(width / reference_width) / 0.2, rtol=1e-3)
    far = decoded(jnp.full((1, 4), 1e4), references[:1], stds=STDS)
    assert np.isfinite(far).all()
    padding = encoded(jnp.zeros((1, 4)), references[:1], stds=STDS)
    assert np.isfinite(padding).all()


def test_clipping_keeps_the_part_inside_of_the_image():
    boxes = jnp.array([[-3.0, 2.0, 5.0, 90.0], [60.0, 10.0, 70.0, 20.0]])
    expected = [[0, 2, 5, 80], [50, 10, 50, 20]]
    np.testing.assert_array_equal(clipped(boxes, jnp.array([50.0, 80.0])), expected)


def test_anchors_have_the_areas_ratios_and_centres_that_are_asked_for():
    boxes = anchors(2, 3, stride=16, sizes=(64, 128), ratios=(0.5, 1, 2)).reshape(2, 3, 2, 3, 4)
    sides = boxes[..., 2:] - boxes[..., :2]
    areas = sides.prod(axis=-1)
    np.testing.assert_allclose(areas[1, 2], np.full((2, 3), [[64.0**2], [128.0**2]]), rtol=1e-5)
    np.testing.assert_allclose(
        sides[0, 0, :, :, 0] / sides[0, 0, :, :, 1], np.tile([0.5, 1, 2], (2, 1)), rtol=1e-5
    )
    centres = (boxes[..., :2] + boxes[..., 2:]) / 2
    np.testing.assert_allclose(centres[1, 2, 1, 2], [24, 40])


def test_matching_follows_the_thresholds_and_the_best_anchor_of_each_box():
    truth = jnp.array([[0, 0, 10, 10], [50, 50, 60, 60], [0, 0, 0, 0]], jnp.float32)
    candidates = jnp.array(
        [
            [0, 0, 10, 8],  # IoU 0.8 with the first
            [0, 0, 10, 5],  # 0.5
            [0, 0, 10, 2],  # 0.2
            [50, 50, 60, 54],  # 0.4, the most that the second has
            [50, 50, 60, 54],  # the same
            [90, 90, 95, 95],
            [0, 0, 0, 0],
        ],
        jnp.float32,
    )
    found = matching.matches(candidates, truth, positive=0.7, negative=0.3, takes_best=True)
    np.testing.assert_array_equal(found.positive, [1, 0, 0, 1, 1, 0, 0])
    np.testing.assert_array_equal(found.negative, [0, 0, 1, 0, 0, 1, 1])
    np.testing.assert_array_equal(found.rows[:5], [0, 0, 0, 1, 1])
    regions = matching.matches(candidates, truth, positive=0.5, negative=0.5)
    np.testing.assert_array_equal(regions.positive, [1, 1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(regions.negative, ~np.asarray(regions.positive))
    nothing = matching.matches(candidates, jnp.zeros((2, 4)), positive=0.7, negative=0.3)
    assert not nothing.positive.any()
    assert nothing.negative.all()


def test_a_mirrored_image_has_mirrored_targets():
    width, truth = 100.0, random_boxes(6, size=60.0)
    candidates = random_boxes(80, size=60.0)

    def mirror(boxes):
        y0, x0, y1, x1 = boxes.T
        return jnp.stack([y0, width - x1, y1, width - x0], axis=1)

    plain, mirrored = (
        matching.matches(c, t, positive=0.5, negative=0.3, takes_best=True)
        for c, t in ((candidates, truth), (mirror(candidates), mirror(truth)))
    )
    jax.tree.map(np.testing.assert_array_equal, plain, mirrored)
    offsets, of_mirrored = (
        encoded(t[plain.rows], c, stds=STDS)
        for c, t in ((candidates, truth), (mirror(candidates), mirror(truth)))
    )
    np.testing.assert_allclose(of_mirrored, offsets * jnp.array([1, -1, 1, 1]), atol=1e-3)


def test_the_anchors_of_a_mirrored_image_match_its_mirrored_boxes():
    """Column j of the map is column n - 1 - j of the mirrored one."""
    shape = (3, 4, 6)  # rows, columns, and two sizes by three ratios
    grid = jnp.asarray(anchors(*shape[:2], stride=16, sizes=(16, 32), ratios=(0.5, 1, 2)))
    truth = jnp.array([[3, 5, 21, 17], [20, 30, 37, 61], [7, 40, 44, 52], [1, 2, 9, 33.0]])
    y0, x0, y1, x1 = truth.T
    mirrored = jnp.stack([y0, 64 - x1, y1, 64 - x0], axis=1)
    plain, other = (
        matching.matches(grid, boxes, positive=0.5, negative=0.3, takes_best=True)
        for boxes in (truth, mirrored)
    )
    assert plain.positive.sum() >= 4
    for ours, theirs in zip(plain[1:], other[1:]):
        np.testing.assert_array_equal(ours.reshape(shape), theirs.reshape(shape)[:, ::-1])
    positive = np.asarray(plain.positive).reshape(shape)
    offsets, of_mirrored = (
        np.asarray(encoded(boxes[found.rows], grid, stds=STDS)).reshape(*shape, 4)
        for boxes, found in ((truth, plain), (mirrored, other))
    )
    np.testing.assert_allclose(
        of_mirrored[:, ::-1][positive], offsets[positive] * [1, -1, 1, 1], atol=1e-3
    )


def test_a_sample_is_random_holds_no_candidate_twice_and_pads_with_minus_one():
    positive = jnp.arange(40) % 4 == 0  # 10 of them
    negative = jnp.arange(40) % 4 == 1

    @jax.jit
    @jax.vmap
    def draw(key):
        return matching.sample(key, positive, negative, size=12, max_positive=3)

    rows = np.asarray(draw(jax.random.split(jax.random.key(0), 2000)))
    assert (np.sort(rows, axis=1)[:, 1:] != np.sort(rows, axis=1)[:, :-1]).all()
    assert (rows[:, :3] % 4 == 0).all()
    assert (rows[:, 3:] % 4 == 1).all()
    counts = np.bincount(rows.ravel(), minlength=40)
    # Each positive one is drawn with probability 3/10, each negative one with 9/10.
    np.testing.assert_allclose(counts[0::4] / 2000, 0.3, atol=0.05)
    np.testing.assert_allclose(counts[1::4] / 2000, 0.9, atol=0.04)
    few = matching.sample(
        jax.random.key(1), positive & (jnp.arange(40) < 4), negative, size=15, max_positive=5
    )
    assert few[0] == 0
    assert (few[1:11] % 4 == 1).all()
    assert few[11:].tolist() == [-1] * 4
    none = matching.sample(
        jax.random.key(1), positive & False, negative & False, size=3, max_positive=2
    )
    assert none.tolist() == [-1] * 3

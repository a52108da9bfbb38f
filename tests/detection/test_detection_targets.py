import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic import boxes
from heteroscedastic.detection import coding, targets
from heteroscedastic.detection.anchors import anchors
from heteroscedastic.detection.detections import detections
from heteroscedastic.detection.proposals import is_box, proposals

# Compiled, as each operation alone would be a program.
proposals = jax.jit(proposals, static_argnames=("num_candidates", "number"))
detections = jax.jit(detections, static_argnames="number")
region_targets = jax.jit(targets.region_targets, static_argnames="number")
proposal_losses = jax.jit(targets.proposal_losses, static_argnames="number")

KEY = jax.random.key(0)
SIZE = jnp.array([64.0, 64.0])
ANCHORS = jnp.asarray(anchors(8, 8, stride=8, sizes=(12, 24), ratios=(1,)))
# The second has no area, the last is padding.
TRUTH = jnp.array([[6, 6, 20, 20], [30, 9, 30, 40], [33, 30, 57, 50], [0, 0, 0, 0]], jnp.float32)
LABELS = jnp.array([3, 2, 1, -1])


def test_the_loss_of_a_box_is_quadratic_near_zero_and_linear_beyond():
    x = np.linspace(-2, 2, 81)
    for sigma in (1.0, 3.0):
        found = targets.smooth_l1(jnp.asarray(x), sigma)
        limit = 1 / sigma**2
        expected = np.where(np.abs(x) < limit, (sigma * x) ** 2 / 2, np.abs(x) - limit / 2)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    slope = jax.grad(lambda x: targets.smooth_l1(x, 3.0))
    np.testing.assert_allclose([slope(1 / 9 - 1e-4), slope(1 / 9 + 1e-4)], 1, rtol=1e-2)


def test_perfect_proposals_have_no_loss_and_only_positive_anchors_have_a_loss_of_boxes():
    overlaps = np.array(boxes.iou(jnp, ANCHORS, TRUTH[jnp.array([0, 2])]))
    inside = np.all((ANCHORS[:, :2] >= 0) & (ANCHORS[:, 2:] <= SIZE), axis=1)
    overlaps[~inside] = 0
    is_best = ((overlaps == overlaps.max(axis=0)) | (overlaps >= 0.7)).any(axis=1)
    owner = TRUTH[jnp.where(overlaps.argmax(axis=1) == 0, 0, 2)]
    perfect = coding.encoded(owner, ANCHORS, stds=coding.UNIT)
    logits = jnp.where(is_best, 40.0, -40.0)

    @jax.jit
    def found(logits, offsets):
        return proposal_losses(KEY, logits, offsets, ANCHORS, TRUTH, SIZE, number=128)

    assert max(found(logits, perfect)) < 1e-6
    # One positive anchor that says no costs 40 nats, over all sampled anchors.
    sampled = min(is_best.sum(), 64) + min((overlaps.max(axis=1) < 0.3)[inside].sum(), 128)
    first = np.flatnonzero(is_best)[0]
    assert float(found(logits.at[first].set(-40.0), perfect).objectness) * sampled > 39.9
    slopes = np.asarray(jax.grad(lambda x: found(logits, x).boxes)(perfect + 0.01))
    np.testing.assert_array_equal(slopes.any(axis=1), is_best)
    # |error| - 1 / (2 sigma^2) of four offsets, with sigma 3, over all sampled anchors
    value = 4 * (0.5 - 1 / 18) * is_best.sum() / sampled
    np.testing.assert_allclose(found(logits, perfect + 0.5).boxes, value, rtol=1e-4)


def test_an_image_without_objects_has_a_loss_of_objectness_alone():
    logits = jnp.linspace(-3, 3, len(ANCHORS))
    settings = dict(anchors=ANCHORS, boxes=jnp.zeros((2, 4)), size=SIZE, number=16)
    offsets = jnp.ones((len(ANCHORS), 4))

    def total(logits, offsets):
        return sum(proposal_losses(KEY, logits, offsets, **settings))

    found = proposal_losses(KEY, logits, offsets, **settings)
    assert float(found.boxes) == 0
    assert 0 < float(found.objectness) < np.log1p(np.exp(3))
    of_logits, of_offsets = jax.jit(jax.grad(total, argnums=(0, 1)))(logits, offsets)
    assert not of_offsets.any()
    assert (of_logits >= 0).all()
    assert (of_logits > 0).sum() == 16


def test_half_of_the_sampled_anchors_are_positive_at_most():
    is_inside = np.all((ANCHORS[:, :2] >= 0) & (ANCHORS[:, 2:] <= SIZE), axis=1)
    truth = ANCHORS[is_inside][::9]  # each of them is a positive anchor
    assert len(truth) >= 5

    def objectness(logits):
        arguments = (logits, jnp.zeros_like(ANCHORS), ANCHORS, truth, SIZE)
        return proposal_losses(KEY, *arguments, number=6).objectness

    slopes = jax.jit(jax.grad(objectness))(jnp.zeros(len(ANCHORS)))
    np.testing.assert_array_equal(jnp.sign(slopes).sum(), 0)
    assert (slopes < 0).sum() == 3


def test_more_rows_of_padding_change_no_sampled_region():
    proposals = jnp.asarray(np.random.default_rng(0).uniform(0, 60, (40, 4)).cumsum(axis=1))

    def sampled(num_rows):
        padding = ((0, num_rows - len(TRUTH)), (0, 0))
        labels = jnp.pad(LABELS, padding[0], constant_values=-1)
        return region_targets(KEY, proposals, jnp.pad(TRUTH, padding), labels, number=8)

    few, many = sampled(len(TRUTH) + 1), sampled(len(TRUTH) + 30)
    np.testing.assert_array_equal(few.boxes, many.boxes)
    np.testing.assert_array_equal(few.labels, many.labels)


def test_no_gradient_passes_through_the_boxes_of_proposals_and_regions():
    def total(scores, offsets):
        return proposals(scores, offsets, ANCHORS, SIZE, num_candidates=20, number=5).sum()

    scores = jnp.linspace(-1, 1, len(ANCHORS))
    slopes = jax.jit(jax.grad(total, argnums=(0, 1)))(scores, jnp.zeros_like(ANCHORS))
    assert not any(map(jnp.any, slopes))

    def of_regions(boxes):
        found = region_targets(KEY, boxes, TRUTH, LABELS, number=8)
        return jnp.where(is_box(found.boxes)[:, None], found.boxes + found.offsets, 0.0).sum()

    assert not jax.jit(jax.grad(of_regions))(TRUTH[:1] + 1.0).any()


def boxes_of_overlap(overlap):
    """Two boxes of one size with this IoU."""
    shift = 30 * (1 - overlap) / (1 + overlap)
    return jnp.array([[5, 5, 25, 35], [5, 5 + shift, 25, 35 + shift]], jnp.float32)


@pytest.mark.parametrize(("overlap", "number"), [(0.25, 2), (0.35, 1)])
def test_detections_of_a_class_overlap_by_03_at_most(overlap, number):
    probs = jnp.array([[0.1, 0.9], [0.2, 0.8]])
    found = detections(probs, jnp.zeros((2, 2, 4)), boxes_of_overlap(overlap), SIZE)
    assert (found.classes > 0).sum() == number


@pytest.mark.parametrize(("overlap", "number"), [(0.65, 2), (0.75, 1)])
def test_proposals_overlap_by_07_at_most(overlap, number):
    arguments = (jnp.array([2.0, 1.0]), jnp.zeros((2, 4)), boxes_of_overlap(overlap), SIZE)
    assert is_box(proposals(*arguments, num_candidates=2, number=2)).sum() == number


@pytest.mark.parametrize(("overlap", "label"), [(0.45, 0), (0.55, 3)])
def test_a_region_is_an_object_from_an_overlap_of_05_on(overlap, label):
    truth, region = jnp.split(boxes_of_overlap(overlap), 2)
    found = region_targets(KEY, region, truth, jnp.array([3]), number=8)
    is_region = (found.boxes == region).all(axis=-1)
    assert found.labels[is_region].tolist() == [label]


def test_padding_and_boxes_without_area_are_no_regions():
    regions = jnp.zeros((5, 4)).at[0].set(TRUTH[0] + 1.0).at[1].set(jnp.array([0, 0, 60, 60.0]))
    found = region_targets(KEY, regions, TRUTH, LABELS, number=8)
    present = np.asarray(is_box(found.boxes))
    assert present.sum() == 3  # two of three objects, which are a quarter, and one background
    assert set(found.labels[:2].tolist()) <= {1, 3}
    assert (found.labels[2:] == 0).all()
    np.testing.assert_array_equal(found.boxes[2], regions[1])
    assert np.isfinite(found.offsets).all()
    nothing = region_targets(KEY, jnp.zeros((5, 4)), 0 * TRUTH, LABELS * 0 - 1, number=8)
    assert not is_box(nothing.boxes).any()
    assert float(targets.box_loss(jnp.ones((8, 4, 4)), nothing)) == 0


def test_the_loss_of_boxes_is_of_the_objects_and_their_own_class():
    found = region_targets(KEY, TRUTH[:1] + 1.0, TRUTH, LABELS, number=8)
    offsets = jnp.zeros((8, 4, 4)) + found.offsets[:, None]
    assert float(targets.box_loss(offsets, found)) == 0
    slopes = np.asarray(jax.jit(jax.grad(targets.box_loss))(offsets + 0.5, found))
    is_own = np.zeros((8, 4), bool)
    objects = np.flatnonzero(found.labels)
    is_own[objects, np.asarray(found.labels)[objects]] = True
    np.testing.assert_array_equal(slopes.any(axis=-1), is_own)
    # 1/2 error^2 of four offsets, of the objects among the present regions
    number = int(is_box(found.boxes).sum())
    value = float(targets.box_loss(offsets + 0.5, found))
    np.testing.assert_allclose(value, len(objects) * 4 * 0.125 / number, rtol=1e-5)


def test_detections_are_the_decoded_boxes_of_regions_and_never_of_padding():
    regions = jnp.array(
        [[5, 5, 25, 25], [6, 5, 26, 25], [40, 40, 60, 60], [0, 0, 0, 0]], jnp.float32
    )
    probs = jnp.array(
        [[0.1, 0.7, 0.2], [0.2, 0.6, 0.2], [0.5, 0.1, 0.4], [0.0, 1.0, 0.0]], jnp.float32
    )
    goal = jnp.array([42.0, 41.0, 70.0, 58.0])  # of class 2; it leaves the image
    offsets = jnp.zeros((4, 3, 4)).at[2, 2].set(coding.encoded(goal, regions[2], stds=coding.STDS))
    found = detections(probs, offsets, regions, SIZE, number=10)
    # The second region is suppressed by the first, in both classes.
    np.testing.assert_array_equal(found.classes, [1, 2, 2, 1, *[-1] * 6])
    np.testing.assert_allclose(found.scores, [0.7, 0.4, 0.2, 0.1, *[0] * 6])
    np.testing.assert_allclose(found.boxes[1], [42, 41, 64, 58], rtol=1e-5)
    np.testing.assert_array_equal(found.boxes[0], regions[0])


def test_an_anchor_beside_the_image_is_no_proposal_though_its_box_is_inside():
    # The canvas is wider than the image of 64 pixels; the second box lies outside entirely.
    boxes_there = jnp.array([[4, 90, 16, 102], [70, 70, 90, 90], [30, 30, 50, 50]], jnp.float32)
    inside = jnp.array([10, 10, 30, 30], jnp.float32)
    offsets = coding.encoded(jnp.tile(inside, (3, 1)), boxes_there, stds=coding.UNIT)
    offsets = offsets.at[1:].set(0.0)
    scores = jnp.array([3.0, 2.0, 1.0])
    found = proposals(scores, offsets, boxes_there, SIZE, num_candidates=3, number=2)
    np.testing.assert_allclose(found, [boxes_there[2], np.zeros(4)], atol=1e-5)

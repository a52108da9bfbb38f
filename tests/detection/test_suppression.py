import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from heteroscedastic.detection.suppression import suppressed


def crowd(n, seed=0, num_scores=None):
    """Random boxes that overlap much; with few distinct scores, most of them are ties."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 300, (n, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(20, 120, (n, 2))], axis=1)
    scores = rng.uniform(size=n) if num_scores is None else rng.integers(0, num_scores, n) / 8
    return boxes.astype(np.float32), scores.astype(np.float32)


@functools.partial(jax.jit, static_argnames=("number", "block", "threshold"))
def kept(boxes, scores, number, block, threshold=0.5):
    return suppressed(boxes, scores, threshold=threshold, number=number, block=block)


def by_tensorflow(boxes, scores, number, threshold=0.5):
    tf = pytest.importorskip("tensorflow")
    return tf.image.non_max_suppression(boxes, scores, number, iou_threshold=threshold).numpy()


@pytest.mark.parametrize(
    ("n", "number", "block", "num_scores"),
    [(2000, 2000, 256, None), (500, 40, 64, 5), (500, 500, 512, 5), (1, 3, 256, None)],
)
def test_the_same_boxes_are_kept_as_by_tensorflow(n, number, block, num_scores):
    boxes, scores = crowd(n, seed=n + number, num_scores=num_scores)
    found = np.asarray(kept(boxes, scores, number, block))
    expected = by_tensorflow(boxes, scores, number)
    assert len(expected) < n or n == 1
    np.testing.assert_array_equal(found[: len(expected)], expected)
    assert (found[len(expected) :] == -1).all()


def test_absent_boxes_are_never_kept_and_suppress_nothing():
    boxes, scores = crowd(300)
    is_absent = np.arange(300) % 3 == 0
    found = np.asarray(kept(boxes, np.where(is_absent, -np.inf, scores), 300, 64))
    expected = np.flatnonzero(~is_absent)[by_tensorflow(boxes[~is_absent], scores[~is_absent], 300)]
    np.testing.assert_array_equal(found[found >= 0], expected)
    nothing = kept(boxes, np.full(300, -np.inf, np.float32), 300, 64)
    assert (np.asarray(nothing) == -1).all()
    empty = suppressed(jnp.zeros((0, 4)), jnp.zeros(0), threshold=0.5, number=2)
    assert empty.tolist() == [-1, -1]


def test_a_chain_of_boxes_that_decide_about_each_other_keeps_every_second():
    tops = 4.0 * np.arange(100, dtype=np.float32)  # neighbours overlap by 6/14, others less
    boxes = np.stack([tops, 0 * tops, tops + 10, 0 * tops + 10], axis=1)
    scores = -np.arange(100, dtype=np.float32)
    for block in (7, 100):
        found = np.asarray(kept(boxes, scores, 100, block, threshold=0.4))
        np.testing.assert_array_equal(found[:50], np.arange(0, 100, 2))
        assert (found[50:] == -1).all()


def test_the_images_of_a_batch_do_not_affect_each_other():
    images = [crowd(200, seed) for seed in range(3)]
    single = [kept(*image, 60, 64) for image in images]
    together = jax.jit(jax.vmap(lambda b, s: suppressed(b, s, threshold=0.5, number=60, block=64)))(
        *map(np.stack, zip(*images))
    )
    np.testing.assert_array_equal(together, single)

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from heteroscedastic import smoothing
from heteroscedastic.batch import Batch


def batch_of(labels, leading=None, **extras):
    """A batch with these labels and extras, and no inputs."""
    labels = jnp.asarray(labels)
    weights = jnp.ones(labels.shape if leading is None else leading)
    ids = jnp.arange(weights.size).reshape(weights.shape)
    return Batch(None, labels, weights, ids, {n: jnp.asarray(x) for n, x in extras.items()})


def boxes_of(areas):
    """Boxes [*b, 2, 4] that cover these fractions of the image; the second row is padding."""
    areas = np.asarray(areas, np.float32)
    box = np.stack([np.zeros_like(areas), 1 - areas, np.ones_like(areas), np.ones_like(areas)], -1)
    return np.stack([box, np.zeros_like(box)], axis=-2)


@pytest.mark.parametrize(
    ("over", "own", "other"),
    [
        ("all", lambda r, k: 1 - r + r / k, lambda r, k: r / k),
        ("wrong", lambda r, k: 1 - r, lambda r, k: r / (k - 1)),
    ],
)
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("k", [2, 5])
def test_targets_follow_the_formula_of_each_convention(over, own, other, rate, k):
    targets = smoothing.uniform(batch_of([1, 0]), k, rate=rate, over=over)
    stated = np.full((2, k), other(rate, k))
    stated[0, 1] = stated[1, 0] = own(rate, k)
    np.testing.assert_allclose(targets, stated, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_the_conventions_agree_at_corresponding_rates(rate, k):
    batch = batch_of(np.arange(k))
    np.testing.assert_allclose(
        smoothing.uniform(batch, k, rate=rate * (k - 1) / k, over="wrong"),
        smoothing.uniform(batch, k, rate=rate, over="all"),
        rtol=1e-5,
    )


@pytest.mark.parametrize("over", ["all", "wrong"])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_rows_sum_to_one_under_any_leading_axes(over, rate, shape):
    labels = np.random.default_rng(0).integers(0, 5, size=shape)
    targets = smoothing.uniform(batch_of(labels), 5, rate=rate, over=over)
    assert targets.shape == (*shape, 5)
    np.testing.assert_allclose(targets.sum(axis=-1), np.ones(shape), rtol=1e-6)


def test_rate_zero_gives_hard_targets():
    batch = batch_of([2, 0, 1])
    np.testing.assert_array_equal(smoothing.hard(batch, 3), np.eye(3)[[2, 0, 1]])
    for over in ("all", "wrong"):
        np.testing.assert_array_equal(
            smoothing.uniform(batch, 3, rate=0.0, over=over), smoothing.hard(batch, 3)
        )


def test_targets_of_lists_are_one_at_each_label_and_ignore_padding_and_repeats():
    lists = [[0, 2, -1], [-1, -1, -1], [1, 1, 1], [3, 2, 0]]
    stated = [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 1]]
    np.testing.assert_array_equal(smoothing.hard(batch_of(lists, (4,)), 4), stated)
    np.testing.assert_array_equal(
        smoothing.hard(batch_of(np.reshape(lists, (2, 2, 3)), (2, 2)), 4),
        np.reshape(stated, (2, 2, 4)),
    )


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_a_rate_out_of_range_is_an_error(rate):
    with pytest.raises(ValueError, match=r"rate is .*; it must be a finite number >= 0 and < 1"):
        smoothing.uniform(batch_of([0]), 3, rate=rate)


def test_an_unknown_convention_is_an_error_that_lists_the_choices():
    with pytest.raises(ValueError, match=r"over is 'some'; choose 'all' or 'wrong'"):
        smoothing.uniform(batch_of([0]), 3, rate=0.1, over="some")


def test_smoothing_of_lists_of_labels_is_an_error():
    with pytest.raises(ValueError, match="one label per example"):
        smoothing.uniform(batch_of([[0, -1]], (1,)), 3, rate=0.1)


@pytest.mark.parametrize("over", ["wrong", "all"])
@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
def test_adaptive_targets_follow_the_formula_under_any_leading_axes(over, beta, shape):
    rng, k = np.random.default_rng(0), 5
    labels, areas = rng.integers(0, k, shape), rng.uniform(size=shape)
    batch = batch_of(labels, boxes=boxes_of(areas))
    targets = jax.jit(lambda b: smoothing.adaptive(b, k, beta=beta, over=over))(batch)
    hot, alpha = np.eye(k)[labels], 1 - areas[..., None]
    spread = (1 - hot) / (k - 1) if over == "wrong" else np.full_like(hot, 1 / k)
    expected = beta * ((1 - alpha) * hot + alpha * spread) + (1 - beta) * hot
    np.testing.assert_allclose(targets, expected, atol=1e-6)
    np.testing.assert_allclose(targets.sum(axis=-1), np.ones(shape), rtol=1e-6)


def test_beta_0_or_an_image_full_of_object_gives_hard_targets():
    labels = [2, 0, 1]
    for over in ("wrong", "all"):
        for beta, areas in ((0.0, [0.0, 0.3, 1.0]), (1.0, [1.0, 1.0, 1.0])):
            batch = batch_of(labels, boxes=boxes_of(areas))
            targets = smoothing.adaptive(batch, 3, beta=beta, over=over)
            np.testing.assert_array_equal(targets, np.eye(3)[labels])


@pytest.mark.parametrize("area", [0.2, 0.75])
@pytest.mark.parametrize("beta", [0.25, 1.0])
def test_equal_objectness_is_uniform_smoothing(area, beta):
    labels, k = np.arange(6), 6
    batch, rate = batch_of(labels, boxes=boxes_of(np.full(6, area))), beta * (1 - area)
    np.testing.assert_allclose(
        smoothing.adaptive(batch, k, beta=beta),
        smoothing.uniform(batch_of(labels), k, rate=rate, over="wrong"),
        atol=1e-6,
    )
    np.testing.assert_allclose(
        smoothing.adaptive(batch, k, beta=beta, over="all"),
        optax.smooth_labels(jnp.eye(k)[labels], rate),
        atol=1e-6,
    )


def test_an_empty_crop_is_uniform_over_all_classes_or_over_the_wrong_ones():
    batch = batch_of([1], boxes=boxes_of([0.0]))
    np.testing.assert_allclose(smoothing.adaptive(batch, 4, over="all"), [[0.25] * 4])
    np.testing.assert_allclose(smoothing.adaptive(batch, 4), [[1 / 3, 0, 1 / 3, 1 / 3]], rtol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_context_is_uniform_whatever_beta_is_and_others_are_unchanged(beta):
    extras = dict(boxes=boxes_of([0.5, 0.5, 1.0]))
    plain = smoothing.adaptive(batch_of([1, 1, 1], **extras), 4, beta=beta)
    batch = batch_of([1, 1, 1], **extras, context=np.array([True, False, True]))
    targets = smoothing.adaptive(batch, 4, beta=beta)
    np.testing.assert_array_equal(targets[::2], np.full((2, 4), 0.25))
    np.testing.assert_array_equal(targets[1], plain[1])


def test_the_objectness_of_the_next_example_is_that_of_the_examples_moved_by_one():
    areas, labels = np.array([0.1, 0.5, 1.0, 0.3]), [0, 1, 2, 0]
    batch = batch_of(labels, boxes=boxes_of(areas))
    moved = batch_of(labels, boxes=boxes_of(np.roll(areas, -1)))
    targets = smoothing.adaptive(batch, 3, objectness="next")
    np.testing.assert_allclose(targets, smoothing.adaptive(moved, 3), atol=1e-6)
    absent = batch._replace(weights=jnp.array([1.0, 1.0, 0.0, 1.0]))
    targets = smoothing.adaptive(absent, 3, objectness="next")
    np.testing.assert_allclose(targets[1], smoothing.adaptive(batch, 3)[1], atol=1e-6)


def test_given_targets_pass_unchanged():
    soft = np.random.default_rng(0).dirichlet(np.ones(4), 3).astype(np.float32)
    batch = batch_of([0, 1, 2], answers=soft)
    np.testing.assert_array_equal(smoothing.given(batch, 4, field="answers"), soft)


def by_class_of(tmp_path, rows, labels=(2, 0, 1, 2), rate=0.3):
    """Targets under a table that is written to a file."""
    np.save(tmp_path / "table.npy", rows)
    table = str(tmp_path / "table.npy")
    return smoothing.by_class(batch_of(list(labels)), len(rows), rate=rate, table=table)


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_by_class_spreads_over_the_row_of_the_label(tmp_path, rate):
    labels, table = [2, 0, 1, 2], np.random.default_rng(0).dirichlet(np.ones(3), 3)
    targets = by_class_of(tmp_path, table, rate=rate)
    np.testing.assert_allclose(
        targets, (1 - rate) * np.eye(3)[labels] + rate * table[labels], rtol=1e-5
    )
    np.testing.assert_allclose(targets.sum(axis=-1), np.ones(4), rtol=1e-6)
    assert targets.dtype == jnp.float32


def test_by_class_of_the_identity_is_hard_and_of_equal_rows_is_uniform(tmp_path):
    batch = batch_of([2, 0, 1, 2])
    identity, equal = np.eye(3, dtype=int), np.full((3, 3), 1 / 3)
    np.testing.assert_allclose(by_class_of(tmp_path, identity), smoothing.hard(batch, 3), rtol=1e-6)
    np.testing.assert_allclose(
        by_class_of(tmp_path, equal), smoothing.uniform(batch, 3, rate=0.3), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.full((3, 4), 0.25), r"must be numbers \[3, 3\], a row for each class, but is float64"),
        (np.full((2, 2), 0.5), r"must be numbers \[3, 3\].* \(2, 2\)"),
        (np.eye(3) > 0, "must be numbers .* but is bool"),
        (np.eye(3) * [[1], [1], [0.9]], "row 2 sums to 0.9, but each row must be >= 0 and sum to"),
        (np.eye(3) - [[0], [0.1], [0]], "row 1 has the value -0.1"),
        (np.eye(3) * [[1], [np.nan], [1]], "row 1 sums to nan"),
    ],
)
def test_a_table_that_has_no_distribution_for_each_class_is_an_error(tmp_path, rows, message):
    np.save(tmp_path / "table.npy", rows)
    table = str(tmp_path / "table.npy")
    with pytest.raises(ValueError, match=rf"^table '{table}'.*{message}") as caught:
        smoothing.by_class(batch_of([0]), 3, rate=0.1, table=table)
    assert "\n" not in str(caught.value)


def test_a_table_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "text.npy").write_text("0.5 0.5")
    (tmp_path / "empty.npy").write_text("")
    for name in ("absent.npy", "text.npy", "empty.npy"):
        with pytest.raises(ValueError, match=rf"{name}' cannot be read as an \.npy file"):
            smoothing.by_class(batch_of([0]), 3, rate=0.1, table=str(tmp_path / name))


@pytest.mark.parametrize("number", [-0.1, 1.1, float("nan")])
def test_a_beta_or_rate_out_of_range_is_an_error(number):
    batch = batch_of([0], boxes=boxes_of([0.5]))
    expected = r"; it must be a finite number >= 0 and <= 1\.$"
    with pytest.raises(ValueError, match=f"^beta is .*{expected}"):
        smoothing.adaptive(batch, 3, beta=number)
    with pytest.raises(ValueError, match=f"^rate is .*{expected}"):
        smoothing.by_class(batch, 3, rate=number, table="table.npy")


ADAPTIVE = functools.partial(smoothing.adaptive, num_classes=3)
GIVEN = functools.partial(smoothing.given, num_classes=3, field="soft")
BY_CLASS = functools.partial(smoothing.by_class, num_classes=3, rate=0.1, table="table.npy")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ADAPTIVE(batch_of([0])), r"set config\.data\.extras=\('boxes',\)"),
        (lambda: GIVEN(batch_of([0])), r"set config\.data\.extras=\('soft',\)"),
        (
            lambda: GIVEN(batch_of([0, 1], soft=np.full((2, 4), 0.25))),
            r"'soft' has shape \(2, 4\), but soft labels of 3 classes have shape \(2, 3\)",
        ),
        (
            lambda: ADAPTIVE(batch_of([0], boxes=boxes_of([0.5])), over="some"),
            "over is 'some'; choose 'all' or 'wrong'",
        ),
        (
            lambda: ADAPTIVE(batch_of([0], boxes=boxes_of([0.5])), objectness="other"),
            "objectness is 'other'; choose 'own' or 'next'",
        ),
        (
            lambda: ADAPTIVE(batch_of([[0, -1]], (1,), boxes=boxes_of([0.5]))),
            "'adaptive' needs one label per example",
        ),
        (lambda: BY_CLASS(batch_of([[0, -1]], (1,))), "'by_class' needs one label per example"),
    ],
)
def test_what_a_smoothing_lacks_is_an_error_of_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)

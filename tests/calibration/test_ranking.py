import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from heteroscedastic.calibration import ranking

EDGES = ranking.log_odds_edges()
COARSE = ranking.log_odds_edges(16)


def drawn(seed, n=80, k=6, rate=0.2, separation=2.0, scale=1.0):
    rng = np.random.default_rng(seed)
    targets = (rng.random((n, k)) < rate).astype(np.float32)
    scores = scale * (separation * targets - 3 + rng.normal(size=(n, k)))
    return scores.astype(np.float32), targets, rng.integers(0, 3, n).astype(np.float32)


def hostile(name):
    scores, targets, weights = drawn(0)
    rng = np.random.default_rng(1)
    changed = {
        "all equal": 0 * scores,
        "few values": rng.integers(-2, 3, scores.shape),
        "right apart": 10 * targets,
        "wrong way": -10 * targets,
        "right way in one bin": 1e-4 * targets,
        "wrong way in one bin": -1e-4 * targets,
        "beyond the ends": 1e5 * scores,
        "on the edges": EDGES[rng.integers(2000, 2100, scores.shape)],
    }[name]
    return np.asarray(changed, np.float32), targets, weights


NAMES = (
    "all equal",
    "few values",
    "right apart",
    "wrong way",
    "right way in one bin",
    "wrong way in one bin",
)
CASES = [
    *(
        drawn(seed, rate=rate, separation=s)
        for seed in range(3)
        for rate in (0.01, 0.5)
        for s in (0.0, 2.0, 6.0)
    ),
    *(drawn(0, scale=scale) for scale in (1e-3, 0.1, 30.0, 1000.0)),
    *map(hostile, (*NAMES, "beyond the ends", "on the edges")),
]


def exact(scores, targets, weights):
    weights = np.broadcast_to(weights[:, None], scores.shape)
    return sklearn_metrics.average_precision_score(
        targets.ravel(), scores.ravel(), sample_weight=weights.ravel()
    )


def counted(scores, targets, weights, edges=EDGES):
    return ranking.sums(*map(jnp.asarray, (scores, targets, weights)), edges)


@pytest.mark.parametrize(
    "edges", [EDGES, COARSE, EDGES[[0, -1]]], ids=["4096 bins", "16 bins", "one bin"]
)
@pytest.mark.parametrize("case", CASES)
def test_the_exact_and_the_binned_value_lie_within_the_bounds(case, edges):
    sums = counted(*case, edges)
    low, high = ranking.average_precision_bounds(sums)
    assert 0 <= low <= high + 1e-9
    assert high <= 1 + 1e-9
    assert low - 1e-9 <= exact(*case) <= high + 1e-9
    assert low - 1e-9 <= ranking.average_precision(sums) <= high + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_the_binned_value_of_many_scores_is_close_to_the_exact_value(seed):
    case = drawn(seed, n=2000, k=50, rate=0.05)
    sums = counted(*case)
    low, high = ranking.average_precision_bounds(sums)
    assert ranking.average_precision(sums) == pytest.approx(exact(*case), abs=1e-3)
    assert high - low < 0.05


def test_finer_bins_give_closer_bounds():
    case, widths = drawn(0, n=500), []
    for num_bins in (2**4, 2**8, 2**12):  # each splits every bin of the previous one
        low, high = ranking.average_precision_bounds(
            counted(*case, ranking.log_odds_edges(num_bins))
        )
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < widths[0] / 10


def test_the_bounds_are_reached():
    case = hostile("right way in one bin")  # all positives tied before the negatives
    assert ranking.average_precision_bounds(counted(*case))[1] == pytest.approx(exact(*case))
    # Many single positives after the negatives.
    scores = -np.arange(2000, dtype=np.float32)[None] * 1e-6
    targets = (np.arange(2000) >= 1000).astype(np.float32)[None]
    low, _ = ranking.average_precision_bounds(counted(scores, targets, np.ones(1), EDGES[[0, -1]]))
    assert low == pytest.approx(exact(scores, targets, np.ones(1)), abs=1e-3)


def test_equal_scores_have_exactly_the_precision_of_chance():
    scores, targets, weights = hostile("all equal")
    share = np.average(targets.mean(axis=-1), weights=weights)
    assert ranking.average_precision(counted(scores, targets, weights)) == pytest.approx(share)


def test_bins_agree_with_a_plain_histogram():
    scores, targets, weights = drawn(0)
    actual = counted(scores, targets, weights, COARSE)
    for m in range(16):
        inside = (scores > COARSE[m]) & (scores <= COARSE[m + 1])
        assert actual.positive[m] == (weights[:, None] * inside * targets).sum()
        assert actual.negative[m] == (weights[:, None] * inside * (1 - targets)).sum()


def test_parts_merge_by_addition():
    case = drawn(0)
    parts = [counted(*(x[s] for x in case)) for s in (slice(0, 30), slice(30, None))]
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.add, *parts), counted(*case))


@pytest.mark.parametrize("absent", [0.0, np.nan, np.inf, -np.inf])
def test_an_example_of_weight_zero_is_absent(absent):
    scores, targets, weights = drawn(0)
    padded = np.pad(scores, ((0, 3), (0, 0)), constant_values=absent)
    actual = counted(
        padded, np.pad(targets, ((0, 3), (0, 0)), mode="edge"), np.pad(weights, (0, 3))
    )
    jax.tree.map(np.testing.assert_array_equal, actual, counted(scores, targets, weights))


def test_infinite_scores_are_in_the_outermost_bins_and_nan_gives_nan():
    sums = counted([[np.inf, -np.inf]], [[1.0, 0.0]], np.ones(1))
    assert (sums.positive[-1], sums.negative[0]) == (1, 1)
    assert ranking.average_precision(sums) == 1
    nan = counted([[np.nan, 0.0]], [[1.0, 0.0]], np.ones(1))
    assert np.isnan([ranking.average_precision(nan), *ranking.average_precision_bounds(nan)]).all()


def test_counts_may_exceed_the_integers_of_float32():
    many = ranking.sums(
        jnp.zeros((3, 2**23)), jnp.zeros((3, 2**23)), jnp.ones(3), COARSE[[0, 8, 16]]
    )
    assert many.negative.sum() == 3 * 2**23  # above 2^24, x + 1 == x in float32


def test_without_positives_the_result_is_nan():
    for weights in (np.zeros(2), np.ones(2)):
        sums = counted(np.zeros((2, 3)), np.zeros((2, 3)), weights)
        assert np.isnan(
            [ranking.average_precision(sums), *ranking.average_precision_bounds(sums)]
        ).all()

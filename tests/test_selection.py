"""The choice of the examples of an epoch, alone and in a run."""

import functools
import re

import jax
import numpy as np
import pytest
from scipy import stats
from small_runs import assert_same_bits, outcome, plain

from heteroscedastic import selection
from heteroscedastic.bind import chain
from heteroscedastic.data import augment, resident
from heteroscedastic.data.dataset import Split
from heteroscedastic.runs import assembly, loop, schema

COUNTS = np.array([900, 90, 9, 1, 0])
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), COUNTS))
POOL = selection.Pool(np.arange(1000), LABELS, COUNTS.astype(np.float32))


def drawn(epoch):
    return selection.balanced(np.random.default_rng(epoch), POOL)


def test_everything_is_every_example_once():
    rows, weights = selection.everything(np.random.default_rng(0), POOL)
    np.testing.assert_array_equal(rows, np.arange(1000))
    np.testing.assert_array_equal(weights, 1)


def test_balanced_draws_every_class_and_every_example_of_a_class_equally_often():
    rows = np.concatenate([drawn(epoch).rows for epoch in range(50)])
    assert len(rows) == 50 * 1000
    by_class = np.bincount(LABELS[rows], minlength=5)
    assert by_class[4] == 0
    assert stats.chisquare(by_class[:4]).pvalue > 1e-4
    for label in (0, 1, 2):
        counts = np.bincount(rows, minlength=1000)[label == LABELS]
        assert stats.chisquare(counts).pvalue > 1e-4
    assert not np.array_equal(drawn(0).rows, drawn(1).rows)


def test_lists_of_labels_have_no_balanced_draw():
    pool = POOL._replace(labels=np.stack([LABELS, LABELS], axis=-1))
    with pytest.raises(ValueError, match=r"lists of labels; use config\.weighting"):
        selection.balanced(np.random.default_rng(0), pool)


@pytest.mark.parametrize(
    ("name", "settings", "missing"),
    [
        ("largest", {"fraction": 0.5}, "scores"),
        ("smallest", {"fraction": 0.5}, "scores"),
        ("spread", {"fraction": 0.5}, "scores"),
        ("pruned", {"rate": 0.5}, "scores"),
        ("excess", {"fraction": 0.5}, "target_scores"),
    ],
)
def test_a_pool_without_the_scores_that_a_selection_reads_is_an_error(name, settings, missing):
    pool = POOL._replace(scores=np.zeros(1000, np.float32) if name == "excess" else None)
    with pytest.raises(ValueError, match=rf"reads {missing} of the pool, which has none; give"):
        getattr(selection, name)(np.random.default_rng(0), pool, **settings)


def test_a_repeated_example_has_its_own_augmentation_and_its_first_occurrence_that_of_every_epoch():
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 1), np.uint8)
    ids = np.arange(6, dtype=np.int32)
    split, links = Split(images, ids, ids), chain(augment, "pad_crop(4)")

    def augmented(rows):
        (feed,) = resident.feeds(np.array(rows), len(rows), epoch=3)
        return np.asarray(resident.batch(jax.random.key(0), split, feed, chain=links).inputs)

    once, repeated = augmented([0, 1, 2, 3, 4, 5]), augmented([2, 0, 2, 2, 5, 0])
    np.testing.assert_array_equal(repeated[[0, 1, 4]], once[[2, 0, 5]])
    own = functools.reduce(jax.random.fold_in, (3, 2, 0), jax.random.key(0))  # epoch, id, operation
    np.testing.assert_array_equal(
        once[2], links[0](own, {"image": jax.numpy.asarray(images[2])})["image"]
    )
    assert len({image.tobytes() for image in (*repeated[[0, 2, 3]], *repeated[[1, 5]])}) == 5


SCORES = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
SCORED = POOL._replace(scores=SCORES, target_scores=np.roll(SCORES, 1))
BY_SCORE = {
    "largest": dict(fraction=0.3),
    "smallest": dict(fraction=0.3),
    "spread": dict(fraction=0.3),
    "excess": dict(fraction=0.3),
    "pruned": dict(rate=0.5),
}


def rows(name, pool, seed=0, **settings):
    settings = settings or BY_SCORE[name]
    return getattr(selection, name)(np.random.default_rng(seed), pool, **settings).rows


def test_largest_smallest_and_excess_are_what_a_full_sort_gives():
    order = np.argsort(SCORES)
    np.testing.assert_array_equal(rows("smallest", SCORED), np.sort(order[:300]))
    np.testing.assert_array_equal(rows("largest", SCORED), np.sort(order[-300:]))
    difference = np.argsort(SCORED.scores - SCORED.target_scores)
    np.testing.assert_array_equal(rows("excess", SCORED), np.sort(difference[-300:]))


def test_spread_takes_examples_at_equal_distances_of_the_ranking_from_the_largest_on():
    rank = np.argsort(np.argsort(-SCORES))
    chosen = np.sort(rank[rows("spread", SCORED, fraction=0.25)])
    np.testing.assert_array_equal(chosen, np.arange(0, 1000, 4))


@pytest.mark.parametrize("name", ["largest", "smallest", "spread"])
def test_a_choice_by_rank_is_the_same_after_a_rising_map(name):
    mapped = SCORED._replace(scores=np.exp(SCORES))
    np.testing.assert_array_equal(rows(name, SCORED), rows(name, mapped))


ORDER = np.random.default_rng(2).permutation(1000)
MOVED = SCORED._replace(
    scores=SCORES[ORDER], target_scores=SCORED.target_scores[ORDER], ids=POOL.ids[ORDER]
)


@pytest.mark.parametrize("name", ["largest", "smallest", "spread", "excess"])
def test_a_choice_does_not_depend_on_the_order_of_the_examples(name):
    np.testing.assert_array_equal(np.sort(ORDER[rows(name, MOVED)]), rows(name, SCORED))


def test_what_pruning_always_has_and_all_weights_do_not_depend_on_the_order_of_the_examples():
    """Which of the other examples it keeps is drawn by their positions."""
    chosen, moved = (
        selection.pruned(np.random.default_rng(0), pool, rate=0.5) for pool in (SCORED, MOVED)
    )
    np.testing.assert_array_equal(
        np.sort(ORDER[moved.rows[moved.weights == 1]]), chosen.rows[chosen.weights == 1]
    )
    np.testing.assert_array_equal(np.sort(moved.weights), np.sort(chosen.weights))
    assert len(np.unique(moved.rows)) == len(np.unique(chosen.rows)) == len(chosen.rows) < 1000


@pytest.mark.parametrize("name", ["largest", "smallest", "spread", "excess", "random", "pruned"])
def test_examples_of_equal_scores_have_the_same_chance(name):
    """Five examples with a lower score, of 40 with two scores: ties are at the limit of choice.

    The five are below the mean, so pruning keeps three of them and all others.
    """
    scores = np.repeat(np.float32([0.0, 1.0]), [5, 35])
    pool = selection.Pool(np.arange(40), np.zeros(40, int), np.ones(1), 0.0, scores, 0 * scores)
    settings, number = ({"rate": 0.5}, 38) if name == "pruned" else ({"fraction": 0.5}, 20)
    times = np.zeros(40)
    for seed in range(2000):
        times[rows(name, pool, seed, **settings)] += 1
    for group in (times[:5], times[5:]):
        expected = np.full(len(group), group.mean())
        if 0 < expected[0] < 2000:
            # Draws without replacement vary less than independent ones, so the test is mild.
            assert stats.chisquare(group, expected).pvalue > 1e-4
    assert times.sum() == 2000 * number
    if name in ("largest", "excess"):
        assert times[:5].sum() == 0
    if name == "smallest":
        assert (times[:5] == 2000).all()
    if name == "pruned":
        assert (times[5:] == 2000).all()


@pytest.mark.parametrize("name", ["largest", "smallest", "spread", "excess", "random"])
def test_a_fraction_of_one_is_every_example_in_order(name):
    np.testing.assert_array_equal(rows(name, SCORED, fraction=1.0), np.arange(1000))


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5, float("nan"), 1e-5])
@pytest.mark.parametrize("name", ["largest", "smallest", "spread", "excess", "random"])
def test_a_fraction_outside_of_the_range_or_of_no_example_is_an_error(name, fraction):
    with pytest.raises(ValueError, match=r"fraction is .*(must be|no example)"):
        rows(name, SCORED, fraction=fraction)


@pytest.mark.parametrize("number", [1, 7, 960, 1000])
def test_a_fraction_is_rounded_to_examples_and_the_smallest_that_the_error_names_is_one(number):
    pool = SCORED._replace(scores=np.arange(number, dtype=np.float32))
    with pytest.raises(ValueError, match=f"no example of {number:,}; ") as error:
        rows("largest", pool, fraction=0.4 / number)
    (least,) = re.findall(r"at least (.*), which is one", str(error.value))
    assert len(rows("largest", pool, fraction=float(least))) == 1
    for share, rounded in ((0.6, 1), (1.4, 1), (1.8, 2)) if number > 1 else ():
        assert len(rows("largest", pool, fraction=share / number)) == rounded


def test_random_takes_every_example_equally_often():
    times = np.bincount(
        np.concatenate([rows("random", POOL, seed, fraction=0.3) for seed in range(500)]),
        minlength=1000,
    )
    assert len(np.unique(rows("random", POOL, fraction=0.3))) == 300
    assert stats.chisquare(times).pvalue > 1e-4


def test_the_weighted_sum_over_pruned_examples_is_unbiased():
    values = np.random.default_rng(3).uniform(1, 2, 1000)
    draws = [selection.pruned(np.random.default_rng(s), SCORED, rate=0.7) for s in range(2000)]
    sums = np.array([np.sum(d.weights * values[d.rows]) for d in draws])
    error = np.std(sums) / np.sqrt(len(sums))
    assert abs(np.mean(sums) - values.sum()) < 4 * error
    assert np.std(sums) > 0
    chosen = draws[0]
    below = SCORES.mean() > SCORES
    assert (~below).sum() == (~below[chosen.rows]).sum()
    assert len(chosen.rows) == 1000 - 7 * below.sum() // 10
    assert np.sum(chosen.weights) == pytest.approx(1000, rel=1e-6)


def test_a_share_that_rounding_makes_smaller_is_left_out_as_a_whole():
    scores = np.r_[np.zeros(90, np.float32), np.ones(10, np.float32)]
    pool = POOL._replace(ids=np.arange(100), scores=scores)
    chosen = selection.pruned(np.random.default_rng(0), pool, rate=0.7)  # 0.7 * 90 < 63
    assert len(chosen.rows) == 10 + 27


def test_the_last_eighth_of_training_prunes_nothing():
    for progress, number in (
        (0.874, 1000 - int(0.5 * (SCORES.mean() > SCORES).sum())),
        (0.875, 1000),
    ):
        pool = SCORED._replace(progress=progress)
        assert len(rows("pruned", pool)) == number
    pool = SCORED._replace(progress=3 / 10)  # below 1 - 0.7 by rounding
    assert len(rows("pruned", pool, rate=0.5, full_fraction=0.7)) == 1000


def test_of_equal_scores_none_is_below_the_mean():
    for value in np.float32([0.1, 1 / 3, 1e-8, 1e8]):
        pool = SCORED._replace(scores=np.full(1000, value))
        assert len(rows("pruned", pool)) == 1000


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_outside_of_the_range_is_an_error(rate):
    with pytest.raises(ValueError, match="rate"):
        rows("pruned", SCORED, rate=rate)


def selecting(name):
    return plain(**{"selection": dict(name=name), "training.num_epochs": 2.0})


def test_an_epoch_that_begins_in_the_middle_has_the_rest_of_the_same_examples():
    run, again = (assembly.build(selecting("balanced")) for _ in range(2))
    slots = np.arange(run.steps.batch_size)
    whole = list(run.pipeline.training_feeds(1, 0, slots, run.selected(1)))
    rest = list(again.pipeline.training_feeds(1, 4, slots, again.selected(1)))
    assert len(rest) == len(whole) - 4 > 0
    jax.tree.map(np.testing.assert_array_equal, whole[4:], rest)
    assert not np.array_equal(run.selected(0).rows, run.selected(1).rows)


def test_a_run_that_selects_everything_is_the_run_without_a_selection(tmp_path):
    without = {name: x for name, x in selecting("everything").items() if name != "selection"}
    for name, config in {"with": selecting("everything"), "without": without}.items():
        loop.train(config, str(tmp_path / name))
    assert_same_bits(outcome(tmp_path / "with"), outcome(tmp_path / "without"))


def test_a_stream_cannot_select():
    config = selecting("balanced")
    config["data"] |= {"pipeline": "streaming", "reader_shards": 8}
    with pytest.raises(ValueError, match=r"set config\.data\.pipeline='resident', or remove"):
        schema.checked(config)


def test_an_unknown_selection_is_an_error_that_lists_the_choices():
    with pytest.raises(ValueError, match=r"config\.selection: .*one of balanced, everything"):
        schema.checked(selecting("hardest"))

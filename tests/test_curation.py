import functools
import tracemalloc

import numpy as np
import pytest
from scipy import special, stats

from heteroscedastic import curation, label_lists
from heteroscedastic.curation import draws
from heteroscedastic.data import dataset
from heteroscedastic.data.dataset import Dataset, Split

N, K = 20_000, 6
IDS = np.arange(N, dtype=np.int32)
LABELS = np.random.default_rng(0).integers(0, K, N).astype(np.int32)
HOT = np.random.default_rng(1).random((N, K)) < 0.3
LISTS = label_lists.from_multi_hot(HOT)
PAIRS = ((0, 3), (4, 1))

RULES = {
    "confuse_pairs": (curation.confuse_pairs, LABELS, dict(pairs=PAIRS, rate=0.4)),
    "confuse_random_pairs": (curation.confuse_random_pairs, LABELS, dict(num_pairs=2, rate=0.4)),
    "drop_and_add": (curation.drop_and_add, LISTS, dict(drop_rate=0.3, add_rate=0.1)),
    "symmetric": (curation.symmetric, LABELS, dict(rate=0.4)),
    "transitions": (curation.transitions, LABELS, dict(moves=((0, 3), (3, 0), (4, 1)), rate=0.4)),
    "rising_noise": (curation.rising_noise, LABELS, {}),
}
IMAGES = np.random.default_rng(2).integers(0, 256, (N, 4, 4, 3)).astype(np.uint8)


def instance_dependent(seed, ids, labels, num_classes, **settings):
    return curation.instance_dependent(seed, ids, labels, num_classes, IMAGES[ids], **settings)


RULES["instance_dependent"] = (instance_dependent, LABELS, dict(rate=0.3))
every_rule = pytest.mark.parametrize(("rule", "labels", "settings"), RULES.values(), ids=RULES)
SHARES = [curation.exponential, curation.step]
SELECTIONS = {
    "exponential": (curation.exponential, dict(ratio=10)),
    "step": (curation.step, dict(ratio=10)),
    "undersample": (curation.undersample, {}),
    "subset": (curation.subset, dict(fraction=0.2)),
}
every_selection = pytest.mark.parametrize(
    ("select", "settings"), SELECTIONS.values(), ids=SELECTIONS
)


def assert_rate(events, rate):
    """Independent events occur at this rate, up to five standard deviations."""
    deviation = np.sqrt(rate * (1 - rate) / events.size)
    assert abs(events.mean() - rate) <= 5 * deviation


def as_sets(labels):
    return [frozenset(np.atleast_1d(row)) - {-1} for row in labels]


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4, 1.0])
def test_each_class_of_a_pair_becomes_the_other_at_the_rate(rate):
    _, noisy = curation.confuse_pairs(0, IDS, LABELS, K, pairs=PAIRS, rate=rate)
    for a, b in (*PAIRS, *(pair[::-1] for pair in PAIRS)):
        assert set(noisy[a == LABELS]) <= {a, b}
        assert_rate(noisy[a == LABELS] == b, rate)


def test_classes_outside_of_pairs_keep_their_labels():
    _, noisy = curation.confuse_pairs(0, IDS, LABELS, K, pairs=PAIRS, rate=1.0)
    is_unpaired = np.isin(LABELS, (2, 5))
    np.testing.assert_array_equal(noisy[is_unpaired], LABELS[is_unpaired])


@pytest.mark.parametrize(
    ("drop_rate", "add_rate"), [(0.0, 0.0), (0.3, 0.05), (0.0, 0.2), (1.0, 0.0), (1.0, 1.0)]
)
def test_labels_are_removed_and_added_at_their_rates_in_every_class(drop_rate, add_rate):
    _, noisy = curation.drop_and_add(0, IDS, LISTS, K, drop_rate=drop_rate, add_rate=add_rate)
    hot = label_lists.multi_hot(noisy, K)
    for c in range(K):
        assert_rate(~hot[HOT[:, c], c], drop_rate)
        assert_rate(hot[~HOT[:, c], c], add_rate)


def test_the_labels_of_an_example_are_changed_independently():
    _, noisy = curation.drop_and_add(0, IDS, LISTS, K, drop_rate=0.5, add_rate=0.5)
    changed = label_lists.multi_hot(noisy, K) ^ HOT
    correlations = np.corrcoef(changed.T) - np.eye(K)
    assert np.abs(correlations).max() <= 5 / np.sqrt(N)


@every_rule
def test_the_noise_of_an_example_does_not_depend_on_other_examples(rule, labels, settings):
    _, noisy = rule(3, IDS, labels, K, **settings)
    some = np.random.default_rng(2).permutation(N)[:500]
    ids, labels_of_some = rule(3, IDS[some], labels[some], K, **settings)
    np.testing.assert_array_equal(ids, IDS[some])
    assert as_sets(labels_of_some) == as_sets(noisy[some])


@every_rule
def test_a_seed_is_reproducible_and_seeds_differ(rule, labels, settings):
    first, again, other = (rule(seed, IDS, labels, K, **settings)[1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert as_sets(first) != as_sets(other)


@every_rule
def test_no_example_is_lost_and_the_stored_labels_are_not_mutated(rule, labels, settings):
    before = labels.copy()
    ids, noisy = rule(0, IDS, labels, K, **settings)
    np.testing.assert_array_equal(ids, IDS)
    assert len(noisy) == N
    assert noisy.dtype == np.int32
    np.testing.assert_array_equal(labels, before)


@pytest.mark.parametrize("num_pairs", [0, 1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_random_pairs_are_disjoint_and_have_the_requested_number(num_pairs, seed):
    _, noisy = curation.confuse_random_pairs(seed, IDS, LABELS, K, num_pairs=num_pairs, rate=1.0)
    partner = np.array([noisy[c == LABELS][0] for c in range(K)])
    np.testing.assert_array_equal(noisy, partner[LABELS])
    np.testing.assert_array_equal(partner[partner], np.arange(K))  # pairs
    assert (partner != np.arange(K)).sum() == 2 * num_pairs


def test_random_pairs_do_not_depend_on_the_rate():
    changes = []
    for rate in (0.2, 0.7):
        _, noisy = curation.confuse_random_pairs(0, IDS, LABELS, K, num_pairs=2, rate=rate)
        changed = noisy != LABELS
        changes.append(set(zip(LABELS[changed], noisy[changed])))
    assert changes[0] == changes[1]


@pytest.mark.parametrize("order", [1, -1])
def test_given_and_random_pairs_in_one_chain_have_independent_noise(order):
    rate, split = 0.4, Split(np.zeros((N, 1), np.float32), np.zeros(N, np.int32), np.arange(N))
    chain = (
        functools.partial(curation.confuse_pairs, pairs=((0, 1),), rate=rate),
        functools.partial(curation.confuse_random_pairs, num_pairs=1, rate=rate),
    )[::order]
    curated = dataset.curate(Dataset({"train": split}, ("a", "b")), 0, chain)
    # Swapped once; of the same numbers an example would be swapped twice or never.
    assert_rate(curated.splits["train"].labels == 1, 2 * rate * (1 - rate))


def test_every_pair_of_classes_is_drawn_by_some_seed():
    ids, labels = np.arange(K), np.arange(K)
    pairs = set()
    for seed in range(100):
        _, noisy = curation.confuse_random_pairs(seed, ids, labels, K, num_pairs=1, rate=1.0)
        pairs.add(tuple(np.flatnonzero(noisy != labels)))
    assert pairs == {(a, b) for a in range(K) for b in range(a + 1, K)}


@pytest.mark.parametrize("labels", [LABELS, LISTS], ids=["single", "lists"])
@pytest.mark.parametrize("num_examples", [1, 700, N, N + 1])
def test_a_subset_has_its_size_and_the_labels_of_its_ids(labels, num_examples):
    ids, labels_of_ids = curation.subset(0, IDS, labels, K, num_examples=num_examples)
    assert len(set(ids)) == len(ids) == min(num_examples, N)
    np.testing.assert_array_equal(labels_of_ids, labels[ids])


def test_a_subset_does_not_depend_on_the_order_or_on_omitted_examples():
    chosen = set(curation.subset(0, IDS, LABELS, K, num_examples=700)[0])
    order = np.random.default_rng(2).permutation(N)
    assert set(curation.subset(0, IDS[order], LABELS[order], K, num_examples=700)[0]) == chosen
    fewer = np.array([i for i in IDS if i in chosen or i % 3 == 0])
    assert set(curation.subset(0, fewer, LABELS[fewer], K, num_examples=700)[0]) == chosen


def test_a_smaller_subset_is_part_of_a_larger_one_and_seeds_differ():
    small, large, other = (
        set(curation.subset(seed, IDS, LABELS, K, num_examples=n)[0])
        for seed, n in ((0, 100), (0, 700), (1, 100))
    )
    assert small < large
    assert small != other


@pytest.mark.parametrize(
    "ids", [IDS, IDS[::-1], np.zeros(0, np.int32)], ids=["increasing", "decreasing", "none"]
)
def test_uniforms_are_uniform_and_depend_on_ids_seeds_and_purposes(ids):
    numbers = draws.uniforms(0, "one", ids)
    np.testing.assert_array_equal(numbers, draws.uniforms(0, "one", IDS)[ids])
    if ids.size:
        assert_rate(numbers < 0.25, 0.25)
        for others in (draws.uniforms(1, "one", ids), draws.uniforms(0, "two", ids)):
            assert abs(np.corrcoef(numbers, others)[0, 1]) <= 5 / np.sqrt(N)


def test_large_ids_have_the_same_numbers_and_cost_no_memory_in_proportion(monkeypatch):
    expected = draws.generator(3, "one").random(100)
    ids = np.array([97, 3, 40, 41, 3, 0], np.int32)
    for part in (4, 8, 1024):
        monkeypatch.setattr(draws, "_PART", part)
        np.testing.assert_array_equal(draws.uniforms(3, "one", ids), expected[ids])
    tracemalloc.start()
    numbers = draws.uniforms(3, "one", np.array([2**31 - 1, 0], np.int32))
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
    assert numbers[1] == expected[0]
    assert 0 <= numbers[0] < 1


@pytest.mark.parametrize("fraction", [0.00013, 0.1, 0.35, 1.0])
def test_a_fraction_is_the_subset_of_as_many_examples(fraction):
    ids, _ = curation.subset(0, IDS, LABELS, K, fraction=fraction)
    others, _ = curation.subset(0, IDS, LABELS, K, num_examples=round(fraction * N))
    np.testing.assert_array_equal(ids, others)


def balanced(num_classes, num_examples):
    """Ids and labels of classes of the same size."""
    labels = np.repeat(np.arange(num_classes, dtype=np.int32), num_examples)
    return np.arange(len(labels), dtype=np.int32), labels


@pytest.mark.parametrize(
    ("select", "num_classes", "num_examples", "counts", "total"),
    [
        # CIFAR-10: floor(5000 / 100^((i - 1) / 9)).
        (
            curation.exponential,
            10,
            5000,
            [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50],
            12_406,
        ),
        # CIFAR-100: the sum of floor(500 / 100^((i - 1) / 99)).
        (curation.exponential, 100, 500, None, 10_847),
        (curation.step, 10, 5000, [5000] * 5 + [50] * 5, 25_250),
        (curation.step, 100, 500, [500] * 50 + [5] * 50, 25_250),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_class_counts_of_cifar_at_a_ratio_of_100_are_exact(
    select, num_classes, num_examples, counts, total, seed
):
    ids, labels = balanced(num_classes, num_examples)
    kept, labels_of_kept = select(seed, ids, labels, num_classes, ratio=100)
    np.testing.assert_array_equal(labels_of_kept, labels[kept])
    assert len(set(kept)) == len(kept) == total
    by_size = np.sort(np.bincount(labels_of_kept))[::-1]
    assert (by_size[0], by_size[-1]) == (num_examples, num_examples // 100)
    assert counts is None or by_size.tolist() == counts


def test_shares_are_of_the_own_count_of_a_class_and_rounded_down():
    labels = np.repeat(np.arange(3, dtype=np.int32), [290, 300, 310])
    for seed in range(10):
        _, kept = curation.exponential(seed, np.arange(900), labels, 3, ratio=100)
        shares = np.bincount(kept) / (290, 300, 310)
        order = np.argsort(-shares)
        expected = np.array([290, 300, 310])[order] // [1, 10, 100]
        np.testing.assert_array_equal(np.bincount(kept)[order], expected)


def test_a_whole_number_of_examples_is_not_lost_to_rounding():
    ids, labels = balanced(3, 49)  # in float64, 49 * 49**-1.0 is less than 1
    _, kept = curation.exponential(0, ids, labels, 3, ratio=49)
    assert sorted(np.bincount(kept)) == [1, 7, 49]


@pytest.mark.parametrize(("num_classes", "num_reduced"), [(1, 0), (2, 1), (5, 2), (9, 4)])
def test_step_reduces_the_smaller_half_of_an_odd_number_of_classes(num_classes, num_reduced):
    ids, labels = balanced(num_classes, 37)
    _, kept = curation.step(0, ids, labels, num_classes, ratio=10)
    assert sorted(np.bincount(kept)) == [3] * num_reduced + [37] * (num_classes - num_reduced)


def test_exponential_and_step_order_the_classes_alike_and_seeds_differ():
    ids, labels = balanced(10, 1000)
    orders = set()
    for seed in range(5):
        exponential, step = (
            np.bincount(select(seed, ids, labels, 10, ratio=100)[1]) for select in SHARES
        )
        order = np.argsort(-exponential)
        assert set(np.flatnonzero(step == 10)) == set(order[5:])
        orders.add(tuple(order))
    assert len(orders) == 5


def test_undersampling_keeps_as_many_examples_of_each_class_as_of_the_smallest():
    labels = np.repeat(np.arange(3, dtype=np.int32), [50, 7, 20])
    ids, kept = curation.undersample(0, np.arange(77), labels, 3)
    np.testing.assert_array_equal(np.bincount(kept), [7, 7, 7])
    np.testing.assert_array_equal(kept, labels[ids])


@pytest.mark.parametrize("select", [*SHARES, curation.undersample])
def test_a_class_without_examples_stays_so_or_is_an_error(select):
    labels = np.array([0, 0, 2, 2], np.int32)
    if select is curation.undersample:
        with pytest.raises(ValueError, match="class 1 has 0 examples, so all 4 examples"):
            select(0, np.arange(4), labels, 3)
    else:
        _, kept = select(0, np.arange(4), labels, 3, ratio=1)
        np.testing.assert_array_equal(kept, labels)


@every_selection
def test_every_example_is_equally_likely_to_be_selected_within_its_class(select, settings):
    sizes = np.array([40, 100, 100, 100])
    labels = np.repeat(np.arange(4, dtype=np.int32), sizes)
    ids = np.arange(len(labels))
    is_early = ids - (np.cumsum(sizes) - sizes)[labels] < sizes[labels] / 2
    kept = np.concatenate([select(seed, ids, labels, 4, **settings)[0] for seed in range(300)])
    assert_rate(is_early[kept], 0.5)


@every_selection
def test_a_selection_does_not_depend_on_the_order_of_the_examples(select, settings):
    order = np.random.default_rng(2).permutation(N)
    kept, labels = select(0, IDS[order], LABELS[order], K, **settings)
    assert set(kept) == set(select(0, IDS, LABELS, K, **settings)[0])
    np.testing.assert_array_equal(labels, LABELS[kept])


@pytest.mark.parametrize("select", SHARES)
def test_examples_at_a_higher_ratio_are_among_those_at_a_lower_ratio(select):
    kept = [set(select(0, IDS, LABELS, K, ratio=ratio)[0]) for ratio in (1, 3.5, 10, 100)]
    assert kept[0] == set(IDS)
    assert kept[3] < kept[2] < kept[1] < kept[0]


@pytest.mark.parametrize("select", SHARES)
def test_the_examples_of_a_class_do_not_depend_on_other_classes(select):
    kept, labels = select(0, IDS, LABELS, K, ratio=10)
    is_some = LABELS != 2
    some, labels_of_some = select(0, IDS[is_some], LABELS[is_some], K, ratio=10)
    np.testing.assert_array_equal(some, kept[labels != 2])
    np.testing.assert_array_equal(labels_of_some, labels[labels != 2])


def test_a_subset_after_a_share_of_the_classes_is_independent_of_it():
    ids, labels = balanced(2, 4000)
    ids, labels = curation.step(0, ids, labels, 2, ratio=4)
    _, fewer = curation.subset(0, ids, labels, 2, fraction=0.5)
    assert_rate(fewer == np.bincount(labels).argmin(), 0.2)


def assert_transitions(labels, noisy, matrix):
    """Labels of class a become class b at the rate matrix[a, b]."""
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    for a, b in np.ndindex(matrix.shape):
        assert_rate(noisy[labels == a] == b, matrix[a, b])


@pytest.mark.parametrize("rate", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("num_classes", [2, K])
def test_symmetric_noise_becomes_every_other_class_evenly(rate, num_classes):
    labels = LABELS % num_classes
    _, noisy = curation.symmetric(0, IDS, labels, num_classes, rate=rate)
    matrix = np.full((num_classes, num_classes), rate / (num_classes - 1))
    np.fill_diagonal(matrix, 1 - rate)
    assert_transitions(labels, noisy, matrix)


@pytest.mark.parametrize("rate", [0.0, 0.2, 1.0])
def test_a_transition_has_one_direction(rate):
    moves = ((0, 3), (3, 0), (4, 1))
    _, noisy = curation.transitions(0, IDS, LABELS, K, moves=moves, rate=rate)
    matrix = np.eye(K)
    for a, b in moves:
        matrix[a, [a, b]] = 1 - rate, rate
    assert_transitions(LABELS, noisy, matrix)


@pytest.mark.parametrize("highest", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("num_classes", [3, K])
def test_rising_noise_becomes_another_class_by_its_rate(highest, num_classes):
    labels = LABELS % num_classes
    _, noisy = curation.rising_noise(0, IDS, labels, num_classes, highest=highest)
    # All classes are in the same order at any highest rate, which is found from the labels at 1.
    _, noisiest = curation.rising_noise(0, IDS, labels, num_classes, highest=1.0)
    rates = np.array([(noisiest != labels)[labels == c].mean() for c in range(num_classes)])
    p = highest * np.argsort(np.argsort(rates)) / (num_classes - 1)
    total = p.sum() or 1.0
    matrix = p[:, None] * p / (total - p)[:, None]  # p_i p_j / (S - p_i)
    np.fill_diagonal(matrix, 1 - p)
    assert_transitions(labels, noisy, matrix)


def test_rising_noise_orders_the_classes_by_the_seed_and_unlike_exponential():
    ids, labels = balanced(10, 1000)
    orders = set()
    for seed in range(5):
        _, noisy = curation.rising_noise(seed, ids, labels, 10)
        noise_order = tuple(np.argsort(np.bincount(labels, noisy != labels)))
        _, kept = curation.exponential(seed, ids, labels, 10, ratio=100)
        orders |= {noise_order, tuple(np.argsort(-np.bincount(kept)))}
    assert len(orders) == 10


@pytest.mark.parametrize(
    ("rule", "setting", "settings"),
    [
        (curation.symmetric, "rate", {}),
        (curation.transitions, "rate", dict(moves=((0, 3), (3, 0), (4, 1)))),
        (curation.rising_noise, "highest", {}),
        (curation.confuse_pairs, "rate", dict(pairs=PAIRS)),
    ],
)
def test_wrong_labels_at_a_lower_rate_are_among_those_at_a_higher_rate(rule, setting, settings):
    low, high = (rule(0, IDS, LABELS, K, **settings, **{setting: x})[1] for x in (0.2, 0.5))
    is_wrong = low != LABELS
    np.testing.assert_array_equal(high[is_wrong], low[is_wrong])
    assert is_wrong.sum() < (high != LABELS).sum()


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_permuting_keeps_class_counts_and_one_permuted_label_in_k(rate):
    _, noisy = curation.permute_labels(0, IDS, LABELS, K, rate=rate)
    np.testing.assert_array_equal(np.bincount(noisy), np.bincount(LABELS))
    assert noisy.dtype == np.int32
    shares = np.bincount(LABELS) / N
    assert_rate(noisy != LABELS, rate * (1 - (shares**2).sum()))


def test_permuted_examples_at_a_lower_rate_are_among_those_at_a_higher_rate():
    ids = np.random.default_rng(0).permutation(4 * N)[:N]
    changed = [set()]
    for rate in (0.1, 0.25, 0.5):
        # All labels differ, so that only fixed points of the permutation keep theirs; the number of
        # fixed points has mean 1.
        _, noisy = curation.permute_labels(0, ids, IDS, N, rate=rate)
        changed.append(set(ids[noisy != IDS]))
        assert round(rate * N) - 8 <= len(changed[-1]) <= round(rate * N)
        assert len(changed[-2] - changed[-1]) <= 8


def test_permuting_does_not_depend_on_the_order_of_the_examples_and_seeds_differ():
    _, noisy = curation.permute_labels(0, IDS, LABELS, K, rate=0.3)
    order = np.random.default_rng(2).permutation(N)
    _, reordered = curation.permute_labels(0, IDS[order], LABELS[order], K, rate=0.3)
    np.testing.assert_array_equal(reordered, noisy[order])
    _, other = curation.permute_labels(1, IDS, LABELS, K, rate=0.3)
    assert (other != noisy).any()


def test_lists_and_booleans_are_inverse():
    np.testing.assert_array_equal(label_lists.multi_hot(LISTS, K), HOT)
    np.testing.assert_array_equal(
        label_lists.from_multi_hot(label_lists.multi_hot(LISTS, K)), LISTS
    )


def test_lists_are_sorted_padded_and_as_narrow_as_possible():
    hot = np.array([[0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]], bool)
    np.testing.assert_array_equal(label_lists.from_multi_hot(hot), [[-1, -1], [0, 3], [2, -1]])
    np.testing.assert_array_equal(label_lists.from_multi_hot(hot[:1]), [[-1]])
    assert len(label_lists.from_multi_hot(hot[:0])) == 0


@pytest.mark.parametrize(
    ("rule", "labels", "settings", "message"),
    [
        (
            curation.confuse_pairs,
            LABELS,
            dict(pairs=PAIRS, rate=-0.1),
            r"rate is -0.1, but must be in \[0, 1\]",
        ),
        (curation.confuse_pairs, LABELS, dict(pairs=PAIRS, rate=1.1), "rate is 1.1"),
        (curation.confuse_pairs, LABELS, dict(pairs=PAIRS, rate=float("nan")), "rate is nan"),
        (curation.confuse_pairs, LABELS, dict(pairs=((0, 1), (1, 2)), rate=0.1), "disjoint pairs"),
        (curation.confuse_pairs, LABELS, dict(pairs=((2, 2),), rate=0.1), "disjoint pairs"),
        (curation.confuse_pairs, LABELS, dict(pairs=((0, K),), rate=0.1), "from 0 to 5"),
        (curation.confuse_pairs, LABELS, dict(pairs=((-1, 0),), rate=0.1), "from 0 to 5"),
        (curation.confuse_pairs, LABELS, dict(pairs=((0.5, 1),), rate=0.1), "no whole number"),
        (curation.confuse_pairs, LISTS, dict(pairs=PAIRS, rate=0.1), "one label per example"),
        (
            curation.confuse_random_pairs,
            LABELS,
            dict(num_pairs=4, rate=0.1),
            "num_pairs is 4.* at most 3",
        ),
        (curation.confuse_random_pairs, LABELS, dict(num_pairs=-1, rate=0.1), "num_pairs is -1"),
        (
            curation.confuse_random_pairs,
            LISTS,
            dict(num_pairs=1, rate=0.1),
            "one label per example",
        ),
        (curation.drop_and_add, LISTS, dict(drop_rate=1.5, add_rate=0.0), "drop_rate is 1.5"),
        (curation.drop_and_add, LISTS, dict(drop_rate=0.0, add_rate=-0.5), "add_rate is -0.5"),
        (
            curation.drop_and_add,
            LABELS,
            dict(drop_rate=0.0, add_rate=0.0),
            "requires lists of labels",
        ),
        (curation.subset, LABELS, dict(num_examples=0), "num_examples is 0"),
        (curation.subset, LABELS, dict(), "set exactly one"),
        (curation.subset, LABELS, dict(num_examples=5, fraction=0.5), "set exactly one"),
        (curation.subset, LABELS, dict(fraction=1.5), "fraction is 1.5"),
        (curation.subset, LABELS, dict(fraction=1e-5), "fraction 1e-05 of 20,000 examples is none"),
        (curation.symmetric, LABELS, dict(rate=1.1), "rate is 1.1"),
        (curation.symmetric, LISTS, dict(rate=0.1), "symmetric requires one label per example"),
        (curation.permute_labels, LABELS, dict(rate=-0.1), "rate is -0.1"),
        (curation.permute_labels, LISTS, dict(rate=0.1), "permute_labels requires one label"),
        (curation.rising_noise, LABELS, dict(highest=1.5), "highest is 1.5"),
        (curation.rising_noise, LISTS, dict(), "rising_noise requires one label"),
        (curation.transitions, LABELS, dict(moves=((0, 1),), rate=2), "rate is 2"),
        (curation.transitions, LABELS, dict(moves=(0, 1), rate=0.1), "must be pairs of classes"),
        (curation.transitions, LABELS, dict(moves=((0, K),), rate=0.1), "from 0 to 5"),
        (curation.transitions, LABELS, dict(moves=((2, 2),), rate=0.1), "to another class"),
        (
            curation.transitions,
            LABELS,
            dict(moves=((0, 1), (0, 2)), rate=0.1),
            "change each class once",
        ),
        (curation.transitions, LISTS, dict(moves=(), rate=0.1), "transitions requires one label"),
        (curation.exponential, LABELS, dict(ratio=0.9), "ratio is 0.9, but must be .* >= 1"),
        (curation.exponential, LABELS, dict(ratio=float("nan")), "ratio is nan"),
        (
            curation.exponential,
            LABELS,
            dict(ratio=1e4),
            r"^ratio 10000.0 keeps none of the 3,\d+ examples of class \d; choose .* ratio.$",
        ),
        (curation.exponential, LISTS, dict(ratio=2), "exponential requires one label"),
        (curation.step, LABELS, dict(ratio=float("inf")), "ratio is inf"),
        (curation.step, LABELS, dict(ratio=1e4), "ratio 10000.0 keeps none of the 3,"),
        (curation.step, LISTS, dict(ratio=2), "step requires one label"),
        (curation.undersample, LISTS, dict(), "undersample requires one label"),
    ],
)
def test_an_invalid_setting_is_named(rule, labels, settings, message):
    with pytest.raises(ValueError, match=message):
        rule(0, IDS, labels, K, **settings)


@pytest.mark.parametrize(
    ("rule", "num_classes", "settings"),
    [(curation.symmetric, 1, dict(rate=0.1)), (curation.rising_noise, 2, {})],
)
def test_noise_with_too_few_classes_is_an_error(rule, num_classes, settings):
    with pytest.raises(ValueError, match=f"num_classes is {num_classes}, but must be >= "):
        rule(0, IDS, LABELS % num_classes, num_classes, **settings)


@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_instance_dependent_noise_has_the_mean_of_its_truncated_rates(rate):
    _, noisy = curation.instance_dependent(0, IDS, LABELS, K, IMAGES, rate=rate)
    mean = stats.truncnorm.mean(-rate / 0.1, (1 - rate) / 0.1, loc=rate, scale=0.1)
    assert_rate(noisy != LABELS, mean)
    _, twice = curation.instance_dependent(0, IDS, LABELS, K, IMAGES, rate=rate + 0.1)
    assert np.all((twice != LABELS)[noisy != LABELS])
    np.testing.assert_array_equal(twice[noisy != LABELS], noisy[noisy != LABELS])


def test_images_that_are_alike_become_the_same_wrong_class():
    labels = np.full(N, 2, np.int32)
    paler = (IMAGES // 2 + 30).astype(np.uint8)
    results = [
        curation.instance_dependent(0, IDS, labels, K, x, rate=0.9)[1] for x in (IMAGES, paler)
    ]
    wrong = (results[0] != 2) & (results[1] != 2)
    assert np.mean((results[0] == results[1])[wrong]) > 0.9
    other = np.roll(IMAGES, 1, axis=0)
    third = curation.instance_dependent(0, IDS, labels, K, other, rate=0.9)[1]
    wrong = (results[0] != 2) & (third != 2)
    assert np.mean((results[0] == third)[wrong]) == pytest.approx(1 / (K - 1), abs=0.03)


def test_a_wrong_class_has_the_probability_of_a_softmax_of_the_projected_image():
    """With one image for all examples, whose scores are close enough for several classes."""
    image = np.zeros((1, 2, 1, 1), np.uint8)
    image[0, 0] = 1  # standardised: (1, -1)
    labels = np.full(N, 1, np.int32)
    images = np.repeat(image, N, axis=0)
    _, noisy = curation.instance_dependent(3, IDS, labels, 4, images, rate=0.5)
    projection = draws.generator(3, "instance_dependent 1").standard_normal((2, 4), np.float32)
    scores = projection[0] - projection[1]
    scores[1] = -np.inf
    expected = special.softmax(scores)
    for c in (0, 2, 3):
        assert_rate(noisy[noisy != 1] == c, expected[c])


def test_images_that_are_not_in_memory_are_an_error():
    empty = np.zeros((N, 1, 1, 0), np.uint8)
    with pytest.raises(ValueError, match="requires the images in memory"):
        curation.instance_dependent(0, IDS, LABELS, K, empty, rate=0.3)
    with pytest.raises(ValueError, match="rate is 0, but must be above 0"):
        curation.instance_dependent(0, IDS, LABELS, K, IMAGES, rate=0)
    with pytest.raises(ValueError, match="instance_dependent requires one label per example"):
        curation.instance_dependent(0, IDS, LISTS, K, IMAGES, rate=0.3)

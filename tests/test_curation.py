import numpy as np
import pytest

from heteroscedastic import curation

N, K = 20_000, 6
IDS = np.arange(N, dtype=np.int32)
LABELS = np.random.default_rng(0).integers(0, K, N).astype(np.int32)
HOT = np.random.default_rng(1).random((N, K)) < 0.3
LISTS = curation.label_lists(HOT)
PAIRS = ((0, 3), (4, 1))

RULES = {
    "confuse_pairs": (curation.confuse_pairs, LABELS, dict(pairs=PAIRS, rate=0.4)),
    "confuse_random_pairs": (curation.confuse_random_pairs, LABELS, dict(num_pairs=2, rate=0.4)),
    "drop_and_add": (curation.drop_and_add, LISTS, dict(drop_rate=0.3, add_rate=0.1)),
}
every_rule = pytest.mark.parametrize(("rule", "labels", "settings"), RULES.values(), ids=RULES)


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
    hot = curation.multi_hot(noisy, K)
    for c in range(K):
        assert_rate(~hot[HOT[:, c], c], drop_rate)
        assert_rate(hot[~HOT[:, c], c], add_rate)


def test_the_labels_of_an_example_are_changed_independently():
    _, noisy = curation.drop_and_add(0, IDS, LISTS, K, drop_rate=0.5, add_rate=0.5)
    changed = curation.multi_hot(noisy, K) ^ HOT
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
    numbers = curation.uniforms(0, "one", ids)
    np.testing.assert_array_equal(numbers, curation.uniforms(0, "one", IDS)[ids])
    if ids.size:
        assert_rate(numbers < 0.25, 0.25)
        for others in (curation.uniforms(1, "one", ids), curation.uniforms(0, "two", ids)):
            assert abs(np.corrcoef(numbers, others)[0, 1]) <= 5 / np.sqrt(N)


def test_lists_and_booleans_are_inverse():
    np.testing.assert_array_equal(curation.multi_hot(LISTS, K), HOT)
    np.testing.assert_array_equal(curation.label_lists(curation.multi_hot(LISTS, K)), LISTS)


def test_lists_are_sorted_padded_and_as_narrow_as_possible():
    hot = np.array([[0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]], bool)
    np.testing.assert_array_equal(curation.label_lists(hot), [[-1, -1], [0, 3], [2, -1]])
    np.testing.assert_array_equal(curation.label_lists(hot[:1]), [[-1]])
    assert len(curation.label_lists(hot[:0])) == 0


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
        (curation.confuse_pairs, LABELS, dict(pairs=((0, K),), rate=0.1), "outside 0 to 5"),
        (curation.confuse_pairs, LABELS, dict(pairs=((-1, 0),), rate=0.1), "outside 0 to 5"),
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
    ],
)
def test_an_invalid_setting_is_named(rule, labels, settings, message):
    with pytest.raises(ValueError, match=message):
        rule(0, IDS, labels, K, **settings)

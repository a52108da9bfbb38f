import collections
import functools

import jax
import numpy as np
import pytest

from heteroscedastic import curation
from heteroscedastic.data import dataset as dataset_lib
from heteroscedastic.data.dataset import Dataset, Split

NAMES = ("cat", "dog", "owl")
CONFUSE = functools.partial(curation.confuse_pairs, pairs=((0, 1),), rate=0.5)
SUBSET = functools.partial(curation.subset, num_examples=25)


def split_of(n, seed, lists=False):
    """Random images, labels, and ids in no order."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n).astype(np.int32)
    if lists:
        labels = np.stack([labels, np.full(n, -1, np.int32)], axis=1)
    return Split(
        rng.integers(0, 256, (n, 2, 3, 1)).astype(np.uint8),
        labels,
        rng.permutation(3 * n)[:n].astype(np.int32),
    )


def data_of(lists=False):
    return Dataset({"train": split_of(40, 0, lists), "test": split_of(10, 1, lists)}, NAMES)


def changed(data, name, field, value):
    """The data set with one field of one split in another's place."""
    return data._replace(splits={**data.splits, name: data.splits[name]._replace(**{field: value})})


def by_id(split):
    return {int(i): (x.tobytes(), y.tobytes()) for x, y, i in zip(*split[:3])}


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_an_empty_chain_of_curation_changes_nothing():
    data = data_of()
    curated = dataset_lib.curate(data, 0, [])
    for name, split in data.splits.items():
        assert_same(curated.splits[name], split)


def test_curation_changes_labels_and_leaves_images_and_the_test_split():
    data = data_of()
    curated = dataset_lib.curate(data, 0, [CONFUSE])
    stored, train = data.splits["train"], curated.splits["train"]
    ids, labels = CONFUSE(0, stored.ids, stored.labels, 3)
    assert_same(train, Split(stored.inputs, labels, ids))
    assert (train.labels != stored.labels).any()
    assert_same(curated.splits["test"], data.splits["test"])


def test_a_subset_has_the_images_of_its_ids():
    data = data_of()
    train, stored = (
        dataset_lib.curate(data, 0, [SUBSET]).splits["train"],
        by_id(data.splits["train"]),
    )
    assert len(train.ids) == 25
    assert by_id(train).items() <= stored.items()


def test_noise_and_subset_may_change_places():
    data = data_of()
    one = dataset_lib.curate(data, 0, [CONFUSE, SUBSET]).splits["train"]
    assert_same(one, dataset_lib.curate(data, 0, [SUBSET, CONFUSE]).splits["train"])


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5, 0.9])
def test_train_and_valid_are_disjoint_and_together_the_old_train(fraction, lists):
    data = data_of(lists)
    held = dataset_lib.hold_out(data, 0, fraction)
    assert held.splits.keys() == {"train", "valid", "test"}
    train, valid = by_id(held.splits["train"]), by_id(held.splits["valid"])
    assert not train.keys() & valid.keys()
    assert train | valid == by_id(data.splits["train"])
    assert len(valid) == round(40 * fraction)
    assert_same(held.splits["test"], data.splits["test"])


def test_the_examples_held_out_keep_their_noisy_labels_and_are_the_same_without_noise():
    data = data_of()
    noisy = dataset_lib.curate(data, 0, [CONFUSE])
    valid = dataset_lib.hold_out(noisy, 0, 0.5).splits["valid"]
    assert by_id(valid).items() <= by_id(noisy.splits["train"]).items()
    clean = dataset_lib.hold_out(data, 0, 0.5).splits["valid"]
    np.testing.assert_array_equal(valid.ids, clean.ids)
    assert (valid.labels != clean.labels).any()


def test_the_same_seed_holds_out_the_same_examples_and_another_seed_others():
    data = data_of()
    first, again, other = (
        set(dataset_lib.hold_out(data, s, 0.5).splits["valid"].ids) for s in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_holding_out_nothing_is_the_identity():
    data = data_of()
    assert dataset_lib.hold_out(data, 0, 0.0) is data


@pytest.mark.parametrize(
    ("fraction", "message"),
    [
        (-0.1, r"must be in \[0, 1\)"),
        (1.0, r"must be in \[0, 1\)"),
        (float("nan"), r"must be in \[0, 1\)"),
        (0.01, "0.01 of 40 training examples is none"),
        (0.99, "0.99 of 40 training examples is all"),
    ],
)
def test_a_fraction_that_leaves_train_or_valid_empty_is_an_error(fraction, message):
    with pytest.raises(ValueError, match=f"validation_fraction.*{message}"):
        dataset_lib.hold_out(data_of(), 0, fraction)


def grouped(num_groups=8):
    """A data set whose training examples fall into groups."""
    data = data_of()
    return changed(data, "train", "extras", {"groups": np.arange(40) % num_groups})


@pytest.mark.parametrize("fraction", [0.125, 0.2, 0.5, 0.9])
def test_a_group_is_held_out_whole(fraction):
    data = grouped()
    for seed in range(5):
        held = dataset_lib.hold_out(data, seed, fraction).splits
        train, valid = (set(held[name].extras["groups"]) for name in ("train", "valid"))
        assert not train & valid
        assert len(valid) == round(8 * fraction)
        assert by_id(held["train"]) | by_id(held["valid"]) == by_id(data.splits["train"])


def test_groups_of_one_example_change_nothing():
    data = data_of()
    alone = changed(data, "train", "extras", {"groups": data.splits["train"].ids})
    one, other = (dataset_lib.hold_out(d, 0, 0.3).splits for d in (data, alone))
    for name in ("train", "valid"):
        assert_same(one[name], other[name]._replace(extras={}))


def test_a_fraction_that_holds_out_no_group_is_an_error():
    with pytest.raises(
        ValueError,
        match=r"validation_fraction 0\.05 of 8 groups of training examples is none of them",
    ):
        dataset_lib.hold_out(grouped(), 0, 0.05)


def noisy_of():
    """A data set of which the clean labels are known beside those that it has."""
    data = data_of()
    labels = data.splits["train"].labels
    return changed(
        changed(data, "train", "extras", {"clean_labels": labels}),
        "train",
        "labels",
        (labels + 1) % 3,
    )


def test_what_is_known_of_an_example_stays_with_it():
    data = noisy_of()
    known = dict(zip(data.splits["train"].ids, data.splits["train"].extras["clean_labels"]))
    seen = dataset_lib.hold_out(dataset_lib.curate(data, 0, [CONFUSE, SUBSET]), 0, 0.2)
    for name in ("train", "valid"):
        split = seen.splits[name]
        np.testing.assert_array_equal(split.extras["clean_labels"], [known[i] for i in split.ids])


def test_label_noise_is_counted_from_the_clean_labels_where_they_are_known():
    data = noisy_of()
    told = dataset_lib.description(data, data)["label_noise"]
    counts = np.bincount(data.splits["train"].extras["clean_labels"])
    assert told == [[c, (c + 1) % 3, int(n)] for c, n in enumerate(counts)]


def test_nothing_is_ever_written_into_the_extras_that_splits_share():
    data = data_of()
    seen = dataset_lib.hold_out(dataset_lib.curate(data, 0, [CONFUSE]), 0, 0.2)
    dataset_lib.description(seen, data)
    [split.with_int32() for split in seen.splits.values()]
    assert Split._field_defaults["extras"] == {}


def fingerprint(data):
    return dataset_lib.description(data, data)["fingerprint"]


def moved(array):
    """The array with its first number moved by one."""
    out = array.copy()
    out.flat[0] += 1
    return out


@pytest.mark.parametrize("name", ["train", "test"])
@pytest.mark.parametrize("field", ["inputs", "labels", "ids"])
def test_the_fingerprint_changes_with_one_pixel_one_label_or_one_id(name, field):
    data = data_of()
    other = changed(data, name, field, moved(getattr(data.splits[name], field)))
    assert fingerprint(other) != fingerprint(data)


def test_the_fingerprint_changes_with_what_else_is_known_of_an_example():
    data, extras = noisy_of(), noisy_of().splits["train"].extras
    others = [
        {},
        {"clean": extras["clean_labels"]},
        {"clean_labels": moved(extras["clean_labels"])},
    ]
    found = [fingerprint(changed(data, "train", "extras", e)) for e in (extras, *others)]
    assert len(set(found)) == 4


def test_the_fingerprint_is_that_of_the_values_however_they_lie_in_memory():
    data = data_of()
    laid_out = {n: jax.tree.map(np.asfortranarray, s) for n, s in reversed(data.splits.items())}
    assert fingerprint(data._replace(splits=laid_out)) == fingerprint(data)


def test_the_fingerprint_changes_with_the_class_names_and_that_of_the_examples_does_not():
    split = dataset_lib.Split(
        np.zeros((2, 1, 1, 1), np.uint8), np.arange(2, dtype=np.int32), np.arange(2)
    )
    data = dataset_lib.Dataset({"train": split}, ("a", "b"))
    one, other = (
        dataset_lib.description(d, d) for d in (data, data._replace(class_names=("b", "a")))
    )
    assert one["fingerprint"] != other["fingerprint"]
    assert one["examples_fingerprint"] == other["examples_fingerprint"]


def test_the_fingerprint_tells_the_splits_apart():
    data = data_of()
    swapped = data._replace(splits={"train": data.splits["test"], "test": data.splits["train"]})
    assert fingerprint(swapped) != fingerprint(data)


def test_label_noise_counts_what_training_sees_of_each_stored_label():
    data = data_of()
    seen = dataset_lib.hold_out(dataset_lib.curate(data, 0, [CONFUSE, SUBSET]), 0, 0.2)
    told = dataset_lib.description(seen, data)
    stored = dict(zip(data.splits["train"].ids, data.splits["train"].labels))
    train = seen.splits["train"]
    counts = collections.Counter(
        (int(stored[i]), int(label)) for i, label in zip(train.ids, train.labels)
    )
    assert {(a, b): n for a, b, n in told["label_noise"]} == counts
    assert told["num_examples"] == {"train": 20, "valid": 5, "test": 10}
    assert told["class_names"] == list(NAMES)


def test_label_noise_of_stored_labels_is_on_the_diagonal():
    data = data_of()
    told = dataset_lib.description(data, data)["label_noise"]
    assert [a for a, _, _ in told] == [b for _, b, _ in told]
    np.testing.assert_array_equal([n for _, _, n in told], np.bincount(data.splits["train"].labels))


def test_lists_of_labels_have_no_pairs_to_count():
    data = data_of(lists=True)
    assert "label_noise" not in dataset_lib.description(data, data)


def test_the_same_noise_twice_is_not_undone():
    data = data_of()
    clean, once, twice = (
        dataset_lib.curate(data, 0, [CONFUSE] * n).splits["train"].labels for n in range(3)
    )
    assert (once != clean).any()
    assert (twice != clean).any()

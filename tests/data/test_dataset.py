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
DEPENDENT = functools.partial(curation.instance_dependent, rate=0.5)
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
    """The data set with one field of one split replaced."""
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


@pytest.mark.parametrize("noise", [CONFUSE, DEPENDENT])
def test_noise_and_subset_commute(noise):
    data = data_of()
    one = dataset_lib.curate(data, 0, [noise, SUBSET]).splits["train"]
    assert_same(one, dataset_lib.curate(data, 0, [SUBSET, noise]).splits["train"])
    assert (one.labels != dataset_lib.curate(data, 0, [SUBSET]).splits["train"].labels).any()


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5, 0.9])
def test_train_and_valid_partition_the_stored_training_examples(fraction, lists):
    data = data_of(lists)
    result = dataset_lib.hold_out(data, 0, fraction)
    assert result.splits.keys() == {"train", "valid", "test"}
    train, valid = by_id(result.splits["train"]), by_id(result.splits["valid"])
    assert not train.keys() & valid.keys()
    assert train | valid == by_id(data.splits["train"])
    assert len(valid) == round(40 * fraction)
    assert_same(result.splits["test"], data.splits["test"])


def test_held_out_examples_keep_their_noisy_labels_and_do_not_depend_on_the_noise():
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


def data_with_groups(num_groups=8):
    """A data set whose training examples have groups."""
    data = data_of()
    return changed(data, "train", "extras", {"groups": np.arange(40) % num_groups})


@pytest.mark.parametrize("fraction", [0.125, 0.2, 0.5, 0.9])
def test_all_examples_of_a_group_are_held_out_together(fraction):
    data = data_with_groups()
    for seed in range(5):
        result = dataset_lib.hold_out(data, seed, fraction).splits
        train, valid = (set(result[name].extras["groups"]) for name in ("train", "valid"))
        assert not train & valid
        assert len(valid) == round(8 * fraction)
        assert by_id(result["train"]) | by_id(result["valid"]) == by_id(data.splits["train"])


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
        dataset_lib.hold_out(data_with_groups(), 0, 0.05)


def noisy_data():
    """A data set with noisy labels and their clean labels."""
    data = data_of()
    labels = data.splits["train"].labels
    return changed(
        changed(data, "train", "extras", {"clean_labels": labels}),
        "train",
        "labels",
        (labels + 1) % 3,
    )


def test_extra_fields_follow_their_examples():
    data = noisy_data()
    known = dict(zip(data.splits["train"].ids, data.splits["train"].extras["clean_labels"]))
    curated = dataset_lib.hold_out(dataset_lib.curate(data, 0, [CONFUSE, SUBSET]), 0, 0.2)
    for name in ("train", "valid"):
        split = curated.splits[name]
        np.testing.assert_array_equal(split.extras["clean_labels"], [known[i] for i in split.ids])


def test_label_noise_uses_clean_labels_if_they_are_known():
    data = noisy_data()
    noise = dataset_lib.description(data, data)["label_noise"]
    counts = np.bincount(data.splits["train"].extras["clean_labels"])
    assert noise == [[c, (c + 1) % 3, int(n)] for c, n in enumerate(counts)]


def test_the_default_extras_that_splits_share_are_never_mutated():
    data = data_of()
    curated = dataset_lib.hold_out(dataset_lib.curate(data, 0, [CONFUSE]), 0, 0.2)
    dataset_lib.description(curated, data)
    [split.with_int32() for split in curated.splits.values()]
    assert Split._field_defaults["extras"] == {}


def fingerprint(data):
    return dataset_lib.description(data, data)["fingerprint"]


def incremented(array):
    """The array with its first element increased by one."""
    out = array.copy()
    out.flat[0] += 1
    return out


@pytest.mark.parametrize("name", ["train", "test"])
@pytest.mark.parametrize("field", ["inputs", "labels", "ids"])
def test_the_fingerprint_changes_with_one_pixel_one_label_or_one_id(name, field):
    data = data_of()
    other = changed(data, name, field, incremented(getattr(data.splits[name], field)))
    assert fingerprint(other) != fingerprint(data)


def test_the_fingerprint_changes_with_extra_fields():
    data, extras = noisy_data(), noisy_data().splits["train"].extras
    others = [
        {},
        {"clean": extras["clean_labels"]},
        {"clean_labels": incremented(extras["clean_labels"])},
    ]
    fingerprints = [fingerprint(changed(data, "train", "extras", e)) for e in (extras, *others)]
    assert len(set(fingerprints)) == 4


def test_the_fingerprint_does_not_depend_on_the_memory_layout():
    data = data_of()
    reordered = {n: jax.tree.map(np.asfortranarray, s) for n, s in reversed(data.splits.items())}
    assert fingerprint(data._replace(splits=reordered)) == fingerprint(data)


def test_class_names_change_the_fingerprint_and_not_that_of_the_examples():
    split = dataset_lib.Split(
        np.zeros((2, 1, 1, 1), np.uint8), np.arange(2, dtype=np.int32), np.arange(2)
    )
    data = dataset_lib.Dataset({"train": split}, ("a", "b"))
    one, other = (
        dataset_lib.description(d, d) for d in (data, data._replace(class_names=("b", "a")))
    )
    assert one["fingerprint"] != other["fingerprint"]
    assert one["examples_fingerprint"] == other["examples_fingerprint"]


def test_the_fingerprint_changes_if_splits_are_swapped():
    data = data_of()
    swapped = data._replace(splits={"train": data.splits["test"], "test": data.splits["train"]})
    assert fingerprint(swapped) != fingerprint(data)


def test_label_noise_counts_pairs_of_stored_and_training_labels():
    data = data_of()
    curated = dataset_lib.hold_out(dataset_lib.curate(data, 0, [CONFUSE, SUBSET]), 0, 0.2)
    description = dataset_lib.description(curated, data)
    stored = dict(zip(data.splits["train"].ids, data.splits["train"].labels))
    train = curated.splits["train"]
    counts = collections.Counter(
        (int(stored[i]), int(label)) for i, label in zip(train.ids, train.labels)
    )
    assert {(a, b): n for a, b, n in description["label_noise"]} == counts
    assert description["num_examples"] == {"train": 20, "valid": 5, "test": 10}
    assert description["class_names"] == list(NAMES)


@pytest.mark.parametrize("lists", [False, True])
def test_the_description_counts_training_examples_by_class_after_curation(lists):
    data = data_of(lists)
    curated = dataset_lib.hold_out(dataset_lib.curate(data, 0, [SUBSET]), 0, 0.2)
    counts = collections.Counter(curated.splits["train"].labels.reshape(20, -1)[:, 0].tolist())
    assert dataset_lib.description(curated, data)["class_counts"] == [counts[c] for c in range(3)]


def test_label_noise_of_stored_labels_is_on_the_diagonal():
    data = data_of()
    noise = dataset_lib.description(data, data)["label_noise"]
    assert [a for a, _, _ in noise] == [b for _, b, _ in noise]
    np.testing.assert_array_equal(
        [n for _, _, n in noise], np.bincount(data.splits["train"].labels)
    )


def test_lists_of_labels_have_no_label_noise():
    data = data_of(lists=True)
    assert "label_noise" not in dataset_lib.description(data, data)


def test_the_same_noise_twice_draws_different_numbers():
    data = data_of()
    clean, once, twice = (
        dataset_lib.curate(data, 0, [CONFUSE] * n).splits["train"].labels for n in range(3)
    )
    assert (once != clean).any()
    assert (twice != clean).any()

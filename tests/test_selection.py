"""The choice of the examples of an epoch, alone and in a run."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from scipy import stats
from small_runs import assert_same_bits, outcome, small

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


def selecting(name):
    return small(**{"selection": dict(name=name), "training.num_epochs": 2.0})


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


def test_a_selection_of_another_size_than_the_epoch_is_an_error():
    run = assembly.build(selecting("everything"))
    half = selection.Selected(np.arange(100), np.ones(100))
    run = dataclasses.replace(run, selection=lambda rng, pool: half)
    with pytest.raises(ValueError, match=r"selection: epoch 0 has 2 steps of examples, but"):
        run.selected(0)


def test_a_stream_cannot_select():
    config = selecting("balanced")
    config["data"] |= {"pipeline": "streaming", "reader_shards": 8}
    with pytest.raises(ValueError, match=r"set config\.data\.pipeline='resident', or remove"):
        schema.checked(config)


def test_an_unknown_selection_is_an_error_that_lists_the_choices():
    with pytest.raises(ValueError, match=r"config\.selection: .*one of balanced, everything"):
        schema.checked(selecting("hardest"))

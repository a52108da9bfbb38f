"""The features of each place of an image, and the head alone, of a run."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from streams import prepare

from experiments import study
from heteroscedastic.analysis.saliency import explain, sheet
from heteroscedastic.analysis.saliency.explain import Question
from heteroscedastic.runs import assembly, by_example, loaded_run
from heteroscedastic.runs.loaded_run import LoadedRun


def loaded(data_dir=None, **overrides):
    """A run with its initial state."""
    settings = {"backbone": dict(name="ConvNet", widths=(4, 8)), "training.batch_size": 50}
    run = assembly.build(study.config("digits_het_pe", settings | overrides), data_dir)
    state = jax.tree.map(np.asarray, jax.jit(run.init)(run.root_key))
    return LoadedRun(Path("run"), run, {}, {}, state)


def parts(one, split="test", rows=None):
    """Maps, the latent of their mean by the head alone, and the latent of the model."""
    run = one.run

    def of_maps(state, maps, batch):
        latent = run.latent_of_features(state.params, jnp.mean(maps, axis=(1, 2)))
        return maps, latent.loc, latent.factor_scale, batch.ids

    def of_batches(state, batch):
        latent = run.latent_of_inputs(state.params, state.model_state, batch.inputs)
        return latent.loc, latent.factor_scale

    return (
        by_example.map_maps(one, split, of_maps, rows),
        by_example.map_batches(one, split, of_batches, rows),
        by_example.map_latents(
            one, split, lambda key, latent, batch: (latent.loc, latent.factor_scale), rows
        ),
    )


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_head_on_the_mean_of_the_maps_is_the_model(temperature):
    one = loaded(**{"head.temperature": temperature})
    (maps, *of_maps, ids), of_batches, latents = parts(one)
    assert maps.shape == (len(ids), 4, 4, 8)
    np.testing.assert_array_equal(ids, loaded_run.split_data(one, "test").ids)
    for actual in (of_maps, of_batches):
        for ours, theirs in zip(actual, latents, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_maps_are_those_of_the_chosen_rows_in_their_order():
    one, rows = loaded(), np.array([7, 3, 120])
    every, chosen = parts(one)[0], parts(one, rows=rows)[0]
    for a, b in zip(every, chosen, strict=True):
        np.testing.assert_allclose(a[rows], b, rtol=1e-5, atol=1e-6)


def test_the_model_with_padding_classes_masks_them_in_the_latent_of_features():
    run = loaded().run
    padded = run.model.clone(num_classes=7)
    params = run.shapes.params
    params = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), params)
    loc = padded.apply({"params": params}, jnp.ones((2, 8)), method="latent").loc
    np.testing.assert_array_equal(np.isinf(loc), np.broadcast_to(np.arange(10) >= 7, (2, 10)))


def test_a_run_without_maps_says_what_to_use():
    one = loaded(backbone=dict(name="MLP", widths=(8,)))
    with pytest.raises(ValueError, match=r"^MLP has no maps; use a convolutional backbone"):
        parts(one)


def test_streamed_and_resident_maps_agree(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    prepare(tmp_path, "same", size=(20, 24))
    section = dict(
        name="same",
        splits={"train": "train", "test": "test"},
        train="value_range(-1, 1)",
        eval="value_range(-1, 1)",
        validation_fraction=0.0,
    )
    evals = {"test": {"split": "test"}}
    overrides = {"head.num_classes": 3, "curation": "", "validation": None, "evals": evals}
    streaming = section | {"pipeline": "streaming", "reader_shards": 2}
    build = functools.partial(loaded, str(tmp_path), **overrides, **{"training.batch_size": 8})
    resident, streamed = build(data=section), build(data=streaming)
    (maps, *_, ids), *_ = parts(resident)
    (streamed_maps, *_, streamed_ids), *_ = parts(streamed)
    a, b = np.argsort(ids), np.argsort(streamed_ids)
    np.testing.assert_allclose(maps[a], streamed_maps[b], rtol=1e-4, atol=1e-5)
    images, streamed_images = (
        np.stack(sheet.seen(one, "test", rows)) for one, rows in ((resident, a), (streamed, b))
    )
    np.testing.assert_array_equal(images, streamed_images)
    for question in (Question("class", "grad_cam_pp", "label"), Question("noise", "integrated")):
        explained, streamed_explained = (
            explain.explain(one, "test", question, rows)
            for one, rows in ((resident, a), (streamed, b))
        )
        for name, values in explained._asdict().items():
            other = getattr(streamed_explained, name)
            if values is not None:
                np.testing.assert_allclose(values, other, rtol=1e-4, atol=1e-5, err_msg=name)
    assert images.dtype == np.uint8
    assert np.ptp(images) > 100


def test_features_of_a_split_are_computed_once_and_a_changed_copy_has_its_own(monkeypatch):
    one, calls = loaded(), []
    compute = assembly.Run.features

    def counted(run, params, *arguments):
        calls.append(jax.tree.leaves(params)[0].shape)
        return compute(run, params, *arguments)

    monkeypatch.setattr(assembly.Run, "features", counted)
    rows = np.array([7, 3, 120])
    alone = by_example.features(one, "test", rows)
    every = by_example.features(one, "test")
    assert len(calls) == 2  # some rows are not kept
    np.testing.assert_array_equal(by_example.features(one, "test", rows), every[rows])
    np.testing.assert_allclose(alone, every[rows], rtol=1e-5, atol=1e-6)
    parts(one)
    assert len(calls) == 2
    params = jax.tree.map(lambda x: 0 * x, one.state.params)
    changed = dataclasses.replace(one, state=one.state._replace(params=params))
    assert np.abs(every).max() > 0
    assert not by_example.features(changed, "test").any()


def test_sums_of_predictions_are_those_of_the_examples_whatever_the_batch_size():
    one = loaded(predictive=dict(name="mean_field"))

    def of_batch(latent, logits, batch):
        return jnp.exp(jax.nn.log_softmax(logits)) * latent.loc

    def sums(latent, logits, batch):
        return batch.weights @ of_batch(latent, logits, batch)

    expected = by_example.map_predictions(one, "test", of_batch).sum(axis=0, dtype=np.float64)
    for batch_size in (None, 50, 7):  # of which the last is padded
        found = by_example.sum_predictions(one, "test", sums, batch_size)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)

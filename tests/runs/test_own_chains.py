"""Splits that are evaluated with a chain of operations of their own."""

import jax
import numpy as np
import pytest

from experiments import study
from heteroscedastic.data.storage import sample
from heteroscedastic.runs import assembly, by_example, loaded_run, loop, schema, smoke

CONTEXT = "context(rate=1.0, fill=(9, 9, 9))|value_range(-1, 1)"
SPLITS = dict(train="train", test="test", context=dict(split="test", eval=CONTEXT))
NUM = {"train": 24, "test": 10}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A directory with a set of images with boxes."""
    directory, draws = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    arrays = {"class_names": np.array(["cat", "dog", "eel"])}
    for split, number in NUM.items():
        arrays[f"{split}_inputs"] = draws.integers(0, 256, (number, 8, 8, 3)).astype(np.uint8)
        arrays[f"{split}_labels"] = draws.integers(0, 3, number)
        corners = np.sort(draws.random((number, 2, 2, 2)), axis=2)
        arrays[f"{split}_boxes"] = corners.reshape(-1, 2, 4)
    np.savez(directory / "boxes.npz", **arrays)
    return str(directory)


def config(**overrides):
    return study.config(
        "own_images",
        {
            "data.name": "boxes",
            "data.extras": ("boxes",),
            "data.splits": SPLITS,
            "data.eval": "value_range(-1, 1)",
            "backbone": dict(name="MLP", widths=(4,)),
            "head": dict(name="Deterministic", num_classes=3),
            "predictive": dict(name="deterministic"),
            "training.batch_size": 12,
            "training.num_epochs": None,
            "training.num_steps": 2,
            "evals": {name: dict(split=name) for name in ("test", "context")},
            **overrides,
        },
    )


def batch_of(pipeline, split, chain_of):
    feed = next(iter(pipeline.feeds(split, np.arange(12))))
    return pipeline.batch(jax.random.key(0), pipeline.arrays[split], feed, chain_of)


def assert_filled(plain, context):
    """The images of the second batch are those of the first, with 9 in every box."""
    expected, shown = np.array(plain.inputs), np.asarray(plain.weights) > 0
    for image, rows in zip(expected, np.asarray(plain.extras["boxes"])):
        centres = (np.arange(len(image)) + 0.5) / len(image)
        for y0, x0, y1, x1 in rows:
            inside = [(low <= centres) & (centres < high) for low, high in ((y0, y1), (x0, x1))]
            image[np.ix_(*inside)] = 2 * 9 / 255 - 1
    np.testing.assert_allclose(np.asarray(context.inputs)[shown], expected[shown], atol=1e-6)
    assert (np.asarray(plain.inputs)[shown] != expected[shown]).any()


def test_a_split_of_a_data_set_in_memory_is_evaluated_by_its_own_chain(data_dir):
    run = assembly.build(config(), data_dir)
    assert [run.chain_of(split) for split in ("test", "context")] == [None, "context"]
    assert_filled(*(batch_of(run.pipeline, s, run.chain_of(s)) for s in ("test", "context")))


def test_a_split_of_a_stream_is_evaluated_by_its_own_chain(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    sample.write("toys", str(tmp_path), ["train", "test"], has_boxes=True, size=8, num_classes=3)
    streamed = config(**{"data.name": "toys"})
    streamed["data"] |= dict(pipeline="streaming", reader_shards=4)
    run = assembly.build(streamed, str(tmp_path))
    assert_filled(*(batch_of(run.pipeline, s, run.chain_of(s)) for s in ("test", "context")))
    again = run.pipeline.dataset.splits["context"]  # in memory, as analyses read it
    feed = next(iter(run.pipeline.feeds("context", np.arange(12))))
    np.testing.assert_array_equal(again.inputs[feed.ids[:3]], feed.inputs[:3])


def test_predictions_and_their_analysis_are_of_the_own_chain(data_dir, tmp_path):
    loop.train(config(), str(tmp_path / "run"), data_dir)
    logits = {
        name: np.load(tmp_path / "run" / "predictions" / f"{name}.npz")["logits"]
        for name in ("test", "context")
    }
    assert np.abs(logits["test"] - logits["context"]).max() > 1e-3
    loaded = loaded_run.load(tmp_path / "run", data_dir=data_dir)
    for name, expected in logits.items():
        found = by_example.map_latents(loaded, name, lambda key, latent, batch: latent.loc)
        np.testing.assert_allclose(
            jax.nn.log_softmax(found), jax.nn.log_softmax(expected), atol=1e-5
        )


def test_a_smoke_run_keeps_the_own_chain_of_a_stream_at_its_size(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    own = "context(rate=1.0)|resize_small(256)|central_crop(224)|value_range(-1, 1)"
    given = study.config(
        "imagenet_hom",
        {"data.extras": ("boxes",), "data.splits.v2": dict(split="validation", eval=own)},
    )
    shrunk, _ = smoke.smoke(given, str(tmp_path))
    assert shrunk["data"]["splits"]["v2"]["eval"] == (
        "context(rate=1.0)|resize_small(18)|central_crop(16)|value_range(-1, 1)"
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (dict(split="test", eval=3), "must be a slice such as .* an eval chain of its own"),
        (dict(split="test", chain="a"), "must be a slice such as .* an eval chain of its own"),
        (dict(split="test", eval="contxt()"), r"config\.data\.splits\.context\.eval"),
        (dict(split="test", eval="random_crop(9)"), r"config\.data\.splits\.context\.eval"),
    ],
)
def test_an_own_chain_that_is_not_valid_is_an_error_that_names_it(data_dir, entry, message):
    with pytest.raises(ValueError, match=message) as caught:
        assembly.build(config(**{"data.splits": SPLITS | {"context": entry}}), data_dir)
    assert "\n" not in str(caught.value)
    schema.checked(config())

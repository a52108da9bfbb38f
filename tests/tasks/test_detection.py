import dataclasses
import functools
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussians import covariance
from small_runs import small_detector

from experiments import study
from heteroscedastic.analysis.covariance import average as average_lib
from heteroscedastic.analysis.covariance import examples, pairs, summary
from heteroscedastic.batch import Batch
from heteroscedastic.data import dataset as dataset_lib
from heteroscedastic.detection.detections import Detections
from heteroscedastic.detection.proposals import is_box
from heteroscedastic.runs import assembly, loaded_run, schema

BACKBONE = dict(name="ResNet", stage_sizes=(1, 1), width=4, stem_width=4, start="keras")
CONFIG = study.config("mosaic_frcnn_hom", {"training.batch_size": 4, "backbone": BACKBONE})
CONFIG["backbone"] |= dict(bottleneck=False, stem="cifar")


def objective_of(run):
    parts = ("smoothing", "weighting", "predictive", "loss")
    return functools.partial(
        run.task.objective,
        model=run.model,
        class_counts=jnp.ones(11),
        **{name: getattr(run.parts, name) for name in parts},
    )


@pytest.mark.slow
def test_the_loss_is_the_sum_of_four_and_an_absent_image_changes_nothing():
    run = assembly.build(CONFIG)
    feed = run.pipeline.example("train", training=True)._replace(
        rows=np.array([3, 1, 7, 5], np.int32), weights=np.array([1, 1, 0, 1], np.float32)
    )
    batch = jax.jit(run.pipeline.training_batch)(
        jax.random.key(0), jax.tree.map(jnp.asarray, run.pipeline.arrays["train"]), feed
    )
    # Of all batches, so that the step is compiled once.
    no_crowds = {"objects/is_crowd": jnp.zeros_like(batch.labels)}
    batch = batch._replace(extras=batch.extras | no_crowds)
    state = jax.jit(run.init)(run.root_key)
    step = jax.jit(jax.value_and_grad(objective_of(run), has_aux=True))
    key = jax.random.key(1)
    (loss, outputs), gradient = step(state.params, state.model_state, batch, key)
    parts = [np.mean(np.asarray(part)[[0, 1, 3]]) for part in outputs.parts]
    assert float(loss) == pytest.approx(float(sum(parts)), rel=1e-5)
    assert min(parts) > 0
    leaves = jax.tree.leaves(gradient["proposals"]) + jax.tree.leaves(gradient["box_offsets"])
    assert all(np.isfinite(x).all() and np.any(x) for x in leaves)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    assert outputs.model_state is not None
    jax.tree.map(np.testing.assert_array_equal, outputs.model_state, state.model_state)

    inputs = batch.inputs.at[2].set(jnp.nan)
    changed = batch._replace(inputs=inputs, labels=batch.labels.at[2].set(-1))
    (same, _), same_gradient = step(state.params, state.model_state, changed, key)
    assert float(same) == float(loss)
    jax.tree.map(np.testing.assert_array_equal, same_gradient, gradient)

    # A box of a crowd is no target: as if it were padding.
    first, boxes = jnp.arange(4) == 0, batch.extras["boxes"]
    crowds = jnp.broadcast_to(first, batch.labels.shape)
    padded = batch._replace(
        labels=jnp.where(first, -1, batch.labels),
        extras={"boxes": jnp.where(first[:, None], 0.0, boxes), **no_crowds},
    )
    crowded = batch._replace(extras={"boxes": boxes, "objects/is_crowd": crowds.astype(jnp.int32)})
    losses = [float(step(state.params, state.model_state, x, key)[0][0]) for x in (padded, crowded)]
    assert losses[0] == losses[1] != float(loss)


def test_the_loss_of_classes_is_the_mean_over_the_regions_that_are_there():
    """Of the training proposals and true boxes, which are fewer than the sampled regions.

    Anchors of 2 pixels that are 1 pixel apart never overlap by 0.7, so none is suppressed, and none
    is half of a true box.
    """
    settings = {
        "head": dict(name="Deterministic", num_classes=11),
        "predictive": dict(name="deterministic"),
        "smoothing": dict(name="uniform", rate=0.22),
        "loss": dict(name="focal", gamma=2.0),
        "proposals.sizes": (2.0,),
        "proposals.channels": 64,
        "proposals.num_candidates": (16, 8),
        "proposals.num_proposals": (16, 8),
        "proposals.num_regions": 24,
    }
    run = assembly.build(small_detector(**settings))
    state = jax.jit(run.init)(run.root_key)
    params = state.params
    stds = {"loc": params["head"]["loc"], **params["proposals"], "boxes": params["box_offsets"]}
    stds = {name: float(jnp.std(layer["kernel"])) for name, layer in stds.items()}
    expected = {"loc": 0.01, "conv": 0.01, "objectness": 0.01, "offsets": 0.01, "boxes": 0.001}
    assert stds == pytest.approx(expected, rel=0.3)  # as in the public code

    params["head"]["loc"]["kernel"] *= 20  # so that the losses of regions differ
    is_crowd = jnp.array([[False, False], [False, True]])
    boxes = jnp.array([[0.25, 0.25, 0.75, 0.75], [0.1, 0.5, 0.6, 1.0]])
    batch = Batch(
        jnp.asarray(np.random.default_rng(0).normal(size=(2, 32, 32, 1)), jnp.float32),
        jnp.array([[-1, -1], [3, 5]]),
        jnp.ones(2),
        jnp.arange(2),
        {"boxes": jnp.stack([0 * boxes, boxes]), "objects/is_crowd": is_crowd},
    )
    objective = jax.jit(objective_of(run))
    _, outputs = objective(params, state.model_state, batch, jax.random.key(0))
    log_probs = np.asarray(jax.nn.log_softmax(outputs.logits))
    for i, labels in enumerate(([0] * 16, [3] + [0] * 16)):
        targets = 0.78 * np.eye(11)[labels] + 0.02
        np.testing.assert_allclose(outputs.targets[i, : len(labels)], targets, rtol=1e-5)
        terms = targets * log_probs[i, : len(labels)]
        losses = -np.sum(terms * (1 - np.exp(log_probs[i, : len(labels)])) ** 2, axis=1)
        assert losses.std() > 0.01
        assert float(outputs.parts.classes[i]) == pytest.approx(losses.mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("proposals", None, "no section 'proposals', but config.task is 'detection'; add"),
        ("mixing", dict(name="mixup", alpha=1.0), "config.mixing is about whole examples"),
        ("validation", dict(split="test", metric="nll"), "no validation; set config.validation"),
        ("data", CONFIG["data"] | {"extras": ()}, "reads the extra 'boxes' of each example"),
        (
            "loss",
            dict(name="logit_adjusted", strength=1.0),
            "config.loss 'logit_adjusted' reads class counts or extras",
        ),
        ("task", "multilabel", "which has no proposals; remove config.proposals"),
    ],
)
def test_a_section_that_does_not_suit_is_an_error(section, value, message):
    config = {**CONFIG, section: value}
    if value is None:
        del config[section]
    if section == "task":
        config |= {"loss": dict(name="sigmoid_cross_entropy")}
    with pytest.raises(ValueError, match=message):
        schema.checked(config)


@pytest.mark.parametrize("entry", ["normalization", "backbone"])
def test_scales_of_0_that_are_fixed_need_a_warm_start(entry):
    config = {**CONFIG, "backbone": CONFIG["backbone"] | {"start": "identity"}}
    config["optimizer"] = CONFIG["optimizer"] | {"fixed": [entry]}
    with pytest.raises(ValueError, match=f"fixed has '{entry}' and .* without a warm start the"):
        assembly.build(config)
    remedies = {
        "backbone": CONFIG["backbone"],
        "warm_start": CONFIG["warm_start"] | {"workdir": "runs/classifier"},
        "optimizer": CONFIG["optimizer"] | {"fixed": ("backbone/stem",)},
    }
    for section, value in remedies.items():
        assembly.build({**config, section: value})


def test_data_without_boxes_or_with_a_background_box_is_an_error():
    run = assembly.build(CONFIG)
    inputs, labels = jnp.zeros((2, 32, 32, 1)), jnp.ones((2, 3), jnp.int32)
    batch = Batch(inputs, labels, jnp.ones(2), jnp.arange(2), {})
    found = Detections(jnp.zeros((2, 5, 4)), jnp.zeros((2, 5)), jnp.full((2, 5), -1))
    with pytest.raises(ValueError, match="a split has no boxes"):
        run.task.predictions(found, batch, None)
    with pytest.raises(ValueError, match="an example has 3 labels and 4 boxes; pad both"):
        run.task.predictions(found, batch._replace(extras={"boxes": jnp.zeros((2, 4, 4))}), None)
    train = run.dataset.splits["train"]
    boxes = train.extras["boxes"]
    unnamed = train.labels.copy()
    unnamed[3, np.argmin(unnamed[3] > 0) - 1] = -1  # the last
    test = run.dataset.splits["test"]
    background = test.labels.copy()
    background[5, 0] = 0
    in_background = "of id {} has a box of class 0, the background .{} examples have.; number the"
    unclassified = "of id {} has a box without a class .1 examples"
    for split, changed, message in (
        ("train", train._replace(labels=0 * train.labels), in_background.format(train.ids[0], 800)),
        ("test", test._replace(labels=background), in_background.format(test.ids[5], 1)),
        ("train", train._replace(extras={"boxes": 0 * boxes}), "no box has an area"),
        ("train", train._replace(labels=unnamed), unclassified.format(train.ids[3])),
    ):
        splits = {**run.dataset.splits, split: changed}
        dataset = run.dataset._replace(splits=splits)
        pipeline = dataclasses.replace(run.pipeline, dataset=dataset)
        with pytest.raises(ValueError, match=f"^digits_mosaics, {split}: .*{message}"):
            schema.check_data(run.config, run.task, pipeline)


@pytest.mark.parametrize("split", ["train", "test"])
def test_images_with_one_number_are_an_error_before_training_if_they_are_evaluated(split):
    run = assembly.build(CONFIG)
    content = run.dataset.splits[split]
    ids = np.arange(len(content.labels), dtype=np.int32)
    ids[7] = 5
    changed = content._replace(extras={**content.extras, "image/id": ids})
    splits = {**run.dataset.splits, split: changed}
    pipeline = dataclasses.replace(run.pipeline, dataset=run.dataset._replace(splits=splits))
    if split == "train":
        return schema.check_data(run.config, run.task, pipeline)
    with pytest.raises(ValueError, match="2 images of an evaluation have the id 5, "):
        schema.check_data(run.config, run.task, pipeline)


def test_boxes_of_training_without_an_area_are_counted_and_logged():
    run = assembly.build(CONFIG)
    train = run.dataset.splits["train"]
    boxes = train.extras["boxes"].copy()
    boxes[:5, 0] = 0.0  # as loading leaves them
    splits = {**run.dataset.splits, "train": train._replace(extras={"boxes": boxes})}
    pipeline = dataclasses.replace(run.pipeline, dataset=run.dataset._replace(splits=splits))
    description = assembly.build(CONFIG, pipeline=pipeline).description
    assert (run.description["degenerate_boxes"], description["degenerate_boxes"]) == (0, 5)
    line = "5 boxes of training examples have no area and are dropped."
    assert dataset_lib.change_lines(description) == [line]
    assert dataset_lib.change_lines(run.description) == []


@pytest.fixture(scope="module")
def loaded():
    """A detector with a low-rank head as it starts, on six images."""
    settings = {
        "data.max_examples": 6,
        "training.batch_size": 4,
        "proposals.num_candidates": (64, 5),
        "proposals.num_proposals": (16, 8),
        "head": dict(name="LowRank", num_classes=11, num_factors=2),
        "predictive": dict(name="softmax", num_samples=4),
        "backbone": BACKBONE | dict(bottleneck=False, stem="cifar"),
    }
    run = assembly.build(study.config("mosaic_frcnn_hom", settings))
    state = jax.jit(run.init)(run.root_key)
    return loaded_run.LoadedRun(Path("run"), run, {}, run.pipeline.description, state)


@pytest.mark.parametrize(
    "analysis",
    [
        summary.measures,
        functools.partial(summary.class_pairs, measure="seen"),
        functools.partial(pairs.visible_variance, rows=np.array([1]), cols=np.array([2])),
        functools.partial(examples.example_covariance, example_id=0),
    ],
)
def test_an_analysis_of_examples_refuses_regions(analysis, loaded):
    with pytest.raises(ValueError, match=r"requires one (prediction|label) per example"):
        analysis(loaded, split="test")


def test_the_averaged_covariance_is_that_of_the_regions_that_are_evaluated(loaded):
    run, state = loaded.run, loaded.state
    found, num_places = [], 0
    for feed in run.pipeline.feeds("test", np.arange(4)):
        batch = run.batch(run.pipeline.arrays["test"], feed)
        variables = {"params": state.params, **state.model_state}
        regions = jax.jit(run.model.apply)(variables, batch.inputs, batch.weights > 0)
        present = np.asarray(is_box(regions.boxes))[batch.weights > 0]
        found.extend(covariance(regions.latent)[batch.weights > 0][present])
        num_places += present.size
    assert 0 < len(found) < num_places  # rows of zeros are no regions
    assert run.pipeline.sizes["test"] % 4  # and an absent image has none
    average = summary.average_covariance(loaded)
    expected = np.mean(found, axis=0)
    rows = average_lib.covariance_rows(average, np.arange(11))
    np.testing.assert_allclose(rows, expected, rtol=1e-3, atol=1e-5)
    pairs_by_covariance = summary.class_pairs(loaded)
    assert pairs_by_covariance.measure == "covariance"
    assert pairs_by_covariance.measures is None


def test_boxes_come_back_in_the_pixels_of_the_stored_image():
    task = schema.task(CONFIG)
    boxes = jnp.array([[[0.25, 0.25, 0.5, 0.5], [0.0, 0.0, 0.5, 0.25]]])
    extras = {
        "boxes": boxes,
        "image_size": jnp.array([[32.0, 16.0]]),
        "stored_size": jnp.array([[320.0, 80.0]]),
        "objects/is_crowd": jnp.array([[False, True]]),
        "objects/area": jnp.array([[7, 9]]),
        "image/id": jnp.array([500]),
    }
    batch = Batch(
        jnp.zeros((1, 32, 32, 3)), jnp.array([[1, 2]]), jnp.ones(1), jnp.array([3]), extras
    )
    assert task.model_inputs(batch)["sizes"].tolist() == [[32, 16]]
    found = Detections(32 * boxes, jnp.ones((1, 2)), jnp.array([[1, 2]]))
    record = task.predictions(found, batch, None)
    expected = [[[80, 40, 160, 80], [0, 0, 160, 40]]]
    assert record.boxes.tolist() == record.true_boxes.tolist() == expected
    assert record.true_areas.tolist() == [[7, 9]]
    assert record.true_crowds.tolist() == [[False, True]]
    assert record.image_ids.tolist() == [500]
    own = task.predictions(found, batch._replace(extras={"boxes": boxes}), None)
    assert own.boxes.tolist() == found.boxes.tolist()
    assert own.true_areas.tolist() == [[64, 128]]
    assert not own.true_crowds.any()
    absent = task.model_inputs(batch._replace(weights=jnp.zeros(1)))["sizes"]
    assert absent.tolist() == [[32, 32]]


def test_boxes_without_an_area_are_counted_and_dropped():
    """Also one whose sides are exchanged; boxes of crowds and of absent images are neither."""
    task = schema.task(CONFIG)
    box, flat, exchanged = [0.0, 0.0, 0.5, 0.5], [0.2, 0.2, 0.2, 0.7], [0.5, 0.5, 0.2, 0.7]
    boxes = jnp.array([[box, flat, box], [exchanged, box, flat], [box, flat, flat]])
    extras = {"boxes": boxes, "objects/is_crowd": jnp.zeros((3, 3), bool).at[1, 1:].set(True)}
    labels = jnp.array([[1, 2, -1], [3, 1, 1], [1, 1, 1]])
    weights = jnp.array([1.0, 1.0, 0.0])
    batch = Batch(jnp.zeros((3, 32, 32, 1)), labels, weights, jnp.arange(3), extras)
    found = Detections(jnp.zeros((3, 5, 4)), jnp.zeros((3, 5)), jnp.full((3, 5), -1))
    found = found._replace(classes=found.classes.at[0, :3].set(1))
    means = task.means(task.evaluation_sums(found, batch, None))
    assert means == {"detections": 1.5, "boxes": 0.5, "degenerate_boxes": 2.0}
    record = task.predictions(found, batch, None)
    assert record.true_classes[:2].tolist() == [[1, -1, -1], [-1, 1, -1]]


def test_without_pycocotools_the_error_says_what_to_install(monkeypatch):
    model = assembly.build(CONFIG).model
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"requires pycocotools; install it: pip install"):
        schema.task(CONFIG).model(model.backbone, model.head, model.proposals)

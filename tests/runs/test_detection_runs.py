"""Runs that detect."""

import json
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pack import PACK, needs
from small_runs import assert_same_bits, outcome, small_detector
from subprocesses import run_without, with_devices

from experiments import study
from heteroscedastic import files
from heteroscedastic.data import resident
from heteroscedastic.data.resident import Resident
from heteroscedastic.detection.detections import Detections
from heteroscedastic.runs import assembly, cached_maps, loaded_run, loop
from heteroscedastic.training import evaluate
from launch.command import SAVED

pytestmark = pytest.mark.usefixtures("programs_once")


FIXED = ("backbone/stem", "backbone/stage1_*", "normalization")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.extended, id="trained"),
        pytest.param({"optimizer.fixed": FIXED, "training.cached_maps": True}, id="cached"),
    ],
)
def test_a_run_that_is_terminated_in_an_epoch_resumes_and_ends_with_the_same_detections(
    tmp_path, monkeypatch, settings
):
    loop.train(small_detector(**settings), str(tmp_path / "whole"))
    feeds = Resident.training_feeds

    def terminated(self, epoch, start, *arguments):
        for step, feed in enumerate(feeds(self, epoch, start, *arguments), start):
            if (epoch, step) == (1, 2):
                os.kill(os.getpid(), signal.SIGTERM)
            yield feed

    with monkeypatch.context() as context:
        context.setattr(Resident, "training_feeds", terminated)
        with pytest.raises(SystemExit) as left:
            loop.train(small_detector(**settings), str(tmp_path / "parts"))
    assert left.value.code == SAVED
    loop.train(small_detector(**settings), str(tmp_path / "parts"))
    whole = outcome(tmp_path / "whole")
    assert whole[0]["step"] == 2 * 2 * 16 // 8
    assert (whole[2]["test.npz"]["classes"] > 0).any()
    assert_same_bits(outcome(tmp_path / "parts"), whole)
    params = [loaded_run.load(tmp_path / name).state.params for name in ("whole", "parts")]
    jax.tree.map(np.testing.assert_array_equal, *params)

    found = whole[0]["evals"]["test"]
    metrics = {"ap", "ap50", "ar100", "detection_ece", "hit_rate", "degenerate_boxes"}
    assert metrics <= found.keys()
    assert found["degenerate_boxes"] == 0
    arrays = whole[2]["test.npz"]
    is_box = arrays["classes"] > 0
    entries = files.read_json(tmp_path / "parts" / "predictions" / "test.json")
    assert [e["image_id"] for e in entries] == arrays["ids"][np.nonzero(is_box)[0]].tolist()
    assert [e["category_id"] for e in entries] == arrays["classes"][is_box].tolist()
    y0, x0, y1, x1 = arrays["boxes"][is_box].T
    expected = np.stack([x0, y0, x1 - x0, y1 - y0], axis=1)
    np.testing.assert_allclose([e["bbox"] for e in entries], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_training_from_cached_maps_is_training_without_them(tmp_path, monkeypatch):
    """Plain and mirrored images, in two epochs, with a last step that is not full."""
    sets, found = cached_maps.with_maps, []

    def with_maps(*arguments):
        found.append(sets(*arguments).extras["trunk_maps"])
        return sets(*arguments)

    monkeypatch.setattr(cached_maps, "with_maps", with_maps)
    outcomes = []
    for cached in (False, True):
        settings = {
            "data.max_examples": 10,
            "head": dict(name="Deterministic", num_classes=11),
            "predictive": dict(name="deterministic"),
            "optimizer.fixed": FIXED,
            "training.cached_maps": cached,
        }
        loop.train(small_detector(**settings), str(tmp_path / str(cached)))
        outcomes.append(outcome(tmp_path / str(cached)))
    (maps,) = found
    assert maps.shape[:2] == (10, 2)
    (_, lines, predictions), (_, cached_lines, cached_predictions) = outcomes
    assert len(lines) == 2
    for line, other in zip(lines, cached_lines, strict=True):
        assert json.loads(other) == pytest.approx(json.loads(line), rel=1e-4)
    scores, cached_scores = (x["test.npz"]["scores"] for x in (predictions, cached_predictions))
    np.testing.assert_allclose(cached_scores, scores, atol=1e-5)


def test_maps_that_change_during_training_are_not_cached(monkeypatch):
    def checked(**settings):
        fixed = {"optimizer.fixed": FIXED, "training.cached_maps": True}
        run = assembly.build(small_detector(**fixed | settings))
        cached_maps.check(run)

    checked()
    with pytest.raises(ValueError, match=r"'backbone/stage1_.*' of the trunk is trained; set it"):
        checked(**{"optimizer.fixed": ("backbone/stem", "normalization")})
    with pytest.raises(ValueError, match=r"but shift\(size=2\) of config.data.train changes the"):
        checked(**{"data.train": "shift(2)|value_range(-1, 1)"})
    monkeypatch.setattr(resident, "Resident", dict)  # so the pipeline is another one
    with pytest.raises(ValueError, match="but a stream decodes its images in each epoch; set it"):
        checked()


@needs("coco/2017")
def test_true_boxes_of_coco_come_through_an_evaluation_with_ap_1():
    """In the pixels, with the ids and areas of the stored images; crowds are ignored."""
    tfds = pytest.importorskip("tensorflow_datasets")
    fit = "fit(64, shorter=38, longer=64)|value_range(-1, 1)"
    settings = {
        "data.train": f"with_mirrored|{fit}",
        "data.eval": fit,
        "data.reader_shards": 1,
        "backbone.start": "keras",
        "training.batch_size": 16,
    }
    run = assembly.build(study.config("coco_frcnn_hom", settings), PACK)

    def step(feed, key):
        batch = run.pipeline.batch(key, (), feed, None)
        labels = jnp.where(batch.extras["objects/is_crowd"], -1, batch.labels)
        perfect = Detections(64 * batch.extras["boxes"], jnp.where(labels > 0, 0.9, 0.0), labels)
        sums = run.task.evaluation_sums(perfect, batch, None)
        return sums, run.task.predictions(perfect, batch, None)

    feeds = run.pipeline.feeds("test", np.arange(16))
    arrays = evaluate.arrays(evaluate.evaluate(step, feeds, jax.random.key(0))[1])
    metrics = run.task.extra_results(arrays)
    for name in ("ap", "ap50", "ap_small", "ap_medium", "ap_large", "ar100", "hit_rate"):
        assert metrics[name] == pytest.approx(1.0), name

    builder = tfds.builder("coco/2017", data_dir=PACK)
    stored = {int(e["image/id"]): e for e in tfds.as_numpy(builder.as_dataset("validation"))}
    assert sorted(arrays["image_ids"].tolist()) == sorted(stored)
    assert arrays["true_crowds"].any()
    for i, image_id in enumerate(arrays["image_ids"]):
        objects, is_box = stored[image_id]["objects"], arrays["true_classes"][i] > 0
        sides = np.tile(stored[image_id]["image"].shape[:2], 2)
        found = arrays["true_boxes"][i, is_box]
        np.testing.assert_allclose(found, objects["bbox"] * sides, rtol=1e-4, atol=1e-2)
        names = ("true_classes", "true_areas", "true_crowds")
        expected = (objects["label"] + 1, objects["area"], objects["is_crowd"])
        for name, values in zip(names, expected):
            np.testing.assert_array_equal(arrays[name][i, is_box], values)


CANVASES = {
    "square": "fit(64, shorter=38, longer=64)|value_range(-1, 1)",
    "oriented": "fit(64, shorter=38, longer=64, narrow=48)|value_range(-1, 1)",
}


def small_streamed(canvas, **overrides):
    """A detector on 20 images of COCO, in two epochs of six or seven steps."""
    small = small_detector()
    settings = {
        "data.train": f"with_mirrored|sample_boxes(50)|{CANVASES[canvas]}",
        "data.eval": CANVASES[canvas],
        "data.max_examples": 20,
        "data.reader_shards": 2,
        "head.num_classes": 81,
        "optimizer.fixed": ("normalization",),
        "schedule.learning_rate": 0.1,
        "training.batch_size": 8,
        "training.num_steps": None,
        "training.num_epochs": 2.0,
    }
    config = study.config("coco_frcnn_hom", settings | overrides)
    return config | {name: small[name] for name in ("backbone", "proposals")}


@needs("coco/2017")
@pytest.mark.parametrize("canvas", CANVASES)
def test_a_streamed_detector_is_built_without_reading_images_into_memory(canvas, monkeypatch):
    """Those of COCO would need hundreds of GiB."""
    streaming = pytest.importorskip("heteroscedastic.data.streaming.stream").Streaming
    monkeypatch.setattr(streaming, "_read", lambda self, split: pytest.fail(f"{split} is read"))
    assembly.build(small_streamed(canvas), PACK)


@needs("coco/2017")
def test_what_a_detector_says_of_an_image_does_not_depend_on_the_canvas():
    pytest.importorskip("tensorflow_datasets")
    found, state = {}, None
    for canvas in CANVASES:
        run = assembly.build(small_streamed(canvas), PACK)
        state = jax.jit(run.init)(run.root_key) if state is None else state  # of no canvas
        variables, shapes = {"params": state.params, **state.model_state}, set()

        @jax.jit
        def regions_of(feed, run=run, variables=variables):
            batch = run.pipeline.batch(jax.random.key(0), (), feed, None)
            sizes = run.task.model_inputs(batch)
            return run.model.apply(variables, batch.inputs, batch.weights > 0, **sizes)

        for feed in run.pipeline.feeds("test", np.arange(8)):
            shapes.add(feed.inputs.shape[1:3])
            regions = jax.tree.map(np.asarray, regions_of(feed))
            for row in np.flatnonzero(feed.weights > 0):
                of_image = jax.tree.map(lambda x, row=row: x[row], regions)
                found.setdefault(int(feed.ids[row]), []).append(of_image)
        assert shapes == ({(64, 64)} if canvas == "square" else {(48, 64), (64, 48)})
    assert len(found) == 20
    for square, oriented in found.values():
        assert (square.boxes[:, 2] > 0).any()
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4), square, oriented
        )


@needs("coco/2017")
@pytest.mark.slow
@pytest.mark.extended
def test_a_run_with_two_canvases_resumes_with_the_same_bits(tmp_path, monkeypatch):
    streaming = pytest.importorskip("heteroscedastic.data.streaming.stream").Streaming
    loop.train(small_streamed("oriented"), str(tmp_path / "whole"), PACK)
    feeds, shapes = streaming.training_feeds, []

    def terminated(self, epoch, start, *arguments):
        for step, feed in enumerate(feeds(self, epoch, start, *arguments), start):
            if (epoch, step) == (1, 3):
                os.kill(os.getpid(), signal.SIGTERM)
            shapes.append(feed.inputs.shape[1:3])
            yield feed

    with monkeypatch.context() as context:
        context.setattr(streaming, "training_feeds", terminated)
        with pytest.raises(SystemExit) as left:
            loop.train(small_streamed("oriented"), str(tmp_path / "parts"), PACK)
    assert left.value.code == SAVED
    assert set(shapes) == {(48, 64), (64, 48)}
    loop.train(small_streamed("oriented"), str(tmp_path / "parts"), PACK)
    whole = outcome(tmp_path / "whole")
    numbers = files.read_json(tmp_path / "whole" / "dataset.json")["orientations"]["train"]
    assert whole[0]["step"] == 2 * sum(-(-2 * number // 8) for number in numbers.values())
    assert_same_bits(outcome(tmp_path / "parts"), whole)
    params = [loaded_run.load(tmp_path / n, data_dir=PACK).state.params for n in ("whole", "parts")]
    jax.tree.map(np.testing.assert_array_equal, *params)


_ON_DEVICES = """
import json, sys, jax, numpy as np
from heteroscedastic.distributed.sharding import Placement
from heteroscedastic.runs import assembly, compiled

run = assembly.build(json.loads(sys.argv[1]))
data = run.pipeline
for number in (1, 8):
    placement = Placement(8, devices=jax.devices()[:number])
    programs, slots = compiled.programs(run, placement), placement.slots(8)
    arrays = placement.put(data.arrays, placement.replicated)
    feed = placement.feed(next(data.training_feeds(0, 0, slots)), 8)
    start = programs.start(run.root_key, {})
    state, sums, _ = programs.train_step(start, arrays["train"], feed, run.root_key)
    feed = placement.feed(next(data.feeds("test", slots)), 8)
    weights = state.params, state.model_state
    evaluated, record = programs.eval_step(*weights, arrays["test"], feed, jax.random.key(0))
    leaves = jax.tree.leaves((state.params, sums, evaluated, record))
    print(json.dumps([np.asarray(x, float).ravel().tolist() for x in leaves]))
"""


@pytest.mark.extended
def test_eight_devices_train_and_detect_as_one():
    done = run_without(set(), _ON_DEVICES, json.dumps(small_detector()), env=with_devices(8))
    assert done.returncode == 0, done.stderr
    one, eight = map(json.loads, done.stdout.splitlines()[-2:])
    assert len(one) > 30
    for a, b in zip(one, eight, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4)

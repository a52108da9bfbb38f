import json
import shutil

import jax
import numpy as np
import pytest
from flax import traverse_util
from small_runs import of_earlier_version, small, small_detector

from experiments import study
from heteroscedastic import bind
from heteroscedastic.distributed import class_padding
from heteroscedastic.runs import assembly, loop, sections, warm_start
from heteroscedastic.runs.checkpoint import Checkpoints

BACKBONE = dict(name="ConvNet", widths=(4, 8))
EVALS = {"evals": {"test": dict(split="test", checkpoint="last", answers=None)}}
SETTINGS = {"backbone": BACKBONE, "training.num_epochs": 1.0, "training.checkpoint_epochs": 1.0}


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    directory = tmp_path_factory.mktemp("upstream") / "run"
    loop.train(small(**SETTINGS) | EVALS, str(directory))
    return directory


def downstream(source, **overrides):
    """Another head on the same digits, that starts from the source and never moves."""
    still = {"schedule": dict(name="constant", learning_rate=0.0)}
    config = study.config("digits_hom", SETTINGS | still | overrides)
    return config | EVALS | {"validation": None, "warm_start": source}


def arrays(directory, step=None):
    with Checkpoints(directory / "checkpoints", read_only=True) as checkpoints:
        state = checkpoints.restore_arrays(
            step or json.loads((directory / "results.json").read_text())["step"]
        )
    return named(state)


def named(state):
    return traverse_util.flatten_dict({"params": state.params, **state.model_state}, sep="/")


def test_the_backbone_is_the_sources_and_the_head_that_of_a_run_without_it(upstream, tmp_path):
    config = downstream(dict(workdir=str(upstream)))
    results = loop.train(config, str(tmp_path / "run"))
    alone = assembly.build({name: value for name, value in config.items() if name != "warm_start"})
    theirs, ours = arrays(upstream), arrays(tmp_path / "run")
    fresh = named(jax.jit(alone.init)(alone.root_key))
    params = {name for name in ours if name.startswith("params/")}
    assert {name.split("/")[1] for name in params} == {"backbone", "head"}
    for name in params:
        np.testing.assert_array_equal(ours[name], (theirs if "/backbone/" in name else fresh)[name])
    assert results["init"]["step"] == json.loads((upstream / "results.json").read_text())["step"]
    assert (
        results["init"]["fingerprint"]
        == json.loads((upstream / "dataset.json").read_text())["fingerprint"]
    )
    assert results["init"]["num_arrays"] == len([name for name in theirs if "/backbone/" in name])


def test_batch_statistics_come_along_and_nothing_else_does(upstream):
    run = assembly.build(downstream(dict(workdir=str(upstream))))
    fresh, theirs = jax.jit(run.init)(run.root_key), arrays(upstream)
    source = warm_start.read(run.config["warm_start"], run.shapes)
    started = warm_start.applied(fresh, source.arrays)
    name = "batch_stats/backbone/BatchNorm_0/mean"
    np.testing.assert_array_equal(named(started)[name], theirs[name])
    assert (np.asarray(named(fresh)[name]) != theirs[name]).any()
    jax.tree.map(np.testing.assert_array_equal, started.opt_state, fresh.opt_state)
    assert int(started.step) == 0
    assert jax.tree.structure(started) == jax.tree.structure(fresh)


def test_a_head_comes_along_on_demand_and_then_may_be_cut_over_devices(upstream):
    config = small(**SETTINGS) | {
        "warm_start": dict(workdir=str(upstream), checkpoint="best", head=True)
    }
    config["training"]["class_shards"] = 4
    run = assembly.build(config)
    source = warm_start.read(run.config["warm_start"], run.shapes)
    at_work = class_padding.padded(
        run.class_axis, warm_start.applied(jax.jit(run.init)(run.root_key), source.arrays)
    )
    assert at_work.params["head"]["loc"]["kernel"].shape == (8, 12)
    theirs = arrays(upstream)
    for name, ours in named(class_padding.trimmed(run.class_axis, at_work)).items():
        np.testing.assert_array_equal(ours, theirs[name])


def test_a_run_that_continues_does_not_load_again(upstream, tmp_path, capsys):
    source = shutil.copytree(upstream, tmp_path / "source")
    config = downstream(dict(workdir=str(source)))
    first = loop.train(config, str(tmp_path / "run"))
    shutil.rmtree(source)
    (tmp_path / "run" / "results.json").unlink()
    capsys.readouterr()
    again = loop.train(config, str(tmp_path / "run"))
    assert "continuing from step" in capsys.readouterr().out
    assert again["init"] == first["init"]
    assert again["evals"] == first["evals"]


def settings(**source):
    """All settings of config.warm_start."""
    return bind.defaults(sections.WarmStart) | source


def test_weights_in_a_file_are_as_good_as_a_run(upstream, tmp_path):
    theirs = {name: array for name, array in arrays(upstream).items() if "/backbone/" in name}
    weights = tmp_path / "weights.npz"
    np.savez(weights, **theirs)
    shapes = assembly.build(small(**SETTINGS)).shapes
    one, other = (
        warm_start.read(source, shapes)
        for source in (settings(weights=str(weights)), settings(workdir=str(upstream)))
    )
    assert one.description["digest"] == other.description["digest"]
    theirs["params/backbone/Conv_0/kernel"] = theirs["params/backbone/Conv_0/kernel"] + 1
    np.savez(weights, **theirs)
    changed = warm_start.read(settings(weights=str(weights)), shapes)
    assert changed.description["digest"] != other.description["digest"]


@pytest.mark.parametrize(
    ("overrides", "source", "message"),
    [
        (
            {"backbone": dict(name="ConvNet", widths=(4, 9))},
            {},
            r"Conv_1/kernel \(3, 3, 4, 8\) where \(3, 3, 4, 9\)",
        ),
        (
            {"backbone": dict(name="ConvNet", widths=(4,))},
            {},
            "has the unexpected .*BatchNorm_1/mean",
        ),
        (
            {"backbone": dict(name="ConvNet", widths=(4, 8, 8))},
            {},
            "it lacks .*params/backbone/Conv_2/kernel",
        ),
        (
            {},
            dict(head=True),
            r"the unexpected params/head/factor_scale/bias.*config.warm_start.head=False",
        ),
    ],
)
def test_what_does_not_fit_is_named_before_anything_is_touched(
    upstream, tmp_path, overrides, source, message
):
    config = downstream(dict(workdir=str(upstream), **source), **overrides)
    with pytest.raises(warm_start.InitError, match=message):
        loop.train(config, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_source_that_is_not_there_is_told_with_what_to_do(upstream, tmp_path):
    shapes = assembly.build(small(**SETTINGS)).shapes

    def read(**source):
        return warm_start.read(settings(**source), shapes)

    with pytest.raises(
        warm_start.InitError,
        match=r"nowhere, is not a directory; give the directory of a finished run",
    ):
        read(workdir=tmp_path / "nowhere")
    with pytest.raises(
        warm_start.InitError,
        match=r"nothing.npz, is missing; python -m heteroscedastic.models.convert",
    ):
        read(weights=tmp_path / "nothing.npz")
    copy = of_earlier_version(shutil.copytree(upstream, tmp_path / "copy"))
    former = (copy / "results.json").read_text()
    (copy / "results.json").unlink()
    with pytest.raises(
        warm_start.InitError,
        match=r"holds no complete run, as results.json is missing; finish its training",
    ):
        read(workdir=copy)
    results = json.loads(former)
    (copy / "results.json").write_text(json.dumps(results | {"best_step": None}))
    with pytest.raises(warm_start.InitError, match="has no best checkpoint"):
        read(workdir=copy, checkpoint="best")
    (copy / "results.json").write_text(json.dumps(results | {"step": 7}))
    with pytest.raises(warm_start.InitError, match=r"checkpoint of step 7 in .* cannot be read"):
        read(workdir=copy)
    (copy / "results.json").write_text("{")
    with pytest.raises(warm_start.InitError, match=r"is damaged .*results.json is damaged"):
        read(workdir=copy)
    (tmp_path / "nothing.npz").write_bytes(b"PK")
    with pytest.raises(warm_start.InitError, match=r"is not a readable .npz file"):
        read(weights=tmp_path / "nothing.npz")
    np.savez(tmp_path / "torch.npz", **{"conv1.weight": np.zeros(3)})
    with pytest.raises(
        warm_start.InitError,
        match=r"has arrays named conv1.weight, but their names must be like params/backbone",
    ):
        read(weights=tmp_path / "torch.npz")


def test_a_flipped_bit_of_the_source_is_told(upstream, tmp_path):
    copy = shutil.copytree(upstream, tmp_path / "copy")
    told = next((copy / "checkpoints").glob("*/told/metadata"))
    digest = json.loads(told.read_text())["digest"]
    told.write_text(told.read_text().replace(digest, "0" * 64))
    with pytest.raises(warm_start.InitError, match="its bits differ from those that were saved"):
        warm_start.read(settings(workdir=str(copy)), assembly.build(small(**SETTINGS)).shapes)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (dict(workdir="a", weights="b"), "set one of them to None"),
        ("runs/a", "it must be a section"),
        (dict(directory="a"), "config.warm_start has no setting 'directory'"),
        (dict(workdir="a", checkpoint="first"), "choose one of last, best"),
        (dict(workdir="a", head="yes"), "it must be True or False"),
        (dict(head=True), "head is True, but no run is named to start from"),
        (dict(weights="b", checkpoint="best"), "checkpoint is 'best', but no run is named"),
    ],
)
def test_a_section_that_is_none_is_an_error(source, message):
    with pytest.raises(ValueError, match=message):
        assembly.build(small() | {"warm_start": source})


def test_no_path_leads_out_of_the_run_that_is_named(upstream, tmp_path):
    shapes = assembly.build(small(**SETTINGS)).shapes
    copy = of_earlier_version(shutil.copytree(upstream, tmp_path / "copy"))
    results = json.loads((copy / "results.json").read_text())
    for step in ("../../x", "1", -1, True):
        (copy / "results.json").write_text(json.dumps(results | {"best_step": step}))
        with pytest.raises(
            warm_start.InitError, match=r"results.json: best_step is .*, but must be"
        ):
            warm_start.read(settings(workdir=str(copy), checkpoint="best"), shapes)
    (copy / "results.json").write_text(json.dumps(results))
    state = copy / "checkpoints" / str(results["step"]) / "state"
    state.rename(tmp_path / "elsewhere")
    state.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        warm_start.InitError, match=r"has a link that points outside it, .*state to .*elsewhere"
    ):
        warm_start.read(settings(workdir=str(copy)), shapes)
    state.unlink()
    (tmp_path / "elsewhere").rename(state)
    warm_start.read(settings(workdir=str(copy)), shapes)


@pytest.mark.slow
@pytest.mark.extended
def test_a_detector_keeps_the_fixed_backbone_of_a_classifier_and_its_statistics(tmp_path):
    one_step = {"training.num_epochs": None, "training.num_steps": 1}
    fixed = {"optimizer.fixed": ("backbone", "normalization")}
    detector = small_detector(**one_step, **fixed) | {"evals": {}}
    source = study.config("digits_hom", {"backbone": detector["backbone"], **one_step})
    loop.train(source | {"validation": None, "evals": {}}, str(tmp_path / "classifier"))
    detector["warm_start"] |= {"workdir": str(tmp_path / "classifier")}
    loop.train(detector, str(tmp_path / "detector"))
    theirs, ours = arrays(tmp_path / "classifier"), arrays(tmp_path / "detector")
    names = {name for name in ours if "/backbone/" in name}
    assert names == {name for name in theirs if "/backbone/" in name}
    assert {name.split("/")[0] for name in names} == {"params", "batch_stats"}
    for name in names:
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert any((theirs[name] != 0).any() for name in names if name.endswith("/mean"))


def test_with_its_head_a_detector_starts_from_all_parts_of_another(monkeypatch):
    shapes = assembly.build(small_detector()).shapes
    named = warm_start._named(shapes.params, shapes.model_state)
    assert {"proposals", "head", "backbone"} < {name.split("/")[1] for name in named}
    available = {name: np.ones(x.shape, x.dtype) for name, x in named.items()}
    source = {"workdir": "detector", "checkpoint": "last", "step": 1}
    monkeypatch.setattr(warm_start, "_read_run", lambda *_: (dict(available), dict(source)))
    found = warm_start.read(settings(workdir="detector", head=True), shapes)
    assert set(found.arrays) == set(named)


def test_a_detector_does_not_start_from_another_family(upstream):
    detector = small_detector()
    settings = detector["warm_start"] | {"workdir": str(upstream)}
    with pytest.raises(warm_start.InitError, match="does not fit the model") as caught:
        warm_start.read(settings, assembly.build(detector).shapes)
    assert "Give config.backbone the settings of the source" in str(caught.value)

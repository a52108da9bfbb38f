"""Untrusted input never runs code: names, overrides, arrays, files of a workdir, archives."""

import io
import json
import pickle
import sys
import tarfile

import numpy as np
import pytest
from absl import flags
from ml_collections import config_flags
from small_runs import small

from heteroscedastic import (
    bind,
    curation,
    files,
    losses,
    mixing,
    predictive,
    smoothing,
    weighting,
)
from heteroscedastic.data import augment, split_spec
from heteroscedastic.data.storage import archives, npz
from heteroscedastic.models import backbones, convert, heads
from heteroscedastic.runs import loaded_run, loop, predictions, schema, smoke
from heteroscedastic.training import optimizer, schedules

MODULES = {
    "loss": losses,
    "predictive": predictive,
    "mixing": mixing,
    "smoothing": smoothing,
    "weighting": weighting,
    "head": heads,
    "backbone": backbones,
    "optimizer": optimizer,
    "schedule": schedules,
}


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture
def payload(tmp_path):
    """A pickle that runs code, and the file that it would create."""
    path = tmp_path / "file_of_payload"
    pickle.loads(pickle.dumps(Payload(path)))
    path.unlink()
    return Payload(path), path


def write_npz(path, payload, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.empty(1, object)
    array[0] = payload
    np.savez(path, payload=array, **arrays)


READERS = {
    "a data set": lambda path: npz.read(path),
    "predictions": lambda path: predictions.read(path.parents[1], path.stem),
    "weights to start from": lambda path: loop.train(
        {**small(), "warm_start": {"weights": str(path)}}, str(path.parent / "run"), None
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_pickle_in_an_npz_is_an_error_and_runs_nothing(tmp_path, payload, reader):
    path = tmp_path / "predictions" / "test.npz"
    write_npz(path, payload[0], labels=np.zeros(1), logits=np.zeros((1, 2)), ids=np.zeros(1))
    with pytest.raises(ValueError, match=r"test\.npz(.|\n)*allow_pickle=False"):
        READERS[reader](path)
    assert not payload[1].exists()


def test_a_pickle_in_a_state_dict_is_an_error_and_runs_nothing(tmp_path, payload, monkeypatch):
    write_npz(tmp_path / "source.npz", payload[0])
    words = [
        f"--state_dict={tmp_path / 'source.npz'}",
        "--backbone=ResNet18",
        f"--out={tmp_path / 'converted.npz'}",
    ]
    monkeypatch.setattr(sys, "argv", ["convert", *words])
    with pytest.raises((SystemExit, ValueError), match="allow_pickle=False"):
        convert.main()
    assert not payload[1].exists()


NAMES = [
    "__import__",
    "jax",
    "jnp",
    "np",
    "__builtins__",
    "__doc__",
    "weighted_mean",
    "weighted_mean.__globals__",
    "eval",
]
NAMES += [
    "os.system",
    "_Head",
    "standard_deviations",
    "LatentGaussian",
    "Any",
    "bind",
    "",
    "softmax.__call__",
]


@pytest.mark.parametrize("name", NAMES, ids=str)
@pytest.mark.parametrize("section", MODULES)
def test_a_config_can_name_only_the_public_functions_of_a_section(section, name):
    with pytest.raises(ValueError, match="choose one of"):
        bind.bind(MODULES[section], name=name)


def test_the_functions_of_a_section_are_public_code_of_this_package():
    for module in (*MODULES.values(), augment, curation):
        for name, choice in bind._choices(module).items():
            assert not name.startswith("_")
            assert choice.__module__.startswith("heteroscedastic.")


@pytest.mark.parametrize(
    "name", ["__import__", "weighted_mean", "jax", "cross_entropy.__globals__"]
)
def test_a_workdir_whose_config_names_other_code_is_an_error(tmp_path, name):
    files.write_json(tmp_path / "config.json", {**small(), "loss": {"name": name}})
    files.write_json(
        tmp_path / "results.json", {"evals": {name: {} for name in small()["evals"]}, "step": 1}
    )
    files.write_json(tmp_path / "dataset.json", {"class_names": ["a"], "fingerprint": ""})
    with pytest.raises(ValueError, match="choose one of"):
        loaded_run.load(tmp_path)


OUTSIDE = ["../x", "../../x", "/tmp/x", "a/../../x", "..", ".", "", ".hidden", "a/b", "a\\b", "a\n"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_evaluation_stays_in_the_workdir(tmp_path, name):
    config = small()
    config["evals"] = {name: {"split": "test"}}
    with pytest.raises(ValueError, match=r"config\.evals has"):
        loop.train(config, str(tmp_path / "inside" / "run"))
    assert list(tmp_path.iterdir()) == []
    for file, content in {
        "config": config,
        "results": {"evals": {name: {}}, "step": 1},
        "dataset": {"class_names": ["a"]},
    }.items():
        files.write_json(tmp_path / f"{file}.json", content)
    with pytest.raises(ValueError, match=r"config\.evals has"):
        loaded_run.read(tmp_path)


@pytest.mark.parametrize("name", [*(n for n in OUTSIDE if n != "a/b"), "digits/../../x", None, 3])
@pytest.mark.parametrize("where", ["name", "splits"])
def test_a_data_set_stays_in_the_data_directory(tmp_path, name, where):
    data = (
        {"name": name}
        if where == "name"
        else {"name": "a", "splits": {"x": {"name": name, "split": "test"}}}
    )
    if where == "splits" and name is None:
        return  # None stands for the set itself
    with pytest.raises(ValueError, match=r"in config\.data is not a name"):
        split_spec.dataset_refs(data)
    config = small()
    config["data"] |= {**data, "pipeline": "streaming", "reader_shards": 8}
    for check in (schema.checked, lambda c: smoke.smoke(c, None)):
        with pytest.raises(
            ValueError, match=r"in config\.data is not a name|config\.data\.name is .* a string"
        ):
            check(config)


@pytest.mark.parametrize(
    "name", ["cifar10", "imagenet21k/any", "cifar10:3.*.*", "vtab_dtd", "plant_leaves/a.b:1.0.0"]
)
def test_valid_names_of_data_sets_are_accepted(name):
    assert split_spec.dataset_refs({"name": name})[0].name == name


HOSTILE = "__import__('pathlib').Path({path!r}).touch()"


@pytest.mark.parametrize(
    "setting",
    [
        "seed",
        "curation",
        "head.temperature",
        "head.name",
        "training.num_steps",
        "training.num_epochs",
        "schedule.milestones",
    ],
)
def test_an_override_is_a_value_and_runs_nothing(tmp_path, setting):
    """ml_collections parses by the type in the config; it never evaluates code."""
    values, text = flags.FlagValues(), HOSTILE.format(path=str(tmp_path / "new_file"))
    config_flags.DEFINE_config_file("config", flag_values=values)
    words = ["main.py", "--config=configs/digits_het_full.py", f"--config.{setting}={text}"]
    try:
        values(words)
    except (flags.Error, ValueError, TypeError):
        pass
    else:
        config = values.config.to_dict()
        for part in setting.split("."):
            config = config[part]
        assert config in (text, (text,))  # rejected later by the schema, bind or the chain
    assert not (tmp_path / "new_file").exists()


@pytest.mark.parametrize(
    "setting", ["a[__import__('os')]", "__class__", "seed.__class__", "to_dict", "head.update"]
)
def test_an_override_of_an_unknown_setting_is_an_error(setting):
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values)
    with pytest.raises((flags.Error, AttributeError, KeyError, ValueError, TypeError)):
        values(["main.py", "--config=configs/digits_het_full.py", f"--config.{setting}=1"])


@pytest.mark.parametrize("section", ["curation", "data.train"])
def test_a_chain_is_parsed_and_runs_nothing(tmp_path, section):
    path = tmp_path / "new_file"
    config = small()
    text = f"subset(num_examples={HOSTILE.format(path=str(path))})"
    if section == "curation":
        config["curation"] = text
    else:
        config["data"]["train"] = text.replace("subset", "pad_crop").replace("num_examples", "size")
    with pytest.raises(ValueError, match="not a number, string or tuple"):
        loop.train(config, str(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


def members_of(kinds):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, kind in kinds.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = (
                kind,
                "/etc/passwd",
                4 if kind == tarfile.REGTYPE else 0,
            )
            tar.addfile(info, io.BytesIO(b"evil"))
    return file.getvalue()


def test_names_in_an_archive_are_not_used_as_paths(tmp_path):
    """Members are read without unpacking, whatever path their names contain."""
    names = ["../../evil", "/tmp/heteroscedastic_evil", "a/../../evil", "evil"]
    (tmp_path / "deep" / "er").mkdir(parents=True)
    path = tmp_path / "deep" / "er" / "a.tar"
    path.write_bytes(members_of(dict.fromkeys(names, tarfile.REGTYPE)))
    assert [(m.name, m.read()) for m in archives.members(path)] == [
        (name, b"evil") for name in names
    ]
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_a_link_or_device_in_an_archive_is_an_error(tmp_path, kind):
    (tmp_path / "a.tar").write_bytes(members_of({"n01440764.tar": kind}))
    with pytest.raises(ValueError, match=r"n01440764\.tar is a link or a device, not a file"):
        list(archives.members(tmp_path / "a.tar"))


def test_a_config_of_a_workdir_is_data(tmp_path):
    """It is JSON, which contains no code; an invalid file is an error."""
    (tmp_path / "config.json").write_text("__import__('os').system('true')")
    with pytest.raises(ValueError, match="is damaged"):
        loop.train(small(), str(tmp_path))
    assert json.loads(json.dumps(small())) == files.plain(small())

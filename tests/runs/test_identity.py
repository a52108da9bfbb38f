"""Configs of earlier versions are the same runs as those that state every setting."""

import json
from pathlib import Path

import pytest
from small_runs import assert_same_bits, outcome, small

from heteroscedastic import bind, files
from heteroscedastic.runs import identity, loop, provenance, run_record, sections

# What the digits configs did not state before configs stated every setting.
LACKING = {
    "data": ("pipeline", "label", "splits", "max_classes", "max_examples", "seed"),
    "head": ("noise_on", "edward2"),
    "predictive": ("chunk_size",),
    "schedule": ("warmup_steps",),
    "training": ("microbatches", "parameters", "class_shards", "profile_steps"),
}


def former(config):
    """A config as it was written before configs stated every setting."""
    config = {name: value for name, value in config.items() if name not in ("warm_start", "task")}
    config |= {s: {k: v for k, v in config[s].items() if k not in LACKING[s]} for s in LACKING}
    config["evals"] = {
        name: {k: v for k, v in settings.items() if (k, v) not in NOT_STATED}
        for name, settings in config["evals"].items()
    }
    return config


NOT_STATED = (("checkpoint", "last"), ("answers", None))


def test_configs_with_and_without_a_newer_setting_are_the_same_run_unless_its_value_is_another():
    config, older = small(), former(small())
    assert identity.identity(older) == identity.identity(config)
    assert identity.identity(identity.updated(older)) == identity.identity(config)
    config["predictive"]["chunk_size"] = 4
    assert identity.identity(older) != identity.identity(config)


def test_a_config_of_former_names_is_the_same_run():
    config = small(**{"warm_start.workdir": "runs/a"})
    config["data"] |= {"pipeline": "streaming", "reader_shards": 4}
    older = {name: value for name, value in config.items() if name != "warm_start"}
    older["data"] = {k: v for k, v in config["data"].items() if k != "reader_shards"}
    older["data"]["lanes"] = 4
    older["init"] = {"workdir": "runs/a", "checkpoint": "last", "head": False}
    assert identity.identity(older) == identity.identity(config)
    updated = identity.updated(older)
    assert updated["warm_start"] == config["warm_start"]
    assert updated["data"]["reader_shards"] == 4


def test_the_layout_is_no_part_of_the_identity_and_a_newer_loss_has_a_task():
    config = small()
    assert identity.identity(small(**{"training.class_shards": 4})) == identity.identity(config)
    other = {**config, "loss": dict(name="a_newer_loss")}
    assert identity.identity({**other, "task": "multilabel"}) != identity.identity(other)


def test_every_setting_with_a_default_has_the_value_that_the_code_had_before_it_existed():
    for section, module in (sections.MODULES | sections.OPTIONAL_MODULES).items():
        for part, target in bind._choices(module).items():
            known = identity._values(identity._BEFORE, section, {"name": part})
            known |= identity._values(identity._STATED, section, {"name": part})
            assert set(bind.defaults(target)) <= set(known), (section, part)
    plain = {
        "data": sections.StreamingData,
        "training": sections.DetectorTraining,
        "evals": sections.Evaluation,
        "warm_start": sections.WarmStart,
    }
    for section, target in plain.items():
        known = {*identity._BEFORE[section], *identity._STATED.get(section, ())}
        known |= set(identity._NO_RESULT.get(section, ()))
        assert set(bind.defaults(target)) <= known, section


def test_the_task_of_an_older_run_follows_from_its_metrics():
    config = small()
    older = {name: value for name, value in config.items() if name != "task"}
    results = {"evals": {"test": {"accuracy": 0.5, "nll": 1.0}, "valid": {"accuracy": 0.5}}}
    found = identity.updated(older, results)
    assert found["task"] == "multiclass"
    assert found["evals"]["valid"]["answers"] == "any"  # which had no metric but accuracy
    assert found["evals"]["test"]["answers"] is None
    sigmoid = older | {"loss": dict(name="sigmoid_cross_entropy")}
    assert identity.updated(sigmoid, results)["task"] == "one_vs_rest"
    lists = {"evals": {"test": {"label_accuracy": 0.9, "nll": 1.0}, "valid": {"nll": 1.0}}}
    assert identity.updated(sigmoid, lists)["task"] == "multilabel"


@pytest.mark.parametrize("damage", [3, None, [], {}, {"name": 3}, {"name": "x"}])
@pytest.mark.parametrize("section", ["data", "head", "evals", "training", "warm_start"])
def test_a_damaged_config_has_an_identity(section, damage):
    config = {**small(), section: damage}
    assert identity.identity(identity.updated(config)) != identity.identity(small()) or (
        section == "warm_start"  # without a source it is no part of the identity
    )


@pytest.mark.usefixtures("programs_once")
def test_a_run_begun_with_a_config_of_an_earlier_version_goes_on_and_is_read(tmp_path):
    config = small(**{"predictive.points": "independent"})
    whole, begun = tmp_path / "whole", tmp_path / "begun"
    loop.train(config, str(whole))

    # The earlier version wrote the config as it was given, with digests of all that it stated.
    older = {name: value for name, value in config.items() if name != "warm_start"}
    older["predictive"] = {k: v for k, v in config["predictive"].items() if k != "chunk_size"}
    written = {**older, "data": {k: v for k, v in older["data"].items() if k != "label"}}
    begun.mkdir()
    files.write_json(begun / "config.json", written)
    record = json.loads((whole / "dataset.json").read_text())
    unstamped = {k: v for k, v in record.items() if k not in ("owner", "digest")}
    unstamped["config_digest"] = provenance.digest(identity.former_identity(written))
    files.write_json(begun / "dataset.json", provenance.stamped(unstamped, "its owner"))
    loop.train(config, str(begun))

    assert_same_bits(outcome(begun), outcome(whole))
    assert json.loads((begun / "config.json").read_text()) == files.plain(written)
    record = run_record.read(Path(begun))
    assert record.results["owner"] == "its owner"
    assert record.config["data"]["label"] == "label"

"""A run under changed code, versions or flags."""

import json
import logging
import os
import signal

import jax
import pytest
from small_runs import outcome, plain

from heteroscedastic.runs import loop, provenance, trace
from heteroscedastic.runs.provenance import ChangedError
from launch.command import SAVED


def config_of():
    return plain(**{"training.num_epochs": 2.0, "training.checkpoint_epochs": 1.0})


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run that SIGTERM cut off after an epoch and a step."""
    directory = tmp_path_factory.mktemp("begun") / "run"

    def terminated(self, step, state):
        if step == 17:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace.Trace, "before", terminated)
        with pytest.raises(SystemExit) as left:
            loop.train(config_of(), str(directory))
    assert left.value.code == SAVED
    return directory


def files_of(directory):
    return {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("jax_enable_x64", True),
        ("jax_default_prng_impl", "rbg"),
        ("jax_threefry_partitionable", False),
    ],
)
def test_a_run_does_not_continue_under_other_flags_and_nothing_is_touched(begun, flag, value):
    before, files_before = getattr(jax.config, flag), files_of(begun)
    jax.config.update(flag, value)
    try:
        with pytest.raises(ChangedError, match=rf"{flag} {before} -> {value}\. .*--allow_changed"):
            loop.train(config_of(), str(begun))
    finally:
        jax.config.update(flag, before)
    assert files_of(begun) == files_before


def test_a_run_resumes_under_other_flags_if_allowed_and_under_other_code_with_a_warning(
    begun, caplog, monkeypatch
):
    config = config_of()
    flag, before = "jax_default_matmul_precision", jax.config.jax_default_matmul_precision
    jax.config.update(flag, "float32")
    try:
        with caplog.at_level(logging.WARNING):
            first = loop.train(config, str(begun), allow_changed=True)
    finally:
        jax.config.update(flag, before)
    (warned,) = [r.getMessage() for r in caplog.records if "another environment" in r.getMessage()]
    assert f"{flag} None -> float32." in warned
    assert first["environment"]["flags"][flag] == "float32"
    assert json.loads((begun / "results.json").read_text())["environment"] == first["environment"]
    # The last checkpoint knows what the run was continued under.
    (begun / "results.json").unlink()
    with pytest.raises(ChangedError, match=rf"{flag} float32 -> None"):
        loop.train(config, str(begun))
    jax.config.update(flag, "float32")
    caplog.clear()
    try:
        with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
            patched.setattr(provenance, "_code", lambda: "0" * 64)
            patched.setattr(provenance, "_commit", lambda: "1" * 40)
            again = loop.train(config, str(begun))
    finally:
        jax.config.update(flag, before)
    (warned,) = [r.getMessage() for r in caplog.records if "another environment" in r.getMessage()]
    assert f"commit {first['commit']} -> {'1' * 40}" in warned
    assert f"code {first['environment']['code'][:12]} -> {'0' * 12}" in warned
    assert again["evals"] == first["evals"] == outcome(begun)[0]["evals"]


def test_a_checkpoint_that_does_not_say_passes_and_versions_are_warned_of(caplog):
    now = provenance.provenance()
    provenance.check_unchanged({}, now, False)
    environment = now["environment"]
    assert set(environment["versions"]) == {
        "heteroscedastic",
        "jax",
        "jaxlib",
        "flax",
        "optax",
        "python",
    }
    with caplog.at_level(logging.WARNING):
        provenance.check_unchanged(
            {"environment": environment, "commits": [now["commit"]]}, now, False
        )
    assert not caplog.records
    older = {
        **environment,
        "versions": {**environment["versions"], "jax": "0.8.0"},
        "flags": {"jax_no_more": 1},
    }
    with caplog.at_level(logging.WARNING):
        provenance.check_unchanged({"environment": older, "commits": [now["commit"]]}, now, False)
    assert (
        caplog.records[0]
        .getMessage()
        .endswith(f"(then -> now): jax 0.8.0 -> {environment['versions']['jax']}.")
    )


def test_the_digest_of_the_code_is_of_names_and_contents(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance.heteroscedastic, "__file__", str(tmp_path / "__init__.py"))
    digests = []
    for name, content in [
        ("a.py", "x = 1"),
        ("a.py", "x = 2"),
        ("b.py", "x = 2"),
        ("b.txt", "anything"),
    ]:
        if name == "b.py":
            (tmp_path / "a.py").unlink()
        (tmp_path / name).write_text(content)
        digests.append(provenance._code())
    assert len(set(digests)) == 3
    assert digests[3] == digests[2]


def test_commits_of_a_run_are_joined_and_without_git_there_are_none():
    assert provenance.joined_commits(["a1", "b2"]) == "a1 then b2"
    assert provenance.joined_commits([None, "b2"]) == "unknown then b2"
    assert provenance.joined_commits([None]) is None

"""Starts a run from the weights of another run, or of a file (`config.warm_start`).

    c.warm_start = dict(workdir="runs/upstream", checkpoint="last", head=False)
    c.warm_start = dict(weights="resnet50.npz")

Before the first step the backbone takes its parameters and batch statistics from there. A resumed
run keeps its own. The head is copied too if `head` is True; otherwise the seed initialises it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from heteroscedastic import files
from heteroscedastic.models import convert
from heteroscedastic.runs import provenance, run_record
from heteroscedastic.runs.checkpoint import CheckpointError, Checkpoints
from heteroscedastic.training.state import TrainState

_PARTS = ("backbone", "head")


class InitError(ValueError):
    """The source that config.warm_start names is missing, incomplete, or does not fit the model."""


class Source(NamedTuple):
    """Initial weights and a description of their source."""

    arrays: dict[
        str, np.ndarray
    ]  # by name, such as params/backbone/stem/kernel; of the parts that are taken
    told: dict[str, Any]  # where they come from, for results.json


def read(settings: Mapping[str, Any], template: TrainState) -> Source | None:
    """The source that config.warm_start names, or None; checks that it fits.

    Every host reads all of it.

    Args:
      settings: config.warm_start.
      template: shapes of the saved state of the new run.

    Raises:
      InitError: the source is missing, incomplete, damaged, or does not fit; names every leaf.
    """
    head = settings["head"]
    if settings["weights"] is not None:
        found, told = _of_file(files.as_path(settings["weights"]))
    elif settings["workdir"] is not None:
        found, told = _of_run(files.as_path(settings["workdir"]), settings["checkpoint"])
    else:
        return None
    parts = _PARTS if head else _PARTS[:1]
    arrays = {name: array for name, array in found.items() if name.split("/")[1] in parts}
    expected = {
        n: x.shape
        for n, x in _named(template.params, template.model_state).items()
        if n.split("/")[1] in parts
    }
    try:
        convert.check_fit(
            f"What config.warm_start names does not fit the model ({words(told)})", arrays, expected
        )
    except ValueError as error:
        where = (
            "give config.backbone"
            + (" and config.head" if head else "")
            + " the settings that it was made with"
        )
        rest = ", or start the head afresh with config.warm_start.head=False" if head else ""
        raise InitError(f"{error} To mend it, {where}{rest}.") from None
    digest = provenance.digest_of_arrays(arrays)
    return Source(arrays, told | {"head": head, "num_arrays": len(arrays), "digest": digest})


def applied(state: TrainState, arrays: Mapping[str, Any]) -> TrainState:
    """An initial state in which these arrays replace those of the same name; dtypes stay."""
    if not arrays:
        return state

    def replaced(name, own):
        return arrays[name].astype(own.dtype) if name in arrays else own

    own = _named(state.params, state.model_state)
    new = traverse_util.unflatten_dict(
        {name: replaced(name, x) for name, x in own.items()}, sep="/"
    )
    params = new.pop("params")
    return state._replace(
        params=params, model_state={name: new.get(name, {}) for name in state.model_state}
    )


def _named(params: Any, model_state: Any) -> dict[str, Any]:
    return traverse_util.flatten_dict({"params": params, **model_state}, sep="/")


def _of_run(workdir: files.Path, checkpoint: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    name = f"config.warm_start.workdir, {workdir}"
    if not workdir.is_dir():
        raise InitError(
            f"{name}, is no directory; name that of a finished run, from here or from the root."
        )
    if not (workdir / "results.json").exists():
        raise InitError(
            f"{name}, holds no complete run, as results.json is missing; train it to the end first:"
            f" python main.py --config=CONFIG --workdir={workdir}"
        )
    try:
        _check_inside(
            workdir, [workdir / f"{file}.json" for file in ("config", "results", "dataset")]
        )
        _, results, dataset = run_record.read(workdir)
        step = results["best_step" if checkpoint == "best" else "step"]
        fingerprint = dataset["fingerprint"]
    except (OSError, ValueError, KeyError) as error:
        told = (
            f"{error} is missing in dataset.json or results.json"
            if isinstance(error, KeyError)
            else error
        )
        raise InitError(f"{name}, is damaged ({told}); make it again.") from None
    if step is None:
        raise InitError(
            f"{name}, has no best checkpoint, as it had no validation; set"
            " config.warm_start.checkpoint='last'."
        )
    directory = workdir / "checkpoints"
    _check_inside(workdir, [directory, directory / str(step), *(directory / str(step)).rglob("*")])
    try:
        with Checkpoints(directory, results.get("owner"), read_only=True) as checkpoints:
            state = checkpoints.restore_arrays(step)
    except CheckpointError as error:
        raise InitError(f"{name}: {error}.") from error
    told = {
        "workdir": str(workdir),
        "checkpoint": checkpoint,
        "step": step,
        "fingerprint": fingerprint,
        "commit": results.get("commit"),
    }
    return _named(state.params, state.model_state), told


def _check_inside(workdir: files.Path, paths: Iterable[files.Path]) -> None:
    """Raises an InitError if a link leads out of the directory of the run."""
    root = files.resolved(workdir)
    for path in paths:
        if not files.in_bucket(path) and not path.resolve().is_relative_to(root):
            raise InitError(
                f"config.warm_start.workdir, {workdir}, has a link that leads out of it, {path} to"
                f" {path.resolve()}; name the"
                " run that holds the file itself, or put a copy in place of the link."
            )


def _of_file(path: files.Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    if not path.exists():
        raise InitError(
            f"config.warm_start.weights, {path}, is missing;"
            " python -m heteroscedastic.models.convert"
            " writes such a file from"
            " public weights."
        )
    try:
        arrays = files.read_arrays(path)
    except Exception as error:  # of zip, zlib or numpy, whichever comes upon the damage first
        raise InitError(
            f"config.warm_start.weights, {path}, is no readable .npz file ({error})."
        ) from None
    strange = sorted(
        name for name in arrays if name.count("/") < 2 or name.split("/")[1] not in _PARTS
    )
    if strange:
        raise InitError(
            f"config.warm_start.weights, {path}, has {', '.join(strange[:3])} where names such as"
            " params/backbone/stem/kernel"
            " are expected; python -m heteroscedastic.models.convert writes such a file from"
            " public weights."
        )
    return arrays, {"weights": str(path)}


def words(told: Mapping[str, Any]) -> str:
    """The name of a source for the log."""
    return told["weights"] if "weights" in told else f"{told['workdir']}, step {told['step']}"

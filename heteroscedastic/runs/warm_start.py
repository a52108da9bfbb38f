"""Starts a run from the weights of another run, or of a file (`config.warm_start`).

    c.warm_start = dict(workdir="runs/upstream", checkpoint="last", head=False)
    c.warm_start = dict(weights="resnet50.npz")
    c.warm_start = dict(weights="pretrained:EfficientNetLite0")  # see models/pretrained.py

The parameters and batch statistics of the backbone are copied before the first step. The head is
copied too if `head` is True, with all parts of a detector, which only the run of a detector has;
otherwise the seed initialises it. A run that resumes reads its own checkpoint instead.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from heteroscedastic import files
from heteroscedastic.models import convert, pretrained
from heteroscedastic.runs import provenance, run_record
from heteroscedastic.runs.checkpoint import CheckpointError, Checkpoints
from heteroscedastic.training.state import TrainState

_IN_FILES = ("backbone", "head")  # the parts of which a file may have weights
_CONVERT = "python -m heteroscedastic.models.convert writes such a file from public weights"


class InitError(ValueError):
    """The source that config.warm_start names is missing, incomplete, or does not fit the model."""


class Source(NamedTuple):
    """Initial weights and a description of their source."""

    # By name, such as params/backbone/stem/kernel; only those that are copied.
    arrays: dict[str, np.ndarray]
    description: dict[str, Any]  # for results.json


def read(settings: Mapping[str, Any], template: TrainState) -> Source | None:
    """Reads the source that config.warm_start names, on every host; None if it names none.

    Args:
      settings: config.warm_start.
      template: shapes of the saved state of the new run.

    Raises:
      InitError: the source is missing, incomplete, damaged, or does not fit the model; names every
        array that does not fit.
    """
    head = settings["head"]
    if settings["weights"] is not None:
        available, description = read_weights(settings["weights"])
    elif settings["workdir"] is not None:
        workdir, checkpoint = files.as_path(settings["workdir"]), settings["checkpoint"]
        available, description = _read_run(workdir, checkpoint)
    else:
        return None
    own = _named(template.params, template.model_state)
    # A detector has more parts than backbone and head.
    parts = {name.split("/")[1] for name in own} if head else {"backbone"}
    arrays = {name: array for name, array in available.items() if name.split("/")[1] in parts}
    expected = {n: x.shape for n, x in own.items() if n.split("/")[1] in parts}
    try:
        convert.check_fit(
            f"the source of config.warm_start, {source_name(description)}, does not fit the model",
            arrays,
            expected,
        )
    except ValueError as error:
        remedy = (
            "Give config.backbone and config.head the settings of the source, which is the run of a"
            " detector if this is one, or set"
            " config.warm_start.head=False, which initialises the head from the seed."
            if head
            else "Give config.backbone the settings of the source."
        )
        raise InitError(f"{error} {remedy}") from None
    digest = provenance.digest_of_arrays(arrays)
    description |= {"head": head, "num_arrays": len(arrays), "digest": digest}
    return Source(arrays, description)


def applied(state: TrainState, arrays: Mapping[str, Any]) -> TrainState:
    """An initial state in which these arrays replace those of the same name, cast to its dtypes."""
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


def _read_run(workdir: files.Path, checkpoint: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    name = f"config.warm_start.workdir, {workdir},"
    if not workdir.is_dir():
        raise InitError(
            f"{name} is not a directory; give the directory of a finished run, as an absolute path"
            " or relative to the current directory."
        )
    if not (workdir / "results.json").exists():
        raise InitError(
            f"{name} holds no complete run, as results.json is missing; finish its training first:"
            f" python main.py --config=CONFIG --workdir={workdir}"
        )
    try:
        if not files.in_bucket(workdir):
            _check_inside(
                workdir, [workdir / f"{file}.json" for file in ("config", "results", "dataset")]
            )
        _, results, dataset = run_record.read(workdir)
        step = results["best_step" if checkpoint == "best" else "step"]
        fingerprint = dataset["fingerprint"]
    except (OSError, ValueError, KeyError) as error:
        is_key = isinstance(error, KeyError)
        cause = f"{error} is missing in dataset.json or results.json" if is_key else error
        raise InitError(f"{name} is damaged ({cause}); repeat that run.") from None
    if step is None:
        raise InitError(
            f"{name} has no best checkpoint, as it had no validation; set"
            " config.warm_start.checkpoint='last'."
        )
    directory = workdir / "checkpoints"
    if not files.in_bucket(workdir):
        saved = directory / str(step)
        _check_inside(workdir, [directory, saved, *saved.rglob("*")])
    try:
        with Checkpoints(directory, results.get("owner"), read_only=True) as checkpoints:
            state = checkpoints.restore_arrays(step)
    except CheckpointError as error:
        raise InitError(f"{name} has an unreadable checkpoint: {error}.") from error
    description = {
        "workdir": str(workdir),
        "checkpoint": checkpoint,
        "step": step,
        "fingerprint": fingerprint,
        "commit": results.get("commit"),
    }
    return _named(state.params, state.model_state), description


def _check_inside(workdir: files.Path, paths: Iterable[files.Path]) -> None:
    """Raises an InitError if a link points outside the directory of the run."""
    root = files.resolved(workdir)
    for path in paths:
        if not path.resolve().is_relative_to(root):
            raise InitError(
                f"config.warm_start.workdir, {workdir}, has a link that points outside it, {path}"
                f" to {path.resolve()}; give the directory of the run that holds the file itself,"
                " or replace the link with a copy."
            )


def read_weights(name: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The weights of a file, or the public weights of "pretrained:BACKBONE"; and their source.

    Raises:
      InitError: they are missing or damaged.
    """
    name = os.fspath(name)
    if not name.startswith(pretrained.PREFIX):
        return _read_file(files.as_path(name))
    try:
        arrays = pretrained.weights(name.removeprefix(pretrained.PREFIX))
    except (ValueError, ModuleNotFoundError) as error:
        raise InitError(f"config.warm_start.weights, {name}: {error}") from None
    return arrays, {"weights": name}


def _read_file(path: files.Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    if not path.exists():
        raise InitError(f"config.warm_start.weights, {path}, is missing; {_CONVERT}.")
    try:
        arrays = files.read_arrays(path)
    except Exception as error:  # zip, zlib or numpy, whichever meets the damage first
        raise InitError(
            f"config.warm_start.weights, {path}, is not a readable .npz file ({error}); {_CONVERT}."
        ) from None
    unknown = sorted(
        name for name in arrays if name.count("/") < 2 or name.split("/")[1] not in _IN_FILES
    )
    if unknown:
        raise InitError(
            f"config.warm_start.weights, {path}, has arrays named {', '.join(unknown[:3])}, but"
            f" their names must be like params/backbone/stem/kernel; {_CONVERT}."
        )
    return arrays, {"weights": str(path)}


def source_name(description: Mapping[str, Any]) -> str:
    """The name of a source in logs and errors."""
    if "weights" in description:
        return description["weights"]
    return f"{description['workdir']}, step {description['step']}"

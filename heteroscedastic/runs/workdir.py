"""The files of a run: claimed by its config, written whole, read by whoever comes after."""

import contextlib
import fcntl
import importlib.util
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from heteroscedastic import files
from heteroscedastic.distributed import hosts
from heteroscedastic.runs import checkpoint, provenance, run_record, schema
from heteroscedastic.runs.run_record import WorkdirError

_REWRITTEN = "remove it, and the same command writes it again"
_MOST_DIFFERENCES = 5  # in an error


_WRITTEN = ("config.json", "dataset.json", "metrics.jsonl", "results.json")


@contextlib.contextmanager
def claimed(workdir: files.Path, config: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    """The directory is this run's own, and no other process's, while the context lasts.

    Yields:
      The results, if the directory holds this very run and it is complete; else None.

    Raises:
      WorkdirError: the directory holds a run of another config, or no run but other files, or
        another process is at work on it, or a file of the run is damaged.
    """
    with contextlib.ExitStack() as stack:

        def claim():
            _check_ours(workdir, config)
            if (workdir / "results.json").exists():
                run_record.read_object(workdir / "results.json", ("evals",), _REWRITTEN)
                found = run_record.read(workdir)
                _restore_metrics(workdir, found.results)
                return found.results
            stack.enter_context(_locked(workdir))
            for name in _WRITTEN:
                files.sweep(workdir, name)
            files.sweep(workdir / "predictions", "*.npz")
            _check_ours(workdir, config)  # again, now that nobody else can change it
            path = workdir / "config.json"
            if not path.exists() or files.read_json(path) != files.plain(
                config
            ):  # by what is no part of its identity
                files.write_json(path, config)
            return None

        yield hosts.from_first(claim)


def _check_ours(workdir: files.Path, config: dict[str, Any]) -> None:
    path = workdir / "config.json"
    if path.exists():
        config = files.plain(config)
        remedy = f"bring it back, or remove {workdir} to begin again"
        found = files.plain(run_record.read_object(path, ("head",), remedy))
        if identity(found) != identity(config):
            lines = difference(found, config)
            more = (
                f"; and {len(lines) - _MOST_DIFFERENCES} more"
                if len(lines) > _MOST_DIFFERENCES
                else ""
            )
            raise WorkdirError(
                f"{workdir} holds a run of another config; give another --workdir or remove it."
                " The difference"
                f" (config.json -> yours): {'; '.join(lines[:_MOST_DIFFERENCES])}{more}"
            )
    elif workdir.exists() and not workdir.is_dir():
        raise WorkdirError(f"{workdir} is a file; give the directory of a run as --workdir.")
    elif workdir.exists() and any(not p.name.startswith(".") for p in workdir.iterdir()):
        raise WorkdirError(
            f"{workdir} holds files but no config.json, so no run; give another --workdir."
        )


def identity(config: dict[str, Any]) -> Any:
    """What makes a run the run that it is; the config itself where a damaged section leaves no more
    of it.
    """
    is_whole = all(isinstance(config.get(section, {}), dict) for section in ("training", "data"))
    return schema.identity(config) if is_whole else config


@contextlib.contextmanager
def _locked(workdir: files.Path) -> Iterator[None]:
    """Held by one process at a time; let go when it ends, however it ends. In a bucket there are no
    locks.
    """
    if files.in_bucket(workdir):
        yield
        return
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WorkdirError(
                f"another process is at work on {workdir}; wait for it or stop it, or give another"
                " --workdir."
            ) from None
        except OSError:  # a file system without locks
            pass
        yield


def claim_data(workdir: files.Path, config: dict[str, Any], description: dict[str, Any]) -> str:
    """Records the data of a run, with what they and the config are called together: the owner of
    its files.

    A run that an earlier version began keeps its owner, by which its checkpoints are known.

    Returns:
      The owner.

    Raises:
      WorkdirError: the run was begun on other data, or the record is damaged or belongs to another
        run.
    """
    path = workdir / "dataset.json"
    config_digest = provenance.digest(schema.identity(config))
    if path.exists():
        found = run_record.read_object(path, ("fingerprint",), _REWRITTEN)
        run_record.check_dataset(path, found)
        if provenance.data_key(found) != provenance.data_key(description):
            names = (
                ""
                if found.get("class_names") == description.get("class_names")
                else ", with other class names"
            )
            raise WorkdirError(
                f"{workdir} was begun on other data ({path.name}: {found.get('num_examples')},"
                " fingerprint"
                f" {found['fingerprint'][:12]}{names}; now {description['num_examples']},"
                f" {description['fingerprint'][:12]}); give another --workdir or the old data."
            )
        if found.get("config_digest", config_digest) != config_digest:
            raise WorkdirError(f"{path} belongs to a run of another config; {_REWRITTEN}.")
        if "owner" in found:
            return found["owner"]
        logging.warning(
            "%s was begun by an earlier version; whether its files belong together is not known.",
            workdir,
        )
    else:
        found = _as_begun(workdir, config, description)
    owner = provenance.owner(config, found["fingerprint"])
    files.write_json(path, provenance.stamped({**found, "config_digest": config_digest}, owner))
    return owner


def _as_begun(
    workdir: files.Path, config: dict[str, Any], description: dict[str, Any]
) -> dict[str, Any]:
    """The description, in the form of earlier versions where the checkpoints are those of one."""
    former = {name: value for name, value in description.items() if name != "examples_fingerprint"}
    former["fingerprint"] = description.get("examples_fingerprint", description["fingerprint"])
    is_former = provenance.owner(config, former["fingerprint"]) in checkpoint.owners(
        workdir / "checkpoints"
    )
    return former if is_former else description


def check_present(workdir: files.Path) -> None:
    """Raises a WorkdirError where the directory is no more what was claimed, before anything is
    written there.
    """
    if files.in_bucket(workdir):  # which has no directories that could be removed or renamed
        return
    if not (workdir / "config.json").exists():
        raise WorkdirError(checkpoint.removed(workdir))


def write_predictions(
    workdir: files.Path, name: str, arrays: dict[str, np.ndarray], owner: str
) -> None:
    """Writes the predictions of an evaluation, with the owner of the run."""
    check_present(workdir)
    files.write_arrays(
        workdir / "predictions" / f"{name}.npz", provenance.stamped_arrays(name, arrays, owner)
    )


def write_results(workdir: files.Path, results: dict[str, Any]) -> None:
    """Writes results.json, which makes a run complete."""
    check_present(workdir)
    files.write_json(workdir / "results.json", results)


def difference(theirs: Any, ours: Any, at: str = "config") -> list[str]:
    """Where two trees of JSON values differ."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted(set(theirs) | set(ours))
        absent = "(absent)"
        return [
            line
            for k in keys
            for line in difference(theirs.get(k, absent), ours.get(k, absent), f"{at}.{k}")
        ]
    return [] if theirs == ours else [f"{at}: {json.dumps(theirs)} -> {json.dumps(ours)}"]


class Writer:
    """Metrics by step: a JSON line each, and TensorBoard events where TensorFlow is installed.

    Of several hosts the first one writes.
    """

    def __init__(self, workdir: files.Path, step: int, saved: Sequence[str] | None = None):
        """Drops the lines after `step`, which a continued run writes again (events it only adds).

        Args:
          workdir: of the run.
          step: that it continues from.
          saved: the lines up to there as the checkpoint has them; they replace damaged and missing
            ones. None is a checkpoint of an earlier version, and what is damaged is dropped.
        """
        self._events = None
        self._workdir, self._path = workdir, workdir / "metrics.jsonl"
        self.lines: list[str] = list(saved or ())
        if not hosts.is_first():
            return
        if self._path.is_dir():
            raise WorkdirError(
                f"{self._path} is a directory; remove it, and the same command writes the file"
                " again."
            )
        if self._path.exists() or self.lines:
            self.lines = _repaired(self._path, step, saved)
            self._save()
        # clu.metric_writers imports TensorFlow, and tensorboard, which may come without each other.
        if all(map(importlib.util.find_spec, ("tensorflow", "tensorboard"))):
            import tensorflow as tf
            from clu import metric_writers

            tf.config.set_visible_devices([], "GPU")  # they are JAX's
            self._events = metric_writers.SummaryWriter(str(workdir))

    def write(self, step: int, values: dict[str, float]) -> None:
        """Adds a line, on disk when this returns, so before the checkpoint that follows it."""
        self.lines.append(json.dumps({"step": step, **values}) + "\n")
        if not hosts.is_first():
            return
        self._save()
        if self._events:
            self._events.write_scalars(step, values)
            self._events.flush()

    def digest(self) -> str:
        """Digest of all lines."""
        return provenance.digest([json.loads(line) for line in self.lines])

    def _save(self) -> None:
        check_present(self._workdir)
        _write_lines(self._path, self.lines)


def _write_lines(path: files.Path, lines: Sequence[str]) -> None:
    # All of them, as nothing can be added to a file in a bucket.
    files.write_atomically(path, lambda file: file.writelines(line.encode() for line in lines))


def _repaired(path: files.Path, step: int, saved: Sequence[str] | None) -> list[str]:
    """The lines up to a step, one of each step, rising; reports in one log line what was not so."""
    lines, damaged = _lines_by_step(path)
    lines = [(number, line) for number, line in lines if number <= step]
    found = [line for _, line in lines]
    whole = [line for _, line in sorted(dict(lines).items())] if saved is None else list(saved)
    faults = {
        "damaged": damaged,
        "missing": len(set(whole) - set(found)),
        "of no step that the run wrote": len(set(found) - set(whole)),
        "out of order or twice": sum(a[0] >= b[0] for a, b in itertools.pairwise(lines)),
    }
    if any(faults.values()):
        told = ", ".join(f"{number} {kind}" for kind, number in faults.items() if number)
        remedy = "they were left out" if saved is None else "they were restored from the checkpoint"
        logging.warning(
            "%s had lines that were not as the run wrote them (%s); %s.", path, told, remedy
        )
    return whole


def _restore_metrics(workdir: files.Path, results: dict[str, Any]) -> None:
    """Writes metrics.jsonl of a complete run again where its lines are not those that the run
    wrote.
    """
    if "metrics_digest" not in results:
        return
    try:
        run_record.metrics(workdir)
        return
    except (OSError, WorkdirError) as error:
        fault = error
    path = workdir / "metrics.jsonl"
    saved = checkpoint.saved_lines(workdir / "checkpoints", results["step"])
    whole = dict(_lines_by_step(path)[0]) | {json.loads(line)["step"]: line for line in saved}
    lines = [line for _, line in sorted(whole.items())]
    if provenance.digest([json.loads(line) for line in lines]) != results["metrics_digest"]:
        logging.warning(
            "%s cannot be restored, as the last checkpoint lacks what is lost: %s", path, fault
        )
        return
    with _locked(workdir):
        _write_lines(path, lines)
    logging.warning(
        "%s was not as the run wrote it, and is restored from the last checkpoint.", path
    )


def _lines_by_step(path: files.Path) -> tuple[list[tuple[int, str]], int]:
    """Step and text of every whole line, and how many are damaged; a last one cut off by a kill is
    not counted.
    """
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError:
        return [], 0
    whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    parsed = [(run_record.parsed_line(line), line) for line in whole]
    found = [(values["step"], line) for values, line in parsed if values]
    return found, len(parsed) - len(found)

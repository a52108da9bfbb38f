"""The directory of a run: claimed by its config, with files that are complete or absent."""

import contextlib
import fcntl
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging

from heteroscedastic import files
from heteroscedastic.distributed import hosts
from heteroscedastic.runs import checkpoint, events, identity, provenance, run_record
from heteroscedastic.runs.run_record import WorkdirError

_REMEDY = "remove it, and the same command writes it again"
_MAX_DIFFERENCES = 5  # in an error
_FILES = ("config.json", "dataset.json", "metrics.jsonl", "epochs.jsonl", "results.json")


@contextlib.contextmanager
def claimed(workdir: files.Path, config: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    """A context in which the directory belongs to this run and to no other process.

    Yields:
      The results, if the directory holds this run and it is complete; else None.

    Raises:
      WorkdirError: the directory holds a run of another config, or other files but no run, or
        another process uses it, or a file of the run is damaged; or its path has a bracket or a
        backslash.
    """
    with contextlib.ExitStack() as stack:

        def complete(is_locked):
            _check_same_run(workdir, config)
            if not (workdir / "results.json").exists():
                return None
            run_record.read_object(workdir / "results.json", ("evals",), _REMEDY)
            record = run_record.read(workdir)
            _restore_metrics(workdir, record.results, is_locked)
            return record.results

        def claim():
            if results := complete(is_locked=False):
                return results
            _check_path(workdir)
            stack.enter_context(_locked(workdir))
            # Another process may have finished the run since.
            if results := complete(is_locked=True):
                return results
            for name in _FILES:
                files.sweep(workdir, name)
            for folder in ("predictions", "scores"):
                files.sweep(workdir / folder, "*")
            _write_config(workdir / "config.json", config)
            return None

        yield hosts.from_first(claim)


def _write_config(path: files.Path, config: dict[str, Any]) -> None:
    """Writes the config, which may differ in settings that do not identify the run.

    A config that an earlier version wrote stays, as its digest is in the other files.
    """
    if path.exists():
        saved = files.read_json(path)
        if saved == files.plain(config) or _former_digest(saved) != _former_digest(config):
            return
    files.write_json(path, config)


def _former_digest(config: dict[str, Any]) -> str:
    return provenance.digest(identity.former_identity(config))


def _check_path(workdir: files.Path) -> None:
    """Raises a WorkdirError if Orbax would not find the checkpoints again, as it globs the path."""
    path = str(files.absolute(workdir))
    if found := [c for c in "[]\\" if c in path]:
        raise WorkdirError(
            f"{path} has {' and '.join(found)}, with which its checkpoints cannot be read; give"
            " another --workdir."
        )


def _check_same_run(workdir: files.Path, config: dict[str, Any]) -> None:
    """Raises a WorkdirError if the directory holds another run, or files that are not a run."""
    path = workdir / "config.json"
    if path.exists():
        config = files.plain(config)
        remedy = f"restore it, or remove {workdir} to start the run again"
        saved = identity.updated(files.plain(run_record.read_object(path, ("head",), remedy)))
        if identity.identity(saved) != identity.identity(config):
            lines = difference(*map(identity.without_layout, (saved, config)))
            num_more = len(lines) - _MAX_DIFFERENCES
            more = f"; and {num_more} more" if num_more > 0 else ""
            raise WorkdirError(
                f"{workdir} holds a run of another config; give another --workdir or remove it."
                " The difference (config.json -> yours):"
                f" {'; '.join(lines[:_MAX_DIFFERENCES])}{more}"
            )
    elif workdir.exists() and not workdir.is_dir():
        raise WorkdirError(f"{workdir} is a file; give the directory of a run as --workdir.")
    elif workdir.exists() and any(not p.name.startswith(".") for p in workdir.iterdir()):
        raise WorkdirError(
            f"{workdir} holds files but no config.json, so it holds no run; give another --workdir."
        )


@contextlib.contextmanager
def _locked(workdir: files.Path) -> Iterator[None]:
    """A lock that one process holds at a time, until it ends. Buckets have no locks."""
    if files.in_bucket(workdir):
        yield
        return
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WorkdirError(
                f"another process is using {workdir}; wait for it or stop it, or give another"
                " --workdir."
            ) from None
        except OSError:  # the file system has no locks
            pass
        yield


def claim_data(workdir: files.Path, description: dict[str, Any]) -> str:
    """Records the data of a run and its owner, a digest of config and data.

    For a run that an earlier version began, this is the owner that its checkpoints name.

    Returns:
      The owner.

    Raises:
      WorkdirError: the run began with other data or another table, or dataset.json is damaged or
        belongs to another run.
    """
    path = workdir / "dataset.json"
    config = files.read_json(workdir / "config.json")  # in the form that the run began with
    config_digest = provenance.digest(identity.identity(config))
    if path.exists():
        record = run_record.read_object(path, ("fingerprint",), _REMEDY)
        run_record.check_dataset(path, record)
        if provenance.data_key(record) != provenance.data_key(description):
            same_names = record.get("class_names") == description.get("class_names")
            names = "" if same_names else ", other class names"
            is_text = "num_source_words" in description
            raise WorkdirError(
                f"{workdir} began with other data ({path.name}: {record.get('num_examples')},"
                f" fingerprint {record['fingerprint'][:12]}{names}; now"
                f" {description['num_examples']}, fingerprint {description['fingerprint'][:12]});"
                " give another --workdir, or set --data_dir to the directory of the former data"
                f"{' (and install its versions of sacremoses and subword-nmt)' * is_text}."
            )
        table = description.get("class_table")
        if record.get("class_table", table) != table:
            raise WorkdirError(
                f"{workdir} began with another table of config.smoothing (digest in {path.name}:"
                f" {record['class_table'][:12]}, now {str(table)[:12]});"
                " restore the file, or give another --workdir."
            )
        digests = (config_digest, _former_digest(config))
        if record.get("config_digest", config_digest) not in digests:
            raise WorkdirError(f"{path} belongs to a run of another config; {_REMEDY}.")
        if "owner" in record:
            return record["owner"]
        logging.warning(
            "%s began with an earlier version; whether its files belong together is not checked.",
            workdir,
        )
    else:
        record = _first_record(workdir, config, description)
    owner = provenance.owner(config, record["fingerprint"], record.get("class_table"))
    files.write_json(path, provenance.stamped({**record, "config_digest": config_digest}, owner))
    return owner


def _first_record(
    workdir: files.Path, config: dict[str, Any], description: dict[str, Any]
) -> dict[str, Any]:
    """The description, with an earlier version's fingerprint if it saved the checkpoints."""
    former = {name: value for name, value in description.items() if name != "examples_fingerprint"}
    former["fingerprint"] = description.get("examples_fingerprint", description["fingerprint"])
    former_owner = provenance.owner(config, former["fingerprint"], former.get("class_table"))
    is_former = former_owner in checkpoint.owners(workdir / "checkpoints")
    return former if is_former else description


def check_present(workdir: files.Path) -> None:
    """Raises a WorkdirError if the directory was removed or renamed after it was claimed."""
    if files.in_bucket(workdir):  # a bucket has no directories
        return
    if not (workdir / "config.json").exists():
        raise WorkdirError(checkpoint.removal_message(workdir))


def write_predictions(
    workdir: files.Path,
    name: str,
    arrays: dict[str, np.ndarray],
    owner: str,
    document: Any = None,
) -> None:
    """Writes the predictions of an evaluation, stamped with the owner of the run.

    A document, if there is one, is the same predictions in a format of other programs, as JSON.
    """
    check_present(workdir)
    if document is not None:
        files.write_json(workdir / "predictions" / f"{name}.json", document)
    files.write_arrays(
        workdir / "predictions" / f"{name}.npz", provenance.stamped_arrays(name, arrays, owner)
    )


def write_sentences(workdir: files.Path, name: str, sentences: Sequence[str]) -> None:
    """Writes predictions/NAME.txt: one translation per line, in the order of the data."""
    check_present(workdir)
    content = "".join(f"{sentence}\n" for sentence in sentences).encode()
    path = workdir / "predictions" / f"{name}.txt"
    files.write_atomically(path, lambda file: file.write(content))


def write_results(workdir: files.Path, results: dict[str, Any]) -> None:
    """Writes results.json, which marks a run as complete."""
    check_present(workdir)
    files.write_json(workdir / "results.json", results)


def difference(theirs: Any, ours: Any, prefix: str = "config") -> list[str]:
    """One line for each difference between two JSON values; starts with the name of the setting."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted(set(theirs) | set(ours))
        absent = "(absent)"
        return [
            line
            for k in keys
            for line in difference(theirs.get(k, absent), ours.get(k, absent), f"{prefix}.{k}")
        ]
    return [] if theirs == ours else [f"{prefix}: {json.dumps(theirs)} -> {json.dumps(ours)}"]


class Writer:
    """Writes metrics by step: JSON lines, and TensorBoard events if TensorBoard is installed.

    Only the first host writes.
    """

    def __init__(self, workdir: files.Path, step: int, saved: Sequence[str] | None = None):
        """Removes the lines after `step`, which a resumed run writes again, but no events.

        Args:
          workdir: directory of the run.
          step: step from which the run resumes.
          saved: lines up to that step in the checkpoint, which replace the lines of the file. None
            for a checkpoint of an earlier version; damaged lines of the file are then removed.
        """
        self._events: events.EventFile | None = None
        self._workdir, self._path = workdir, workdir / "metrics.jsonl"
        self.lines: list[str] = list(saved or ())
        if not hosts.is_first():
            return
        if self._path.is_dir():
            raise WorkdirError(f"{self._path} is a directory, but must be a file; {_REMEDY}.")
        if self._path.exists() or self.lines:
            self.lines = _repaired(self._path, step, saved)
            check_present(self._workdir)
            _write_lines(self._path, self.lines)
        if events.can_be_written():
            self._events = events.EventFile(workdir)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Adds a line; it is on disk when this returns, and so before the next checkpoint."""
        line = json.dumps({"step": step, **values}) + "\n"
        self.lines.append(line)
        if not hosts.is_first():
            return
        check_present(self._workdir)
        if files.in_bucket(self._path):
            _write_lines(self._path, self.lines)
        else:  # a line that is incomplete because of a kill is removed at the next start
            files.append(self._path, line.encode())
        if self._events:
            self._events.write(step, values)

    def digest(self) -> str:
        """Digest of all lines."""
        return provenance.digest([json.loads(line) for line in self.lines])


def _write_lines(path: files.Path, lines: Sequence[str]) -> None:
    # Writes all lines, as a file in a bucket cannot be appended to.
    files.write_atomically(path, lambda file: file.writelines(line.encode() for line in lines))


def _repaired(path: files.Path, step: int, saved: Sequence[str] | None) -> list[str]:
    """The lines up to a step, one per step, in order; logs a warning if the file differs."""
    lines, damaged = _lines_by_step(path)
    lines = [(number, line) for number, line in lines if number <= step]
    read = [line for _, line in lines]
    repaired = [line for _, line in sorted(dict(lines).items())] if saved is None else list(saved)
    faults = {
        "damaged": damaged,
        "missing": len(set(repaired) - set(read)),
        "not written by the run": len(set(read) - set(repaired)),
        "out of order or repeated": sum(a[0] >= b[0] for a, b in itertools.pairwise(lines)),
    }
    if any(faults.values()):
        counts = ", ".join(f"{number} {kind}" for kind, number in faults.items() if number)
        repair = "removed them" if saved is None else "restored the lines from the checkpoint"
        logging.warning("%s differed from what the run wrote (%s lines); %s.", path, counts, repair)
    return repaired


def _restore_metrics(workdir: files.Path, results: dict[str, Any], is_locked: bool) -> None:
    """Restores metrics.jsonl of a complete run if its lines were changed.

    Args:
      workdir: of the run.
      results: of results.json.
      is_locked: whether this process holds the lock of the directory.
    """
    if "metrics_digest" not in results:
        return
    try:
        run_record.metrics(workdir)
        return
    except (OSError, WorkdirError) as error:
        cause = error
    path = workdir / "metrics.jsonl"
    saved = checkpoint.saved_lines(workdir / "checkpoints", results["step"])
    by_step = dict(_lines_by_step(path)[0]) | {json.loads(line)["step"]: line for line in saved}
    merged = [line for _, line in sorted(by_step.items())]  # if the last save was left out
    for lines in (saved, merged):
        if provenance.digest([json.loads(line) for line in lines]) == results["metrics_digest"]:
            break
    else:
        logging.warning(
            "%s cannot be restored, as the last checkpoint lacks the lost lines: %s", path, cause
        )
        return
    with contextlib.nullcontext() if is_locked else _locked(workdir):
        _write_lines(path, lines)
    logging.warning(
        "%s differed from what the run wrote, and is restored from the last checkpoint.", path
    )


def _lines_by_step(path: files.Path) -> tuple[list[tuple[int, str]], int]:
    """Step and text of each line, and the number of damaged lines.

    An incomplete last line, which a kill may leave, is ignored.
    """
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError:
        return [], 0
    complete = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    parsed = [(run_record.parsed_line(line), line) for line in complete]
    valid = [(values["step"], line) for values, line in parsed if values]
    return valid, len(parsed) - len(valid)

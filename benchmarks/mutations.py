"""Random changes to the files of a run: python -m benchmarks.mutations --out=DIR --seed=0 --num=100

Trains a small complete run and an interrupted one, then changes one file of a copy at a time: the
file is deleted, truncated, has flipped bits or edited values, or comes from a run with another
seed. The complete run is read as by analysis, and the interrupted one is resumed. Each mutation
must give the results of the unchanged run, bit for bit, or a one-line error that names the file.
Prints a table by kind of mutation, and every mutation with another result.
"""

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import study
from heteroscedastic import files
from heteroscedastic.analysis.report import build, comparison, curves_section, measured
from heteroscedastic.analysis.uncertainty import calibration
from heteroscedastic.runs import loaded_run, loop, predictions, provenance
from heteroscedastic.runs.checkpoint import CheckpointError

_SETTINGS = {
    "backbone.widths": (4, 4),
    "predictive.num_samples": 4,
    "training.batch_size": 200,
    "training.num_epochs": 4.0,
    "training.checkpoint_epochs": 1.0,
}
_VALUES = (
    None,
    float("nan"),
    float("inf"),
    -1,
    3,
    0,
    10**12,
    0.5,
    "text",
    "../../x",
    True,
    [],
    {},
    [1, "a"],
    {"a": 1},
)
_JSON = ("config.json", "dataset.json", "results.json", "told/metadata")
_ERRORS = (OSError, ValueError, CheckpointError)


class Runs(NamedTuple):
    """Unchanged runs; mutations are applied to copies."""

    config: dict[str, Any]
    complete: Path
    interrupted: Path
    other: Path  # a complete run with another seed


class Outcome(NamedTuple):
    """The outcome of a mutation."""

    kind: str
    change: str
    result: str  # "identical", "one line", or a description of the failure


def make_runs(directory: Path) -> Runs:
    """Trains the runs."""
    config = study.config("digits_het_pe", _SETTINGS)
    runs = Runs(config, *(directory / name for name in ("complete", "interrupted", "other")))
    loop.train(config, str(runs.complete))
    loop.train(config | {"seed": 1}, str(runs.other))
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(_Terminating("epoch 2.0")):
        loop.train(config, str(runs.interrupted))
    return runs


class _Terminating(io.StringIO):
    """Standard output that sends SIGTERM to this process once a text is printed."""

    def __init__(self, text: str):
        super().__init__()
        self._text = text

    def write(self, text: str) -> int:
        if self._text in text:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().write(text)


def analysis_digest(directory: Path, with_report: bool = True) -> str:
    """A digest of the results, states, predictions and metrics that analysis reads from a run.

    Args:
      directory: of a complete run.
      with_report: also builds the report, which takes a few seconds; the digest does not include
        it.
    """
    contents: dict[str, Any] = {"results": loaded_run.read(directory).results}
    for checkpoint in ("last", "best"):
        state = loaded_run.load(directory, checkpoint).state
        arrays = {
            jax.tree_util.keystr(path): np.asarray(x)
            for path, x in jax.tree_util.tree_leaves_with_path(state)
        }
        contents[checkpoint] = provenance.digest_of_arrays(arrays)
    for name in ("valid", "test"):
        arrays = predictions.read(directory, name)._replace(source=None)._asdict()
        arrays |= arrays.pop("extras")
        contents[name] = provenance.digest_of_arrays(
            {k: x for k, x in arrays.items() if x is not None}
        )
    contents["calibration"] = calibration.temperature_scaling(directory, "valid", "test")
    contents["curves"] = curves_section.read_metrics(directory)
    if with_report:
        run_set = comparison.load(comparison.groups([directory]))
        measured.measured(run_set)
        build.sections(run_set)
    return provenance.digest(contents)


def resume_digest(config: dict[str, Any], directory: Path) -> str:
    """Resumes a run; returns a digest of its metrics and predictions."""
    evals = loop.train(config, str(directory))["evals"]
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    arrays = {
        p.name: provenance.digest_of_arrays(files.read_arrays(p))
        for p in (directory / "predictions").iterdir()
    }
    return provenance.digest([evals, lines, arrays])


# A mutation changes a run and returns the changed path and a description.
Mutation = Callable[[random.Random, Path, Path], tuple[Path, str]]


def _file(draw: random.Random, run: Path, *patterns: str) -> Path:
    """A random file of the run; in 6 of 10 cases one that is not part of a checkpoint."""
    paths = sorted(
        p for p in run.rglob("*") if p.is_file() and p.name != ".lock" and "tfevents" not in p.name
    )
    if patterns:
        return draw.choice([p for p in paths if str(p).endswith(patterns)])
    small = [p for p in paths if "checkpoints" not in p.parts]
    return draw.choice(small if draw.random() < 0.6 else sorted(set(paths) - set(small)))


def delete(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    path = _file(draw, run)
    path.unlink()
    return path, "deleted"


def cut(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    path = _file(draw, run)
    size = draw.randrange(max(1, path.stat().st_size))
    os.truncate(path, size)
    return path, f"cut to {size} bytes"


def flip(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    path = _file(draw, run)
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 8)) if data else 0):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(bytes(data))
    return path, "bits flipped"


def swap_file(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    both = [
        p for p in (_file(draw, run) for _ in range(100)) if (other / p.relative_to(run)).is_file()
    ]
    path = both[0] if both else run / "dataset.json"
    shutil.copyfile(other / path.relative_to(run), path)
    return path, "taken from another seed"


def swap_directory(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    path = draw.choice([p for p in (run / "checkpoints", run / "predictions") if p.exists()])
    shutil.rmtree(path)
    shutil.copytree(other / path.name, path)
    return path, "taken from another seed"


def swap_evaluations(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    paths = sorted((run / "predictions").glob("*.npz"))
    if not paths:
        return swap_file(draw, run, other)
    one, two = draw.sample(paths, 2)
    shutil.copyfile(one, two)
    return two, f"a copy of {one.name}"


def _edited(
    draw: random.Random, run: Path, edit: Callable[[random.Random, Any, Any], str]
) -> tuple[Path, str]:
    """Edits a random value of a JSON file, or of a line of metrics.jsonl."""
    path = _file(draw, run, *_JSON, "metrics.jsonl")
    is_lines = path.suffix == ".jsonl"
    lines = (
        [json.loads(x) for x in path.read_text().splitlines()]
        if is_lines
        else [json.loads(path.read_text())]
    )
    node, keys = draw.choice(lines), []
    while True:
        key = draw.choice(sorted(node) if isinstance(node, dict) else range(len(node)))
        keys.append(str(key))
        below = node[key]
        if not isinstance(below, dict | list) or not below or draw.random() < 0.2:
            break
        node = below
    description = edit(draw, node, key)
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return path, f"{'.'.join(keys)} {description}"


def edit_value(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    def edit(draw, node, key):
        old = node[key]
        new = draw.choice(
            [*_VALUES, str(old), [old]]
            + ([old + 1, -old, 2 * old] if type(old) in (int, float) else [])
        )
        node[key] = new
        return f"{old!r:.40} -> {new!r:.40}"

    return _edited(draw, run, edit)


def remove_key(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    def edit(draw, node, key):
        del node[key]
        return "removed"

    return _edited(draw, run, edit)


def rename_key(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    def edit(draw, node, key):
        if isinstance(node, list):
            node.append(node[key])
            return "twice"
        node[f"{key}_"] = node.pop(key)
        return "renamed"

    return _edited(draw, run, edit)


def move_lines(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    i = draw.randrange(len(lines))
    how = draw.choice(("twice", "reversed", "removed", "torn", "text as step"))
    changed = {
        "twice": [*lines, lines[i]],
        "reversed": lines[::-1],
        "removed": lines[:i] + lines[i + 1 :],
        "torn": [*lines[:i], lines[i][:20] + "\n", *lines[i + 1 :]],
        "text as step": [
            *lines[:i],
            lines[i].replace('"step": ', '"step": "x", "was": '),
            *lines[i + 1 :],
        ],
    }[how]
    path.write_text("".join(changed))
    return path, f"line {i + 1} of {len(lines)} {how}"


def edit_arrays(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    paths = sorted((run / "predictions").glob("*.npz"))
    if not paths:
        return move_lines(draw, run, other)
    path = draw.choice(paths)
    arrays = files.read_arrays(path)
    name = draw.choice(sorted(set(arrays) - {"owner", "digest"}))
    array = arrays[name]
    how = draw.choice(
        (
            "fewer rows",
            "no rows",
            "text",
            "nan",
            "-5",
            "99",
            "twice",
            "removed",
            "added",
            "rows swapped",
        )
    )
    number = array.astype(float if how == "nan" else array.dtype)
    if how in ("nan", "-5", "99"):
        number[draw.randrange(len(number))] = float(how)
    first = np.concatenate([array[:1], array[:-1]])
    changed = {
        "fewer rows": array[:-3],
        "no rows": array[:0],
        "text": array.astype(str),
        "twice": first,
        "rows swapped": array[::-1],
    }
    arrays[name] = changed.get(how, number)
    if how == "removed":
        del arrays[name]
    if how == "added":
        arrays["more"] = array
    np.savez(path, **arrays)
    return path, f"{name} {how}"


def rename_checkpoint(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    steps = sorted((run / "checkpoints").iterdir())
    path = draw.choice(steps)
    name = draw.choice(
        (
            "99",
            "1",
            "-3",
            f"0{path.name}",
            "x",
            f"{path.name}.orbax-checkpoint-tmp",
            "1e3",
            "10" * 20,
        )
    )
    path.rename(path.with_name(name))
    return path, f"renamed to {name}"


def directory_for_file(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    path = _file(draw, run)
    path.unlink()
    path.mkdir()
    return path, "replaced by a directory"


def file_for_directory(draw: random.Random, run: Path, other: Path) -> tuple[Path, str]:
    path = draw.choice(sorted(p for p in run.rglob("*") if p.is_dir() and p.name != "analysis"))
    shutil.rmtree(path)
    path.write_bytes(b"no directory")
    return path, "replaced by a file"


MUTATIONS: tuple[Mutation, ...] = (
    delete,
    cut,
    flip,
    swap_file,
    swap_directory,
    swap_evaluations,
    edit_value,
    edit_value,
    edit_value,
    remove_key,
    rename_key,
    move_lines,
    edit_arrays,
    edit_arrays,
    rename_checkpoint,
    directory_for_file,
    file_for_directory,
)


def outcome(run: Path, path: Path, digest: Callable[[Path], str], expected: str) -> str:
    """Reads or resumes a run in which the file `path` was changed; returns Outcome.result."""
    try:
        actual = digest(run)
    except _ERRORS as error:
        text = str(error)
        names = {path.name, path.relative_to(run).parts[0]}
        if "\n" in text:
            return f"an error of several lines: {text!r:.400}"
        if not any(name in text for name in names):
            return f"an error that does not name the file: {type(error).__name__}: {text:.400}"
        return (
            "one line"
            if not text.startswith("[Errno")
            else f"an error that does not say what to do: {text:.400}"
        )
    except Exception as error:  # a user would see a traceback
        return f"{type(error).__name__}: {error!s:.400}"
    return "identical" if actual == expected else "other results without an error"


def outcomes(runs: Runs, out: Path, seed: int, num: int, with_report: bool = True) -> list[Outcome]:
    """Applies random mutations to the complete and the interrupted run in turn.

    Args:
      runs: of `make_runs`.
      out: directory for copies.
      seed: of the mutations.
      num: number of mutations.
      with_report: also builds the report of a complete run; without it, two of three mutations are
        of the complete run.
    """
    digests = {
        runs.complete: lambda run: analysis_digest(run, with_report),
        runs.interrupted: lambda run: resume_digest(runs.config, run),
    }
    expected = {
        source: digest(shutil.copytree(source, out / f"{source.name}_unchanged"))
        for source, digest in digests.items()
    }
    results = []
    for number in range(num):
        draw = random.Random(f"{seed} {number}")
        source = (runs.complete, runs.interrupted)[number % 2 if with_report else number % 3 == 2]
        mutation = (
            MUTATIONS[number % len(MUTATIONS)] if num >= len(MUTATIONS) else draw.choice(MUTATIONS)
        )
        run = shutil.copytree(source, out / "run")
        path, description = mutation(draw, run, runs.other)
        change = f"{number}: {source.name} {path.relative_to(run)}: {description}"
        result = outcome(run, path, digests[source], expected[source])
        results.append(Outcome(mutation.__name__.replace("_", " "), change, result))
        shutil.rmtree(run)
    return results


def table(results: list[Outcome]) -> str:
    """Outcomes by kind, in Markdown."""
    rows = [
        "| mutation | number | identical results | one line that names the file | neither |",
        "|" + " --- |" * 5,
    ]
    for kind in sorted({x.kind for x in results}):
        counts = Counter(x.result for x in results if x.kind == kind)
        cells = (counts.total(), counts["identical"], counts["one line"])
        rows.append(
            "| " + " | ".join(map(str, (kind, *cells, cells[0] - cells[1] - cells[2]))) + " |"
        )
    return "\n".join(rows)


def failures(results: list[Outcome]) -> list[str]:
    """The mutations that gave neither identical results nor a one-line error."""
    return [f"{x.change}: {x.result}" for x in results if x.result not in ("identical", "one line")]


def main() -> None:
    """Mutates runs and prints the outcomes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", required=True, help="an empty directory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num", type=int, default=100)
    parser.add_argument(
        "--no_report",
        action="store_true",
        help="build no report; two of three mutations are then of the complete run",
    )
    flags = parser.parse_args()
    out = Path(flags.out)
    if out.exists() and any(out.iterdir()):
        parser.error(f"--out={out} is not empty.")
    with contextlib.redirect_stdout(io.StringIO()):
        results = outcomes(make_runs(out), out, flags.seed, flags.num, not flags.no_report)
    print(table(results))
    if messages := failures(results):
        raise SystemExit("\n".join(messages))


if __name__ == "__main__":
    main()

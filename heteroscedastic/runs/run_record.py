"""Reads the small files of a complete run and checks that they belong together.

dataset.json and results.json carry the owner of the run and a digest of their own content,
dataset.json also a digest of the config and results.json one of metrics.jsonl. Predictions and
checkpoints carry the owner too. Runs of earlier versions carry none of these; reading
them logs a warning.
"""

import functools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from absl import logging

from heteroscedastic import files
from heteroscedastic.runs import identity, provenance, schema

STAMPED = ("dataset", "results")


class WorkdirError(ValueError):
    """The directory holds files that this run must not change."""


class RunRecord(NamedTuple):
    """The small files of a complete run."""

    config: dict[str, Any]
    results: dict[str, Any]
    dataset: dict[str, Any]


def read(path: files.Path) -> RunRecord:
    """The small files of a complete run; checks that they belong together.

    Raises:
      FileNotFoundError: a file is missing.
      WorkdirError: a file is damaged, was changed, belongs to another run, or was written by an
        incompatible version.
    """
    found = {name: _object(path / f"{name}.json", keys) for name, keys in _REQUIRED.items()}
    for name, content in found.items():
        _check_form(path / f"{name}.json", content, _FORMS[name])
    record = RunRecord(**found)
    schema.check_evaluations(record.config["evals"])  # files are read and written by these names
    if missing := sorted(set(record.config["evals"]) - set(record.results["evals"])):
        raise WorkdirError(
            f"{path / 'results.json'} lacks the evaluations {', '.join(missing)}; {_REWRITTEN}."
        )
    _check_stamps(path, record)
    config = identity.updated(record.config, record.results)
    return record._replace(config=config, results=as_measured(record.results))


def read_if_complete(path: files.Path) -> RunRecord | None:
    """The result of `read`, or None if a file is missing."""
    return read(path) if all((path / f"{name}.json").exists() for name in _REQUIRED) else None


def as_measured(results: dict[str, Any]) -> dict[str, Any]:
    """Results in which a metric that JSON stores as null, as it is not finite, is nan again."""
    evals = {
        name: {metric: math.nan if value is None else value for metric, value in told.items()}
        for name, told in results["evals"].items()
    }
    return {**results, "evals": evals}


def read_object(path: files.Path, keys: Sequence[str], remedy: str) -> dict[str, Any]:
    """The JSON object in a file, which must have these keys.

    Raises:
      FileNotFoundError: the file does not exist.
      WorkdirError: the file is damaged; the message ends with the remedy.
    """
    try:
        found = files.read_json(path)
    except FileNotFoundError:
        raise
    except OSError as error:  # such as a directory
        raise WorkdirError(f"{path} cannot be read ({error}); {remedy}.") from None
    except (ValueError, RecursionError) as error:  # of JSON or UTF-8
        raise WorkdirError(f"{path} is damaged ({error}); {remedy}.") from None
    if not isinstance(found, dict):
        raise WorkdirError(f"{path} is damaged (it is no JSON object); {remedy}.")
    if missing := [key for key in keys if key not in found]:
        raise WorkdirError(f"{path} is damaged (it has no {', '.join(missing)}); {remedy}.")
    return found


def metrics(path: files.Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, in the order of their steps.

    Raises:
      FileNotFoundError: the file does not exist.
      WorkdirError: a line is damaged, or the lines differ from those that the run wrote.
    """
    file = path / "metrics.jsonl"
    try:
        lines = file.read_bytes().decode(errors="replace").splitlines()
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} is missing; {_RESTORED}.") from None
    except OSError as error:
        raise WorkdirError(f"{file} cannot be read ({error}); {_RESTORED}.") from None
    found = [parsed_line(line) for line in lines]
    if None in found:
        number = found.index(None)
        raise WorkdirError(
            f"{file} is damaged in line {number + 1}: {lines[number].strip()[:80]!r}; {_RESTORED};"
            " or remove that line."
        )
    if (path / "results.json").exists():
        expected = read_object(path / "results.json", (), _REWRITTEN).get("metrics_digest")
        if expected and provenance.digest(found) != expected:
            raise WorkdirError(f"{file} does not have the lines that this run wrote; {_RESTORED}.")
    return found


def parsed_line(line: str) -> dict[str, Any] | None:
    """A line of metrics.jsonl: numbers by name, with the step; None if it is damaged."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_line = (
        isinstance(found, dict)
        and _is_count(found.get("step"))
        and all(map(_is_number, found.values()))
    )
    return found if is_line else None


_REWRITTEN = "remove results.json, and the command that made the run evaluates it again"
_RESTORED = "the command that made the run restores it from its last checkpoint"
_COPY = "bring it back from a copy, or make the run again"
_BOTH = "remove it and results.json, and the command that made the run writes both again"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _or_none(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_valid(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A check that a value is an object whose values are all valid."""
    return lambda value: isinstance(value, dict) and all(map(is_valid, value.values()))


def _is_section(*keys: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(_is_text(value.get(key)) for key in keys)


def _are_triples(value: Any) -> bool:
    triples = isinstance(value, list) and all(isinstance(x, list) and len(x) == 3 for x in value)
    return triples and all(_is_count(number) for x in value for number in x)


_REQUIRED = {
    "config": ("seed", "data", "head", "evals"),
    "results": ("evals", "step"),
    "dataset": ("class_names",),
}
# What a setting or value must be, where it is there.
_FORMS: dict[str, dict[str, tuple[Callable[[Any], bool], str]]] = {
    "config": {
        "seed": (_is_count, "a whole number >= 0"),
        "data": (_is_section("name"), "a section with a name"),
        "head": (_is_section("name"), "a section with a name"),
        "training": (_or_none(_is_section()), "a section"),
        "evals": (_of(_is_section("split")), "sections with a split"),
        "validation": (
            _or_none(_is_section("split", "metric")),
            "null or a section with split and metric",
        ),
    },
    "results": {
        "evals": (_of(_of(_or_none(_is_number))), "numbers by evaluation and metric"),
        "step": (_is_count, "a whole number >= 0"),
        "best_step": (_or_none(_is_count), "null or a whole number >= 0"),
        "num_parameters": (_is_count, "a whole number >= 0"),
        "seconds": (_is_number, "a number"),
        "temperature": (_or_none(_is_number), "a number"),
        "goodput": (_of(_or_none(_is_number)), "numbers by name"),
        "device": (_is_text, "a text"),
        "versions": (_of(_is_text), "texts by package"),
        "commit": (_or_none(_is_text), "null or a text"),
        "owner": (_is_text, "a text"),
        "digest": (_is_text, "a text"),
        "metrics_digest": (_is_text, "a text"),
    },
    "dataset": {
        "class_names": (
            lambda value: isinstance(value, list) and all(map(_is_text, value)),
            "a list of texts",
        ),
        "num_examples": (_of(_is_count), "whole numbers by split"),
        "fingerprint": (_is_text, "a text"),
        "examples_fingerprint": (_is_text, "a text"),
        "label_noise": (_are_triples, "a list of [clean class, class, number]"),
        "owner": (_is_text, "a text"),
        "digest": (_is_text, "a text"),
        "config_digest": (_is_text, "a text"),
    },
}


def check_dataset(path: files.Path, content: dict[str, Any]) -> None:
    """Raises a WorkdirError if dataset.json was changed; the run need not be complete."""
    _check_form(path, content, _FORMS["dataset"])
    if {"owner", "digest", "config_digest"} & set(content) and not provenance.is_unchanged(content):
        raise WorkdirError(
            f"{path} was changed after the run wrote it (its digest is another one); {_BOTH}."
        )


def _object(path: files.Path, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        found = read_object(path, (), _COPY)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is missing, so this is no complete run. Run main.py on it again."
        ) from None
    # A run that others start from may have no evaluations.
    if missing := [
        key for key in keys if found.get(key) in (None, []) or (key != "evals" and found[key] == {})
    ]:
        raise WorkdirError(
            f"{path} says nothing of {', '.join(missing)}, so another version of this project"
            " wrote it;"
            " make the run again, or read it with the commit that results.json tells."
        )
    return found


def _check_form(
    path: files.Path, content: dict[str, Any], form: dict[str, tuple[Callable, str]]
) -> None:
    for name, (is_valid, expected) in form.items():
        if name in content and not is_valid(content[name]):
            raise WorkdirError(
                f"{path} has {content[name]!r:.60} as {name}, which must be {expected}; {_COPY}."
            )


def _check_stamps(path: files.Path, record: RunRecord) -> None:
    stamps = {
        name: "digest" in found or "owner" in found
        for name in STAMPED
        for found in [getattr(record, name)]
    }
    if not any(stamps.values()):
        return _warn_unstamped(str(path))
    results, dataset = path / "results.json", path / "dataset.json"
    if not stamps["results"] or not provenance.is_unchanged(record.results):
        raise WorkdirError(
            f"{results} was changed after the run wrote it (its digest is another one);"
            f" {_REWRITTEN}."
        )
    if not stamps["dataset"]:
        raise WorkdirError(
            f"{dataset} was changed after the run wrote it (it has no digest); {_BOTH}."
        )
    check_dataset(dataset, record.dataset)
    same_owner = record.dataset["owner"] == record.results["owner"]
    identities = identity.identity(record.config), identity.former_identity(record.config)
    same_config = record.dataset["config_digest"] in map(provenance.digest, identities)
    if not same_config and same_owner:
        raise WorkdirError(
            f"{path / 'config.json'} is not the config that this run was made with; undo the"
            " change, or bring the file"
            " back from a copy."
        )
    if not same_config:
        raise WorkdirError(f"{dataset} belongs to another run than config.json; {_BOTH}.")
    if not same_owner:
        raise WorkdirError(f"{results} belongs to another run than dataset.json; {_REWRITTEN}.")


@functools.cache
def _warn_unstamped(path: str) -> None:
    """Warns once per run."""
    logging.warning(
        "%s was made by an earlier version, so whether its files belong together is not checked.",
        path,
    )

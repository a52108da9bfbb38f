"""Reads the small files of a complete run and checks that they belong together.

dataset.json and results.json hold the owner of the run and a digest of their own content;
dataset.json also holds a digest of the config, and results.json a digest of metrics.jsonl.
Predictions and checkpoints hold the owner too. Runs of earlier versions hold none of these; reading
them logs a warning.
"""

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from absl import logging

from heteroscedastic import files
from heteroscedastic.runs import identity, provenance, schema

_STAMPED = ("dataset", "results")


class WorkdirError(ValueError):
    """The directory holds another run, or a file that is damaged or belongs to another run."""


class RunRecord(NamedTuple):
    """The small files of a complete run."""

    config: dict[str, Any]
    results: dict[str, Any]
    dataset: dict[str, Any]


def read(path: files.Path) -> RunRecord:
    """Reads the small files of a complete run and checks that they belong together.

    Raises:
      FileNotFoundError: a file is missing.
      WorkdirError: a file is damaged, was changed, belongs to another run, or was written by an
        incompatible version.
    """
    contents = {name: _object(path / f"{name}.json", keys) for name, keys in _REQUIRED.items()}
    for name, content in contents.items():
        _check_form(path / f"{name}.json", content, _FORMS[name])
    record = RunRecord(**contents)
    schema.check_evaluations(record.config["evals"])  # their names are file names
    if missing := sorted(set(record.config["evals"]) - set(record.results["evals"])):
        raise WorkdirError(
            f"{path / 'results.json'} lacks the evaluations {', '.join(missing)}; {_REEVALUATE}."
        )
    _check_stamps(path, record)
    config = identity.updated(record.config, record.results)
    return record._replace(config=config, results=as_measured(record.results))


def read_if_complete(path: files.Path) -> RunRecord | None:
    """The result of `read`, or None if a file is missing."""
    return read(path) if all((path / f"{name}.json").exists() for name in _REQUIRED) else None


def as_measured(results: dict[str, Any]) -> dict[str, Any]:
    """Results with nan for each metric that is not finite, which JSON stores as null."""
    return {**results, "evals": files.nan_for_null(results["evals"])}


def read_object(path: files.Path, keys: Sequence[str], remedy: str) -> dict[str, Any]:
    """Reads the JSON object in a file, which must have these keys.

    Raises:
      FileNotFoundError: the file does not exist.
      WorkdirError: the file is damaged; the message ends with the remedy.
    """
    try:
        content = files.read_json(path)
    except FileNotFoundError:
        raise
    except OSError as error:  # for example, the path is a directory
        raise WorkdirError(f"{path} cannot be read ({error}); {remedy}.") from None
    except (ValueError, RecursionError) as error:  # invalid JSON or UTF-8
        raise WorkdirError(f"{path} is damaged ({error}); {remedy}.") from None
    if not isinstance(content, dict):
        raise WorkdirError(f"{path} is damaged (it is not a JSON object); {remedy}.")
    if missing := [key for key in keys if key not in content]:
        raise WorkdirError(f"{path} is damaged (it has no {', '.join(missing)}); {remedy}.")
    return content


def metrics(path: files.Path) -> list[dict[str, Any]]:
    """The values of each line of metrics.jsonl, in the order of their steps.

    Raises:
      FileNotFoundError: the file does not exist.
      WorkdirError: a line is damaged, or the lines differ from those that the run wrote.
    """
    file = path / "metrics.jsonl"
    try:
        lines = file.read_bytes().decode(errors="replace").splitlines()
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} is missing; {_RESTORE}.") from None
    except OSError as error:
        raise WorkdirError(f"{file} cannot be read ({error}); {_RESTORE}.") from None
    parsed = [parsed_line(line) for line in lines]
    if None in parsed:
        index = parsed.index(None)
        raise WorkdirError(
            f"{file} is damaged in line {index + 1}: {lines[index].strip()[:80]!r}; {_RESTORE}, or"
            " remove that line."
        )
    if (path / "results.json").exists():
        expected = read_object(path / "results.json", (), _REEVALUATE).get("metrics_digest")
        if expected and provenance.digest(parsed) != expected:
            raise WorkdirError(f"{file} differs from what this run wrote; {_RESTORE}.")
    return parsed


def parsed_line(line: str) -> dict[str, Any] | None:
    """The numbers in a line of metrics.jsonl, by name; None if the line is damaged."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_valid = (
        isinstance(values, dict)
        and _is_count(values.get("step"))
        and all(map(_is_number, values.values()))
    )
    return values if is_valid else None


_REEVALUATE = "remove results.json and repeat the command of the run, which evaluates it again"
_RESTORE = "repeat the command of the run, which restores the file from its last checkpoint"
_RECOVER = "restore it from a copy, or train the run again"
_REWRITE = "remove it and results.json and repeat the command of the run, which writes both again"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _or_none(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_valid(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _all_values(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
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
# Checks of the values of these settings, each with a description of valid values. A setting may be
# missing.
_FORMS: dict[str, dict[str, tuple[Callable[[Any], bool], str]]] = {
    "config": {
        "seed": (_is_count, "a whole number >= 0"),
        "data": (_is_section("name"), "a section with a name"),
        "head": (_is_section("name"), "a section with a name"),
        "training": (_or_none(_is_section()), "a section"),
        "evals": (_all_values(_is_section("split")), "sections with a split"),
        "validation": (
            _or_none(_is_section("split", "metric")),
            "null or a section with split and metric",
        ),
    },
    "results": {
        "evals": (
            _all_values(_all_values(_or_none(_is_number))),
            "numbers by evaluation and metric",
        ),
        "step": (_is_count, "a whole number >= 0"),
        "best_step": (_or_none(_is_count), "null or a whole number >= 0"),
        "num_parameters": (_is_count, "a whole number >= 0"),
        "seconds": (_is_number, "a number"),
        "temperature": (_or_none(_is_number), "a number"),
        "goodput": (_all_values(_or_none(_is_number)), "numbers by name"),
        "device": (_is_text, "a text"),
        "versions": (_all_values(_is_text), "texts by package"),
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
        "num_examples": (_all_values(_is_count), "whole numbers by split"),
        "fingerprint": (_is_text, "a text"),
        "examples_fingerprint": (_is_text, "a text"),
        "class_table": (_is_text, "a text"),
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
            f"{path} was changed after the run wrote it (its digest differs); {_REWRITE}."
        )


def _object(path: files.Path, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        content = read_object(path, (), _RECOVER)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is missing, so the run is not complete; repeat its main.py command, which"
            " resumes it."
        ) from None

    def is_missing(key):
        # `evals` may be empty, as in a run that only provides initial weights.
        empty = (None, []) if key == "evals" else (None, [], {})
        return content.get(key) in empty

    if missing := [key for key in keys if is_missing(key)]:
        raise WorkdirError(
            f"{path} lacks {', '.join(missing)}, so another version of this project wrote it; train"
            " the run again, or read it with the commit that results.json names."
        )
    return content


def _check_form(
    path: files.Path, content: dict[str, Any], form: dict[str, tuple[Callable, str]]
) -> None:
    for name, (is_valid, expected) in form.items():
        if name in content and not is_valid(content[name]):
            raise WorkdirError(
                f"{path}: {name} is {content[name]!r:.60}, but must be {expected}; {_RECOVER}."
            )


def _check_stamps(path: files.Path, record: RunRecord) -> None:
    stamped = {name for name in _STAMPED if {"digest", "owner"} & set(getattr(record, name))}
    if not stamped:
        return _warn_unstamped(str(path))
    results, dataset = path / "results.json", path / "dataset.json"
    if "results" not in stamped or not provenance.is_unchanged(record.results):
        raise WorkdirError(
            f"{results} was changed after the run wrote it (its digest differs); {_REEVALUATE}."
        )
    if "dataset" not in stamped:
        raise WorkdirError(
            f"{dataset} was changed after the run wrote it (it has no digest); {_REWRITE}."
        )
    check_dataset(dataset, record.dataset)
    same_owner = record.dataset["owner"] == record.results["owner"]
    identities = identity.identity(record.config), identity.former_identity(record.config)
    same_config = record.dataset["config_digest"] in map(provenance.digest, identities)
    if not same_config and same_owner:
        raise WorkdirError(
            f"{path / 'config.json'} is not the config of this run; undo the change, or restore the"
            " file from a copy."
        )
    if not same_config:
        raise WorkdirError(f"{dataset} and config.json belong to different runs; {_REWRITE}.")
    if not same_owner:
        raise WorkdirError(f"{results} and dataset.json belong to different runs; {_REEVALUATE}.")


@functools.cache
def _warn_unstamped(path: str) -> None:
    """Warns once per run."""
    logging.warning(
        "%s was written by an earlier version; whether its files belong together is not checked.",
        path,
    )

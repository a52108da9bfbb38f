"""Checks of a config: its form, its values, and whether it suits its data."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from heteroscedastic import tasks
from heteroscedastic.bind import (
    check_number,
    check_seed,
    check_settings,
    declared_settings,
    in_section,
    lookup,
)
from heteroscedastic.data import split_spec
from heteroscedastic.data.dataset import Split
from heteroscedastic.data.pipeline import Pipeline
from heteroscedastic.distributed import sharding
from heteroscedastic.links import LabelForm
from heteroscedastic.runs import sections
from heteroscedastic.tasks import coco
from heteroscedastic.tasks.task import Task, check_parts

PIPELINES = ("resident", "streaming", "text")
_COUNT = dict(integer=True, at_least=1, below=2**31)
RANGES = {  # of numbers, by section; None passes where the type permits it
    "data": {
        "validation_fraction": dict(at_least=0, below=1),
        "max_classes": _COUNT,
        "max_examples": _COUNT,
        "reader_shards": _COUNT,
        "window": _COUNT,
        "max_labels": _COUNT,
        "max_boxes": _COUNT,
        "max_corrupt": _COUNT | dict(at_least=0),
        "num_merges": _COUNT,
        "row_length": dict(integer=True, at_least=1, at_most=1024),
    },
    "evals": {
        "num_largest": _COUNT,
        "beam_size": dict(integer=True, at_least=1, at_most=1024),
        "length_penalty": dict(at_least=0),
        "max_tokens": dict(integer=True, at_least=1, at_most=1024),
    },
    "training": {
        "batch_size": dict(integer=True, at_least=1, at_most=2**20),
        "num_epochs": dict(above=0),
        "num_steps": _COUNT,
        "checkpoint_epochs": dict(above=0),
        "microbatches": _COUNT,
        "class_shards": _COUNT,
    },
    "prioritization": {"warmup_epochs": _COUNT | dict(at_least=0), "every_epochs": _COUNT},
}
_CHECKPOINTS = ("last", "best")
_SCORES = ("training", "evaluation", "target", "target_final")  # prioritization.scores
# Sections whose functions declare the link that they suit.
_WITH_LINK = ("predictive", "smoothing", "loss", "weighting", "score")


def task(config: Mapping[str, Any]) -> Task:
    """The task of a config.

    Raises:
      ValueError: no task has this name.
    """
    return in_section("task", lookup, tasks, config["task"])()


def checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with every setting of every section.

    Raises:
      ValueError: a section or a setting is missing, unknown or out of range. The settings of a part
        that a section names are checked when they are bound.
    """
    _check_form(config)
    config = sections.completed(config)
    _check_translation(config)
    _check_string("curation", config["curation"])
    if config["data"].get("with_boxes") and "boxes" not in config["data"]["extras"]:
        raise ValueError(
            "config.data.with_boxes is True, but config.data.extras does not name the boxes; set"
            f" extras={(*config['data']['extras'], 'boxes')!r}, or with_boxes to False."
        )
    for path, declaration in sections.declarations(config).items():
        if path[0] not in sections.named_modules(config):
            settings = config[path[0]] if len(path) == 1 else config[path[0]][path[1]]
            _check_plain(".".join(path), declaration, settings, RANGES.get(path[0], {}))
    _check_data(config["data"])
    _check_warm_start(config["warm_start"])
    _check_evals(config)
    _check_prioritization(config)
    # The seed of the data is of curation and the validation split: runs that share it differ by
    # their initial parameters and order alone.
    check_seed("config.seed", config["seed"])
    if config["data"]["seed"] is not None:
        check_seed("config.data.seed", config["data"]["seed"])
    _check_training(config)
    functions = {
        section: lookup(module, config[section]["name"])
        for section, module in sections.named_modules(config).items()
        if section in _WITH_LINK
    }
    check_parts(task(config), functions)
    for section, function in functions.items():
        _check_extras(section, config, function.suits.required_extras(config[section]))
    _check_task(task(config), config, functions)
    return config


def _check_task(task: Task, config: Mapping[str, Any], functions: Mapping[str, Any]) -> None:
    """Raises a ValueError where the sections of the config are not those of its task."""
    of_task = f"config.task is {task.name!r}"
    for section in sorted({*task.modules} - {*config}):
        raise ValueError(f"the config has no section {section!r}, but {of_task}; add the section.")
    if "proposals" in config and "proposals" not in task.modules:
        raise ValueError(f"{of_task}, which has no proposals; remove config.proposals.")
    for name in task.extras:
        if name not in config["data"]["extras"]:
            raise ValueError(
                f"{of_task}, which reads the extra {name!r} of each example; set"
                f" config.data.extras={(*config['data']['extras'], name)!r}."
            )
    if task.rows == "example":
        return
    for section in ("mixing", "prioritization"):
        if section in config:
            raise ValueError(
                f"config.{section} is about whole examples, but {of_task}, which is about parts of"
                f" them; remove config.{section}."
            )
    if config["validation"] is not None and not task.validation_metrics:
        raise ValueError(f"{of_task}, which has no validation; set config.validation to None.")
    if config["training"]["class_shards"] > 1:
        raise ValueError(f"{of_task}, which does not divide classes; set class_shards to 1.")
    for section, function in functions.items():
        if function.suits.class_counts or function.suits.required_extras(config[section]):
            raise ValueError(
                f"config.{section} {config[section]['name']!r} reads class counts or extras of"
                f" whole examples, but {of_task}, which is about parts of them; choose another."
            )


def check_start(config: Mapping[str, Any], task: Task) -> None:
    """Raises a ValueError where the residual blocks of a detector would never contribute.

    Args:
      config: checked.
      task: of the config.
    """
    settings, fixed = config["warm_start"], config["optimizer"].get("fixed", ())
    if (
        task.rows == "example"
        or settings["workdir"] is not None
        or settings["weights"] is not None
        or config["backbone"].get("start") != "identity"
        or not isinstance(fixed, tuple)  # an error where it is bound
    ):
        return
    if of_scales := [x for x in ("normalization", "backbone") if x in fixed]:
        raise ValueError(
            f"config.optimizer.fixed has {of_scales[0]!r} and config.backbone.start is 'identity',"
            " so without a warm start the last scale of each residual block stays 0; set"
            " config.warm_start.workdir or config.warm_start.weights, or config.backbone.start to"
            " 'keras'."
        )


def _check_form(config: Mapping[str, Any]) -> None:
    """Raises a ValueError where a section is missing, unknown or not a section."""
    unknown, missing = (
        sorted(set(config) - set(sections.NAMES), key=str),
        sorted(set(sections.REQUIRED) - set(config)),
    )
    if unknown or missing:
        faults = [f"has no section {name!r}" for name in missing]
        faults += [f"has {name!r}, which is not a section" for name in unknown]
        raise ValueError(
            f"the config {' and '.join(faults)}; valid sections: {', '.join(sections.NAMES)}."
        )
    for section in sections.named_modules(config):
        named = config[section]
        if (
            not isinstance(named, dict)
            or not isinstance(named.get("name"), str)
            or not all(map(_is_string, named))
        ):
            raise ValueError(f"config.{section} is {named!r}; it must be a section with a name.")
    _check_string("task", config["task"])
    check_evaluations(config["evals"])
    plain = {section: config[section] for section in ("data", "training")}
    plain |= {f"evals.{name}": settings for name, settings in config["evals"].items()}
    plain |= {
        section: config[section]
        for section in ("validation", "warm_start")
        if config.get(section) is not None
    }
    if "prioritization" in config:
        plain["prioritization"] = config["prioritization"]
    for name, settings in plain.items():
        if not isinstance(settings, dict):
            raise ValueError(f"config.{name} is {settings!r}; it must be a section.")
    _check_pipeline(config)


def _check_pipeline(config: Mapping[str, Any]) -> None:
    """Raises a ValueError where the pipeline is unknown, or a setting is of another one."""
    data = config["data"]
    _check_choice("data.pipeline", data.get("pipeline", "resident"), PIPELINES)
    if sections.is_text(data):
        for section in ("selection", "prioritization", "score", "mixing"):
            if section in config:
                raise ValueError(
                    f"config.{section} is for images and features, but config.data.pipeline is"
                    f" 'text'; remove config.{section}."
                )
        return
    only_streaming = set(declared_settings(sections.StreamingData))
    only_streaming -= set(declared_settings(sections.ResidentData))
    for section in ("selection", "prioritization"):
        if sections.is_streaming(data) and section in config:
            raise ValueError(
                f"config.{section} chooses the examples of an epoch, but the streaming pipeline"
                " reads files in order; set config.data.pipeline='resident', or remove"
                f" config.{section}."
            )
    if not sections.is_streaming(data) and (of_stream := sorted(only_streaming & set(data))):
        raise ValueError(
            f"config.data.{of_stream[0]} is a setting of the streaming pipeline, but"
            " config.data.pipeline is 'resident'; remove it, or choose 'streaming'."
        )


def _check_translation(config: dict[str, Any]) -> None:
    """Raises a ValueError unless task, pipeline and backbone are all of translation, or none is."""
    name, data = config["backbone"]["name"], config["data"]
    declared = declared_settings(lookup(sections.MODULES["backbone"], name))
    parts = {
        f"config.task {config['task']!r}": config["task"] == "translation",
        f"config.data.pipeline {data.get('pipeline', 'resident')!r}": sections.is_text(data),
        f"config.backbone {name!r}": "num_source_words" in declared,
    }
    chosen = [part for part, translates in parts.items() if translates]
    others = [part for part, translates in parts.items() if not translates]
    if chosen and others:
        raise ValueError(
            f"{' and '.join(chosen)} are for sentences, but {' and '.join(others)} are not; the"
            " task 'translation', the pipeline 'text' and a transformer go together."
        )


def _check_plain(
    name: str, declaration: type, settings: dict[str, Any], ranges: Mapping[str, Any]
) -> None:
    """Raises a ValueError where a setting of a section is unknown, missing or out of range."""
    for setting, limits in ranges.items():
        if settings.get(setting) is not None:
            check_number(f"config.{name}.{setting}", settings[setting], **limits)
    check_settings(f"config.{name}", declaration, settings)


def _check_evals(config: dict[str, Any]) -> None:
    for name, settings in config["evals"].items():
        _check_choice(f"evals.{name}.checkpoint", settings["checkpoint"], _CHECKPOINTS)
        if settings["answers"] is not None:
            _check_choice(f"evals.{name}.answers", settings["answers"], ("any",))
    needs_best = any(settings["checkpoint"] == "best" for settings in config["evals"].values())
    if config["validation"] is None and needs_best:
        raise ValueError(
            "config.evals asks for the best checkpoint, but config.validation is None."
        )


def _check_prioritization(config: dict[str, Any]) -> None:
    """Raises a ValueError where scores are read that nothing computes, or the reverse."""
    reads = sections.selection_reads(config)
    settings = config.get("prioritization")
    if settings is None:
        if reads:
            raise ValueError(
                f"config.selection {config['selection']['name']!r} reads the scores of examples,"
                " which config.prioritization computes; add that section, or choose a selection"
                " without scores."
            )
        if "score" in config:
            raise ValueError(
                "config.score is read by config.prioritization alone; add that section, or remove"
                " config.score."
            )
        return
    source, target = settings["scores"], settings["target"]
    _check_choice("prioritization.scores", source, _SCORES)
    reads_target = source.startswith("target") or "target_scores" in reads
    if reads_target and target is None:
        reader = f"scores={source!r}" if source.startswith("target") else "the selection 'excess'"
        raise ValueError(
            f"config.prioritization.target is None, but {reader} reads the scores of another run;"
            " set it to the workdir of that run."
        )
    if target is not None and not reads_target:
        raise ValueError(
            f"config.prioritization.target is {target!r}, but scores={source!r} does not read it;"
            " set it to None, or scores to 'target'."
        )
    if "target_scores" in reads and source.startswith("target"):
        raise ValueError(
            f"config.selection 'excess' compares own scores with those of the target, but"
            f" config.prioritization.scores is {source!r}; choose 'training' or 'evaluation'."
        )
    if settings["record"] and source.startswith("target"):
        raise ValueError(
            f"config.prioritization.record saves own scores, but scores is {source!r}; choose"
            " 'training' or 'evaluation', or set record to False."
        )
    computes = source != "target" and (bool(reads) or settings["record"])
    if computes and "score" not in config:
        raise ValueError(
            "config.prioritization computes scores, but the config has no section 'score'; add one,"
            " such as score=dict(name='entropy')."
        )
    if "scores" in reads and source == "training" and settings["warmup_epochs"] == 0:
        raise ValueError(
            "config.prioritization.warmup_epochs is 0, but scores of training steps are known only"
            " after an epoch of all examples; set it to at least 1, or scores to 'evaluation'."
        )
    if config["training"]["num_epochs"] is None:
        raise ValueError(
            "config.prioritization requires config.training.num_epochs, as the number of steps"
            " follows from the choice of examples; set it, and num_steps to None."
        )


def check_evaluations(evals: Any) -> None:
    """Raises a ValueError where the name of an evaluation cannot be the name of a file."""
    if not isinstance(evals, dict):
        raise ValueError(
            f"config.evals is {evals!r}, but must be a section of evaluations by name."
        )
    for name in evals:
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w.+-]*", name):
            raise ValueError(
                f"config.evals has {name!r}, but a name is of letters, digits, and _ . + - after"
                " the first."
            )


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _check_string(name: str, value: Any) -> None:
    if not _is_string(value):
        raise ValueError(f"config.{name} is {value!r}; it must be a string.")


def _check_data(data: dict[str, Any]) -> None:
    splits, streams = data["splits"], sections.is_streaming(data)
    if not (splits is None or isinstance(splits, dict)):
        raise ValueError(
            f"config.data.splits is {splits!r}; it must be None, or a section of slices by name."
        )
    is_text = sections.is_text(data)
    allowed = {"split", "name"} if is_text else {"split", "eval"}
    allowed |= {"name", "label"} if streams else set()
    split_spec.check_names(data)
    for name, entry in (splits or {}).items():
        reference = entry if isinstance(entry, dict) else {"split": entry}
        if (
            "split" not in reference
            or not {*reference} <= allowed
            or not all(map(_is_string, reference.values()))
        ):
            other = ", or a section of split and" + (
                " name of another set"
                if is_text
                else " name and label of another set, or an eval chain of its own"
                if streams
                else " an eval chain of its own"
            )
            raise ValueError(
                f"config.data.splits.{name} is {entry!r}; it must be a slice such as"
                f" 'train[:90%]'{other}."
            )


def _check_extras(section: str, config: dict[str, Any], required: tuple[str, ...]) -> None:
    """Raises a ValueError where the examples lack an extra that a section reads."""
    extras = config["data"].get("extras", ())
    if missing := [name for name in required if name not in extras]:
        raise ValueError(
            f"config.{section} {config[section]['name']!r} reads the extra {missing[0]!r} of each"
            f" example; set config.data.extras={(*extras, *missing)!r}."
        )


def _check_training(config: dict[str, Any]) -> None:
    training = config["training"]
    if (training["num_epochs"] is None) == (training["num_steps"] is None):
        raise ValueError("config.training needs num_epochs or num_steps, one of them.")
    _check_choice("training.parameters", training["parameters"], sharding.PARAMETERS)
    for section, name in (("training", "microbatches"), ("data", "reader_shards")):
        if training["batch_size"] % (number := config[section].get(name, 1)):
            raise ValueError(
                f"config.{section}.{name} is {number}, but must divide config.training.batch_size,"
                f" {training['batch_size']}."
            )


def check_steps(training: dict[str, Any], total_steps: int) -> None:
    """Raises a ValueError where a run has too many steps, or profiles steps it does not have."""
    if total_steps >= 2**31:
        raise ValueError(
            f"config.training.num_epochs is {training['num_epochs']}, which are {total_steps:,}"
            " steps of"
            f" config.training.batch_size {training['batch_size']}; a run has fewer than {2**31:,}."
        )
    steps = training["profile_steps"]
    if steps is not None and not (_is_pair(steps) and 1 <= steps[0] <= steps[1] <= total_steps):
        raise ValueError(
            f"config.training.profile_steps is {steps!r}; it must be None, or the first and the"
            " last step to trace, of"
            f" {total_steps:,}."
        )


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, tuple | list) and len(value) == 2 and all(type(x) is int for x in value)
    )


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"config.{name} is {value!r}; choose one of {', '.join(choices)}.")


def check_data(config: dict[str, Any], task: Task, data: Pipeline) -> None:
    """Raises a ValueError where the config does not suit the data."""
    name, num_classes = config["data"]["name"], len(data.class_names)
    if config["head"]["num_classes"] != num_classes:
        raise ValueError(
            f"config.head.num_classes is {config['head']['num_classes']}, but {name} has"
            f" {num_classes} classes."
        )
    validation = config["validation"]
    evaluated = {f"evals.{n}": e for n, e in config["evals"].items()}
    if validation:
        evaluated["validation"] = validation
        _check_choice("validation.metric", validation["metric"], task.validation_metrics)
    unknown = sorted({settings["split"] for settings in evaluated.values()} - set(data.sizes))
    if unknown:
        raise ValueError(
            f"config.evals or config.validation: splits {unknown} are evaluated, but the data set"
            f" has {sorted(data.sizes)}."
        )
    if data.label_forms["train"] != task.stored_labels:
        found = "one label" if data.label_forms["train"] == "one" else "a list of labels"
        others = (n for n in tasks.__all__ if n != "translation")  # which suits sentences alone
        suited = ", ".join(
            n for n in others if getattr(tasks, n).stored_labels != task.stored_labels
        )
        raise ValueError(
            f"config.task is {task.name!r}, but {name} has {found} per example, which suits"
            f" {suited}."
        )
    if task.rows == "region":
        # A stream has none and is not read here; it numbers stored classes from 1.
        for split, content in data.arrays.items():
            if isinstance(content, Split) and "boxes" in content.extras:
                _check_boxes(f"{name}, {split}", content)
        for split in sorted({settings["split"] for settings in evaluated.values()}):
            content = data.arrays.get(split)
            if isinstance(content, Split) and "image/id" in content.extras:
                coco.check_ids(content.extras["image/id"])
    for section, settings in evaluated.items():
        if settings["split"] == "train" and settings.get("beam_size"):
            raise ValueError(
                f"config.{section}.beam_size: the loss of the split 'train' is of the pairs that"
                " train, but all of its sentences would be translated; evaluate another split, or"
                " set beam_size to None."
            )
        _check_answers(section, settings, task, data.label_forms[settings["split"]])


def _check_boxes(where: str, split: Split) -> None:
    """Raises a ValueError where no box has an area, or one has the background or no class."""
    boxes, labels = split.extras["boxes"], split.labels
    has_area = np.all(boxes[..., 2:] > boxes[..., :2], axis=-1)
    if not has_area.any():
        raise ValueError(
            f"{where}: no box has an area; a detector needs boxes (y0, x0, y1, x1) with y0 < y1 and"
            " x0 < x1."
        )
    if boxes.shape[:2] != labels.shape:  # an error where the split is used
        return
    for is_wrong, fault, remedy in (
        (
            labels == 0,
            "a box of class 0, the background",
            "number the classes from 1, and pad the labels with -1",
        ),
        (
            has_area & (labels < 0),
            "a box without a class",
            "give it a label from 1, or a row of zeros as box",
        ),
    ):
        examples = is_wrong.any(axis=1)
        if examples.any():
            raise ValueError(
                f"{where}: the example of id {split.ids[np.argmax(examples)]} has {fault}"
                f" ({examples.sum():,} examples have); {remedy}."
            )


def _check_answers(section: str, settings: dict[str, Any], task: Task, form: LabelForm) -> None:
    """Raises a ValueError where an evaluation and the labels of its split do not agree."""
    if settings.get("answers") == "any":
        if task.stored_labels == "list":
            raise ValueError(
                f"config.{section}.answers is 'any', which is for a task of one label per example;"
                f" config.task is {task.name!r}."
            )
        if form == "one":
            raise ValueError(
                f"config.{section}.answers is 'any', but split {settings['split']!r} has one label"
                " per example; remove the setting."
            )
    elif form != task.stored_labels:
        expected = "a list of labels" if task.stored_labels == "list" else "one label"
        remedy = (
            f"; config.{section}.answers='any' counts a prediction of any label of a list as right"
            if form == "list" and section != "validation"
            else ""
        )
        raise ValueError(
            f"config.{section}: config.task {task.name!r} needs {expected} per example, which split"
            f" {settings['split']!r} does not have{remedy}."
        )


def _check_warm_start(settings: dict[str, Any]) -> None:
    """Raises a ValueError where config.warm_start is not valid."""
    if settings["workdir"] is not None and settings["weights"] is not None:
        raise ValueError(
            f"config.warm_start names a workdir, {settings['workdir']!r}, and weights,"
            f" {settings['weights']!r}; set one of them to None."
        )
    _check_choice("warm_start.checkpoint", settings["checkpoint"], _CHECKPOINTS)
    has_source = settings["workdir"] is not None or settings["weights"] is not None
    if settings["head"] and not has_source:
        raise ValueError(
            "config.warm_start.head is True, but no run is named to start from; set"
            " config.warm_start.workdir or weights, or head to False."
        )
    if settings["checkpoint"] == "best" and settings["workdir"] is None:
        raise ValueError(
            "config.warm_start.checkpoint is 'best', but no run is named; set"
            " config.warm_start.workdir, or checkpoint to 'last'."
        )

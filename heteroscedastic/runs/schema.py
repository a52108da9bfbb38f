"""Checks of a config that need none of the code it names."""

import re
from collections.abc import Mapping
from typing import Any

from heteroscedastic import losses, predictive, smoothing, tasks, weighting
from heteroscedastic.bind import check_number, check_seed, in_section, lookup
from heteroscedastic.data import split_spec
from heteroscedastic.data.pipeline import Pipeline
from heteroscedastic.distributed import sharding
from heteroscedastic.links import LabelForm, Link
from heteroscedastic.tasks.task import Task, check_parts

# Settings of config.data that choose examples and labels.
DATA_CHOICES = ("label", "splits", "max_classes", "max_examples")
# Settings of config.data that stop a run when exceeded and change nothing otherwise.
LIMITS = ("max_labels", "max_corrupt")
STREAMING = ("lanes", "window", *LIMITS)  # settings of the streaming pipeline alone
PIPELINES = ("resident", "streaming")
# Settings of config.training that place arrays on devices; they change results by rounding only.
LAYOUT = ("parameters", "class_shards")
PROFILING = ("profile_steps",)  # settings of config.training that change no result
# Sections that name code, whose settings `bind` checks.
_NAMED = (
    "backbone",
    "head",
    "predictive",
    "smoothing",
    "loss",
    "weighting",
    "optimizer",
    "schedule",
)
# Sections of plain settings: the required settings and the optional ones.
_PLAIN = {
    "data": (
        ("name", "train", "eval", "validation_fraction"),
        ("pipeline", "seed", *DATA_CHOICES, *STREAMING),
    ),
    "training": (
        ("batch_size", "checkpoint_epochs"),
        ("num_epochs", "num_steps", "microbatches", *LAYOUT, *PROFILING),
    ),
    "validation": (("split", "metric"), ()),
    "eval": (("split",), ("checkpoint", "answers")),
}
_COUNT = dict(integer=True, at_least=1, below=2**31)
_NUMBERS = {  # settings of plain sections that are numbers, by section
    "data": {
        "validation_fraction": dict(at_least=0, below=1),
        "max_classes": _COUNT,
        "max_examples": _COUNT,
        "lanes": _COUNT,
        "window": _COUNT,
        "max_labels": _COUNT,
        "max_corrupt": _COUNT | dict(at_least=0),
    },
    "training": {
        "batch_size": dict(integer=True, at_least=1, at_most=2**20),
        "num_epochs": dict(above=0),
        "num_steps": _COUNT,
        "checkpoint_epochs": dict(above=0),
        "microbatches": _COUNT,
        "class_shards": _COUNT,
    },
}
_MAY_BE_NONE = ("num_epochs", "num_steps", "max_classes", "max_examples")
_STRINGS = ("label", "train", "eval", "split", "metric")
_SECTIONS = ("seed", "task", "data", "curation", *_NAMED, "training", "validation", "evals")
_MAY_BE = ("init",)  # if absent, the seed gives the initial weights
_QUESTION = {  # sections whose functions declare the link that they suit
    "predictive": predictive,
    "smoothing": smoothing,
    "loss": losses,
    "weighting": weighting,
}


def task(config: dict[str, Any]) -> Task:
    """The task of a config.

    Raises:
      ValueError: no task has this name.
    """
    return in_section("task", lookup, tasks, config["task"])()


def identity(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that makes a run what it is.

    It leaves out where arrays lie, what is profiled, and the limits beyond which a run stops. It
    also leaves out a setting that is newer than the first runs where it has the value that the code
    had before the setting existed: two configs are then the same exactly where they are the same
    with every such setting filled in, and the digests that older runs and saved results are known
    by stay valid. `completed` fills these settings in.
    """
    drops = {"training": (*LAYOUT, *PROFILING), "data": LIMITS}
    kept = {
        s: {k: v for k, v in config.get(s, {}).items() if k not in names}
        for s, names in drops.items()
    }
    rest = {**config, **kept}
    if _link_before(config) is not None:
        rest.pop("task", None)  # data of one label or of lists decides between two tasks
    if isinstance(config.get("evals"), dict):  # the data decides it, too
        rest["evals"] = {name: _without_answers(e) for name, e in config["evals"].items()}
    return rest


def completed(config: dict[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a run, with the values that settings had before they existed.

    Entries for a setting never change, also when its default does.

    Args:
      config: of a run, maybe an older one.
      results: content of its results.json.
    """
    if "task" in config:
        return config
    # Only lists of labels have this metric; dataset.json need not say how labels lie.
    has_lists = any("label_accuracy" in found for found in results["evals"].values())
    is_softmax = _link_before(config) != "sigmoid"
    task_name = "multiclass" if is_softmax else "multilabel" if has_lists else "one_vs_rest"
    evals = {
        name: settings | {"answers": "any"}
        if set(results["evals"].get(name, ())) == {"accuracy"}
        else settings
        for name, settings in config["evals"].items()
    }
    return {**config, "task": task_name, "evals": evals}


def _link_before(config: Mapping[str, Any]) -> Link | None:
    """The link that the loss implied before `task` existed; None for a newer loss."""
    loss = config.get("loss")
    links: dict[Any, Link] = {"cross_entropy": "softmax", "sigmoid_cross_entropy": "sigmoid"}
    return links.get(loss.get("name")) if isinstance(loss, Mapping) else None


def _without_answers(settings: Any) -> Any:
    if not isinstance(settings, dict):
        return settings
    return {name: value for name, value in settings.items() if name != "answers"}


def is_streaming(data: dict[str, Any]) -> bool:
    """Whether config.data asks for the streaming pipeline."""
    return data.get("pipeline", "resident") == "streaming"


def check(config: dict[str, Any]) -> None:
    """Raises a ValueError where a section or a setting is missing, unread or out of range."""
    unread, missing = _strange(config, (*_SECTIONS, *_MAY_BE)), sorted(set(_SECTIONS) - set(config))
    if unread or missing:
        raise ValueError(
            f"the config has no section {missing} and nobody reads {unread}; its sections are"
            f" {[*_SECTIONS, *_MAY_BE]}."
        )
    for section in _NAMED:
        named = config[section]
        if (
            not isinstance(named, dict)
            or not isinstance(named.get("name"), str)
            or not all(map(_is_string, named))
        ):
            raise ValueError(f"config.{section} is {named!r}, but must be a section with a name.")
    _check_string("curation", config["curation"])
    _check_string("task", config["task"])
    for section in ("data", "training"):
        _check_settings(section, section, config[section])
    _check_data(config["data"])
    if config.get("init") is not None:
        _check_init(config["init"])
    if config["validation"] is not None:
        _check_settings("validation", "validation", config["validation"])
    check_evaluations(config["evals"])
    for name, settings in config["evals"].items():
        _check_settings("eval", f"evals.{name}", settings)
        _check_choice(
            f"evals.{name}.checkpoint", settings.get("checkpoint", "last"), ("last", "best")
        )
        if settings.get("answers") is not None:
            _check_choice(f"evals.{name}.answers", settings["answers"], ("any",))
    if config["validation"] is None and any(
        e.get("checkpoint") == "best" for e in config["evals"].values()
    ):
        raise ValueError(
            "config.evals asks for the best checkpoint, but config.validation is None."
        )
    # That of the data is of curation and of what is held out; runs of one differ by their start and
    # order alone.
    check_seed("config.seed", config["seed"])
    check_seed("config.data.seed", config["data"].get("seed", 0))
    _check_training(config["training"])
    batch_size = config["training"]["batch_size"]
    for section, name in (("training", "microbatches"), ("data", "lanes")):
        if batch_size % (number := config[section].get(name, 1)):
            raise ValueError(
                f"config.{section}.{name} is {number}, but must divide config.training.batch_size,"
                f" {batch_size}."
            )
    functions = {
        section: in_section(section, lookup, module, config[section]["name"])
        for section, module in _QUESTION.items()
    }
    check_parts(task(config), functions)


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


def _check_settings(kind: str, name: str, settings: Any) -> None:
    required, optional = _PLAIN[kind]
    if not isinstance(settings, dict):
        raise ValueError(
            f"config.{name} is {settings!r}, but must be a section with {', '.join(required)}."
        )
    unread, missing = (
        _strange(settings, (*required, *optional)),
        sorted(set(required) - set(settings)),
    )
    if unread:
        raise ValueError(
            f"nobody reads {unread} of config.{name}; its settings are {[*required, *optional]}."
        )
    if missing:
        raise ValueError(f"config.{name} needs a value for {', '.join(missing)}.")
    for setting in set(settings) & set(_STRINGS):
        _check_string(f"{name}.{setting}", settings[setting])
    for setting, kind_of_number in _NUMBERS.get(kind, {}).items():
        if setting in settings and not (settings[setting] is None and setting in _MAY_BE_NONE):
            check_number(f"config.{name}.{setting}", settings[setting], **kind_of_number)


def _strange(settings: dict[str, Any], known: tuple[str, ...]) -> list[str]:
    return sorted(set(settings) - set(known), key=str)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _check_string(name: str, value: Any) -> None:
    if not _is_string(value):
        raise ValueError(f"config.{name} is {value!r}; it must be a string.")


def _check_data(data: dict[str, Any]) -> None:
    splits, streams = data.get("splits"), is_streaming(data)
    if not (splits is None or isinstance(splits, dict)):
        raise ValueError(
            f"config.data.splits is {splits!r}; it must be None, or a section of slices by name."
        )
    split_spec.check_names(data)
    for name, entry in (splits or {}).items():
        told = entry if streams and isinstance(entry, dict) else {"split": entry}
        if (
            "split" not in told
            or not {*told} <= {"name", "split", "label"}
            or not all(map(_is_string, told.values()))
        ):
            other = (
                ", or a section of split, name and label where they are of another set"
                if streams
                else ""
            )
            raise ValueError(
                f"config.data.splits.{name} is {entry!r}; it must be a slice such as"
                f" 'train[:90%]'{other}."
            )
    _check_choice("data.pipeline", data.get("pipeline", "resident"), PIPELINES)
    if is_streaming(data):
        if "lanes" not in data:
            raise ValueError(
                "config.data needs lanes for the streaming pipeline: a divisor of the batch size,"
                " and a multiple of"
                " any number of hosts to come."
            )
    elif unread := sorted(set(data) & set(STREAMING)):
        raise ValueError(
            f"config.data.{unread[0]} is the streaming pipeline's, but config.data.pipeline is not."
        )


def _check_training(training: dict[str, Any]) -> None:
    if (training.get("num_epochs") is None) == (training.get("num_steps") is None):
        raise ValueError("config.training needs num_epochs or num_steps, one of them.")
    _check_choice(
        "training.parameters", training.get("parameters", "replicated"), sharding.PARAMETERS
    )


def check_steps(training: dict[str, Any], total_steps: int) -> None:
    """Raises a ValueError where a run has too many steps, or profiles steps it does not have."""
    if total_steps >= 2**31:
        raise ValueError(
            f"config.training.num_epochs is {training['num_epochs']}, which are {total_steps:,}"
            " steps of"
            f" config.training.batch_size {training['batch_size']}; a run has fewer than {2**31:,}."
        )
    steps = training.get("profile_steps")
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
    if config["head"].get("num_classes") != num_classes:
        raise ValueError(
            f"config.head.num_classes is {config['head'].get('num_classes')}, but {name} has"
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
    if data.label_forms["train"] != task.labels:
        found = "one label" if data.label_forms["train"] == "one" else "a list of labels"
        suited = ", ".join(n for n in tasks.__all__ if getattr(tasks, n).labels != task.labels)
        raise ValueError(
            f"config.task is {task.name!r}, but {name} has {found} per example, which suits"
            f" {suited}."
        )
    for section, settings in evaluated.items():
        _check_answers(section, settings, task, data.label_forms[settings["split"]])


def _check_answers(section: str, settings: dict[str, Any], task: Task, form: LabelForm) -> None:
    """Raises a ValueError where an evaluation and the labels of its split do not agree."""
    if settings.get("answers") == "any":
        if task.labels == "list":
            raise ValueError(
                f"config.{section}.answers is 'any', which is for a task of one label per example;"
                f" config.task is {task.name!r}."
            )
        if form == "one":
            raise ValueError(
                f"config.{section}.answers is 'any', but split {settings['split']!r} has one label"
                " per example; remove the setting."
            )
    elif form != task.labels:
        expected = "a list of labels" if task.labels == "list" else "one label"
        remedy = (
            f"; config.{section}.answers='any' counts a prediction of any label of a list as right"
            if form == "list"
            else ""
        )
        raise ValueError(
            f"config.{section}: config.task {task.name!r} needs {expected} per example, which split"
            f" {settings['split']!r} does not have{remedy}."
        )


def _check_init(settings: Any) -> None:
    """Raises a ValueError where config.init is not valid."""
    if not isinstance(settings, Mapping) or ("workdir" in settings) == ("weights" in settings):
        raise ValueError(
            f"config.init is {settings!r}, but must name one of workdir, a run, and weights, a"
            " file."
        )
    known = ("weights", "head") if "weights" in settings else ("workdir", "checkpoint", "head")
    unread = sorted(set(settings) - set(known), key=str)
    if unread:
        raise ValueError(f"nobody reads {unread} of config.init; its settings are {list(known)}.")
    for name in {"workdir", "weights"} & set(settings):
        if not isinstance(settings[name], str):
            raise ValueError(f"config.init.{name} is {settings[name]!r}; it must be a path.")
    if settings.get("checkpoint", "last") not in ("last", "best"):
        raise ValueError(
            f"config.init.checkpoint is {settings['checkpoint']!r}; choose one of last, best."
        )
    if not isinstance(settings.get("head", False), bool):
        raise ValueError(f"config.init.head is {settings['head']!r}, but must be True or False.")

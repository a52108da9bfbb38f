"""What a config must hold, whatever code it names; checked before anything else."""

import re
from collections.abc import Mapping
from typing import Any

from heteroscedastic import metrics
from heteroscedastic.bind import check_number, check_seed
from heteroscedastic.data import split_spec
from heteroscedastic.data.pipeline import Pipeline
from heteroscedastic.distributed import sharding

DATA_CHOICES = (
    "label",
    "splits",
    "max_classes",
    "max_examples",
)  # which examples and labels of a set; absent is its default
LIMITS = (
    "max_labels",
    "max_corrupt",
)  # of data: beyond them a run stops, below them they change nothing
STREAMING = ("lanes", "window", *LIMITS)  # of data, for the streaming pipeline alone
PIPELINES = ("resident", "streaming")
LAYOUT = (
    "parameters",
    "class_shards",
)  # of training: where arrays lie, which changes no result but by rounding
WATCHING = ("profile_steps",)  # of training: what is told of a run, which changes none
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
# Sections of plain settings: those that must be there, those that may.
_PLAIN = {
    "data": (
        ("name", "train", "eval", "validation_fraction"),
        ("pipeline", "seed", *DATA_CHOICES, *STREAMING),
    ),
    "training": (
        ("batch_size", "checkpoint_epochs"),
        ("num_epochs", "num_steps", "microbatches", *LAYOUT, *WATCHING),
    ),
    "validation": (("split", "metric"), ()),
    "eval": (("split",), ("checkpoint",)),
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
_MAY_BE_NONE = ("num_epochs", "num_steps", "max_classes", "max_examples")  # of them
_STRINGS = ("label", "train", "eval", "split", "metric")  # settings of plain sections, of any
_SECTIONS = ("seed", "data", "curation", *_NAMED, "training", "validation", "evals")
_MAY_BE = ("init",)  # absent is the start that the seed gives
_LOSS_OF = {
    "softmax": "cross_entropy",
    "taylor": "cross_entropy",
    "mean_field": "cross_entropy",
    "sigmoid": "sigmoid_cross_entropy",
    "sigmoid_sampled": "sigmoid_cross_entropy",
}


def answers_yes_or_no(config: dict[str, Any]) -> bool:
    """Whether logits are log-odds, a yes/no answer a class, be there one label an example or
    several.
    """
    return config["loss"]["name"] == "sigmoid_cross_entropy"


def identity(config: dict[str, Any]) -> dict[str, Any]:
    """What makes a run the run that it is, wherever its arrays lie, however it is watched and when
    it would stop.
    """
    drops = {"training": (*LAYOUT, *WATCHING), "data": LIMITS}
    kept = {
        s: {k: v for k, v in config.get(s, {}).items() if k not in names}
        for s, names in drops.items()
    }
    return {**config, **kept}


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
    loss, average = config["loss"]["name"], config["predictive"]["name"]
    if _LOSS_OF.get(average, loss) != loss and loss in _LOSS_OF.values():
        raise ValueError(
            f"config.predictive {average!r} goes with config.loss {_LOSS_OF[average]!r}, not"
            f" {loss!r}."
        )


def check_evaluations(evals: Any) -> None:
    """Raises a ValueError where an evaluation is called by what is no name of a file, or leads out
    of a directory.
    """
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
    """Raises a ValueError where a run has more steps than its counter holds, or traces others than
    its own.
    """
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


def check_task(config: dict[str, Any], data: Pipeline) -> None:
    """Raises a ValueError where the config does not suit the data."""
    name, num_classes = config["data"]["name"], len(data.class_names)
    if config["head"].get("num_classes") != num_classes:
        raise ValueError(
            f"config.head.num_classes is {config['head'].get('num_classes')}, but {name} has"
            f" {num_classes} classes."
        )
    single = data.is_single
    labels = f"{name} has one label an example" if single else f"{name} has lists of labels"
    loss = config["loss"]["name"]
    if loss == "cross_entropy" and not single:
        raise ValueError(f"config.loss is {loss!r}, which does not suit the data: {labels}.")
    if not single and config["weighting"]["name"] != "equal":
        raise ValueError(
            f"config.weighting is {config['weighting']['name']!r}, which does not suit the data:"
            f" {labels}."
        )
    validation = config["validation"]
    splits = [e["split"] for e in config["evals"].values()] + (
        [validation["split"]] if validation else []
    )
    unknown = sorted(set(splits) - set(data.sizes))
    if unknown:
        raise ValueError(
            f"config.evals or config.validation: splits {unknown} are evaluated, but the data set"
            " has"
            f" {sorted(data.sizes)}."
        )
    if validation:
        _check_choice(
            "validation.metric",
            validation["metric"],
            metrics.MULTICLASS if single else metrics.MULTILABEL,
        )


def _check_init(settings: Any) -> None:
    """Raises a ValueError where config.init is no such section."""
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

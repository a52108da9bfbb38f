"""The sections of a config: the code that a section names, or its plain settings.

A signature declares the settings of a section, with their types and defaults. A config states all
of them; `completed` adds those that it leaves out.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any

from heteroscedastic import (
    bind,
    losses,
    mixing,
    predictive,
    score,
    selection,
    smoothing,
    weighting,
)
from heteroscedastic.models import backbones, heads, proposals
from heteroscedastic.training import optimizer, schedules

# The module whose functions and classes a section names.
MODULES: dict[str, ModuleType] = {
    "backbone": backbones,
    "head": heads,
    "predictive": predictive,
    "smoothing": smoothing,
    "loss": losses,
    "weighting": weighting,
    "optimizer": optimizer,
    "schedule": schedules,
}
# The same for sections that may be absent: nothing of the kind happens.
OPTIONAL_MODULES: dict[str, ModuleType] = {
    "mixing": mixing,
    "proposals": proposals,
    "score": score,
    "selection": selection,
}
# Values of sections that may be absent: nothing is curated, and no checkpoint is the best one.
_IF_ABSENT = {"curation": "", "validation": None, "warm_start": {}}
REQUIRED = ("seed", "task", "data", *MODULES, "training", "evals")
OPTIONAL = (*OPTIONAL_MODULES, "prioritization")  # a config may add them by an override
NAMES = (*REQUIRED, *_IF_ABSENT, *OPTIONAL)

# Settings of `data` that choose examples and labels.
DATA_CHOICES = (
    *("label", "splits", "max_classes", "max_examples"),
    *("extras", "max_boxes", "with_boxes"),
)
# Settings of `data` that stop a run when exceeded and change nothing otherwise.
LIMITS = ("max_labels", "max_boxes", "max_corrupt")
# Settings of `training` that place arrays on devices; they change results by rounding only.
LAYOUT = ("parameters", "class_shards")
CACHING = ("cached_maps",)  # settings of `training` that change results by rounding only
PROFILING = ("profile_steps",)  # settings of `training` that change no result


@dataclasses.dataclass(kw_only=True)
class ResidentData:
    """`data` for the resident pipeline.

    Attributes:
      name: of the data set.
      train: chain of operations on training examples.
      eval: chain of operations on evaluated examples.
      pipeline: "resident" or "streaming".
      validation_fraction: part of the training examples, or of their groups, that becomes the split
        "valid"; in [0, 1).
      label: field of the labels.
      splits: slice of a stored split by name; None takes the stored splits.
      max_classes: number of classes, the first ones, whose examples are taken; None is all.
      max_examples: number of examples per split, the first ones; None is all.
      extras: further fields that examples carry, such as "boxes".
      max_boxes: largest number of boxes of an example.
      with_boxes: whether training takes only examples with a box; other splits keep all.
      standardize: whether features are standardised; see dataset.standardized.
      seed: of curation and the validation split; None is the seed of the run.
    """

    name: str
    train: str
    eval: str
    pipeline: str = "resident"
    validation_fraction: float
    label: str = "label"
    splits: dict | None = None
    max_classes: int | None = None
    max_examples: int | None = None
    extras: tuple[str, ...] = ()
    max_boxes: int = 16
    with_boxes: bool = False
    standardize: bool = False
    seed: int | None = None


@dataclasses.dataclass(kw_only=True)
class StreamingData(ResidentData):
    """`data` for the streaming pipeline.

    Attributes:
      reader_shards: parts of a split that are read in parallel; they divide the batch size, and are
        a multiple of the number of hosts.
      window: examples of a shard among which the order is random.
      max_labels: longest list of labels.
      max_corrupt: number of images that may be impossible to decode.
    """

    reader_shards: int
    window: int = 128
    max_labels: int = 16
    max_corrupt: int = 100


@dataclasses.dataclass(kw_only=True)
class TextData:
    """`data` for the text pipeline.

    Attributes:
      name: of the set of sentence pairs.
      pipeline: "text".
      source: language of the inputs, such as "de".
      target: language of the translations.
      num_merges: largest number of merges of the joint byte-pair encoding.
      row_length: tokens of a row, 1 to 1,024; longer pairs are left out of training.
      splits: slice of a stored split by name, or a section of split and name of another set; None
        takes the stored splits.
      max_examples: number of pairs per split, the first ones; None is all.
      seed: of curation and of what is packed with what; None is the seed of the run.
    """

    name: str
    pipeline: str
    source: str
    target: str
    num_merges: int
    row_length: int
    splits: dict | None = None
    max_examples: int | None = None
    seed: int | None = None


@dataclasses.dataclass(kw_only=True)
class Training:
    """`training`; one of num_epochs and num_steps is not None.

    Attributes:
      batch_size: global; the last batch of an epoch is padded.
      num_epochs: duration in epochs.
      num_steps: duration in steps.
      checkpoint_epochs: epochs between checkpoints.
      microbatches: parts of a batch that are processed one after another, to save memory.
      parameters: "replicated" or "sharded" over the devices.
      class_shards: parts of the class axis of the head over the devices.
      profile_steps: first and last step to trace; None traces nothing.
    """

    batch_size: int
    num_epochs: float | None = None
    num_steps: int | None = None
    checkpoint_epochs: float
    microbatches: int = 1
    parameters: str = "replicated"
    class_shards: int = 1
    profile_steps: tuple[int, int] | None = None


@dataclasses.dataclass(kw_only=True)
class DetectorTraining(Training):
    """`training` of a detector.

    Attributes:
      cached_maps: whether the maps of the trunk are computed once for each training image and not
        in each step, which requires a fixed trunk and pixels without random operations.
    """

    cached_maps: bool = False


@dataclasses.dataclass(kw_only=True)
class Validation:
    """`validation`: the evaluation that decides which checkpoint is the best.

    Attributes:
      split: that is evaluated.
      metric: of it.
    """

    split: str
    metric: str


@dataclasses.dataclass(kw_only=True)
class Evaluation:
    """An entry of `evals`.

    Attributes:
      split: that is evaluated.
      checkpoint: "last" or "best".
      answers: "any" if each label of a list is a right answer to a question with one answer.
    """

    split: str
    checkpoint: str = "last"
    answers: str | None = None


@dataclasses.dataclass(kw_only=True)
class ClassEvaluation(Evaluation):
    """An entry of `evals` of a task whose predictions are logits of classes.

    Attributes:
      num_largest: logits that are kept of each example above 2,000 classes; the number of classes
        keeps all, as temperature scaling requires.
    """

    num_largest: int = 100


@dataclasses.dataclass(kw_only=True)
class TranslationEvaluation(ClassEvaluation):
    """An entry of `evals` in translation.

    Attributes:
      during: whether it is also made and logged at every checkpoint, where it chooses nothing.
      num_largest: as of any evaluation, of each token.
      beam_size: hypotheses of a beam search for a translation of each sentence, whose BLEU is
        computed; 1 is greedy, and None translates nothing.
      length_penalty: power of the length of a hypothesis, with its end, that divides its
        log-probability.
      max_tokens: of a translation, with its end.
    """

    during: bool = False
    num_largest: int = 8
    beam_size: int | None = None
    length_penalty: float = 1.0
    max_tokens: int = 200


@dataclasses.dataclass(kw_only=True)
class WarmStart:
    """`warm_start`; without a workdir and weights, training starts from random parameters.

    Attributes:
      workdir: run to start from.
      weights: file to start from.
      checkpoint: of the run, "last" or "best".
      head: whether the head starts from them, too.
    """

    workdir: str | None = None
    weights: str | None = None
    checkpoint: str = "last"
    head: bool = False


@dataclasses.dataclass(kw_only=True)
class Prioritization:
    """`prioritization`; without the section, no scores are kept.

    Attributes:
      warmup_epochs: first epochs, which have every example.
      every_epochs: epochs from one choice of examples to the next.
      scores: "training", of the training steps; "evaluation", of a pass over the training split
        before each choice; "target", of the same epoch of another run; "target_final", of the last
        weights of another run.
      target: workdir of that run.
      record: whether to save the scores of every epoch, for a run that has this one as its target.
    """

    warmup_epochs: int = 10
    every_epochs: int = 1
    scores: str = "training"
    target: str | None = None
    record: bool = False


def is_streaming(data: Mapping[str, Any]) -> bool:
    """Whether `data` asks for the streaming pipeline."""
    return data.get("pipeline") == "streaming"


def is_text(data: Mapping[str, Any]) -> bool:
    """Whether `data` asks for the text pipeline."""
    return data.get("pipeline") == "text"


def data_declaration(data: Mapping[str, Any]) -> type:
    """The class that declares the settings of `data`."""
    if is_text(data):
        return TextData
    return StreamingData if is_streaming(data) else ResidentData


def selection_reads(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The scores that the selection of a config reads: fields of selection.Pool."""
    if "selection" not in config:
        return ()
    return bind.lookup(selection, config["selection"]["name"]).reads


def named_modules(config: Mapping[str, Any]) -> dict[str, ModuleType]:
    """The module of each section of a config that names a part."""
    return MODULES | {name: m for name, m in OPTIONAL_MODULES.items() if name in config}


def declarations(config: Mapping[str, Any]) -> dict[tuple[str, ...], Callable]:
    """The function or class whose signature declares the settings of each section, by its path.

    Raises:
      ValueError: a section names no function or class of its module; lists the choices.
    """
    found: dict[tuple[str, ...], Callable] = {
        (section,): bind.in_section(section, bind.lookup, module, config[section]["name"])
        for section, module in named_modules(config).items()
    }
    found[("data",)] = data_declaration(config["data"])
    detects = config["task"] == "detection" or "proposals" in config  # an error names the other
    found[("training",)] = DetectorTraining if detects else Training
    evaluation = Evaluation if detects else ClassEvaluation
    if is_text(config["data"]):
        evaluation = TranslationEvaluation
    found |= {("evals", name): evaluation for name in config["evals"]}
    if config.get("validation") is not None:
        found[("validation",)] = Validation
    if "prioritization" in config:
        found[("prioritization",)] = Prioritization
    if config.get("warm_start") is not None:
        found[("warm_start",)] = WarmStart
    return found


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with every section, and every setting of each section.

    Raises:
      ValueError: a section names no function or class of its module; lists the choices.
    """
    config = {**_IF_ABSENT, **config}
    config["warm_start"] = config["warm_start"] or {}
    return _with_defaults(
        config, {path: bind.defaults(target) for path, target in declarations(config).items()}
    )


def _with_defaults(
    config: Mapping[str, Any], defaults: Mapping[tuple[str, ...], Mapping[str, Any]]
) -> dict[str, Any]:
    """The config in which a setting that a section lacks has its default."""
    filled = dict(config)
    for (section, *rest), values in defaults.items():
        if rest:
            entry = {**values, **filled[section][rest[0]]}
            filled[section] = {**filled[section], rest[0]: entry}
        else:
            filled[section] = {**values, **filled[section]}
    return filled


def renamed(
    before: Mapping[str, Any], overridden: Collection[str], config: Mapping[str, Any]
) -> dict[str, Any]:
    """The config after overrides, without settings of parts that an override replaced.

    Where an override changes the name in a section, a setting of the config is left out if the new
    part does not have it, or if it is the default of the former part, so that the default of the
    new part holds. Settings that an override gives stay, and are an error if the part lacks them.

    Args:
      before: config without overrides.
      overridden: dotted names of the overridden settings.
      config: with overrides.
    """
    result = dict(config)
    for section, module in named_modules(config).items():
        former, new = before.get(section), config.get(section)
        if not isinstance(former, Mapping) or not isinstance(new, Mapping):
            continue
        if section in overridden or former.get("name") == new.get("name"):
            continue
        defaults = bind.defaults(bind.lookup(module, former["name"]))
        try:
            declared = bind.declared_settings(bind.lookup(module, str(new.get("name"))))
        except ValueError:
            continue  # the check of the config names the choices
        result[section] = {
            name: value
            for name, value in new.items()
            if f"{section}.{name}" in overridden
            or name == "name"
            or (name in declared and (name not in defaults or value != defaults[name]))
        }
    return result

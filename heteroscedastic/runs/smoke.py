"""Shrinks any config until a laptop runs it in seconds."""

import atexit
import copy
import math
import re
import shutil
import tempfile
from typing import Any

import jax

from heteroscedastic import bind
from heteroscedastic.data import chains, split_spec
from heteroscedastic.data.storage import sample, store, tfds
from heteroscedastic.data.text import pairs
from heteroscedastic.distributed import hosts
from heteroscedastic.models import backbones
from heteroscedastic.runs import assembly, compiled, pipelines, schema, sections
from heteroscedastic.training import optimizer

_NUM_CLASSES = 64
_NUM_EXAMPLES = 200  # of every split
_NUM_PAIRS = 64  # likewise, of sentences, which have a dozen examples each
_MOST_CLASSES = 1000  # of a stored set, above which few of those examples are of the first classes
_SIZE = 16  # of the images of a stream, in pixels
_CROPS = (
    "inception_crop",
    "random_crop",
    "central_crop",
    "efficientnet_center_crop",
    "efficientnet_random_crop",
    "resize",
    "resize_small",
)
_TRUNK_STRIDE = 16
_CANVAS = 64  # pixels; at a stride of 16 a smaller one has few anchors
_SHIFTS = r"\b((?:pad_crop|shift)\((?:size=)?)(\d+)"
_MAX_SHIFT = 4  # pixels; of the digits of 8x8 pixels that stand in for a set in memory
_SIZED = rf"\b((?:{'|'.join(_CROPS)})\((?:size=)?)(\d+)"
_LARGEST_TEXT = {"num_merges": 100, "row_length": 64}
_LARGEST = {
    "head": {"num_factors": 4, "hidden_width": 64},
    "predictive": {"num_samples": 16},
    "training": {"batch_size": 8, "microbatches": 2},
}


def smoke(config: dict[str, Any], data_dir: str | None = None) -> tuple[dict[str, Any], str | None]:
    """The config with two steps of 8 examples, the smallest backbone of its family, less of
    everything.

    Where its data set is not there, digits that a library ships stand in, with one label or
    several as the data set has; for a stream they are written as the record files of the set
    itself. Numbers spelled in two languages stand in for sentence pairs.

    The config is checked before it is shrunk: with its data where that is there, else whatever the
    data.

    Returns:
      The config, and where its data lies: data_dir, or a directory that goes with the process.

    Raises:
      ValueError: as training would.
    """
    assembly.check(config)
    config = schema.checked(copy.deepcopy(config))
    if "proposals" in config and config["backbone"].get("start") == "identity":
        config["backbone"]["start"] = "keras"  # as a smoke run has no warm start
    streams, classes = sections.is_streaming(config["data"]), _classes(config)
    is_text = sections.is_text(config["data"])
    is_there = not is_text and (_is_streamed if streams else _is_stored)(config["data"], data_dir)
    if is_there:
        _check_with_data(config, data_dir)
    if is_text:
        _shrink_text(config, data_dir)
    elif streams:
        data_dir = _stream(config, data_dir, is_there)
    elif not is_there:
        hosts.log(
            f"no data set {config['data']['name']!r} in {data_dir or 'any --data_dir'}; digits"
            " stand in for it."
        )
        _stand_in(config)
    if config["warm_start"]["workdir"] is not None or config["warm_start"]["weights"] is not None:
        hosts.log(
            "a smoke run is of another size than what config.warm_start names, so it starts afresh."
        )
        config["warm_start"] = {
            "workdir": None,
            "weights": None,
            "checkpoint": "last",
            "head": False,
        }
    if not is_text:
        config["data"]["max_examples"] = _NUM_EXAMPLES
    for section, limits in _LARGEST.items():
        for name, limit in limits.items():
            if config[section].get(name) is not None:
                config[section][name] = min(config[section][name], limit)
    if is_text:
        pass  # it has the classes of its sentences
    elif config["head"]["num_classes"] is None:  # as many as the data has
        max_classes = config["data"]["max_classes"] or _NUM_CLASSES
        config["data"]["max_classes"] = min(max_classes, _NUM_CLASSES)
    elif config["head"]["num_classes"] > _NUM_CLASSES:
        config["head"]["num_classes"] = config["data"]["max_classes"] = _NUM_CLASSES
    has_classes = is_there and _classes(config) == classes
    if _smoothing_is_of_full_data(config, has_classes=has_classes):
        hosts.log(
            f"config.smoothing {config['smoothing']['name']!r} reads what the data of a smoke run"
            " lacks; targets are hard."
        )
        config["smoothing"] = {"name": "hard"}
    config["backbone"] = _smallest_backbone(config)
    config["training"]["profile_steps"] = None
    devices = jax.device_count()
    parts = devices * config["training"]["microbatches"]
    batch_size = -(-config["training"]["batch_size"] // parts) * parts
    config["training"] |= {"num_epochs": None, "num_steps": 2, "batch_size": batch_size}
    if "proposals" in config:
        config["proposals"] |= {"num_candidates": (64, 32), "num_proposals": (32, 16)}
        config["proposals"]["num_regions"] = min(16, config["proposals"]["num_regions"])
    if "prioritization" in config:
        _shrink_prioritization(config)
    if streams:
        config["data"]["reader_shards"] = math.gcd(config["data"]["reader_shards"], batch_size)
    if devices % config["training"]["class_shards"]:  # that it was made for are not here
        config["training"]["class_shards"] = 1
    if config["curation"] and not is_text:
        config["curation"] = _suitable_curation(config, data_dir)
    if config["optimizer"].get("fixed"):
        config["optimizer"]["fixed"] = _matching_fixed_entries(config, data_dir)
    return config, data_dir


def _suitable_curation(config: dict[str, Any], data_dir: str | None) -> str:
    """config.curation, or none if so few examples, or other ones, cannot be curated so."""
    if (error := _curation_error(config, data_dir)) is None:
        return str(config["curation"])
    hosts.log(
        f"the data of a smoke run is too small for the curation, which it leaves out: {error}"
    )
    return ""


def _curation_error(config: dict[str, Any], data_dir: str | None) -> ValueError | None:
    """The error of config.curation with the data of a config; others are those of training."""
    # An error about parameters that are fixed is not about the data, and comes first.
    optimizer_settings = {**config["optimizer"], "fixed": ()}
    try:
        assembly.build({**config, "optimizer": optimizer_settings}, data_dir)
    except ValueError as error:
        if str(error).startswith("config.curation"):
            return error
    return None


def _matching_fixed_entries(config: dict[str, Any], data_dir: str | None) -> tuple[str, ...]:
    """config.optimizer.fixed without the entries of which the smallest backbone has no parameter.

    It may have fewer stages and blocks than the backbone for which they were written.
    """
    settings = config["optimizer"]
    run = assembly.build({**config, "optimizer": {**settings, "fixed": ()}}, data_dir)
    is_there = {
        entry: any(jax.tree.leaves(optimizer.is_of_entry(entry, run.shapes.params)))
        for entry in settings["fixed"]
    }
    if missing := [entry for entry, there in is_there.items() if not there]:
        hosts.log(
            f"config.optimizer.fixed {', '.join(map(repr, missing))} is not in the smallest"
            f" backbone, {config['backbone']['name']}, so a smoke run leaves it out."
        )
    return tuple(entry for entry in settings["fixed"] if is_there[entry])


def _shrink_prioritization(config: dict[str, Any]) -> None:
    """Shrinks the run to an epoch of all examples and one of chosen examples."""
    settings = config["prioritization"]
    if settings["target"] is not None:
        hosts.log("config.prioritization.target is of other data than a smoke run, so it is left.")
        if "target_scores" in sections.selection_reads(config):
            config["selection"] = {"name": "largest", "fraction": config["selection"]["fraction"]}
        settings |= {"scores": "training", "target": None}
        settings["warmup_epochs"] = 1  # scores of training steps need one
    settings |= {"warmup_epochs": min(1, settings["warmup_epochs"]), "every_epochs": 1}
    if "fraction" in config.get("selection", {}):
        config["selection"]["fraction"] = max(0.5, config["selection"]["fraction"])
    config.setdefault("score", {"name": "entropy"})
    config["training"] |= {"num_epochs": 2.0, "num_steps": None}


def _classes(config: dict[str, Any]) -> tuple[int | None, int | None]:
    """The settings that choose classes."""
    return config["head"]["num_classes"], config["data"].get("max_classes")


def _smoothing_is_of_full_data(config: dict[str, Any], *, has_classes: bool) -> bool:
    """Whether the smoothing reads an extra or a file that does not suit the shrunk data.

    Args:
      config: shrunk.
      has_classes: whether its data is that of the full config, with all classes.
    """
    smoothing = config["smoothing"]
    reads = bind.lookup(sections.MODULES["smoothing"], smoothing["name"]).suits
    reads_classes = reads.soft_labels is not None or reads.class_table is not None
    missing = set(reads.required_extras(smoothing)) - set(config["data"].get("extras", ()))
    return bool(missing) or (reads_classes and not has_classes)


def _smallest_backbone(config: dict[str, Any]) -> dict[str, Any]:
    """config.backbone with the smallest member of the family, which has its own defaults."""
    settings = config["backbone"]
    name = backbones.smallest(settings["name"])
    if name == "ResNet10" and settings["stem"] == "cifar":
        name = "ResNet8"
    smaller = {**config, "backbone": {**settings, "name": name}}
    settings = sections.renamed(config, {"backbone.name"}, smaller)["backbone"]
    target = bind.lookup(backbones, name)
    declared = bind.declared_settings(target)
    stated = {k: v for k, v in settings.items() if k in declared}
    return {"name": name, **bind.defaults(target), **stated}


def _check_with_data(config: dict[str, Any], data_dir: str | None) -> None:
    """Raises a ValueError if the config does not suit the first examples of its data."""
    data, training = dict(config["data"]), dict(config["training"])
    data["max_examples"] = min(_NUM_EXAMPLES, data["max_examples"] or _NUM_EXAMPLES)
    training["profile_steps"] = None  # they may be later than the steps of so few examples
    few = {**config, "data": data, "training": training}
    if config["curation"] and _curation_error(few, data_dir):
        if error := _curation_error({**config, "training": training}, data_dir):  # of all of them
            raise error
        few["curation"] = ""
    compiled.check_shapes(assembly.build(few, data_dir))


def _stream(config: dict[str, Any], data_dir: str | None, is_there: bool) -> str | None:
    """Shrinks the images of a stream; returns the directory of its data sets or their copies."""
    data = config["data"]
    sizes = [int(size) for _, size in re.findall(_SIZED, data["train"])]
    canvases = [int(size) for size in re.findall(r"\bfit\((?:size=)?(\d+)", data["train"])]
    scale = _CANVAS / canvases[-1] if canvases else _SIZE / sizes[-1] if sizes else 1

    def scaled(size: str) -> str:
        return str(max(1, round(int(size) * scale)))

    def shrunk(chain: str) -> str:
        chain = re.sub(
            r"\bfit\([^)]*\)",
            lambda found: re.sub(r"\d+", lambda size: scaled(size[0]), found[0]),
            chain,
        )
        chain = re.sub(  # a canvas consists of steps of the trunk
            r"\bnarrow=(\d+)",
            lambda found: f"narrow={-(-int(found[1]) // _TRUNK_STRIDE) * _TRUNK_STRIDE}",
            chain,
        )
        return re.sub(_SIZED, lambda found: found[1] + scaled(found[2]), chain)

    if "proposals" in config:
        config["proposals"]["sizes"] = tuple(scale * x for x in config["proposals"]["sizes"])
    if "boxes" in data["extras"]:
        data["with_boxes"] = True  # some examples of a copy have none
    data |= {name: shrunk(data[name]) for name in ("train", "eval")}
    for split, chain in split_spec.own_chains(data).items():
        data["splits"][split] = data["splits"][split] | {"eval": shrunk(chain)}
    try:
        tfds.library()
    except ModuleNotFoundError:
        return data_dir  # as the pipeline says what it needs
    num_classes = config["head"]["num_classes"] or _NUM_CLASSES
    if is_there and num_classes <= _MOST_CLASSES:
        return data_dir
    directory = tempfile.mkdtemp(prefix="smoke-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    hosts.log(
        f"copies of {', '.join(sorted({s.name for s in split_spec.dataset_refs(data)}))} with"
        " digits for images stand in for them."
    )
    of_sets: dict[str, dict[str, str]] = {}
    for one in split_spec.dataset_refs(data):
        of_sets.setdefault(one.name, {}).update(one.splits)
    for name, splits in of_sets.items():
        splits = splits or {split: split for split in _splits(config)}
        sample.write(
            name,
            directory,
            sorted({expression.partition("[")[0] for expression in splits.values()}),
            label=data["label"],
            labels=schema.task(config).stored_labels,
            has_boxes="boxes" in data["extras"],
            size=None if sizes or canvases else _SIZE,
            num_classes=num_classes,
        )
        for split, expression in split_spec.shares(splits).items():
            entry = (data["splits"] or {}).get(split)
            expression = {**entry, "split": expression} if isinstance(entry, dict) else expression
            data["splits"] = {**(data["splits"] or {}), split: expression}
    return directory


def _shrink_text(config: dict[str, Any], data_dir: str | None) -> None:
    """Shrinks sentence pairs and their vocabularies, to which the config is made to suit.

    The words of the full set are not counted: to learn their encoding takes minutes.
    """
    data = config["data"]
    missing = [
        ref.name
        for ref in split_spec.dataset_refs(data)
        if not pairs.is_there(
            ref.name, data_dir, {x.partition("[")[0] for x in ref.splits.values()} or ("*",)
        )
    ]
    if missing:
        hosts.log(
            f"not all sentence pairs {missing[0]!r} are in {data_dir or 'any --data_dir'}; numbers"
            " spelled in German and English stand in for them."
        )
        data |= {"name": "numbers", "source": "de", "target": "en", "splits": None}
        for settings in (*config["evals"].values(), config["validation"] or {}):
            if settings.get("split") not in ("train", "valid", None):
                settings["split"] = "test"
    data["max_examples"] = _NUM_PAIRS
    data |= {name: min(data[name], limit) for name, limit in _LARGEST_TEXT.items()}
    _, text = pipelines.sentences(config, data_dir)
    config["backbone"]["num_source_words"] = len(text.source_words)
    config["head"]["num_classes"] = len(text.target_words)


def _is_stored(data: dict[str, Any], data_dir: str | None) -> bool:
    return store.is_there(data["name"], data_dir)


def _is_streamed(data: dict[str, Any], data_dir: str | None) -> bool:
    """Whether all data sets of a stream are present and large enough for its slices."""
    if not data_dir:
        return False
    try:
        for one in split_spec.dataset_refs(data):
            splits = tfds.builder(one.name, data_dir).info.splits
            sizes = {split: splits[split].num_examples for split in splits}
            for expression in one.splits.values():
                split_spec.parse(expression, sizes)
    except (FileNotFoundError, ModuleNotFoundError, ValueError):
        return False
    return True


def _splits(config: dict[str, Any]) -> set[str]:
    """The splits on which a config trains and evaluates."""
    evaluated = (*config["evals"].values(), config["validation"] or {})
    splits = {settings["split"] for settings in evaluated if "split" in settings}
    return {"train", *splits} - {"valid"}


def _of_digits(chain: str, has_boxes: bool) -> str:
    """The chain for digits, which are small, of one channel, and may have no boxes."""
    links = [
        "value_range(-1, 1)" if link.startswith("value_range(") else link
        for link in chain.split("|")
        if has_boxes or link.partition("(")[0] not in chains.OF_BOXES
    ]
    chain = re.sub(_SHIFTS, lambda m: f"{m[1]}{min(int(m[2]), _MAX_SHIFT)}", "|".join(links))
    sizes = re.findall(_SIZED, chain)
    if sizes and not has_boxes and not sizes[0][0].startswith("resize"):  # a crop of larger images
        chain = f"resize({max(int(size) for _, size in sizes)})|{chain}"
    return chain


def _stand_in(config: dict[str, Any]) -> None:
    data, task = config["data"], schema.task(config)
    stand_in = "digits_pairs" if task.stored_labels == "list" else "digits"
    has_boxes = task.rows == "region"
    config["data"] = {
        **bind.defaults(sections.ResidentData),
        "name": "digits_mosaics" if has_boxes else stand_in,
        "extras": task.extras,
        "train": _of_digits(data["train"], has_boxes),
        "eval": _of_digits(data["eval"], has_boxes),
        # for a split "valid" that the data may have had
        "validation_fraction": data["validation_fraction"] or 0.2,
    }
    for settings in (*config["evals"].values(), config["validation"] or {}):
        if settings.get("split") not in ("train", "valid", None):
            settings["split"] = "test"
    config["head"]["num_classes"] = 11 if has_boxes else 10

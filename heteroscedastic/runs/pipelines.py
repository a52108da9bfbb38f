"""Builds the pipeline of the data set that a config names."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from heteroscedastic import curation, smoothing, tasks
from heteroscedastic.bind import in_section, lookup
from heteroscedastic.curation import label_noise
from heteroscedastic.data import augment, chains, split_spec
from heteroscedastic.data import dataset as dataset_lib
from heteroscedastic.data.dataset import Dataset
from heteroscedastic.data.pipeline import Pipeline
from heteroscedastic.data.resident import Resident
from heteroscedastic.data.storage import store, tfds
from heteroscedastic.data.text import pairs, prepared
from heteroscedastic.data.text import pipeline as text_pipeline
from heteroscedastic.data.text.pairs import Pairs
from heteroscedastic.data.text.pipeline import Text
from heteroscedastic.data.text.prepared import PreparedText
from heteroscedastic.runs import sections


def build(config: dict[str, Any], data_dir: str | None = None) -> Pipeline:
    """The pipeline of a config.

    Raises:
      ValueError, FileNotFoundError, ModuleNotFoundError: says which section, what was found and
        what was expected.
    """
    if sections.is_text(config["data"]):
        return _text(config, data_dir)
    return (
        _streaming(config, data_dir)
        if sections.is_streaming(config["data"])
        else _resident(config, data_dir)
    )


def check(config: dict[str, Any]) -> None:
    """Raises a ValueError where curation or a chain of operations does not bind; reads no data.

    Without TensorFlow the operations of a stream are not checked.
    """
    links = in_section("curation", chains.parse, curation, config["curation"])
    if sections.is_text(config["data"]):
        return in_section("curation", text_pipeline.check_curation, links)
    operations = augment
    if sections.is_streaming(config["data"]):
        try:
            from heteroscedastic.data.streaming import ops as operations
        except ModuleNotFoundError:
            return
    _chains(config, operations)


def _chains(config: dict[str, Any], operations: ModuleType) -> dict[str, Any]:
    """The chains of `data` by the names of the arguments of a pipeline."""
    data, is_of_boxes = config["data"], config["task"] == "detection"
    evaluation = chains.evaluation_of_boxes if is_of_boxes else chains.evaluation
    return {
        "training_chain": in_section("data.train", chains.parse, operations, data["train"]),
        "chain": in_section("data.eval", evaluation, operations, data["eval"]),
        "own_chains": {
            split: in_section(f"data.splits.{split}.eval", evaluation, operations, text)
            for split, text in split_spec.own_chains(data).items()
        },
    }


def stored_data(
    config: dict[str, Any], data_dir: str | None = None, requires_boxes: bool = False
) -> Dataset:
    """The data set that a config names, before curation and without a validation split of its
    making.

    Args:
      config: names it.
      data_dir: of data sets.
      requires_boxes: whether each training example must have a box.
    """
    return in_section(
        "data",
        store.load,
        config["data"]["name"],
        data_dir,
        requires_boxes=requires_boxes,
        soft_labels=_soft_labels(config),
        **_words(config, sections.DATA_CHOICES),
    )


def training_ids(config: dict[str, Any], data_dir: str | None = None) -> Int[np.ndarray, "n"]:
    """The ids of the examples that a run of a config in memory trains on."""
    return _curate(config)(stored_data(config, data_dir)).splits["train"].ids


def _resident(config: dict[str, Any], data_dir: str | None) -> Resident:
    operations = _chains(config, augment)
    curate = _curate(config)
    stored = stored_data(config, data_dir, requires_boxes=_requires_boxes(config, operations))
    dataset = curate(stored)
    if config["data"]["standardize"]:
        dataset = in_section("data", dataset_lib.standardized, dataset)
    train = dataset.splits["train"]
    example = {
        name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
        for name, x in {**train.extras, "image": train.inputs}.items()
    }
    example["occurrence"] = jax.ShapeDtypeStruct((), jnp.int32)
    sections_of_chains = {
        "train": operations["training_chain"],
        "eval": operations["chain"],
        **{f"splits.{name}.eval": chain for name, chain in operations["own_chains"].items()},
    }
    for name, chain in sections_of_chains.items():
        in_section(f"data.{name}", chains.check_shapes, chain, example)
    return Resident(
        dataset=dataset,
        stored=stored,
        seed=config["seed"],
        batch_size=config["training"]["batch_size"],
        **operations,
    )


def sentences(
    config: dict[str, Any], data_dir: str | None = None
) -> tuple[dict[str, Pairs], PreparedText]:
    """The sentence pairs of each split that a config names, before curation, and their words."""
    data = config["data"]
    words = _words(config, ("source", "target", "splits", "max_examples"))
    found = in_section("data", pairs.read, data["name"], data_dir, **words)
    languages = data["source"], data["target"]
    return found, in_section("data", prepared.prepared, found, languages, data["num_merges"])


def _text(config: dict[str, Any], data_dir: str | None) -> Text:
    data = config["data"]
    stored, text = sentences(config, data_dir)
    num_words, stated = len(text.source_words), config["backbone"]["num_source_words"]
    if stated != num_words:
        raise ValueError(
            f"config.backbone.num_source_words is {stated}, but {data['name']} has {num_words}"
            f" words of {data['source']!r} with config.data.num_merges {data['num_merges']}; set"
            f" it to {num_words}."
        )
    seed = config["seed"] if data["seed"] is None else data["seed"]
    links = in_section("curation", chains.parse, curation, config["curation"])
    number = len(text.source["train"].lengths)
    pipeline = Text(
        text=text,
        training=in_section(
            "curation", text_pipeline.curated, number, seed, links, first=stored["train"].first
        ),
        pairs=stored,
        length=data["row_length"],
        seed=config["seed"],
        packing_seed=seed,
        batch_size=config["training"]["batch_size"],
    )
    in_section("data", getattr, pipeline, "arrays")  # packed now, for errors that name the section
    return pipeline


def _streaming(config: dict[str, Any], data_dir: str | None) -> Pipeline:
    try:
        tfds.library()
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "config.data.pipeline is 'streaming', which reads by TensorFlow, and that is not"
            f" installed ({error})."
            ' Either pip install -e ".[tensorflow]", or take the resident pipeline if the data fits'
            " into memory."
        ) from None
    from heteroscedastic.data.streaming import ops, sources, stream

    operations = _chains(config, ops)
    if config["data"]["standardize"]:
        raise ValueError(
            "config.data.standardize is True, but a stream has images; set it to False."
        )
    chosen = in_section(
        "data",
        sources.choose,
        config["data"]["name"],
        data_dir,
        _curate(config),
        reads_labels=bool(config["curation"].strip()) or _depends_on_counts(config),
        of_regions=lookup(tasks, config["task"]).rows == "region",
        **_words(config, (*sections.DATA_CHOICES, "max_labels")),
    )
    pipeline = in_section(
        "data",
        stream.Streaming,
        chosen,
        seed=config["seed"],
        batch_size=config["training"]["batch_size"],
        **operations,
        soft_labels=_soft_labels(config),
        requires_boxes=_requires_boxes(config, operations),
        **_words(config, ("reader_shards", "window", "max_labels", "max_corrupt")),
    )
    # What a chain makes of an image is found out here, not first inside of JAX, which adds to its
    # errors.
    pipeline.example("train", training=True)
    for settings in config["evals"].values():
        if settings["split"] in pipeline.sizes:
            pipeline.example(settings["split"], training=False)
    return pipeline


def _depends_on_counts(config: dict[str, Any]) -> bool:
    """Whether the loss or the weighting depends on the class counts."""
    parts = (lookup(sections.MODULES[s], config[s]["name"]) for s in ("loss", "weighting"))
    return any(part.suits.class_counts for part in parts)


def _soft_labels(config: dict[str, Any]) -> tuple[str, ...]:
    """The extras that the targets of training are."""
    settings = config["smoothing"]
    return lookup(smoothing, settings["name"]).suits.soft_label_names(settings)


def _requires_boxes(config: dict[str, Any], operations: dict[str, Any]) -> bool:
    """Whether targets or operations of training require a box of each example."""
    settings = config["smoothing"]
    extras = lookup(smoothing, settings["name"]).suits.required_extras(settings)
    return "boxes" in extras or chains.requires_boxes(operations["training_chain"])


def _curate(config: dict[str, Any]) -> Callable[[Dataset], Dataset]:
    """Curation, then the validation split that is held out, if any."""
    links = in_section("curation", chains.parse, curation, config["curation"])
    if _soft_labels(config):
        _check_labels_are_kept(config, links)
    seed = config["seed"] if config["data"]["seed"] is None else config["data"]["seed"]

    def curate(stored):
        data = in_section("curation", dataset_lib.curate, stored, seed, links)
        return in_section(
            "data", dataset_lib.hold_out, data, seed, config["data"]["validation_fraction"]
        )

    return curate


def _check_labels_are_kept(config: dict[str, Any], links: Sequence[Callable]) -> None:
    """Raises a ValueError where curation changes labels, as soft labels stay as they are."""
    for function in (getattr(link, "func", link) for link in links):
        if function.__module__ == label_noise.__name__:
            raise ValueError(
                f"config.curation {function.__name__!r} changes labels, but config.smoothing"
                f" {config['smoothing']['name']!r} trains on soft labels of the data, which stay as"
                " they are; remove one of the two."
            )


def _words(config: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in config["data"].items() if name in names}

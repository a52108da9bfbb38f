"""A sheet of training examples, as evaluation and as training see them. Requires Pillow."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from heteroscedastic.bind import check_seed, in_section
from heteroscedastic.data import chains, checks, resident, split_spec
from heteroscedastic.data.dataset import Split
from heteroscedastic.data.inspect import contact_sheet
from heteroscedastic.data.storage import encoded, store

_ROWS, _DRAWS = 8, 6
_MAX_SEARCH = 2000  # number of examples among which those of the sheet are selected
# Settings of config.data that select the examples of a stream.
_SELECTION = ("label", "splits", "max_classes", "max_examples", "max_labels")
_Chain = Sequence[Callable]


class _Example(NamedTuple):
    """An example and its views."""

    id: int
    labels: np.ndarray
    views: list[np.ndarray]  # evaluation, then draws of training


def sheet(config: Mapping[str, Any], data_dir: str | None) -> bytes:
    """Draws a PNG file: per example, the view of evaluation and several draws of training.

    Labels are the stored ones, before curation.

    Raises:
      ValueError, FileNotFoundError: the data cannot be read, or a chain is not valid.
    """
    check_seed("config.seed", config["seed"])
    streaming = config["data"].get("pipeline") == "streaming"
    if streaming:
        from heteroscedastic.data.streaming import ops as operations
    else:
        from heteroscedastic.data import augment as operations
    train, evaluation = (
        in_section(f"data.{name}", chains.parse, operations, config["data"][name])
        for name in ("train", "eval")
    )
    examples, names = (_stream_examples if streaming else _stored_examples)(
        config, data_dir, train, evaluation
    )
    rows = []
    for example in examples:
        labels = "; ".join(names[k] for k in np.atleast_1d(example.labels) if k >= 0) or "no label"
        views = [
            contact_sheet.pixels(view, train if i else evaluation)
            for i, view in enumerate(example.views)
        ]
        rows.append(contact_sheet.Row(f"{example.id}: {labels}", views))
    columns = ["evaluation", *(f"training {epoch}" for epoch in range(_DRAWS))]
    return contact_sheet.draw(f"{config['data']['name']}: {config['data']['train']}", columns, rows)


def _stored_examples(
    config: Mapping[str, Any], data_dir: str | None, train: _Chain, evaluation: _Chain
) -> tuple[list[_Example], Sequence[str]]:
    data = config["data"]
    stored = store.stored_dataset(data["name"], data_dir)
    part = split_spec.parse((data.get("splits") or {}).get("train", "train"), stored.sizes)
    examples = stored.read(part._replace(stop=min(part.stop, part.start + _MAX_SEARCH)))
    field = data.get("label", "label")
    labels, class_names = examples.fields[field], stored.class_names
    checks.labels(labels, examples.ids, len(class_names), f"{stored.where}: {part.split}, {field}")
    max_classes = data.get("max_classes") or np.inf
    is_selected = (labels.reshape(len(labels), -1) < max_classes).all(axis=1)
    chosen = _spaced_rows(np.flatnonzero(is_selected))
    images = [examples.images[row] for row in chosen]
    if isinstance(examples.images, list):
        images = encoded.decode(images, stored.num_channels, stored.where)
    split = Split(np.stack(images), labels[chosen], examples.ids[chosen]).with_int32()
    rows = np.arange(len(chosen))

    def views_of(links, epoch):
        feed = next(resident.feeds(rows, len(rows), epoch))
        batch = resident.batch(jax.random.key(config["seed"]), split, feed, chain=links)
        return np.asarray(batch.inputs)

    views = [views_of(evaluation, 0), *(views_of(train, epoch) for epoch in range(_DRAWS))]
    return [
        _Example(int(split.ids[row]), split.labels[row], [view[row] for view in views])
        for row in rows
    ], class_names


def _stream_examples(
    config: Mapping[str, Any], data_dir: str | None, train: _Chain, evaluation: _Chain
) -> tuple[list[_Example], Sequence[str]]:
    from heteroscedastic.data.streaming import sources, stream

    settings = {name: value for name, value in config["data"].items() if name in _SELECTION}
    if settings.get("splits"):  # the other splits may be in sets that are missing
        settings["splits"] = {"train": settings["splits"]["train"]}
    selection = sources.choose(
        config["data"]["name"], data_dir, lambda data: data, reads_labels=False, **settings
    )
    source = selection.sources["train"]
    ids = _spaced_rows(source.ids[:_MAX_SEARCH])
    pipeline = stream.Streaming(
        selection._replace(sources={"train": source._replace(ids=ids)}),
        seed=config["seed"],
        batch_size=len(ids),
        training_chain=train,
        chain=evaluation,
        reader_shards=1,
        max_labels=settings.get("max_labels", 16),
    )
    slots = np.arange(len(ids))
    feeds = [next(iter(pipeline.feeds("train", slots)))]
    feeds += [next(iter(pipeline.training_feeds(epoch, 0, slots))) for epoch in range(_DRAWS)]
    views = [feed.inputs[np.argsort(feed.ids)] for feed in feeds]  # each epoch has its own order
    labels = feeds[0].labels[np.argsort(feeds[0].ids)]
    return [
        _Example(int(ids[i]), labels[i], [view[i] for view in views]) for i in slots
    ], selection.class_names


def _spaced_rows(rows: np.ndarray) -> np.ndarray:
    """At most `_ROWS` of the rows, evenly spaced."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int))]

"""Training examples of a config as evaluation and as training see them, on one sheet.

Needs Pillow.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from heteroscedastic.bind import check_seed, within
from heteroscedastic.data import chains, checks, resident, split_spec
from heteroscedastic.data.dataset import Split
from heteroscedastic.data.inspect import contact_sheet
from heteroscedastic.data.storage import encoded, store

_ROWS, _DRAWS = 8, 6
_SEARCHED = 2000  # examples that those of the first `max_classes` are looked for in
_CHOICES = (
    "label",
    "splits",
    "max_classes",
    "max_examples",
    "max_labels",
)  # of the examples of a stream
_Chain = Sequence[Callable]


class _Seen(NamedTuple):
    """An example."""

    id: int
    labels: np.ndarray
    views: list[np.ndarray]  # of evaluation, then of training


def sheet(config: Mapping[str, Any], data_dir: str | None) -> bytes:
    """A PNG file: one row an example, the view of evaluation and several draws of the training
    chain.

    Labels are the stored ones, before curation.

    Raises:
      ValueError, FileNotFoundError: the data cannot be read, or a chain is none.
    """
    check_seed("config.seed", config["seed"])
    streaming = config["data"].get("pipeline") == "streaming"
    if streaming:
        from heteroscedastic.data.streaming import ops as operations
    else:
        from heteroscedastic.data import augment as operations
    train, evaluation = (
        within(f"data.{name}", chains.bound, operations, config["data"][name])
        for name in ("train", "eval")
    )
    seen, names = (_of_stream if streaming else _of_stored)(config, data_dir, train, evaluation)
    rows = []
    for one in seen:
        told = "; ".join(names[k] for k in np.atleast_1d(one.labels) if k >= 0) or "no label"
        views = [
            contact_sheet.pixels(v, train if i else evaluation) for i, v in enumerate(one.views)
        ]
        rows.append(contact_sheet.Row(f"{one.id}: {told}", views))
    columns = ["evaluation", *(f"training {epoch}" for epoch in range(_DRAWS))]
    return contact_sheet.draw(f"{config['data']['name']}: {config['data']['train']}", columns, rows)


def _of_stored(
    config: Mapping[str, Any], data_dir: str | None, train: _Chain, evaluation: _Chain
) -> tuple[list[_Seen], Sequence[str]]:
    data = config["data"]
    found = store.stored(data["name"], data_dir)
    part = split_spec.parse((data.get("splits") or {}).get("train", "train"), found.sizes)
    read = found.read(part._replace(stop=min(part.stop, part.start + _SEARCHED)))
    field = data.get("label", "label")
    labels = read.fields[field]
    checks.labels(labels, read.ids, len(found.class_names), f"{found.where}: {part.split}, {field}")
    known = (labels.reshape(len(labels), -1) < (data.get("max_classes") or np.inf)).all(axis=1)
    chosen = _spread(np.flatnonzero(known))
    images = [read.images[row] for row in chosen]
    if isinstance(read.images, list):
        images = encoded.decode(images, found.num_channels, found.where)
    split = Split(np.stack(images), labels[chosen], read.ids[chosen]).with_int32()
    rows = np.arange(len(chosen))

    def seen(links, epoch):
        feed = next(resident.feeds(rows, len(rows), epoch))
        return np.asarray(
            resident.batch(jax.random.key(config["seed"]), split, feed, chain=links).inputs
        )

    views = [seen(evaluation, 0), *(seen(train, epoch) for epoch in range(_DRAWS))]
    return [
        _Seen(int(split.ids[r]), split.labels[r], [v[r] for v in views]) for r in rows
    ], found.class_names


def _of_stream(
    config: Mapping[str, Any], data_dir: str | None, train: _Chain, evaluation: _Chain
) -> tuple[list[_Seen], Sequence[str]]:
    from heteroscedastic.data.streaming import sources, stream

    choices = {name: value for name, value in config["data"].items() if name in _CHOICES}
    if choices.get("splits"):
        choices["splits"] = {
            "train": choices["splits"]["train"]
        }  # the others may lie in sets that are not there
    chosen = sources.choose(
        config["data"]["name"], data_dir, lambda data: data, reads_labels=False, **choices
    )
    source = chosen.sources["train"]
    ids = _spread(source.kept[:_SEARCHED])
    pipeline = stream.Streaming(
        chosen._replace(sources={"train": source._replace(kept=ids)}),
        seed=config["seed"],
        batch_size=len(ids),
        training_chain=train,
        chain=evaluation,
        lanes=1,
        max_labels=choices.get("max_labels", 16),
    )
    places = np.arange(len(ids))
    feeds = [next(iter(pipeline.feeds("train", places)))]
    feeds += [next(iter(pipeline.training_feeds(epoch, 0, places))) for epoch in range(_DRAWS)]
    views = [feed.inputs[np.argsort(feed.ids)] for feed in feeds]  # as each epoch has its own order
    labels = feeds[0].labels[np.argsort(feeds[0].ids)]
    return [
        _Seen(int(ids[i]), labels[i], [view[i] for view in views]) for i in places
    ], chosen.class_names


def _spread(rows: np.ndarray) -> np.ndarray:
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int))]

"""A sheet of training examples, as evaluation and as training see them. Requires Pillow."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from heteroscedastic import boxes as boxes_lib
from heteroscedastic import smoothing
from heteroscedastic.batch import Batch
from heteroscedastic.bind import bind, check_seed, in_section, lookup
from heteroscedastic.data import chains, checks, resident, split_spec
from heteroscedastic.data.dataset import Split
from heteroscedastic.data.inspect import contact_sheet
from heteroscedastic.data.storage import encoded, fields, originals, store

_ROWS, _DRAWS = 8, 6
_MAX_SEARCH = 2000  # number of examples among which those of the sheet are selected
# Settings of config.data that select the examples of a stream.
_SELECTION = (
    *("label", "splits", "max_classes", "max_examples", "max_labels"),
    *("extras", "max_boxes", "with_boxes"),
)
_Chain = Sequence[Callable]


class _Example(NamedTuple):
    """An example and its views."""

    id: int
    labels: np.ndarray
    views: list[np.ndarray]  # evaluation, then draws of training
    boxes: list[np.ndarray] | None  # of the views, if the config has boxes
    context: list[np.ndarray]  # whether the chain removed the objects of each view


def sheet(config: Mapping[str, Any], data_dir: str | None) -> bytes:
    """Draws a PNG file: per example, the view of evaluation and several draws of training.

    Of features, which have no chain, it draws the images that they were made from.

    Labels are the stored ones, before curation. If `config.data.extras` has boxes, views have them
    in red, and below them the objectness o and the target t of the first label.

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
            contact_sheet.View(contact_sheet.pixels(view, train if i else evaluation))
            for i, view in enumerate(example.views)
        ]
        if example.boxes is not None:
            notes = _notes(config, example, len(names))
            views = [
                view._replace(boxes=boxes, note=note)
                for view, boxes, note in zip(views, example.boxes, notes, strict=True)
            ]
        rows.append(contact_sheet.Row(f"{example.id}: {labels}", views))
    columns = ["evaluation", *(f"training {epoch}" for epoch in range(_DRAWS))]
    columns = columns[: len(examples[0].views)]
    return contact_sheet.draw(f"{config['data']['name']}: {config['data']['train']}", columns, rows)


def _notes(config: Mapping[str, Any], example: _Example, num_classes: int) -> list[str]:
    """The objectness and the target of the first label, of each view of an example."""
    number = len(example.boxes)
    boxes = jnp.asarray(np.stack(example.boxes), jnp.float32)
    notes = [f"o {value:.2f}" for value in boxes_lib.objectness(boxes)]
    settings = config.get("smoothing", {"name": "hard"})
    function = lookup(smoothing, settings["name"])
    if set(function.suits.required_extras(settings)) - {"boxes"}:
        return notes  # its soft labels are not read here
    labels = jnp.asarray(np.stack([example.labels] * number), jnp.int32)
    zeros = jnp.zeros(number, jnp.int32)
    extras = {"boxes": boxes, "context": jnp.asarray(np.stack(example.context))}
    batch = Batch(None, labels, jnp.ones(number), zeros, extras)
    targets = in_section("smoothing", bind, smoothing, **settings)(batch, num_classes)
    first = int(np.atleast_1d(example.labels)[0])
    return [f"{note} t {target:.2f}" for note, target in zip(notes, targets[:, first], strict=True)]


def _stored_examples(
    config: Mapping[str, Any], data_dir: str | None, train: _Chain, evaluation: _Chain
) -> tuple[list[_Example], Sequence[str]]:
    data = config["data"]
    has_boxes = "boxes" in data.get("extras", ())
    reading = {}
    if has_boxes:  # a further extra may say which boxes
        extras = [name for name in data["extras"] if name != "clean_labels"]
        reading = {"extras": extras, "max_boxes": data.get("max_boxes", fields.MAX_BOXES)}
    stored = store.stored_dataset(data["name"], data_dir, **reading)
    part = split_spec.parse(split_spec.expression(data, "train"), stored.sizes)
    examples = stored.read(part._replace(stop=min(part.stop, part.start + _MAX_SEARCH)))
    field = data.get("label", "label")
    for name in (field, "boxes") if has_boxes else (field,):
        if name not in examples.fields:
            raise ValueError(
                f"{stored.where} has no field {name!r}; its fields are"
                f" {', '.join(examples.fields)}."
            )
    labels, class_names = examples.fields[field], stored.class_names
    checks.labels(labels, examples.ids, len(class_names), f"{stored.where}: {part.split}, {field}")
    max_classes = data.get("max_classes") or np.inf
    is_selected = (labels.reshape(len(labels), -1) < max_classes).all(axis=1)
    chosen = _spaced_rows(np.flatnonzero(is_selected))
    if isinstance(examples.images, list):
        images = [examples.images[row] for row in chosen]
        images = encoded.decode(images, stored.num_channels, stored.where)
    else:
        ids, images = examples.ids[chosen], examples.images[chosen]
        images = originals.pictures(data, data_dir, "train", ids, images)
    if images.ndim != 4:
        raise ValueError(
            f"{stored.where} has features, so there are no images to draw; omit --out."
        )
    extras = {"boxes": examples.fields["boxes"][chosen]} if has_boxes else {}
    split = Split(np.stack(images), labels[chosen], examples.ids[chosen], extras).with_int32()
    rows = np.arange(len(chosen))

    def views_of(links, epoch):
        turns = np.full(len(rows), epoch % chains.occurrences(links))
        feed = next(resident.feeds(rows, len(rows), epoch, repeats=turns))
        batch = resident.batch(jax.random.key(config["seed"]), split, feed, chain=links)
        return jax.tree.map(np.asarray, batch)

    draws = range(_DRAWS if train else 0)
    views = [views_of(evaluation, 0), *(views_of(train, epoch) for epoch in draws)]
    return [_example([(view, row) for view in views]) for row in rows], class_names


def _stream_examples(
    config: Mapping[str, Any], data_dir: str | None, train: _Chain, evaluation: _Chain
) -> tuple[list[_Example], Sequence[str]]:
    from heteroscedastic.data.streaming import sources, stream

    settings = {name: value for name, value in config["data"].items() if name in _SELECTION}
    # The other splits may be in sets that are missing.
    if "train" in (settings.get("splits") or {}):
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
    reads = [pipeline.feeds("train", slots)]
    reads += [pipeline.training_feeds(epoch, 0, slots) for epoch in range(_DRAWS)]
    views: list[dict[int, tuple[Batch, int]]] = [{} for _ in reads]
    for view, read in zip(views, reads, strict=True):
        for feed in read:
            for row, i in enumerate(feed.ids.tolist()):
                # Each epoch has its own order; of an example that occurs twice, the first is drawn.
                view.setdefault(i, (feed, row))
    return [_example([view[i] for view in views]) for i in ids.tolist()], selection.class_names


def _example(views: Sequence[tuple[Batch, int | np.integer]]) -> _Example:
    """An example of which each view is a row of a batch."""
    first, row = views[0]
    boxes = [batch.extras["boxes"][i] for batch, i in views] if "boxes" in first.extras else None
    context = [
        batch.extras["context"][i] if "context" in batch.extras else np.False_ for batch, i in views
    ]
    inputs = [batch.inputs[i] for batch, i in views]
    return _Example(int(first.ids[row]), first.labels[row], inputs, boxes, context)


def _spaced_rows(rows: np.ndarray) -> np.ndarray:
    """At most `_ROWS` of the rows, evenly spaced."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int))]

"""The section about the images with the largest loss."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8
from scipy import special

from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import Group, RunSet
from heteroscedastic.analysis.report.page import Section
from heteroscedastic.data.storage import originals
from heteroscedastic.runs import loaded_run
from heteroscedastic.runs import predictions as predictions_lib
from heteroscedastic.runs.predictions import Predictions

_NUM_IMAGES = 12


def hardest(run_set: RunSet) -> Section:
    """The images of every group with the largest loss, averaged over its runs."""
    over_classes = ", summed over all classes," if run_set.link == "sigmoid" else ""
    parts: list[Any] = [
        page.paragraph(
            f"The examples of {run_set.evaluation} with the largest loss. The loss is the negative"
            f" log-probability of the label{over_classes} in nats, averaged over the runs of a"
            " group. An image can have a large loss because its label is wrong, because it shows"
            " several classes, or because it is difficult."
        )
    ]
    by_group: dict[int, list[dict[str, Any]]] = {}
    for i, (group, predictions) in enumerate(zip(run_set.groups, run_set.predictions)):
        try:
            rows, losses = largest_losses(predictions)
        except ValueError as error:
            parts.append(page.note(f"{group.name}: {error}"))
            continue
        by_group[i] = [
            _example(run_set, predictions, row) | {"loss": losses[row]} for row in rows.tolist()
        ]
    images, reason = _images(run_set, sorted({e["id"] for x in by_group.values() for e in x}))
    if reason:
        parts.append(page.note(f"The images are not available: {reason}"))
    numbers: dict[str, Any] = {}
    for i, examples in by_group.items():
        group = run_set.groups[i]
        numbers[page.file_name("hardest", i, group.name)] = examples
        parts.append(f"<h3>{page.text(group.name)}</h3>")
        parts.append(_sheet(examples, images) if images else _table(group, examples))
    return Section("Images with the largest loss", parts, numbers)


def largest_losses(
    predictions: list[Predictions], number: int = _NUM_IMAGES
) -> tuple[Int[np.ndarray, "m"], Float[np.ndarray, "n"]]:
    """The rows with the largest mean loss over runs, in descending order, and all losses (nats)."""
    losses = np.mean([predictions_lib.losses(p) for p in predictions], axis=0)
    return np.argsort(-losses, kind="stable")[:number], losses


def _images(
    run_set: RunSet, ids: list[int]
) -> tuple[dict[int, UInt8[np.ndarray, "h w c"]] | None, str]:
    """The images of these examples by id, or the reason why they are not available."""
    run = run_set.groups[0].runs[0]
    name = run.config["evals"][run_set.evaluation]["split"]
    try:
        split = loaded_run.examples(loaded_run.build(run, run_set.data_dir), name)
    except loaded_run.UNAVAILABLE as error:
        return None, str(error)
    rows = np.flatnonzero(np.isin(split.ids, ids))
    images = originals.pictures(
        run.config["data"], run_set.data_dir, name, split.ids[rows], split.inputs[rows]
    )
    if not figures.are_images(images):
        return None, "the inputs are features, and the images that they describe are elsewhere."
    return dict(zip(split.ids[rows].tolist(), images)), ""


def _example(run_set: RunSet, predictions: list[Predictions], row: int) -> dict[str, Any]:
    """The id and the labels of an example, and the classes that the runs predict on average.

    These are the two most probable classes, or under a sigmoid all classes above 1/2.
    """
    first, names = predictions[0], run_set.class_names
    labels = [names[c] for c in np.atleast_1d(first.labels[row]) if c >= 0]
    # By class number, because names may repeat. A run that saves only the largest logits counts as
    # probability 0 for all other classes.
    totals: dict[int, float] = {}
    for p in predictions:
        classes = np.arange(p.logits.shape[-1]) if p.classes is None else p.classes[row]
        logits = p.logits[row].astype(np.float64)
        if p.link == "sigmoid":
            probs = special.expit(logits)
        else:
            normalizer = (
                special.logsumexp(logits) if p.log_normalizer is None else p.log_normalizer[row]
            )
            probs = np.exp(logits - normalizer)
        for c, prob in zip(classes.tolist(), probs / len(predictions)):
            totals[c] = totals.get(c, 0.0) + float(prob)
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    predicted = [x for x in ranked if x[1] > 0.5] if first.link == "sigmoid" else ranked[:2]
    says = [{"class": c, "name": names[c], "probability": prob} for c, prob in predicted]
    return {"id": int(first.ids[row]), "labels": labels, "says": says}


def _sheet(examples, images) -> str:
    entries = []
    for example in examples:
        label, predicted = _texts(example)
        alt = f"Example {example['id']}, labelled {label}"
        caption = f"id {example['id']}\nlabelled {label}\npredicted {predicted}"
        caption += f"\nloss {example['loss']:.2f}"
        entries.append((images[example["id"]], alt, caption))
    return page.sheet(entries)


def _table(group: Group, examples) -> str:
    rows = [[e["id"], *_texts(e), f"{e['loss']:.2f}"] for e in examples]
    return page.table(
        f"Examples of {group.name} with the largest loss",
        ["id", "label", "predicted", "loss, nats"],
        rows,
    )


def _texts(example) -> tuple[str, str]:
    label = ", ".join(example["labels"]) or "nothing"
    predicted = ", ".join(
        f"{c['name']}\u00a0{100 * c['probability']:.0f}\u00a0%" for c in example["says"]
    )
    return label, predicted or "nothing"

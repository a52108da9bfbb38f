"""The examples that the runs find hardest, as images."""

from typing import Any

import numpy as np
from scipy import special

from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import Compared, Group
from heteroscedastic.analysis.report.page import Section
from heteroscedastic.runs import loaded_run, predictions
from heteroscedastic.runs.predictions import Predictions

_NUM_SHOWN = 12


def hardest(compared: Compared) -> Section:
    """Of every group the images of the largest loss, by the mean over its runs."""
    parts: list[Any] = [
        page.paragraph(
            f"The examples of {compared.on} with the largest loss, -log p of the label"
            + (", summed over the yes/no answers" if compared.link == "sigmoid" else "")
            + ", in nats, by the mean over the runs of a group. A wrong label, two things in one image and a thing that"
            " is hard to tell all look alike here."
        )
    ]
    numbers: dict[str, Any] = {}
    images, why = _images(compared)
    if why:
        parts.append(page.note(f"The images are not shown: {why}"))
    for i, (group, told) in enumerate(zip(compared.groups, compared.told)):
        try:
            rows, losses = largest(told)
        except ValueError as error:
            parts.append(page.note(f"{group.name}: {error}"))
            continue
        examples = [_said(compared, told, row) | {"loss": losses[row]} for row in rows.tolist()]
        numbers[page.file_name("hardest", i, group.name)] = examples
        parts.append(f"<h3>{page.text(group.name)}</h3>")
        parts.append(_sheet(examples, images) if images else _table(group, examples))
    return Section("Hardest images", parts, numbers)


def largest(told: list[Predictions], number: int = _NUM_SHOWN) -> tuple[np.ndarray, np.ndarray]:
    """Places of the examples of the largest mean loss over runs, falling, and the losses of all;
    nats.
    """
    losses = np.mean([predictions.losses(p) for p in told], axis=0)
    return np.argsort(-losses, kind="stable")[:number], losses


def _images(compared: Compared) -> tuple[dict[int, np.ndarray] | None, str]:
    """The images of the evaluation by id; or why they are not there."""
    run = compared.groups[0].runs[0]
    try:
        split = loaded_run.build(run, compared.data_dir).dataset.splits[
            run.config["evals"][compared.on]["split"]
        ]
    except loaded_run.NOT_HERE as error:
        return None, str(error)
    return dict(zip(split.ids.tolist(), split.inputs)), ""


def _said(compared: Compared, told: list[Predictions], row: int) -> dict[str, Any]:
    """What an example is called, and what the runs say of it: the two likeliest classes over them,
    and how sure.
    """
    first, names = told[0], compared.class_names
    labels = [names[c] for c in np.atleast_1d(first.labels[row]) if c >= 0]
    totals: dict[
        int, float
    ] = {}  # by number, as classes may share a name; 0 of a run that keeps likelier ones alone
    for p in told:
        classes = np.arange(p.logits.shape[-1]) if p.classes is None else p.classes[row]
        logits = p.logits[row].astype(np.float64)
        if p.link == "sigmoid":
            probs = special.expit(logits)
        else:
            probs = np.exp(
                logits
                - (special.logsumexp(logits) if p.log_normalizer is None else p.log_normalizer[row])
            )
        for c, share in zip(classes.tolist(), probs / len(told)):
            totals[c] = totals.get(c, 0.0) + float(share)
    found = sorted(totals.items(), key=lambda item: -item[1])
    shares = dict(
        [item for item in found if item[1] > 0.5] if first.link == "sigmoid" else found[:2]
    )
    says = [{"class": c, "name": names[c], "probability": share} for c, share in shares.items()]
    return {"id": int(first.ids[row]), "labels": labels, "says": says}


def _sheet(examples, images) -> str:
    shown = []
    for example in examples:
        label, said = _words(example)
        alt = f"Example {example['id']}, labelled {label}"
        shown.append(
            (images[example["id"]], alt, f"{label}\nsaid {said}\nloss {example['loss']:.2f}")
        )
    return page.sheet(shown)


def _table(group: Group, examples) -> str:
    rows = [[e["id"], *_words(e), f"{e['loss']:.2f}"] for e in examples]
    return page.table(
        f"Hardest examples of {group.name}", ["id", "label", "said", "loss, nats"], rows
    )


def _words(example) -> tuple[str, str]:
    label = ", ".join(example["labels"]) or "nothing"
    said = ", ".join(
        f"{c['name']}\u00a0{100 * c['probability']:.0f}\u00a0%" for c in example["says"]
    )
    return label, said or "nothing"

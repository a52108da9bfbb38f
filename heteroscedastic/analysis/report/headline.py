"""The headline of a report: in words, how the groups differ and what the label noise explains."""

from typing import NamedTuple

import numpy as np

from heteroscedastic.analysis.covariance import known_noise
from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.report import measured as measured_lib
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.measured import Measured
from heteroscedastic.analysis.uncertainty import intervals
from heteroscedastic.runs import loaded_run
from heteroscedastic.runs import predictions as predictions_lib

_HEADS = {
    "Deterministic": "the plain head",
    "Diagonal": "the diagonal head",
    "LowRank": "the low-rank head",
    "ParameterEfficient": "the parameter-efficient head",
}
_ACCURACY = {"softmax": "accuracy", "sigmoid": "label_accuracy"}


class Labels(NamedTuple):
    """What is known of the examples of a report from the data of its first run."""

    examples: str = "examples"  # or "images"
    wrong: dict[str, float] = {}  # fraction of wrong labels by evaluation; without data empty


def known_labels(run_set: RunSet) -> Labels:
    """Reads the data of the first run, if it is available, and compares labels with clean ones."""
    run = run_set.groups[0].runs[0]
    by_evaluation = {run_set.evaluation: run_set.predictions[0][0]}
    if run_set.fit is not None and run_set.fit_predictions is not None:
        by_evaluation[run_set.fit] = run_set.fit_predictions[0][0]
    splits = {name: run.config["evals"][name]["split"] for name in by_evaluation}
    try:
        built = loaded_run.build(run, run_set.data_dir)
        wrong = {}
        for name, predictions in by_evaluation.items():
            clean = loaded_run.clean_labels(built, splits[name], predictions.ids)
            by_id = dict(zip(predictions.ids.tolist(), clean))
            wrong[name] = float(np.mean(predictions_lib.is_noisy(predictions, by_id)))
        inputs = loaded_run.examples(built, splits[run_set.evaluation]).inputs
    except loaded_run.UNAVAILABLE:
        return Labels()
    return Labels("images" if figures.are_images(inputs) else "examples", wrong)


def subjects(run_set: RunSet) -> list[str]:
    """The groups as the subjects of sentences: by their heads if these differ, else by name."""
    heads = [group.runs[0].config["head"]["name"] for group in run_set.groups]
    if len(set(heads)) < len(heads) or not set(heads) <= set(_HEADS):
        return [group.name for group in run_set.groups]
    return [_HEADS[head] for head in heads]


def headline(run_set: RunSet, measured: Measured, labels: Labels) -> str:
    """The headline as HTML: the difference in accuracy, and the noise of the training labels."""
    metric = _ACCURACY[run_set.link]
    sentences = []
    if metric in measured.means:
        sentences = _comparisons(run_set, measured, labels, metric)
    parts = [f'<p class="headline">{_text(sentence)}</p>' for sentence in sentences]
    if noise := _noise(run_set, measured, labels):
        parts.append(f"<p>{_text(noise)}</p>")
    return "\n".join(parts)


def _text(sentence: str) -> str:
    """A sentence as HTML that keeps each number and its unit on one line."""
    return page.text(sentence.replace(" %", "\u00a0%"))


def _comparisons(run_set: RunSet, measured: Measured, labels: Labels, metric: str) -> list[str]:
    names = subjects(run_set)
    means = measured.means[metric]
    things = f"{_clean(run_set, labels)}{_split(run_set)} {labels.examples}"
    answers = f"of the {things}"
    if metric == "label_accuracy":
        answers = f"of the class labels of the {things}"
    if len(names) == 1:
        low, high = (100 * x for x in means[0][1:])
        return [
            f"{_capital(names[0])} is right on {100 * means[0].value:.1f} % {answers} (95 %"
            f" interval {low:.1f} to {high:.1f}, {_bootstrap(run_set, labels, 0)})."
        ]
    sentences = []
    for i, interval in enumerate(measured.differences[metric], 1):
        points = 100 * np.array(interval)
        direction = "more" if points[0] >= 0 else "fewer"
        size, low, high = points if points[0] >= 0 else -points[[0, 2, 1]]
        sentence = (
            f"{_capital(names[i])} is right on {size:.1f} points {direction} {answers} than"
            f" {names[0]} (95 % interval {low:.1f} to {high:.1f}, paired"
            f" {_bootstrap(run_set, labels, i)}): {100 * means[i].value:.1f} % against"
            f" {100 * means[0].value:.1f} %."
        )
        if interval.has_zero:
            sentence += " The difference is not statistically significant."
        sentences.append(sentence)
    return sentences


def _noise(run_set: RunSet, measured: Measured, labels: Labels) -> str:
    """The noise of the training labels, and why ECE on clean labels rises with it."""
    rates = [known_noise.noise_rate(run.dataset) for group in run_set.groups for run in group.runs]
    known = [100 * rate for rate in rates if rate is not None]
    if not known or not max(known):
        return ""
    low, high = min(known), max(known)
    share = f"{low:.1f} %" if high - low < 0.05 else f"{low:.1f} to {high:.1f} %"
    text = f"{share} of the training labels are wrong"
    if not _clean(run_set, labels):
        return text + "."
    text += f", but the labels of {run_set.evaluation} are clean."
    if not {"ece", "confidence", "accuracy"} <= set(measured.means):
        return text
    names = subjects(run_set)
    below = [
        f"{name} is {100 * confidence.value:.1f} % confident and {100 * accuracy.value:.1f} %"
        f" right (ECE {ece.value:.3f})"
        for name, confidence, accuracy, ece in zip(
            names, *(measured.means[x] for x in ("confidence", "accuracy", "ece"))
        )
        if confidence.value < accuracy.value
    ]
    if not below:
        return text
    text += (
        " Probabilities that fit the training labels include their noise, so confidence stays below"
        f" the accuracy on clean labels, and ECE rises: {'; '.join(below)}."
    )
    return text + _noisy_error(run_set, labels)


def _noisy_error(run_set: RunSet, labels: Labels) -> str:
    """The calibration error on held-out labels with the noise of training, as a sentence."""
    fit = run_set.fit
    if fit is None or not labels.wrong.get(fit):
        return ""
    evals = [[run.results["evals"].get(fit, {}) for run in g.runs] for g in run_set.groups]
    if not all("ece" in x for group in evals for x in group):
        return ""
    errors = [f"{np.mean([x['ece'] for x in group]):.3f}" for group in evals]
    names = subjects(run_set)
    stated = ", ".join(f"{error} for {name}" for error, name in zip(errors, names))
    return (
        f" On the held-out labels of {fit}, {100 * labels.wrong[fit]:.1f} % of which are wrong"
        f" too, ECE is {stated}."
    )


def _bootstrap(run_set: RunSet, labels: Labels, group: int) -> str:
    units = intervals.units(run_set.predictions[0][0], labels.examples)
    num_seeds = len(measured_lib.same_seeds(run_set, group)) or len(run_set.groups[group].runs)
    seeds = f" and t interval over {num_seeds} seeds" if num_seeds > 1 else ""
    return f"bootstrap over {units}{seeds}"


def _clean(run_set: RunSet, labels: Labels) -> str:
    """Names the labels clean if those of training are not, and all of the evaluation are."""
    rates = [known_noise.noise_rate(run.dataset) for g in run_set.groups for run in g.runs]
    return "clean " if any(rates) and labels.wrong.get(run_set.evaluation) == 0 else ""


def _split(run_set: RunSet) -> str:
    return str(run_set.groups[0].runs[0].config["evals"][run_set.evaluation]["split"])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith("the ") else text

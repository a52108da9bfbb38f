"""The pairs of classes that the noise of the runs ties together."""

from typing import Any

import numpy as np

from heteroscedastic.analysis.covariance import known_noise, summary
from heteroscedastic.analysis.plots import heat_map
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import Compared
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.runs import loaded_run

_NUM_CLASSES = 12  # of a heat map, so that its numbers are read on a phone
_NUM_PAIRS = 10
_SEEN = "p₁p₂ var(u₁\u00a0-\u00a0u₂)"
_COLUMNS = {
    "seen": _SEEN,
    "covariance": "covariance",
    "correlation": "correlation",
    "labels_mixed": "labels mixed",
}
_PANELS = {"correlation": "correlation of the averaged covariance", "seen": f"mean of {_SEEN}"}


def class_pairs(compared: Compared) -> Section:
    """Of the first run of each group: the pairs of classes, heat maps, parts of the variance,
    agreement with noise.
    """
    parts: list[Any] = [
        page.paragraph(
            "Pairs of classes whose utilities the noise ties together, by the first run of each"
            " group, averaged over"
            f" the examples of {compared.on}; in units of the utilities. A softmax sees of a pair"
            " the variance of the"
            f" difference of its utilities, where both classes are probable: {_SEEN}."
        )
    ]
    numbers: dict[str, Any] = {}
    for i, group in enumerate(compared.groups):
        run = group.runs[0]
        if not loaded_run.has_noise(run.config):
            parts.append(
                page.note(f"{group.name}: its head has no noise, which could tie classes together.")
            )
            continue
        try:
            found, split = loaded_run.evaluated(run, compared.on, compared.data_dir)
            told = summary.ties(found, split, num_pairs=_NUM_PAIRS, num_classes=_NUM_CLASSES)
        except loaded_run.NOT_HERE as error:
            parts.append(page.note(f"The class pairs of {group.name} are not told: {error}"))
            continue
        title = f"{group.name}, seed {run.config['seed']}"
        numbers[page.file_name("class_pairs", i, group.name)] = {"pairs": told.pairs, **told.facts}
        parts += [
            f"<h3>{page.text(title)}</h3>",
            page.paragraph(_shares(told.facts) + _probabilities(told.facts)),
        ]
        parts += [
            _heat_map(told, name, title, i, group.name) for name in _PANELS if name in told.block[0]
        ]
        parts += [_table(told), *_agreement(told, found.dataset)]
    return Section("Classes that the noise ties together", parts, numbers)


def _shares(facts: dict[str, Any]) -> str:
    return (
        f"Of the variance of the utilities {100 * facts['diagonal']:.1f} % is of the diagonal and"
        f" {100 * facts['factors']:.1f} % of the factors of the covariance;"
        f" {100 * facts['common']:.1f} % is common to"
        " all classes, which a softmax does not see."
    )


def _probabilities(facts: dict[str, Any]) -> str:
    if (found := facts.get("with_probabilities", {}).get("covariance")) is None:
        return ""
    return (
        " Over pairs of classes, the size of the averaged covariance and the average of p₁p₂ have"
        " a rank correlation of"
        f" {_number(found['rho'])} (p {_number(found['p'])}, by renamed classes)."
    )


def _heat_map(told: summary.Ties, name: str, title: str, place: int, group: str) -> Picture:
    first = ", ".join(f"{row['class']} and {row['other']}" for row in told.pairs[:3])
    framed = (
        " Framed: labels known to be mixed most."
        if any(row.get("labels_mixed") for row in told.block)
        else ""
    )
    return Picture(
        page.file_name("class_pairs", name, place, group),
        f"{title}: {_PANELS[name]}, of the classes of the first pairs, those that vary together"
        f" side by side.{framed}",
        f"Heat map of {_PANELS[name]} between {', '.join(told.names)}; the first pairs are"
        f" {first}.",
        heat_map.of_group(told.names, told.block, title, (name,)),
        told.block,
    )


def _table(told: summary.Ties) -> str:
    columns = [name for name in _COLUMNS if name in told.pairs[0]]
    rows = [
        [f"{row['class']}, {row['other']}", *(f"{row[name]:.3g}" for name in columns)]
        for row in told.pairs
    ]
    head = ["classes", *(_COLUMNS[name] for name in columns)]
    return page.table(f"The first pairs by {_COLUMNS.get(told.by, told.by)}", head, rows)


def _agreement(told: summary.Ties, description: dict[str, Any]) -> list[str]:
    """How well each measure finds the confusions of labels that are known."""
    if (found := told.facts.get("agreement_with_known_noise")) is None:
        return [page.note("No label noise is known, so there are no confusions to agree with.")]
    mixed = np.count_nonzero(np.triu(known_noise.confusions(description)))
    pairs = len(description["class_names"]) * (len(description["class_names"]) - 1) // 2
    rows = [
        [name.replace("_", " "), *(_number(a[x]) for x in ("first", "auc", "rho", "p"))]
        for name, a in found.items()
    ]
    to_find = next(iter(found.values()))["to_find"]
    caption = f"Agreement with the known label noise, which mixes {mixed} of {pairs} pairs"
    if to_find < mixed:
        caption += f"; to find are the {to_find} most mixed, a tenth of them and three at least"
    head = [
        "measure",
        f"of these among the first {to_find}",
        "AUROC",
        "rank correlation",
        "p of it",
    ]
    return [page.table(caption, head, rows)]


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3g}"

"""The section about the class pairs whose noise is correlated."""

from typing import Any

import numpy as np

from heteroscedastic.analysis.covariance import known_noise, summary
from heteroscedastic.analysis.plots import heat_map
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.page import Picture, Section
from heteroscedastic.runs import loaded_run as loaded_run_lib

_NUM_CLASSES = 12  # of a heat map, so that its numbers are readable on a phone
_NUM_PAIRS = 10
_SEEN = "p₁p₂ var(u₁\u00a0\u2212\u00a0u₂)"
_COLUMNS = {
    "seen": _SEEN,
    "covariance": "covariance",
    "correlation": "correlation",
    "labels_mixed": "label confusion",
}
_PANELS = {"correlation": "correlation of the averaged covariance", "seen": f"mean of {_SEEN}"}


def class_pairs(run_set: RunSet) -> Section:
    """The class pairs with correlated noise, for the first run of each group."""
    parts: list[Any] = [
        page.paragraph(
            "A heteroscedastic head adds noise to the utilities u of the classes, and this section"
            " shows which classes have related noise. All values are averages over the examples of"
            f" {run_set.evaluation}, for the first run of each group, in units of the utilities."
            " The softmax depends on the noise of two classes only through the variance of the"
            " difference of their utilities, and only for images where both probabilities p are"
            f" large. Pairs are therefore ranked by the mean of {_SEEN}. A large value means that"
            " the run is uncertain which of the two classes is correct; the covariance itself can"
            " have either sign."
        )
    ]
    numbers: dict[str, Any] = {}
    for i, group in enumerate(run_set.groups):
        run = group.runs[0]
        if not loaded_run_lib.has_noise(run.config):
            parts.append(page.note(f"{group.name} is not included, because its head has no noise."))
            continue
        try:
            loaded_run, split = run_set.loaded(run)
            pairs = summary.class_pairs(
                loaded_run, split, num_pairs=_NUM_PAIRS, num_classes=_NUM_CLASSES
            )
        except loaded_run_lib.UNAVAILABLE as error:
            parts.append(page.note(f"The class pairs of {group.name} are not available: {error}"))
            continue
        title = f"{group.name}, seed {run.config['seed']}"
        numbers[page.file_name("class_pairs", i, group.name)] = {
            "pairs": pairs.pairs,
            **pairs.facts,
        }
        parts += [
            f"<h3>{page.text(title)}</h3>",
            page.paragraph(_variance_text(pairs.facts) + _probability_text(pairs.facts)),
        ]
        parts += [
            _heat_map(pairs, name, title, i, group.name)
            for name in _PANELS
            if name in pairs.block[0]
        ]
        parts += [_table(pairs), *_agreement(pairs, loaded_run.dataset)]
    return Section("Classes with correlated noise", parts, numbers)


def _variance_text(facts: dict[str, Any]) -> str:
    return (
        f"The diagonal of the covariance contributes {100 * facts['diagonal']:.1f} % of the"
        f" variance of the utilities, and its factors contribute {100 * facts['factors']:.1f} %."
        f" Of the variance, {100 * facts['common']:.1f} % is common to all classes and has no"
        " effect on the softmax."
    )


def _probability_text(facts: dict[str, Any]) -> str:
    if (result := facts.get("with_probabilities", {}).get("covariance")) is None:
        return ""
    return (
        " Over all class pairs, the rank correlation between the absolute covariance and the mean"
        f" of p₁p₂ is {_number(result['rho'])} (p {_number(result['p'])} by a permutation test of"
        " the classes)."
    )


def _heat_map(pairs: summary.ClassPairs, name: str, title: str, index: int, group: str) -> Picture:
    first = ", ".join(f"{row['class']} and {row['other']}" for row in pairs.pairs[:3])
    framed = (
        " Frames mark those of these pairs with the most known label confusion."
        if any(row.get("labels_mixed") for row in pairs.block)
        else ""
    )
    largest = max(pairs.block, key=lambda row: abs(row[name]))
    return Picture(
        page.file_name("class_pairs", name, index, group),
        f"{largest['class']} and {largest['other']} have the value of largest size,"
        f" {largest[name]:.2g}.",
        f"{title}: {_PANELS[name]}, for the classes of the first pairs. Strongly correlated classes"
        f" are next to each other.{framed}",
        f"Heat map of {_PANELS[name]} between {', '.join(pairs.names)}; the first pairs are"
        f" {first}.",
        heat_map.group_map(pairs.names, pairs.block, title, (name,)),
        pairs.block,
    )


def _table(pairs: summary.ClassPairs) -> str:
    columns = [name for name in _COLUMNS if name in pairs.pairs[0]]
    rows = [
        [f"{row['class']}, {row['other']}", *(f"{row[name]:.3g}" for name in columns)]
        for row in pairs.pairs
    ]
    head = ["classes", *(_COLUMNS[name] for name in columns)]
    caption = f"The class pairs with the largest {_COLUMNS.get(pairs.measure, pairs.measure)}"
    if "labels_mixed" in columns:
        caption += (
            "; label confusion: fraction of the examples of both classes that carry the other"
            " class's label"
        )
    return page.table(caption, head, rows)


def _agreement(pairs: summary.ClassPairs, description: dict[str, Any]) -> list[str]:
    """How well each measure finds the known label confusions."""
    if (agreements := pairs.facts.get("agreement_with_known_noise")) is None:
        return [
            page.note("No label noise is known, so the pairs cannot be compared with confusions.")
        ]
    num_confused = np.count_nonzero(np.triu(known_noise.confusion_matrix(description)))
    num_classes = len(description["class_names"])
    rows = [
        [name.replace("_", " "), *(_number(a[x]) for x in ("first", "auc", "rho", "p"))]
        for name, a in agreements.items()
    ]
    to_find = next(iter(agreements.values()))["to_find"]
    caption = (
        f"Agreement with the known label noise, which confuses {num_confused} of"
        f" {num_classes * (num_classes - 1) // 2} class pairs"
    )
    if to_find < num_confused:
        caption += f". The target is the {to_find} most confused pairs"
    head = [
        "measure",
        f"target pairs among its first {to_find}",
        "AUROC for the target pairs",
        "rank correlation with the confusion",
        "p of the correlation",
    ]
    return [page.table(caption, head, rows)]


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3g}"

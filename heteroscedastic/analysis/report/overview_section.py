"""What was run and what came out: metrics, settings that differ, data, environment."""

import json
import re
from typing import Any

from heteroscedastic import metrics
from heteroscedastic.analysis.covariance import known_noise
from heteroscedastic.analysis.report import comparison, page
from heteroscedastic.analysis.report.comparison import Compared
from heteroscedastic.analysis.report.page import Section
from heteroscedastic.analysis.uncertainty import calibration
from heteroscedastic.runs import predictions

_SCALED = ("nll", "brier", "ece")  # told again after temperature scaling, where a run has them


def results(compared: Compared, paper: dict[str, Any] | None = None) -> Section:
    """Metrics of every group: mean and spread over its runs, differences from the first, a paper's
    numbers beside.

    Args:
      compared: groups of runs.
      paper: {"note": text, "numbers": {name of a group: {metric: value or text}}}.

    Raises:
      ValueError: the paper's numbers are of groups that are not there.
    """
    numbers = (paper or {}).get("numbers", {})
    unknown = sorted(set(numbers) - {group.name for group in compared.groups})
    if unknown:
        names = ", ".join(group.name for group in compared.groups)
        raise ValueError(
            f"there are numbers of a paper for {', '.join(unknown)}, but the groups are {names}."
        )
    told, left_out = _metrics(compared)
    head, rows = _rows(compared, told)
    several = any(len(group.runs) > 1 for group in compared.groups)
    caption = f"Evaluation {compared.on}: mean" + (
        " ± standard deviation over seeds" if several else ""
    )
    if len(compared.groups) > 1:
        caption += f"; difference from {compared.groups[0].name}, paired by seed"
        caption += ", ± half its 95 % interval, each on its own" if several else ""
    parts = [page.table(caption, head, rows)]
    if compared.fit is None:
        parts.append(
            page.note(
                "Nothing is scaled: a run has no predictions to fit a temperature on; see --fit."
            )
        )
    if numbers:
        beside = [
            [
                f"{_arrow(metric)}, {group.name}",
                comparison.spread(list(by_group[i].values())),
                numbers[group.name][metric],
            ]
            for metric, by_group in told.items()
            for i, group in enumerate(compared.groups)
            if metric in numbers.get(group.name, {})
        ]
        parts.append(
            page.table(
                f"Beside the paper, in its own units: {paper['note']}",
                ["metric", "here", "paper"],
                beside,
            )
        )
    if left_out:
        parts.append(page.note(f"Not every run tells {', '.join(left_out)}; left out."))
    parts.append(page.details("Other evaluations", _other_evaluations(compared)))
    values = {
        group.name: {m: by_group[i] for m, by_group in told.items()}
        for i, group in enumerate(compared.groups)
    }
    return Section("Results", parts, {"results": values})


def _metrics(compared: Compared) -> tuple[dict[str, list[dict[int, float]]], list[str]]:
    """Of each metric that all runs tell, by group: its value by seed; and the names of the others."""
    runs = [run for group in compared.groups for run in group.runs]
    evals = [run.results["evals"][compared.on] for run in runs]
    names = list(dict.fromkeys(name for found in evals for name in found))
    common = [name for name in names if all(name in found for found in evals)]
    told = {
        name: [
            {run.config["seed"]: run.results["evals"][compared.on][name] for run in group.runs}
            for group in compared.groups
        ]
        for name in common
    }
    if compared.fitted_on is not None and all(
        p.classes is None for group in compared.told for p in group
    ):
        scaled = [
            {run.config["seed"]: _after_scaling(*pair) for run, *pair in zip(group.runs, fit, on)}
            for group, fit, on in zip(compared.groups, compared.fitted_on, compared.told)
        ]
        told["fitted temperature"] = [
            {seed: found["temperature"] for seed, found in group.items()} for group in scaled
        ]
        for name in _SCALED:
            if all(name in found for group in scaled for found in group.values()):
                told[f"{name}, scaled"] = [
                    {seed: found[name] for seed, found in group.items()} for group in scaled
                ]
    return told, [name for name in names if name not in common]


def _after_scaling(fit: predictions.Predictions, on: predictions.Predictions) -> dict[str, float]:
    temperature = calibration.fitted(fit.logits, fit.labels, fit.link)
    return calibration.measures(on.logits / temperature, on.labels, on.link) | {
        "temperature": temperature
    }


def _rows(compared, told) -> tuple[list[str], list[list[str]]]:
    head = ["metric", *(f"{group.name} ({len(group.runs)})" for group in compared.groups)]
    head += [f"{group.name}, difference" for group in compared.groups[1:]]
    rows = []
    for metric, by_group in told.items():
        row = [_arrow(metric), *(comparison.spread(list(values.values())) for values in by_group)]
        for values in by_group[1:]:
            row.append(comparison.difference(values, by_group[0]) or "no seed in common")
        rows.append(row)
    return head, rows


def _arrow(metric: str) -> str:
    """Which way is better, where one is."""
    name = metric.removesuffix(", scaled")
    if name in ("fitted temperature", "confidence"):
        return metric
    return f"{metric}\u00a0{'↓' if name in metrics.LOWER_IS_BETTER else '↑'}"


def _other_evaluations(compared: Compared) -> str:
    found = []
    names = {
        name for group in compared.groups for run in group.runs for name in run.results["evals"]
    }
    for name in sorted(names - {compared.on}):
        rows = []
        for group in compared.groups:
            evals = [
                run.results["evals"][name] for run in group.runs if name in run.results["evals"]
            ]
            shared = [m for m in (evals[0] if evals else {}) if all(m in e for e in evals)]
            rows += [
                [f"{group.name}: {_arrow(m)}", comparison.spread([e[m] for e in evals])]
                for m in shared
            ]
        found.append(page.table(f"Evaluation {name}", ["metric", "mean ± deviation"], rows))
    return "".join(found) or page.paragraph("There is no other.")


def configs(compared: Compared) -> Section:
    """The settings that differ, and the first config in full."""
    differing = comparison.differences(compared.groups)
    parts: list[Any] = []
    if differing:
        rows = [[name, *(_values(v) for v in values)] for name, values in differing.items()]
        head = ["setting", *(group.name for group in compared.groups)]
        parts.append(page.table("Settings that are not the same in all runs", head, rows))
    else:
        seeds = ", ".join(str(run.config["seed"]) for run in compared.groups[0].runs)
        parts.append(page.paragraph(f"There is one config; seeds {seeds}."))
    first = compared.groups[0]
    full = json.dumps(first.runs[0].config, indent=1, sort_keys=True)
    inside = f'<div class="scroll" tabindex="0" role="region" aria-label="Config"><pre>{page.text(full)}</pre></div>'
    parts.append(
        page.details(
            f"The whole config of {first.name}, seed {first.runs[0].config['seed']}", inside
        )
    )
    return Section("What differs between the configs", parts, {"settings": differing})


def _values(values: list[Any]) -> str:
    return ", ".join("-" if value is None else str(value) for value in values)


def data(compared: Compared) -> Section:
    """Classes, sizes, and the label noise that is known, from dataset.json."""
    rows = []
    for group in compared.groups:
        for run in group.runs:
            told = run.dataset
            sizes = ", ".join(f"{n} {size:,}" for n, size in told.get("num_examples", {}).items())
            noise, fingerprint = known_noise.share(told), told.get("fingerprint", "unknown")[:12]
            share = "not known" if noise is None else f"{100 * noise:.1f} %"
            rows.append([f"{group.name}, seed {run.config['seed']}", sizes, share, fingerprint])
    names = compared.class_names
    listed = page.details(f"The {len(names):,} classes", page.paragraph(", ".join(names[:2000])))
    head = ["run", "examples", "training labels known to be wrong", "fingerprint"]
    return Section("Data", [page.table("What each run saw", head, rows), listed])


def environment(compared: Compared) -> Section:
    """On what, with what and how long each run was made."""
    rows = []
    for group in compared.groups:
        for run in group.runs:
            told = run.results
            versions = (
                ", ".join(f"{n} {v}" for n, v in told.get("versions", {}).items()) or "unknown"
            )
            seconds = told.get("seconds")
            rows.append(
                [
                    f"{group.name}, seed {run.config['seed']}",
                    told.get("device") or "unknown",
                    "unknown" if seconds is None else _duration(seconds),
                    f"{told['step']:,}",
                    f"{told['num_parameters']:,}" if "num_parameters" in told else "unknown",
                    re.sub(
                        r"\b([0-9a-f]{7})[0-9a-f]{33}\b", r"\1", told.get("commit") or "unknown"
                    ),
                    versions,
                ]
            )
    head = ["run", "device", "duration", "steps", "parameters", "commit", "versions"]
    return Section("Environment", [page.table("How each run was made", head, rows)])


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"

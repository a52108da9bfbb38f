"""Sections about metrics, settings, data and the environment of runs."""

import json
import re
from typing import Any

from heteroscedastic import metrics
from heteroscedastic.analysis.covariance import known_noise
from heteroscedastic.analysis.report import comparison, page
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.page import Section
from heteroscedastic.analysis.uncertainty import calibration
from heteroscedastic.runs.predictions import Predictions

_SCALED = ("nll", "brier", "ece")  # reported after temperature scaling as well

# For each metric and group, its values by seed.
_Values = dict[str, list[dict[int, float]]]


def results(run_set: RunSet, paper: dict[str, Any] | None = None) -> Section:
    """Metrics of every group, with differences from the first group and a paper's numbers.

    Args:
      run_set: groups of runs.
      paper: {"note": text, "numbers": {name of a group: {metric: value or text}}}.

    Raises:
      ValueError: the paper has numbers for a group that does not exist.
    """
    numbers = (paper or {}).get("numbers", {})
    unknown = sorted(set(numbers) - {group.name for group in run_set.groups})
    if unknown:
        names = ", ".join(group.name for group in run_set.groups)
        raise ValueError(
            f"the paper has numbers for {', '.join(unknown)}, which is no group; the groups are"
            f" {names}."
        )
    values, incomplete = _metrics(run_set)
    head, rows = _rows(run_set, values)
    repeated = any(len(group.runs) > 1 for group in run_set.groups)
    caption = f"Evaluation {run_set.evaluation}: mean" + (
        " ± standard deviation over seeds" if repeated else ""
    )
    if len(run_set.groups) > 1:
        caption += f", and difference from {run_set.groups[0].name}, paired by seed"
        if repeated:
            caption += " (± half the width of its 95 % confidence interval)"
    caption += ". Higher is better for ↑, lower is better for ↓"
    parts = [page.table(caption, head, rows)]
    if run_set.fit is None:
        parts.append(
            page.note(
                "There are no metrics after temperature scaling, because a run has no predictions"
                " to fit a temperature on; name an evaluation with --fit."
            )
        )
    if numbers:
        paper_rows = [
            [
                f"{_arrow(metric)}, {group.name}",
                comparison.spread(list(by_group[i].values())),
                numbers[group.name][metric],
            ]
            for metric, by_group in values.items()
            for i, group in enumerate(run_set.groups)
            if metric in numbers.get(group.name, {})
        ]
        caption = f"Comparison with the paper, in the paper's units: {paper['note']}"
        parts.append(page.table(caption, ["metric", "here", "paper"], paper_rows))
    if incomplete:
        parts.append(
            page.note(f"Left out, because not every run reports them: {', '.join(incomplete)}.")
        )
    parts.append(page.details("Other evaluations", _other_evaluations(run_set)))
    by_group_name = {
        group.name: {metric: by_group[i] for metric, by_group in values.items()}
        for i, group in enumerate(run_set.groups)
    }
    return Section("Results", parts, {"results": by_group_name})


def _metrics(run_set: RunSet) -> tuple[_Values, list[str]]:
    """The metrics that all runs report, and the names of the other metrics."""
    runs = [run for group in run_set.groups for run in group.runs]
    evals = [run.results["evals"][run_set.evaluation] for run in runs]
    names = list(dict.fromkeys(name for metrics_of_run in evals for name in metrics_of_run))
    common = [name for name in names if all(name in x for x in evals)]
    values = {
        name: [
            {
                run.config["seed"]: run.results["evals"][run_set.evaluation][name]
                for run in group.runs
            }
            for group in run_set.groups
        ]
        for name in common
    }
    if run_set.fit_predictions is not None and all(
        p.classes is None for group in run_set.predictions for p in group
    ):
        scaled = [
            {
                run.config["seed"]: _scaled_metrics(fit, predictions)
                for run, fit, predictions in zip(group.runs, fit_group, group_predictions)
            }
            for group, fit_group, group_predictions in zip(
                run_set.groups, run_set.fit_predictions, run_set.predictions
            )
        ]
        values["fitted temperature"] = [
            {seed: x["temperature"] for seed, x in group.items()} for group in scaled
        ]
        for name in _SCALED:
            if all(name in x for group in scaled for x in group.values()):
                values[f"{name}, scaled"] = [
                    {seed: x[name] for seed, x in group.items()} for group in scaled
                ]
    return values, [name for name in names if name not in common]


def _scaled_metrics(fit: Predictions, predictions: Predictions) -> dict[str, float]:
    temperature = calibration.fit_temperature(fit.logits, fit.labels, fit.link)
    scaled = predictions.logits / temperature
    return calibration.measures(scaled, predictions.labels, predictions.link) | {
        "temperature": temperature
    }


def _rows(run_set: RunSet, values: _Values) -> tuple[list[str], list[list[str]]]:
    counts = [len(group.runs) for group in run_set.groups]
    head = ["metric"]
    head += [
        f"{group.name} ({count} {'run' if count == 1 else 'runs'})"
        for group, count in zip(run_set.groups, counts)
    ]
    head += [f"{group.name}, difference" for group in run_set.groups[1:]]
    rows = []
    for metric, by_group in values.items():
        row = [_arrow(metric), *(comparison.spread(list(group.values())) for group in by_group)]
        for group in by_group[1:]:
            row.append(comparison.difference(group, by_group[0]) or "no seed in common")
        rows.append(row)
    return head, rows


def _arrow(metric: str) -> str:
    """The name of a metric with an arrow in the better direction, if there is one."""
    name = metric.removesuffix(", scaled")
    if name in ("fitted temperature", "confidence"):
        return metric
    return f"{metric}\u00a0{'↓' if name in metrics.LOWER_IS_BETTER else '↑'}"


def _other_evaluations(run_set: RunSet) -> str:
    tables = []
    names = {
        name for group in run_set.groups for run in group.runs for name in run.results["evals"]
    }
    for name in sorted(names - {run_set.evaluation}):
        rows = []
        for group in run_set.groups:
            evals = [
                run.results["evals"][name] for run in group.runs if name in run.results["evals"]
            ]
            shared = [m for m in (evals[0] if evals else {}) if all(m in e for e in evals)]
            rows += [
                [f"{group.name}: {_arrow(m)}", comparison.spread([e[m] for e in evals])]
                for m in shared
            ]
        head = ["metric", "mean ± standard deviation"]
        tables.append(page.table(f"Evaluation {name}", head, rows))
    return "".join(tables) or page.paragraph("There is no other evaluation.")


def configs(run_set: RunSet) -> Section:
    """The settings that differ between runs, and the full config of the first run."""
    differences = comparison.differences(run_set.groups)
    parts: list[Any] = []
    if differences:
        rows = [[name, *(_values_text(v) for v in values)] for name, values in differences.items()]
        head = ["setting", *(group.name for group in run_set.groups)]
        parts.append(page.table("Settings that differ between runs", head, rows))
    else:
        seeds = ", ".join(str(run.config["seed"]) for run in run_set.groups[0].runs)
        parts.append(page.paragraph(f"All runs have the same config, with the seeds {seeds}."))
    first = run_set.groups[0]
    full = json.dumps(first.runs[0].config, indent=1, sort_keys=True)
    block = (
        '<div class="scroll" tabindex="0" role="region" aria-label="Config">'
        f"<pre>{page.text(full)}</pre></div>"
    )
    title = f"The full config of {first.name}, seed {first.runs[0].config['seed']}"
    parts.append(page.details(title, block))
    return Section("Differences between the configs", parts, {"settings": differences})


def _values_text(values: list[Any]) -> str:
    return ", ".join("-" if value is None else str(value) for value in values)


def data(run_set: RunSet) -> Section:
    """Classes, sizes and known label noise, from dataset.json."""
    rows = []
    for group in run_set.groups:
        for run in group.runs:
            dataset = run.dataset
            num_examples = dataset.get("num_examples", {})
            sizes = ", ".join(f"{split} {size:,}" for split, size in num_examples.items())
            rate = known_noise.noise_rate(dataset)
            noise = "unknown" if rate is None else f"{100 * rate:.1f} %"
            fingerprint = dataset.get("fingerprint", "unknown")[:12]
            rows.append([f"{group.name}, seed {run.config['seed']}", sizes, noise, fingerprint])
    names = run_set.class_names
    classes = page.details(f"The {len(names):,} classes", page.paragraph(", ".join(names[:2000])))
    head = ["run", "examples", "wrong training labels", "fingerprint"]
    return Section("Data", [page.table("The data of each run", head, rows), classes])


def environment(run_set: RunSet) -> Section:
    """The device, the duration, the code and the package versions of each run."""
    rows = []
    for group in run_set.groups:
        for run in group.runs:
            results = run.results
            versions = (
                ", ".join(f"{n} {v}" for n, v in results.get("versions", {}).items()) or "unknown"
            )
            seconds = results.get("seconds")
            commit = results.get("commit") or "unknown"
            rows.append(
                [
                    f"{group.name}, seed {run.config['seed']}",
                    results.get("device") or "unknown",
                    "unknown" if seconds is None else _duration(seconds),
                    f"{results['step']:,}",
                    f"{results['num_parameters']:,}" if "num_parameters" in results else "unknown",
                    re.sub(r"\b([0-9a-f]{7})[0-9a-f]{33}\b", r"\1", commit),
                    versions,
                ]
            )
    head = ["run", "device", "duration", "steps", "parameters", "commit", "versions"]
    return Section("Environment", [page.table("The environment of each run", head, rows)])


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"

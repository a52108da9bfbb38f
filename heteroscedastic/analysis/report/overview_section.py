"""Sections about the settings, the data and the environment of runs."""

import json
import re
from typing import Any

from heteroscedastic.analysis.covariance import known_noise
from heteroscedastic.analysis.report import comparison, page
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.page import Section


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

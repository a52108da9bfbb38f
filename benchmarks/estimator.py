"""Speed and label errors of the estimator: python -m benchmarks.estimator --data=FILE.npz

FILE.npz holds features, as python -m heteroscedastic.runs.embed writes them. `--what=speed` fits
the plain and the low-rank head to 45,000 training examples, for 20 epochs and with early stopping.
Then it fits the plain head and scikit-learn's logistic regression (saga), both to all 45,000, with
rising numbers of epochs. It prints seconds and the loss of 5,000 other examples.

`--what=issues` ranks all labels by out-of-fold predictions: the low-rank and the plain head, and
logistic regression with cleanlab's score, on the same folds. It prints the precision among the
first 500 suspects and the average precision, over seeds of the folds.

`--what=rules` fits the plain and the low-rank head to all training labels at temperatures from 0.25
to 16. It compares the choice by the Brier score of the held-out labels with that by their loss, in
grids that end at 4 and at 16, and with temperature 1: by accuracy, NLL and ECE of the test examples
with clean labels.

`--print FILE` prints the table of label errors or of rules that `--out=FILE` has saved; several
files of rules are one table.
"""

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from heteroscedastic import files
from heteroscedastic.analysis.report import comparison
from heteroscedastic.calibration import reliability, scores
from heteroscedastic.estimator import HeteroscedasticClassifier

_NUM_TRAIN, _NUM_EPOCHS, _NUM_SUSPECTS = 45_000, 20, 500
_SAGA_EPOCHS = (1, 2, 5, 10, 20)
_TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_OUR_EPOCHS = (3, 5, 8, 12)  # an epoch of ours is shorter
_DEFAULTS = {
    "speed": {"label": "worse_label"},
    "rules": {"label": "worse_label", "seeds": 4, "loss": "cross_entropy"},
    "issues": {"label": "worse_label", "seeds": 10, "folds": 5, "temperature": 1.0},
}


def _saga(epochs: int) -> object:
    model = LogisticRegression(solver="saga", max_iter=epochs, tol=0.0)
    return make_pipeline(StandardScaler(), model)


def _ours(head: str, temperature: float = 1.0, **settings) -> HeteroscedasticClassifier:
    return HeteroscedasticClassifier(head, temperature=temperature, random_state=0, **settings)


def speed(features: np.ndarray, labels: np.ndarray) -> list[dict]:
    """Seconds and held-out loss of each fit; the first of a kind includes compilation.

    Fits of 20 epochs and with early stopping hold out a tenth and keep the best epoch on it.
    """
    rows = np.random.default_rng(0).permutation(len(labels))
    train, test = rows[:_NUM_TRAIN], rows[_NUM_TRAIN : _NUM_TRAIN + 5000]
    fixed = dict(max_iter=_NUM_EPOCHS, n_iter_no_change=_NUM_EPOCHS)
    models = {
        "plain, 20 epochs": _ours("Deterministic", **fixed),
        "low-rank, 20 epochs": _ours("LowRank", **fixed),
        "plain, early stopping": _ours("Deterministic"),
        "low-rank, early stopping": _ours("LowRank"),
        **{
            f"plain, all examples, {n} epochs": _ours(
                "Deterministic", max_iter=n, validation_fraction=0.0
            )
            for n in _OUR_EPOCHS
        },
        **{f"saga, {n} epochs": _saga(n) for n in _SAGA_EPOCHS},
    }
    results = []
    for name, model in models.items():
        start = time.perf_counter()
        model.fit(features[train], labels[train])
        seconds = time.perf_counter() - start
        log_probs = np.log(model.predict_proba(features[test]))
        loss = -scores.log_likelihood(log_probs, labels[test])
        results.append({"fit": name, "seconds": seconds, "held_out_nll": loss})
        print(f"{name:<32}{seconds:>8.1f} s   held-out NLL {loss:.4f}", flush=True)
    return results


def _logistic_scores(features, labels, folds):
    """Out-of-fold log-probabilities of logistic regression."""
    log_probs = np.zeros((len(labels), len(np.unique(labels))))
    for train, test in folds.split(features, labels):
        model = clone(_saga(5)).fit(features[train], labels[train])
        log_probs[test] = model.predict_log_proba(features[test])
    return log_probs


def issues(
    features: np.ndarray,
    labels: np.ndarray,
    clean: np.ndarray,
    seeds: int,
    folds: int,
    temperature: float,
) -> list[dict]:
    """Precision among the first suspects, and average precision, of each ranking and seed."""
    from cleanlab.rank import get_label_quality_scores

    wrong, results = labels != clean, []
    for seed in range(seeds):
        splits, rankings = StratifiedKFold(folds, shuffle=True, random_state=seed), {}
        for head in ("LowRank", "Deterministic"):
            model = _ours(head, temperature)
            model.set_params(random_state=seed)
            found = model.label_issues(features, labels, cv=splits)
            rankings[head] = np.empty(len(labels))
            rankings[head][found.rows] = found.scores
        log_probs = _logistic_scores(features, labels, splits)
        quality = get_label_quality_scores(labels, np.exp(log_probs), method="self_confidence")
        rankings["cleanlab, logistic regression"] = -quality
        for name, values in rankings.items():
            row = {
                "seed": seed,
                "ranking": name,
                "precision_at_500": scores.precision_at(values, wrong, _NUM_SUSPECTS),
                "average_precision": scores.average_precision(values, wrong),
            }
            results.append(row)
            print(json.dumps(row), flush=True)
    return results


def rules(
    features: np.ndarray,
    labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    seeds: int,
    loss: str,
) -> list[dict]:
    """Accuracy, NLL and ECE of the test examples for each head and rule of the search, and seed."""
    results = []
    for seed, head in itertools.product(range(seeds), ("LowRank", "Deterministic")):
        fits = []
        for temperature in _TEMPERATURES:
            model = HeteroscedasticClassifier(
                head, temperature=temperature, loss=loss, random_state=seed
            ).fit(features, labels)
            held_out = {"brier": model.validation_brier_, "loss": model.best_validation_loss_}
            fits.append((held_out, _scores(model, test_features, test_labels)))
            print(json.dumps({"seed": seed, "head": head} | held_out | fits[-1][1]), flush=True)
        for rule, highest in itertools.product(held_out, (16.0, 4.0)):
            among = [fit for fit in fits if fit[1]["temperature"] <= highest]
            _, chosen = min(among, key=lambda fit: fit[0][rule])
            results.append({"seed": seed, "rule": f"{head}/{rule}/{highest:.0f}"} | chosen)
        _, at_one = next(fit for fit in fits if fit[1]["temperature"] == 1.0)
        results.append({"seed": seed, "rule": f"{head}/1"} | at_one)
    return results


def _scores(
    model: HeteroscedasticClassifier, test_features: np.ndarray, test_labels: np.ndarray
) -> dict[str, float]:
    log_probs = model.predict_log_proba(test_features)
    correct = np.argmax(log_probs, axis=1) == test_labels
    bins = reliability.sums(
        np.exp(np.max(log_probs, axis=1)),
        correct.astype(float),
        np.ones(len(correct)),
        reliability.equal_edges(15),
    )
    return {
        "accuracy": float(np.mean(correct)),
        "nll": -scores.log_likelihood(log_probs, test_labels),
        "ece": float(reliability.expected_calibration_error(bins)),
        "temperature": model.temperature_,
    }


def joined(records: Sequence[dict]) -> list[dict]:
    """The results of saved files; the rules of several have the name of their loss before them.

    Raises:
      SystemExit: one of several is not of rules.
    """
    if len(records) == 1:
        return records[0]["results"]
    if kinds := {record["arguments"]["what"] for record in records} - {"rules"}:
        raise SystemExit(
            f"several files are one table if all are of --what=rules, but one is of {kinds.pop()};"
            " print it alone."
        )
    return [
        row | {"rule": f"{record['arguments']['loss']}/{row['rule']}"}
        for record in records
        for row in record["results"]
    ]


def seeds_table(results: list[dict], reference: str | None = None) -> list[str]:
    """Lines of Markdown: each ranking or model over seeds, and its difference by seed from another.

    Args:
      results: as `issues` or `rules` return them.
      reference: the other one; defaults to the last, which is cleanlab's, or the plain head at
        temperature 1.
    """
    if not results or "seed" not in results[0]:
        raise SystemExit("--print needs a file of --what=issues or rules; others have no seeds.")
    _, kind, *metrics = results[0]
    names = list(dict.fromkeys(row[kind] for row in results))
    reference = reference or names[-1]
    if reference not in names:
        raise SystemExit(f"no {kind} is {reference!r}; choose one of {', '.join(names)}.")
    lines = [f"| {kind} | seeds |", "| --- | --- |"]
    for metric in metrics:
        lines[0] += f" {metric} | difference |"
        lines[1] += " --- | --- |"
    for name in names:
        cells = []
        for metric in metrics:
            ours, theirs = (
                {row["seed"]: row[metric] for row in results if row[kind] == which}
                for which in (name, reference)
            )
            cells += [comparison.spread(list(ours.values()))]
            cells += ["" if name == reference else comparison.difference(ours, theirs)]
        lines.append(f"| {name} | {len(ours)} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help=".npz of features")
    parser.add_argument("--print", nargs="+", metavar="FILE", help="saved results with seeds")
    parser.add_argument(
        "--reference", help="ranking or rule from which --print shows the differences"
    )
    parser.add_argument("--what", choices=tuple(_DEFAULTS), default="speed")
    parser.add_argument("--label", help="field of the labels; defaults to worse_label")
    parser.add_argument("--seeds", type=int, help="defaults to 10, of rules to 4")
    parser.add_argument("--loss", help="of rules; defaults to cross_entropy")
    parser.add_argument("--folds", type=int, help="of issues; defaults to 5")
    parser.add_argument("--temperature", type=float, help="of the heads of issues; defaults to 1")
    parser.add_argument("--out", help="JSON file of the results")
    flags = parser.parse_args()
    if flags.print:
        records = [files.read_json(path) for path in flags.print]
        print("\n".join(seeds_table(joined(records), flags.reference)))
        return
    if not flags.data:
        parser.error("give --data=FILE.npz, or --print=FILE.")
    names = dict.fromkeys(name for settings in _DEFAULTS.values() for name in settings)
    given = {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
    if unused := given.keys() - _DEFAULTS[flags.what].keys():
        parser.error(f"--what={flags.what} does not use --{', --'.join(sorted(unused))}.")
    settings = _DEFAULTS[flags.what] | given
    warnings.simplefilter("ignore", ConvergenceWarning)
    arrays = files.read_arrays(flags.data)
    features = arrays["train_inputs"].astype(np.float32)
    label = settings.pop("label")
    labels, clean = arrays[f"train_{label}"], arrays["train_labels"]
    start = time.perf_counter()
    if flags.what == "speed":
        results = speed(features, labels)
    elif flags.what == "rules":
        test = arrays["test_inputs"].astype(np.float32), arrays["test_labels"]
        results = rules(features, labels, *test, **settings)
    else:
        results = issues(features, labels, clean, **settings)
    if flags.out:
        record = {
            "arguments": {"what": flags.what, "data": Path(flags.data).name, "label": label}
            | settings,
            "device": jax.devices()[0].device_kind,
            "jax": jax.__version__,
            "seconds": time.perf_counter() - start,
            "results": results,
        }
        files.write_json(flags.out, record)


if __name__ == "__main__":
    main()

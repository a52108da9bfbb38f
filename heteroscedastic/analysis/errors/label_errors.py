"""Labels that are likely wrong: python -m heteroscedastic.analysis.errors.label_errors --run=DIR

A label is scored by its negative log-probability under softmax(loc), the utilities without their
noise. The training probability of a head with noise, E[softmax(u)], includes the confusions that
the noise has learned, and therefore assigns a higher probability to a wrong label; loc alone need
not. For a head without noise both scores are equal. docs/results/label_errors.md reports
measurements.

The network has seen the labels of its training examples, and a network that has memorised them
finds no error. The best checkpoint by validation has memorised less than the last one: in those
measurements it ranks wrong labels better by this score, except for a plain softmax with planted
noise.
"""

import importlib.util
import os
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy import special

from heteroscedastic import files, user_errors
from heteroscedastic.analysis.plots import figures
from heteroscedastic.calibration import scores
from heteroscedastic.data.storage import originals
from heteroscedastic.outputs import label_quality
from heteroscedastic.runs import by_example, compilation_cache
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs.loaded_run import LoadedRun

_NUM_IMAGES = 24  # on the sheet


class LabelScores(NamedTuple):
    """The labels of a split with their scores."""

    ids: Int[np.ndarray, "n"]
    images: Shaped[np.ndarray, "n ..."]  # or features
    labels: Int[np.ndarray, "n"]
    clean_labels: Int[np.ndarray, "n"]  # equal to `labels` if no error is known; -1 is unknown
    suggestions: Int[np.ndarray, "n"]  # the class other than the label with the largest loc
    scores: label_quality.Scores
    log_probs: Float[np.ndarray, "n k"]  # log E[softmax(u)]

    @property
    def is_known(self) -> Bool[np.ndarray, "n"]:
        """Whether the clean label is known."""
        return self.clean_labels >= 0

    @property
    def is_wrong(self) -> Bool[np.ndarray, "n"]:
        """Whether each label is known to be wrong."""
        return self.is_known & (self.labels != self.clean_labels)

    @property
    def probs(self) -> Float[np.ndarray, "n k"]:
        """E[softmax(u)], normalised in float64."""
        return special.softmax(self.log_probs.astype(np.float64), axis=-1)


def label_scores(loaded_run: LoadedRun, split: str = "train") -> LabelScores:
    """Scores the labels of a split with a finished run.

    Raises:
      ValueError: there is no such split, or the link is the sigmoid.
    """
    data = loaded_run_lib.single_label_data(loaded_run, split)

    def batch_scores(latent, logits, batch):
        log_probs = jax.nn.log_softmax(logits, axis=-1)
        values, suggestions = label_quality.scores(latent, log_probs, batch.labels)
        return values, suggestions, log_probs

    values, suggestions, log_probs = by_example.map_predictions(loaded_run, split, batch_scores)
    return LabelScores(
        ids=data.ids,
        images=data.inputs,
        labels=data.labels,
        clean_labels=loaded_run_lib.clean_labels(loaded_run.run, split, data.ids),
        suggestions=suggestions,
        scores=values,
        log_probs=log_probs,
    )


def rankings(labels: LabelScores) -> dict[str, Float[np.ndarray, "n"]]:
    """The scores by name, with a score of cleanlab from the same probabilities if it is installed.

    Of cleanlab's other scores, self_confidence gives the order of `probability`, and
    normalized_margin that of `margin`.
    """
    by_name = labels.scores._asdict()
    if has_cleanlab():
        from cleanlab import rank

        quality = rank.get_label_quality_scores(
            labels.labels, labels.probs, method="confidence_weighted_entropy"
        )
        by_name["cleanlab_entropy"] = -quality
    return by_name


def has_cleanlab() -> bool:
    """Whether cleanlab is installed."""
    return importlib.util.find_spec("cleanlab") is not None


def cleanlab_issues(labels: LabelScores) -> Bool[np.ndarray, "n"]:
    """The labels that cleanlab's confident learning finds from the same probabilities."""
    from cleanlab import filter as cleanlab_filter

    return cleanlab_filter.find_label_issues(labels.labels, labels.probs, n_jobs=1)


def summary(labels: LabelScores) -> dict[str, Any]:
    """How well the scores find the known errors; only counts if no error is known.

    Labels whose clean label is unknown are left out of all but the counts.

    Returns:
      `scores`: for each score `average_precision`, `auroc` and `precision_at_errors`, the precision
      among as many of the highest scores as there are errors. `suggestion_right`: the fraction of
      errors whose suggested class is the clean label. `given_predicted`: the fractions of the
      `right` and of the `wrong` labels that the run predicts; wrong labels that are predicted more
      often in training than in validation are memorised. `cleanlab_issues`, if cleanlab is
      installed: number, precision and recall.
    """
    known, wrong = labels.is_known, labels.is_wrong
    num_errors = int(wrong.sum())
    facts: dict[str, Any] = {"num_examples": len(labels.ids), "num_known_errors": num_errors}
    if not num_errors:
        return facts
    facts["scores"] = {
        name: {
            "average_precision": scores.average_precision(values[known], wrong[known]),
            "auroc": scores.auroc(values[known], wrong[known]),
            "precision_at_errors": scores.precision_at(values[known], wrong[known], num_errors),
        }
        for name, values in rankings(labels).items()
    }
    suggestion_right = labels.suggestions[wrong] == labels.clean_labels[wrong]
    facts["suggestion_right"] = float(np.mean(suggestion_right))
    predicted = np.argmax(labels.log_probs, axis=-1) == labels.labels
    is_right = known & ~wrong
    right = float(np.mean(predicted[is_right])) if is_right.any() else float("nan")
    facts["given_predicted"] = {"right": right, "wrong": float(np.mean(predicted[wrong]))}
    if has_cleanlab():
        issues = cleanlab_issues(labels)
        number, hits = int(np.sum(issues & known)), int(np.sum(issues & wrong))
        facts["cleanlab_issues"] = {
            "number": number,
            "precision": hits / max(1, number),
            "recall": hits / num_errors,
        }
    return facts


def table(labels: LabelScores, class_names: list[str]) -> list[dict[str, Any]]:
    """A row for each example, the most suspicious first."""

    def row(i):
        classes = {"label": labels.labels[i], "suggested": labels.suggestions[i]}
        if labels.is_wrong.any():
            classes["clean"] = labels.clean_labels[i]
        return (
            {"id": int(labels.ids[i])}
            | {name: class_names[c] if c >= 0 else "" for name, c in classes.items()}
            | {name: f"{values[i]:.6g}" for name, values in labels.scores._asdict().items()}
        )

    return [row(i) for i in suspicion_order(labels)]


def suspicion_order(labels: LabelScores) -> Int[np.ndarray, "n"]:
    """Rows of the examples, the most suspicious first."""
    return np.argsort(-labels.scores.noise_free, kind="stable")


def captions(labels: LabelScores, class_names: list[str], rows: Int[np.ndarray, "m"]) -> list[str]:
    """For each of these examples its label and the suggested class.

    If errors are known, a third line says whether the label is wrong.
    """

    def verdict(i):
        if labels.is_wrong[i]:
            return f"wrong: it is {class_names[labels.clean_labels[i]]}"
        return "the label is right" if labels.is_known[i] else "not known"

    lines = [
        [
            f"labelled {class_names[labels.labels[i]]}",
            f"suggested {class_names[labels.suggestions[i]]}",
        ]
        for i in rows
    ]
    if labels.is_wrong.any():
        lines = [[*pair, verdict(i)] for pair, i in zip(lines, rows)]
    return ["\n".join(caption) for caption in lines]


def draw(
    labels: LabelScores,
    class_names: list[str],
    facts: dict[str, Any],
    title: str,
    path: files.Path,
    images: Shaped[np.ndarray, "m ..."],
) -> list[files.Path]:
    """Draws the most suspicious images, if any, and with known errors precision against recall.

    Args:
      labels: with their scores.
      class_names: of the labels.
      facts: `summary` of the labels.
      title: of the figures.
      path: of the files, without a suffix.
      images: of the most suspicious labels, in order, or their features.

    Returns:
      The paths of the files.
    """
    from heteroscedastic.analysis.plots import sheet

    top = suspicion_order(labels)[: len(images)]
    errors_known = labels.is_wrong.any()
    count = (
        f"; {labels.is_wrong[top].sum()} of these {len(top)} are known to be wrong"
        if errors_known
        else ""
    )
    written = []
    if figures.are_images(images):
        image_sheet = sheet.sheet(
            images,
            captions(labels, class_names, top),
            title=f"The most suspicious labels of {title}{count}",
        )
        written += figures.write(image_sheet, path.with_name(path.name + "_images"))
    if errors_known:
        curves = _precision_figure(labels, facts, title)
        written += figures.write(curves, path.with_name(path.name + "_precision"))
    return written


STYLES = {  # line style and description of each score
    "noise_free": ("-", "noise-free probability"),
    "probability": ("--", "probability"),
    "margin": ("-.", "margin"),
    "standardised": (":", "noise-free margin over noise"),
    "cleanlab_entropy": ((0, (1, 3)), "cleanlab, weighted by entropy"),
}


def _precision_figure(labels: LabelScores, facts: dict[str, Any], title: str) -> Any:
    with figures.style_context():
        figure = figures.figure(8.4, 4.2)
        axes = figure.subplots()
        known = labels.is_known
        for name, values in rankings(labels).items():
            precision, recall = scores.precision_recall(values[known], labels.is_wrong[known])
            style, description = STYLES[name]
            average = facts["scores"][name]["average_precision"]
            axes.plot(recall, precision, linestyle=style, label=f"{description} ({average:.3f})")
        if "cleanlab_issues" in facts:
            issues = facts["cleanlab_issues"]
            axes.plot(
                issues["recall"],
                issues["precision"],
                "k*",
                markersize=11,
                label="cleanlab, find_label_issues",
            )
        rate = labels.is_wrong[known].mean()
        axes.axhline(rate, color="0.4", linewidth=1, label=f"chance ({rate:.3f})")
        axes.set(
            xlabel="recall: fraction of the wrong labels that are found",
            ylabel="precision: fraction of the found\nlabels that are wrong",
            xlim=(0, 1),
            ylim=(0, 1.02),
            title=f"Finding the wrong labels of {title}",
        )
        axes.legend(
            title="ranked by (average precision)", loc="center left", bbox_to_anchor=(1.01, 0.5)
        )
    return figure


@user_errors.one_line()
def main() -> None:
    """Ranks the labels of a finished run by how likely they are wrong."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--run", required=True, help="directory of a finished run")
    parser.add_argument("--split", default="train", help="split of its data")
    parser.add_argument(
        "--checkpoint", default="best", choices=("best", "last"), help="checkpoint of the run"
    )
    parser.add_argument("--out", help="output directory; default: RUN/analysis")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    compilation_cache.enable()
    loaded_run = loaded_run_lib.load(flags.run, flags.checkpoint, flags.data_dir)
    class_names = figures.class_names(loaded_run.dataset)
    labels = label_scores(loaded_run, flags.split)
    facts = {
        "split": flags.split,
        "checkpoint": flags.checkpoint,
        "ranked_by": "noise_free",
    } | summary(labels)
    path = (
        files.as_path(flags.out or f"{flags.run}/analysis")
        / f"label_errors_{flags.split}_{flags.checkpoint}"
    )
    files.write_csv(path.with_name(path.name + ".csv"), table(labels, class_names))
    files.write_json(path.with_name(path.name + ".json"), facts)
    print(f"{len(labels.ids)} labels of {flags.split}, {flags.checkpoint} checkpoint;", end=" ")
    if "scores" not in facts:
        print("no error is known, so precision cannot be reported")
    else:
        print(f"{facts['num_known_errors']} are known to be wrong")
        _print_scores(facts)
    title = f"{loaded_run.run.config['data']['name']}, {flags.split}"
    written = []
    if figures.can_draw():
        top = suspicion_order(labels)[:_NUM_IMAGES]
        images = originals.pictures(
            loaded_run.run.config["data"],
            flags.data_dir,
            flags.split,
            labels.ids[top],
            labels.images[top],
        )
        written = draw(labels, class_names, facts, title, path, images)
    print(f"wrote {', '.join([f'{path}.csv', '.json', *(p.name for p in written)])}")


def _print_scores(facts: dict[str, Any]) -> None:
    print(f"{'score':<20}{'average precision':>20}{'AUROC':>10}{'precision at errors':>22}")
    for name, values in facts["scores"].items():
        print(
            f"{name:<20}{values['average_precision']:>20.4f}{values['auroc']:>10.4f}"
            f"{values['precision_at_errors']:>22.4f}"
        )
    print(f"suggested class is the clean label for {facts['suggestion_right']:.1%} of wrong labels")
    print(f"the run predicts {facts['given_predicted']['wrong']:.1%} of the wrong labels")
    if "cleanlab_issues" in facts:
        number, precision, recall = facts["cleanlab_issues"].values()
        print(
            f"cleanlab's find_label_issues: {number} labels, precision {precision:.4f}, recall"
            f" {recall:.4f}"
        )
    else:
        print("cleanlab is not installed, so its score is missing: pip install cleanlab")


if __name__ == "__main__":
    main()

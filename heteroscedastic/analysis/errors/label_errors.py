"""Which labels are likely wrong: python -m heteroscedastic.analysis.errors.label_errors --run=DIR.

A label is as suspect as it is improbable under softmax(loc), the utilities without their noise. The
probability that a head with noise trains on, E[softmax(u)], contains the confusions that the noise
has learned and so grants them to a wrong label; its location need not explain them. For a head
without noise the two are the same. experiments/correlated_label_noise/README.md has what is
measured.

The scores of training examples come from a network that has seen their labels, and one that has
memorised them suspects none. The best checkpoint by validation has memorised less than the last:
where that was measured it ranks wrong labels better by this score, but for a plain softmax under
planted noise.
"""

import importlib.util
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from scipy import special

from heteroscedastic import files, user_errors
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.plots import figures
from heteroscedastic.calibration import scores
from heteroscedastic.runs import loaded_run

_SHOWN = 24  # images on the sheet


class Suspicion(NamedTuple):
    """Of every example, how suspect its label is; larger is more so, and scales differ."""

    noise_free: Float[np.ndarray, "n"]  # -log softmax(loc) of the label, in nats
    probability: Float[np.ndarray, "n"]  # -log E[softmax(u)] of the label, in nats
    margin: Float[np.ndarray, "n"]  # the largest other probability less the label's
    standardised: Float[
        np.ndarray, "n"
    ]  # largest loc_c - loc_label in deviations of u_c - u_label with Gumbel noise


class Labels(NamedTuple):
    """What a run says of the labels of a split."""

    ids: Int[np.ndarray, "n"]
    images: UInt8[np.ndarray, "n h w c"]
    given: Int[np.ndarray, "n"]
    clean: Int[np.ndarray, "n"]  # as given where no error is known
    suggested: Int[np.ndarray, "n"]  # of the other classes the one of the largest location
    suspicion: Suspicion
    log_probs: Float[np.ndarray, "n k"]  # log E[softmax(u)]

    @property
    def wrong(self) -> Bool[np.ndarray, "n"]:
        """Which labels are known to be wrong."""
        return self.given != self.clean

    @property
    def probs(self) -> Float[np.ndarray, "n k"]:
        """E[softmax(u)], with sums that are one in float64."""
        return special.softmax(self.log_probs.astype(np.float64), axis=-1)


def labels(found: loaded_run.Finished, split: str = "train") -> Labels:
    """The labels of a split, each as suspect as a finished run finds it.

    Raises:
      ValueError: no such split, or several labels an example.
    """
    data = loaded_run.with_one_label(found, split)

    def read(key, latent, batch):
        log_probs = jax.nn.log_softmax(found.run.parts.predictive(key, latent), axis=-1)
        own = jax.nn.one_hot(batch.labels, latent.loc.shape[-1])

        def label_of(values):
            return jnp.take_along_axis(values, batch.labels[:, None], axis=-1)

        def others(values):
            return jnp.where(own > 0, -jnp.inf, values)

        variances, row = latent_lib.variance(latent), latent_lib.covariance_times(latent, own)
        # A standard Gumbel has the variance pi^2 / 6; a softmax is the argmax of utilities that
        # each have one.
        spread = jnp.maximum(variances + label_of(variances) - 2 * row, 0.0) + jnp.pi**2 / 3
        distance = (latent.loc - label_of(latent.loc)) / jnp.sqrt(spread)
        probs = jnp.exp(log_probs)
        suspicion = Suspicion(
            noise_free=-label_of(jax.nn.log_softmax(latent.loc, axis=-1))[:, 0],
            probability=-label_of(log_probs)[:, 0],
            margin=jnp.max(others(probs), axis=-1) - label_of(probs)[:, 0],
            standardised=jnp.max(others(distance), axis=-1),
        )
        return suspicion, jnp.argmax(others(latent.loc), axis=-1), log_probs

    suspicion, suggested, log_probs = loaded_run.by_example(found, data, read)
    return Labels(
        ids=data.ids,
        images=data.inputs,
        given=data.labels,
        clean=loaded_run.clean_labels_of(found.run, split, data.ids),
        suggested=suggested,
        suspicion=suspicion,
        log_probs=log_probs,
    )


def rankings(told: Labels) -> dict[str, Float[np.ndarray, "n"]]:
    """The scores by name, with one of cleanlab's of the same probabilities where it is installed.

    Of its other two, self_confidence has the order of `probability` and normalized_margin that of
    `margin`.
    """
    ranked = told.suspicion._asdict()
    if has_cleanlab():
        from cleanlab import rank

        found = rank.get_label_quality_scores(
            told.given, told.probs, method="confidence_weighted_entropy"
        )
        ranked["cleanlab_entropy"] = -found
    return ranked


def has_cleanlab() -> bool:
    """Whether the package that others use for this is installed."""
    return importlib.util.find_spec("cleanlab") is not None


def cleanlab_issues(told: Labels) -> Bool[np.ndarray, "n"]:
    """Which labels cleanlab calls wrong (confident learning), of the same probabilities."""
    from cleanlab import filter as cleanlab_filter

    return cleanlab_filter.find_label_issues(told.given, told.probs, n_jobs=1)


def summary(told: Labels) -> dict[str, Any]:
    """How well the known errors are found; without any, the number of examples alone.

    Returns:
      By score `average_precision`, `auroc` and `precision_at_errors`: of as many of the highest as
      there are errors. `suggestion_right`: share of the errors of which the suggested class is the
      clean one. `given_predicted`: share of the `right` and of the `wrong` labels that the run
      predicts; in training wrong ones above their share in validation are memorised.
      `cleanlab_issues`, where it is installed: number, precision and recall.
    """
    wrong = told.wrong
    num_errors = int(wrong.sum())
    found: dict[str, Any] = {"num_examples": len(told.ids), "num_known_errors": num_errors}
    if not num_errors:
        return found
    found["scores"] = {
        name: {
            "average_precision": scores.average_precision(values, wrong),
            "auroc": scores.auroc(values, wrong),
            "precision_at_errors": scores.precision_at(values, wrong, num_errors),
        }
        for name, values in rankings(told).items()
    }
    found["suggestion_right"] = float(np.mean(told.suggested[wrong] == told.clean[wrong]))
    predicted = np.argmax(told.log_probs, axis=-1) == told.given
    right = float(np.mean(predicted[~wrong])) if not wrong.all() else float("nan")
    found["given_predicted"] = {"right": right, "wrong": float(np.mean(predicted[wrong]))}
    if has_cleanlab():
        issues = cleanlab_issues(told)
        number, hits = int(issues.sum()), int(np.sum(issues & wrong))
        found["cleanlab_issues"] = {
            "number": number,
            "precision": hits / max(1, number),
            "recall": hits / num_errors,
        }
    return found


def table(told: Labels, class_names: list[str]) -> list[dict[str, Any]]:
    """A row an example, the most suspect first."""

    def row(i):
        classes = {"label": told.given[i], "suggested": told.suggested[i]}
        if told.wrong.any():
            classes["clean"] = told.clean[i]
        numbers = {name: f"{values[i]:.6g}" for name, values in told.suspicion._asdict().items()}
        return (
            {"id": int(told.ids[i])}
            | {name: class_names[c] for name, c in classes.items()}
            | numbers
        )

    return [row(i) for i in most_suspect(told)]


def most_suspect(told: Labels) -> Int[np.ndarray, "n"]:
    """Places of the examples, the most suspect first."""
    return np.argsort(-told.suspicion.noise_free, kind="stable")


def captions(told: Labels, class_names: list[str], places: Int[np.ndarray, "m"]) -> list[str]:
    """Of each of these examples the label, what is suggested and, where errors are known, whether
    it is one.
    """

    def known(i):
        return (
            f"wrong: it is {class_names[told.clean[i]]}" if told.wrong[i] else "the label is right"
        )

    lines = [
        [f"labelled {class_names[told.given[i]]}", f"suggested {class_names[told.suggested[i]]}"]
        for i in places
    ]
    if told.wrong.any():
        lines = [[*said, known(i)] for said, i in zip(lines, places)]
    return ["\n".join(said) for said in lines]


def draw(
    told: Labels, class_names: list[str], facts: dict[str, Any], title: str, path: files.Path
) -> list[files.Path]:
    """Draws the most suspect images and, where errors are known, precision against recall.

    Returns:
      What was written, beside `path`.
    """
    from heteroscedastic.analysis.plots import sheet

    top = most_suspect(told)[:_SHOWN]
    known = told.wrong.any()
    how_many = (
        f"; {told.wrong[top].sum()} of these {len(top)} are known to be wrong" if known else ""
    )
    drawn = sheet.sheet(
        told.images[top],
        captions(told, class_names, top),
        title=f"The most suspect labels of {title}{how_many}",
    )
    written = figures.write(drawn, path.with_name(path.name + "_images"))
    if known:
        written += figures.write(
            _precision_picture(told, facts, title), path.with_name(path.name + "_precision")
        )
    return written


STYLES = {  # line of each score, and its words
    "noise_free": ("-", "noise-free probability"),
    "probability": ("--", "probability"),
    "margin": ("-.", "margin"),
    "standardised": (":", "noise-free margin over noise"),
    "cleanlab_entropy": ((0, (1, 3)), "cleanlab, weighted by entropy"),
}


def _precision_picture(told: Labels, facts: dict[str, Any], title: str) -> Any:

    with figures.styled():
        drawn = figures.figure(8.4, 4.2)
        axes = drawn.subplots()
        for name, values in rankings(told).items():
            (precision, recall), (style, words) = (
                scores.precision_recall(values, told.wrong),
                STYLES[name],
            )
            average = facts["scores"][name]["average_precision"]
            axes.plot(recall, precision, linestyle=style, label=f"{words} ({average:.3f})")
        if "cleanlab_issues" in facts:
            issues = facts["cleanlab_issues"]
            axes.plot(
                issues["recall"],
                issues["precision"],
                "k*",
                markersize=11,
                label="cleanlab, find_label_issues",
            )
        rate = told.wrong.mean()
        axes.axhline(rate, color="0.4", linewidth=1, label=f"chance ({rate:.3f})")
        axes.set(
            xlabel="recall: share of the wrong labels that is found",
            ylabel="precision: share of the found\nthat is wrong",
            xlim=(0, 1),
            ylim=(0, 1.02),
            title=f"Finding the wrong labels of {title}",
        )
        axes.legend(
            title="ranked by (average precision)", loc="center left", bbox_to_anchor=(1.01, 0.5)
        )
    return drawn


@user_errors.one_line()
def main() -> None:
    """Ranks the labels of a finished run by how likely they are wrong."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--run", required=True, help="directory of a finished run")
    parser.add_argument("--split", default="train")
    parser.add_argument(
        "--checkpoint", default="best", choices=("best", "last"), help="which state of the run"
    )
    parser.add_argument("--out", help="directory; RUN/analysis if not given")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    found = loaded_run.load(flags.run, flags.checkpoint, flags.data_dir)
    class_names, told = figures.class_names(found.dataset), labels(found, flags.split)
    facts = {
        "split": flags.split,
        "checkpoint": flags.checkpoint,
        "ranked_by": "noise_free",
    } | summary(told)
    path = (
        files.as_path(flags.out or f"{flags.run}/analysis")
        / f"label_errors_{flags.split}_{flags.checkpoint}"
    )
    files.write_csv(path.with_name(path.name + ".csv"), table(told, class_names))
    files.write_json(path.with_name(path.name + ".json"), facts)
    print(f"{len(told.ids)} labels of {flags.split}, {flags.checkpoint} checkpoint;", end=" ")
    if "scores" not in facts:
        print("no error of them is known, so there is no precision to tell.")
    else:
        print(f"{facts['num_known_errors']} known to be wrong.")
        _print_scores(facts)
    title = f"{found.run.config['data']['name']}, {flags.split}"
    written = draw(told, class_names, facts, title, path) if figures.can_draw() else []
    print(f"wrote {', '.join([f'{path}.csv', '.json', *(p.name for p in written)])}")


def _print_scores(facts: dict[str, Any]) -> None:
    print(f"{'score':<20}{'average precision':>20}{'AUROC':>10}{'precision at errors':>22}")
    for name, told in facts["scores"].items():
        print(
            f"{name:<20}{told['average_precision']:>20.4f}{told['auroc']:>10.4f}{told['precision_at_errors']:>22.4f}"
        )
    print(
        f"the suggested class is the clean one for {facts['suggestion_right']:.1%} of the wrong"
        " labels"
    )
    print(
        f"{facts['given_predicted']['wrong']:.1%} of the wrong labels are predicted as they stand"
    )
    if "cleanlab_issues" in facts:
        number, precision, recall = facts["cleanlab_issues"].values()
        print(
            f"cleanlab's find_label_issues: {number} labels, precision {precision:.4f}, recall"
            f" {recall:.4f}"
        )
    else:
        print("cleanlab is not installed, so it is left out: pip install cleanlab.")


if __name__ == "__main__":
    main()

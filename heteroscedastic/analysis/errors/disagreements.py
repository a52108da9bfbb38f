"""Images that one run classifies correctly and another does not:
python -m heteroscedastic.analysis.errors.disagreements --runs HET HOM

Table 5 and Figure 2 of Collier et al. (2021), arXiv:2105.10305. The question is whether the
covariance of a head with noise (HET) contains the mistakes of a head without noise (HOM). For each
such image, all classes except the true one are ranked by the absolute value of their covariance
with the true class, and the rank of the class that HOM predicts is reported. If the covariance
carries no information about the mistake, all ranks are equally frequent.

Covariances are in units of the utilities. A softmax depends on p_j p_k var(u_j - u_k), not on the
covariance itself, so the ranking by this quantity is reported as well. A third ranking, by p alone,
is the baseline, as it requires no covariance.
"""

import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped

from heteroscedastic import files, user_errors
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.errors import rank_test
from heteroscedastic.analysis.plots import figures
from heteroscedastic.data.storage import originals
from heteroscedastic.runs import by_example, compilation_cache, predictions, provenance
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs.loaded_run import LoadedRun

_NUM_IMAGES = 18  # on the sheet
_MAX_BARS = 50
RANKINGS = {
    "covariance": "absolute covariance\nwith the true class",
    "seen": "$p\\,$var$(u_{true} - u)$,\nthe effect on the softmax",
    "probability": "probability $p$ alone,\nwithout covariance",
}


class Disagreements(NamedTuple):
    """Images that only the first run classifies correctly, and what it predicts for them."""

    ids: Int[np.ndarray, "n"]
    images: Shaped[np.ndarray, "n ..."]  # or features
    true: Int[np.ndarray, "n"]  # class, which the first run predicts
    other_prediction: Int[np.ndarray, "n"]  # class that the second run predicts
    covariance: Float[np.ndarray, "n k"]  # of the true class with every class, utilities squared
    correlation: Float[np.ndarray, "n k"]
    seen: Float[np.ndarray, "n k"]  # p_k var(u_true - u_k)
    probability: Float[np.ndarray, "n k"]
    num_examples: int  # of the split
    num_other_way: int  # examples that only the second run classifies correctly


def find(
    first: str | files.Path,
    second: str | files.Path,
    evaluation: str = "test",
    data_dir: str | None = None,
) -> tuple[Disagreements, LoadedRun]:
    """Finds the examples of an evaluation that only the first of two runs classifies correctly.

    Args:
      first: directory of a run whose head has covariances.
      second: directory of a run on the same data.
      evaluation: name of an evaluation whose predictions both runs have saved.
      data_dir: directory of the data sets.

    Returns:
      The examples, and the first run with the checkpoint that was evaluated.

    Raises:
      FileNotFoundError: a run is not complete or has no such predictions.
      ValueError: the runs used different data, the predictions are of other examples, a file is
        damaged or of an incompatible version, the first head has no covariances, the labels are
        lists, or there is no such example.
    """
    saved_runs = [loaded_run_lib.read(path) for path in (first, second)]
    mine, theirs = (predictions.read(path, evaluation) for path in (first, second))
    fingerprints = [str(run.dataset.get("fingerprint")) for run in saved_runs]
    keys = [provenance.data_key(run.dataset) for run in saved_runs]
    if keys[0] != keys[1] or not np.array_equal(mine.ids, theirs.ids):
        raise ValueError(
            f"{first} and {second} used different data (fingerprints {fingerprints[0][:12]} and"
            f" {fingerprints[1][:12]}, {len(mine.ids)} and {len(theirs.ids)} examples of"
            f" {evaluation}); choose two runs with the same data set, curation,"
            " validation_fraction and seed."
        )
    loaded_run, split = loaded_run_lib.load_evaluated(saved_runs[0], evaluation, data_dir)
    data = loaded_run_lib.single_label_data(loaded_run, split)
    if not np.array_equal(mine.ids, data.ids):
        raise ValueError(
            f"{mine.source} holds {len(mine.ids)} examples, which differ from the {len(data.ids)}"
            f" examples of the split {split!r} or from their order, so another version of this"
            " project wrote it; repeat the run with this version."
        )
    predicted, other_predicted = (predictions.predicted_classes(x) for x in (mine, theirs))
    correct, other_correct = predicted == data.labels, other_predicted == data.labels
    rows = np.flatnonzero(correct & ~other_correct)
    if not len(rows):
        raise ValueError(
            f"no example of {evaluation} is correct in {first} and wrong in {second}; choose other"
            " runs or another evaluation."
        )
    scale = loaded_run.variance_scale

    def covariances(latent, logits, batch):
        if (
            latent.factor_loadings is None
            and latent.factor_scale is None
            and latent.readout is None
        ):
            raise ValueError(
                f"the head of {first} has no covariances between classes, so there is nothing to"
                " rank; choose a run whose head has factors."
            )
        own = jax.nn.one_hot(batch.labels, latent.loc.shape[-1])
        covariance = latent_lib.covariance_times(latent, own)
        variances = latent_lib.variance(latent)
        variance = jnp.sum(own * variances, axis=-1, keepdims=True)
        probs = jax.nn.softmax(logits, axis=-1)
        return {
            "covariance": scale * covariance,
            "correlation": covariance / jnp.sqrt(variance * variances),
            "seen": scale * probs * jnp.maximum(variance + variances - 2 * covariance, 0.0),
            "probability": probs,
        }

    examples = data.take(rows)
    return Disagreements(
        ids=examples.ids,
        images=examples.inputs,
        true=examples.labels,
        other_prediction=other_predicted[rows],
        num_examples=len(data.ids),
        num_other_way=int(np.sum(other_correct & ~correct)),
        **by_example.map_predictions(loaded_run, split, covariances, rows),
    ), loaded_run


def summary(disagreements: Disagreements) -> dict[str, Any]:
    """The number of images, and for each of RANKINGS the histogram of ranks and its test."""
    counts = {
        "num_examples": disagreements.num_examples,
        "num_images": len(disagreements.ids),
        "num_other_way": disagreements.num_other_way,
    }
    facts: dict[str, Any] = counts | {"ranks": {}}
    true, other = disagreements.true, disagreements.other_prediction
    for name in RANKINGS:
        class_ranks = rank_test.ranks(getattr(disagreements, name), true)
        ranks = _entries(class_ranks, other)
        histogram = np.bincount(np.floor(ranks).astype(int), minlength=class_ranks.shape[1])[1:]
        facts["ranks"][name] = {
            "counts": histogram.tolist(),  # of ranks 1 to K - 1
            "first": float(np.mean(ranks == 1)),
            "chance_of_first": 1 / (class_ranks.shape[1] - 1),
            **rank_test.permutation_test(class_ranks, true, other)._asdict(),
        }
    return facts


def table(disagreements: Disagreements, class_names: list[str]) -> list[dict[str, Any]]:
    """Table 5: a row for each image, in descending order of the absolute covariance."""
    true, other = disagreements.true, disagreements.other_prediction
    columns = {
        "covariance": _entries(disagreements.covariance, other),
        "correlation": _entries(disagreements.correlation, other),
        "covariance_rank": _entries(rank_test.ranks(disagreements.covariance, true), other),
        "probability_of_true": _entries(disagreements.probability, true),
        "probability_of_taken_for": _entries(disagreements.probability, other),
    }
    return [
        {
            "id": int(disagreements.ids[i]),
            "true": class_names[true[i]],
            "taken_for": class_names[other[i]],
            **{name: f"{values[i]:.6g}" for name, values in columns.items()},
        }
        for i in covariance_order(disagreements)
    ]


def covariance_order(disagreements: Disagreements) -> Int[np.ndarray, "n"]:
    """Rows of the images, in descending order of the absolute covariance of both predictions."""
    covariance = _entries(disagreements.covariance, disagreements.other_prediction)
    return np.argsort(-np.abs(covariance), kind="stable")


def _entries(
    values: Float[np.ndarray, "n k"], classes: Int[np.ndarray, "n"]
) -> Float[np.ndarray, "n"]:
    """The value of one class for each image."""
    return np.take_along_axis(values, classes[:, None], axis=-1)[:, 0]


def captions(
    disagreements: Disagreements, class_names: list[str], rows: Int[np.ndarray, "m"]
) -> list[str]:
    """For each of these images the true class, the other run's class and their covariance."""
    true, other = disagreements.true, disagreements.other_prediction
    covariance = [float(f"{x:.2g}") for x in _entries(disagreements.covariance, other)]
    return [
        f"{class_names[true[i]]},\nnot {class_names[other[i]]}\ncovariance {covariance[i]:,g}"
        for i in rows
    ]


def bars(
    counts: Int[np.ndarray, "r"],
) -> tuple[Float[np.ndarray, "e"], Int[np.ndarray, "m"], Float[np.ndarray, "m"]]:
    """A histogram of ranks with at most 50 bars.

    Each bar covers an integer number of ranks; the last one covers the ranks that remain.

    Args:
      counts: images with ranks 1, 2, ...

    Returns:
      The edges of the bars, their heights, and their expected heights if all ranks are equally
      frequent.
    """
    num = len(counts)
    firsts = np.arange(0, num, -(-num // _MAX_BARS))
    edges = np.append(firsts, num) + 0.5
    return edges, np.add.reduceat(counts, firsts), counts.sum() * np.diff(edges) / num


def pictures(
    disagreements: Disagreements,
    rows: Int[np.ndarray, "m"],
    config: dict[str, Any],
    on: str,
    data_dir: str | None,
) -> Shaped[np.ndarray, "m ..."]:
    """The images of these examples; of features, those that they were made from, if at hand.

    Args:
      disagreements: the examples.
      rows: of `disagreements`.
      config: of a run.
      on: its evaluation.
      data_dir: directory of the data sets.
    """
    return originals.pictures(
        config["data"],
        data_dir,
        config["evals"][on]["split"],
        disagreements.ids[rows],
        disagreements.images[rows],
    )


def draw(
    disagreements: Disagreements,
    class_names: list[str],
    facts: dict[str, Any],
    title: str,
    path: files.Path,
    images: Shaped[np.ndarray, "m ..."],
) -> list[files.Path]:
    """Draws the images with the largest covariances, if any, and the histograms of ranks.

    Args:
      disagreements: the examples.
      class_names: of the labels.
      facts: `summary` of the examples.
      title: of the figures.
      path: of the files, without a suffix.
      images: of the largest covariances, in order, or their features.

    Returns:
      The paths of the files.
    """
    from heteroscedastic.analysis.plots import sheet

    num_images = len(disagreements.ids)
    top, written = covariance_order(disagreements)[: len(images)], []
    if figures.are_images(images):
        image_sheet = sheet.sheet(
            images,
            captions(disagreements, class_names, top),
            title=f"{title}: correct with the noise head and wrong without it, the largest"
            f" covariances of {num_images} images",
        )
        written += figures.write(image_sheet, path.with_name(path.name + "_images"))
    with figures.style_context():
        histograms = figures.figure(10, 3.6)
        histograms.suptitle(
            f"{title}: rank of the other run's prediction for {num_images} images, ranked by",
            fontsize=11,
        )
        panels = histograms.subplots(1, len(RANKINGS), sharey=True)
        for axes, (name, ranking_title) in zip(panels, RANKINGS.items()):
            result = facts["ranks"][name]
            num = len(result["counts"])
            edges, heights, level = bars(np.array(result["counts"]))
            axes.bar((edges[:-1] + edges[1:]) / 2, heights, 0.9 * np.diff(edges))
            axes.stairs(
                level, edges, baseline=None, color=figures.COLORS[1], linestyle="--", label="chance"
            )
            test = (
                f"mean rank {result['mean']:.2f}\nby class {result['of_classes']:.2f}\n"
                f"chance {result['expected']:.2f} ± {result['deviation']:.2f}\n"
                f"p = {result['p']:.2g}"
            )
            axes.text(0.97, 0.95, test, transform=axes.transAxes, ha="right", va="top")
            axes.set_title(ranking_title, parse_math=True)
            axes.set(xlabel=f"rank among the other {num} classes")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(visible=False, axis="x")
        panels[0].set_ylabel("images")
        panels[0].legend(loc="center right")
    return written + figures.write(histograms, path.with_name(path.name + "_ranks"))


@user_errors.one_line()
def main() -> None:
    """Reports the images that only one of two runs classifies correctly, with its covariances."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument(
        "--runs",
        required=True,
        nargs=2,
        metavar=("HET", "HOM"),
        help="directories of two finished runs; the first one is correct on the images",
    )
    parser.add_argument("--on", default="test", help="evaluation to report, such as test_best")
    parser.add_argument("--out", help="output directory; default: HET/analysis")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    compilation_cache.enable()
    disagreements, loaded_run = find(*flags.runs, flags.on, flags.data_dir)
    facts = {"on": flags.on} | summary(disagreements)
    class_names = figures.class_names(loaded_run.dataset)
    path = files.as_path(flags.out or f"{flags.runs[0]}/analysis") / f"disagreements_{flags.on}"
    files.write_csv(path.with_name(path.name + ".csv"), table(disagreements, class_names))
    files.write_json(path.with_name(path.name + ".json"), facts)
    print(
        f"of {disagreements.num_examples} images of {flags.on}, {len(disagreements.ids)} are"
        f" correct only in the first run and {disagreements.num_other_way} only in the second"
    )
    print(
        f"{'ranked by':<14}{'mean rank':>10}{'by class':>12}{'chance':>16}{'p':>10}"
        f"{'rank 1':>8}{'chance':>8}"
    )
    for name, result in facts["ranks"].items():
        level = f"{result['expected']:.2f} ± {result['deviation']:.2f}"
        print(
            f"{name:<14}{result['mean']:>10.2f}{result['of_classes']:>12.2f}{level:>16}"
            f"{result['p']:>10.2g}{result['first']:>8.1%}{result['chance_of_first']:>8.1%}"
        )
    config, written = loaded_run.run.config, []
    if figures.can_draw():
        top = covariance_order(disagreements)[:_NUM_IMAGES]
        images = pictures(disagreements, top, config, flags.on, flags.data_dir)
        title = f"{config['data']['name']}, {flags.on}"
        written = draw(disagreements, class_names, facts, title, path, images)
    print(f"wrote {', '.join([f'{path}.csv', '.json', *(p.name for p in written)])}")


if __name__ == "__main__":
    main()

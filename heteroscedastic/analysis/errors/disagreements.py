"""Where one run is right and another wrong: python -m heteroscedastic.analysis.errors.disagreements
--runs HET HOM.

Table 5 and Figure 2 of Collier et al. (2021), arXiv:2105.10305: does the covariance of a head with
noise know what a head without it takes an image for? Of every such image the classes other than the
true one are ranked by the size of their covariance with it, and the rank of what the other run
predicted is told. Without structure every rank is as frequent.

Covariances are in units of the utilities. A softmax sees p_j p_k var(u_j - u_k) rather than them,
so the same is told of that; and of p alone, which needs no covariance and is the rank to beat.
"""

import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, UInt8

from heteroscedastic import files, user_errors
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.errors import rank_test
from heteroscedastic.analysis.plots import figures
from heteroscedastic.runs import assembly, loaded_run, predictions, provenance

_SHOWN = 18  # images on the sheet
_MOST_BARS = 50
RANKED = {
    "covariance": "size of the covariance\nwith the true class",
    "seen": "$p\\,$var$(u_{true} - u)$,\nwhat a softmax sees",
    "probability": "probability $p$ alone,\nwithout any covariance",
}


class Disagreements(NamedTuple):
    """Images that the first run gets right and the second wrong, with what the first says of them."""

    ids: Int[np.ndarray, "n"]
    images: UInt8[np.ndarray, "n h w c"]
    true: Int[np.ndarray, "n"]  # which the first run predicts
    taken_for: Int[np.ndarray, "n"]  # which the second one predicts
    covariance: Float[
        np.ndarray, "n k"
    ]  # of the true class with every class, in squared units of the utilities
    correlation: Float[np.ndarray, "n k"]
    seen: Float[np.ndarray, "n k"]  # p_k var(u_true - u_k)
    probability: Float[np.ndarray, "n k"]
    num_examples: int  # of the split
    num_other_way: int  # examples that the second run alone gets right


def find(
    first: str | files.Path, second: str | files.Path, on: str = "test", data_dir: str | None = None
) -> tuple[Disagreements, loaded_run.Finished]:
    """The examples of an evaluation that the first of two finished runs gets right and the second
    wrong.

    Args:
      first: directory of a run whose head has covariances.
      second: of a run on the same data.
      on: name of the evaluation, whose predictions both have written down.
      data_dir: where data sets lie.

    Returns:
      Those examples, and the first run at the checkpoint that was evaluated.

    Raises:
      FileNotFoundError: a run is not complete, or has no such predictions.
      ValueError: the runs are not of the same data or predictions not of its examples, a file is
        damaged or of another version, the first has no covariances, the examples have several
        labels, or there is no such example.
    """
    runs = [loaded_run.read(path) for path in (first, second)]
    one, other = (predictions.read(path, on) for path in (first, second))
    fingerprints = [str(run.dataset.get("fingerprint")) for run in runs]
    same = provenance.data_key(runs[0].dataset) == provenance.data_key(runs[1].dataset)
    if not same or not np.array_equal(one.ids, other.ids):
        raise ValueError(
            f"{first} and {second} saw different data (fingerprints {fingerprints[0][:12]} and"
            f" {fingerprints[1][:12]},"
            f" {len(one.ids)} and {len(other.ids)} examples of {on}); give two runs of one data"
            " set, with the same"
            " curation, validation_fraction and seed."
        )
    found, split = loaded_run.evaluated(runs[0], on, data_dir)
    data = loaded_run.with_one_label(found, split)
    if not np.array_equal(one.ids, data.ids):
        raise ValueError(
            f"{one.source} tells {len(one.ids)} examples, which are not the {len(data.ids)} of the"
            f" split {split!r} in"
            " their order, so another version of this project wrote them; make the run again with"
            " this one."
        )
    says, other_says = predictions.likeliest(one), predictions.likeliest(other)
    right, other_right = says == data.labels, other_says == data.labels
    rows = np.flatnonzero(right & ~other_right)
    if not len(rows):
        raise ValueError(f"there is no example of {on} that {first} gets right and {second} wrong.")
    scale = assembly.temperature(found.run, found.state) ** 2  # back from units of the temperature

    def read(key, latent, batch):
        if (
            latent.factor_loadings is None
            and latent.factor_scale is None
            and latent.readout is None
        ):
            raise ValueError(
                f"the head of {first} has no covariances between classes, so there are none to"
                " rank."
            )
        own = jax.nn.one_hot(batch.labels, latent.loc.shape[-1])
        covariance, variances = (
            latent_lib.covariance_times(latent, own),
            latent_lib.variance(latent),
        )
        variance = jnp.sum(own * variances, axis=-1, keepdims=True)
        probs = jax.nn.softmax(found.run.parts.predictive(key, latent), axis=-1)
        return {
            "covariance": scale * covariance,
            "correlation": covariance / jnp.sqrt(variance * variances),
            "seen": scale * probs * jnp.maximum(variance + variances - 2 * covariance, 0.0),
            "probability": probs,
        }

    chosen = data.take(rows)
    return Disagreements(
        ids=chosen.ids,
        images=chosen.inputs,
        true=chosen.labels,
        taken_for=other_says[rows],
        num_examples=len(data.ids),
        num_other_way=int(np.sum(other_right & ~right)),
        **loaded_run.by_example(found, data, read, rows),
    ), found


def summary(found: Disagreements) -> dict[str, Any]:
    """How many images there are, and of each of RANKED the ranks' histogram and test."""
    counts = {
        "num_examples": found.num_examples,
        "num_images": len(found.ids),
        "num_other_way": found.num_other_way,
    }
    told: dict[str, Any] = counts | {"ranks": {}}
    for name in RANKED:
        ranked = rank_test.ranks(getattr(found, name), found.true)
        taken = _of_each(ranked, found.taken_for)
        counts = np.bincount(np.floor(taken).astype(int), minlength=ranked.shape[1])[1:]
        told["ranks"][name] = {
            "counts": counts.tolist(),  # of ranks 1 to K - 1
            "first": float(np.mean(taken == 1)),
            "chance_of_first": 1 / (ranked.shape[1] - 1),
            **rank_test.chance(ranked, found.true, found.taken_for)._asdict(),
        }
    return told


def table(found: Disagreements, class_names: list[str]) -> list[dict[str, Any]]:
    """Table 5: a row an image, the largest size of the covariance first."""
    numbers = {
        "covariance": _of_each(found.covariance, found.taken_for),
        "correlation": _of_each(found.correlation, found.taken_for),
        "covariance_rank": _of_each(rank_test.ranks(found.covariance, found.true), found.taken_for),
        "probability_of_true": _of_each(found.probability, found.true),
        "probability_of_taken_for": _of_each(found.probability, found.taken_for),
    }
    return [
        {
            "id": int(found.ids[i]),
            "true": class_names[found.true[i]],
            "taken_for": class_names[found.taken_for[i]],
            **{name: f"{values[i]:.6g}" for name, values in numbers.items()},
        }
        for i in largest(found)
    ]


def largest(found: Disagreements) -> Int[np.ndarray, "n"]:
    """Places of the images, the largest size of the covariance of the two predictions first."""
    return np.argsort(-np.abs(_of_each(found.covariance, found.taken_for)), kind="stable")


def _of_each(values: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, classes[:, None], axis=-1)[:, 0]


def captions(
    found: Disagreements, class_names: list[str], places: Int[np.ndarray, "m"]
) -> list[str]:
    """Of each of these images what it is, what it was taken for and the covariance of the two."""
    covariance = [float(f"{x:.2g}") for x in _of_each(found.covariance, found.taken_for)]
    return [
        f"{class_names[found.true[i]]},\nnot {class_names[found.taken_for[i]]}\ncovariance"
        f" {covariance[i]:,g}"
        for i in places
    ]


def bars(
    counts: Int[np.ndarray, "r"],
) -> tuple[Float[np.ndarray, "e"], Int[np.ndarray, "m"], Float[np.ndarray, "m"]]:
    """Edges and heights of at most fifty bars, and their heights by chance, of how many images have
    ranks 1, 2, ...

    A bar is of a whole number of ranks, the last one of those that are left.
    """
    num = len(counts)
    firsts = np.arange(0, num, -(-num // _MOST_BARS))
    edges = np.append(firsts, num) + 0.5
    return edges, np.add.reduceat(counts, firsts), counts.sum() * np.diff(edges) / num


def draw(
    found: Disagreements,
    class_names: list[str],
    facts: dict[str, Any],
    title: str,
    path: files.Path,
) -> list[files.Path]:
    """Draws the images of the largest covariances and the histograms of ranks; returns what was
    written.
    """
    from heteroscedastic.analysis.plots import sheet

    top = largest(found)[:_SHOWN]
    drawn = sheet.sheet(
        found.images[top],
        captions(found, class_names, top),
        title=f"{title}: right with the noise head and wrong without, the largest covariances of {len(found.ids)}",
    )
    written = figures.write(drawn, path.with_name(path.name + "_images"))
    with figures.styled():
        drawn = figures.figure(10, 3.6)
        drawn.suptitle(
            f"{title}: what the other run takes the {len(found.ids)} images for, ranked by",
            fontsize=11,
        )
        panels = drawn.subplots(1, len(RANKED), sharey=True)
        for axes, (name, words) in zip(panels, RANKED.items()):
            told = facts["ranks"][name]
            num = len(told["counts"])
            edges, heights, level = bars(np.array(told["counts"]))
            axes.bar((edges[:-1] + edges[1:]) / 2, heights, 0.9 * np.diff(edges))
            axes.stairs(
                level, edges, baseline=None, color=figures.COLORS[1], linestyle="--", label="chance"
            )
            chance = f"chance {told['expected']:.2f} ± {told['deviation']:.2f}\np = {told['p']:.2g}"
            test = f"mean rank {told['mean']:.2f}\nof classes {told['of_classes']:.2f}\n{chance}"
            axes.text(0.97, 0.95, test, transform=axes.transAxes, ha="right", va="top")
            axes.set_title(words, parse_math=True)
            axes.set(xlabel=f"rank among the other {num} classes")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(visible=False, axis="x")
        panels[0].set_ylabel("images")
        panels[0].legend(loc="center right")
    return written + figures.write(drawn, path.with_name(path.name + "_ranks"))


@user_errors.one_line()
def main() -> None:
    """Tells the images that one finished run gets right and another wrong, and whether its
    covariances knew.
    """
    parser = user_errors.parser(main.__doc__)
    parser.add_argument(
        "--runs",
        required=True,
        nargs=2,
        metavar=("HET", "HOM"),
        help="directories of finished runs, the first right",
    )
    parser.add_argument("--on", default="test", help="evaluation that is told, such as test_best")
    parser.add_argument("--out", help="directory; HET/analysis if not given")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    found, run = find(*flags.runs, flags.on, flags.data_dir)
    facts, class_names = {"on": flags.on} | summary(found), figures.class_names(run.dataset)
    path = files.as_path(flags.out or f"{flags.runs[0]}/analysis") / f"disagreements_{flags.on}"
    files.write_csv(path.with_name(path.name + ".csv"), table(found, class_names))
    files.write_json(path.with_name(path.name + ".json"), facts)
    print(
        f"{len(found.ids)} of the {found.num_examples} images of {flags.on} are right in the first"
        " run alone,"
        f" {found.num_other_way} in the second alone."
    )
    print(
        f"{'ranked by':<14}{'mean rank':>10}{'of classes':>12}{'chance':>16}{'p':>10}{'first':>8}{'chance':>8}"
    )
    for name, told in facts["ranks"].items():
        level = f"{told['expected']:.2f} ± {told['deviation']:.2f}"
        print(
            f"{name:<14}{told['mean']:>10.2f}{told['of_classes']:>12.2f}{level:>16}{told['p']:>10.2g}"
            f"{told['first']:>8.1%}{told['chance_of_first']:>8.1%}"
        )
    title = f"{run.run.config['data']['name']}, {flags.on}"
    written = draw(found, class_names, facts, title, path) if figures.can_draw() else []
    print(f"wrote {', '.join([f'{path}.csv', '.json', *(p.name for p in written)])}")


if __name__ == "__main__":
    main()

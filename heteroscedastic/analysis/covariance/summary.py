"""Which classes the learned noise ties together: python -m heteroscedastic.analysis.covariance
--run=DIR.

Prints the pairs of classes, and writes under DIR/analysis/covariance/ a table of them
(`pairs.csv`), of the classes (`classes.csv`), what holds of the whole (`summary.json`) and a heat
map of the classes of the first pairs. `--by=covariance` is Table 4 of Collier et al. (2021),
arXiv:2105.10305; pairs.py says what the measures mean.
"""

import argparse
import functools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from heteroscedastic import files, user_errors
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.covariance import average as average_lib
from heteroscedastic.analysis.covariance import examples, known_noise, pairs
from heteroscedastic.analysis.covariance.average import Average
from heteroscedastic.analysis.plots import figures
from heteroscedastic.data import resident
from heteroscedastic.runs import assembly, loaded_run
from heteroscedastic.training import evaluate

MAX_CLASSES = 2000  # of which matrices of an example are made
_NUMBERS = 2**25  # of the matrices of a batch


class Measures(NamedTuple):
    """Of every pair of classes, averaged over a split, in units of the utilities; see pairs.py."""

    covariance: Float[np.ndarray, "k k"]
    correlation: Float[
        np.ndarray, "k k"
    ]  # of the average covariance; 0 where a class has no variance
    centred: Float[np.ndarray, "k k"]
    centred_correlation: Float[np.ndarray, "k k"]
    difference: Float[np.ndarray, "k k"]  # mean of var(u_i - u_j)
    seen: Float[np.ndarray, "k k"]  # mean of p_i p_j var(u_i - u_j)
    overlap: Float[np.ndarray, "k k"]  # mean of p_i p_j, which needs no covariance


def averaged(found: loaded_run.Finished, split: str = "test") -> Average:
    """The exact average of the covariance over a split of a finished run.

    Raises:
      ValueError: the run has no such split.
    """
    return average_lib.of(found.run.model.head, found.state.params["head"], _features(found, split))


def _features(found: loaded_run.Finished, split: str) -> Iterator[Float[np.ndarray, "b d"]]:
    run, state = found.run, found.state
    data = jax.device_put(loaded_run.data(found, split))
    features = jax.jit(lambda feed: run.features(state.params, state.model_state, data, feed)[0])
    for feed in resident.feeds(np.arange(len(data.ids)), run.steps.batch_size):
        yield np.asarray(features(feed), np.float32)[feed.weights > 0]


def measures(
    found: loaded_run.Finished, split: str = "test", average: Average | None = None
) -> Measures:
    """The measures of every pair of classes of a finished run on one of its splits.

    Args:
      found: the run.
      split: of its data.
      average: what `averaged` gives of it, where that is known.

    Raises:
      ValueError: more classes than a K x K matrix an example is sensible for, or several labels
        an example.
    """
    run, state = found.run, found.state
    num_classes = len(found.dataset["class_names"])
    if num_classes > MAX_CLASSES:
        raise ValueError(
            f"{num_classes} classes; covariance matrices of an example are made up to"
            f" {MAX_CLASSES}. `averaged` and"
            " pairs.py have what needs none."
        )
    data = loaded_run.with_one_label(found, split)
    scale = assembly.temperature(run, state) ** 2  # back from units of the temperature

    @jax.jit
    def sums(feed, key):
        latent, batch = run.latents(state.params, state.model_state, data_on_device, feed)
        probs = jax.nn.softmax(run.parts.predictive(key, latent), axis=-1)
        overlap = probs[:, :, None] * probs[:, None, :]
        parts = {
            "seen": scale * overlap * latent_lib.difference_variance(latent),
            "overlap": overlap,
        }
        return {n: jnp.einsum("b,bij->ij", batch.weights, x) for n, x in parts.items()}

    data_on_device = jax.device_put(data)
    key = assembly.key_for(run.config["seed"], "covariance")
    batch_size = max(1, min(run.steps.batch_size, _NUMBERS // num_classes**2))
    feeds = resident.feeds(np.arange(len(data.ids)), batch_size)
    parts = (sums(feed, jax.random.fold_in(key, i)) for i, feed in enumerate(feeds))
    total = functools.reduce(evaluate.merged, parts, None)
    average = averaged(found, split) if average is None else average
    classes = np.arange(num_classes)
    covariance = average_lib.rows(average, classes)
    exact = {
        n: pairs.measure(n, average, covariance, classes[:, None], classes) for n in pairs.MEASURES
    }
    return Measures(**exact, **{name: value / len(data.ids) for name, value in total.items()})


def summary(average: Average) -> dict[str, float]:
    """Shares of the trace of the averaged covariance.

    Returns:
      `mean_variance`: of a utility, in squared units of it; `diagonal` and `factors`: what the
      head's diagonal and its factors add of the variance; `common`: what is common to all classes,
      which a softmax does not see (K times the variance of the mean over classes; 1/K of
      independent noise).
    """
    trace, num_classes = average.variance.sum(), len(average.variance)
    diagonal = average.own.sum() / trace
    common = num_classes * average.means.mean() / trace
    return {
        "mean_variance": float(trace / num_classes),
        "diagonal": float(diagonal),
        "factors": float(1 - diagonal),
        "common": float(common),
    }


class Ties(NamedTuple):
    """Which classes the noise of a run ties together on a split."""

    by: str  # the measure by which pairs are ranked
    pairs: list[dict[str, Any]]  # rows of pairs.table, the largest first
    names: list[str]  # of the classes of the heat map, in its order
    block: list[dict[str, Any]]  # a row for each pair of them
    average: Average
    measures: (
        Measures | None
    )  # where there is one label an example, and no more classes than MAX_CLASSES
    facts: dict[str, Any]  # `summary` and, with measures, what known_noise.py tells of them


def ties(
    found: loaded_run.Finished,
    split: str = "test",
    by: str | None = None,
    num_pairs: int = 100,
    group: Int[np.ndarray, "c"] | None = None,
    num_classes: int = 20,
) -> Ties:
    """The pairs of classes of a finished run that its noise ties together.

    Args:
      found: the run.
      split: of its data.
      by: a measure of pairs.py, or "seen"; else "seen" where there are measures, and "covariance"
        where not.
      num_pairs: to tell, >= 1.
      group: classes of the heat map; else those of the first pairs.
      num_classes: of the heat map at most, where `group` does not say.

    Raises:
      ValueError: no such split, or "seen" of too many classes or of several labels.
    """
    names, whole, average = figures.class_names(found.dataset), None, averaged(found, split)
    if found.run.task.link == "softmax" and len(names) <= MAX_CLASSES:
        whole = measures(found, split, average)
    by = by or ("covariance" if whole is None else "seen")
    if by == "seen":
        if whole is None:
            raise ValueError(
                f"--by=seen needs one label an example and at most {MAX_CLASSES} classes; with"
                " --class one label is"
                f" enough. Here choose of {', '.join(pairs.MEASURES)}."
            )
        first = pairs.top_of(whole.seen, whole.covariance, num_pairs)
    else:
        first = pairs.top(average, num_pairs, by)
    facts = {"pairs_by": by, **summary(average)}
    if whole is not None:
        facts["agreement_with_known_noise"] = known_noise.agreements(whole._asdict(), found.dataset)
        facts["with_probabilities"] = known_noise.with_probabilities(whole._asdict())
    group = pairs.first_classes(first, num_classes) if group is None else group
    some = pairs.within(average, group)
    group = group[
        pairs.clustered(
            pairs.measure("correlation", average, some.covariance, some.rows, some.cols)
        )
    ]
    block = _told(found, split, average, pairs.within(average, group), whole)
    told = _told(found, split, average, first, whole)
    return Ties(by, told, [names[i] for i in group], block, average, whole, facts)


@user_errors.one_line()
def main() -> None:
    """Prints and writes the class pairs that the noise of a finished run ties together."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--run", required=True, help="directory of a finished run")
    parser.add_argument("--split", default="test")
    parser.add_argument("--checkpoint", default="last", choices=("last", "best"))
    parser.add_argument(
        "--by",
        choices=("seen", *pairs.MEASURES),
        help="default: seen where it can be, or covariance",
    )
    parser.add_argument("--top", type=int, default=10, help="pairs to print")
    parser.add_argument("--num_pairs", type=int, default=100, help="pairs to write")
    parser.add_argument(
        "--classes", nargs="+", help="names or numbers of the classes of the heat map or --id"
    )
    parser.add_argument(
        "--num_classes", type=int, default=20, help="at most, where --classes does not say"
    )
    parser.add_argument(
        "--class", dest="chosen", help="name or number of a class: its neighbours alone are told"
    )
    parser.add_argument("--id", type=int, help="of an example: its own covariance alone is told")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    if (
        min(flags.top, flags.num_pairs) < 1
        or min(flags.num_classes, len(flags.classes or "two")) < 2
    ):
        raise ValueError(
            "--top and --num_pairs must be 1 or more, --num_classes and the classes of --classes 2"
            " or more."
        )
    found = loaded_run.load(flags.run, flags.checkpoint, flags.data_dir)
    if not loaded_run.has_noise(found.run.config):
        raise ValueError(
            f"{flags.run} has the head Deterministic, which has no noise; give a run of another"
            " head."
        )
    out = files.as_path(flags.run) / "analysis" / "covariance" / f"{flags.split}_{flags.checkpoint}"
    names = figures.class_names(found.dataset)
    group = None if flags.classes is None else pairs.named_classes(names, flags.classes)
    if flags.id is not None:
        _tell_example(found, flags, out / f"example_{flags.id}", group)
    elif flags.chosen is not None:
        _tell_class(found, flags, out, int(pairs.named_classes(names, [flags.chosen])[0]))
    else:
        _tell_pairs(found, flags, out, group)


def _tell_pairs(
    found: loaded_run.Finished, flags: argparse.Namespace, out: files.Path, group: np.ndarray | None
) -> None:
    told = ties(found, flags.split, flags.by, flags.num_pairs, group, flags.num_classes)
    _write_pairs(out / "pairs.csv", told.pairs, told.by, flags.top)
    print(
        "of the variance "
        + ", ".join(f"{told.facts[n]:.1%} is {n}" for n in ("diagonal", "factors", "common"))
    )
    if told.measures is not None:
        said = (
            f"{n} {v['rho']:.2f} (p {v['p']:.2g})"
            for n, v in told.facts["with_probabilities"].items()
        )
        print("rank correlation with p_i p_j: " + ", ".join(said))
        files.write_arrays(out / "measures.npz", told.measures._asdict())
    files.write_json(
        out / "summary.json", {"split": flags.split, "checkpoint": flags.checkpoint, **told.facts}
    )
    variance, diagonal = told.average.variance, told.average.own / told.average.variance
    columns = zip(figures.class_names(found.dataset), variance.tolist(), diagonal.tolist())
    files.write_csv(
        out / "classes.csv", [{"class": n, "variance": v, "diagonal": d} for n, v, d in columns]
    )
    files.write_csv(out / "heat_map.csv", told.block)
    if figures.can_draw():
        from heteroscedastic.analysis.plots import heat_map

        title = f"{_name(found)}: split {flags.split!r}, {flags.checkpoint} checkpoint"
        heat_map.figures.write(heat_map.of_group(told.names, told.block, title), out / "heat_map")
    print(f"wrote {out}")


def _tell_class(
    found: loaded_run.Finished, flags: argparse.Namespace, out: files.Path, chosen: int
) -> None:
    average = averaged(found, flags.split)
    near = pairs.of_class(average, chosen)
    by = flags.by or ("covariance" if found.run.task.link == "sigmoid" else "seen")
    if by == "seen":
        sizes = pairs.seen(found, flags.split, near.rows, near.cols)
    else:
        sizes = pairs.measure(by, average, near.covariance, near.rows, near.cols)
    near = pairs.largest(near, sizes, flags.num_pairs)
    path = out / f"neighbours_of_class_{chosen}.csv"
    _write_pairs(path, _told(found, flags.split, average, near), by, flags.top)
    print(f"wrote {path}")


def _tell_example(
    found: loaded_run.Finished, flags: argparse.Namespace, out: files.Path, group: np.ndarray | None
) -> None:
    names = figures.class_names(found.dataset)
    example = examples.of(found, flags.split, flags.id, group, flags.num_classes)
    files.write_csv(out.with_suffix(".csv"), examples.table(example, names))
    if figures.can_draw():
        from heteroscedastic.analysis.plots import heat_map

        title = f"{_name(found)}: example {flags.id} of the split {flags.split!r}"
        heat_map.figures.write(heat_map.of_example(example, names, title), out)
    print(f"wrote {out}.csv")


def _told(
    found: loaded_run.Finished,
    split: str,
    average: Average,
    some: pairs.Pairs,
    whole: Measures | None = None,
) -> list[dict[str, Any]]:
    seen = None if whole is None else whole.seen[some.rows, some.cols]
    if seen is None and found.run.task.link == "softmax":
        seen = pairs.seen(found, split, some.rows, some.cols)
    mixed = (
        known_noise.mixed(found.dataset, some.rows, some.cols)
        if known_noise.share(found.dataset)
        else None
    )
    return pairs.table(average, some, figures.class_names(found.dataset), seen, mixed)


def _name(found: loaded_run.Finished) -> str:
    config = found.run.config
    return f"{config['head']['name']} on {config['data']['name']}, seed {config['seed']}"


def _write_pairs(path: files.Path, rows: list[dict[str, Any]], by: str, num_printed: int) -> None:
    files.write_csv(path, rows)
    columns = [f"{name:>{max(len(name), 9) + 2}}" for name in list(rows[0])[2:]]
    told = [
        f"{figures.short(row['class'])}, {figures.short(row['other'])}"
        for row in rows[:num_printed]
    ]
    width = max(len(names) for names in told)
    print(f"largest {by}\n{'classes':<{width}}" + "".join(columns))
    for names, row in zip(told, rows):
        values = "".join(
            f"{value:>{len(c)}.4g}" for c, value in zip(columns, list(row.values())[2:])
        )
        print(f"{names:<{width}}{values}")


if __name__ == "__main__":
    main()

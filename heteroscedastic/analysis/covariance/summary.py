"""Class pairs whose learned noise is correlated:
python -m heteroscedastic.analysis.covariance --run=DIR

Prints the class pairs and writes to DIR/analysis/covariance/ a table of the pairs (`pairs.csv`), a
table of the classes (`classes.csv`), summary statistics (`summary.json`) and a heat map of the
classes in the first pairs. `--by=covariance` gives Table 4 of Collier et al. (2021),
arXiv:2105.10305. pairs.py defines the measures.
"""

import argparse
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
from heteroscedastic.analysis.covariance import examples, known_noise
from heteroscedastic.analysis.covariance import pairs as pairs_lib
from heteroscedastic.analysis.covariance.average import Average
from heteroscedastic.analysis.plots import figures
from heteroscedastic.data.storage import originals
from heteroscedastic.runs import by_example, compilation_cache
from heteroscedastic.runs import loaded_run as loaded_run_lib
from heteroscedastic.runs.loaded_run import LoadedRun

MAX_CLASSES = 2000  # above which no K x K matrix is computed per example
_MATRIX_VALUES = 2**25  # values in the matrices of a batch


class Measures(NamedTuple):
    """Measures of every class pair, averaged over a split, in units of the utilities.

    pairs.py defines them.
    """

    covariance: Float[np.ndarray, "k k"]
    correlation: Float[np.ndarray, "k k"]  # of the averaged covariance; 0 without variance
    centred: Float[np.ndarray, "k k"]
    centred_correlation: Float[np.ndarray, "k k"]
    difference: Float[np.ndarray, "k k"]  # mean of var(u_i - u_j)
    seen: Float[np.ndarray, "k k"]  # mean of p_i p_j var(u_i - u_j)
    overlap: Float[np.ndarray, "k k"]  # mean of p_i p_j, which requires no covariance


def average_covariance(loaded_run: LoadedRun, split: str = "test") -> Average:
    """The exact average of the covariance over a split of a finished run.

    In detection it is over the regions that are evaluated.

    Raises:
      ValueError: the run has no such split.
    """
    loaded_run_lib.check_split(loaded_run.run, split)  # before any work
    head, params = loaded_run.run.model.head, loaded_run.state.params["head"]
    features = (
        [by_example.features(loaded_run, split)]
        if loaded_run.run.task.rows == "example"
        else _region_features(loaded_run, split)
    )
    return average_lib.average_covariance(head, params, features)


def _region_features(loaded_run: LoadedRun, split: str) -> Iterator[Float[np.ndarray, "n d"]]:
    run, state = loaded_run.run, loaded_run.state
    arrays = jax.device_put(run.pipeline.arrays[split])
    arguments = (state.params, state.model_state, arrays)  # not constants of the program
    features = jax.jit(lambda *given: run.features(*given, run.chain_of(split))[0])
    for feed in run.pipeline.feeds(split, np.arange(run.steps.batch_size)):
        values, is_region = map(np.asarray, features(*arguments, feed))
        yield values[is_region]


def measures(
    loaded_run: LoadedRun, split: str = "test", average: Average | None = None
) -> Measures:
    """All measures of every class pair of a finished run on one of its splits.

    Args:
      loaded_run: the run.
      split: of its data.
      average: `average_covariance` of the run and split, if it is already known.

    Raises:
      ValueError: there are too many classes for a K x K matrix per example, or the link is the
        sigmoid.
    """
    run = loaded_run.run
    num_classes = len(loaded_run.dataset["class_names"])
    if num_classes > MAX_CLASSES:
        raise ValueError(
            f"the run has {num_classes} classes, but covariance matrices per example support at"
            f" most {MAX_CLASSES}; use average_covariance and pairs.py instead."
        )
    num_examples = len(loaded_run_lib.single_label_data(loaded_run, split).ids)
    scale = loaded_run.variance_scale

    def sums(latent, logits, batch):
        probs = jax.nn.softmax(logits, axis=-1)
        overlap = probs[:, :, None] * probs[:, None, :]
        parts = {
            "seen": scale * overlap * latent_lib.difference_variance(latent),
            "overlap": overlap,
        }
        return {n: jnp.einsum("b,bij->ij", batch.weights, x) for n, x in parts.items()}

    batch_size = max(1, min(run.steps.batch_size, _MATRIX_VALUES // num_classes**2))
    total = by_example.sum_predictions(loaded_run, split, sums, batch_size)
    average = average_covariance(loaded_run, split) if average is None else average
    classes = np.arange(num_classes)
    covariance = average_lib.covariance_rows(average, classes)
    exact = {
        name: pairs_lib.measure(name, average, covariance, classes[:, None], classes)
        for name in pairs_lib.MEASURES
    }
    return Measures(**exact, **{name: value / num_examples for name, value in total.items()})


def summary(average: Average) -> dict[str, float]:
    """Fractions of the trace of the averaged covariance.

    Returns:
      `mean_variance`: the mean variance of a utility, in squared units of the utilities;
      `diagonal` and `factors`: the fractions of the variance that come from the head's diagonal
      and from its factors; `common`: the fraction that is common to all classes and therefore
      does not change a softmax (K times the variance of the mean over classes; 1/K for
      independent noise).
    """
    trace, num_classes = average.variance.sum(), len(average.variance)
    diagonal = average.diagonal.sum() / trace
    common = num_classes * average.means.mean() / trace
    return {
        "mean_variance": float(trace / num_classes),
        "diagonal": float(diagonal),
        "factors": float(1 - diagonal),
        "common": float(common),
    }


class ClassPairs(NamedTuple):
    """The class pairs of a run with the largest value of a measure on a split."""

    measure: str  # by which the pairs are ranked
    pairs: list[dict[str, Any]]  # rows of pairs.table, the largest first
    numbers: pairs_lib.Pairs  # the same pairs by class number, as several classes may share a name
    names: list[str]  # classes of the heat map, in its order
    block: list[dict[str, Any]]  # a row for each pair of classes of the heat map
    average: Average
    measures: Measures | None  # None for a sigmoid, for regions or above MAX_CLASSES classes
    facts: dict[str, Any]  # `summary` and, if there are measures, results of known_noise.py


_NO_SEEN = (
    f"--by=seen requires one label per example and at most {MAX_CLASSES} classes (with --class, any"
    f" number of classes); choose another measure: {', '.join(pairs_lib.MEASURES)}."
)


def _check_classes(loaded_run: LoadedRun) -> None:
    if len(loaded_run.dataset["class_names"]) < 2:
        raise ValueError("the run has one class; pairs of classes require two or more.")


def class_pairs(
    loaded_run: LoadedRun,
    split: str = "test",
    measure: str | None = None,
    num_pairs: int = 100,
    group: Int[np.ndarray, "c"] | None = None,
    num_classes: int = 20,
) -> ClassPairs:
    """The class pairs of a finished run with the largest value of a measure.

    Args:
      loaded_run: the run.
      split: of its data.
      measure: "seen" or one of pairs.MEASURES; by default "seen" if `measures` supports the run,
        otherwise "covariance".
      num_pairs: pairs to return, at least 1.
      group: classes of the heat map; by default those of the first pairs.
      num_classes: classes of the heat map at most, if `group` is None.

    Raises:
      ValueError: there is no such split, `measures` does not support "seen" for the run, or it has
        one class.
    """
    _check_classes(loaded_run)
    names = figures.class_names(loaded_run.dataset)
    average, all_measures = average_covariance(loaded_run, split), None
    if _has_seen(loaded_run) and len(names) <= MAX_CLASSES:
        all_measures = measures(loaded_run, split, average)
    measure = measure or ("covariance" if all_measures is None else "seen")
    if measure == "seen":
        if all_measures is None:
            raise ValueError(_NO_SEEN)
        top = pairs_lib.top_matrix_pairs(all_measures.seen, all_measures.covariance, num_pairs)
    else:
        top = pairs_lib.top_pairs(average, num_pairs, measure)
    facts = {"pairs_by": measure, **summary(average)}
    if all_measures is not None:
        by_name = all_measures._asdict()
        facts["agreement_with_known_noise"] = known_noise.agreements(by_name, loaded_run.dataset)
        facts["with_probabilities"] = known_noise.probability_correlations(by_name)
    group = pairs_lib.first_classes(top, num_classes) if group is None else group
    within = pairs_lib.group_pairs(average, group)
    correlation = pairs_lib.measure(
        "correlation", average, within.covariance, within.rows, within.cols
    )
    group = group[pairs_lib.cluster_order(correlation)]
    block = _table(loaded_run, split, average, pairs_lib.group_pairs(average, group), all_measures)
    rows = _table(loaded_run, split, average, top, all_measures)
    return ClassPairs(
        measure, rows, top, [names[i] for i in group], block, average, all_measures, facts
    )


@user_errors.one_line()
def main() -> None:
    """Prints and writes the class pairs of a finished run whose noise is correlated."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--run", required=True, help="directory of a finished run")
    parser.add_argument("--split", default="test", help="split of its data")
    parser.add_argument("--checkpoint", default="last", choices=("last", "best"))
    parser.add_argument(
        "--by",
        choices=("seen", *pairs_lib.MEASURES),
        help="measure that ranks the pairs; default: seen if the run supports it, else covariance",
    )
    parser.add_argument("--top", type=int, default=10, help="number of pairs to print")
    parser.add_argument("--num_pairs", type=int, default=100, help="number of pairs to write")
    parser.add_argument(
        "--classes", nargs="+", help="names or numbers of the classes of the heat map or of --id"
    )
    parser.add_argument(
        "--num_classes",
        type=int,
        default=20,
        help="largest number of classes of the heat map, without --classes",
    )
    parser.add_argument(
        "--class",
        dest="class_name",
        help="name or number of a class: report only its pairs with the other classes",
    )
    parser.add_argument(
        "--id", type=int, help="id of an example: report only the covariance of this example"
    )
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    flags = parser.parse_args()
    if (
        min(flags.top, flags.num_pairs) < 1
        or min(flags.num_classes, len(flags.classes or "two")) < 2
    ):
        raise ValueError(
            "--top and --num_pairs must be at least 1; --num_classes and the number of classes in"
            " --classes must be at least 2."
        )
    if flags.id is not None and (flags.class_name is not None or flags.by is not None):
        parser.error("--id reports one example, without --class and --by; leave them out.")
    if flags.class_name is not None and flags.classes is not None:
        parser.error("--class reports all pairs of a class; leave out --classes.")
    compilation_cache.enable()
    loaded_run = loaded_run_lib.load(flags.run, flags.checkpoint, flags.data_dir)
    if not loaded_run_lib.has_noise(loaded_run.run.config):
        raise ValueError(
            f"{flags.run} has the head Deterministic, which has no noise; choose a run with another"
            " head."
        )
    out = files.as_path(flags.run) / "analysis" / "covariance" / f"{flags.split}_{flags.checkpoint}"
    names = figures.class_names(loaded_run.dataset)
    group = None if flags.classes is None else pairs_lib.class_numbers(names, flags.classes)
    if flags.id is not None:
        _report_example(loaded_run, flags, out / f"example_{flags.id}", group)
    elif flags.class_name is not None:
        (number,) = pairs_lib.class_numbers(names, [flags.class_name])
        _report_class(loaded_run, flags, out, int(number))
    else:
        _report_pairs(loaded_run, flags, out, group)


def _report_pairs(
    loaded_run: LoadedRun, flags: argparse.Namespace, out: files.Path, group: np.ndarray | None
) -> None:
    result = class_pairs(
        loaded_run, flags.split, flags.by, flags.num_pairs, group, flags.num_classes
    )
    _write_pairs(out / "pairs.csv", result.pairs, result.measure, flags.top)
    parts = ", ".join(f"{name} {result.facts[name]:.1%}" for name in ("diagonal", "factors"))
    print(f"variance: {parts}; common to all classes {result.facts['common']:.1%}")
    if result.measures is not None:
        correlations = (
            f"{name} {value['rho']:.2f} (p {value['p']:.2g})"
            for name, value in result.facts["with_probabilities"].items()
        )
        print("rank correlation with p_i p_j: " + ", ".join(correlations))
        files.write_arrays(out / "measures.npz", result.measures._asdict())
    files.write_json(
        out / "summary.json", {"split": flags.split, "checkpoint": flags.checkpoint, **result.facts}
    )
    variance = result.average.variance
    diagonal = result.average.diagonal / variance
    columns = zip(figures.class_names(loaded_run.dataset), variance.tolist(), diagonal.tolist())
    files.write_csv(
        out / "classes.csv", [{"class": n, "variance": v, "diagonal": d} for n, v, d in columns]
    )
    files.write_csv(out / "heat_map.csv", result.block)
    if figures.can_draw():
        from heteroscedastic.analysis.plots import heat_map

        title = f"{_name(loaded_run)}: split {flags.split!r}, {flags.checkpoint} checkpoint"
        figures.write(heat_map.group_map(result.names, result.block, title), out / "heat_map")
    print(f"wrote {out}")


def _report_class(
    loaded_run: LoadedRun, flags: argparse.Namespace, out: files.Path, number: int
) -> None:
    _check_classes(loaded_run)
    average = average_covariance(loaded_run, flags.split)
    pairs = pairs_lib.class_pairs(average, number)
    if flags.by == "seen" and not _has_seen(loaded_run):
        raise ValueError(_NO_SEEN)
    name = flags.by or ("seen" if _has_seen(loaded_run) else "covariance")
    if name == "seen":
        values = pairs_lib.visible_variance(loaded_run, flags.split, pairs.rows, pairs.cols)
    else:
        values = pairs_lib.measure(name, average, pairs.covariance, pairs.rows, pairs.cols)
    pairs = pairs_lib.largest(pairs, values, flags.num_pairs)
    path = out / f"neighbours_of_class_{number}.csv"
    _write_pairs(path, _table(loaded_run, flags.split, average, pairs), name, flags.top)
    print(f"wrote {path}")


def _report_example(
    loaded_run: LoadedRun, flags: argparse.Namespace, out: files.Path, group: np.ndarray | None
) -> None:
    names = figures.class_names(loaded_run.dataset)
    example = examples.example_covariance(
        loaded_run, flags.split, flags.id, group, flags.num_classes
    )
    files.write_csv(out.with_suffix(".csv"), examples.table(example, names))
    if figures.can_draw():
        from heteroscedastic.analysis.plots import heat_map

        image = originals.pictures(
            loaded_run.run.config["data"],
            flags.data_dir,
            flags.split,
            np.array([flags.id]),
            example.image[None],
        )[0]
        example = example._replace(image=image)
        title = f"{_name(loaded_run)}: example {flags.id} of the split {flags.split!r}"
        figures.write(heat_map.example_map(example, names, title), out)
    print(f"wrote {out}.csv")


def _table(
    loaded_run: LoadedRun,
    split: str,
    average: Average,
    pairs: pairs_lib.Pairs,
    all_measures: Measures | None = None,
) -> list[dict[str, Any]]:
    seen = None if all_measures is None else all_measures.seen[pairs.rows, pairs.cols]
    if seen is None and _has_seen(loaded_run):
        seen = pairs_lib.visible_variance(loaded_run, split, pairs.rows, pairs.cols)
    confusion = (
        known_noise.confusion_rates(loaded_run.dataset, pairs.rows, pairs.cols)
        if known_noise.noise_rate(loaded_run.dataset)
        else None
    )
    names = figures.class_names(loaded_run.dataset)
    return pairs_lib.table(average, pairs, names, seen, confusion)


def _has_seen(loaded_run: LoadedRun) -> bool:
    """Whether the measure `seen` is defined: an example has one label, under a softmax."""
    task = loaded_run.run.task
    return task.link == "softmax" and task.rows == "example"


def _name(loaded_run: LoadedRun) -> str:
    config = loaded_run.run.config
    return f"{config['head']['name']} on {config['data']['name']}, seed {config['seed']}"


def _write_pairs(
    path: files.Path, rows: list[dict[str, Any]], measure: str, num_printed: int
) -> None:
    files.write_csv(path, rows)
    columns = [f"{name:>{max(len(name), 9) + 2}}" for name in list(rows[0])[2:]]
    names = [
        f"{figures.short_name(row['class'])}, {figures.short_name(row['other'])}"
        for row in rows[:num_printed]
    ]
    width = max(map(len, names))
    print(f"pairs with the largest {measure}\n{'classes':<{width}}" + "".join(columns))
    for pair, row in zip(names, rows):
        values = "".join(
            f"{value:>{len(c)}.4g}" for c, value in zip(columns, list(row.values())[2:])
        )
        print(f"{pair:<{width}}{values}")


if __name__ == "__main__":
    main()

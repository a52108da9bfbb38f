"""Is a model less sure, or its noise larger, where an image shows less of the object?

    python -m experiments.adaptive_label_smoothing.unseen --table=variants

reads the runs of a table and prints for each row and measure Spearman's correlation with the
objectness of the test images: mean and standard deviation over seeds, the largest p-value over
seeds, and the correlation of the test images on which the prediction is right and on which it is
wrong. The measures are the confidence and, of a row with a noise head, the variance of u_1 - u_2,
the utilities of the two likeliest classes.
"""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from scipy import stats

from experiments import derived, study
from heteroscedastic import boxes, files, user_errors
from heteroscedastic import latent as latent_lib
from heteroscedastic.analysis.report import comparison
from heteroscedastic.batch import Batch
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.runs import by_example, loaded_run
from heteroscedastic.runs.loaded_run import LoadedRun

_STUDY, _SPLIT = "adaptive_label_smoothing", "test"


def measures(run: LoadedRun) -> tuple[dict[str, Float[np.ndarray, "n"]], dict[str, np.ndarray]]:
    """The measures of the test images of a run, and their objectness and correctness."""

    def of_batch(key: PRNGKeyArray, latent: LatentGaussian, batch: Batch) -> dict[str, Array]:
        log_probs = run.run.parts.predictive(key, latent)
        probs, likeliest = jax.lax.top_k(jax.nn.softmax(log_probs, axis=-1), 2)
        return {
            "confidence": probs[:, 0],
            "variance": top_two_variance(latent, likeliest),
            "objectness": boxes.objectness(batch.extras["boxes"]),
            "is_correct": likeliest[:, 0] == batch.labels,
        }

    loaded_run.single_label_data(run, _SPLIT)  # its errors
    values = by_example.map_latents(run, _SPLIT, of_batch)
    about = {name: values.pop(name) for name in ("objectness", "is_correct")}
    if not loaded_run.has_noise(run.run.config):
        values.pop("variance")
    return values, about


def top_two_variance(latent: LatentGaussian, likeliest: Array) -> Float[Array, "b"]:
    """The variance of the difference of two utilities of each example; `likeliest` is [b, 2]."""
    variances = latent_lib.difference_variance(latent)
    return variances[jnp.arange(len(likeliest)), likeliest[:, 0], likeliest[:, 1]]


def correlations(
    values: Float[np.ndarray, "n"],
    objectness: Float[np.ndarray, "n"],
    is_correct: Bool[np.ndarray, "n"],
) -> dict[str, float]:
    """Spearman's correlation of all images and its p-value, and of right and wrong predictions."""
    result = stats.spearmanr(values, objectness)
    return {
        "all": float(result.statistic),
        "p": float(result.pvalue),
        "right": float(stats.spearmanr(values[is_correct], objectness[is_correct]).statistic),
        "wrong": float(stats.spearmanr(values[~is_correct], objectness[~is_correct]).statistic),
    }


def correlations_of_run(directory: files.Path, data_dir: str | None) -> dict[str, dict[str, float]]:
    """The correlations of each measure of a finished run."""
    values, about = measures(loaded_run.load(directory, "last", data_dir))
    jax.clear_caches()
    return {name: correlations(numbers, **about) for name, numbers in values.items()}


@user_errors.one_line()
def main() -> None:
    """Prints the correlations of confidence and noise with objectness."""
    parser = study.argument_parser(main.__doc__, "variants")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    derived.add_flag(parser)
    flags = parser.parse_args()
    chosen = study.table(_STUDY, flags.table)
    if _SPLIT not in {regime.report for regime in chosen.regimes.values()}:
        raise SystemExit(f"{flags.table} reports no split {_SPLIT!r}; choose a table of images.")
    directory = files.as_path(flags.out) / _STUDY / flags.table
    jobs = study.jobs(chosen, flags.scale, directory)
    saved = derived.Derived(__file__, flags, jobs)
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for job in jobs:
        compute = functools.partial(correlations_of_run, job.directory, flags.data_dir)
        for name, numbers in (saved.of(job, _SPLIT, compute) or {}).items():
            found.setdefault((job.row, name), []).append(numbers)
    print("| method | measure | seeds | correlation | largest p | right | wrong |")
    print("|" + " --- |" * 7)
    for (row, name), seeds in found.items():
        spreads = {
            kind: comparison.spread([seed[kind] for seed in seeds], 2)
            for kind in ("all", "right", "wrong")
        }
        p = max(seed["p"] for seed in seeds)
        cells = [row, name, str(len(seeds)), spreads["all"], f"{p:.2g}"]
        print("| " + " | ".join([*cells, spreads["right"], spreads["wrong"]]) + " |")
    saved.finish(flags.save)


if __name__ == "__main__":
    main()

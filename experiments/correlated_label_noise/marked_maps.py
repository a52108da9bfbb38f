"""Do maps of the noise show the patch that confuses the labels (marked.py)?

    python -m experiments.correlated_label_noise.marked_maps --data_dir=DIR

reads the runs of the table `marked` and prints two tables about the test images of the confused
classes, with means and standard deviations over seeds:

- scores against the patch (METRICS of analysis/saliency/evaluation.py) of maps of the noise, of the
  likeliest class and of the entropy, and of controls, of which the entire image is chance, for
  images with a patch; a map without a positive value is left out;
- the variance that the noise map explains, of images with the patch and without, and of images
  with the patch after the mean colour covers it, or an area of the same size elsewhere.
"""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from experiments import derived, study
from experiments.correlated_label_noise import marked
from heteroscedastic import boxes as boxes_lib
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report import comparison
from heteroscedastic.analysis.saliency import evaluation, explain
from heteroscedastic.analysis.saliency.explain import Question
from heteroscedastic.runs import by_example, loaded_run
from heteroscedastic.runs.loaded_run import LoadedRun

_STUDY, _PART, _SPLIT = "correlated_label_noise", "maps", "test"
_NOISE = Question("noise", explain.DEFAULT_METHODS["noise"])
_QUESTIONS = {
    "noise": _NOISE,
    "class": Question("class", explain.DEFAULT_METHODS["class"]),
    "entropy": Question("entropy", explain.DEFAULT_METHODS["entropy"]),
}
_METRICS = ("pointing", "box", "mass")


def map_scores(run: LoadedRun) -> dict[str, dict[str, float]]:
    """The scores of each map by metric; of the controls they are those of the noise map."""
    data = loaded_run.split_data(run, _SPLIT)
    confused = data.ids[_in_pair(data.labels) & data.extras["boxes"].any(axis=(1, 2))]
    found = {}
    for name, question in _QUESTIONS.items():
        located = evaluation.located(run, _SPLIT, question, with_controls=question is _NOISE)
        chosen = np.isin(located.ids, confused)
        for kind, scores in located.by_map.items():
            values = evaluation.metrics(scores, None)
            found[name if kind == "map" else kind] = {
                metric: float(np.mean(values[metric][chosen])) for metric in _METRICS
            } | {"left out": float(len(confused) - chosen.sum())}
    return found


def variances(run: LoadedRun) -> dict[str, float]:
    """The mean variance of the pair of each image, by what is visible of the patch.

    Images keep the pair that is explained for the entire image.
    """
    data = loaded_run.split_data(run, _SPLIT)
    answers = explain.answers(run, _SPLIT, _NOISE)
    pairs = np.zeros((data.ids.max() + 1, 2), np.int32)
    pairs[answers.ids] = answers.classes
    color = jnp.asarray(explain.mean_color(run, _SPLIT))

    def of_batch(state, batch):
        images = batch.inputs
        function = explain.scalar_of_inputs(
            run, _NOISE, jnp.asarray(pairs)[batch.ids], state, images
        )
        covered = patches(batch.extras["boxes"], images.shape[1:3])
        return {
            "patch": function(images),
            "patch covered": function(jnp.where(covered[..., None], color, images)),
            "elsewhere covered": function(jnp.where(elsewhere(covered)[..., None], color, images)),
        }

    values = by_example.map_batches(run, _SPLIT, of_batch)
    in_pair, has_patch = _in_pair(data.labels), data.extras["boxes"].any(axis=(1, 2))
    means = {name: float(x[in_pair & has_patch].mean()) for name, x in values.items()}
    return {"no patch": float(values["patch"][in_pair & ~has_patch].mean())} | means


def patches(boxes: Float[Array, "b m 4"], shape: tuple[int, int]) -> Bool[Array, "b H W"]:
    """Whether each pixel lies in a box."""
    rows, columns = ((jnp.arange(n) + 0.5) / n for n in shape)
    return jax.vmap(lambda b: boxes_lib.covers(jnp, b, rows, columns))(boxes)


def elsewhere(covered: Bool[Array, "b H W"]) -> Bool[Array, "b H W"]:
    """As many pixels, half of the height and half of the width away, around the edges."""
    height, width = covered.shape[1:]
    return jnp.roll(covered, (height // 2, width // 2), axis=(1, 2))


def _in_pair(labels):
    return np.isin(labels, marked.PAIRS)


def _of_run(directory: files.Path, data_dir: str | None) -> dict[str, dict[str, Any]]:
    """The scores of each map and the variances of a finished run."""
    run = loaded_run.load(directory, "last", data_dir)
    numbers = {"maps": map_scores(run), "variances": variances(run)}
    jax.clear_caches()
    return numbers


@user_errors.one_line()
def main() -> None:
    """Prints how well maps of noise, class and entropy show the patch."""
    parser = study.argument_parser(main.__doc__, "marked")
    parser.add_argument(
        "--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="directory of marked.npz"
    )
    derived.add_flag(parser)
    flags = parser.parse_args()
    directory = files.as_path(flags.out) / _STUDY / flags.table
    jobs = study.jobs(study.table(_STUDY, flags.table), flags.scale, directory)
    saved = derived.Derived(__file__, flags, jobs)
    scores: dict[tuple[str, ...], list[dict[str, float]]] = {}
    variance: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for job in jobs:
        compute = functools.partial(_of_run, job.directory, flags.data_dir)
        if numbers := saved.of(job, _PART, compute):
            for name, values in numbers["maps"].items():
                scores.setdefault((job.row, name), []).append(values)
            variance.setdefault((job.row,), []).append(numbers["variances"])
    _print_table(["method", "map", "seeds"], scores, 3)
    print()
    _print_table(["method", "seeds"], variance, 2)
    saved.finish(flags.save)


def _print_table(columns, by_row, digits) -> None:
    names = list(next(iter(by_row.values()))[0])
    print("| " + " | ".join([*columns, *names]) + " |")
    print("|" + " --- |" * (len(columns) + len(names)))
    for row, seeds in by_row.items():
        spreads = [comparison.spread([seed[name] for seed in seeds], digits) for name in names]
        print("| " + " | ".join([*row, str(len(seeds)), *spreads]) + " |")


if __name__ == "__main__":
    main()

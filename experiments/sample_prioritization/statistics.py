"""Evaluates the runs of a table with batch statistics of all training examples:

    python -m experiments.sample_prioritization.statistics --table=controls --data_dir=DIR

A prioritized run has the running statistics of the examples that it chose, which are hard, but is
evaluated on all. This prints its test metrics with the statistics as they are and re-estimated in a
pass over all training examples, augmented as in training: mean and standard deviation over the
runs of each row.
"""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import derived, study
from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report import comparison
from heteroscedastic.runs import assembly, loaded_run
from heteroscedastic.runs.loaded_run import LoadedRun
from heteroscedastic.training import evaluate

_STUDY = "sample_prioritization"
_METRICS = ("accuracy", "ece", "confidence", "nll")


def reestimated(loaded: LoadedRun) -> Any:
    """The model state of a run, with the mean of the batch statistics of all training examples.

    A running statistic r becomes m r + (1 - m) b after a batch of statistics b, whatever the
    momentum m of its layer is, so that updates of r = 0 and r = 1 give m and b.
    """
    run, state = loaded.run, loaded.state
    key = assembly.key_for(run.config["seed"], "statistics")

    @jax.jit
    def updated(params, model_state, split, feed):
        batch = run.pipeline.training_batch(key, split, feed)
        variables = {"params": params, **model_state}
        _, new = run.model.apply(
            variables,
            batch.inputs,
            batch.weights > 0,
            train=True,
            mutable=list(model_state),
            rngs={"dropout": key},
        )
        return new

    split = jax.device_put(run.pipeline.arrays["train"])
    zeros, ones = (jax.tree.map(f, state.model_state) for f in (jnp.zeros_like, jnp.ones_like))
    slots = np.arange(run.steps.batch_size)
    number, total, momentum = 0, zeros, zeros
    for feed in run.pipeline.training_feeds(0, 0, slots):
        if not feed.weights.all():  # the last batch has too few examples for statistics
            continue
        part = updated(state.params, zeros, split, feed)
        if number == 0:
            of_ones = updated(state.params, ones, split, feed)
            momentum = jax.tree.map(jnp.subtract, of_ones, part)
        number, total = number + 1, jax.tree.map(jnp.add, total, part)
    if number == 0:
        raise ValueError("a batch has more examples than the training set; lower the batch size.")
    return jax.tree.map(lambda x, m: x / number / (1 - m), total, momentum)


def metrics(loaded: LoadedRun, model_state: Any, evaluation: str) -> dict[str, float]:
    """The metrics of an evaluation of a run with this model state."""
    run, params = loaded.run, loaded.state.params
    name = run.config["evals"][evaluation]["split"]
    split = jax.device_put(run.pipeline.arrays[name])
    step = jax.jit(run.eval_step)

    def of_feed(feed, key):
        return step(params, model_state, split, feed, key)

    key = assembly.key_for(run.config["seed"], f"eval {evaluation}")
    feeds = run.pipeline.feeds(name, np.arange(run.steps.batch_size))
    sums, _ = evaluate.evaluate(of_feed, feeds, key)
    return run.task.means(sums)


def of_run(directory: files.Path, data_dir: str | None, evaluation: str) -> dict[str, float]:
    """The metrics of a finished run with both kinds of batch statistics."""
    loaded = loaded_run.load(directory, data_dir=data_dir)
    before = loaded.results["evals"][evaluation]
    after = metrics(loaded, reestimated(loaded), evaluation)
    jax.clear_caches()
    values = {name: before[name] for name in _METRICS}
    return values | {f"{name} re-estimated": after[name] for name in _METRICS}


@user_errors.one_line()
def main() -> None:
    """Prints the metrics of a table with both kinds of batch statistics."""
    parser = study.argument_parser(main.__doc__, "controls")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    derived.add_flag(parser)
    flags = parser.parse_args()
    chosen = study.table(_STUDY, flags.table)
    (regime,) = chosen.regimes.values()
    directory = files.as_path(flags.out) / _STUDY / flags.table
    jobs = study.jobs(chosen, flags.scale, directory)
    saved = derived.Derived(__file__, flags, jobs)
    by_row: dict[str, list[dict[str, float]]] = {}
    for job in jobs:
        compute = functools.partial(of_run, job.directory, flags.data_dir, regime.report)
        if numbers := saved.of(job, regime.report, compute):
            by_row.setdefault(job.row, []).append(numbers)
    columns = [column for name in _METRICS for column in (name, f"{name} re-estimated")]
    print("| method | seeds | " + " | ".join(columns) + " |\n|" + " --- |" * (len(columns) + 2))
    for row, runs in by_row.items():
        cells = [comparison.spread([run[column] for run in runs]) for column in columns]
        print("| " + " | ".join([row, str(len(runs)), *cells]) + " |")
    saved.finish(flags.save)


if __name__ == "__main__":
    main()

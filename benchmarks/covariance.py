"""Time and memory of the exact average covariance and its largest pairs, on random parameters.

    python benchmarks/covariance.py --head=ParameterEfficient

creates a head of 21,843 classes on 2,048 features and the features of 1,000 examples, and finds the
100 pairs with the largest average covariance. Memory is the peak resident memory of the process,
before the computation, with the head's parameters, and after it.
"""

import argparse
import resource
import time

import jax
import numpy as np

from heteroscedastic.analysis.covariance import average, pairs
from heteroscedastic.models import heads

_BATCH = 64


def main() -> None:
    """Prints one line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--head",
        default="ParameterEfficient",
        choices=("Diagonal", "LowRank", "ParameterEfficient"),
    )
    parser.add_argument("--num_classes", type=int, default=21_843)
    parser.add_argument("--num_features", type=int, default=2_048)
    parser.add_argument("--num_factors", type=int, default=15)
    parser.add_argument("--num_examples", type=int, default=1_000)
    parser.add_argument("--noise_on", default="utilities", choices=("utilities", "features"))
    flags = parser.parse_args()
    factors = {} if flags.head == "Diagonal" else {"num_factors": flags.num_factors}
    head = getattr(heads, flags.head)(flags.num_classes, noise_on=flags.noise_on, **factors)
    draws = np.random.default_rng(0)
    shapes = jax.eval_shape(
        head.init, jax.random.key(0), np.zeros((1, flags.num_features), np.float32)
    )["params"]
    params = jax.tree.map(lambda x: _normal(draws, x.shape, flags.num_features), shapes)
    before, start = _peak_mebibytes(), time.perf_counter()
    batches = (
        _normal(draws, (min(_BATCH, flags.num_examples - i), flags.num_features), 1)
        for i in range(0, flags.num_examples, _BATCH)
    )
    covariance = average.average_covariance(head, params, batches)
    average_seconds = time.perf_counter() - start
    pairs.top_pairs(covariance, 100)
    seconds, peak = time.perf_counter() - start, _peak_mebibytes()
    size = sum(x.nbytes for x in jax.tree.leaves(params)) / 2**20
    print(
        f"{flags.head}, {flags.num_classes} classes, {flags.num_features} features,"
        f" {flags.num_factors} factors,"
        f" noise on {flags.noise_on}, {flags.num_examples} examples: {average_seconds:.0f} s for"
        f" the average, {seconds:.0f} s in total; parameters {size:,.0f} MiB, before"
        f" {before:,.0f} MiB, peak {peak:,.0f} MiB"
    )


def _normal(draws: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    values = draws.standard_normal(shape, np.float32)
    values /= np.sqrt(fan_in)
    return values


def _peak_mebibytes() -> float:
    """Peak resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()

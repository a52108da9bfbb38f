"""Time and memory of the streamed softmax predictive beside the direct form.

python benchmarks/predictive.py prints, for 32 examples, 1,000 classes and rank 15, forward
and backward: the bytes of temporaries that the compiler plans for and the time of a call, each
also as a ratio to the direct form at 1,000 samples in the same run. The direct form holds all
samples at once and lets JAX differentiate it. Their times are taken in turn, so that a change
of the machine's speed meets both.
"""

import argparse
import platform
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.latent import LatentGaussian


def direct(key, latent, *, num_samples):
    """The definition: every sample at once."""
    utilities = latent_lib.sample(key, latent, num_samples)
    return jax.nn.logsumexp(jax.nn.log_softmax(utilities), axis=0) - jnp.log(num_samples)


def compiled(average, key, latent, num_samples):
    """Negative log-likelihood of class 0 and its gradient, compiled."""

    def loss(key, latent):
        return -average(key, latent, num_samples=num_samples)[:, 0].mean()

    return jax.jit(jax.value_and_grad(loss, argnums=1)).lower(key, latent).compile()


def seconds(call, *arguments):
    """Wall time of one call."""
    start = time.perf_counter()
    jax.block_until_ready(call(*arguments))
    return time.perf_counter() - start


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--rank", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=7)
    flags = parser.parse_args()
    b, k, r = flags.batch, flags.classes, flags.rank
    draws = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(draws.normal(size=shape), jnp.float32)

    latent = LatentGaussian(normal(b, k), jnp.exp(0.3 * normal(b, k)), 0.3 * normal(b, k, r))
    key = jax.random.key(0)
    cases = [
        ("direct", direct, 1_000),
        ("streamed", predictive.softmax, 1_000),
        ("streamed", predictive.softmax, 10_000),
    ]
    calls = [compiled(average, key, latent, num_samples) for _, average, num_samples in cases]
    memory = [call.memory_analysis().temp_size_in_bytes / 1e6 for call in calls]
    unbuilt = compiled(direct, key, latent, 10_000).memory_analysis().temp_size_in_bytes / 1e6
    times = [[] for _ in calls]
    for repeat in range(flags.repeats + 1):
        for i, call in enumerate(calls):
            if repeat == 0 or i < 2 or repeat <= 2:  # the first is a warm-up; the longest twice
                taken = seconds(call, key, latent)
                if repeat:
                    times[i].append(taken)
    medians = [statistics.median(t) for t in times]
    ratio = statistics.median(s / d for s, d in zip(times[1], times[0]))
    print(f"B {b}, K {k}, R {r}, forward and backward, jax {jax.__version__}, {jax.devices()[0].device_kind},")
    print(f"{platform.machine()}, {len(times[0])} repeats in turn ({len(times[2])} of the longest), medians")
    print("| form | samples | temporaries, MB | against direct | seconds | against direct at 1,000 |")
    print("| --- | --- | --- | --- | --- | --- |")
    ratios = [1.0, ratio, medians[2] / medians[0]]
    against = [1.0, memory[1] / memory[0], memory[2] / unbuilt]
    for i, (name, _, num_samples) in enumerate(cases):
        print(
            f"| {name} | {num_samples:,} | {memory[i]:,.1f} | {against[i]:.3f} | {medians[i]:.3f} | {ratios[i]:.2f} |"
        )
    print(f"| direct | 10,000 | {unbuilt:,.1f} | 1.000 | not run | |")


if __name__ == "__main__":
    main()

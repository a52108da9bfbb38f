"""Time, memory and error of the predictives, compared with the paper's direct estimator.

    python -m benchmarks.predictive

prints, for each size and temperature, one line per estimator of E[softmax(u)]: the time of a
forward call and of a call with gradient, the temporary memory that the compiler reserves, and the
error. The error is the root mean square, over keys and examples, of log p of the three likeliest
classes, relative to 2**20 Sobol points with another key. The last column is the main result: the
time with gradient at which an estimator has the error of the direct one with 1,000 independent
samples, divided by the time of the latter. Between measured numbers of points the time is
interpolated on logarithmic scales; beyond them the error is extrapolated as samples^-1/2.

    python -m benchmarks.predictive --sizes 8,10,0 8,1000,0 8,21843,0 --keys=3

does the same for independent noise, with lines for `predictive.softmax_exact`, whose column of
samples holds the number of nodes. The errors are then relative to 1,024 nodes;
tests/predictive/test_exact.py compares the exact form with quadrature in float64.

    python -m benchmarks.predictive --link=sigmoid

does the same for the log-odds of labels, over the first 100 labels and relative to quadrature.

With more classes than a shortlist has, the probability of the classes outside it stands above the
table, as the mean over examples.

The direct estimator holds all samples in memory, and JAX differentiates it. Estimators are timed in
turn, so that changes of the machine's speed affect all; times are medians. GFLOP are counted by
chips.py, and stand for known GPUs beside the peaks of the chip: of float32 outside matrix products,
and of its memory, if the latents and gradients alone crossed it.
"""

import argparse
import functools
import platform
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from benchmarks import chips
from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.latent import LatentGaussian

REFERENCE = "direct", 1_000
EXACT_POINTS = 2**20  # Sobol points of the reference for errors
SHORTLISTS = 8, 32, 128  # classes
EXACT_NODES = 1024  # of the reference for errors with independent noise


def direct_softmax(key, latent, *, num_samples):
    """The definition of the estimator, with all samples at once."""
    utilities = latent_lib.sample(key, latent, num_samples)
    return jax.nn.logsumexp(jax.nn.log_softmax(utilities), axis=0) - jnp.log(num_samples)


def direct_sigmoid(key, latent, *, num_samples):
    """As `direct_softmax`, for the log-odds of labels."""
    utilities = latent_lib.sample(key, latent, num_samples)
    odds = [jax.nn.logsumexp(jax.nn.log_sigmoid(sign * utilities), axis=0) for sign in (1, -1)]
    return odds[0] - odds[1]


def softmax_forms(num_classes, rank):
    """(name, samples) -> predictive; for independent noise, of rank 0, also the exact form."""
    forms = {REFERENCE: functools.partial(direct_softmax, num_samples=REFERENCE[1])}
    for points, sizes in {
        "independent": (100, 1_000, 10_000),
        "antithetic": (128, 1_024),
        "sobol": (8, 32, 128, 512, 1_024),
    }.items():
        for size in sizes:
            forms[points, size] = functools.partial(
                predictive.softmax, num_samples=size, points=points
            )
    for listed in SHORTLISTS:
        for size in (128, 1_024):
            if listed < num_classes:
                forms[f"shortlist of {listed}", size] = functools.partial(
                    predictive.shortlist, num_classes=listed, num_samples=size, points="sobol"
                )
    if not rank:
        for size in (24, 32):
            forms["exact", size] = functools.partial(predictive.softmax_exact, num_nodes=size)
    return forms | {("taylor", 0): predictive.taylor, ("mean_field", 0): predictive.mean_field}


def sigmoid_forms():
    """(name, samples) -> predictive."""
    forms = {REFERENCE: functools.partial(direct_sigmoid, num_samples=REFERENCE[1])}
    for size in (100, 1_000):
        forms["independent", size] = functools.partial(predictive.sigmoid_sampled, num_samples=size)
    return forms | {("closed form", 0): predictive.sigmoid}


def examples(batch, num_classes, rank, temperature):
    """Random utilities with standard deviation 3 and noise variance near 1 + 0.09 * rank."""
    draws = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(draws.normal(size=shape), jnp.float32)

    latent = LatentGaussian(
        3 * normal(batch, num_classes), jnp.exp(0.3 * normal(batch, num_classes))
    )
    if rank:
        latent = latent._replace(factor_loadings=0.3 * normal(batch, num_classes, rank))
    return latent_lib.temper(latent, temperature)


def exact_softmax(latent):
    """log p of each class, and the indices of the three likeliest classes."""
    if latent_lib.has_independent_noise(latent):
        reference = functools.partial(predictive.softmax_exact, num_nodes=EXACT_NODES)
    else:
        reference = functools.partial(predictive.softmax, num_samples=EXACT_POINTS, points="sobol")
    log_probs = jax.jit(reference)(jax.random.key(2**31), latent)
    return log_probs, jax.lax.top_k(log_probs, 3)[1]


def exact_sigmoid(latent):
    """Log-odds of the first hundred labels by quadrature in float64, and their indices."""
    labels = np.arange(min(100, latent.loc.shape[-1]))
    mean = np.asarray(latent.loc, np.float64)[:, labels, None]
    scale = np.sqrt(np.asarray(latent_lib.variance(latent), np.float64))[:, labels, None]
    nodes = np.linspace(-14, 14 + scale.max(), 20_001)
    tails = [
        special.logsumexp(special.log_expit(s * mean + scale * nodes) - nodes**2 / 2, axis=-1)
        for s in (1, -1)
    ]
    log_odds = jnp.full(latent.loc.shape, jnp.nan).at[:, labels].set(tails[0] - tails[1])
    return log_odds, jnp.broadcast_to(labels, (*latent.loc.shape[:-1], len(labels)))


def seconds(call, *arguments):
    """The wall time of one call."""
    start = time.perf_counter()
    jax.block_until_ready(call(*arguments))
    return time.perf_counter() - start


def with_gradient(form):
    """A loss of a form with its gradient by the latent."""

    def loss(key, latent):
        return -form(key, latent)[..., 0].mean()

    return jax.value_and_grad(loss, argnums=1)


def time_at_error(lines, name, error):
    """The time with gradient at which a form has an error; None if it cannot reach the error."""
    points = sorted(
        (line["error"], line["gradient"]) for key, line in lines.items() if key[0] == name
    )
    if points[0][0] > error:
        best, needed = points[0]
        return None if len(points) == 1 else needed * (best / error) ** 2
    if points[-1][0] <= error:
        return points[-1][1]
    errors, times = np.log(np.array(points).T)
    return float(np.exp(np.interp(np.log(error), errors, times)))


def measure(forms, latent, exact, repeats, num_keys):
    """(name, samples) -> forward and gradient in seconds, temporaries in MB, error in nats; and
    operations and bytes of a call with gradient.
    """
    truth, indices = exact(latent)
    for listed in SHORTLISTS if exact is exact_softmax else ():
        if listed < truth.shape[-1]:
            inside = jnp.sum(jax.lax.top_k(jnp.exp(truth), listed)[0], axis=-1)
            print(f"Probability outside the {listed} likeliest classes: {1 - inside.mean():.2g}")
    key, lines, calls = jax.random.key(0), {}, {}
    for name, form in forms.items():
        both = form, with_gradient(form)
        calls[name] = [jax.jit(f).lower(key, latent).compile() for f in both]
        errors = [
            jnp.take_along_axis(calls[name][0](jax.random.key(i), latent) - truth, indices, axis=-1)
            for i in range(num_keys if name[1] else 1)
        ]
        lines[name] = {"error": float(jnp.sqrt(jnp.mean(jnp.square(jnp.stack(errors)))))}
        lines[name]["memory"] = calls[name][1].memory_analysis().temp_size_in_bytes / 1e6
        lines[name] |= chips.demand(both[1], key, latent)._asdict()
    times = {name: ([], []) for name in forms}
    for _ in range(repeats):
        for name, both in calls.items():
            for call, durations in zip(both, times[name]):
                durations.append(seconds(call, key, latent))
    for name, (forward, gradient) in times.items():
        lines[name] |= {
            "forward": statistics.median(forward),
            "gradient": statistics.median(gradient),
        }
    return lines


def main():
    """Prints a table for each size and temperature."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--link", choices=("softmax", "sigmoid"), default="softmax")
    parser.add_argument(
        "--sizes", nargs="+", default=None, help="batch, classes and rank, such as 8,1000,15"
    )
    parser.add_argument("--temperatures", nargs="+", type=float, default=[1.0, 0.15])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--keys", type=int, default=30, help="keys to average the error over")
    flags = parser.parse_args()
    softmax = flags.link == "softmax"
    exact = exact_softmax if softmax else exact_sigmoid
    print(
        f"{flags.link}, jax {jax.__version__}, {jax.devices()[0].device_kind}, {platform.machine()}"
    )
    chip = chips.chip(jax.devices()[0])
    peaks = {}  # per second
    if chip is not None and chip.vector is not None:
        peaks[f"{chip.vector} TFLOP/s"] = 1e12 * chip.vector
        peaks[f"{chip.bandwidth} GB/s"] = 1e9 * chip.bandwidth
    for size in flags.sizes or (["8,10,5", "8,1000,15"] if softmax else ["8,21843,0"]):
        for temperature in flags.temperatures:
            batch, num_classes, rank = map(int, size.split(","))
            forms = softmax_forms(num_classes, rank) if softmax else sigmoid_forms()
            lines = measure(
                forms,
                examples(batch, num_classes, rank, temperature),
                exact,
                flags.repeats,
                flags.keys,
            )
            reference = lines[REFERENCE]
            print(f"\nB {batch}, K {num_classes:,}, R {rank}, temperature {temperature}")
            columns = ["form", "samples", "forward, ms", "with gradient, ms", "temporaries, MB"]
            columns += ["error, nats", "at equal error", "GFLOP with gradient"]
            columns += [f"of the peak of {x}" for x in peaks]
            print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
            last = {name: samples for name, samples in lines}
            for (name, samples), line in lines.items():
                ratio = ""
                if samples == last[name]:
                    needed = time_at_error(lines, name, reference["error"])
                    ratio = "never" if needed is None else f"{needed / reference['gradient']:.4f}"
                number = f"{samples:,}" if samples else ""
                times = f"{1e3 * line['forward']:.2f} | {1e3 * line['gradient']:.2f}"
                demands = [f"{line['operations'] / 1e9:,.3g}"]
                demands += [
                    f"{line[kind] / line['gradient'] / peak:.2%}"
                    for kind, peak in zip(("operations", "bytes"), peaks.values())
                ]
                print(
                    f"| {name} | {number} | {times} | {line['memory']:,.1f} | {line['error']:.3g}"
                    f" | {ratio} | {' | '.join(demands)} |"
                )


if __name__ == "__main__":
    main()

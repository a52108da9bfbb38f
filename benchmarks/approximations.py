"""How far the predictives without samples are from E[softmax(u)].

python benchmarks/approximations.py prints the total variation distance from a Monte-Carlo average of
a million samples (100,000 above 100 classes), a mean over random examples: loc is 2 N(0, 1), and the
variance of a utility about 1, a quarter or all of it independent, both divided by the temperature.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np

from heteroscedastic import latent as latent_lib
from heteroscedastic import predictive
from heteroscedastic.latent import LatentGaussian


def pairwise(key, latent):
    """The mean field of Lu et al. (2020), arXiv:2006.07584, "mf2": a class against one other, K x K of them."""
    differences = latent.loc[..., None, :] - latent.loc[..., :, None]
    variance = latent_lib.difference_variance(latent)
    shrunk = differences / jnp.sqrt(1 + 3 / jnp.pi**2 * variance)
    return jax.nn.log_softmax(-jax.nn.logsumexp(shrunk, axis=-1), axis=-1)


FORMS = {
    "softmax of loc": lambda key, latent: jax.nn.log_softmax(latent.loc),
    "taylor": predictive.taylor,
    "mean_field": predictive.mean_field,
    "mean field of pairs": pairwise,
    "100 samples": functools.partial(predictive.softmax, num_samples=100),
}


def examples(num_classes, rank, batch):
    """Random latents at temperature 1."""
    draws = np.random.default_rng(0)
    loc, log_scale = 2 * draws.normal(size=(batch, num_classes)), 0.3 * draws.normal(size=(batch, num_classes))
    if not rank:
        return LatentGaussian(jnp.float32(loc), jnp.exp(jnp.float32(log_scale)))
    loadings = np.sqrt(0.75 / rank) * draws.normal(size=(batch, num_classes, rank))
    return LatentGaussian(jnp.float32(loc), 0.5 * jnp.exp(jnp.float32(log_scale)), jnp.float32(loadings))


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 1000])
    parser.add_argument("--ranks", type=int, nargs="+", default=[0, 15])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[2.0, 1.0, 0.5, 0.25])
    flags = parser.parse_args()
    print(f"| classes | rank | temperature | {' | '.join(FORMS)} |")
    print("| --- " * (3 + len(FORMS)) + "|")
    for num_classes in flags.classes:
        batch, num_samples = (32, 1_000_000) if num_classes <= 100 else (8, 100_000)
        exact = jax.jit(functools.partial(predictive.softmax, num_samples=num_samples))
        for rank in flags.ranks:
            for temperature in flags.temperatures:
                latent = latent_lib.temper(examples(num_classes, rank, batch), temperature)
                probs = jnp.exp(exact(jax.random.key(0), latent))
                found = [jnp.exp(form(jax.random.key(1), latent)) for form in FORMS.values()]
                errors = [float(jnp.abs(p - probs).sum(-1).mean()) / 2 for p in found]
                told = " | ".join(f"{e:.4f}" for e in errors)
                print(f"| {num_classes:,} | {rank} | {temperature} | {told} |", flush=True)


if __name__ == "__main__":
    main()

"""Random latents, and their covariance computed with plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from heteroscedastic.latent import LatentGaussian

KINDS = ("deterministic", "diagonal", "low_rank", "parameter_efficient", "readout", "everything")


def latent(kind, batch=(3,), k=5, r=2, q=3, n=4, seed=0):
    """A random latent of one of KINDS, with positive scales."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    width = n if kind in ("readout", "everything") else k
    fields = {"loc": normal(*batch, k)}
    if kind != "deterministic":
        fields["scale_diag"] = jnp.exp(0.3 * normal(*batch, width))
    if kind in ("low_rank", "readout", "everything"):
        fields["factor_loadings"] = normal(*batch, width, r)
    if kind in ("parameter_efficient", "everything"):
        fields |= {"factor_scale": normal(*batch, width), "shared_loadings": normal(width, q)}
    if kind in ("readout", "everything"):
        fields["readout"] = normal(n, k)
    return LatentGaussian(**fields)


def covariance(latent):
    """The covariance of each example in float64, from the definition of the noise."""

    def get(name):
        return (
            None if getattr(latent, name) is None else np.asarray(getattr(latent, name), np.float64)
        )

    *batch, k = latent.loc.shape
    out = np.zeros((*batch, k, k))
    readout = np.eye(k) if get("readout") is None else get("readout")
    for i in np.ndindex(*batch):
        noise = np.zeros((len(readout), len(readout)))
        if get("scale_diag") is not None:
            noise += np.diag(get("scale_diag")[i] ** 2)
        if get("factor_loadings") is not None:
            noise += get("factor_loadings")[i] @ get("factor_loadings")[i].T
        if get("factor_scale") is not None:
            mixed = np.diag(get("factor_scale")[i]) @ get("shared_loadings")
            noise += mixed @ mixed.T
        out[i] = readout.T @ noise @ readout
    return out


def key(i=0):
    """A PRNG key."""
    return jax.random.key(i)

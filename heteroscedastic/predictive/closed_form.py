"""Predictives that need no samples."""

from jaxtyping import Array, Float, PRNGKeyArray

from heteroscedastic import latent as latent_lib
from heteroscedastic.latent import LatentGaussian


def deterministic(key: PRNGKeyArray | None, latent: LatentGaussian) -> Float[Array, "*b k"]:
    """The utilities themselves, for a latent without noise; softmax or sigmoid may follow.

    Args:
      key: ignored.
      latent: `loc` alone.

    Raises:
      ValueError: the latent has noise, which this would drop without a word.
    """
    if latent_lib.has_noise(latent_lib.check(latent)):
        raise ValueError(
            "predictive 'deterministic' was given a latent with noise; use 'softmax' or"
            " 'sigmoid_sampled', or the head 'Deterministic'."
        )
    return latent.loc

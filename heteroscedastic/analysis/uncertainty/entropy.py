"""The entropy of predictions, split over latent samples or over the members of an ensemble.

The entropy of the mean prediction is the mean entropy of one sample (or member) plus the mutual
information between the label and the sample (or member). Over latent samples, the mutual
information is the contribution of the noise of the utilities. Over members, it measures how much
models with different seeds disagree.
"""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from heteroscedastic import ensembles, sampling
from heteroscedastic import latent as latent_lib
from heteroscedastic.ensembles import EntropySplit
from heteroscedastic.runs import by_example, predictions
from heteroscedastic.runs.loaded_run import LoadedRun
from heteroscedastic.runs.predictions import Predictions

_BLOCK_VALUES = 2**20  # float64 logits of members in memory at once


def sample_split(
    loaded_run: LoadedRun, split: str = "test", num_samples: int = 256, points: str = "sobol"
) -> EntropySplit:
    """Splits the entropy over latent samples, for each example of a data split, in nats.

    Args:
      loaded_run: the run.
      split: of its data; the result is in its order.
      num_samples: samples of the latent; a power of two for Sobol points.
      points: see sampling.py.

    Raises:
      ValueError: the run has no such split.
    """
    link = loaded_run.run.task.link

    def sums(key, latent, batch):
        return _sums_over_samples(key, latent, num_samples, points, link)

    # Per batch, because the probabilities of all examples may not fit in memory.
    def entropies(batch_sums):
        probs, expected = (x.astype(np.float64) / num_samples for x in batch_sums)
        return _entropy(probs, link), expected

    total, expected = by_example.map_latents(loaded_run, split, sums, postprocess=entropies)
    # Rounding in float32 can make the difference of equal entropies negative.
    mutual = np.maximum(total - expected, 0.0)
    return EntropySplit(total, total - mutual, mutual)


def member_split(members: Sequence[Predictions]) -> EntropySplit:
    """Splits the entropy over independently trained models, for each example, in nats.

    Raises:
      ValueError: there are fewer than two members, they predict different examples, or logits are
        missing.
    """
    split = (
        ensembles.sigmoid_entropy_split
        if members and members[0].link == "sigmoid"
        else ensembles.entropy_split
    )
    return EntropySplit(*map(np.concatenate, zip(*map(split, _blocks(members)))))


def ensemble_mean(members: Sequence[Predictions]) -> Predictions:
    """The mean of the members' probabilities, with logits in float32.

    Raises:
      ValueError: see `member_split`.
    """
    mean = (
        ensembles.mean_log_odds if members and members[0].link == "sigmoid" else ensembles.log_mean
    )
    logits = np.concatenate([mean(block).astype(np.float32) for block in _blocks(members)])
    return members[0]._replace(logits=logits)


def _blocks(members: Sequence[Predictions]) -> Iterator[Float[np.ndarray, "m b k"]]:
    """The logits of all members, one block of examples at a time."""
    if len(members) < 2:
        raise ValueError(f"an ensemble requires at least two runs, but got {len(members)}.")
    first = members[0]
    for other in members[1:]:
        if not np.array_equal(first.ids, other.ids):
            raise ValueError(
                f"{first.source} and {other.source} hold different examples; choose predictions of"
                " the same examples."
            )
    logits = [predictions.all_logits(p, "the mean of an ensemble") for p in members]
    size = max(1, _BLOCK_VALUES // (len(members) * logits[0].shape[-1]))
    for start in range(0, max(1, len(first.ids)), size):
        yield np.stack([x[start : start + size] for x in logits])


def _sums_over_samples(key, latent, num_samples, points, link):
    """Sums over the samples of the probabilities [b, k] and of the entropies [b]."""
    source = latent_lib.noise_source(key, latent, num_samples, points)

    def body(totals, indices):
        utilities = latent_lib.utilities(latent, source(indices))
        # Without noise there is a single sample.
        utilities = jnp.broadcast_to(utilities, (len(indices), *latent.loc.shape))
        if link == "sigmoid":
            probs = jax.nn.sigmoid(utilities)
            complement = jax.nn.sigmoid(-utilities)
            terms = probs * jax.nn.log_sigmoid(utilities)
            terms += complement * jax.nn.log_sigmoid(-utilities)
        else:
            log_probs = jax.nn.log_softmax(utilities, axis=-1)
            probs = jnp.exp(log_probs)
            terms = probs * log_probs
        entropies = -jnp.sum(jnp.where(probs > 0, terms, 0.0), axis=-1)
        return jax.tree.map(lambda x, part: x + jnp.sum(part, axis=0), totals, (probs, entropies))

    zeros = jnp.zeros_like(latent.loc), jnp.zeros(latent.loc.shape[:-1], latent.loc.dtype)
    chunk_size = min(sampling.chunk_size(latent_lib.values_per_sample(latent)), num_samples)
    return sampling.over_chunks(body, zeros, num_samples, chunk_size)


def _entropy(probs, link):
    if link == "sigmoid":
        probs = np.stack([probs, 1 - probs], axis=-1)
        return np.sum(_entropy(probs, "softmax"), axis=-1)
    probs = probs / probs.sum(axis=-1, keepdims=True)
    return -np.sum(probs * np.log(probs, out=np.zeros_like(probs), where=probs > 0), axis=-1)

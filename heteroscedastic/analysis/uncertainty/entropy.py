"""How much of a prediction's entropy is in the label, and how much is disagreement of latent
samples or members.

The entropy of the mean prediction is the mean entropy of a sample (or member) plus the mutual
information of the label and which sample it is. Under a heteroscedastic head the latter is what
the noise of the utilities adds; between members of an ensemble it is what training left open.
"""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from heteroscedastic import ensembles
from heteroscedastic import latent as latent_lib
from heteroscedastic.ensembles import EntropySplit
from heteroscedastic.runs import loaded_run, predictions
from heteroscedastic.runs.predictions import Predictions

_CHUNK_VALUES = 2**20  # utilities held at a time
_BLOCK_VALUES = 2**20  # logits of members held in float64 at a time


def over_samples(
    found: loaded_run.Finished, split: str = "test", num_samples: int = 256, points: str = "sobol"
) -> EntropySplit:
    """The split over samples of the latent, for each example of a data split, in its order; nats.

    Args:
      found: a finished run with its state.
      split: of its data.
      num_samples: of the latent, a power of two for Sobol points.
      points: see sampling.py.

    Raises:
      ValueError: the run has no such split.
    """
    data = loaded_run.data(found, split)
    link = found.run.task.link

    def read(key, latent, batch):
        return _sums_over_samples(key, latent, num_samples, points, link)

    def entropies(sums):  # of a batch, as the probabilities of all examples may be too many to hold
        probs, expected = (x.astype(np.float64) / num_samples for x in sums)
        return _entropy(probs, link), expected

    total, expected = loaded_run.by_example(found, data, read, then=entropies)
    # In float32 a difference of equal entropies is not quite 0.
    mutual = np.maximum(total - expected, 0.0)
    return EntropySplit(total, total - mutual, mutual)


def over_members(members: Sequence[Predictions]) -> EntropySplit:
    """The split over models trained apart, for each example that all of them predicted; nats.

    Raises:
      ValueError: fewer than two members, other examples, or not every logit.
    """
    split = (
        ensembles.sigmoid_entropy_split
        if members and members[0].link == "sigmoid"
        else ensembles.entropy_split
    )
    return EntropySplit(*map(np.concatenate, zip(*map(split, _blocks(members)))))


def mean_of_members(members: Sequence[Predictions]) -> Predictions:
    """What models trained apart predict together: the mean of their probabilities, its logits in
    float32.

    Raises:
      ValueError: as `over_members`.
    """
    mean = (
        ensembles.mean_log_odds if members and members[0].link == "sigmoid" else ensembles.log_mean
    )
    logits = np.concatenate([mean(block).astype(np.float32) for block in _blocks(members)])
    return members[0]._replace(logits=logits)


def _blocks(members: Sequence[Predictions]) -> Iterator[Float[np.ndarray, "m b k"]]:
    """The logits of all members, a block of examples at a time."""
    if len(members) < 2:
        raise ValueError(f"an ensemble needs two runs or more, but there is {len(members)}.")
    first = members[0]
    for other in members[1:]:
        if not np.array_equal(first.ids, other.ids):
            raise ValueError(
                f"{first.source} and {other.source} are of different examples; take one split's."
            )
    logits = [predictions.every_logit(p, "the mean of members") for p in members]
    size = max(1, _BLOCK_VALUES // (len(members) * logits[0].shape[-1]))
    for start in range(0, max(1, len(first.ids)), size):
        yield np.stack([x[start : start + size] for x in logits])


def _sums_over_samples(key, latent, num_samples, points, link):
    """Sums over the samples of the probabilities [b, k], and of the entropies [b]."""
    source = latent_lib.noise_source(key, latent, num_samples, points)
    chunk = max(1, min(num_samples, _CHUNK_VALUES // latent.loc.size))

    def body(totals, start):
        numbers = start + jnp.arange(chunk)
        present = (numbers < num_samples).astype(latent.loc.dtype)
        utilities = latent_lib.utilities(latent, source(jnp.minimum(numbers, num_samples - 1)))
        utilities = jnp.broadcast_to(
            utilities, (chunk, *latent.loc.shape)
        )  # without noise there is one
        if link == "sigmoid":
            probs = jax.nn.sigmoid(utilities)
            no = jax.nn.sigmoid(-utilities)
            terms = probs * jax.nn.log_sigmoid(utilities) + no * jax.nn.log_sigmoid(-utilities)
        else:
            log_probs = jax.nn.log_softmax(utilities, axis=-1)
            probs = jnp.exp(log_probs)
            terms = probs * log_probs
        entropies = -jnp.sum(jnp.where(probs > 0, terms, 0.0), axis=-1)
        parts = (
            jnp.einsum("s,s...k->...k", present, probs),
            jnp.einsum("s,s...->...", present, entropies),
        )
        return jax.tree.map(jnp.add, totals, parts), None

    zeros = jnp.zeros_like(latent.loc), jnp.zeros(latent.loc.shape[:-1], latent.loc.dtype)
    totals, _ = jax.lax.scan(body, zeros, jnp.arange(0, num_samples, chunk))
    return totals


def _entropy(probs, link):
    if link == "sigmoid":
        probs = np.stack([probs, 1 - probs], axis=-1)
        return np.sum(_entropy(probs, False), axis=-1)
    probs = probs / probs.sum(axis=-1, keepdims=True)
    return -np.sum(probs * np.log(probs, out=np.zeros_like(probs), where=probs > 0), axis=-1)

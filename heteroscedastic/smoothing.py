"""Labels become distributions: (batch, num_classes) -> targets."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from heteroscedastic.batch import Batch
from heteroscedastic.bind import check_number
from heteroscedastic.links import suits

__all__ = ["hard", "uniform"]  # what config.smoothing may name


@suits()
def hard(batch: Batch, num_classes: int) -> Float[Array, "*b k"]:
    """One for every label of an example, zero elsewhere; several labels where they are lists."""
    in_lists = batch.labels.ndim > batch.weights.ndim
    return (
        multi_hot(batch.labels, num_classes)
        if in_lists
        else jax.nn.one_hot(batch.labels, num_classes, dtype=jnp.float32)
    )


@suits(labels=("one",))
def uniform(
    batch: Batch, num_classes: int, *, rate: float, over: str = "all"
) -> Float[Array, "*b k"]:
    """A share `rate` of the label's mass spread evenly over the classes.

    Args:
      batch: one label an example.
      num_classes: K.
      rate: 0 <= rate < 1.
      over: "all" gives every class rate/K, the true one 1 - rate + rate/K (Szegedy et al.
        2016); "wrong" gives every wrong class rate/(K-1), the true one 1 - rate. The same
        target when rate_wrong = rate_all (K-1)/K.
    """
    check_number("rate", rate, at_least=0, below=1)
    if batch.labels.ndim != batch.weights.ndim:
        raise ValueError(
            "smoothing 'uniform' needs one label an example; these have lists of labels."
        )
    if num_classes < 2:
        raise ValueError(f"smoothing 'uniform' needs two classes or more, not {num_classes}.")
    targets = hard(batch, num_classes)
    match over:
        case "all":
            return (1 - rate) * targets + rate / num_classes
        case "wrong":
            return (1 - rate) * targets + rate / (num_classes - 1) * (1 - targets)
    raise ValueError(f"over is {over!r}; choose 'all' or 'wrong'.")


def multi_hot(labels: Int[Array, "*b m"], num_classes: int) -> Float[Array, "*b k"]:
    """One for every label of a list, zero elsewhere; -1 is padding.

    Place after place of the lists, so that there is no array of places and classes.
    """
    classes = jnp.arange(num_classes)
    holds = jnp.zeros((*labels.shape[:-1], num_classes), bool)
    for place in range(labels.shape[-1]):
        holds |= labels[..., place, None] == classes
    return holds.astype(jnp.float32)

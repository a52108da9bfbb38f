"""Label smoothing: (batch, num_classes) -> targets, distributions over the classes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from heteroscedastic.batch import Batch
from heteroscedastic.bind import check_number
from heteroscedastic.links import suits

__all__ = ["hard", "uniform"]  # choices of config.smoothing


@suits()
def hard(batch: Batch, num_classes: int) -> Float[Array, "*b k"]:
    """1 for each label of an example, 0 for the other classes.

    Args:
      batch: labels are one class per example, or a list of classes per example.
      num_classes: K.
    """
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
    """The fraction `rate` of the label's probability spread evenly over the classes.

    Args:
      batch: one label per example.
      num_classes: K, 2 or more.
      rate: 0 <= rate < 1.
      over: "all" gives each class rate / K, so the label has 1 - rate + rate / K; "wrong" gives
        each other class rate / (K - 1), so the label has 1 - rate. Both give the same targets when
        rate_wrong = rate_all (K - 1) / K.

    Raises:
      ValueError: a setting is out of range, or the labels are lists.

    Source: Szegedy et al. (2016), arXiv:1512.00567, section 7, for over="all".
    """
    check_number("rate", rate, at_least=0, below=1)
    if batch.labels.ndim != batch.weights.ndim:
        raise ValueError(
            "smoothing 'uniform' needs one label per example, but the labels are lists; use 'hard'."
        )
    if num_classes < 2:
        raise ValueError(f"smoothing 'uniform' needs 2 or more classes, not {num_classes}.")
    targets = hard(batch, num_classes)
    match over:
        case "all":
            return (1 - rate) * targets + rate / num_classes
        case "wrong":
            return (1 - rate) * targets + rate / (num_classes - 1) * (1 - targets)
    raise ValueError(f"over is {over!r}; choose 'all' or 'wrong'.")


def multi_hot(labels: Int[Array, "*b m"], num_classes: int) -> Float[Array, "*b k"]:
    """1 for each label of a list, 0 for the other classes; -1 is padding.

    A loop over the m entries of the lists avoids an array of m times K numbers per example.
    """
    classes = jnp.arange(num_classes)
    is_label = jnp.zeros((*labels.shape[:-1], num_classes), bool)
    for i in range(labels.shape[-1]):
        is_label |= labels[..., i, None] == classes
    return is_label.astype(jnp.float32)

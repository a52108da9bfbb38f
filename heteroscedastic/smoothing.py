"""Label smoothing: (batch, num_classes) -> targets, distributions over the classes."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from heteroscedastic import boxes as boxes_lib
from heteroscedastic.batch import Batch
from heteroscedastic.bind import check_number
from heteroscedastic.links import suits

__all__ = ["adaptive", "by_class", "given", "hard", "uniform"]  # choices of config.smoothing

_TOLERANCE = 1e-3  # of the sum of a distribution that was rounded for a file


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
    return _spread("uniform", batch, num_classes, rate, over)


@suits(labels=("one",), extras=("boxes",))
def adaptive(
    batch: Batch,
    num_classes: int,
    *,
    beta: float = 1.0,
    over: str = "wrong",
    objectness: str = "own",
) -> Float[Array, "*b k"]:
    """Smoothing by the fraction alpha of the image that is no object: adaptive label smoothing.

    The targets are those of `uniform` with the rate beta * alpha for each example, where alpha is 1
    minus the objectness of its boxes, after augmentation. A crop without a box has alpha = 1.
    Where the extra `context` holds, no object is visible: the targets are 1 / K, whatever beta is.

    Args:
      batch: one label per example, and `boxes`.
      num_classes: K, 2 or more.
      beta: from 0, hard targets, to 1.
      over: "wrong" spreads over the other classes, as in the formula of the paper; "all" spreads
        over all classes, so that targets without an object are 1 / K, as in the text of the paper.
      objectness: "own", or "next" for that of the next example of the batch: a control with the
        same distribution of alpha, which says nothing about the example itself. An example whose
        next one is absent keeps its own.

    Raises:
      ValueError: a setting is out of range, the labels are lists, or there are no boxes.

    Source: "One Size Doesn't Fit All: Adaptive Label Smoothing", Eq. 5 and the beta label.
    """
    check_number("beta", beta, at_least=0, at_most=1)
    area = boxes_lib.objectness(_extra("adaptive", batch, "boxes"))
    if objectness not in ("own", "next"):
        raise ValueError(f"objectness is {objectness!r}; choose 'own' or 'next'.")
    if objectness == "next":
        next_area, next_weight = (jnp.roll(x, -1, axis=0) for x in (area, batch.weights))
        area = jnp.where(next_weight > 0, next_area, area)
    alpha = 1 - area
    targets = _spread("adaptive", batch, num_classes, beta * alpha[..., None], over)
    if "context" not in batch.extras:
        return targets
    return jnp.where(batch.extras["context"][..., None], 1 / num_classes, targets)


@suits(labels=("one",), soft_labels="field")
def given(batch: Batch, num_classes: int, *, field: str) -> Float[Array, "*b k"]:
    """The soft labels of each example, such as the fractions of the answers of several people.

    The data pipelines check that they are distributions.

    Args:
      batch: its extras include the soft labels.
      num_classes: K.
      field: name of the extra, such as "soft_label" of CIFAR-10H, which only its split "test" has.

    Raises:
      ValueError: there is no such extra, or it does not have K numbers per example.
    """
    targets = _extra("given", batch, field)
    expected = (*batch.weights.shape, num_classes)
    if targets.shape != expected:
        raise ValueError(
            f"the extra {field!r} has shape {targets.shape}, but soft labels of {num_classes}"
            f" classes have shape {expected}."
        )
    return targets.astype(jnp.float32)


@suits(labels=("one",), class_table="table")
def by_class(batch: Batch, num_classes: int, *, rate: float, table: str) -> Float[Array, "*b k"]:
    """The fraction `rate` of the label's probability spread over what its class is taken for.

    Args:
      batch: one label per example.
      num_classes: K.
      rate: from 0, hard targets, to 1.
      table: .npy file of a [K, K] array. Row c is a distribution over what class c is taken for,
        such as the mean prediction of a finished run, or the frequency of each human label.

    Raises:
      ValueError: the rate is out of range, the labels are lists, or the table cannot be read, has
        another shape or a row that is no distribution.
    """
    check_number("rate", rate, at_least=0, at_most=1)
    _check_single_labels("by_class", batch)
    rows = jnp.asarray(class_table(table, num_classes))
    return (1 - rate) * hard(batch, num_classes) + rate * rows[batch.labels]


def class_table(path: str, num_classes: int) -> Float[np.ndarray, "k k"]:
    """The table of `by_class`, read from an .npy file.

    Raises:
      ValueError: the file cannot be read, or is no table of distributions.
    """
    try:
        table = np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"table {path!r} cannot be read as an .npy file ({error}).") from None
    if table.dtype.kind not in "fiu" or table.shape != (num_classes, num_classes):
        raise ValueError(
            f"table {path!r} must be numbers [{num_classes}, {num_classes}], a row for each class,"
            f" but is {table.dtype} {table.shape}."
        )
    table = table.astype(np.float32)
    if fault := invalid_distribution(table):
        row, reason = fault
        raise ValueError(
            f"table {path!r}: row {row} {reason}, but each row must be >= 0 and sum to 1."
        )
    return table


def invalid_distribution(rows: Float[np.ndarray, "n k"]) -> tuple[int, str] | None:
    """The first row that is no distribution, and what is wrong with it; None if all rows are.

    The values of a distribution are >= 0, and their sum is 1 up to 0.001.
    """
    totals = rows.sum(axis=-1, dtype=np.float64)
    is_valid = (rows >= 0).all(axis=-1) & (np.abs(totals - 1) <= _TOLERANCE)  # False for nan
    if is_valid.all():
        return None
    first = int(np.argmin(is_valid))
    lowest = rows[first].min()
    fault = f"has the value {lowest:g}" if lowest < 0 else f"sums to {totals[first]:g}"
    return first, fault


def multi_hot(labels: Int[Array, "*b m"], num_classes: int) -> Float[Array, "*b k"]:
    """1 for each label of a list, 0 for the other classes; -1 is padding.

    A loop over the m entries of the lists avoids an array of m times K numbers per example.
    """
    classes = jnp.arange(num_classes)
    is_label = jnp.zeros((*labels.shape[:-1], num_classes), bool)
    for i in range(labels.shape[-1]):
        is_label |= labels[..., i, None] == classes
    return is_label.astype(jnp.float32)


def _spread(
    name: str, batch: Batch, num_classes: int, rate: float | Float[Array, "*b 1"], over: str
) -> Float[Array, "*b k"]:
    """Hard targets of which the fraction `rate` is spread evenly over the classes."""
    _check_single_labels(name, batch)
    if num_classes < 2:
        raise ValueError(f"smoothing {name!r} needs 2 or more classes, not {num_classes}.")
    targets = hard(batch, num_classes)
    match over:
        case "all":
            return (1 - rate) * targets + rate / num_classes
        case "wrong":
            return (1 - rate) * targets + rate / (num_classes - 1) * (1 - targets)
    raise ValueError(f"over is {over!r}; choose 'all' or 'wrong'.")


def _check_single_labels(name: str, batch: Batch) -> None:
    if batch.labels.ndim != batch.weights.ndim:
        raise ValueError(
            f"smoothing {name!r} needs one label per example, but the labels are lists; use 'hard'."
        )


def _extra(name: str, batch: Batch, extra: str) -> Array:
    if extra not in batch.extras:
        raise ValueError(
            f"smoothing {name!r} needs the extra {extra!r} of each example; set"
            f" config.data.extras=({extra!r},)."
        )
    return batch.extras[extra]

"""Validation of what scikit-learn does not know: settings, labels and weights."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from heteroscedastic import files, label_lists, sampling
from heteroscedastic.bind import check_number, check_numbers
from heteroscedastic.models import heads

_LOSSES = ("cross_entropy", "generalized_cross_entropy")


def settings(estimator: Any) -> None:
    """Checks the settings of the estimator.

    Raises:
      ValueError: a setting is out of range.
    """
    heads.has_noise(estimator.head)  # raises if there is no such head
    check_number("num_factors", estimator.num_factors, integer=True, at_least=1)
    if estimator.loss not in _LOSSES:
        raise ValueError(f"loss is {estimator.loss!r}; choose one of {', '.join(_LOSSES)}.")
    if not is_auto(estimator.temperature):
        check_number("temperature", estimator.temperature, at_least=1e-4, at_most=1e4)
    if sizes := layer_sizes(estimator.hidden_layer_sizes):
        check_numbers("hidden_layer_sizes", sizes, integer=True, at_least=1)
    if not is_auto(estimator.learning_rate):
        check_number("learning_rate", estimator.learning_rate, above=0)
    check_number("weight_decay", estimator.weight_decay, at_least=0, at_most=1e4)
    if not is_auto(estimator.batch_size):
        check_number("batch_size", estimator.batch_size, integer=True, at_least=1)
    check_number("max_iter", estimator.max_iter, integer=True, at_least=1)
    check_number("n_iter_no_change", estimator.n_iter_no_change, integer=True, at_least=1)
    check_number("validation_fraction", estimator.validation_fraction, at_least=0, below=1)
    number = sampling.check_num_points(estimator.num_samples)
    if number & (number - 1):
        raise ValueError(f"num_samples is {number}, but must be a power of two.")


def loss_suits(loss: str, link: str) -> None:
    """Checks that a loss suits the labels.

    Raises:
      ValueError: it does not.
    """
    if link == "sigmoid" and loss != _LOSSES[0]:
        raise ValueError(
            f"loss {loss!r} requires one label per example, but y is an indicator matrix; use"
            f" loss={_LOSSES[0]!r}."
        )


def layer_sizes(value: Any) -> tuple[Any, ...]:
    """The units of each hidden layer; a number stands for one layer."""
    return tuple(value) if np.iterable(value) else (value,)


def targets(y: Any) -> Shaped[np.ndarray, "n *k"]:
    """Labels [n], also of a column, or a dense indicator matrix [n, k].

    Raises:
      ValueError: the labels are not of classes.
    """
    y = y.toarray() if sparse.issparse(y) else y
    check_classification_targets(y)
    if type_of_target(y) != "multilabel-indicator":
        return column_or_1d(y, warn=True)
    if not np.isin(y, (0, 1)).all():
        raise ValueError(
            f"y is an indicator matrix with the values {np.unique(y).tolist()}; pass 1 for the"
            " classes of an example and 0 for all others."
        )
    return np.asarray(y)


def encoded_labels(
    y: Shaped[np.ndarray, "n *k"],
) -> tuple[Shaped[np.ndarray, "k"], Int[np.ndarray, "n ..."]]:
    """The classes of `targets`, and labels as their numbers or as padded lists.

    Raises:
      ValueError: the labels are of one class.
    """
    if y.ndim == 2:
        return np.arange(y.shape[1]), _lists(y)
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"y has one class, {files.plain(classes[0])!r}; the classifier requires two or more"
            " classes."
        )
    return classes, labels


def several_classes(labels: Int[np.ndarray, "n ..."], classes: Shaped[np.ndarray, "k"]) -> None:
    """Checks that the examples of a weight above 0 are of two classes or more.

    Raises:
      ValueError: there is one class.
    """
    if labels.ndim == 1 and (labels == labels[0]).all():
        raise ValueError(
            f"all examples of a sample_weight > 0 are of one class,"
            f" {files.plain(classes[labels[0]])!r}; the classifier requires two or more classes."
        )


def finite(inputs: Shaped[np.ndarray, "n d"], standardized: Float[np.ndarray, "n d"]) -> None:
    """Checks that features are finite in float32 after standardization.

    Raises:
      ValueError: a feature is not; names it.
    """
    if np.isfinite(standardized).all():
        return
    column = np.argwhere(~np.isfinite(standardized))[0][1]
    largest = np.max(np.abs(inputs[:, column]))
    raise ValueError(
        f"feature {column} of X reaches {largest:.3g}, which float32 cannot represent after"
        " standardization; divide the features by a constant."
    )


def first_classes(
    classes: ArrayLike | None, y: Shaped[np.ndarray, "n *k"]
) -> Shaped[np.ndarray, "k"]:
    """The classes of the first call of partial_fit.

    Raises:
      ValueError: they are missing, there is one, or they are not the columns of the matrix.
    """
    if y.ndim == 2:
        columns = np.arange(y.shape[1])
        if classes is not None and not np.array_equal(classes, columns):
            raise ValueError(
                f"classes are {classes}, but those of an indicator matrix are its columns, 0 to"
                f" {len(columns) - 1}; omit them."
            )
        return columns
    if classes is None:
        raise ValueError("classes must be passed on the first call to partial_fit.")
    classes = np.unique(classes)
    if len(classes) < 2:
        raise ValueError(f"classes are {classes}; the classifier requires two or more classes.")
    return classes


def known_labels(
    y: Shaped[np.ndarray, "n *k"], classes: Shaped[np.ndarray, "k"], link: str
) -> Int[np.ndarray, "n ..."]:
    """The labels of `targets` as numbers of known classes, or as padded lists.

    Raises:
      ValueError: a label is not one of the classes.
    """
    if y.shape[1:] != (() if link == "softmax" else classes.shape):
        form = (
            f"an indicator matrix [n, {len(classes)}]" if link == "sigmoid" else "one per example"
        )
        raise ValueError(f"y has shape {y.shape}, but labels must be {form}, as in the first fit.")
    if link == "sigmoid":
        return _lists(y)
    # Not np.setdiff1d, to which the text "3" and the number 3 may be the same class.
    try:
        labels = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    except TypeError:  # one side is text of dtype object, the other numbers
        labels, unknown = np.zeros(len(y), int), y
    else:
        unknown = y[classes[labels] != y]
    if unknown.size:
        raise ValueError(
            f"y has the unknown class {files.plain(unknown[0])!r}; the classes of the fit are"
            f" {classes}."
        )
    return labels


def weights(sample_weight: ArrayLike | None, num_examples: int) -> Float[np.ndarray, "n"]:
    """Weights of the examples divided by the largest, in float32; 1 if not given.

    Raises:
      ValueError: a weight is negative or not finite, there is not one for each example, or all are
        0.
    """
    if sample_weight is None:
        return np.ones(num_examples, np.float32)
    values = np.asarray(sample_weight, np.float64)
    if values.shape not in ((num_examples,), ()):
        raise ValueError(
            f"sample_weight.shape == {values.shape}, expected {(num_examples,)}, one for each"
            " example."
        )
    values = np.broadcast_to(values, (num_examples,))
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError("sample_weight must be finite and not negative.")
    if not values.any():
        raise ValueError("sample_weight sums to zero; give at least one example a weight > 0.")
    return (values / values.max()).astype(np.float32)


def is_auto(value: Any) -> bool:
    """Whether a setting is "auto"."""
    return isinstance(value, str) and value == "auto"


def _lists(indicators: Int[np.ndarray, "n k"]) -> Int[np.ndarray, "n m"]:
    """Lists of the columns that are 1, padded with -1 to a power of two, or to all columns.

    Programs have a step for each entry of a list; folds have lists of few widths.
    """
    lists = label_lists.from_multi_hot(np.asarray(indicators) > 0)
    width = min(indicators.shape[1], 1 << (lists.shape[1] - 1).bit_length())
    return np.pad(lists, ((0, 0), (0, width - lists.shape[1])), constant_values=-1)

"""The saved predictions of a run, and quantities that follow from one example's prediction."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy import special

from heteroscedastic import files, label_lists
from heteroscedastic.data.packing import MAX_TOKENS
from heteroscedastic.links import Link
from heteroscedastic.runs import provenance, run_record
from heteroscedastic.training.evaluate import EXTRA


class Predictions(NamedTuple):
    """The predictions of one evaluation.

    Above 2,000 classes a run saves only the largest logits of each example; see tasks/task.py.
    """

    source: files.Path | None  # of the file; None for arrays of other origin
    ids: Int[np.ndarray, "n"]
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]  # lists are padded with -1
    logits: Float[np.ndarray, "n c"]  # of all classes, or the largest in descending order
    classes: Int[np.ndarray, "n c"] | None = None  # of the logits; None means all, in order
    label_logits: Float[np.ndarray, "n"] | Float[np.ndarray, "n m"] | None = None
    log_normalizer: Float[np.ndarray, "n"] | None = None
    # That config.data.extras names, and the objectness of boxes.
    extras: dict[str, Shaped[np.ndarray, "n ..."]] = {}
    # Of examples that are not independent: the sentence of each token of a translator, else the
    # extra of this name.
    groups: Int[np.ndarray, "n"] | None = None

    @property
    def link(self) -> Link:
        """The link of the logits: "sigmoid" if the file holds lists of labels."""
        return "sigmoid" if self.labels.ndim == 2 else "softmax"


def names(run: str | files.Path) -> list[str]:
    """The evaluations whose predictions a run has saved."""
    return sorted(path.stem for path in (files.as_path(run) / "predictions").glob("*.npz"))


def read(run: str | files.Path, name: str) -> Predictions:
    """Reads the predictions of one evaluation of a run.

    Those of a stream, whose shards take turns, are in the order of their ids, as its examples are
    where an analysis reads them.

    Raises:
      FileNotFoundError: the run has no such predictions.
      ValueError: the file is damaged, was changed, belongs to another run, was written by an
        incompatible version, or holds lists of correct labels of which a model predicts one.
    """
    path, arrays, stamp = _stored(run, name)
    if "scores" in arrays:
        raise ValueError(
            f"{path} has detections, not one prediction per example; read"
            f" {path.with_suffix('.json').name} beside it, or the metrics in results.json."
        )
    record = run_record.read_if_complete(files.as_path(run))
    evals = record.config["evals"] if record else {}
    # Earlier versions wrote those of `one_vs_rest` as labels.
    if "right_labels" in arrays or evals.get(name, {}).get("answers") == "any":
        raise ValueError(
            f"{path} has lists of correct labels, but the model predicts one label per example, so"
            " only the accuracy in results.json is defined; choose another evaluation."
        )
    fields = {name: x for name, x in arrays.items() if not name.startswith(EXTRA)}
    extras = {name.removeprefix(EXTRA): arrays[name] for name in arrays.keys() - fields.keys()}
    unknown = sorted(set(fields) - (set(Predictions._fields) - {"extras", "groups"}))
    missing = sorted({"ids", "labels", "logits"} - set(arrays))
    if unknown or missing:
        raise ValueError(
            f"{path} was written by another version (missing arrays: {missing}; unknown arrays:"
            f" {unknown}); repeat the run with this version."
        )
    if fault := _fault(len(record.dataset["class_names"]) if record else None, **fields):
        raise ValueError(f"{path} is damaged ({fault}); {_REMEDY}.")
    _check_stamp(record.results.get("owner") if record else None, path, arrays, stamp)
    if record is not None and _is_stream(record):
        order = np.argsort(fields["ids"], kind="stable")
        fields, extras = ({k: x[order] for k, x in d.items()} for d in (fields, extras))
    is_of_tokens = record is not None and record.config.get("task") == "translation"
    groups = fields["ids"] // MAX_TOKENS if is_of_tokens else group_numbers(extras.get("groups"))
    return Predictions(path, **fields, extras=extras, groups=groups)


def group_numbers(stored: Int[np.ndarray, "n"] | None) -> Int[np.ndarray, "n"] | None:
    """Groups of examples; one that is unknown is alone, and a single group divides nothing."""
    if stored is None or len(np.unique(stored)) < 2:
        return None
    return np.where(stored < 0, stored.max() + 1 + np.arange(len(stored)), stored)


def shared_groups(runs: Iterable[Predictions]) -> Int[np.ndarray, "n"] | None:
    """The groups of the first of these runs that has some; all are of the same examples."""
    return next((run.groups for run in runs if run.groups is not None), None)


def read_detections(run: str | files.Path, name: str) -> dict[str, np.ndarray]:
    """Reads the arrays of tasks.detection.Predictions of one evaluation of a detector.

    Raises:
      FileNotFoundError: the run has no such predictions.
      ValueError: the file is damaged, was changed, belongs to another run, or has no detections.
    """
    path, arrays, stamp = _stored(run, name)
    if "scores" not in arrays:
        raise ValueError(f"{path} has no detections; choose a run of config.task 'detection'.")
    record = run_record.read_if_complete(files.as_path(run))
    _check_stamp(record.results.get("owner") if record else None, path, arrays, stamp)
    if record is not None and _is_stream(record):
        order = np.argsort(arrays["image_ids"], kind="stable")
        arrays = {name: x[order] for name, x in arrays.items()}
    return arrays


def _is_stream(record: run_record.RunRecord) -> bool:
    """Whether the order of the examples depends on the number of hosts."""
    return record.config["data"].get("pipeline") == "streaming"


def _stored(
    run: str | files.Path, name: str
) -> tuple[files.Path, dict[str, np.ndarray], dict[str, str]]:
    """The file of an evaluation, its arrays, and the stamp of the run that wrote it."""
    path = files.as_path(run) / "predictions" / f"{name}.npz"
    if not path.exists():
        record = run_record.read_if_complete(files.as_path(run))
        if record is not None and not record.config["evals"]:
            raise FileNotFoundError(
                f"{run} has no predictions because its config.evals is empty; choose a run that has"
                " evaluations."
            )
        saved = ", ".join(names(run))
        remedy = f"choose one of its evaluations: {saved}" if saved else _REMEDY
        raise FileNotFoundError(
            f"{run} has no predictions of {name!r} ({path.name} is missing); {remedy}."
        )
    try:
        arrays = files.read_arrays(path)
    except Exception as error:  # zip, zlib or numpy, whichever meets the damage first
        cause = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path} is damaged ({cause}); {_REMEDY}.") from None
    stamp = {key: str(arrays.pop(key)) for key in ("owner", "digest") if key in arrays}
    return path, arrays, stamp


_REMEDY = "remove the run's results.json and repeat its main.py command, which evaluates it again"


def _check_stamp(
    owner: str | None, path: files.Path, arrays: dict[str, np.ndarray], stamp: dict[str, str]
) -> None:
    """Raises a ValueError unless the run of this owner wrote exactly these predictions."""
    if owner and not stamp:
        raise ValueError(f"{path} has no owner, so this run did not write it; {_REMEDY}.")
    if not stamp:
        return
    stamped_owner = stamp.get("owner", "")
    digest = str(provenance.stamped_arrays(path.stem, arrays, stamped_owner)["digest"])
    if digest != stamp.get("digest"):
        raise ValueError(f"{path} was changed or renamed after the run wrote it; {_REMEDY}.")
    if owner and stamped_owner != owner:
        raise ValueError(f"{path} belongs to another run; {_REMEDY}.")


def _fault(
    num_classes: int | None,
    ids: np.ndarray,
    labels: np.ndarray,
    logits: np.ndarray,
    classes: np.ndarray | None = None,
    label_logits: np.ndarray | None = None,
    log_normalizer: np.ndarray | None = None,
) -> str | None:
    """Describes what is wrong with the arrays of a file; None if nothing is."""
    integers = {"ids": ids, "labels": labels, "classes": classes}
    reals = {"logits": logits, "label_logits": label_logits, "log_normalizer": log_normalizer}
    for expected, kind, arrays in (
        ("integers", np.integer, integers),
        ("floats", np.floating, reals),
    ):
        for name, array in arrays.items():
            if array is not None and not np.issubdtype(array.dtype, kind):
                return f"{name} are {array.dtype}, not {expected}"
    if logits.ndim != 2 or not logits.size:
        return f"logits have shape {logits.shape}, not one row per example"
    n = len(logits)
    shapes = {
        "ids": (ids, (n,)),
        "labels": (labels, (n, *labels.shape[1:2])),
        "classes": (classes, logits.shape),
        "label_logits": (label_logits, labels.shape),
        "log_normalizer": (log_normalizer, (n,)),
    }
    for name, (array, shape) in shapes.items():
        if array is not None and array.shape != shape:
            return f"{name} have shape {array.shape}, but {n} rows of logits require {shape}"
    if len(np.unique(ids)) != n:
        return "an id occurs twice"
    if label_logits is not None:
        reals["label_logits"] = np.where(labels < 0, 0, label_logits)  # padding has no logit
    for name, array in reals.items():
        if array is not None and not np.isfinite(array).all():
            row = np.argwhere(~np.isfinite(array))[0][0]
            return f"{name} of id {ids[row]} are not finite"
    limit = num_classes or (logits.shape[1] if classes is None else np.inf)
    if classes is None and logits.shape[1] != limit:
        return f"there are logits of {logits.shape[1]} classes, but the run has {limit}"
    lowest = -1 if labels.ndim == 2 else 0  # lists are padded with -1
    invalid = (labels < lowest) | (labels >= limit)
    if invalid.any():
        position = tuple(np.argwhere(invalid)[0])
        return f"id {ids[position[0]]} has label {labels[position]}, but there are {limit} classes"
    if classes is not None and ((classes < 0) | (classes >= limit)).any():
        return f"a logit belongs to a class outside the {limit} classes"
    return None


def is_noisy(predictions: Predictions, clean: dict[int, Any]) -> Bool[np.ndarray, "n *k"]:
    """Whether the label of each example differs from its clean label.

    With lists of labels, the result has an entry per example and class. A clean label of -1 is
    unknown, and its label is not noisy.

    Args:
      predictions: with all logits if the labels are lists.
      clean: label, or list of labels padded with -1, by the id of the example.
    """
    labels = np.stack([clean[example] for example in predictions.ids.tolist()])
    if predictions.link == "softmax":
        return (labels >= 0) & (labels != predictions.labels)
    targets = binary_predictions(predictions)[1]
    hot = label_lists.multi_hot(labels.reshape(len(labels), -1), targets.shape[-1])
    is_known = labels[:, None] >= 0 if labels.ndim == 1 else True  # an empty list is known
    return (hot != targets) & is_known


def all_logits(predictions: Predictions, purpose: str) -> Float[np.ndarray, "n k"]:
    """The logits of all classes.

    Raises:
      ValueError: the file holds only the largest logits; the message names the purpose.
    """
    if predictions.classes is not None:
        raise ValueError(
            f"{predictions.source} holds only the largest logits of each example, as the run has"
            f" more than 2,000 classes; {purpose} requires all logits{_saving(predictions.source)}."
        )
    return predictions.logits


def _saving(source: files.Path | None) -> str:
    """How a run saves all logits, as the end of an error; empty if it has no setting for that."""
    record = run_record.read_if_complete(source.parent.parent) if source else None
    evals = record.config["evals"] if record else {}
    flags = [
        f"--config.evals.{name}.num_largest={len(record.dataset['class_names'])}"
        for name, settings in evals.items()
        if "num_largest" in settings
    ]
    return f": train in another directory with {' '.join(flags)}" if flags else ""


def predicted_classes(predictions: Predictions) -> Int[np.ndarray, "n"]:
    """The class with the largest logit; the first one if there is a tie."""
    if predictions.classes is None:
        return predictions.logits.argmax(axis=-1)
    return predictions.classes[:, 0]


def is_correct(predictions: Predictions) -> Bool[np.ndarray, "n"]:
    """Whether the predicted class is the label. Requires one label per example."""
    _check_single_label(predictions, "top-1 correctness")
    label_logits = predictions.label_logits
    if label_logits is None:
        columns = predictions.labels[:, None]
        label_logits = np.take_along_axis(predictions.logits, columns, axis=-1)[:, 0]
    return is_top(predictions.logits, label_logits)


def is_top(
    logits: Float[np.ndarray, "n c"], label_logits: Float[np.ndarray, "n"]
) -> Bool[np.ndarray, "n"]:
    """Whether the logit of the label exceeds all others; a tie is an error, as in metrics.py."""
    is_alone = np.sum(logits >= label_logits[:, None], axis=-1) == 1
    return is_alone & (label_logits >= logits.max(axis=-1))  # of one logit, it need not be that


def confidence(predictions: Predictions, temperature: float = 1.0) -> Float[np.ndarray, "n"]:
    """The largest probability of softmax(logits / temperature). Requires one label per example.

    Raises:
      ValueError: the labels are lists, or a temperature is given and logits are missing.
    """
    _check_single_label(predictions, "the confidence of a prediction")
    logits = predictions.logits.astype(np.float64)
    if predictions.log_normalizer is not None and temperature == 1.0:
        return np.exp(logits.max(axis=-1) - predictions.log_normalizer)
    logits = all_logits(predictions, "temperature scaling").astype(np.float64) / temperature
    return np.exp(logits.max(axis=-1) - special.logsumexp(logits, axis=-1))


def binary_predictions(
    predictions: Predictions, temperature: float = 1.0
) -> tuple[Float[np.ndarray, "n k"], Bool[np.ndarray, "n k"]]:
    """The probability sigmoid(logits / temperature) of each class, and whether it is a label.

    Raises:
      ValueError: an example has one label, or logits are missing.
    """
    if predictions.link == "softmax":
        raise ValueError(
            f"{predictions.source} has one label per example; per-class probabilities require lists"
            " of labels."
        )
    logits = all_logits(predictions, "the probability of each class")
    probs = special.expit(logits.astype(np.float64) / temperature)
    return probs, label_lists.multi_hot(predictions.labels, logits.shape[-1])


def losses(predictions: Predictions) -> Float[np.ndarray, "n"]:
    """The negative log-likelihood of each example in nats; under a sigmoid, summed over classes."""
    if predictions.classes is not None:
        label_logits = predictions.label_logits.astype(np.float64)
        if predictions.link == "sigmoid":
            first = _first_occurrences(predictions.labels)
            label_logits = np.where(first, label_logits, 0.0).sum(axis=-1)
        return predictions.log_normalizer - label_logits
    if predictions.link == "sigmoid":
        logits = predictions.logits.astype(np.float64)
        targets = label_lists.multi_hot(predictions.labels, logits.shape[-1])
        return -np.sum(special.log_expit(np.where(targets, logits, -logits)), axis=-1)
    log_probs = special.log_softmax(predictions.logits.astype(np.float64), axis=-1)
    return -np.take_along_axis(log_probs, predictions.labels[:, None], axis=-1)[:, 0]


def _first_occurrences(labels: Int[np.ndarray, "n m"]) -> Bool[np.ndarray, "n m"]:
    """Marks the first occurrence of each label in a list; False for padding."""
    repeated = np.tril(labels[:, :, None] == labels[:, None, :], -1).any(axis=-1)
    return (labels >= 0) & ~repeated


def _check_single_label(predictions: Predictions, quantity: str) -> None:
    if predictions.link == "sigmoid":
        raise ValueError(
            f"{predictions.source} has lists of labels; {quantity} requires one label per example."
        )

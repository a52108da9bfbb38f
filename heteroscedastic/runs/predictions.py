"""The predictions that a run wrote down, and what follows from each by itself."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import special

from heteroscedastic import curation, files
from heteroscedastic.links import Link
from heteroscedastic.runs import provenance, run_record


class Predictions(NamedTuple):
    """Of one evaluation; see training/step.py for what is kept above 2,000 classes."""

    source: files.Path
    ids: Int[np.ndarray, "n"]
    labels: Int[np.ndarray, "n"] | Int[np.ndarray, "n m"]  # lists are padded with -1
    logits: Float[np.ndarray, "n c"]  # of every class, or the largest of each example, falling
    classes: Int[np.ndarray, "n c"] | None = (
        None  # whose logits they are; None is every one, in order
    )
    label_logits: Float[np.ndarray, "n"] | Float[np.ndarray, "n m"] | None = None
    log_normalizer: Float[np.ndarray, "n"] | None = None

    @property
    def link(self) -> Link:
        """The link of the logits: the file has lists of labels where they are log-odds."""
        return "sigmoid" if self.labels.ndim == 2 else "softmax"


def names(run: str | files.Path) -> list[str]:
    """The evaluations of which a run has predictions."""
    return sorted(path.stem for path in (files.as_path(run) / "predictions").glob("*.npz"))


def read(run: str | files.Path, name: str) -> Predictions:
    """The predictions of one evaluation of a run.

    Raises:
      FileNotFoundError: the run has no such predictions.
      ValueError: the file is damaged, was changed, belongs to another run, is of another version,
        or of lists of right labels under a softmax.
    """
    path = files.as_path(run) / "predictions" / f"{name}.npz"
    if not path.exists():
        known = names(run)
        remedy = (
            f"it has those of {', '.join(known)}: choose one of them"
            if known
            else "it has none at all: remove its results.json and run main.py on it again, which evaluates it again"
        )
        raise FileNotFoundError(
            f"{run} has no predictions of {name!r} ({path.name} is missing); {remedy}."
        )
    try:
        found = files.read_arrays(path)
    except Exception as error:  # of zip, zlib or numpy, whichever comes upon the damage first
        told = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path} is damaged ({told}); {_AGAIN}.") from None
    stamp = {key: str(found.pop(key)) for key in ("owner", "digest") if key in found}
    if "right_labels" in found:
        raise ValueError(
            f"{path} is of examples of which lists of labels are right, under a softmax of one"
            " label; results.json"
            " tells the accuracy of it, and nothing else here is defined of it: choose another"
            " evaluation."
        )
    unknown = sorted(set(found) - set(Predictions._fields))
    missing = sorted({"ids", "labels", "logits"} - set(found))
    if unknown or missing:
        raise ValueError(
            f"{path} is of another version: it lacks {missing} and has {unknown}; make the run"
            " again with this one."
        )
    record = run_record.read_if_complete(files.as_path(run))
    if fault := _fault(len(record.dataset["class_names"]) if record else None, **found):
        raise ValueError(f"{path} is damaged ({fault}); {_AGAIN}.")
    _check_stamp(record.results.get("owner") if record else None, path, found, stamp)
    return Predictions(path, **found)


_AGAIN = "remove the run's results.json and run main.py on it again, which evaluates it again"


def _check_stamp(
    owner: str | None, path: files.Path, found: dict[str, np.ndarray], stamp: dict[str, str]
) -> None:
    """Raises a ValueError where the predictions are not what the run of this owner wrote."""
    if owner and not stamp:
        raise ValueError(f"{path} was not written by this run, as it has no owner; {_AGAIN}.")
    if not stamp:
        return
    told = stamp.get("owner", "")
    if str(provenance.stamped_arrays(path.stem, found, told)["digest"]) != stamp.get("digest"):
        raise ValueError(f"{path} was changed or renamed after the run wrote it; {_AGAIN}.")
    if owner and told != owner:
        raise ValueError(f"{path} belongs to another run; {_AGAIN}.")


def _fault(
    num_classes: int | None,
    ids: np.ndarray,
    labels: np.ndarray,
    logits: np.ndarray,
    classes: np.ndarray | None = None,
    label_logits: np.ndarray | None = None,
    log_normalizer: np.ndarray | None = None,
) -> str | None:
    """What is wrong with the arrays of a file, in words."""
    whole = {"ids": ids, "labels": labels, "classes": classes}
    real = {"logits": logits, "label_logits": label_logits, "log_normalizer": log_normalizer}
    for expected, kind, arrays in (
        ("whole numbers", np.integer, whole),
        ("floats", np.floating, real),
    ):
        for name, array in arrays.items():
            if array is not None and not np.issubdtype(array.dtype, kind):
                return f"{name} are {array.dtype}, not {expected}"
    if logits.ndim != 2 or not logits.size:
        return f"logits have shape {logits.shape}, not one row for each example"
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
            return f"{name} have shape {array.shape} beside {n} rows of logits, not {shape}"
    if len(np.unique(ids)) != n:
        return "an id occurs twice"
    if label_logits is not None:
        real["label_logits"] = np.where(
            labels < 0, 0, label_logits
        )  # of the padding of lists there are none
    for name, array in real.items():
        if array is not None and not np.isfinite(array).all():
            row = np.argwhere(~np.isfinite(array))[0][0]
            return f"{name} of id {ids[row]} are not finite"
    most = num_classes or (logits.shape[1] if classes is None else np.inf)
    if classes is None and logits.shape[1] != most:
        return f"there are logits of {logits.shape[1]} classes, not of {most}"
    wrong = (labels < (-1 if labels.ndim == 2 else 0)) | (
        labels >= most
    )  # lists are padded with -1
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        return f"id {ids[place[0]]} has label {labels[place]}, which is none of {most} classes"
    if classes is not None and ((classes < 0) | (classes >= most)).any():
        return "a logit is of no class"
    return None


def is_noisy(told: Predictions, clean: dict[int, Any]) -> Bool[np.ndarray, "n *k"]:
    """Of each example, and of several labels of each class, whether the label differs from the
    clean one.

    Args:
      told: with every logit where there are several labels.
      clean: label, or list of labels padded with -1, by the id of the example.
    """
    labels = np.stack([clean[example] for example in told.ids.tolist()])
    if told.link == "softmax":
        return labels != told.labels
    holds = answers(told)[1]
    return curation.multi_hot(labels.reshape(len(labels), -1), holds.shape[-1]) != holds


def every_logit(told: Predictions, purpose: str) -> Float[np.ndarray, "n k"]:
    """The logits of all classes.

    Raises:
      ValueError: only the largest were kept.
    """
    if told.classes is not None:
        raise ValueError(
            f"{told.source} holds the largest logits of each example only, as above 2,000 classes;"
            f" {purpose} needs"
            " every one."
        )
    return told.logits


def likeliest(told: Predictions) -> Int[np.ndarray, "n"]:
    """The class of the largest logit; of several such the first."""
    return told.logits.argmax(axis=-1) if told.classes is None else told.classes[:, 0]


def is_correct(told: Predictions) -> Bool[np.ndarray, "n"]:
    """Whether the likeliest class is the label, for one label an example."""
    _check_single(told, "a prediction that is right or wrong")
    own = told.label_logits
    if own is None:
        own = np.take_along_axis(told.logits, told.labels[:, None], axis=-1)[:, 0]
    return is_first(told.logits, own)


def is_first(
    logits: Float[np.ndarray, "n c"], own: Float[np.ndarray, "n"]
) -> Bool[np.ndarray, "n"]:
    """Whether the label's own logit is above all others; a tie is wrong, as in metrics.py."""
    return np.sum(logits >= own[:, None], axis=-1) == 1


def confidence(told: Predictions, temperature: float = 1.0) -> Float[np.ndarray, "n"]:
    """The probability of the likeliest class, of softmax(logits / temperature). For one label an
    example.

    Raises:
      ValueError: there are lists of labels, or a temperature but not every logit.
    """
    _check_single(told, "the confidence of the likeliest class")
    logits = told.logits.astype(np.float64)
    if told.log_normalizer is not None and temperature == 1.0:
        return np.exp(logits.max(axis=-1) - told.log_normalizer)
    logits = every_logit(told, "temperature scaling").astype(np.float64) / temperature
    return np.exp(logits.max(axis=-1) - special.logsumexp(logits, axis=-1))


def answers(
    told: Predictions, temperature: float = 1.0
) -> tuple[Float[np.ndarray, "n k"], Bool[np.ndarray, "n k"]]:
    """Of several labels: the probability that each class holds, sigmoid(logits / temperature), and
    whether it does.

    Raises:
      ValueError: an example has one label, or not every logit is there.
    """
    if told.link == "softmax":
        raise ValueError(
            f"{told.source} has one label an example; yes/no answers are of lists of labels."
        )
    logits = every_logit(told, "the yes/no answers")
    return special.expit(logits.astype(np.float64) / temperature), curation.multi_hot(
        told.labels, logits.shape[-1]
    )


def losses(told: Predictions) -> Float[np.ndarray, "n"]:
    """Minus the log-probability of the labels, in nats an example; of yes/no answers, summed over
    the classes.
    """
    if told.classes is not None:
        own = told.label_logits.astype(np.float64)
        return told.log_normalizer - (
            np.where(_once(told.labels), own, 0.0).sum(axis=-1) if told.link == "sigmoid" else own
        )
    if told.link == "sigmoid":
        logits = told.logits.astype(np.float64)
        holds = curation.multi_hot(told.labels, logits.shape[-1])
        return -np.sum(special.log_expit(np.where(holds, logits, -logits)), axis=-1)
    log_probs = special.log_softmax(told.logits.astype(np.float64), axis=-1)
    return -np.take_along_axis(log_probs, told.labels[:, None], axis=-1)[:, 0]


def _once(labels: Int[np.ndarray, "n m"]) -> Bool[np.ndarray, "n m"]:
    """Where a list names a label for the first time."""
    before = np.tril(labels[:, :, None] == labels[:, None, :], -1).any(axis=-1)
    return (labels >= 0) & ~before


def _check_single(told: Predictions, what: str) -> None:
    if told.link == "sigmoid":
        raise ValueError(
            f"{told.source} has lists of labels, as yes/no answers; {what} is of one label an"
            " example."
        )

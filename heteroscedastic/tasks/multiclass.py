"""One label per example, under a softmax: ImageNet."""

import functools
from collections.abc import Mapping
from typing import Any, Literal

import jax
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import special

from heteroscedastic import metrics
from heteroscedastic.batch import Batch
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.links import LabelForm, Link
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.tasks.task import NUM_LARGEST, Answers, bounded
from heteroscedastic.training.evaluate import EXTRA
from heteroscedastic.training.objective import Outputs, Predictive, objective
from heteroscedastic.training.step import Predictions


class Multiclass:
    """One class of K is right; see `Task`."""

    name: str = "multiclass"
    link: Link = "softmax"
    labels: LabelForm = "one"
    stored_labels: LabelForm = "one"
    rows: Literal["example", "region"] = "example"
    extras: tuple[str, ...] = ()
    modules: tuple[str, ...] = ("backbone", "head")
    validation_metrics: tuple[str, ...] = metrics.MULTICLASS
    objective = staticmethod(objective)
    _sums = staticmethod(metrics.multiclass)

    def model(self, backbone: nn.Module, head: nn.Module) -> Classifier:
        return Classifier(backbone=backbone, head=head)

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        return {}

    def predicted(
        self, predictive: Predictive, key: PRNGKeyArray, latent: LatentGaussian
    ) -> Float[Array, "*b k"]:
        return predictive(key, latent)

    def training_sums(self, outputs: Outputs, batch: Batch) -> Any:
        return self._sums(outputs.logits, batch.labels, batch.weights)

    def evaluation_sums(self, logits: Float[Array, "*b k"], batch: Batch, answers: Answers) -> Any:
        sums = metrics.any_label if answers == "any" else self._sums
        return sums(logits, batch.labels, batch.weights)

    def means(self, sums: Any) -> dict[str, float]:
        return metrics.means(sums)

    def predictions(
        self,
        logits: Float[Array, "*b k"],
        batch: Batch,
        answers: Answers,
        num_largest: int = NUM_LARGEST,
    ) -> Predictions:
        record = Predictions(batch.ids, batch.weights, batch.labels, logits)
        record = bounded(record, functools.partial(jax.nn.logsumexp, axis=-1), num_largest)
        if answers == "any":
            record = record._replace(labels=None, right_labels=batch.labels)
        return record

    def extra_results(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Of data with boxes: the mean objectness, and the mean distance of the confidence.

        An example without a box has objectness 0.
        """
        if f"{EXTRA}boxes" not in predictions:
            return {}
        objectness = predictions[f"{EXTRA}objectness"]
        confidence = self._confidence(predictions)
        return {
            "objectness": float(np.mean(objectness, dtype=np.float64)),
            "objectness_deviation": objectness_deviation(confidence, objectness),
        }

    def document(self, predictions: Mapping[str, np.ndarray], data_name: str) -> None:
        return None

    def _confidence(self, predictions: Mapping[str, np.ndarray]) -> Float[np.ndarray, "n"]:
        """The largest probability of each example."""
        logits = predictions["logits"].astype(np.float64)
        total = predictions.get("log_normalizer", special.logsumexp(logits, axis=-1))
        return np.exp(logits.max(axis=-1) - total)


def objectness_deviation(
    confidence: Float[np.ndarray, "n"], objectness: Float[np.ndarray, "n"]
) -> float:
    """The mean distance between confidence and objectness, the share of an image in its boxes.

    Source: "One Size Doesn't Fit All: Adaptive Label Smoothing".
    """
    return float(np.mean(np.abs(confidence - objectness)))

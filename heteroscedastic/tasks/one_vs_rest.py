"""One label per example, under a sigmoid for each class: Table 11 of Collier et al. (2021)."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from heteroscedastic import metrics
from heteroscedastic.batch import Batch
from heteroscedastic.links import Link
from heteroscedastic.tasks.multiclass import Multiclass
from heteroscedastic.tasks.task import NUM_LARGEST, Answers, bounded
from heteroscedastic.training.step import Predictions


class OneVsRest(Multiclass):
    """K binary questions of which one holds; see `Task`."""

    name: str = "one_vs_rest"
    link: Link = "sigmoid"
    _sums = staticmethod(metrics.multiclass_sigmoid)

    def predictions(
        self,
        logits: Float[Array, "*b k"],
        batch: Batch,
        answers: Answers,
        num_largest: int = NUM_LARGEST,
    ) -> Predictions:
        """As of lists of labels: a label stands as a list of one."""
        labels = batch.labels if answers == "any" else batch.labels[..., None]
        record = Predictions(batch.ids, batch.weights, labels, logits)
        record = bounded(record, log_normalizer, num_largest)
        if answers == "any":  # any one is right, so they are no answers of K questions
            record = record._replace(labels=None, right_labels=batch.labels)
        return record

    def _confidence(self, predictions: Mapping[str, np.ndarray]) -> Float[np.ndarray, "n"]:
        return special.expit(predictions["logits"].max(axis=-1).astype(np.float64))


def log_normalizer(logits: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """sum log(1 + exp(logit)): the loss of an example without labels, in nats."""
    return jnp.sum(jax.nn.softplus(logits), axis=-1)

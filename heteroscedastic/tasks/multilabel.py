"""A list of labels per example, under a sigmoid for each class: ImageNet-21k, JFT."""

from typing import Any

from jaxtyping import Array, Float

from heteroscedastic import metrics
from heteroscedastic.batch import Batch
from heteroscedastic.links import LabelForm
from heteroscedastic.tasks.one_vs_rest import OneVsRest, log_normalizer
from heteroscedastic.tasks.task import NUM_LARGEST, Answers, bounded
from heteroscedastic.training.step import Predictions


class Multilabel(OneVsRest):
    """K binary questions of which any number hold; see `Task`."""

    name: str = "multilabel"
    labels: LabelForm = "list"
    stored_labels: LabelForm = "list"
    validation_metrics: tuple[str, ...] = metrics.MULTILABEL
    _sums = staticmethod(metrics.multilabel)

    def evaluation_sums(self, logits: Float[Array, "*b k"], batch: Batch, answers: Answers) -> Any:
        return metrics.ranked_multilabel(logits, batch.labels, batch.weights)

    def predictions(
        self,
        logits: Float[Array, "*b k"],
        batch: Batch,
        answers: Answers,
        num_largest: int = NUM_LARGEST,
    ) -> Predictions:
        record = Predictions(batch.ids, batch.weights, batch.labels, logits)
        return bounded(record, log_normalizer, num_largest)

"""Boxes of an image and their classes, under a softmax over each region: COCO."""

import functools
import importlib.util
import zlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from heteroscedastic import losses
from heteroscedastic.batch import TRUNK_MAPS, Batch
from heteroscedastic.detection import targets as targets_lib
from heteroscedastic.detection.detections import Detections, detections
from heteroscedastic.detection.proposals import is_box
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.links import LabelForm, Link
from heteroscedastic.models.detector import Detector, Regions, canvas_sizes
from heteroscedastic.tasks import coco
from heteroscedastic.tasks.task import NUM_LARGEST, Answers
from heteroscedastic.training.objective import Loss, Mixing, Predictive, Smoothing, Weighting

_HEAD_STD = 0.01  # of the first kernel of the utilities, as in the public code of Faster R-CNN
_ANCHORS, _REGIONS = zlib.crc32(b"anchors"), zlib.crc32(b"regions")


class Losses(NamedTuple):
    """The four losses, of each image or summed over images."""

    classes: Float[Array, "*b"]  # of the regions: the loss of the config
    boxes: Float[Array, "*b"]  # of the regions that are objects
    objectness: Float[Array, "*b"]  # of the anchors
    proposals: Float[Array, "*b"]  # of the boxes of the anchors


class Outputs(NamedTuple):
    """Intermediate values of a batch; fields as in training.objective.Outputs, and the parts."""

    model_state: Any
    targets: Float[Array, "b r k"]
    latent: LatentGaussian  # of the regions
    logits: Float[Array, "b r k"]
    losses: Float[Array, "b"]  # the sum of the parts
    mass: Float[Array, ""]
    parts: Losses


class TrainingSums(NamedTuple):
    """Sums over images of a training step."""

    weight: Float[Array, ""]
    parts: Losses


class EvaluationSums(NamedTuple):
    """Sums over images of an evaluation."""

    weight: Float[Array, ""]
    num_detections: Float[Array, ""]
    num_boxes: Float[Array, ""]  # true ones with an area
    num_degenerate: Float[Array, ""]  # true ones without


class Predictions(NamedTuple):
    """The detections of each image of an evaluation, and what is there; weight 0 stands for none.

    Boxes are in pixels of the stored image, where the data has its size, else of the image as the
    model sees it.
    """

    ids: Int[Array, "b"]
    weights: Float[Array, "b"]
    boxes: Float[Array, "b n 4"]
    scores: Float[Array, "b n"]
    classes: Int[Array, "b n"]  # -1 is padding
    true_boxes: Float[Array, "b m 4"]
    true_classes: Int[Array, "b m"]  # -1 is padding or a box without an area
    true_crowds: Bool[Array, "b m"]  # whether a box is of a crowd, which the evaluation ignores
    true_areas: Float[Array, "b m"]  # in squared pixels: stored, or that of the box
    image_ids: Int[Array, "b"]  # stored, or the ids
    extras: dict[str, Array] = {}  # as of other tasks


class Detection:
    """Which regions of an image are objects, of which class, in which box; see `Task`.

    The data has lists of labels padded with -1, one for each row of `boxes`. Class 0 is the
    background, which no box has. Extras of COCO that are read where the data has them:
    `objects/is_crowd`, `objects/area` and `image/id`.
    """

    name: str = "detection"
    link: Link = "softmax"
    labels: LabelForm = "one"  # of a region
    stored_labels: LabelForm = "list"
    rows: Literal["example", "region"] = "region"
    extras: tuple[str, ...] = ("boxes",)
    modules: tuple[str, ...] = ("backbone", "head", "proposals")
    validation_metrics: tuple[str, ...] = ()

    def model(self, backbone: nn.Module, head: nn.Module, proposals: nn.Module) -> Detector:
        """The model.

        Raises:
          ModuleNotFoundError: pycocotools, which the evaluation requires, is not installed.
        """
        if importlib.util.find_spec("pycocotools") is None:
            raise ModuleNotFoundError(
                "config.task is 'detection', whose evaluation requires pycocotools; install it:"
                ' pip install -e ".[detection]"'
            )
        head = head.clone(kernel_init=nn.initializers.normal(_HEAD_STD))
        return Detector(backbone=backbone, head=head, proposals=proposals)

    @staticmethod
    def objective(
        params: Any,
        model_state: Any,
        batch: Batch,
        key: PRNGKeyArray,
        *,
        model: nn.Module,
        smoothing: Smoothing,
        weighting: Weighting,
        predictive: Predictive,
        loss: Loss,
        class_counts: Float[Array, "k"],
        mixing: Mixing | None = None,
    ) -> tuple[Float[Array, ""], Outputs]:
        """The weighted mean over images of the sum of the four losses.

        The loss of the classes of an image is sum(w l) / sum(w) over its sampled regions. See
        training.objective for the arguments; the schema allows no mixing.
        """
        apply = functools.partial(model.apply, {"params": params, **model_state})
        sizes, boxes, labels = _truth(batch)
        crowds = _crowds(batch)  # are no targets
        boxes, labels = jnp.where(crowds[..., None], 0.0, boxes), jnp.where(crowds, -1, labels)
        proposals, number = model.proposals, len(batch.weights)

        def keys(purpose):
            return jax.random.split(jax.random.fold_in(key, purpose), number)

        maps = batch.extras.get(TRUNK_MAPS)
        trunk = apply(batch.inputs, batch.weights > 0, sizes, maps, method="trunk")
        of_anchors = jax.vmap(
            functools.partial(targets_lib.proposal_losses, number=proposals.num_anchors),
            in_axes=(0, 0, 0, None, 0, 0),
        )(keys(_ANCHORS), *trunk.proposed, trunk.anchors, boxes, sizes)
        proposed = apply(trunk, sizes, train=True, method="proposed")
        expected = jax.vmap(
            functools.partial(targets_lib.region_targets, number=proposals.num_regions)
        )(keys(_REGIONS), proposed, boxes, labels)
        regions = apply(trunk.maps, expected.boxes, sizes, method="regions")

        logits = predictive(key, regions.latent)
        present = jnp.where(is_box(expected.boxes), 1.0, 0.0)
        of_regions = Batch(None, expected.labels, present, jnp.zeros_like(expected.labels), {})
        targets = smoothing(of_regions, len(class_counts))
        values = loss(logits, targets, class_counts)
        weights = present * weighting(targets, class_counts)
        parts = Losses(
            classes=jax.vmap(losses.weighted_mean)(values, weights),
            boxes=jax.vmap(targets_lib.box_loss)(regions.offsets, expected),
            objectness=of_anchors.objectness,
            proposals=of_anchors.boxes,
        )
        totals = sum(parts)
        mass = jnp.sum(batch.weights)
        outputs = Outputs(model_state, targets, regions.latent, logits, totals, mass, parts)
        return losses.weighted_mean(totals, batch.weights), outputs

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        return {"sizes": _sizes(batch)}

    def predicted(self, predictive: Predictive, key: PRNGKeyArray, latent: Regions) -> Detections:
        """The detections of each image, from the regions of the model."""
        probs = jax.nn.softmax(predictive(key, latent.latent), axis=-1)
        return jax.vmap(detections)(probs, latent.offsets, latent.boxes, latent.sizes)

    def training_sums(self, outputs: Outputs, batch: Batch) -> TrainingSums:
        total = functools.partial(losses.weighted_sum, weights=batch.weights)
        return TrainingSums(jnp.sum(batch.weights), Losses(*map(total, outputs.parts)))

    def evaluation_sums(self, logits: Detections, batch: Batch, answers: Answers) -> EvaluationSums:
        _, boxes, labels = _truth(batch)
        labels = jnp.where(_crowds(batch), -1, labels)
        of_rows = (logits.classes > 0, (labels > 0) & is_box(boxes), (labels > 0) & ~is_box(boxes))
        totals = (
            losses.weighted_sum(jnp.sum(x, axis=1).astype(jnp.float32), batch.weights)
            for x in of_rows
        )
        return EvaluationSums(jnp.sum(batch.weights), *totals)

    def means(self, sums: TrainingSums | EvaluationSums) -> dict[str, float]:
        """The losses of a step, or numbers of boxes of each image."""
        weight = max(float(sums.weight), 1e-30)
        if isinstance(sums, TrainingSums):
            return {f"{n}_loss": float(x) / weight for n, x in sums.parts._asdict().items()}
        return {
            "detections": float(sums.num_detections) / weight,
            "boxes": float(sums.num_boxes) / weight,
            "degenerate_boxes": float(sums.num_degenerate),
        }

    def predictions(
        self,
        logits: Detections,
        batch: Batch,
        answers: Answers,
        num_largest: int = NUM_LARGEST,
    ) -> Predictions:
        sizes, boxes, labels = _truth(batch)
        scale = jnp.tile(batch.extras.get("stored_size", sizes) / sizes, (1, 2))[:, None]
        found, true_boxes = logits._replace(boxes=logits.boxes * scale), boxes * scale
        areas = jnp.prod(true_boxes[..., 2:] - true_boxes[..., :2], axis=-1)
        return Predictions(
            batch.ids,
            batch.weights,
            *found,
            true_boxes,
            true_classes=jnp.where(is_box(boxes), labels, -1),
            true_crowds=_crowds(batch),
            true_areas=batch.extras.get("objects/area", areas).astype(jnp.float32),
            image_ids=batch.extras.get("image/id", batch.ids),
        )

    def extra_results(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """AP and AR of COCO, and the reliability of the scores; see coco.py."""
        return coco.metrics(predictions)

    def document(
        self, predictions: Mapping[str, np.ndarray], data_name: str
    ) -> list[dict[str, Any]]:
        """The detections in COCO's result format."""
        return coco.results(predictions, data_name)


def _truth(
    batch: Batch,
) -> tuple[Float[Array, "b 2"], Float[Array, "b m 4"], Int[Array, "b m"]]:
    """The sizes of the images, and their boxes in pixels with labels.

    Raises:
      ValueError: there are no boxes, or not as many as labels.
    """
    if "boxes" not in batch.extras:
        raise ValueError("a split has no boxes; config.task 'detection' needs them in every split.")
    boxes, labels = batch.extras["boxes"], batch.labels
    if boxes.shape[:2] != labels.shape:
        raise ValueError(
            f"an example has {labels.shape[1]} labels and {boxes.shape[1]} boxes; pad both to the"
            " same number, with -1 and rows of zeros; in a stream set data.max_labels and"
            " data.max_boxes to one number."
        )
    canvas = canvas_sizes(batch.inputs)
    return _sizes(batch), boxes * jnp.tile(canvas, (1, 2))[:, None], labels


def _sizes(batch: Batch) -> Float[Array, "b 2"]:
    """Height and width of each image on its canvas, in pixels; an absent one fills it."""
    canvas = canvas_sizes(batch.inputs)
    present = batch.weights[:, None] > 0
    return jnp.where(present, batch.extras.get("image_size", canvas), canvas)


def _crowds(batch: Batch) -> Bool[Array, "b m"]:
    """Whether each box is of a crowd."""
    return batch.extras.get("objects/is_crowd", jnp.zeros(batch.labels.shape, bool)).astype(bool)

"""Detections in COCO's result format, and AP and AR by pycocotools."""

import contextlib
import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from heteroscedastic.calibration import reliability

# Positions in COCOeval.stats: IoU from 0.5 to 0.95, the areas of COCO, 100 boxes an image.
_STATISTICS = {
    "ap": 0,
    "ap50": 1,
    "ap75": 2,
    "ap_small": 3,
    "ap_medium": 4,
    "ap_large": 5,
    "ar100": 8,
}
_NUM_BINS = 15
_IOU_50, _IOU_75 = 0, 5  # positions of thresholds
_RECALLS = np.linspace(0, 1, 101)  # at which AP averages the precision
# Of the 80 classes in the annotation files of COCO; TFDS counts them from 0 without gaps.
_SETS = ("coco", "coco/2014", "coco/2017")
_UNUSED_IDS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
_CATEGORY_IDS = tuple(i for i in range(1, 91) if i not in _UNUSED_IDS)


class Matches(NamedTuple):
    """The detections of an evaluation, matched with true boxes of their class; of all sizes."""

    images: Int[np.ndarray, "d"]  # rows of the evaluation
    classes: Int[np.ndarray, "d"]  # from 0
    scores: Float[np.ndarray, "d"]
    is_hit: Bool[np.ndarray, "d t"]  # at IoU 0.5, 0.55 to 0.95
    is_counted: Bool[np.ndarray, "d t"]  # not in a box of a crowd
    num_boxes: Int[np.ndarray, "n k"]  # true ones of each image and class that are counted


def results(predictions: Mapping[str, np.ndarray], data_name: str) -> list[dict[str, Any]]:
    """The detections in COCO's result format: the image's id, class, box (x, y, w, h) and score.

    A category has its id in the annotation files of COCO where the data is COCO, else the number of
    its class, from 1.

    Args:
      predictions: arrays of tasks.detection.Predictions.
      data_name: of the data set, perhaps with its version.
    """
    entries = _detections(predictions)
    if data_name.partition(":")[0] not in _SETS:
        return entries
    return [e | {"category_id": _CATEGORY_IDS[e["category_id"] - 1]} for e in entries]


def metrics(predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
    """AP and AR as fractions, and the calibration of the scores.

    A metric for which there is no true box, such as `ap_small` without small ones, is left out. A
    detection in a box of a crowd that matches no other box is ignored. `detection_ece` is the
    expected calibration error, in 15 bins, of scores as probabilities that a detection matches a
    true box of its class by an IoU of 0.5; `hit_rate` and `mean_score` are the two means that it
    compares.

    Args:
      predictions: arrays of tasks.detection.Predictions.

    Raises:
      ValueError: two images have the same id.
    """
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        evaluation = _evaluation(predictions)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    values = {name: float(evaluation.stats[i]) for name, i in _STATISTICS.items()}
    values = {name: value for name, value in values.items() if value >= 0}  # -1 stands for none
    found = _matches(evaluation, predictions)
    is_counted = found.is_counted[:, _IOU_50]
    scores = found.scores[is_counted].astype(np.float32)
    hits = found.is_hit[is_counted, _IOU_50].astype(np.float32)
    if len(scores):
        edges = reliability.equal_edges(_NUM_BINS)
        sums = reliability.sums_by_class(scores, hits, np.zeros(len(hits), np.int32), edges, 1)
        values |= {
            "detection_ece": float(reliability.expected_calibration_error(sums)[0]),
            "hit_rate": float(hits.mean(dtype=np.float64)),
            "mean_score": float(scores.mean(dtype=np.float64)),
        }
    return values


def matches(predictions: Mapping[str, np.ndarray]) -> Matches:
    """The detections as pycocotools matches them; see `metrics`."""
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = _evaluation(predictions)
        del evaluation.params.areaRng[1:], evaluation.params.areaRngLbl[1:]
        evaluation.evaluate()
    return _matches(evaluation, predictions)


def average_precision(
    found: Matches, counts: Float[np.ndarray, "r n"]
) -> dict[str, Float[np.ndarray, "r"]]:
    """AP, AP50, AP75 and AR of resamples of the images, as if their list had repeated images.

    Detections of one image, class and score are an exception: the copies of one follow each other.
    A class counts in the resamples that have a box of it; without any box a value is nan.

    Args:
      found: of the images.
      counts: how often each resample has each image.
    """
    thresholds = range(found.is_hit.shape[1])
    precision, recall = (
        np.full((len(counts), found.num_boxes.shape[1], len(thresholds)), np.nan) for _ in range(2)
    )
    for k in range(found.num_boxes.shape[1]):
        num_boxes = counts @ found.num_boxes[:, k]
        has_boxes = num_boxes > 0
        rows = np.flatnonzero(found.classes == k)
        rows = rows[np.argsort(-found.scores[rows], kind="stable")]
        weights = counts[has_boxes][:, found.images[rows]]
        for t in thresholds:
            weight = weights * found.is_counted[rows, t]
            hits = np.flatnonzero(found.is_hit[rows, t] & found.is_counted[rows, t])
            num_hits = np.cumsum(weight[:, hits], axis=1)
            recalls = num_hits / num_boxes[has_boxes, None]
            # Of all detections up to a hit; no other one is the best at its recall.
            precisions = num_hits / np.maximum(np.cumsum(weight, axis=1)[:, hits], 1)
            best = np.maximum.accumulate(precisions[:, ::-1], axis=1)[:, ::-1]
            num_reached = np.searchsorted(_RECALLS, recalls, side="right")
            newly_reached = np.diff(num_reached, prepend=0, axis=1)
            precision[has_boxes, k, t] = np.sum(best * newly_reached, axis=1) / len(_RECALLS)
            recall[has_boxes, k, t] = recalls[:, -1] if len(hits) else 0.0
    means = {
        "ap": precision,
        "ap50": precision[..., [_IOU_50]],
        "ap75": precision[..., [_IOU_75]],
        "ar100": recall,
    }
    return {name: _known_mean(values) for name, values in means.items()}


def _known_mean(values: Float[np.ndarray, "r k t"]) -> Float[np.ndarray, "r"]:
    """The mean of each resample over what is not nan."""
    is_known = ~np.isnan(values)
    number = is_known.sum(axis=(1, 2))
    total = np.where(is_known, values, 0.0).sum(axis=(1, 2))
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _matches(evaluation: Any, predictions: Mapping[str, np.ndarray]) -> Matches:
    """Of the entries of an evaluated COCOeval that are of all areas."""
    all_areas = evaluation.params.areaRng[0]
    row_of = {int(image): row for row, image in enumerate(predictions["image_ids"])}
    class_of = {category: k for k, category in enumerate(evaluation.params.catIds)}
    num_boxes = np.zeros((len(row_of), len(class_of)), np.int64)
    # One row without any detection, so that arrays of none have their shape.
    parts = [([], [], [], np.zeros((0, 10), bool), np.zeros((0, 10), bool))]
    for entry in evaluation.evalImgs:
        if entry is None or entry["aRng"] != all_areas:
            continue
        row, k = row_of[entry["image_id"]], class_of[entry["category_id"]]
        num_boxes[row, k] = np.sum(np.logical_not(entry["gtIgnore"]))
        scores = entry["dtScores"]
        hits, ignored = (np.asarray(entry[n]).T for n in ("dtMatches", "dtIgnore"))
        parts.append(([row] * len(scores), [k] * len(scores), scores, hits > 0, ~(ignored > 0)))
    images, classes, scores, is_hit, is_counted = map(np.concatenate, zip(*parts))
    return Matches(images.astype(int), classes.astype(int), scores, is_hit, is_counted, num_boxes)


def check_ids(image_ids: Int[np.ndarray, "n"]) -> None:
    """Raises a ValueError where two images of an evaluation have one number."""
    ids, counts = np.unique(image_ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"{counts[counts > 1][0]} images of an evaluation have the id {ids[counts > 1][0]}, so"
            " their boxes would be of one image; give each image its own 'image/id', or remove that"
            " name from config.data.extras."
        )


def _evaluation(predictions: Mapping[str, np.ndarray]) -> Any:
    """A COCOeval of the detections; see `metrics`."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    check_ids(predictions["image_ids"])
    images = [{"id": int(image)} for image in predictions["image_ids"]]
    truth = _entries(
        *(predictions[n] for n in ("image_ids", "true_boxes", "true_classes")),
        iscrowd=predictions["true_crowds"].astype(int),
        area=predictions["true_areas"],
    )
    found = [
        entry | {"iscrowd": 0, "area": entry["bbox"][2] * entry["bbox"][3]}
        for entry in _detections(predictions)
    ]
    categories = sorted({entry["category_id"] for entry in (*truth, *found)})

    def indexed(entries):
        index = COCO()
        index.dataset = {
            "images": images,
            "categories": [{"id": number} for number in categories],
            "annotations": [entry | {"id": i} for i, entry in enumerate(entries, start=1)],
        }
        index.createIndex()
        return index

    return COCOeval(indexed(truth), indexed(found), "bbox")


def _detections(predictions: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    names = ("image_ids", "boxes", "classes")
    return _entries(*(predictions[n] for n in names), score=predictions["scores"])


def _entries(
    images: np.ndarray, boxes: np.ndarray, classes: np.ndarray, **fields: np.ndarray
) -> list[dict[str, Any]]:
    """One entry for each box that is not padding, with its class and further fields by box."""
    entries = []
    for image, column in np.argwhere(classes > 0):
        y0, x0, y1, x1 = boxes[image, column].tolist()
        entry = {
            "image_id": int(images[image]),
            "category_id": int(classes[image, column]),
            "bbox": [x0, y0, x1 - x0, y1 - y0],
        }
        entries.append(entry | {name: x[image, column].item() for name, x in fields.items()})
    return entries

"""Detections in COCO's result format, and AP and AR by pycocotools."""

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

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
# Of the 80 classes in the annotation files of COCO; TFDS counts them from 0 without gaps.
_SETS = ("coco", "coco/2014", "coco/2017")
_UNUSED_IDS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
_CATEGORY_IDS = tuple(i for i in range(1, 91) if i not in _UNUSED_IDS)


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
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    ids, counts = np.unique(predictions["image_ids"], return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"{counts[counts > 1][0]} images of an evaluation have the id {ids[counts > 1][0]}, so"
            " their boxes would be of one image; give each image its own 'image/id', or remove that"
            " name from config.data.extras."
        )
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

    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        evaluation = COCOeval(indexed(truth), indexed(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    values = {name: float(evaluation.stats[i]) for name, i in _STATISTICS.items()}
    values = {name: value for name, value in values.items() if value >= 0}  # -1 stands for none
    all_areas = evaluation.params.areaRng[0]
    matched = [e for e in evaluation.evalImgs if e is not None and e["aRng"] == all_areas]
    counted = [~e["dtIgnore"][0] for e in matched]  # at an IoU of 0.5
    scores, hits = (
        np.concatenate([x[mask] for x, mask in zip(values, counted)] or [[]]).astype(np.float32)
        for values in (
            [np.asarray(e["dtScores"]) for e in matched],
            [e["dtMatches"][0] > 0 for e in matched],
        )
    )
    if len(scores):
        edges = reliability.equal_edges(_NUM_BINS)
        sums = reliability.sums_by_class(scores, hits, np.zeros(len(hits), np.int32), edges, 1)
        values |= {
            "detection_ece": float(reliability.expected_calibration_error(sums)[0]),
            "hit_rate": float(hits.mean(dtype=np.float64)),
            "mean_score": float(scores.mean(dtype=np.float64)),
        }
    return values


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

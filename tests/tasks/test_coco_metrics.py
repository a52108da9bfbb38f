"""Average precision worked out by hand on planted faults, and of resampled images."""

import numpy as np
import pytest
from random_detections import random_detections

pytest.importorskip("pycocotools")

from heteroscedastic.calibration import bootstrap
from heteroscedastic.tasks import coco

A, B = [10, 10, 50, 60], [70, 80, 120, 110]  # (y0, x0, y1, x1), areas between 32^2 and 96^2


def predictions(truth, found):
    """Arrays of a predictions file, of one image: (box, class) and (box, class, score)."""
    padded = [*found, *[([0, 0, 0, 0], -1, 0.0)] * (6 - len(found))]
    boxes, classes, scores = (np.array([x]) for x in zip(*padded))
    true_boxes, true_classes = (np.array([x]) for x in zip(*truth, ([0, 0, 0, 0], -1)))
    true_boxes = true_boxes.astype(np.float32)
    return dict(
        image_ids=np.array([7]),
        boxes=boxes.astype(np.float32),
        classes=classes,
        scores=scores.astype(np.float32),
        true_boxes=true_boxes,
        true_classes=true_classes,
        true_crowds=np.zeros(true_classes.shape, bool),
        true_areas=np.prod(true_boxes[..., 2:] - true_boxes[..., :2], axis=-1),
    )


def test_perfect_detections_have_ap_1_and_no_detection_has_ap_0():
    truth = [(A, 1), (B, 2)]
    found = coco.metrics(predictions(truth, [(A, 1, 0.9), (B, 2, 0.4)]))
    for name in ("ap", "ap50", "ap75", "ap_medium", "ar100", "hit_rate"):
        assert found[name] == pytest.approx(1.0), name
    assert not {"ap_small", "ap_large"} & found.keys()  # there is no such box
    # Scores 0.9 and 0.4 that are both right
    assert found["detection_ece"] == pytest.approx((0.1 + 0.6) / 2)
    assert coco.metrics(predictions(truth, []))["ap"] == 0.0


def test_two_images_of_one_id_are_an_error():
    one = predictions([(A, 1)], [(A, 1, 0.9)])
    both = {name: np.concatenate([x, x]) for name, x in one.items()}
    assert coco.metrics(both | {"image_ids": np.array([7, 8])})["ap"] == pytest.approx(1.0)
    with pytest.raises(ValueError, match=r"2 images of an evaluation have the id 7, .*'image/id'"):
        coco.metrics(both)


def test_a_box_of_iou_062_is_right_at_three_of_ten_thresholds():
    y0, x0, y1, x1 = A
    shorter = [y0, x0, y0 + 0.62 * (y1 - y0), x1]
    found = coco.metrics(predictions([(A, 1)], [(shorter, 1, 0.9)]))
    assert found["ap"] == pytest.approx(0.3)
    assert found["ap50"] == pytest.approx(1.0)
    assert found["ap75"] == pytest.approx(0.0)
    assert found["ar100"] == pytest.approx(0.3)
    assert found["hit_rate"] == 1.0  # a hit is one at an IoU of 0.5


def test_a_double_lowers_the_precision_of_what_follows():
    found = coco.metrics(predictions([(A, 1), (B, 1)], [(A, 1, 0.9), (A, 1, 0.8), (B, 1, 0.7)]))
    # Precision 1 at the 51 recalls up to 1/2, then 2/3 at the other 50.
    assert found["ap"] == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert found["hit_rate"] == pytest.approx(2 / 3)
    assert found["mean_score"] == pytest.approx(0.8)


def test_a_wrong_class_misses_its_own_and_ranks_below_the_right_one():
    found = coco.metrics(predictions([(A, 1), (B, 2)], [(A, 1, 0.9), (B, 1, 0.8)]))
    assert found["ap"] == pytest.approx((1 + 0) / 2)
    first = coco.metrics(predictions([(A, 1), (B, 2)], [(A, 1, 0.7), (B, 1, 0.8)]))
    assert first["ap"] == pytest.approx((1 / 2 + 0) / 2)


def test_the_file_is_in_the_format_of_coco_results():
    assert coco.results(predictions([(A, 1)], [(A, 1, 0.5)]), "mine") == [
        {"image_id": 7, "category_id": 1, "bbox": [10.0, 10.0, 50.0, 40.0], "score": 0.5}
    ]


@pytest.mark.parametrize("name", ["coco/2017", "coco/2017:1.1.0", "coco_mask"])
def test_categories_have_the_ids_of_the_annotation_files_where_the_data_is_coco(name):
    # In the order of TFDS: person, stop sign, parking meter, toothbrush.
    classes = [1, 12, 13, 80]
    found = coco.results(predictions([(A, 1)], [(A, k, 0.5) for k in classes]), name)
    expected = classes if name == "coco_mask" else [1, 13, 14, 90]
    assert [entry["category_id"] for entry in found] == expected


def test_a_box_of_a_crowd_is_ignored_and_the_stored_area_decides_the_size():
    arrays = predictions([(A, 1), (B, 1)], [(A, 1, 0.9), (B, 1, 0.8), (B, 1, 0.7)])
    arrays["true_crowds"][0, 1] = True
    arrays["true_areas"][0, 0] = 10.0
    found = coco.metrics(arrays)
    assert found["ap"] == found["ap_small"] == pytest.approx(1.0)
    assert "ap_medium" not in found
    assert (found["hit_rate"], found["mean_score"]) == pytest.approx((1.0, 0.9))


@pytest.mark.parametrize("counts", [(1, 1, 1, 1, 1, 1), (2, 0, 1, 3, 0, 1), (0, 0, 0, 0, 5, 0)])
def test_the_ap_of_a_resample_is_that_of_the_list_with_repeated_images(counts):
    """With crowds, a class that the resample lacks, and ids in another order than the rows."""
    arrays = random_detections(0, 6)
    arrays["image_ids"] = np.array([3, 9, 4, 2, 8, 7])
    arrays["true_classes"][4][arrays["true_classes"][4] == 2] = -1
    rows = np.repeat(np.arange(6), counts)
    repeated = {name: x[rows] for name, x in arrays.items()}
    # A new id for each copy, in the order of the ids.
    new_ids = np.empty(len(rows), int)
    new_ids[np.argsort(repeated["image_ids"], kind="stable")] = np.arange(len(rows))
    expected = coco.metrics(repeated | {"image_ids": new_ids})
    found = coco.average_precision(coco.matches(arrays), np.array([counts, counts], float))
    assert set(found) == {"ap", "ap50", "ap75", "ar100"}
    assert arrays["true_crowds"].any()
    for name, values in found.items():
        assert values == pytest.approx([expected[name]] * 2, abs=1e-12), name


def test_without_a_box_a_resample_has_no_ap():
    arrays = random_detections(1, 2)
    arrays["true_classes"][1] = -1
    found = coco.average_precision(coco.matches(arrays), np.array([[1.0, 1.0], [0.0, 2.0]]))
    assert np.isnan(found["ap"]).tolist() == [False, True]


def simulated(rng, num_images):
    """Matches of images of two boxes, which differ in how many of them are found."""
    difficulty = rng.beta(2, 2, num_images)
    is_found = rng.random((num_images, 2)) < difficulty[:, None]
    images, _ = np.nonzero(is_found)
    others = np.repeat(np.arange(num_images), rng.poisson(1.0, num_images))
    scores = np.concatenate([rng.uniform(0.2, 1, len(images)), rng.uniform(0, 0.8, len(others))])
    is_hit = np.arange(len(scores)) < len(images)
    return coco.Matches(
        np.concatenate([images, others]),
        np.zeros(len(scores), int),
        scores,
        np.tile(is_hit[:, None], 10),
        np.ones((len(scores), 10), bool),
        np.full((num_images, 1), 2),
    )


def test_the_interval_over_resampled_images_covers_the_ap_of_all_images():
    rng, num_images = np.random.default_rng(0), 60

    def ap(found, counts):
        return coco.average_precision(found, counts.astype(float))["ap"]

    (truth,) = ap(simulated(rng, 20_000), np.ones((1, 20_000)))
    (counts,) = bootstrap.resampled_counts(num_images, 200)
    covered, width = [], []
    for _ in range(150):
        found = simulated(rng, num_images)
        (value,) = ap(found, np.ones((1, num_images)))
        interval = bootstrap.corrected_interval(float(value), ap(found, counts))
        covered.append(interval.low <= truth <= interval.high)
        width.append(interval.high - interval.low)
    assert 0.95 - 0.055 < np.mean(covered) < 0.95 + 0.045  # three standard errors
    assert np.mean(width) < 0.25

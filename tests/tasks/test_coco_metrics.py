"""Average precision worked out by hand on planted faults."""

import numpy as np
import pytest

pytest.importorskip("pycocotools")

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

"""Scores of maps against boxes, whose values are known."""

import numpy as np
import pytest
from scipy import ndimage

from heteroscedastic import boxes as boxes_lib
from heteroscedastic.analysis.saliency import localisation

SHAPE = 12, 16
BOXES = np.array([[[0.25, 0.125, 0.75, 0.5], [0, 0, 0, 0]], [[0, 0, 0.5, 0.25], [0.5, 0.5, 1, 1]]])


def filled(boxes, shape=SHAPE):
    """A map that is 1 inside of the boxes and 0 outside of them."""
    maps = np.zeros((len(boxes), *shape), np.float32)
    for map_, rows in zip(maps, boxes, strict=True):
        for y0, x0, y1, x1 in rows * np.tile(shape, 2):
            map_[round(y0) : round(y1), round(x0) : round(x1)] = 1
    return maps


def areas(boxes=BOXES):
    return filled(boxes).mean(axis=(1, 2))


def test_a_map_equal_to_its_box_scores_one_and_its_mirror_image_too():
    for boxes in (BOXES, boxes_lib.mirrored(np, BOXES)):
        maps = filled(boxes)
        found = localisation.scores(maps, boxes)
        np.testing.assert_array_equal(found.pointing, 1)
        np.testing.assert_allclose(found.mass, 1 / areas())
        positive = localisation.THRESHOLDS > 0  # at 0 a map is its entire image
        np.testing.assert_allclose(found.ious[:, positive], 1)
        np.testing.assert_allclose(found.any_ious[:, positive], 1)
        columns = [localisation.best_threshold(found.any_ious, at) for at in localisation.IOUS]
        np.testing.assert_array_equal(
            localisation.max_box_accuracy(found.any_ious, columns), np.ones(2)
        )


def test_scores_of_mirrored_maps_and_boxes_are_the_same():
    maps = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype(np.float32)
    found = localisation.scores(maps, BOXES)
    mirrored = localisation.scores(maps[:, :, ::-1], boxes_lib.mirrored(np, BOXES))
    for a, b in zip(found, mirrored, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_constant_map_scores_its_expected_share():
    maps = np.full((2, 3, 4), 0.7, np.float32)
    for constant in (localisation.resized(maps, SHAPE), np.ones((2, *SHAPE), np.float32)):
        found = localisation.scores(constant, BOXES)
        np.testing.assert_allclose(found.pointing, areas(), rtol=1e-6)
        np.testing.assert_allclose(found.mass, 1, rtol=1e-5)
        image = np.array([[0.0, 0, 1, 1]])
        entire = np.stack([boxes_lib.iou(np, image, b).max() for b in BOXES])
        np.testing.assert_allclose(found.ious, np.repeat(entire[:, None], 50, axis=1), rtol=1e-6)


def test_random_maps_score_as_chance():
    rng = np.random.default_rng(1)
    boxes = np.repeat(BOXES, 150, axis=0)
    found = localisation.scores(rng.random((300, *SHAPE)).astype(np.float32), boxes)
    chance = areas().mean()
    assert found.pointing.mean() == pytest.approx(chance, abs=0.09)  # 3.5 standard errors
    assert found.mass.mean() == pytest.approx(1, abs=0.03)


def test_the_box_is_of_the_largest_component_and_of_pixels_at_or_above_the_threshold():
    map_ = np.zeros((1, 10, 10), np.float32)
    map_[0, 1:3, 1:3] = 1.0  # the peak: four pixels, and most of the mass
    map_[0, 5:7, 4:8] = 0.3  # the larger component
    map_[0, 3, 3] = 1.0  # touches the peak at a corner only
    column = {t: int(np.argmin(np.abs(localisation.THRESHOLDS - t))) for t in (0.2, 0.3, 0.32)}
    assert localisation.THRESHOLDS[column[0.2]] == pytest.approx(localisation.BOX_LEVEL)
    large = np.array([[[0.5, 0.4, 0.7, 0.8]]])
    small = np.array([[[0.1, 0.1, 0.3, 0.3]]])
    found = localisation.scores(map_, large)
    for level, expected in ((0.2, 1.0), (0.3, 1.0), (0.32, 0.0)):
        assert found.ious[0, column[level]] == pytest.approx(expected)
    found = localisation.scores(map_, small)
    assert found.ious[0, column[0.2]] == 0
    assert found.any_ious[0, column[0.2]] == pytest.approx(1)
    assert found.ious[0, column[0.32]] == pytest.approx(1)
    assert found.pointing == pytest.approx(0.8)  # four of five maximal pixels


def labelled(map_, boxes):
    """The best IoU of the largest component and of any, by labelling the mask of each threshold."""
    ious = []
    for threshold in localisation.THRESHOLDS:
        labels, number = ndimage.label(map_ >= threshold * map_.max())
        sizes = np.bincount(labels.ravel(), minlength=number + 1)[1:]
        masses = np.bincount(labels.ravel(), map_.ravel(), minlength=number + 1)[1:]
        spans = ndimage.find_objects(labels)
        corners = np.array([(y.start, x.start, y.stop, x.stop) for y, x in spans])
        best = boxes_lib.iou(np, corners / np.tile(map_.shape, 2), boxes).max(axis=-1)
        ious.append((best[np.lexsort((masses, sizes))[-1]], best.max()))
    return np.array(ious).T


def test_components_are_those_of_each_mask_alone():
    rng = np.random.default_rng(2)
    noise = rng.normal(size=(3, *SHAPE)).astype(np.float32)
    smooth = localisation.resized(noise[:, :3, :4], SHAPE)
    ties = rng.integers(-1, 4, size=(12, *SHAPE)).astype(np.float32)  # of sizes and of masses
    maps = np.concatenate([noise, smooth, smooth + 3, ties])
    corners = np.sort(rng.random((len(maps), 2, 2, 2)), axis=2)
    boxes = corners.reshape(len(maps), 2, 4)
    found = localisation.scores(maps, boxes)
    expected = np.stack([labelled(m, b) for m, b in zip(maps, boxes, strict=True)], axis=1)
    np.testing.assert_array_equal([found.ious, found.any_ious], expected)


def test_negative_values_have_no_mass():
    maps = filled(BOXES) - 0.5
    np.testing.assert_allclose(localisation.scores(maps, BOXES).mass, 1 / areas())


def test_maps_are_resized_between_the_centres_of_places():
    found = localisation.resized(np.array([[[0.0, 1.0]]], np.float32), (1, 8))[0, 0]
    np.testing.assert_allclose(found, [0, 0, 0.125, 0.375, 0.625, 0.875, 1, 1], atol=1e-6)


def test_maps_without_a_positive_value_and_maps_that_are_not_finite_have_no_scores():
    maps = np.stack([np.ones((2, 2)), np.zeros((2, 2)), np.full((2, 2), np.nan), -np.ones((2, 2))])
    maps = np.concatenate([maps, [[[1.0, np.inf], [0, 0]]]])
    found = localisation.is_scorable(maps, (2, 2))
    np.testing.assert_array_equal(found, [True] + 4 * [False])
    # Between the centres of places the neighbours outweigh a small positive value.
    peak = np.full((1, 3, 3), -1.0)
    peak[0, 1, 1] = 0.1
    assert localisation.is_scorable(peak, (3, 3)).all()
    assert not localisation.is_scorable(peak, (6, 6)).any()


def test_the_threshold_is_one_for_the_set_and_that_of_other_images():
    ious = np.zeros((4, 50))
    ious[:3, 7], ious[3, 9] = 0.6, 0.9  # most images at column 7
    columns = [localisation.best_threshold(ious, at) for at in localisation.IOUS]
    assert columns[:2] == [7, 7]
    assert columns[2] == 9
    other = np.zeros((2, 50))
    other[0, 7], other[1, 9] = 0.4, 0.8
    np.testing.assert_allclose(localisation.max_box_accuracy(other, columns), [1 / 3, 1 / 3])


def test_controls_know_nothing_of_the_image():
    maps = np.random.default_rng(0).random((3, 6, 10)).astype(np.float32)
    found = localisation.controls(maps, maps[::-1])
    gaussian = found["centred Gaussian"]
    np.testing.assert_array_equal(gaussian[0], gaussian[0, ::-1, ::-1])
    assert np.unravel_index(gaussian[0].argmax(), (6, 10)) == (2, 4)
    # The same fraction of each side is the same value: the aspect is that of the image.
    square = localisation.centred_gaussian((30, 30))
    assert gaussian[0, 1, 5] == pytest.approx(square[7, 16], rel=1e-5)  # row 0.25, column 0.55
    np.testing.assert_array_equal(found["entire image"], 1)


def test_thirds_have_equal_sizes_in_the_order_of_objectness():
    objectness = np.array([0.9, 0.1, 0.5, 0.3, 0.8, 0.2])
    np.testing.assert_array_equal(localisation.thirds(objectness), [2, 0, 1, 1, 2, 0])


def test_the_intersection_over_the_union_is_that_of_the_areas():
    first = np.array([[0, 0, 0.5, 0.5], [0, 0, 0, 0]])
    second = np.array([[0.25, 0.25, 0.75, 0.75], [0, 0, 0.5, 1], [0.6, 0.6, 1, 1], [0, 0, 0, 0]])
    expected = [[0.0625 / 0.4375, 0.5, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(boxes_lib.iou(np, first, second), expected)
    np.testing.assert_allclose(boxes_lib.iou(np, second, first), np.transpose(expected))


def test_a_map_is_scored_alone_as_among_others():
    maps = np.random.default_rng(3).random((3, *SHAPE)).astype(np.float32)[[0, 0, 1, 0, 2, 2]]
    boxes = np.repeat(BOXES, 3, axis=0)
    together = localisation.scores(maps, boxes)
    for i in range(len(maps)):
        alone = localisation.scores(maps[i : i + 1], boxes[i : i + 1])
        for a, b in zip(alone, together, strict=True):
            np.testing.assert_array_equal(a[0], b[i])

"""Whether maps lie on the objects: scores of each image against its boxes.

A map is compared with boxes at the size of the image; a pixel lies in a box if its centre does.
Objects are often in the middle and large, so the scores of a map say little without those of
`controls`, and a map that does not beat them localises nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.sparse import csgraph

from heteroscedastic import boxes as boxes_lib

BOX_LEVEL = 0.2  # of the maximum of a map, for the box of Zhou et al.
IOUS = (0.3, 0.5, 0.7)  # of MaxBoxAcc
THRESHOLDS = np.linspace(0.0, 0.98, 50)  # BOX_LEVEL is one of them
CHUNK = 256  # maps that are resized at a time
_TIE = 1e-6  # of the largest size of a map: values that differ by less are equal
_GAUSSIAN = 0.25  # standard deviation of the centred Gaussian, of each side


class Scores(NamedTuple):
    """Scores of each map against the boxes of its image."""

    pointing: Float[np.ndarray, "n"]  # share of its maximal pixels that lie in a box
    mass: Float[np.ndarray, "n"]  # share of its positive mass in boxes, over their share of pixels
    ious: Float[np.ndarray, "n t"]  # best IoU of the largest component with a box, by THRESHOLDS
    any_ious: Float[np.ndarray, "n t"]  # the same of the best component


def scores(maps: Float[np.ndarray, "n H W"], boxes: Float[np.ndarray, "n m 4"]) -> Scores:
    """The scores of maps of the size of the images.

    Args:
      maps: finite, with a positive value each; see `is_scorable`.
      boxes: of the right class, with one or more boxes per image; see boxes.py.

    Source: pointing game: Zhang et al. (2016), arXiv:1608.00507, here without its margin of 15
    pixels, and with the expected score where several pixels are maximal. Boxes: Zhou et al. (2016),
    arXiv:1512.04150; components have common sides, not only corners.
    """
    inside = np.stack([_covered(b, m.shape) for m, b in zip(maps, boxes, strict=True)])
    largest = maps.max(axis=(1, 2), keepdims=True)
    tie = _TIE * np.abs(maps).max(axis=(1, 2), keepdims=True)
    is_peak = maps >= largest - tie
    positive = np.maximum(maps, 0).astype(np.float64)
    with np.errstate(invalid="ignore"):  # a box between the centres of pixels: nan
        mass = _share(positive, inside) / inside.mean(axis=(1, 2))
    ious = np.zeros((2, len(maps), len(THRESHOLDS)))
    for i, (map_, rows) in enumerate(zip(maps, boxes, strict=True)):
        if not i or not np.array_equal(map_, maps[i - 1]):  # as of a control of all images
            found = _components(map_)
        best = boxes_lib.iou(np, found.boxes, rows).max(axis=-1)
        ious[:, i] = best[found.stops - 1], np.maximum.reduceat(best, found.starts)
    return Scores(_share(is_peak.astype(np.float64), inside), mass, *ious)


def is_scorable(maps: Float[np.ndarray, "n h w"], shape: tuple[int, int]) -> Bool[np.ndarray, "n"]:
    """Whether each map is finite, and positive somewhere after it is resized.

    A small positive value among negative ones may be lost between the centres of places.
    """
    found = np.isfinite(maps).all(axis=(1, 2))
    rows = np.flatnonzero(found)
    for start in range(0, len(rows), CHUNK):
        chosen = rows[start : start + CHUNK]
        found[chosen] = (resized(maps[chosen], shape) > 0).any(axis=(1, 2))
    return found


def resized(maps: Float[np.ndarray, "n h w"], shape: tuple[int, int]) -> Float[np.ndarray, "n H W"]:
    """The maps at the size of the images, bilinearly between the centres of places.

    A map of 8 x 8 places has no finer detail than that after it is resized.
    """
    return np.asarray(jax.image.resize(maps, (len(maps), *shape), "linear"))


def controls(
    maps: Float[np.ndarray, "n H W"], others: Float[np.ndarray, "n H W"] | None
) -> dict[str, Float[np.ndarray, "n H W"]]:
    """Maps that know nothing of the image: a centred Gaussian, all of it, and another's map.

    Args:
      maps: of the images.
      others: of other images, of which the localisation is that of the set and not of the image;
        None if there are none.

    Source: Choe et al. (2020), arXiv:2001.07437, for the centred Gaussian.
    """
    gaussian = centred_gaussian(maps.shape[1:]).astype(maps.dtype)
    found = {
        "centred Gaussian": np.broadcast_to(gaussian, maps.shape),
        "entire image": np.ones_like(maps),
    }
    return found if others is None else found | {"map of another image": others}


def centred_gaussian(shape: Sequence[int]) -> Float[np.ndarray, "H W"]:
    """1 in the middle, with a standard deviation of a quarter of each side."""
    rows, columns = (np.square((_centres(n) - 0.5) / _GAUSSIAN) for n in shape)
    return np.exp(-0.5 * (rows[:, None] + columns))


def best_threshold(ious: Float[np.ndarray, "n t"], at: float) -> int:
    """The position in THRESHOLDS at which most images have an IoU of at least `at`.

    Choose it on validation examples. A threshold that is chosen on the examples that it is reported
    for makes each map look better, the noisier the more.
    """
    return int(np.argmax((ious >= at).mean(axis=0)))


def max_box_accuracy(
    any_ious: Float[np.ndarray, "n t"], columns: Sequence[int]
) -> Float[np.ndarray, "n"]:
    """The share of IOUS at which each image is right: MaxBoxAcc, version 2, is its mean.

    Args:
      any_ious: `Scores.any_ious`.
      columns: for each of IOUS the position of its threshold, `best_threshold` of other images.

    Source: Choe et al. (2020), arXiv:2007.04178, section 4; there the threshold is chosen on the
    examples that are reported.
    """
    is_right = [any_ious[:, c] >= at for c, at in zip(columns, IOUS, strict=True)]
    return np.mean(is_right, axis=0)


def thirds(objectness: Float[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    """The third of each image, 0 to 2, by the share of its pixels that lie in boxes."""
    order = np.argsort(objectness, kind="stable")
    numbers = np.empty(len(order), int)
    numbers[order] = np.arange(len(order)) * 3 // max(1, len(order))
    return numbers


class _Components(NamedTuple):
    """The connected parts of a map at or above each of THRESHOLDS; pixels have common sides.

    Those of a threshold are from the smallest to the largest; of equal sizes, the one of the
    largest values is last.
    """

    boxes: Float[np.ndarray, "c 4"]  # tight, threshold by threshold
    starts: Int[np.ndarray, "t"]
    stops: Int[np.ndarray, "t"]


def _components(map_: Float[np.ndarray, "H W"]) -> _Components:
    """The components, found for all thresholds at once by their runs.

    A run is consecutive pixels of a row. The masks of the thresholds lie one below the other, with
    an empty row between them and an empty column, so that no runs of two masks touch.
    """
    height, width, num_thresholds = *map_.shape, len(THRESHOLDS)
    values = map_.astype(np.float64)
    levels = np.searchsorted(THRESHOLDS * map_.max(), values, side="right")
    masks = np.zeros((num_thresholds, height + 1, width + 1), bool)
    masks[:, :-1, :-1] = levels > np.arange(num_thresholds)[:, None, None]
    edges = np.flatnonzero(np.diff(masks.ravel(), prepend=False))
    starts, stops = edges[::2].copy(), edges[1::2].copy()
    owners, number = _connected(starts, stops, width + 1)
    row, left = np.divmod(starts, width + 1)
    threshold, top = np.divmod(row, height + 1)
    right = left + stops - starts
    spans = np.stack([left, right], axis=-1) + (top * width)[:, None]
    sums = np.add.reduceat(np.append(values, 0.0), spans.ravel())[::2]
    corners = np.full((2, number), max(map_.shape)), np.zeros((2, number), int)
    for axis, (start, stop) in enumerate([(top, top + 1), (left, right)]):
        np.minimum.at(corners[0][axis], owners, start)
        np.maximum.at(corners[1][axis], owners, stop)
    thresholds = np.empty(number, int)
    thresholds[owners] = threshold
    sizes, masses = (np.bincount(owners, x, number) for x in (stops - starts, sums))
    order = np.lexsort((masses, sizes, thresholds))
    counts = np.bincount(thresholds, minlength=num_thresholds)
    ends = np.cumsum(counts)
    boxes = np.concatenate(corners)[:, order].T / np.tile(map_.shape, 2)
    return _Components(boxes, ends - counts, ends)


def _connected(
    starts: Int[np.ndarray, "r"], stops: Int[np.ndarray, "r"], width: int
) -> tuple[Int[np.ndarray, "r"], int]:
    """The component of each run, and their number; runs touch where they overlap, a row apart.

    Args:
      starts: of the runs in the flat image, in ascending order.
      stops: likewise.
      width: of the image.
    """
    first = np.searchsorted(stops, starts + width, side="right")  # run of the next row
    counts = np.searchsorted(starts, stops + width) - first
    offsets = np.concatenate([[0], np.cumsum(counts)])
    touched = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], counts)
    graph = sparse.csr_array((np.ones(len(touched)), touched, offsets), shape=2 * (len(starts),))
    number, owners = csgraph.connected_components(graph, directed=False)
    return owners, number


def _share(
    values: Float[np.ndarray, "n H W"], inside: Bool[np.ndarray, "n H W"]
) -> Float[np.ndarray, "n"]:
    return (values * inside).sum(axis=(1, 2)) / values.sum(axis=(1, 2))


def _covered(boxes: Float[np.ndarray, "m 4"], shape: tuple[int, ...]) -> Bool[np.ndarray, "H W"]:
    rows, columns = (_centres(n) for n in shape)
    return boxes_lib.covers(np, boxes, rows, columns)


def _centres(number: int) -> Float[np.ndarray, "n"]:
    return (np.arange(number) + 0.5) / number

import io

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures require the extra `analysis`")

from heteroscedastic.analysis.plots import figures, sheet


def images(n=5, channels=3):
    return np.random.default_rng(0).integers(0, 200, (n, 8, 6, channels)).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_is_figure_once_in_order_with_its_caption(channels):
    pixels = images(channels=channels)
    figure = sheet.sheet(pixels, [f"number {i}" for i in range(5)], num_columns=3)
    subplots = [axes for axes in figure.axes if axes.images]
    assert len(subplots) == 5
    for i, axes in enumerate(subplots):
        np.testing.assert_array_equal(
            axes.images[0].get_array(), pixels[i, ..., 0] if channels == 1 else pixels[i]
        )
        assert axes.texts[0].get_text() == f"number {i}"


def test_captions_neither_overlap_nor_leave_the_sheet():
    names = ["Appenzeller sennenhund of a long name\nnot EntleBucher", "b", "c\nd\ne", "f", "g"]
    figure = sheet.sheet(images(), names, title="A title", num_columns=2)
    figure.savefig(io.BytesIO(), format="png", dpi=100)
    boxes = [axes.texts[0].get_window_extent() for axes in figure.axes if axes.images]
    image_boxes = [axes.get_window_extent() for axes in figure.axes if axes.images]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert not any(a.overlaps(b) for a in boxes for b in image_boxes)
    width, height = figure.get_size_inches() * figure.dpi
    assert all(b.x0 >= 0 and b.y0 >= 0 and b.x1 <= width and b.y1 <= height for b in boxes)


def test_one_image_with_more_columns_than_images_is_a_sheet(tmp_path):
    png, svg = figures.write(sheet.sheet(images(1), ["one"], num_columns=9), tmp_path / "one")
    assert png.stat().st_size > 0
    assert "one" in svg.read_text()


def test_opacity_is_not_drawn():
    axes = sheet.sheet(images(channels=4), list("abcde")).axes[0]
    np.testing.assert_array_equal(axes.get_images()[0].get_array(), images(channels=4)[0][..., :3])


@pytest.mark.parametrize(
    ("pixels", "captions", "message"),
    [
        (images(channels=2), "abcde", r"channels\]"),
        (images().astype(np.float32), "abcde", "float32"),
        (np.zeros((5, 64), np.uint8), "abcde", r"\(5, 64\)"),
        (images(), "abc", "3 captions"),
        (images(0), "", "0 images"),
    ],
)
def test_invalid_images_and_missing_captions_are_errors(pixels, captions, message):
    with pytest.raises(ValueError, match=message):
        sheet.sheet(pixels, list(captions))

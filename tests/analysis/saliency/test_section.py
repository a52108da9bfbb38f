"""The section of the report, and cells of maps."""

import re

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="sections hold figures, which require the extra")

from heteroscedastic.analysis.plots import overlays
from heteroscedastic.analysis.report import comparison, page, saliency_section
from heteroscedastic.analysis.report.page import Picture
from heteroscedastic.analysis.saliency import explain
from heteroscedastic.analysis.saliency.explain import Question
from heteroscedastic.runs import loaded_run


def section(data_dir, *runs):
    return saliency_section.doubts(
        comparison.load(comparison.groups(runs), "test", data_dir=data_dir)
    )


def test_it_shows_the_images_with_the_largest_variance_of_the_first_pairs(noisy, plain, data_dir):
    found = section(data_dir, plain, noisy)
    (picture,) = (part for part in found.parts if isinstance(part, Picture))
    notes = " ".join(part for part in found.parts if isinstance(part, str))
    assert "plain is not included, because its head has no noise" in notes
    run = loaded_run.load(noisy, data_dir=data_dir)
    names = run.dataset["class_names"]
    first = picture.numbers[0]
    pair = tuple(names.index(first[x]) for x in ("class", "other"))
    values = explain.explain(run, "test", Question("noise", "integrated", pair)).value
    assert first["variance"] == pytest.approx(values.max(), rel=1e-5)
    assert [x["variance"] for x in picture.numbers[:3]] == pytest.approx(
        np.sort(values)[::-1][:3], rel=1e-5
    )
    html = page.page("title", "", [found])
    assert len(html) < 2**21  # less than 2 MB
    assert "Where it doubts" in html
    for text in re.findall(r"class=\"note\">([^<]*)", html):
        assert text.endswith(".")


def test_a_backbone_without_maps_is_a_note(train, data_dir):
    backbone, chain = dict(name="MLP", widths=(8,)), "value_range(-1, 1)"
    found = section(data_dir, train("mlp_report", "digits_het_diag", chain, backbone=backbone))
    (_, note) = found.parts
    assert "The maps of Diagonal are not available: MLP has no maps; choose" in note


def test_maps_with_a_sign_have_zero_in_the_middle_of_their_colours():
    image = np.zeros((8, 8, 3), np.uint8)
    signed = np.array([[-1.0, 3.0]])
    cells = [
        overlays.Cell(image, None, "image"),
        overlays.Cell(image, signed, "signed"),
        overlays.Cell(image, np.abs(signed), "positive"),
    ]
    figure = overlays.grid([cells, [None, *cells[:2]]], "title")
    (_, positive, other) = (axes.images[-1] for axes in figure.axes[:3])
    assert positive.get_clim() == (-3, 3)
    assert other.get_clim() == (0, 3)
    texts = [axes.texts[0].get_text() if axes.texts else None for axes in figure.axes]
    assert texts == ["image", "signed", "positive", None, "image", "signed"]


@pytest.mark.parametrize(
    "rows", [[], [[]], [[overlays.Cell(np.zeros((2, 2, 1), np.uint8), None, "")], []]]
)
def test_rows_have_cells_and_one_length(rows):
    with pytest.raises(ValueError, match=r"rows have \[.*\] cells; give rows of one length"):
        overlays.grid(rows)

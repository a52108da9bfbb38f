"""Class names are untrusted: no name acts as a formula, as markup or as a line break."""

import csv
import xml.etree.ElementTree as ET

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures require the extra `analysis`")

from heteroscedastic import files
from heteroscedastic.analysis.covariance.examples import ExampleCovariance
from heteroscedastic.analysis.plots import figures, heat_map, panels, sheet
from heteroscedastic.analysis.report import page
from heteroscedastic.calibration.selective import RiskCoverage

HOSTILE = [
    "$x^$",
    "$\\frac{$",
    "_hidden",
    "a\nb\x00\x1b[31m",
    "\ud800",
    "x" * 10_000,
    "漢字 \U0001f600",
    "\u202egnp",
    "<b>&",
]
NAMES = figures.class_names({"class_names": HOSTILE})


def assert_drawn(figure, path):
    png, svg = figures.write(figure, path)
    assert png.stat().st_size > 1000
    ET.fromstring(figures.svg(figure))
    return "".join(ET.parse(svg).getroot().itertext())  # a control character would break it


@pytest.mark.filterwarnings("ignore:Glyph")
def test_a_figure_shows_any_name_literally(tmp_path):
    count = len(HOSTILE)
    rows = [
        {"class": a, "other": b, "correlation": 0.1, "seen": 0.2}
        for i, a in enumerate(NAMES)
        for b in NAMES[i + 1 :]
    ]
    text = assert_drawn(heat_map.group_map(NAMES, rows, "$y^$"), tmp_path / "group")
    for name in ("$x^$", "_hidden", "$y^$", "a\\nb\\x00"):
        assert name in text
    assert "mathrm" not in text  # our own formula is rendered
    image, one = np.zeros((4, 4, 1), np.uint8), np.arange(count)
    example = ExampleCovariance(image, (0, 1), (2,), one, np.full(count, 0.1), np.eye(count))
    assert_drawn(heat_map.example_map(example, NAMES, "$y^$"), tmp_path / "example")
    assert_drawn(
        sheet.sheet(np.zeros((count, 4, 4, 1), np.uint8), NAMES, title="$y^$" * 999),
        tmp_path / "sheet",
    )


def test_a_legend_shows_names_with_an_underscore(tmp_path):
    curve = RiskCoverage(np.array([0.0, 0.5, 1.0]), np.array([0.1, 0.2, 0.3]), 0.2, 0.1)
    text = assert_drawn(
        panels.risk_coverage({"_a": [curve], "$x^$": [curve]}, "title"), tmp_path / "legend"
    )
    assert "_a: area" in text
    assert "$x^$: area" in text


def test_in_a_csv_file_a_name_is_no_formula_and_a_number_stays_a_number(tmp_path):
    names = [
        "=cmd|' /C calc'!A0",
        "+1+1",
        "-x",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "a\nb",
        "-1.5e-3",
        "a=b",
        "",
        "-",
    ]
    files.write_csv(tmp_path / "a.csv", [{"name": name, "value": -0.5} for name in names])
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [
        "'=cmd|' /C calc'!A0",
        "'+1+1",
        "'-x",
        "'@SUM(A1)",
        "\\t=1",
        "\\r=1",
        "a\\nb",
        "-1.5e-3",
        "a=b",
        "",
        "'-",
    ]
    assert [row["name"] for row in rows] == expected
    assert {row["value"] for row in rows} == {"-0.5"}


def test_a_page_and_a_console_show_a_name_on_one_line():
    for name in NAMES:
        assert name.isprintable()
        name.encode()
    assert NAMES[3] == "a\\nb\\x00\\x1b[31m"
    assert page.text("\ud800<b>\x00\nnext") == "\\ud800&lt;b&gt;\\x00\nnext"
    assert len(figures.short_name("x" * 99)) == 22

import base64
import csv
import html.parser
import io
import json
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="pages hold figures, which require the extra `analysis`")

import browser

from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.report import page

_VOID = {"meta", "link", "img", "br"}


class Reader(html.parser.HTMLParser):
    """Tags in order, with their attributes; checks that every tag is closed correctly."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def line():
    with figures.style_context():
        figure = figures.figure(3, 2)
        figure.subplots().plot([0, 1], [1, 0])
    return figure


MARKUP = "<script>alert('&\"</h2>"


def page_with_markup():
    """A page with markup in every text."""
    pixel = np.zeros((2, 2, 1), np.uint8)
    parts = [
        page.paragraph(MARKUP),
        page.note(MARKUP),
        page.table(MARKUP, [MARKUP, "b"], [[MARKUP, MARKUP]]),
        page.Picture("one", MARKUP, MARKUP, MARKUP, line(), {}),
        page.Picture("two", MARKUP, MARKUP, MARKUP, line(), {}),
        page.download(MARKUP, MARKUP, [{MARKUP: MARKUP}]),
        page.sheet([(pixel, MARKUP, MARKUP)]),
        page.details(MARKUP, page.paragraph(MARKUP)),
    ]
    return page.page(
        MARKUP, page.paragraph(MARKUP), [page.Section(MARKUP, parts), page.Section(MARKUP, [])]
    )


def test_text_is_escaped():
    result = Reader(page_with_markup())
    assert not result.all("script")
    assert result.text.count(MARKUP) == 21
    assert {image["alt"] for image in result.all("img")} == {MARKUP}
    assert {link.get("download") for link in result.all("a")} == {None, MARKUP}


def test_everything_is_inside_the_page():
    text = page_with_markup()
    assert all(image["src"].startswith("data:image/") for image in Reader(text).all("img"))
    assert "url(" not in text
    assert not [
        value
        for _, attrs in Reader(text).tags
        for value in attrs.values()
        if value and "//" in value[:10]
    ]


def test_contents_link_to_sections_with_unique_ids():
    result = Reader(page_with_markup())
    ids = [attrs["id"] for _, attrs in result.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    links = [a["href"] for a in result.all("a") if "download" not in a]
    assert {link[1:] for link in links} <= set(ids)
    assert len(result.all("nav")) == len(result.all("main")) == len(result.all("h1")) == 1


def test_consecutive_figures_share_a_row():
    assert page_with_markup().count('<div class="pictures">') == 1


def test_a_png_holds_the_pixels(tmp_path):
    from matplotlib import image as images

    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    (tmp_path / "a.png").write_bytes(figures.png(pixels))
    np.testing.assert_array_equal(
        np.round(255 * images.imread(tmp_path / "a.png")[..., :3]), pixels
    )
    (tmp_path / "a.png").write_bytes(figures.png(pixels[..., :1]))
    np.testing.assert_array_equal(
        np.round(255 * images.imread(tmp_path / "a.png")[..., 0]), pixels[..., 0]
    )


def test_a_file_inside_the_page_has_the_rows():
    rows = [{"id": 3, "label": 'a "b", c'}, {"id": 1, "label": "=1+1"}]
    (link,) = Reader(page.download("rows.csv", "Rows", rows)).all("a")
    kind, _, data = link["href"].partition(";base64,")
    assert kind == "data:text/csv;charset=utf-8"
    assert link["download"] == "rows.csv"
    assert list(csv.DictReader(io.StringIO(base64.b64decode(data).decode()))) == [
        {"id": "3", "label": 'a "b", c'},
        {"id": "1", "label": "'=1+1"},
    ]


def test_what_to_see_stands_first_under_a_picture():
    picture = page.Picture("one", "It falls.", "A line.", "alt", line(), {})
    text = page.page("title", "", [page.Section("A", [picture])])
    assert '<figcaption><p class="finding">It falls.</p>A line.</figcaption>' in text


class Numbers(NamedTuple):
    values: np.ndarray
    share: float


def test_numbers_are_written_beside_the_figures_as_json(tmp_path):
    numbers = {
        "a": Numbers(np.array([1.0, np.nan]), np.float32(0.5)),
        "b": [np.int64(3), None, "x", True],
    }
    sections = [
        page.Section(
            "A", [page.Picture("one", "", "", "", line(), numbers)], {"two": {"c": float("inf")}}
        )
    ]
    written = page.write_beside(sections, tmp_path)
    assert sorted(p.name for p in written) == ["one.json", "one.png", "one.svg", "two.json"]
    result = json.loads((tmp_path / "one.json").read_text())
    assert result == {"a": {"values": [1.0, None], "share": 0.5}, "b": [3, None, "x", True]}
    assert json.loads((tmp_path / "two.json").read_text()) == {"c": None}


def test_a_file_name_has_no_folders():
    assert page.file_name("risk", 0, "het/../full: a<b") == "risk_0_het_.._full_a_b"


@pytest.mark.skipif(browser.CHROMIUM is None, reason=browser.NO_CHROMIUM)
def test_the_browser_check_finds_errors_of_a_page(tmp_path):
    wrong = [
        '<img src="data:image/png;base64,AAAA" alt="broken">',
        '<div style="width: 900px">too wide</div>',
        '<a href="#nowhere">a link to nothing</a>',
        "<script>throw new Error('a script that fails')</script>",
        '<p><img src="missing.png" alt="not inside"></p>',
    ]
    for i, part in enumerate(["", *wrong]):
        (tmp_path / f"{i}.html").write_text(page.page("A page", "", [page.Section("A", [part])]))
    fine, broken, wide, lost, failing, outside = (
        browser.page_facts(tmp_path / f"{i}.html", 375) for i in range(6)
    )
    assert fine["scrolls"] == fine["width"]
    assert fine["console"] == fine["wide"] == fine["images"] == []
    assert [there for _, there in fine["anchors"]] == [True, True]
    assert [loaded for loaded, *_ in broken["images"]] == [False]
    assert wide["scrolls"] > wide["width"]
    assert len(wide["wide"]) == 1
    assert ["a link to nothing", False] in lost["anchors"]
    assert "a script that fails" in failing["console"][0]
    assert [loaded for loaded, *_ in outside["images"]] == [False]


def test_a_column_with_a_long_cell_breaks_its_lines_and_the_others_do_not():
    html = page.table("caption", ["run", "versions", "seed"], [["a", 41 * "x", 1], ["b", "y", 2]])
    assert html.count('<td class="long">') == 2
    assert html.count('<th scope="col" class="long">') == 1
    assert html.count("<td>") == 2
    assert 'class="long"' not in page.table("caption", ["run", "seed"], [[41 * "x", 1]])

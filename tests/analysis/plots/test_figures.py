import pytest

pytest.importorskip("matplotlib", reason="figures require the extra `analysis`")

from heteroscedastic.analysis.plots import figures


def line():
    with figures.style_context():
        figure = figures.figure(3, 2)
        figure.subplots().plot([0, 1], [1, 0], label="falling")
    return figure


def test_a_figure_is_written_as_png_and_as_svg_with_text(tmp_path):
    png, svg = figures.write(line(), tmp_path / "deep" / "a.b")
    assert png.name == "a.b.png"
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<text" in svg.read_text()


@pytest.mark.parametrize("width", [3, 4.6, 6.1, 13.7])
def test_a_png_is_1600_pixels_wide(tmp_path, width):
    with figures.style_context():
        figure = figures.figure(width, 2)
    png, _ = figures.write(figure, tmp_path / "a")
    assert int.from_bytes(png.read_bytes()[16:20], "big") == 1600  # width in the header of a PNG


def test_the_same_figure_has_the_same_bytes(tmp_path):
    first, second = (
        [p.read_bytes() for p in figures.write(line(), tmp_path / name)] for name in "ab"
    )
    assert first == second


def test_a_figure_that_fails_leaves_the_old_file(tmp_path):
    before = figures.write(line(), tmp_path / "a")[0].read_bytes()
    broken = line()
    broken.axes[0].set_title("$\\no such command$", parse_math=True)
    with pytest.raises(ValueError, match="no such"):
        figures.write(broken, tmp_path / "a")
    assert (tmp_path / "a.png").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_an_embedded_svg_has_text_as_paths(tmp_path):
    inside = figures.svg(line())
    assert inside.startswith(b"<?xml")
    assert b"<text" not in inside
    assert inside == figures.svg(line())

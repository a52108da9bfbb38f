"""The style of all figures, and writing them to disk. Requires the extra `analysis`."""

import functools
import io
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import IO, Any

import numpy as np
from jaxtyping import Shaped, UInt8

from heteroscedastic import files

try:
    import matplotlib
    import matplotlib.image
    import matplotlib.patches
    import matplotlib.ticker
    from matplotlib.figure import Figure
except ModuleNotFoundError:  # `check` reports it when a figure is needed
    matplotlib, Figure = None, Any

# Okabe and Ito (2008): distinguishable with any colour vision and in greyscale.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
SEQUENTIAL, DIVERGING = "viridis", "RdBu_r"
_PNG_WIDTH = 1600  # pixels
_STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 100,
    "font.size": 10,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "heteroscedastic",  # the same figure gives the same bytes
}


def check() -> None:
    """Raises a ModuleNotFoundError with installation instructions if matplotlib is missing."""
    if matplotlib is None:
        raise ModuleNotFoundError(
            "figures require matplotlib: pip install matplotlib, or in a checkout"
            ' pip install -e ".[analysis]".'
        )


def style_context(mathematics: bool = False) -> AbstractContextManager:
    """The matplotlib context in which a figure is drawn.

    Args:
      mathematics: whether text between dollar signs is a formula.
    """
    check()
    style = {"axes.prop_cycle": matplotlib.cycler(color=COLORS), "text.parse_math": mathematics}
    return matplotlib.rc_context(_STYLE | style)


def legend_label(name: str) -> str:
    """A name as a legend shows it.

    A leading space protects names that start with an underscore, which matplotlib would hide.
    """
    text = short_name(files.printable(name), 40)
    return f" {text}" if text.startswith("_") else text


def figure(width: float, height: float, **settings: Any) -> Figure:
    """An empty figure with constrained layout, drawn without a display; sizes in inches."""
    return Figure(figsize=(width, height), layout="constrained", **settings)


def write(figure: Figure, path: str | files.Path) -> list[files.Path]:
    """Writes a figure as PATH.png, 1,600 pixels wide, and PATH.svg, each atomically.

    Args:
      figure: the figure.
      path: without a suffix.

    Returns:
      The paths of the files.
    """
    path, written = files.as_path(path), []
    for suffix in ("png", "svg"):
        target = path.with_name(f"{path.name}.{suffix}")
        files.write_atomically(target, functools.partial(_save, figure, suffix))
        written.append(target)
    return written


def _save(figure: Figure, suffix: str, file: IO[bytes] | io.BytesIO, **style: Any) -> None:
    """Draws a figure into a file. The first call determines its layout, which takes longest."""
    settings: dict[str, Any] = {"metadata": {"Date": None}}
    if suffix == "png":  # a little wider, as matplotlib rounds down
        dpi = (_PNG_WIDTH + 0.01) / figure.get_size_inches()[0]
        settings = {"metadata": {"Software": None}, "dpi": dpi}
    with style_context(), matplotlib.rc_context(style):
        figure.savefig(file, format=suffix, **settings)
    figure.set_layout_engine("none")


def svg(figure: Figure) -> bytes:
    """The figure as an SVG file with text as paths, so that no font is required to show it."""
    buffer = io.BytesIO()
    _save(figure, "svg", buffer, **{"svg.fonttype": "path"})
    return buffer.getvalue()


def are_images(inputs: Shaped[np.ndarray, "n ..."]) -> bool:
    """Whether inputs are pixels of 1, 3 or 4 channels, which can be drawn."""
    return inputs.dtype == np.uint8 and inputs.ndim == 4 and inputs.shape[-1] in (1, 3, 4)


def png(image: UInt8[np.ndarray, "h w c"]) -> bytes:
    """An image of 1, 3 or 4 channels as a PNG file with the same pixels."""
    check()
    buffer = io.BytesIO()
    pixels = np.repeat(image, 3, axis=-1) if image.shape[-1] == 1 else image
    matplotlib.image.imsave(buffer, pixels, format="png", metadata={"Software": None})
    return buffer.getvalue()


def can_draw() -> bool:
    """Whether matplotlib is installed; prints a line if it is not."""
    try:
        check()
    except ModuleNotFoundError as error:
        print(f"no figures: {error}")
        return False
    return True


def class_names(description: Mapping[str, Any]) -> list[str]:
    """The class names of dataset.json, each made printable on one line."""
    return [files.printable(str(name)) for name in description["class_names"]]


def short_name(name: str, max_length: int = 22) -> str:
    """A name, shortened to at most `max_length` characters."""
    return name if len(name) <= max_length else name[: max_length - 1].rstrip() + "…"

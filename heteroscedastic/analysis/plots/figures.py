"""How every picture looks, and how it gets to disk. Needs the extra `analysis`."""

import io
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from heteroscedastic import files

try:
    import matplotlib
    import matplotlib.image
    import matplotlib.patches
    import matplotlib.ticker
    from matplotlib.figure import Figure
except ModuleNotFoundError:  # which `check` reports once something is to be drawn
    matplotlib, Figure = None, Any

# Okabe and Ito (2008): told apart with any colour vision, and in grey.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
SEQUENTIAL, DIVERGING = "viridis", "RdBu_r"
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
    "svg.hashsalt": "heteroscedastic",  # the same picture has the same bytes
}


def check() -> None:
    """Raises a ModuleNotFoundError that says what to install where there is no matplotlib."""
    if matplotlib is None:
        raise ModuleNotFoundError(
            'pictures need matplotlib: pip install matplotlib, or in a checkout pip install -e ".[analysis]".'
        )


def styled(mathematics: bool = False) -> AbstractContextManager:
    """The context in which a figure is made.

    Only with `mathematics` is text between dollars a formula.
    """
    check()
    style = {"axes.prop_cycle": matplotlib.cycler(color=COLORS), "text.parse_math": mathematics}
    return matplotlib.rc_context(_STYLE | style)


def label(name: str) -> str:
    """A name, of anybody's making, as a legend shows it: matplotlib would hide one that begins with
    an underscore.
    """
    shown = short(files.printable(name), 40)
    return f" {shown}" if shown.startswith("_") else shown


def figure(width: float, height: float, **settings: Any) -> Figure:
    """An empty figure whose parts do not overlap; sizes in inches. Drawn without a display."""
    return Figure(figsize=(width, height), layout="constrained", **settings)


def write(drawn: Figure, path: str | files.Path) -> list[files.Path]:
    """Writes PATH.png and PATH.svg, each whole or not at all.

    Args:
      drawn: the figure.
      path: without a suffix.

    Returns:
      What was written.
    """
    path, written = files.as_path(path), []
    metadata = {"png": {"Software": None}, "svg": {"Date": None}}
    for suffix, told in metadata.items():
        target = path.with_name(f"{path.name}.{suffix}")
        with styled():
            files.write_atomically(
                target, lambda f, s=suffix, t=told: drawn.savefig(f, format=s, dpi=150, metadata=t)
            )
        written.append(target)
    return written


def svg(drawn: Figure) -> bytes:
    """The figure as one SVG file whose letters are shapes, so that it looks alike where no font of
    it is.
    """
    buffer = io.BytesIO()
    with styled(), matplotlib.rc_context({"svg.fonttype": "path"}):
        drawn.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def png(image: np.ndarray) -> bytes:
    """One image, uint8 [h, w, c] of 1, 3 or 4 channels, as a PNG file of its own pixels."""
    check()
    buffer = io.BytesIO()
    pixels = np.repeat(image, 3, axis=-1) if image.shape[-1] == 1 else image
    matplotlib.image.imsave(buffer, pixels, format="png", metadata={"Software": None})
    return buffer.getvalue()


def can_draw() -> bool:
    """Whether there is matplotlib; where there is not, a line says so."""
    try:
        check()
    except ModuleNotFoundError as error:
        print(f"no pictures: {error}")
        return False
    return True


def class_names(description: Mapping[str, Any]) -> list[str]:
    """The class names of a dataset.json, each of one line; anybody may have written them."""
    return [files.printable(str(name)) for name in description["class_names"]]


def short(name: str, longest: int = 22) -> str:
    """A name of so many letters at most."""
    return name if len(name) <= longest else name[: longest - 1].rstrip() + "…"

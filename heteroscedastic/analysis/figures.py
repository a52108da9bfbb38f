"""How every picture looks, and how it gets to disk. Needs the extra `analysis`."""

import io
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from heteroscedastic import files

try:
    import matplotlib
    import matplotlib.image
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("pictures need matplotlib: pip install 'heteroscedastic[analysis]'.") from error

# Okabe and Ito (2008): told apart with any colour vision, and in grey.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
SEQUENTIAL, DIVERGING = "viridis", "RdBu_r"
_STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": matplotlib.cycler(color=COLORS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 100,
    "font.size": 10,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "heteroscedastic",  # the same picture has the same bytes
}


def styled() -> AbstractContextManager:
    """The context in which a figure is made."""
    return matplotlib.rc_context(_STYLE)


def figure(width: float, height: float, **settings: Any) -> Figure:
    """An empty figure whose parts do not overlap; sizes in inches. Drawn without a display."""
    return Figure(figsize=(width, height), layout="constrained", **settings)


def write(drawn: Figure, path: str | files.Place) -> list[files.Place]:
    """Writes PATH.png and PATH.svg, each whole or not at all.

    Args:
      drawn: the figure.
      path: without a suffix.

    Returns:
      What was written.
    """
    path, written = files.place(path), []
    metadata = {"png": {"Software": None}, "svg": {"Date": None}}
    for suffix, told in metadata.items():
        target = path.with_name(f"{path.name}.{suffix}")
        with styled():
            files.write_whole(target, lambda f, s=suffix, t=told: drawn.savefig(f, format=s, dpi=150, metadata=t))
        written.append(target)
    return written


def svg(drawn: Figure) -> bytes:
    """The figure as one SVG file whose letters are shapes, so that it looks alike where no font of it is."""
    buffer = io.BytesIO()
    with styled(), matplotlib.rc_context({"svg.fonttype": "path"}):
        drawn.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def png(image: np.ndarray) -> bytes:
    """One image, uint8 [h, w, c] of 1, 3 or 4 channels, as a PNG file of its own pixels."""
    buffer = io.BytesIO()
    pixels = np.repeat(image, 3, axis=-1) if image.shape[-1] == 1 else image
    matplotlib.image.imsave(buffer, pixels, format="png", metadata={"Software": None})
    return buffer.getvalue()

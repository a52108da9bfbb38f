import itertools

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures require the extra `analysis`")

from matplotlib.patches import Rectangle

from heteroscedastic.analysis.plots import heat_map


def framed_cells(confusion):
    """The cells with a frame in a heat map of five classes."""
    names = list("abcde")
    rows = [
        {"class": a, "other": b, "correlation": 0.1, "labels_mixed": rate}
        for (a, b), rate in zip(itertools.combinations(names, 2), confusion)
    ]
    axes = heat_map.group_map(names, rows).axes[0]
    frames = [p for p in axes.patches if isinstance(p, Rectangle) and not p.get_fill()]
    return {names[round(p.get_x() + 0.5)] + names[round(p.get_y() + 0.5)] for p in frames}


def test_confused_pairs_are_framed_on_both_sides():
    assert framed_cells([0.4, 0, 0, 0, 0, 0, 0, 0, 0, 0.4]) == {"ab", "ba", "de", "ed"}
    assert framed_cells(np.zeros(10)) == set()


def test_if_all_pairs_are_confused_the_most_confused_are_framed():
    assert framed_cells(np.arange(1, 11) / 100) == {"ce", "ec", "cd", "dc", "de", "ed"}

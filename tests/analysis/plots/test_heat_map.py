import itertools

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="pictures need matplotlib, of the extra `analysis`")

from matplotlib.patches import Rectangle

from heteroscedastic.analysis.plots import heat_map


def framed(mixed):
    """The cells with a frame of a heat map of five classes."""
    names = list("abcde")
    rows = [
        {"class": a, "other": b, "correlation": 0.1, "labels_mixed": share}
        for (a, b), share in zip(itertools.combinations(names, 2), mixed)
    ]
    axes = heat_map.of_group(names, rows).axes[0]
    frames = [p for p in axes.patches if isinstance(p, Rectangle) and not p.get_fill()]
    return {names[round(p.get_x() + 0.5)] + names[round(p.get_y() + 0.5)] for p in frames}


def test_pairs_that_were_mixed_are_framed_on_both_sides():
    assert framed([0.4, 0, 0, 0, 0, 0, 0, 0, 0, 0.4]) == {"ab", "ba", "de", "ed"}
    assert framed(np.zeros(10)) == set()


def test_where_all_pairs_are_mixed_the_most_mixed_are_framed():
    assert framed(np.arange(1, 11) / 100) == {"ce", "ec", "cd", "dc", "de", "ed"}

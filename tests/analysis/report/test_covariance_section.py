"""The section about class pairs with correlated noise."""

import pytest

pytest.importorskip("matplotlib", reason="sections hold figures, which require the extra")

from heteroscedastic.analysis.covariance import summary
from heteroscedastic.analysis.report import covariance_section


def test_the_largest_value_is_found_among_classes_that_share_a_name():
    names = ["crane", "crane", "bird"]
    values = [0.1, -0.9, 0.2]  # of (0, 1), (0, 2) and (1, 2)
    block = [
        {"class": names[i], "other": names[j], "correlation": value}
        for (i, j), value in zip(((0, 1), (0, 2), (1, 2)), values)
    ]
    fields = dict.fromkeys(summary.ClassPairs._fields)
    pairs = summary.ClassPairs(**fields | {"names": names, "block": block, "pairs": block})
    picture = covariance_section._heat_map(pairs, "correlation", "title", 0, "group")
    assert picture.finding == "crane and bird have the value of largest size, -0.9."

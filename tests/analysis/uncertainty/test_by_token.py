"""Calibration of a translator by groups of tokens."""

import numpy as np
import pytest

from heteroscedastic.analysis.uncertainty import by_token
from heteroscedastic.data.text import words


def tokens(n=4000):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.05, 1.0, n)
    predicted, reference = rng.integers(2, 9, (2, n))
    position = rng.integers(0, 60, n)
    return by_token.Tokens(confidence, rng.random(n) < confidence, predicted, reference, position)


COUNTS = np.array([0, 0, 5, 9, 10, 99, 100, 20_000, 0])


def test_the_groups_of_a_kind_have_every_token_once_and_their_own_measures():
    found = by_token.by_token(given := tokens(), COUNTS)
    for kind, groups in found.items():
        total = sum(x["count"] for x in groups.values())
        assert total == len(given.position), kind
        for name in ("accuracy", "confidence"):
            mean = sum(x["count"] * x[name] for x in groups.values()) / total
            assert mean == pytest.approx(found["all"]["all tokens"][name]), kind
    chosen = {
        ("end", "end of sentence"): given.reference == words.END,
        ("position", "0"): given.position == 0,
        ("position", "2 to 4"): (given.position >= 2) & (given.position <= 4),
        ("position", "40 to 1023"): given.position >= 40,
        ("count of the predicted word", "0"): given.predicted == 8,
        ("count of the predicted word", "1 to 9"): np.isin(given.predicted, [2, 3]),
        ("count of the predicted word", "10 to 99"): np.isin(given.predicted, [4, 5]),
        ("count of the reference word", "10,000 and more"): given.reference == 7,
    }
    for (kind, group), own in chosen.items():
        measures = found[kind][group]
        assert measures["count"] == own.sum()
        assert measures["accuracy"] == pytest.approx(given.correct[own].mean())
        bins = np.ceil(given.confidence[own] * 15).astype(int)
        gaps = [
            abs(np.sum((given.confidence[own] - given.correct[own])[bins == b])) for b in range(16)
        ]
        assert measures["ece"] == pytest.approx(sum(gaps) / own.sum(), rel=1e-6)
    assert "1,000 to 9,999" not in found["count of the predicted word"]  # no word has so many
    # These tokens are right as often as they are confident.
    floors = [x["ece"] / x["ece_floor"] for kind in found.values() for x in kind.values()]
    assert np.mean(floors) == pytest.approx(1.0, abs=0.25)


def test_a_run_of_another_task_is_an_error_of_one_line(without_noise, monkeypatch):
    monkeypatch.setattr("sys.argv", ["by_token", f"--run={without_noise}"])
    message = r"^error: .*seed_0 is of the task 'multiclass'; .* Use heteroscedastic by_class\.$"
    with pytest.raises(SystemExit, match=message):
        by_token.main()

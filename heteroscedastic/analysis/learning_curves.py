"""What a run wrote of every stretch of its training: metrics.jsonl as columns."""

from collections.abc import Sequence

import numpy as np

from heteroscedastic import files
from heteroscedastic.training import run_record


def read(run: str | files.Place) -> dict[str, np.ndarray]:
    """Every quantity of metrics.jsonl by its name, one value a line, nan where a line does not tell it.

    Raises:
      FileNotFoundError: the run has no such file.
      ValueError: a line is damaged, or the lines are not those that the run wrote.
    """
    lines = run_record.metrics(files.place(run))
    names = list(dict.fromkeys(name for line in lines for name in line))
    return {name: np.array([float(line.get(name, np.nan)) for line in lines]) for name in names}


def together(curves: Sequence[dict[str, np.ndarray]], name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """A quantity of several runs at the epochs that all of them tell: epochs [t], values [runs, t].

    None where a run does not tell it, or they have no epoch in common.
    """
    told = [{e: v for e, v in zip(c.get("epoch", ()), c.get(name, ())) if not np.isnan(v)} for c in curves]
    epochs = sorted(set.intersection(*(set(t) for t in told))) if told else []
    if not epochs:
        return None
    return np.array(epochs), np.array([[t[e] for e in epochs] for t in told])

"""Cases of a law of which some run with `pytest -m extended` alone."""

import pytest


def mostly_extended(cases, default):
    """The cases of a parametrisation; those that are not in `default` are extended."""
    cases, default = list(cases), list(default)
    assert all(case in cases for case in default), default
    return [case if case in default else _extended(case) for case in cases]


def _extended(case):
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.extended)

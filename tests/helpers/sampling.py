"""Samples of many cases: some run in the ordinary tests, the others with `-m slow`."""

import pytest


def sampled(cases, *ordinary):
    """Parameters for all cases; those that are not named here are slow. A case of several values is a tuple."""
    assert all(case in cases for case in ordinary)
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    marks = [[] if case in ordinary else pytest.mark.slow for case in cases]
    return [pytest.param(*value, marks=mark) for value, mark in zip(values, marks, strict=True)]

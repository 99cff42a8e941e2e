"""What a report is made of: sections, and figures in words.

Knows: how a number, or the course of a figure over rounds, is said.
Does not know: which figures there are, HTML.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from envsched_gnn.eval.metrics import first_and_last


@dataclass(frozen=True, kw_only=True)
class Section:
    """A figure with its title and what one sees in it."""

    title: str
    caption: str
    svgs: tuple[str, ...]
    wide: bool = False


def number(value: float, digits: int = 2) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def trend(values: np.ndarray, what: str, digits: int = 2) -> str:
    """`WHAT was A over the first n rounds and B over the last n.`"""
    first, last, n = first_and_last(values)
    if math.isnan(first) and math.isnan(last):
        return f"{what} was never measured: no group had two rewards."
    if len(values) < 2:
        return f"{what} was {number(last, digits)} in the only round."
    return f"{what} was {number(first, digits)} over the first {n} and {number(last, digits)} over the last {n} rounds."

"""Claims: fixed sentences, each with whether the numbers of a study confirm it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from silodp.tables import markdown_table


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, or of the study, about the numbers.

    Attributes:
        text: the claim, whatever was measured.
        holds: None where too little was measured to decide.
        measured: the figures that decide it.
        paper: the paper's figures for it, if it prints any.
    """

    text: str
    holds: bool | None
    measured: str = ""
    paper: str = ""


def everywhere(text: str, gains: Mapping[str, float], paper: Mapping[str, float] | None = None) -> Claim:
    """A claim that holds where every defined gain is above zero; undefined ones are listed.

    Args:
        gains: by condition, such as {"z = 0.3": 0.1}.
        paper: the paper's gains.
    """
    known = [gain for gain in gains.values() if not math.isnan(gain)]
    return Claim(text, all(gain > 0 for gain in known) if known else None, _gains(gains), _gains(paper or {}))


def rising(text: str, values: Mapping[float, float], digits: int = 2, *, falling: bool = False) -> Claim:
    """A claim that holds where each value is larger (or smaller) than the one before.

    Args:
        values: by z, in ascending order; a single value decides nothing.
    """
    sign = -1 if falling else 1
    holds = all(sign * after > sign * before for before, after in pairwise(values.values()))
    return Claim(text, holds if len(values) > 1 else None, listed(values, digits))


def listed(values: Mapping[float, float], digits: int = 2) -> str:
    """«1.20 at z = 0.3, 1.31 at z = 0.5»."""
    return ", ".join(f"{value:.{digits}f} at z = {z:g}" for z, value in values.items())


def claims_table(claims: Sequence[Claim]) -> str:
    """A Markdown table, with a column for the paper's figures if there are any."""
    header = ["claim", "holds", "measured"]
    rows = [[one.text, _WORDS[one.holds], one.measured or "–"] for one in claims]
    if any(one.paper for one in claims):
        header.append("paper")
        rows = [[*row, one.paper or "–"] for row, one in zip(rows, claims, strict=True)]
    return markdown_table(header, rows)


_WORDS = {True: "yes", False: "no", None: "cannot be said"}


def _gains(gains: Mapping[str, float]) -> str:
    """«2 of 3: +0.100 at z = 0.3, -0.020 at z = 0.5, …»."""
    if not gains:
        return ""
    known = [gain for gain in gains.values() if not math.isnan(gain)]
    each = [
        f"undefined at {where}" if math.isnan(gain) else f"{gain:+.3f} at {where}"
        for where, gain in gains.items()
    ]
    return f"{sum(gain > 0 for gain in known)} of {len(known)}: {', '.join(each)}"

"""Claims: sentences that stay the same, each with whether the numbers of a study confirm it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from silodp.tables import markdown_table


@dataclass(frozen=True)
class Claim:
    """What the paper, or the study itself, says of the numbers.

    Attributes:
        text: the claim, the same whatever was measured.
        holds: None where too little was measured to say.
        measured: the figures that decide it.
        paper: the paper's own figures for it, where it prints any.
    """

    text: str
    holds: bool | None
    measured: str = ""
    paper: str = ""


def everywhere(text: str, gains: Mapping[str, float], paper: Mapping[str, float] | None = None) -> Claim:
    """Holds where every gain is above zero; one that is undefined is named and decides nothing.

    Args:
        gains: by where they were measured, such as {"z = 0.3": 0.1}.
        paper: the paper's.
    """
    known = [gain for gain in gains.values() if not math.isnan(gain)]
    return Claim(text, all(gain > 0 for gain in known) if known else None, _gains(gains), _gains(paper or {}))


def rising(text: str, values: Mapping[float, float], digits: int = 2, *, falling: bool = False) -> Claim:
    """Holds where each value is larger (or smaller) than the one before; one value shows no trend.

    Args:
        values: by z, from the smallest.
    """
    sign = -1 if falling else 1
    holds = all(sign * after > sign * before for before, after in pairwise(values.values()))
    return Claim(text, holds if len(values) > 1 else None, listed(values, digits))


def listed(values: Mapping[float, float], digits: int = 2) -> str:
    """«1.20 at z = 0.3, 1.31 at z = 0.5»."""
    return ", ".join(f"{value:.{digits}f} at z = {z:g}" for z, value in values.items())


def claims_table(claims: Sequence[Claim]) -> str:
    """As Markdown; the paper's figures where there are any."""
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

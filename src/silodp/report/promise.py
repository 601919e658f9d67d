"""What an ε promises to whom: a sense of scale that needs no formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from silodp.runs.wording import show_epsilon

if TYPE_CHECKING:  # it brings PyTorch along
    from silodp.report.reading import Run

FALSE_ALARMS = 0.01


@dataclass(frozen=True)
class Promise:
    """What one ε means for one unit."""

    unit: str
    epsilon: str
    question: str
    strength: str
    detection: str  # empty where ε is infinite
    covers_everything: bool


def strength(epsilon: float) -> str:
    """A sense of scale, said calmly."""
    if math.isinf(epsilon):
        return "none"
    for least, word in ((100, "almost nothing"), (10, "very weak"), (3, "weak"), (1, "moderate")):
        if epsilon > least:
            return word
    return "strong"


def detection(epsilon: float, delta: float) -> float:
    """The most hits of any observer with 1 % false alarms: both lines of the (ε, δ) trade-off."""
    if epsilon > 50:  # e^ε is beyond every scale
        return 1.0
    forward = delta + math.exp(epsilon) * FALSE_ALARMS
    backward = 1 - math.exp(-epsilon) * (1 - delta - FALSE_ALARMS)
    return min(1.0, forward, backward)


def promises(run: Run) -> list[Promise]:
    """Each unit's ε, the hospital first, with what it rules out."""
    statement = run.statement
    if statement is None or (not statement.releases and not statement.unprotected):
        return []
    question = "Was this one part of a hospital's images used, if all the other parts are known?"
    if statement.intermediaries[1] == 1:
        question = "Hospitals were not split here, so an intermediary is the whole hospital."
    elif statement.withdrawn:
        question = f"An intermediary has no ε of its own here: {statement.withdrawn}."
    units = [
        ("a hospital", run.epsilon("hospital"), statement.delta, "Did this hospital take part?"),
        ("an intermediary", run.epsilon("intermediary"), statement.delta, question),
    ]
    if statement.image is not None:
        delta = run.experiment.privacy.image_delta or statement.delta
        units.append(("an image", statement.image, delta, f"Was this one image used? (δ = {delta:g})"))
    return [
        Promise(
            unit,
            show_epsilon(epsilon),
            question,
            strength(epsilon),
            _recognised(detection(epsilon, delta)) if math.isfinite(epsilon) else "",
            not statement.unprotected,
        )
        for unit, epsilon, delta, question in units
    ]


def _recognised(share: float) -> str:
    most = math.ceil(share * 100 - 1e-9)
    return "all 100, as far as ε can tell" if most >= 100 else f"at most {most}"


def chance(delta: float) -> str:
    return f"1 in {1 / delta:,.0f}" if delta <= 0.5 else f"{delta:g}"

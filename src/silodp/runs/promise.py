"""What an ε promises to whom, in words: terminal, model card and pages all take their sentences from here.

The hospital's ε comes first everywhere, and what it does not cover is said beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from silodp.runs.schema import EpsilonRecord, Summary, or_infinite
from silodp.runs.wording import joined_by_and, show_epsilon

if TYPE_CHECKING:
    from silodp.settings import BudgetSettings

FALSE_ALARMS = 0.01
LITTLE = 10  # above about this an ε protects little in the worst case


@dataclass(frozen=True)
class Promise:
    """One ε for one unit, and what it is about."""

    unit: str
    epsilon: float
    delta: float
    question: str

    @property
    def strength(self) -> str:
        return strength(self.epsilon)

    @property
    def recognised(self) -> str:
        """How many of 100 an observer could recognise; empty where ε is infinite."""
        if math.isinf(self.epsilon):
            return ""
        most = math.ceil(detection(self.epsilon, self.delta) * 100 - 1e-9)
        return "all 100, as far as ε can tell" if most >= 100 else f"at most {most}"


def strength(epsilon: float | None) -> str:
    """A sense of scale, said calmly; None, as files have infinity, is no privacy at all."""
    epsilon = or_infinite(epsilon)
    if math.isinf(epsilon):
        return "none"
    for least, word in ((100, "almost nothing"), (LITTLE, "very weak"), (3, "weak"), (1, "moderate")):
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


def chance(delta: float) -> str:
    return f"1 in {1 / delta:,.0f}" if delta <= 0.5 else f"{delta:g}"


def promises(epsilon: EpsilonRecord, delta: float, image_delta: float | None, parts: int) -> list[Promise]:
    """Each unit's ε, the hospital first, with what it rules out.

    Args:
        epsilon: what was spent.
        delta: of the ε for hospitals and intermediaries.
        image_delta: of the ε for an image; None: the same.
        parts: v, the most intermediaries that a hospital was split into.
    """
    question = "Was this one part of a hospital's images used, if all the other parts are known?"
    if epsilon["withdrawn"]:
        question = f"An intermediary has no ε of its own here: {epsilon['withdrawn']}."
    elif parts == 1:
        question = "Hospitals were not split here, so an intermediary is the whole hospital."
    found = [
        Promise("a hospital", or_infinite(epsilon["hospital"]), delta, "Did this hospital take part?"),
        Promise("an intermediary", or_infinite(epsilon["intermediary"]), delta, question),
    ]
    if epsilon["image"] is not None:
        delta = image_delta or delta
        found.append(
            Promise("an image", epsilon["image"], delta, f"Was this one image used? (δ = {delta:g})")
        )
    return found


def promises_in_words(
    epsilon: EpsilonRecord,
    delta: float,
    image_delta: float | None,
    parts: int,
    unprotected: Sequence[str] = (),
) -> list[str]:
    """The same in sentences, for whoever reads no table; `unprotected`: what was used without noise."""
    hospital = or_infinite(epsilon["hospital"])
    if math.isinf(hospital):
        return [
            "Nothing protects the hospitals in this run: it was trained without differential privacy, so ε "
            "is ∞ for a hospital and for every part of it, and the model may say anything about anybody in "
            "its data."
        ]
    little = f"; above about {LITTLE} it protects little in the worst case" if hospital > LITTLE else ""
    sentences = [
        f"ε for a hospital is {show_epsilon(hospital)} (δ = {delta:g}): how much the model may say about "
        f"whether a whole hospital took part. As a formal promise that is {strength(hospital)}{little}."
    ]
    if epsilon["withdrawn"]:
        sentences.append(f"An intermediary has no ε of its own: {epsilon['withdrawn']}.")
    elif parts == 1:
        sentences.append("ε for an intermediary is the same, since hospitals were not split.")
    else:
        sentences.append(
            f"ε for an intermediary, one of the {parts} parts that a hospital's training images are split "
            f"into, is {show_epsilon(epsilon['intermediary'])}. It protects that part, not the hospital."
        )
    if epsilon["image"] is not None:
        sentences.append(
            f"ε for a single image is {show_epsilon(epsilon['image'])} (δ = {image_delta or delta:g})."
        )
    if not epsilon["covers_everything"]:
        names = joined_by_and(unprotected or ["see below"])
        sentences.append(f"Besides, something was used without noise that no ε covers: {names}.")
    return sentences


def neighbours_in_words(epsilon: EpsilonRecord) -> str:
    """What these ε speak of, and what they would be otherwise."""
    swap = epsilon["replace_one"]
    return (
        "These ε are for a unit that takes part or not (add-or-remove). If it is exchanged for another "
        f"(replace-one), they are {show_epsilon(swap['hospital'])} for one hospital and "
        f"{show_epsilon(swap['intermediary'])} for one intermediary (accountant: {epsilon['accountant']})."
    )


def summary_in_words(summary: Summary) -> list[str]:
    """All that a finished run promises."""
    epsilon, delta, image_delta = summary["epsilon"], summary["delta"], summary["image_delta"]
    said = promises_in_words(epsilon, delta, image_delta, summary["intermediaries"])
    return said if math.isinf(or_infinite(epsilon["hospital"])) else [*said, neighbours_in_words(epsilon)]


def adversaries_in_words(
    outside: float | None, coordinator: float | None, another_hospital: float | None
) -> str:
    """ε of a hospital by who looks; None or infinite: no guarantee."""
    shown = [show_epsilon(value) for value in (outside, coordinator, another_hospital)]
    return (
        f"For a hospital ε is {shown[0]} against whoever gets the model and followed the training, "
        f"{shown[1]} against the coordinator, who sees contributions on their way, and {shown[2]} against "
        "another hospital, who knows its own." + (" ∞ is no guarantee at all." if "∞" in shown else "")
    )


def budget_in_words(limit: BudgetSettings, spent: float | None) -> str:
    """What a budget allows, and how much of it is gone; None: without bound."""
    return (
        f"The budget allows ε = {limit.epsilon:,g} for one {limit.unit} ({limit.neighbours} neighbours, "
        f"δ = {limit.delta:g}); {show_epsilon(spent)} of it is spent. "
        "A round that would spend more does not start."
    )

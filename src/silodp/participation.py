"""Who takes part in a round. Absence changes neither the denominator nor the sensitivity."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from silodp.settings import ParticipationSettings


def expected_hospitals(settings: ParticipationSettings, hospitals: int) -> float:
    """How many hospitals the plan expects in a round: public, fixed, whoever comes."""
    if settings.rule == "poisson":
        return settings.rate * hospitals
    if settings.rule == "fraction":
        return max(1, round(settings.rate * hospitals))
    return hospitals


def sampling_rate(settings: ParticipationSettings, hospitals: int) -> float:
    """The chance of one hospital's taking part in a round."""
    return min(1.0, expected_hospitals(settings, hospitals) / hospitals)


def participants(
    settings: ParticipationSettings, hospitals: Sequence[str], generator: torch.Generator
) -> tuple[str, ...]:
    """The hospitals asked this round: everyone, each with a chance, or a fixed number drawn at random."""
    if settings.rule == "poisson":
        chosen = torch.rand(len(hospitals), generator=generator) < settings.rate
        return tuple(name for name, taken in zip(hospitals, chosen.tolist(), strict=True) if taken)
    if settings.rule == "fraction":
        count = int(expected_hospitals(settings, len(hospitals)))
        order = torch.randperm(len(hospitals), generator=generator)[:count]
        return tuple(hospitals[index] for index in sorted(order.tolist()))
    return tuple(hospitals)

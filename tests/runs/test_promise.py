"""The sense of scale that a page gives to an ε."""

import math
from typing import Any

import pytest
from scipy.stats import norm

from silodp.privacy.gaussian import gaussian_epsilon
from silodp.runs.promise import Promise, chance, detection, promises, promises_in_words, strength
from silodp.runs.schema import EpsilonRecord


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-5])
def test_no_observer_of_the_gaussian_mechanism_hits_more(mu: float, delta: float) -> None:
    """The best test of N(0, 1) against N(μ, 1) at 1 % false alarms hits Φ(μ − Φ⁻¹(0.99))."""
    best = norm.cdf(mu - norm.ppf(0.99))
    assert best <= detection(gaussian_epsilon(mu, delta), delta) + 1e-12


def test_closed_forms() -> None:
    assert detection(0.0, 0.0) == pytest.approx(0.01)
    assert detection(1.0, 0.05) == pytest.approx(0.05 + math.e * 0.01)
    assert detection(6.0, 0.1) == pytest.approx(1 - math.exp(-6) * 0.89)
    assert detection(3635.0, 0.1) == 1
    assert detection(math.inf, 0.1) == 1


@pytest.mark.parametrize(
    ("epsilon", "delta", "said"),
    [
        (0.0, 0.0, "at most 1"),  # the false alarms
        (1.0, 0.05, "at most 8"),  # 5 + e, and no more than 7 would be false
        (6.0, 0.1, "all 100, as far as ε can tell"),  # 99.8
        (4.0, 0.1, "at most 65"),  # 64.6
        (math.inf, 0.1, ""),
    ],
)
def test_of_100_at_most_so_many_is_never_too_few(epsilon: float, delta: float, said: str) -> None:
    assert Promise("a hospital", epsilon, delta, "").recognised == said


def test_words_grow_weaker() -> None:
    words = [strength(epsilon) for epsilon in (0.5, 1.0, 2.0, 5.0, 50.0, 101.0, 4000.0, math.inf)]
    assert words == [
        "strong", "strong", "moderate", "weak", "very weak", "almost nothing", "almost nothing", "none",
    ]  # fmt: skip


def test_delta_as_a_chance() -> None:
    assert [chance(delta) for delta in (0.1, 0.01, 0.3)] == ["1 in 10", "1 in 100", "1 in 3"]


SPENT: EpsilonRecord = {
    "hospital": 17.4, "intermediary": 5.3, "replace_one": {"hospital": 59.6, "intermediary": 17.4},
    "accountant": "exact", "covers_everything": True, "withdrawn": "", "image": None, "amplified": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "parts", "says"),
    [
        ({}, 2, "ε for an intermediary, one of the 2 parts that a hospital's training images are split into, "
                "is 5.3. It protects that part, not the hospital."),
        ({"intermediary": 17.4}, 1, "ε for an intermediary is the same, since hospitals were not split."),
        ({"withdrawn": "v changed"}, 1, "An intermediary has no ε of its own: v changed."),
        ({"image": 2.5}, 2, "ε for a single image is 2.5 (δ = 1e-05)."),
        ({"covers_everything": False}, 2, "something was used without noise that no ε covers: a, b and c."),
        ({"hospital": 0.5}, 2, "As a formal promise that is strong."),
        ({"hospital": None}, 2, "trained without differential privacy, so ε is ∞ for a hospital"),
    ],
)  # fmt: skip
def test_the_hospital_comes_first_in_every_case(changes: dict[str, Any], parts: int, says: str) -> None:
    epsilon: EpsilonRecord = SPENT | changes  # type: ignore[typeddict-item, operator]
    said = promises_in_words(epsilon, 0.1, 1e-5, parts, ("a", "b", "c"))
    assert says in " ".join(said)
    first = promises(epsilon, 0.1, 1e-5, parts)[0]
    assert first.unit == "a hospital"
    if changes.get("hospital", 1) is None:
        assert (len(said), first.strength, first.recognised) == (1, "none", "")
    else:
        assert said[0].startswith(f"ε for a hospital is {first.epsilon:g} (δ = 0.1)")
        assert ("protects little in the worst case" in said[0]) == (first.epsilon > 10)

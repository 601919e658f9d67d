"""What an audit could find, against drawn scores judged by the very code that judges federations."""

import math

import numpy as np
import pytest
from test_lower_bound import gaussian_worlds

from silodp.privacy.lower_bound import lower_bound
from silodp.privacy.power import audit_power, detectable


@pytest.mark.parametrize(("mu", "runs"), [(2.0, 500), (2 / 3, 500), (4.0, 500), (2 / 3, 80)])
def test_the_factor_is_noticed_as_often_as_said(mu: float, runs: int) -> None:
    factor = detectable(mu, runs, 0.99)
    assert factor is not None
    chance, audits = np.random.default_rng(5), 400
    noticed = sum(
        lower_bound(*gaussian_worlds(chance, factor * mu, runs), "abc", 0.99).mu > mu for _ in range(audits)
    )
    # 4.5 standard deviations, and two points for what the model leaves out: the choice of a score.
    assert noticed / audits == pytest.approx(0.9, abs=4.5 * math.sqrt(0.9 * 0.1 / audits) + 0.02)


def test_half_the_noise_is_noticed_by_a_default_audit() -> None:
    """By default μ is 2 for a hospital and 2/3 for an intermediary."""
    for mu, least in ((2.0, 0.9999), (2 / 3, 0.99)):
        assert audit_power(mu, 2.0, 500, 0.99) > least
        chance = np.random.default_rng(6)
        for _ in range(20):
            assert lower_bound(*gaussian_worlds(chance, 2 * mu, 500), "abc", 0.99).mu > mu


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_a_true_claim_is_refuted_no_oftener_than_the_confidence_allows(mu: float) -> None:
    assert audit_power(mu, 1.0, 200, 0.99) <= 0.01


def test_more_federations_and_a_smaller_chance_notice_less_missing_noise() -> None:
    factors = [detectable(2.0, runs, 0.99) or math.inf for runs in (50, 200, 1000)]
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] < 1.15
    assert (detectable(2.0, 200, 0.99, 0.5) or math.inf) < factors[1]


def test_claims_beyond_what_perfect_guesses_show_notice_nothing() -> None:
    # 32 right guesses of 32 leave a chance of 0.01^(1/32) = 0.866, which is μ = 2.2.
    assert detectable(2.1, 20, 0.99) is not None
    assert detectable(2.3, 20, 0.99) is None
    assert audit_power(2.3, 100.0, 20, 0.99) == 0

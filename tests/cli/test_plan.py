"""`silodp plan`: what is affordable, by the closed form, and an experiment that keeps to it."""

import math
import tomllib
from pathlib import Path

import pytest
from conftest import command_line, succeed
from scipy.optimize import brentq
from scipy.stats import norm

from silodp import Experiment
from silodp.models.start import parts_of
from silodp.privacy.affordable import most_numbers, noise_in_bounds, signal_over_noise


def mu_for(epsilon: float, delta: float) -> float:
    """Of a Gaussian mechanism, by the trade-off's closed form (Balle and Wang 2018)."""

    def spare(mu: float) -> float:
        first, second = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
        return float(norm.cdf(first) - math.exp(epsilon) * norm.cdf(second)) - delta

    return float(brentq(spare, 1e-3, 50))


@pytest.mark.parametrize(("epsilon", "delta", "hospitals"), [(8.0, 0.1, 6), (8.0, 0.01, 20), (1.0, 0.1, 6)])
def test_signal_over_noise_is_mu_n_over_root_d(epsilon: float, delta: float, hospitals: int) -> None:
    mu = mu_for(epsilon, delta)
    for numbers in (9, 1481, 486_409):
        expected = mu * hospitals / math.sqrt(numbers)
        assert signal_over_noise(epsilon, delta, hospitals, numbers) == pytest.approx(expected, rel=1e-4)
        # The same from a run of T rounds: T·C of signal, √T·z·C·√d/N of noise, whatever T is.
        for rounds in (5, 100):
            z = math.sqrt(rounds) / mu
            noise = math.sqrt(rounds) * noise_in_bounds(z, hospitals, numbers)
            assert rounds / noise == pytest.approx(expected, rel=1e-4)


def test_the_published_limits() -> None:
    """One at d = 348 for six hospitals and 2,399 for twenty, at ε = 8."""
    assert most_numbers(8.0, 0.1, 6) == pytest.approx(348, abs=1)
    assert most_numbers(8.0, 0.01, 20) == pytest.approx(2399, abs=2)


def test_the_table_and_the_experiment(tmp_path: Path) -> None:
    out = tmp_path / "mine.toml"
    done = succeed("plan", "--hospitals", 6, "--epsilon", 2, "--out", out)
    model = Experiment.load("prostate-hospital").model
    for part, numbers in parts_of(model, "segmentation").items():
        ratio = mu_for(2.0, 0.1) * 6 / math.sqrt(numbers)
        line = next(line for line in done.stdout.splitlines() if line.split()[:1] == [part])
        assert line.split()[1:3] == [f"{numbers:,}", f"{ratio:.2f}"]
    assert parts_of(model, "segmentation")["norm+head"] == 1481
    written = Experiment.load(out)
    assert written.budget is not None
    assert (written.budget.epsilon, written.budget.sets_noise) == (2.0, True)
    z = written.resolve(6, 1).privacy.noise_multiplier
    assert math.sqrt(written.rounds) / z == pytest.approx(mu_for(2.0, 0.1), rel=1e-3)
    assert "seed" not in tomllib.loads(out.read_text())  # defaults stay open


def test_few_hospitals_and_a_small_epsilon_are_told_that_it_is_not_worth_it() -> None:
    done = command_line("plan", "--hospitals", 3, "--epsilon", 0.5)
    assert "federation is hardly worth it here" in " ".join(done.stdout.split())

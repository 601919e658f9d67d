"""ε against the paper's figures, scipy and mpmath, for both units."""

import math

import numpy as np
import pytest
from exact_figures import PAPER, PAPER_SPLIT, exact_delta
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from silodp.errors import InputError
from silodp.privacy.accountants import (
    ACCOUNTANTS,
    Accountant,
    Epsilon,
    UnitEpsilon,
    epsilon_bound,
    epsilon_bounds,
    spent,
)
from silodp.privacy.events import NEIGHBOURS, Event, Unit

ROUNDS = 100


def event(z: float, v: int = 1, round_: int = 1, *, protected: bool = True) -> Event:
    kind = "model update" if protected else "median norm"
    return Event(round_, kind, protected, z, v, 1.0, "all", 1.0)  # type: ignore[arg-type]


def rounds(z: float, v: int = 1) -> list[Event]:
    return [event(z, v, number) for number in range(1, ROUNDS + 1)]


def drawn(rule: str, rate: float, z: float, v: int = 1, rounds: int = ROUNDS) -> list[Event]:
    return [Event(t, "model update", True, z, v, 1.0, rule, rate) for t in range(1, rounds + 1)]  # type: ignore[arg-type]


def epsilon_of(events: list[Event], delta: float, accountant: Accountant, unit: Unit = "hospital") -> float:
    """Of one accountant alone: fails if another one had to answer."""
    seen = epsilon_bound(events, delta, unit, "add-or-remove", accountant)
    assert seen.accountant == accountant, seen
    return seen.epsilon


@pytest.mark.parametrize(("z", "delta", "printed"), PAPER)
def test_the_papers_six_figures(z: float, delta: float, printed: float) -> None:
    seen = spent(rounds(z), delta)
    assert round(seen.intermediary, 1) == printed
    assert seen.hospital == seen.intermediary
    assert seen.covers_everything


@pytest.mark.parametrize(("z", "v", "delta", "hospital", "intermediary"), PAPER_SPLIT)
def test_a_hospital_of_v_intermediaries_is_protected_by_z_over_v(
    z: float, v: int, delta: float, hospital: float, intermediary: float
) -> None:
    seen = spent(rounds(z, v), delta)
    assert round(seen.hospital, 1) == hospital
    assert round(seen.intermediary, 1) == intermediary


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_figure_is_amplified_only_where_hospitals_are_drawn_in_secret(accountant: Accountant) -> None:
    """Whoever asks, nothing is secret where everyone takes part, nor where the exact formula answers."""
    assert not spent([event(4.0, 1, t) for t in range(1, 4)], 0.01, accountant).amplified
    drawn_ = spent(drawn("poisson", 0.3, 4.0, 1, 3), 0.01, accountant)
    assert drawn_.amplified == (accountant != "exact")
    assert not spent(drawn("fraction-kept", 0.3, 4.0, 1, 3), 0.01).amplified


def test_unlike_rounds_compose_by_squares() -> None:
    # 1/1² + 1/2² + 1/0.5² = 5.25 for an intermediary; times v² for a hospital of two: 21.
    unlike = [event(1.0, 2), event(2.0, 2), event(0.5, 2)]
    seen = spent(unlike, 1e-3)
    assert spent(unlike[::-1], 1e-3).hospital == pytest.approx(seen.hospital)
    for epsilon, squares in ((seen.intermediary, 5.25), (seen.hospital, 21.0)):
        assert exact_delta(math.sqrt(squares), epsilon) == pytest.approx(1e-3, rel=1e-6)
    assert not seen.withdrawn


def test_where_v_changes_the_hospitals_epsilon_stands_for_an_intermediary() -> None:
    """Another v deals the images out anew, so nobody contributed once to each round: 1 + 4/4 + 4·9 = 38."""
    changing = [event(1.0, 1), event(2.0, 2), event(0.5, 3)]
    seen = spent(changing, 1e-3)
    assert exact_delta(math.sqrt(38.0), seen.hospital) == pytest.approx(1e-3, rel=1e-6)
    assert seen.intermediary == seen.hospital
    assert seen.replace_one.intermediary == seen.replace_one.hospital
    assert "v went from 1 to 3" in seen.withdrawn
    table = epsilon_bounds(changing, 1e-3)
    assert table["intermediary", "add-or-remove"].epsilon == seen.hospital
    assert table["intermediary", "replace-one"].remark == seen.withdrawn
    assert table["hospital", "add-or-remove"].remark == ""
    # A budget for an intermediary hears the same.
    assert epsilon_bound(changing, 1e-3, "intermediary", "add-or-remove").epsilon == seen.hospital


@pytest.mark.parametrize("accountant", ["auto", "rdp", "pld"])
def test_a_fixed_fraction_that_keeps_states_gets_no_amplification(accountant: Accountant) -> None:
    """The bound for drawing without replacement needs rounds without hidden history."""
    fresh = epsilon_bounds(drawn("fraction", 0.1, 16.0, 2, 50), 0.01)["hospital", "replace-one"]
    kept = epsilon_bounds(drawn("fraction-kept", 0.1, 16.0, 2, 50), 0.01, accountant)
    for relation in NEIGHBOURS:
        assert kept["hospital", relation].accountant == "known participation"
    assert kept["hospital", "replace-one"].epsilon > fresh.epsilon


@settings(max_examples=25, deadline=None)
@given(
    multipliers=st.lists(st.floats(0.05, 20), min_size=1, max_size=30),
    extra=st.floats(0.05, 20),
    v=st.integers(1, 20),
)
def test_another_release_never_lowers_epsilon(multipliers: list[float], extra: float, v: int) -> None:
    events = [event(z, v) for z in multipliers]
    before, after = spent(events, 0.01), spent([*events, event(extra, v)], 0.01)
    assert after.hospital >= before.hospital >= before.intermediary
    assert after.intermediary >= before.intermediary


@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_a_thousand_rounds_with_hardly_any_noise_still_have_a_figure(delta: float) -> None:
    epsilon = spent([event(0.01, 20)] * 1000, delta).hospital
    mu = math.sqrt(1000) * 20 / 0.01
    assert epsilon == pytest.approx(mu**2 / 2 + mu * -norm.ppf(delta), rel=1e-6)


def test_a_release_without_noise_is_infinite_whatever_follows() -> None:
    for events in ([event(0.0)], [event(1.0), event(0.0)], [event(0.0), event(1.0)]):
        assert spent(events, 0.1) == Epsilon(math.inf, math.inf, UnitEpsilon(math.inf, math.inf), "exact")


def test_unprotected_events_add_nothing_and_say_so() -> None:
    protected = rounds(1.0, 3)
    seen = spent([*protected, event(0.0, 3, protected=False)], 0.01)
    alone = spent(protected, 0.01)
    assert (seen.hospital, seen.intermediary) == (alone.hospital, alone.intermediary)
    assert alone.covers_everything
    assert not seen.covers_everything


def test_nothing_released_costs_nothing() -> None:
    assert spent([], 0.1) == Epsilon(0.0, 0.0, UnitEpsilon(0.0, 0.0), "exact", covers_everything=True)


@pytest.mark.parametrize(
    ("z", "count", "delta"),
    [(1.0, 100, 0.01), (1.5, 100, 0.1), (4.0, 50, 1e-3), (5.0, 300, 1e-5), (2.0, 1, 0.01)],
)
def test_exact_prv_and_pld_agree_within_one_percent(z: float, count: int, delta: float) -> None:
    events = [event(z, 1, number) for number in range(count)]
    exact = epsilon_of(events, delta, "exact")
    for accountant in ("prv", "pld"):
        assert epsilon_of(events, delta, accountant) == pytest.approx(exact, rel=0.01)
    assert exact * 0.999 <= epsilon_of(events, delta, "rdp") < exact * 1.4


@pytest.mark.parametrize(("rate", "z", "delta"), [(0.3, 1.0, 0.01), (2 / 3, 0.5, 0.1), (0.05, 1.0, 1e-5)])
def test_poisson_sampling_amplifies_and_two_libraries_agree(rate: float, z: float, delta: float) -> None:
    events = drawn("poisson", rate, z)
    prv, pld = epsilon_of(events, delta, "prv"), epsilon_of(events, delta, "pld")
    assert prv == pytest.approx(pld, rel=0.01, abs=0.02)
    assert pld < epsilon_of(events, delta, "rdp") < 1.4 * pld
    assert pld < 0.65 * epsilon_of(events, delta, "exact")


def test_a_large_epsilon_is_beyond_prv_and_the_next_one_says_so() -> None:
    """PRV accountants fail at large ε; the exact formula does not."""
    bound = epsilon_bounds(rounds(1.0, 12), 0.01, "prv")["hospital", "add-or-remove"]
    assert (bound.accountant, round(bound.epsilon, 1)) == ("exact", 7_478.2)
    assert "prv has no answer" in bound.remark
    sampled = epsilon_bounds(drawn("poisson", 0.5, 0.5, 15), 0.1, "prv")["hospital", "add-or-remove"]
    assert sampled.accountant == "pld"


@pytest.mark.parametrize("accountant", ["exact", "pld", "prv", "rdp"])
def test_replacing_is_removing_with_half_the_noise(accountant: Accountant) -> None:
    both = epsilon_bounds([event(4.0, 2, t) for t in range(10)], 0.01, accountant)
    half = epsilon_bounds([event(2.0, 2, t) for t in range(10)], 0.01, accountant)
    for unit in ("hospital", "intermediary"):
        assert both[unit, "replace-one"].epsilon == pytest.approx(
            half[unit, "add-or-remove"].epsilon, rel=1e-3
        )


def hockey_stick(
    p: list[tuple[float, float]], q: list[tuple[float, float]], sigma: float, epsilon: float
) -> float:
    """δ(ε) between two mixtures [(weight, mean), …] of Gaussians of one width, by integration."""

    reach = max(abs(mean) for _, mean in p + q) + 12 * sigma
    x = np.linspace(-reach, reach, 20_001)  # off by a millionth of δ
    first, second = (sum(w * norm.pdf(x, m, sigma) for w, m in side) for side in (p, q))
    return float(np.trapezoid(np.maximum(0.0, first - math.exp(epsilon) * second), x))


def test_intermediaries_of_a_hospital_are_drawn_together_so_one_is_amplified_less() -> None:
    """One round, v = 6 at z = 1, each hospital drawn with chance 0.2. The other five intermediaries show that
    the hospital was drawn, so the figure for intermediaries drawn one by one is a false promise."""
    rate, v, delta = 0.2, 6, 0.05
    with_it, without = [(0.8, 0.0), (0.2, float(v))], [(0.8, 0.0), (0.2, float(v - 1))]
    ours = epsilon_bounds(drawn("poisson", rate, 1.0, v, 1), delta)["intermediary", "add-or-remove"]
    naive = epsilon_bounds(drawn("poisson", rate, 1.0, 1, 1), delta)["intermediary", "add-or-remove"]
    assert ours.accountant == "known participation"
    true_delta = {
        epsilon: max(
            hockey_stick(with_it, without, 1.0, epsilon), hockey_stick(without, with_it, 1.0, epsilon)
        )
        for epsilon in (ours.epsilon, naive.epsilon)
    }
    assert naive.epsilon < ours.epsilon
    assert true_delta[ours.epsilon] <= delta < true_delta[naive.epsilon]


@pytest.mark.parametrize(("rule", "rate"), [("poisson", 0.3), ("fraction", 1 / 3)])
@pytest.mark.parametrize("z", [0.7, 2.0])
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_drawn_hospital_is_promised_no_more_than_is_true(
    rule: str, rate: float, z: float, accountant: Accountant
) -> None:
    """One round against the true divergence: the hospital sends +1, nothing or −1, the others nothing."""
    delta = 0.02
    seen = epsilon_bounds(drawn(rule, rate, z, 1, 1), delta, accountant)
    present, absent, other = ([(1 - rate, 0.0), (rate, mean)] for mean in (1.0, 0.0, -1.0))
    for relation, second in zip(NEIGHBOURS, (absent, other), strict=True):
        epsilon = seen["hospital", relation].epsilon
        for pair in ((present, second), (second, present)):
            assert hockey_stick(*pair, z, epsilon) <= delta * (1 + 1e-3)


def test_update_and_quantile_bits_share_one_draw_of_the_hospitals() -> None:
    """Composed as two draws they would seem to cost less than they do."""
    z, share = 1.0, 0.05
    together, apart = drawn("poisson", 0.3, z), []
    for number in range(1, ROUNDS + 1):
        for kind, part in (("model update", 1 - share), ("clip quantile", share)):
            apart.append(Event(number, kind, True, z / math.sqrt(part), 1, 1.0, "poisson", 0.3))  # type: ignore[arg-type]
    assert spent(apart, 0.01).hospital == pytest.approx(spent(together, 0.01).hospital, rel=1e-6)


@pytest.mark.parametrize(("rate", "z", "v"), [(2 / 3, 0.5, 4), (1 / 6, 1.0, 1), (0.1, 16.0, 2)])
def test_a_fixed_fraction_is_never_worse_than_everyone(rate: float, z: float, v: int) -> None:
    drawn_, everyone = epsilon_bounds(drawn("fraction", rate, z, v), 0.01), epsilon_bounds(rounds(z, v), 0.01)
    for cell, one in drawn_.items():
        assert one.epsilon <= everyone[cell].epsilon
    assert drawn_["hospital", "add-or-remove"].epsilon <= drawn_["hospital", "replace-one"].epsilon


@pytest.mark.parametrize(("asked", "hospitals"), [(1, 10), (3, 20), (17, 101)])
def test_the_bound_without_replacement_counts_a_replaced_hospital_as_moving_twice_as_far(
    asked: int, hospitals: int
) -> None:
    """v = 2, z = 16: a replaced hospital moves the sum by 2·2·C, against noise 16·C."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    library = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(16 / (2 * 2))
    library.compose(dp_accounting.SampledWithoutReplacementDpEvent(hospitals, asked, gaussian), 50)
    rate = asked / hospitals
    seen = epsilon_bounds(drawn("fraction", rate, 16.0, 2, 50), 0.01)["hospital", "replace-one"]
    assert seen.accountant == "rdp"
    assert seen.epsilon == pytest.approx(library.get_epsilon(0.01), rel=0.01)  # other orders
    poisson = epsilon_bounds(drawn("poisson", rate, 16.0, 2, 50), 0.01)["hospital", "add-or-remove"]
    assert seen.epsilon > poisson.epsilon  # no Poisson figure for a draw that is not Poisson


def test_an_accountant_that_answers_infinity_has_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    from opacus.accountants import PRVAccountant

    monkeypatch.setattr(PRVAccountant, "get_epsilon", lambda *_, **__: math.inf)
    bound = epsilon_bounds(rounds(1.25), 0.01, "prv")["hospital", "add-or-remove"]
    assert bound.accountant == "exact"
    assert "infinity" in bound.remark


@settings(max_examples=8, deadline=None)
@given(
    z=st.floats(0.5, 5),
    v=st.integers(1, 8),
    rate=st.floats(0.05, 0.95),
    rule=st.sampled_from(["poisson", "fraction"]),
)
def test_a_hospital_is_never_promised_more_than_its_intermediary(
    z: float, v: int, rate: float, rule: str
) -> None:
    seen = epsilon_bounds(drawn(rule, rate, z, v, 20), 0.01)
    for relation in NEIGHBOURS:
        hospital, part = seen["hospital", relation].epsilon, seen["intermediary", relation].epsilon
        assert hospital >= part * 0.999
    assert seen["hospital", "replace-one"].epsilon >= seen["hospital", "add-or-remove"].epsilon * 0.999


def test_dp_sgd_at_the_hospitals_counts_images_and_hospitals_apart() -> None:
    """Ten rounds, z = 2, five steps of eight images: an image is in one step a round, the hospital in all."""
    events = [
        Event(t, "model update", True, 2.0, 8, None, "all", 1.0, part="image", steps=5) for t in range(1, 11)
    ]
    seen = spent(events, 0.01, image_delta=1e-4)
    assert exact_delta(math.sqrt(10) / 2, seen.image or 0) == pytest.approx(1e-4, rel=1e-6)
    assert exact_delta(8 * math.sqrt(50) / 2, seen.hospital) == pytest.approx(0.01, rel=1e-6)
    assert seen.intermediary == seen.hospital  # nothing is split


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2.0, math.nan])
def test_a_delta_that_is_no_chance_is_refused(delta: float) -> None:
    with pytest.raises(InputError, match=r"delta = .*between 0 and 1"):
        spent(rounds(1.0), delta)


def test_rounds_drawn_by_different_rules_are_refused() -> None:
    with pytest.raises(InputError, match="different rules"):
        spent([*drawn("poisson", 0.3, 1.0), event(1.0, 1, 200)], 0.1)


def test_an_unknown_accountant_is_refused() -> None:
    with pytest.raises(InputError, match="accountant = guess: choose one of auto, exact, pld, prv, rdp"):
        epsilon_bounds(rounds(1.0), 0.1, "guess")  # type: ignore[arg-type]


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_no_accountant_answers_below_nought(accountant: Accountant) -> None:
    for rule, rate in (("all", 1.0), ("poisson", 0.01), ("fraction", 0.1)):
        for one in epsilon_bounds(drawn(rule, rate, 50.0, 1, 5), 0.1, accountant).values():
            assert one.epsilon >= 0


@pytest.mark.parametrize(("z", "rate"), [(0.026, 1.0), (0.02, 0.1)])
def test_prv_is_not_believed_where_its_arithmetic_ends(z: float, rate: float) -> None:
    """One round: e^ε overflows at 709, and PRV then answers too little."""
    bound = epsilon_bounds(drawn("poisson" if rate < 1 else "all", rate, z, 1, 1), 0.01, "prv")
    assert bound["hospital", "add-or-remove"].accountant != "prv"
    assert bound["hospital", "add-or-remove"].epsilon > 800


def test_a_rare_round_with_little_noise_is_answered_at_once() -> None:
    """Most of the loss lies far out; the grid must not follow it at the finest step."""
    bound = epsilon_bounds(drawn("poisson", 0.05, 0.5, 15, 1), 0.1)["hospital", "add-or-remove"]
    assert bound.accountant == "pld"
    assert bound.epsilon < 0.5  # δ exceeds the chance of being drawn

"""Claims: whether they hold follows from the numbers, in both directions and where there are none."""

import math

from silodp.studies.claims import Claim, claims_table, everywhere, rising


def test_a_claim_holds_where_every_gain_is_above_zero() -> None:
    gains = {"z = 0.3": 0.1, "z = 0.5": 0.2}
    assert everywhere("more", gains) == Claim("more", True, "2 of 2: +0.100 at z = 0.3, +0.200 at z = 0.5")
    one = everywhere("more", gains | {"z = 0.7": -0.1}, paper={"z = 0.3": 0.25})
    assert (one.holds, one.paper) == (False, "1 of 1: +0.250 at z = 0.3")
    assert one.measured.startswith("2 of 3: ")
    assert everywhere("more", {"z = 0.3": 0.0}).holds is False


def test_what_is_undefined_is_named_and_decides_nothing() -> None:
    one = everywhere("more", {"z = 0.3": 0.1, "z = 0.5": math.nan})
    assert one == Claim("more", True, "1 of 1: +0.100 at z = 0.3, undefined at z = 0.5")
    assert everywhere("more", {"z = 0.5": math.nan}).holds is None
    assert everywhere("more", {}) == Claim("more", None)


def test_a_trend_needs_two_values_and_all_steps() -> None:
    assert rising("up", {0.3: 1, 0.5: 2, 0.7: 3}) == Claim(
        "up", True, "1.00 at z = 0.3, 2.00 at z = 0.5, 3.00 at z = 0.7"
    )
    assert rising("up", {0.3: 1, 0.5: 3, 0.7: 2}).holds is False
    assert rising("up", {0.3: 1, 0.5: 1}).holds is False
    assert rising("down", {0.3: 2, 0.5: 1}, 3, falling=True) == Claim(
        "down", True, "2.000 at z = 0.3, 1.000 at z = 0.5"
    )
    assert rising("down", {0.3: 1, 0.5: 2}, falling=True).holds is False
    assert rising("up", {0.3: 1}).holds is None


def test_the_table_says_yes_no_or_nothing_and_has_the_papers_figures_where_there_are_any() -> None:
    claims = [Claim("a", True, "1"), Claim("b", False, "2", "3"), Claim("c", None)]
    assert claims_table(claims).splitlines()[2:] == [
        "| a | yes | 1 | – |",
        "| b | no | 2 | 3 |",
        "| c | cannot be said | – | – |",
    ]
    assert claims_table(claims[:1]).startswith("| claim | holds | measured |\n")

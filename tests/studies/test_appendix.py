"""The appendix: hospitals that are drawn, more rounds, more aggregations, and what an attack sees."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_runs import SIZES, fabricate, rows, runs_of, smoke, tell

from silodp.privacy.gaussian import gaussian_delta, gaussian_epsilon
from silodp.studies.appendix_attack import ATTACK
from silodp.studies.appendix_tables import (
    FREQUENCY,
    PLAIN,
    ROUNDS,
    SPLIT,
    SUBSAMPLING,
    better,
    cheaper,
    local_steps,
    longer,
    observed,
)
from silodp.studies.planning import make_plan
from silodp.studies.study import Cell, CellRun

SMALL = make_plan("prostate", "small")
T, Z, DELTA = 2, 0.5, 0.1


def by_kind(folder: Path) -> dict[str, dict[str, str]]:
    return {f"{row['intermediaries']} {row['variant']}".strip(): row for row in rows(folder / "results.csv")}


def test_with_two_thirds_drawn_epsilon_is_the_mixture_over_rounds_taken_part_in() -> None:
    """Four of six hospitals a round: δ(ε) = Σ_k Binomial(2, 2/3; k)·δ_Gauss(√k/z)."""
    found = by_kind(smoke("appendix-subsampling"))
    assert set(found) == {"without", "without two-thirds", "with"}
    drawn = found["without two-thirds"]
    for unit in ("hospital", "intermediary"):
        epsilon = float(drawn[f"epsilon_{unit}"])
        chances = {k: math.comb(T, k) * (2 / 3) ** k * (1 / 3) ** (T - k) for k in range(1, T + 1)}
        delta = sum(chance * gaussian_delta(math.sqrt(k) / Z, epsilon) for k, chance in chances.items())
        assert delta == pytest.approx(DELTA, rel=1e-6)
        assert epsilon < float(found["without"][f"epsilon_{unit}"])


def test_three_times_the_rounds() -> None:
    found = by_kind(smoke("appendix-rounds"))
    assert {key: row["rounds"] for key, row in found.items()} == {
        "without": "2", "with": "2", "without rounds6": "6", "with rounds6": "6",
    }  # fmt: skip
    # Round one only measures with v = 1; the others have v = 2 and count four times.
    whole = gaussian_epsilon(math.sqrt(1 + 4 * 5) / Z, DELTA)
    assert float(found["with rounds6"]["epsilon_hospital"]) == pytest.approx(whole, rel=1e-9)


def test_three_times_as_often_is_three_times_the_rounds_of_a_third_of_an_epoch() -> None:
    assert by_kind(smoke("appendix-frequency"))["without often"]["rounds"] == "6"
    plan = make_plan("prostate", "smoke")
    cell = next(cell for cell in FREQUENCY.cells(plan) if cell.columns["variant"] == "often")
    assert cell.experiment.local.epochs == pytest.approx(1 / 3)


def with_gains(folder: Path, *gains: float) -> list[CellRun]:
    """Runs of appendix-rounds in which intermediaries gain so much at the three z; v is 3."""
    gain = dict(zip(SMALL.noise, gains, strict=True))

    def metrics(cell: Cell) -> dict[str, float]:
        dice = 0.4 + (gain[float(cell.columns["z"])] if cell.columns["intermediaries"] == "with" else 0)
        return {"dice": dice, "iou": dice / 2}

    return fabricate(ROUNDS, SMALL, folder, metrics, lambda _: 3)


@pytest.mark.parametrize(
    ("gains", "holds", "measured"),
    [
        ((0.1, 0.2, 0.3), True, "3 of 3: +0.100 at z = 0.3, +0.200 at z = 0.5, +0.300 at z = 0.7"),
        ((0.1, -0.2, 0.3), False, "2 of 3: +0.100 at z = 0.3, -0.200 at z = 0.5, +0.300 at z = 0.7"),
        ((0.1, math.nan, 0.3), True, "2 of 2: +0.100 at z = 0.3, undefined at z = 0.5, +0.300 at z = 0.7"),
    ],
)
def test_comparisons_stand_beside_the_papers(
    tmp_path: Path, gains: tuple[float, ...], holds: bool, measured: str
) -> None:
    found = with_gains(tmp_path, *gains)
    claim = better(SMALL, found, SPLIT, PLAIN)
    assert (claim.holds, claim.measured) == (holds, measured)
    assert claim.paper.startswith("3 of 3: +0.292 at z = 0.3, +0.408 at z = 0.5")
    assert "nan" not in tell(ROUNDS, tmp_path, SMALL, found).text


def test_what_is_missing_cannot_be_compared(tmp_path: Path) -> None:
    rest = [one for one in with_gains(tmp_path, 1, 1, 1) if one.cell.columns["intermediaries"] == "with"]
    assert better(SMALL, rest, SPLIT, PLAIN).holds is None
    assert cheaper(SMALL, rest, SPLIT, PLAIN).holds is None
    text, _ = tell(ROUNDS, tmp_path, SMALL, rest)
    assert "| DP-FedAvg | – | – | – | – | – | – | 0.414 | 0.293 |" in text


def test_more_rounds_cost_a_hospital_more(tmp_path: Path) -> None:
    """36 rounds and 108: μ = √T/z, three times that for a hospital of three intermediaries."""
    found = with_gains(tmp_path, 0.1, 0.1, 0.1)
    long, long_split = longer(SMALL, False), longer(SMALL, True)
    claim = cheaper(SMALL, found, PLAIN, long)
    assert claim.holds is True
    assert claim.measured.startswith(
        "224.7 instead of 643.4 at z = 0.3; 86.4 instead of 241.7 at z = 0.5; 46.8"
    )
    assert cheaper(SMALL, found, long, PLAIN).holds is False
    whole = [gaussian_epsilon(3 * math.sqrt(rounds) / 0.7, DELTA) for rounds in (36, 108)]
    said = cheaper(SMALL, found, SPLIT, long_split).measured
    assert said.endswith(f"{whole[0]:,.1f} instead of {whole[1]:,.1f} at z = 0.7")


def test_local_work_that_cannot_be_divided_by_three_is_said(tmp_path: Path) -> None:
    """Batches of 8: 24 images make 3 steps a round, three times 1; 40 make 5, three times 2."""
    found = fabricate(FREQUENCY, SMALL, tmp_path / "a", lambda _: {"dice": 0.5, "iou": 0.4})
    text, (*_, claim) = tell(FREQUENCY, tmp_path, SMALL, found)
    assert (claim.holds, claim.measured[:34]) == (False, "another number in 5 of 6 hospitals")
    assert "| H24-1 | 24 | 108 | 108 | +0% |" in text
    assert "| H40-0 | 40 | 180 | 216 | +20% |" in text
    assert SIZES == (40, 24, 29, 25, 40, 83)
    thrice = make_plan("prostate", "small", changes=["local.epochs=3"])
    found = fabricate(FREQUENCY, thrice, tmp_path / "b", lambda _: {"dice": 0.5, "iou": 0.4})
    assert FREQUENCY.results(thrice, found).claims[-1].holds is True
    assert all(before == after for _, before, after in local_steps(thrice, found).values())


def test_who_knows_who_took_part_is_said(tmp_path: Path) -> None:
    found = fabricate(SUBSAMPLING, SMALL, tmp_path, lambda _: {"dice": 0.5, "iou": 0.4})
    drawn = [one for one in found if one.cell.columns["variant"]]
    for name, open_ in (("known participation", True), ("rdp", False)):
        for one in drawn:
            one.summary["epsilon"] |= {"accountant": name, "amplified": not open_}
        claim = observed(SMALL, found)
        assert (claim.holds, claim.measured) == (open_, f"from «{name}»")


def attacked(
    out: Path, ssim: Callable[[Cell], float], control: float | None = 0.7, baseline: float = 0.2
) -> list[CellRun]:
    """Runs with these scores; a control where there is one."""
    found = fabricate(ATTACK, SMALL, out, lambda _: {"dice": 0.5, "iou": 0.3}, lambda _: 7)
    for one in found:
        z, split = one.cell.columns["z"], one.cell.columns["intermediaries"] == "with"
        name = ("intermediaries" if split else "DP-FedAvg") if z else "own network"
        views = {name: {"ssim": ssim(one.cell), "psnr": 11.5, "baseline_ssim": baseline, "images": {}}}
        if control is not None:
            views["control"] = {"ssim": control, "psnr": 20.0, "baseline_ssim": baseline, "images": {}}
        about = {"experiment": "", "cohort": "", "victim": "", "settings": {}}
        about |= {"noise_multiplier": z, "intermediaries": 7}
        (one.folder / "attack").mkdir(exist_ok=True)
        (one.folder / "attack" / "attack.json").write_text(json.dumps(about | {"views": views}))
    return found


def test_the_attacks_table_has_both_epsilons_the_blind_guess_and_the_paper(tmp_path: Path) -> None:
    """36 rounds at z = 0.5: ε = 86.4, and 3,634.7 for a hospital of seven intermediaries."""
    found = attacked(tmp_path / "runs", lambda cell: 0.3 - 0.1 * float(cell.columns["z"]))
    text, _ = tell(ATTACK, tmp_path, SMALL, found)
    assert "| DP-FedAvg + intermediaries | 0.5 | 3,634.7 | 86.4 | 0.250 | 0.200 | 11.5 | – | 0.01 |" in text
    assert "| without privacy, own network | – | ∞ | ∞ | 0.300 | 0.200 | 11.5 | – | – |" in text
    scores = [float(row["ssim"]) for row in rows(tmp_path / "results.csv")]
    assert scores == pytest.approx([0.3, 0.27, 0.27, 0.25, 0.25, 0.23, 0.23])


@pytest.mark.parametrize(
    ("control", "baseline", "works"),
    [(0.7, 0.2, True), (0.3, 0.2, False), (0.6, 0.65, False), (None, 0.2, None)],
)
def test_the_control_works_where_it_sees_much_and_more_than_a_blind_guess(
    tmp_path: Path, control: float | None, baseline: float, works: bool | None
) -> None:
    first = ATTACK.results(SMALL, attacked(tmp_path, lambda _: 0.2, control, baseline)).claims[0]
    assert first.holds is works
    assert control is None or first.measured == f"SSIM {control:.3f}, a blind guess {baseline:.3f}"


@pytest.mark.parametrize(("ssim", "gain"), [(0.25, "+0.050"), (0.15, "-0.050")])
def test_what_noise_leaves_is_counted_from_the_blind_guess(tmp_path: Path, ssim: float, gain: str) -> None:
    claim = ATTACK.results(SMALL, attacked(tmp_path, lambda _: ssim)).claims[2]
    assert claim.text.startswith("DP-FedAvg + intermediaries")
    assert (claim.holds, f"{gain} at z = 0.5" in claim.measured) == (ssim > 0.2, True)


def test_every_attack_has_the_views_that_its_row_needs() -> None:
    def views(folder: str) -> dict[str, set[str]]:
        return {
            one.cell.experiment.name: set(
                json.loads((one.folder / folder / "attack.json").read_text())["views"]
            )
            for one in runs_of("appendix-attack")
        }

    assert views("attack") == {
        "fedavg-no-privacy-seed0": {"control", "own network"},
        "fedavg-z0.5-seed0": {"DP-FedAvg"},
        "fedavg-z0.5-split-seed0": {"intermediaries"},
    }
    assert views("attack-wide") == {
        "fedavg-no-privacy-seed0": {"own network"},
        "fedavg-z0.5-seed0": {"own DP-FedAvg"},
        "fedavg-z0.5-split-seed0": {"own intermediaries"},
    }

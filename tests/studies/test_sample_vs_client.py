"""The study of section 2.3 at its smallest: every file is there and says what the closed forms say."""

import csv
import math
from pathlib import Path

import pytest

from silodp import InputError
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.studies.sample_vs_client import SCALES, experiments, run
from silodp.studies.sample_vs_client_output import Drift

SMOKE = SCALES["smoke"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, int, int]]]:
    seen: list[tuple[str, int, int]] = []
    out = run("smoke", tmp_path_factory.mktemp("study") / "new", on_progress=lambda *part: seen.append(part))
    return out, seen


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_it_writes_every_file_and_tells_how_far_it_is(
    study: tuple[Path, list[tuple[str, int, int]]],
) -> None:
    out, seen = study
    assert {path.name for path in out.iterdir()} == {
        "results.csv", "drift.csv", "table.md", "drift.svg", "drift.png", "runs",
    }  # fmt: skip
    assert [done for _, done, _ in seen] == list(range(1, seen[-1][2] + 1))
    assert (out / "drift.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (out / "drift.svg").read_text()


def test_epsilons_are_the_closed_forms(study: tuple[Path, list[tuple[str, int, int]]]) -> None:
    """z = 0.5, three rounds, δ 0.1 for six hospitals and 0.01 for sixty images."""
    rows = {row["run"]: row for row in lines(study[0] / "results.csv")}
    assert set(rows) == set(experiments(SMOKE, 0))
    client, sample = rows["client-level DP"], rows["sample-level DP"]
    rounds = math.sqrt(SMOKE.rounds)
    assert float(client["epsilon_hospital"]) == pytest.approx(gaussian_epsilon(rounds / 0.5, 0.1))
    assert float(client["epsilon_image"]) == pytest.approx(gaussian_epsilon(2 * rounds / 0.5, 0.01))
    assert float(sample["epsilon_image"]) == pytest.approx(gaussian_epsilon(rounds / 0.5, 0.01))
    hospital = gaussian_epsilon(4 * math.sqrt(SMOKE.rounds * 6) / 0.5, 0.1)  # 21 images: 6 batches, at most 4
    assert float(sample["epsilon_hospital"]) == pytest.approx(hospital)
    assert math.isinf(float(rows["without privacy"]["epsilon_hospital"]))
    assert all(0 <= float(row["dice"]) <= 1 for row in rows.values())


def test_one_step_drifts_as_far_as_the_law_says(study: tuple[Path, list[tuple[str, int, int]]]) -> None:
    """After one step from the same start the drift is the noise itself, of length √d·σ within √(2/d)."""
    rows = lines(study[0] / "drift.csv")
    first = [row for row in rows if row["t"] == "1"]
    assert {row["level"] for row in first} == {"sample", "client"}
    for row in first:
        assert float(row["drift"]) == pytest.approx(float(row["law"]), rel=0.04)
    sample = [row for row in rows if row["level"] == "sample"]
    assert len(sample) == SMOKE.local_steps * SMOKE.repetitions
    assert len({row["drift"] for row in sample}) == len(sample)  # other noise in each repetition
    last = max(float(row["law"]) for row in sample)
    assert last == pytest.approx(float(sample[0]["law"]) * math.sqrt(SMOKE.local_steps), rel=1e-4)


def test_the_table_says_what_the_files_hold(study: tuple[Path, list[tuple[str, int, int]]]) -> None:
    text = (study[0] / "table.md").read_text()
    rows = {row["run"]: row for row in lines(study[0] / "results.csv")}
    assert text.index("ε of a hospital") < text.index("ε of an intermediary") < text.index("ε of an image")
    for name in ("without privacy", "client-level DP", "sample-level DP"):
        assert f"| {name} | {float(rows[name]['dice']):.3f} |" in text
    assert "grows like t^" in text


def test_the_exponent_is_that_of_a_power_law() -> None:
    for power in (0.5, 0.8):
        paths = [[factor * number**power for number in range(1, 30)] for factor in (1.0, 3.0)]
        assert Drift("sample", "round", paths, paths[0], paths[0]).exponent == pytest.approx(power)


def test_a_used_folder_and_an_unknown_scale_are_refused(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        run("smoke", tmp_path)
    with pytest.raises(InputError, match="smoke, small"):
        run("huge", tmp_path / "new")  # type: ignore[arg-type]

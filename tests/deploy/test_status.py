"""What is so now, by files alone: a hospital's own view, the coordinator's, and what needs a person."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import command_line
from network import Federation, Killed, priced

from silodp import Experiment
from silodp.deploy.coordinator_status import coordinator_status
from silodp.deploy.limits import Limits
from silodp.deploy.page_views import coordinator_view
from silodp.deploy.status import MOST_REFUSALS, site_status
from silodp.errors import InputError
from silodp.runs.folder import RunFolder
from silodp.runs.statement import read_statement

NAME = "hospital-0"
OWN = Limits(epsilon=5.0)  # as site.toml of a kit has it, but for ε


@pytest.fixture(scope="module")
def tiny(experiment: Experiment) -> Experiment:
    return priced(experiment)


@pytest.fixture
def hospitals(tmp_path: Path) -> Federation:
    return Federation(tmp_path, OWN)


@pytest.fixture
def kit(hospitals: Federation, tmp_path: Path) -> Path:
    place = hospitals.kit(tmp_path / "kit")
    for path in place.glob("hospitals/*/site.toml"):
        path.write_text(path.read_text().replace("epsilon = 8.0", "epsilon = 5.0"))
    return place


def train(hospitals: Federation, kit: Path, experiment: Experiment, **behaviour: Any) -> Path:
    """A run of the kit, which some behaviour of the network may end before its time."""
    folder = kit / "coordinator" / "runs" / "tiny-1"
    folder.parent.mkdir(exist_ok=True)
    return hospitals.run(experiment, hospitals.network(**behaviour), folder).folder


def test_before_anything(hospitals: Federation, kit: Path) -> None:
    site = site_status(kit / "hospitals" / NAME)
    assert (site["hospital"], site["epsilon"], site["releases"], site["runs"]) == (NAME, 0.0, 0, [])
    assert (site["running"], site["heard"], site["needs"]) == (True, None, [])
    here = coordinator_status(kit)
    assert here == coordinator_status(kit / "coordinator")
    assert [(one["name"], one["connected"]) for one in here["hospitals"]] == [
        (name, None) for name in hospitals.sites
    ]
    assert here["run"] is None
    assert here["needs"] == [
        f"its SuperLink does not answer; start it with `silodp deploy coordinator {kit / 'coordinator'}`"
    ]


def test_a_hospitals_spending_is_shown_at_the_delta_that_its_limit_is_held_to(
    hospitals: Federation, kit: Path, tiny: Experiment
) -> None:
    """The smallest that it ever agreed on: a run at a larger one, later, makes no figure smaller."""
    train(hospitals, kit, tiny)
    later = tiny.change(privacy__delta=0.1, rounds=1, budget={"epsilon": 0.5, "sets_noise": True})
    hospitals.run(later)
    site = site_status(kit / "hospitals" / NAME)
    assert site["delta"] == 1e-2
    assert site["epsilon"] == pytest.approx(hospitals.sites[NAME].spent(1e-2))
    assert site["epsilon"] > 4.0
    path = kit / "hospitals" / NAME / "site.toml"
    path.write_text(path.read_text().replace("# delta = 0.01", "delta = 0.05"))  # its own stands above those
    site = site_status(path.parent)
    assert site["delta"] == 0.05
    assert site["epsilon"] == pytest.approx(hospitals.sites[NAME].spent(0.05))


@pytest.mark.parametrize("noise", ["central", "shared"])
def test_a_finished_run_from_both_sides(
    noise: str, hospitals: Federation, kit: Path, tiny: Experiment
) -> None:
    folder = train(hospitals, kit, tiny.change(privacy__noise=noise))
    said = {one: json.loads((folder / "deployment" / "statements" / f"{one}.json").read_text())
            for one in hospitals.sites}  # fmt: skip
    site = site_status(kit / "hospitals" / NAME)
    (run,) = site["runs"]
    assert (run["experiment"], run["last_round"], run["rounds"], run["delta"]) == ("tiny", 3, 3, 1e-2)
    assert run["epsilon"] == said[NAME]["epsilon"]
    assert (run["epsilon"]["coordinator"] is None) == (noise == "central")
    assert site["epsilon"] == said[NAME]["epsilon_of_all_runs"] == pytest.approx(4.0, rel=1e-3)
    assert site["limits"]["epsilon"] == 5.0
    heard = site["heard"]
    assert heard is not None
    assert (heard["asked"], heard["run"]) == ("finish", run["run"])
    assert run["answered"] is not None
    assert run["agreed"] <= run["answered"] <= time.time()
    here = coordinator_status(kit)["run"]
    assert here is not None
    assert (here["folder"], here["state"], here["done"], here["rounds"]) == ("tiny-1", "finished", 3, 3)
    assert [(one["round"], one["hospital"], one["intermediary"]) for one in here["by_round"]] == [
        pytest.approx(row) for row in read_statement(folder).by_round
    ]
    assert here["against"] == pytest.approx(said[NAME]["epsilon"]), "as each hospital counts it"
    assert here["budget"] is not None
    assert here["budget"]["spent"] == pytest.approx(4.0, rel=1e-3)
    assert all(one["mean"] is None and not one["hospitals"] for one in here["by_round"]), "they keep figures"
    for one in coordinator_status(kit)["hospitals"]:
        assert (one["signed"], one["last_round"]) == (True, "counted")
        assert one["statement"] is not None
        assert one["statement"]["limit"] == 5.0


def test_refusals_are_told_on_both_sides_and_need_a_person(
    hospitals: Federation, kit: Path, tiny: Experiment
) -> None:
    train(hospitals, kit, tiny)
    with pytest.raises(InputError, match=r"limits\.epsilon = 5"):
        hospitals.run(tiny)
    site, here = site_status(kit / "hospitals" / NAME), coordinator_status(kit)
    reason = site["refusals"][0]["reason"]
    assert reason.startswith("limits.epsilon = 5: this would bring the hospital to")
    assert site["needs"] == [f"its last reply was a refusal: {reason}"]
    told = {one["hospital"]: one for one in here["refusals"]}
    assert told.keys() == set(hospitals.sites)
    assert (told[NAME]["asked"], told[NAME]["reason"]) == ("agree", reason)
    assert here["run"] is not None
    assert here["run"]["folder"] == "tiny-1", "nothing was begun"
    path = kit / "hospitals" / NAME / "state" / "refusals.jsonl"
    line = json.dumps({"time": 1, "reason": "x\x1b[2J" * 300})
    path.write_text(f"{line}\nnonsense\n[]\n" * 400)
    again = site_status(kit / "hospitals" / NAME)["refusals"]
    assert len(again) == MOST_REFUSALS
    assert "\x1b" not in again[0]["reason"]


def test_a_limit_that_is_spent_needs_a_person(hospitals: Federation, kit: Path, tiny: Experiment) -> None:
    train(hospitals, kit, tiny)
    path = kit / "hospitals" / NAME / "site.toml"
    path.write_text(path.read_text().replace("epsilon = 5.0", "epsilon = 3.5"))
    assert "all of limits.epsilon is spent" in site_status(path.parent)["needs"][0]


def test_a_round_under_way_a_kill_and_what_goes_on(
    hospitals: Federation, kit: Path, tiny: Experiment
) -> None:
    """In round two one hospital has answered and one is away; then the coordinator is killed."""
    place = kit / "coordinator"
    seen: list[Any] = []
    late = "hospital-2"

    def mishap(hospital: str, request: bytes, reply: bytes) -> list[bytes | None]:
        run = (
            coordinator_status(kit)["run"] if (place / "runs" / "tiny-1" / "metrics.jsonl").exists() else None
        )
        if run is not None and run["answered"] and len(run["answered"]) == 1:
            seen.append(coordinator_status(kit))
            raise Killed
        return [reply]

    experiment = tiny.change(deployment={"deadline": 5.0, "min_hospitals": 2})
    with pytest.raises(Killed):
        train(hospitals, kit, experiment, mishap=mishap, away=lambda name: name == late and bool(
            list((place / "runs").glob("*/deployment/agreement.json"))))  # fmt: skip
    run = seen[0]["run"]
    assert (run["state"], run["done"], len(run["answered"])) == ("at work", 1, 1)
    assert run["absences"] == [{"round": 1, "hospital": late, "reason": "it did not answer"}]
    assert any(f"{late} was absent from round 1" in need for need in seen[0]["needs"])
    here = coordinator_status(kit)
    assert here["run"] is not None
    assert (here["run"]["state"], here["run"]["answered"]) == ("interrupted", None)
    assert any("stopped after round 1 of 3" in need and "--resume" in need for need in here["needs"])
    hospitals.resume(out=place / "runs" / "tiny-1")
    assert coordinator_status(kit)["run"]["state"] == "finished"  # type: ignore[index]


def test_a_statement_that_has_not_come_needs_a_person(
    hospitals: Federation, kit: Path, tiny: Experiment
) -> None:
    folder = train(hospitals, kit, tiny)
    (folder / "deployment" / "statements" / f"{NAME}.json").unlink()
    assert f"no statement has come from {NAME}" in coordinator_status(kit)["needs"][-1]
    odd = {"epsilon": "<b>", "limit": True, "last_round": [], "epsilon_of_all_runs": {}}
    huge = '{"limit": 1e999, "last_round": NaN, "epsilon_of_all_runs": 1' + 400 * "0" + "}"
    for content in (json.dumps(odd), huge, "[]", "{", '"'):  # a hospital's own words
        (folder / "deployment" / "statements" / f"{NAME}.json").write_text(content)
        found = coordinator_status(kit)["hospitals"][0]["statement"]
        assert found is None or set(found.values()) == {None}


def test_keys_that_are_expected_need_a_person(tmp_path: Path) -> None:
    from silodp.deploy.kit import init

    init(tmp_path / "kit", ["A", "B"], with_keys=False)
    here = coordinator_status(tmp_path / "kit")
    assert [(one["name"], one["admitted"]) for one in here["hospitals"]] == [("A", False), ("B", False)]
    assert here["needs"][0].startswith("the keys of A, B are missing")


def test_a_damaged_file_is_named(hospitals: Federation, kit: Path, tiny: Experiment) -> None:
    folder = train(hospitals, kit, tiny)
    state = kit / "hospitals" / NAME / "state"
    for name, content in (("answered", b"damaged"), ("agreement.json", b"{}")):
        (file,) = state.glob(f"runs/*/{name}")
        file.write_bytes(content)
        with pytest.raises(InputError, match=f"{name}: damaged; restore it"):
            site_status(state.parent)
    (folder / "ledger.jsonl").write_text("nonsense\n")
    with pytest.raises(InputError, match=r"ledger\.jsonl, line 1: not a ledger entry"):
        coordinator_status(kit)


def test_a_run_whose_folder_is_held_is_at_work(hospitals: Federation, kit: Path, tiny: Experiment) -> None:
    folder = train(hospitals, kit, tiny)
    (folder / "summary.json").unlink()
    assert coordinator_status(kit)["run"]["state"] == "interrupted"  # type: ignore[index]
    with RunFolder.open(folder):
        assert coordinator_status(kit)["run"]["state"] == "at work"  # type: ignore[index]
    (folder / "metrics.jsonl").unlink()  # as before round one
    view = coordinator_view(coordinator_status(kit))
    assert (view["charts"], view["missing"]) == ([], [])


def test_the_command_says_it_in_words_and_in_json(hospitals: Federation, kit: Path, tiny: Experiment) -> None:
    train(hospitals, kit, tiny)
    site = kit / "hospitals" / NAME
    told = command_line("deploy", "status", site)
    assert told.returncode == 0, told.stderr
    assert "ε = 4.0 of 5 is spent at δ = 0.01, over 1 run." in told.stdout
    assert "all is well" in told.stdout
    found = command_line("deploy", "status", site, "--json")
    assert json.loads(found.stdout) == site_status(site)
    for folder in (kit, kit / "coordinator"):
        told = command_line("deploy", "status", folder, COLUMNS="120")
        assert told.returncode == 1
        assert "! its SuperLink does not answer" in told.stdout
        assert "ε for a hospital: 4.0" in told.stdout
    assert json.loads(command_line("deploy", "status", kit, "--json").stdout)["run"]["done"] == 3
    hospitals.sites[NAME].ledger.close()
    told = command_line("deploy", "status", site)
    assert (told.returncode, "! its site is not running" in told.stdout) == (1, True)
    nothing = command_line("deploy", "status", kit / "hospitals")
    assert (nothing.returncode, "no coordinator.toml is there" in nothing.stderr) == (2, True)


def test_no_secret_is_in_it(hospitals: Federation, kit: Path, tiny: Experiment) -> None:
    train(hospitals, kit, tiny)
    text = json.dumps([coordinator_status(kit), *map(site_status, (kit / "hospitals").iterdir())])
    for path in kit.rglob("*"):
        if path.suffix in (".key", ".secret", ".sig"):
            content = path.read_bytes()
            assert content.hex() not in text
            assert content.decode("latin-1")[40:80] not in text


def test_it_needs_no_pytorch() -> None:
    code = (
        "import sys; import silodp.deploy.coordinator_status, silodp.deploy.status, silodp.deploy.pages, "
        "silodp.deploy.page_views, silodp.report.frame; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0

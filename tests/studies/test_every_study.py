"""What holds for every study: its files, its ε, the paper's numbers, and that nothing is run twice."""

import json
import math

import pytest
from made_up_runs import plan_of, rows, runs_of, smoke

from silodp import InputError
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.studies import study_named, study_names
from silodp.studies.planning import make_plan
from silodp.studies.running import run_study

ALWAYS = {"study.json", "results.csv", "table.md"}
FILES = {
    "table1-prostate": {"table1"},
    "table1-ich": {"table1"},
    "figure1b": {"rounds.csv", "fits.csv", "figure1b"},
    "figure2a": {"rounds.csv", "figure2a"},
    "figure2b": {"rounds.csv", "figure2b"},
    "figure2c": {"figure2c"},
    "figure2d": {"rounds.csv", "figure2d"},
    "appendix-attack": {"ssim"},
    "appendix-frequency": {"dice"},
    "appendix-rounds": {"dice"},
    "appendix-subsampling": {"dice"},
    "sample-vs-client": {"drift.csv", "drift"},
    "matched-privacy": {"matched-privacy"},
    "hospital-privacy-prostate": {"hospital-privacy"},
    "hospital-privacy-ich": {"hospital-privacy"},
    "worth-it-prostate": {"hospitals.csv", "worth-it"},
    "worth-it-ich": {"hospitals.csv", "worth-it"},
}
"""Besides those that every study writes; a name without an ending is a picture."""

PRINTED = {
    "table1-prostate": {"| DP-FedAvg | 0.5 |": "0.225 ± 0.032 | 0.633 ± 0.047"},
    "table1-ich": {"| DP-FedAvg | 1 |": "0.680 ± 0.014 | 0.808 ± 0.008"},
    "figure2c": {"| 6 |": "0.225 ± 0.032 | 0.633 ± 0.047", "| 5 |": "– | –"},
    "appendix-attack": {
        "| DP-FedAvg | 0.5 |": "0.01",
        "| DP-FedAvg + intermediaries | 0.5 |": "0.01",
        "| without privacy, own network | – |": "–",
    },
    "appendix-subsampling": {
        "| DP-FedAvg |": "0.225 | 0.135",
        "| DP-FedAvg, 2/3 of the hospitals |": "0.165 | 0.094",
        "| DP-FedAvg + intermediaries |": "0.633 | 0.611",
    },
    "appendix-rounds": {
        "| DP-FedAvg |": "0.225 | 0.135",
        "| DP-FedAvg + intermediaries |": "0.633 | 0.611",
        "| DP-FedAvg, three times the rounds |": "0.300 | 0.195",
        "| DP-FedAvg + intermediaries, three times the rounds |": "0.760 | 0.658",
    },
    "appendix-frequency": {
        "| DP-FedAvg |": "0.225 | 0.135",
        "| DP-FedAvg, three times as often |": "0.315 | 0.205",
        "| DP-FedAvg + intermediaries |": "0.633 | 0.611",
    },
}
"""How a line of a table begins, and how it ends: by hand from the paper."""

OF_TABLE_1 = {"figure2a": 6, "figure2b": 6, "figure2c": 2, "figure2d": 3, "appendix-attack": 7}
OF_TABLE_1 |= {"appendix-frequency": 6, "appendix-rounds": 6, "appendix-subsampling": 6}

every_study = pytest.mark.parametrize("name", study_names())


@every_study
def test_every_file_is_there(name: str) -> None:
    folder = smoke(name)
    pictures = {file for file in FILES[name] if "." not in file}
    drawn = {f"{picture}.{kind}" for picture in pictures for kind in ("svg", "png")}
    assert {path.name for path in folder.iterdir()} == ALWAYS | (FILES[name] - pictures) | drawn
    for picture in pictures:
        assert (folder / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (folder / f"{picture}.svg").read_text()


@every_study
def test_run_again_nothing_trains_and_all_files_are_the_same(name: str) -> None:
    study, folder = study_named(name), smoke(name)
    runs = folder.parent / "runs"
    times = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    run_study(study, plan_of(study), folder.parent, resume=True, jobs=1, device="cpu")
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == times
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@every_study
def test_the_table_names_the_hospital_first_and_what_it_rests_on(name: str) -> None:
    text = (smoke(name) / "table.md").read_text()
    assert text.index("hospital") < text.index("intermediary")
    for needed in (
        "```sh\nsilodp study\n```",
        "The hospitals are simulated",
        "; seed 0; ",
        "| claim | holds",
    ):
        assert needed in text
    assert "nan" not in text


@every_study
def test_epsilons_are_the_closed_forms(name: str) -> None:
    """Gaussian rounds: a hospital contributes v updates a round, so that μ² = Σ (v/z)²; an intermediary one.

    Where v changed no intermediary lasted, and the hospital's ε stands for it. Runs in which hospitals are
    drawn, or images are protected, have tests of their own.
    """
    found = {one.folder.name: one for one in runs_of(name)}
    compared = 0
    for row in rows(smoke(name) / "results.csv"):
        one = found[row["run"]]
        experiment = one.cell.experiment
        drawn, of_images = experiment.participation.rule != "all", experiment.privacy.level == "sample"
        if one.cell.product == "start.json" or drawn or of_images:
            continue
        compared += 1
        assert int(row["rounds"]) == experiment.rounds == len(one.rounds)
        if not experiment.is_private:
            assert math.isinf(float(row["epsilon_hospital"]))
            continue
        counts = [line["intermediaries"] for line in one.rounds]
        z = experiment.privacy.noise_multiplier
        if experiment.budget is not None:  # which sets the noise
            z = json.loads((one.folder / "summary.json").read_text())["noise_multiplier"]["intermediary"]
        delta = 10.0 ** -math.ceil(math.log10(one.summary["members"]))
        assert float(row["delta"]) == pytest.approx(delta)
        assert int(row["v"]) == counts[-1]
        whole = gaussian_epsilon(math.sqrt(sum(v**2 for v in counts)) / z, delta)
        part = gaussian_epsilon(math.sqrt(len(counts)) / z, delta)
        assert float(row["epsilon_hospital"]) == pytest.approx(whole, rel=1e-9)
        lasted = len(set(counts)) == 1
        assert float(row["epsilon_intermediary"]) == pytest.approx(part if lasted else whole, rel=1e-9)
    assert compared > 0


@pytest.mark.parametrize("name", PRINTED)
def test_the_papers_numbers_stand_beside_ours(name: str) -> None:
    folder = smoke(name)
    table = (folder / "table.md").read_text().splitlines()
    for begins, ends in PRINTED[name].items():
        line = next(line for line in table if line.startswith(begins))
        assert line.endswith(f"| {ends} |"), line
    if name != "appendix-attack":
        metric = "auc" if name == "table1-ich" else "dice"
        for row in rows(folder / "results.csv"):
            assert any(f"| {float(row[f'test_{metric}']):.3f} |" in line for line in table)


@pytest.mark.parametrize("name", OF_TABLE_1)
def test_runs_of_table_1_are_shared(name: str) -> None:
    plan = make_plan("prostate", "small")
    mine = {cell.folder_name for cell in study_named(name).cells(plan)}
    table1 = {cell.folder_name for cell in study_named("table1-prostate").cells(plan)}
    assert len(mine & table1) == OF_TABLE_1[name]


@pytest.mark.parametrize("name", ["figure1b", "figure2a", "figure2b"])
def test_without_diagnostics_nothing_starts(name: str) -> None:
    with pytest.raises(InputError, match="diagnostics=true"):
        study_named(name).cells(make_plan("prostate", "smoke", changes=["diagnostics=false"]))


def test_the_paper_scale_has_three_noise_levels_and_three_seeds() -> None:
    paper, smallest = make_plan("prostate", "paper"), make_plan("prostate", "smoke")
    for name in ("appendix-subsampling", "appendix-rounds", "appendix-frequency"):
        assert len(study_named(name).cells(paper)) == 9 * len(study_named(name).cells(smallest))

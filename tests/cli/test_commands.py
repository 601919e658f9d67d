"""The command line as a person meets it; one call of each command in a process of its own."""

import json
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import command_line as silodp
from conftest import command_of, in_a_process, records, succeed

from silodp.experiment import preset_names
from silodp.runs.wording import describe_round, show_epsilon

SMALL = ("rounds=2", "cohort.slices=40", "cohort.image_size=32", "model.features=2", "model.levels=3")
TINY = [word for change in SMALL for word in ("--set", change)]


def test_run_prints_plain_lines_and_json(tmp_path: Path) -> None:
    done = succeed("run", "prostate-small", *TINY, "--seed", 5, "--device", "cpu", "--json", cwd=tmp_path)
    summary = json.loads(done.stdout)
    assert summary["rounds"] == 2
    assert summary["epsilon"]["hospital"] > summary["epsilon"]["intermediary"] > 0
    assert "round 2/2" in done.stderr
    assert done.stderr.index("ε hospital") < done.stderr.index("intermediary")
    folder = tmp_path / "runs/prostate-small-1"
    assert "seed = 5" in (folder / "experiment.toml").read_text()

    again = succeed("resume", folder, "--device", "cpu")
    assert "ε for a hospital" in again.stdout
    assert "not covered by ε" in again.stdout


def test_presets_are_listed() -> None:
    done = in_a_process("presets")
    for name in preset_names():
        assert name in done.stdout
    assert {"demo", "ich-small", "ich-paper", "prostate-small", "prostate-paper"} <= set(preset_names())


def test_ctrl_c_leaves_a_run_that_resume_takes_up(tmp_path: Path) -> None:
    many = [*TINY, "--set", "rounds=1000"]  # more than there are before it hears of Ctrl-C
    command = command_of("run", "demo", *many, "--out", "run")
    # Whoever runs the tests in the background may have had them ignore Ctrl-C; a person's terminal does not.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, preexec_fn=heed)
    assert process.stderr is not None
    for line in process.stderr:
        if "round 2/1000" in line:
            process.send_signal(signal.SIGINT)
            break
    said = process.stderr.read()
    assert process.wait() == 130
    assert "go on with `silodp resume run`" in said
    assert "Traceback" not in said
    process.stderr.close()
    rounds = len(records(tmp_path / "run")) + 2
    done = succeed("resume", "run", "--rounds", rounds, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["rounds"] == rounds


def test_training_imports_nothing_heavy_or_of_the_terminal(tmp_path: Path) -> None:
    """PyTorch and NumPy are enough for a first round; MONAI, readers, plots, trackers come when used."""
    code = f"""
import sys, silodp.runs.training, silodp.tracking, silodp.tasks.segmentation, silodp.tasks.classification
from silodp.federation import Federation
print(*sys.modules)
train_rounds = Federation.rounds
def rounds(*arguments):
    print(*sys.modules)
    return train_rounds(*arguments)
Federation.rounds = rounds
dense = [*{SMALL[:4]}, "model.growth=2", "model.blocks=[1, 1]", "cohort.hospitals=2"]
for number, (preset, changes) in enumerate((
    ("demo", {SMALL}), ("demo", [*{SMALL}, "local.optimizer=sgd"]), ("ich-small", dense),
)):
    small = silodp.Experiment.load(preset, [*changes, "rounds=1"])
    silodp.train(small, out={str(tmp_path)!r} + f"/{{number}}", device="cpu")
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *before_rounds, by_training = map(str.split, done.stdout.splitlines())
    heavy = {"typer", "rich", "pandas", "matplotlib", "jinja2", "opacus", "dp_accounting", "flwr"}
    heavy |= {"monai", "mlflow", "tensorboardX", "tensorboard", "pydicom", "nibabel", "PIL"}
    assert not any(heavy & {*modules} for modules in before_rounds)
    assert not any("scipy" in modules for modules in before_rounds[:2])  # ε of the first round needs it
    assert not heavy & {*by_training}
    assert "torch._dynamo" not in by_training  # PyTorch's compiler, which its classes of optimizers import


def test_the_list_of_commands_is_written_without_rich_and_numpy() -> None:
    command = "import sys, silodp.cli; sys.argv[1:] = ['--help']"
    code = f"{command}\ntry: silodp.cli.main()\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Train one experiment." in done.stdout
    assert not {"rich", "rich.console", "numpy", "pydantic"} & {*done.stdout.splitlines()[-1].split()}


def test_what_needs_no_network_does_not_wait_for_pytorch() -> None:
    code = """
import sys
sys.modules["torch"] = None  # so that it cannot be imported
from silodp.cli import main
for line in ("--help", "study", "run nowhere", "resume nowhere", "privacy --noise-multiplier 1 --hospitals 9",
             "privacy --noise-multiplier 1 --hospitals 9 --sample-rate 0.5 --without-replacement --rounds 3"):
    sys.argv = ["silodp", *line.split()]
    try:
        main()
    except SystemExit as end:
        print("ends with", end.code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.findall("ends with (.)", done.stdout) == ["0", "0", "2", "2", "0", "0"], done.stderr
    assert done.stderr.count("nowhere") == 2, done.stderr


def test_a_round_is_described_hospital_first_and_says_what_is_not_covered() -> None:
    record = {
        "validation": {"mean": {"dice": 0.5}}, "clip_bound": 0.25,
        "intermediaries": 3, "intermediaries_capped": True,
        "epsilon": {
            "hospital": 1234.56, "intermediary": float("inf"), "covers_everything": False, "withdrawn": "",
        },
    }  # fmt: skip
    assert describe_round(record) == (
        "dice 0.500  v 3 (capped)  C 0.25  ε hospital 1,234.6, intermediary ∞  (not all covered)"
    )
    assert show_epsilon(float("inf")) == "∞"


def privacy(*arguments: object) -> dict[str, Any]:
    done = succeed("privacy", *arguments, "--json")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("z", "hospitals", "v", "of_hospital", "of_intermediary"),
    [
        (0.5, 20, 1, 245.6, 245.6),
        (1.5, 20, 1, 36.9, 36.9),
        (0.3, 6, 1, 597.3, 597.3),
        (0.7, 6, 1, 119.4, 119.4),
        (0.5, 6, 15, 45_383.5, 224.7),
        (1.0, 20, 12, 7_478.2, 72.4),
    ],
)
def test_privacy_prints_the_papers_figures_and_the_hospitals(
    z: float, hospitals: int, v: int, of_hospital: float, of_intermediary: float
) -> None:
    options = ("--rounds", 100, "--hospitals", hospitals, "--intermediaries", v)
    told = privacy("--noise-multiplier", z, *options)
    assert told["delta"] == pytest.approx({6: 0.1, 20: 0.01}[hospitals])
    found = [(unit, round(value, 1)) for unit, value in told["epsilon"].items()]
    assert found == [("hospital", of_hospital), ("intermediary", of_intermediary)]  # in this order
    assert told["replace_one"]["hospital"] > told["epsilon"]["hospital"]
    assert told["noise_multipliers"] == {"hospital": pytest.approx(z / v), "intermediary": z}


def test_privacy_as_a_table_has_the_hospital_first_and_names_the_accountant() -> None:
    options = ("privacy", "--noise-multiplier", 1, "--hospitals", 20, "--intermediaries", 12)
    done = succeed(*options, "--accountant", "prv")  # test_terminal.py has the process of its own
    lines = done.stdout.splitlines()
    rows = [line for line in lines if line.strip().startswith(("hospital", "intermediary"))]
    assert "7,478.2" in rows[0]
    assert "exact" in rows[0]
    assert "72.4" in rows[1]
    assert "prv" in rows[1]
    assert "prv has no answer: ε is too large for it" in done.stdout


def test_privacy_finds_the_noise_and_the_rounds() -> None:
    options = ("--hospitals", 20, "--intermediaries", 12)
    found = privacy("--target-epsilon", 7478.2, "--unit", "hospital", "--rounds", 100, *options)
    assert found["noise_multiplier"] == pytest.approx(1.0, rel=1e-4)
    found = privacy("--target-epsilon", 72.4, "--unit", "intermediary", "--rounds", 100, *options)
    assert found["noise_multiplier"] == pytest.approx(1.0, rel=1e-3)
    found = privacy("--target-epsilon", 72.4, "--unit", "intermediary", "--noise-multiplier", 1.0, *options)
    assert found["rounds"] == 100


def test_privacy_with_sampling_is_amplified() -> None:
    everyone = privacy("--noise-multiplier", 1, "--hospitals", 20)
    options = ("--noise-multiplier", 1, "--hospitals", 20, "--sample-rate", 0.3)
    sampled = privacy(*options)
    fraction = privacy(*options, "--without-replacement")
    assert sampled["accountant"]["epsilon"]["hospital"] == "pld"
    assert sampled["epsilon"]["hospital"] < fraction["epsilon"]["hospital"] < everyone["epsilon"]["hospital"]
    assert (sampled["participation"], fraction["participation"]) == ("poisson", "fraction-kept")


def test_privacy_of_a_run_verifies_and_sums_up(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = [*TINY, "--set", "rounds=4", "--set", "budget.epsilon=100000"]
    succeed("run", "prostate-small", *options, "--out", folder, "--device", "cpu")
    done = succeed("privacy", folder)
    assert "8 releases, hash chain intact, in order, none missing" in done.stdout
    said, told = " ".join(done.stdout.split()), privacy(folder)
    for point in told["by_round"]:
        both = (show_epsilon(point[unit]) for unit in ("hospital", "intermediary"))
        assert f"round {point['round']}: {' / '.join(both)}" in said
    assert "The budget allows ε = 100,000 for one hospital" in said
    assert [point["round"] for point in told["by_round"]] == [1, 2, 3, 4]

    ledger = folder / "ledger.jsonl"
    whole = ledger.read_text()
    ledger.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    cut = silodp("privacy", folder)
    assert cut.returncode == 1
    assert "the ledger is not in order" in cut.stdout
    ledger.write_text(whole.replace('"round": 2', '"round": 3', 1))
    changed = silodp("privacy", folder)
    assert changed.returncode == 2
    assert "was changed; restore the file" in changed.stderr


def test_the_budget_ends_a_run_and_the_end_says_why(tmp_path: Path) -> None:
    options = [*TINY, "--set", "rounds=9", "--set", "intermediaries.rule=fixed", "--set", "budget.epsilon=15"]
    done = succeed("run", "prostate-small", *options, "--out", tmp_path / "run", "--device", "cpu")
    assert "the budget ended the run: round " in done.stdout
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert 0 < summary["rounds"] < 9
    assert summary["epsilon"]["hospital"] <= 30


def test_an_audit_in_numbers() -> None:
    done = succeed("audit", "--runs", 20, "--rounds", 1, "--hospitals", 2, "--json", how=in_a_process)
    found = json.loads(done.stdout)
    assert found["hospital"]["claimed"] > found["intermediary"]["claimed"] == found["paper"]["claimed"] > 0
    assert found["hospital"]["canary"] == found["paper"]["canary"] == "hospital"
    assert "federations: 60/60" in done.stderr
    own = ["--set", "clipping.rule=fixed", "--intermediaries", 2, "--entropy", "system"]
    table = silodp("audit", "demo", *own, "--runs", 20, "--rounds", 1, "--hospitals", 2)
    shown = " ".join(table.stdout.split())
    assert "paper's ε, for a hospital" in shown
    assert "audited of «demo»: noise (z 0.5, from the system), clipping (fixed)" in shown

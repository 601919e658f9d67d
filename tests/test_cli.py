"""The command line as a person meets it, in a process of its own."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from silodp.display import describe_round, show_epsilon
from silodp.experiment import preset_names

TINY = [
    "--set",
    "rounds=2",
    "--set",
    "cohort.slices=40",
    "--set",
    "cohort.image_size=32",
    "--set",
    "model.features=2",
]


def silodp(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from silodp.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_run_prints_plain_lines_and_json(tmp_path: Path) -> None:
    done = silodp("run", "prostate-small", *TINY, "--seed", 5, "--device", "cpu", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["rounds"] == 2
    assert summary["epsilon"]["hospital"] > summary["epsilon"]["intermediary"] > 0
    assert "round 2/2" in done.stderr
    assert done.stderr.index("ε hospital") < done.stderr.index("intermediary")
    folder = tmp_path / "runs/prostate-small-1"
    assert "seed = 5" in (folder / "experiment.toml").read_text()

    again = silodp("resume", folder, "--device", "cpu")
    assert again.returncode == 0, again.stderr
    assert "ε for a hospital" in again.stdout
    assert "not covered by ε" in again.stdout


def test_presets_are_listed() -> None:
    done = silodp("presets")
    for name in preset_names():
        assert name in done.stdout
    assert {"demo", "ich-small", "ich-paper", "prostate-small", "prostate-paper"} <= set(preset_names())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere"], "experiment 'nowhere' is neither a preset"),
        (
            ["run", "demo", "--set", "privacy.noise=1"],
            "privacy.noise: no such setting; there are noise_multiplier",
        ),
        (["run", "demo", "--set", "privacy.noise_multiplier=-1"], "privacy.noise_multiplier = -1: "),
        (["run", "demo", "--set", "rounds"], "--set 'rounds': write key=value"),
        (["run", "demo", "--set", "clipping.rule=none"], "noise protects nobody without a bound"),
        (["run", "demo", "--set", "intermediaries.rule=fixed", "--set", "intermediaries.count=500"], "500: "),
        (["run", "demo", "--set", "cohort.image_size=50"], "multiples of 16"),
        (["run", "demo", "--device", "tpu"], "--device tpu: choose auto, cpu or cuda"),
        (["resume", "nowhere"], "nowhere: no run is there"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = silodp(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = silodp("run", "demo", "--out", tmp_path)
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_ctrl_c_leaves_a_run_that_resume_takes_up(tmp_path: Path) -> None:
    many = [*TINY, "--set", "rounds=6"]
    command = [
        sys.executable,
        "-c",
        "from silodp.cli import main; main()",
        "run",
        "demo",
        *many,
        "--out",
        "run",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if "round 2/6" in line:
            process.send_signal(signal.SIGINT)
            break
    said = process.stderr.read()
    assert process.wait() == 130
    assert "go on with `silodp resume run`" in said
    assert "Traceback" not in said
    process.stderr.close()
    done = silodp("resume", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 6


def test_training_imports_nothing_heavy_or_of_the_terminal() -> None:
    """PyTorch, NumPy and MONAI are enough at import; readers of files, plots and terminals come when used."""
    code = "import sys, silodp.training; print(' '.join(sys.modules))"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"typer", "rich", "scipy", "pandas", "matplotlib", "opacus", "dp_accounting", "flwr"} & set(
        modules
    )


def test_help_does_not_wait_for_pytorch() -> None:
    code = "import sys, silodp.cli; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
    )


def test_a_round_is_described_hospital_first_and_says_what_is_not_covered() -> None:
    record = {
        "validation": {"mean": {"dice": 0.5}}, "clip_bound": 0.25,
        "intermediaries": 3, "intermediaries_capped": True,
        "epsilon": {"hospital": 1234.56, "intermediary": float("inf"), "covers_everything": False},
    }  # fmt: skip
    assert describe_round(record) == (
        "dice 0.500  v 3 (capped)  C 0.25  ε hospital 1,234.6, intermediary ∞  (not all covered)"
    )
    assert show_epsilon(float("inf")) == "∞"

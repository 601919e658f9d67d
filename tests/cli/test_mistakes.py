"""Bad input to any command: one line with the way out, exit code 2, and nothing left behind."""

import shlex
from pathlib import Path

import pytest
from conftest import command_line, in_a_process


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run nowhere", "experiment 'nowhere' is neither a preset"),
        ("run demo --set privacy.noises=1", "privacy.noises: no such setting; there are noise_multiplier"),
        ("run demo --set privacy.noise_multiplier=-1", "privacy.noise_multiplier = -1: "),
        ("run dmo", "nor a TOML file; did you mean demo?"),
        ("run demo --set privacy.noise_multiplyer=1", "; did you mean privacy.noise_multiplier?"),
        ("settings privcy", "; did you mean privacy?"),
        ("study tabel1-prostate", "; did you mean table1-prostate?"),
        ("run demo --set rounds", "--set 'rounds': write key=value"),
        ("run demo --set clipping.rule=none", "noise protects nobody without a bound"),
        ("run demo --set intermediaries.rule=fixed --set intermediaries.count=500", "500: "),
        ("run demo --set cohort.image_size=50", "multiples of 16"),
        ("run demo --device tpu", "--device tpu: choose auto, cpu or cuda"),
        ("resume nowhere", "nowhere: no run is there"),
        ("privacy", "give a run's folder, --noise-multiplier or --target-epsilon"),
        ("privacy nowhere", "nowhere: no run is there"),
        ("privacy --noise-multiplier -1 --hospitals 6", "noise multiplier = -1: choose 0"),
        ("privacy --noise-multiplier 1", "give --hospitals (δ follows by the paper's rule) or --delta"),
        ("privacy --noise-multiplier 1 --delta 1", "delta = 1: choose a chance between 0 and 1"),
        ("privacy --noise-multiplier 1 --delta 0.1 --intermediaries 0", "intermediaries = 0: "),
        ("privacy --noise-multiplier 1 --hospitals 0", "--hospitals 0: "),
        ("privacy --noise-multiplier 1 --hospitals 6 --rounds 0", "rounds = 0: choose 1 to"),
        ("privacy --noise-multiplier 1 --hospitals 6 --sample-rate 2", "sample rate = 2: "),
        ("privacy --noise-multiplier 1 --hospitals 6 --accountant me", "--accountant me: "),
        ("privacy --target-epsilon 1 --hospitals 6 --unit patient", "--unit patient: choose"),
        ("privacy --target-epsilon -1 --hospitals 6", "target epsilon = -1: choose a number above"),
        (
            "privacy --target-epsilon 1 --noise-multiplier 0.5 --hospitals 6",
            "not one round at noise multiplier 0.5; one round needs 1.086",
        ),
        ("audit --runs 3", "runs = 3: "),
        ("audit --clipping median", "clipping.rule = median: ε does not cover"),
        ("audit --entropy dice", "privacy.entropy = 'dice': choose one of seed, system"),
        ("audit prostate-paper", "clipping.rule = median: ε does not cover"),
        ("study nothing", "study nothing: choose one of"),
        ("plan --hospitals 0", "--hospitals 0: a federation has at least one"),
        ("plan --hospitals 6 --task detection", "--task detection: choose one of segmentation"),
        ("plan --hospitals 6 --epsilon -1", "target epsilon = -1"),
        ("plan --hospitals 6 --out plan.json", "--out plan.json: give a new file that ends in .toml"),
        ("pretrain pelvic --out a.safetensors", "did you mean pelvis"),
        ("pretrain shapes --out a.pt", "--out a.pt: give a name that ends in .safetensors"),
        ("pretrain shapes --out a.safetensors --steps 1", "--steps 1: give at least 8"),
        ("pretrain shapes --out a.safetensors --set kind=densenet", "set task=classification"),
        ("deploy init kit --hospitals ''", "--hospitals: name at least one, such as --hospitals Aarhus,"),
        ("deploy init kit --hospitals A,,B", "--hospitals '': choose letters, digits, - and _"),
        ("deploy init kit --hospitals A,a", "hospitals A and a: the same name"),
        ("deploy init kit --hospitals A --address here", "--address = 'here': choose host:port"),
        ("deploy init kit --hospitals A --days 0", "--days 0: choose 1 to 3650"),
        ("deploy init no/kit --hospitals A", "no is no folder; make it first"),
        ("deploy join own --name 'a b'", "--name 'a b': choose letters"),
        ("deploy admit kit A.join.toml", "kit: no coordinator.toml is there; give a folder that `silodp"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(command: str, message: str, tmp_path: Path) -> None:
    done = command_line(*shlex.split(command), cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_one_line_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = in_a_process("run", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("silodp: experiment 'nowhere' is neither a preset")
    assert done.stderr.count("\n") == 1, done.stderr
    assert list(tmp_path.iterdir()) == []

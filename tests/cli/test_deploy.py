"""`silodp deploy`: a kit, and a hospital that joins with keys of its own, as people type it."""

import re
import subprocess
import sys
from pathlib import Path

from conftest import in_a_process, succeed

from silodp.deploy.config import read_coordinator
from silodp.deploy.keys import fingerprint, read_public_key
from silodp.deploy.roster import read_roster


def test_a_kit_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = in_a_process("deploy", "init", "kit", "--hospitals", "Aarhus, Bern,Cork", "--address",
                        "fl.example.org:443", cwd=tmp_path)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    kit = tmp_path / "kit"
    assert read_coordinator(kit).address == "fl.example.org:443"
    for name in ("Aarhus", "Bern", "Cork"):
        mark = fingerprint(read_public_key(kit / "hospitals" / name / "signing.pub"))
        told = f"kit/hospitals/{name}: hand it to {name}, then delete it here; fingerprint {mark}"
        assert told in done.stdout.splitlines()
    assert fingerprint(read_public_key(kit / "coordinator/signing.pub")) in done.stdout
    renewed = succeed("deploy", "renew", kit)
    assert "restart proxy and coordinator" in renewed.stdout


def test_a_hospital_joins_and_both_sides_are_told_the_same_fingerprint(tmp_path: Path) -> None:
    made = succeed("deploy", "init", "kit", "--hospitals", "Aarhus,Bern", "--without-keys", cwd=tmp_path)
    assert "`silodp deploy join FOLDER --name NAME` at Aarhus, Bern" in made.stdout
    joined = succeed("deploy", "join", "own", "--name", "Bern", cwd=tmp_path)
    assert "own/Bern.join.toml: send this file, and no other, to the coordinator" in joined.stdout
    admitted = succeed("deploy", "admit", "kit", "own/Bern.join.toml", cwd=tmp_path)
    marks = [re.findall(r"fingerprint ([0-9a-f]{64}): compare", told.stdout) for told in (joined, admitted)]
    assert len(marks[0]) == 1
    assert marks[0] == marks[1]
    assert read_roster(tmp_path / "kit/coordinator/roster.toml").names == ("Bern",)
    assert "kit/hospitals/Bern: send it to Bern" in admitted.stdout


def test_a_kit_needs_no_pytorch_and_help_no_cryptography(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["torch"] = None  # so that it cannot be imported
from silodp.cli import main
for line in ("--help", "deploy init kit --hospitals A"):
    sys.argv = ["silodp", *line.split()]
    try:
        main()
    except SystemExit as end:
        print("ends with", end.code, "cryptography" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert re.findall(r"ends with (.*)", done.stdout) == ["0 False", "0 True"], done.stderr

"""What `silodp doctor` says of a machine, whole or broken."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from conftest import command_line as silodp
from conftest import in_a_process

from silodp.runs import requirements

WHOLE = "everything that is needed is here"


@pytest.fixture(autouse=True)
def _a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def pretend(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    """Other versions than the installed ones; None: not installed."""

    def told(name: str) -> str:
        found = versions.get(name, version(name) if name not in versions else None)
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(requirements, "version_of", told)


def test_a_whole_machine_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = in_a_process("doctor", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.splitlines()[-1] == WHOLE
    assert f"PyTorch {version('torch')}" in done.stdout
    assert f"cache: {tmp_path}/cache/silodp: 0.0 MB, " in done.stdout
    assert list(tmp_path.iterdir()) == []  # it looked, and left nothing


def test_json_agrees_with_the_installed_packages(tmp_path: Path) -> None:
    import torch

    store = tmp_path / "cache/silodp/store"
    store.mkdir(parents=True)
    (store / "images.bin").write_bytes(bytes(1234))
    (tmp_path / "cache/silodp").chmod(0o700)
    done = silodp("doctor", "--json")
    assert done.returncode == 0, done.stdout
    told = json.loads(done.stdout)
    assert told["complete"] is True
    packages = {package["name"]: package for package in told["packages"]}
    assert {"torch", "numpy", "monai", "pydantic"} <= packages.keys()
    assert {name: package["version"] for name, package in packages.items()} == {
        name: version(name) for name in packages
    }
    assert packages["torch"]["wanted"] == ">=2.6"
    parts = {part["name"]: part for part in told["parts"]}
    assert set(parts) == {"flower", "export", "mlflow", "docs", "tensorboard"}
    assert {package["name"] for package in parts["flower"]["packages"]} >= {"flwr", "ray"}
    assert told["torch"]["version"] == torch.__version__
    assert told["torch"]["threads"] == torch.get_num_threads()
    assert len(told["torch"]["gpus"]) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert told["cores"] == len(os.sched_getaffinity(0))
    assert (told["cache"]["path"], told["cache"]["bytes"]) == (str(tmp_path / "cache/silodp"), 1234)
    assert (told["cache"]["private"], told["cache"]["problem"]) == (True, "")
    assert (told["runs"]["path"], told["runs"]["private"]) == (str(tmp_path / "runs"), None)


def test_folders_that_cannot_be_written_are_named_with_their_way_out(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, where a folder should be")
    done = silodp("doctor", cwd=Path("/proc"))
    assert done.returncode == 1
    assert (
        f"needed: the cache of decoded images, {tmp_path}/cache/silodp, cannot be written (Not a directory); "
        "set XDG_CACHE_HOME, or cohort.cache in an experiment, to a folder of yours\n"
    ) in done.stdout
    assert "needed: the folder for runs, /proc/runs, cannot be written (" in done.stdout
    assert "; go to a folder of yours, or give one with --out" in done.stdout
    assert done.stdout.splitlines()[-1] == "not ready: missing or broken and needed: 2; see the lines above"
    assert silodp("doctor", "--json", cwd=Path("/proc")).returncode == 1


def test_a_cache_that_others_may_look_into_is_told_and_stops_nobody(tmp_path: Path) -> None:
    place = tmp_path / "cache/silodp"
    place.mkdir(parents=True)
    place.chmod(0o755)
    done = silodp("doctor")
    assert done.returncode == 0
    assert f"others may look into the cache of decoded images, {place}; chmod 700 {place}\n" in done.stdout
    place.chmod(0o700)
    assert "others may look" not in silodp("doctor").stdout


@pytest.mark.parametrize(
    ("package", "part"), [("onnx", "export"), ("ray", "flower"), ("mlflow-skinny", "mlflow")]
)
def test_an_optional_part_is_told_with_its_command(
    package: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, **{package: None})
    done = silodp("doctor")
    assert done.returncode == 0, "nobody needs it"
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"  {part} "))
    assert f"not installed ({package}), for " in line
    assert line.endswith(f": pip install 'silodp[{part}]'")
    assert silodp("doctor").stdout.count("not installed") == 1


@pytest.mark.parametrize(
    ("found", "said"), [(None, "numpy is missing"), ("1.20.0", "numpy 1.20.0 is not >=1.26")]
)
def test_a_needed_package_that_does_not_fit_is_told_with_its_command(
    found: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, numpy=found)
    done = silodp("doctor")
    assert done.returncode == 1
    assert f"needed: {said}; pip install 'numpy>=1.26'\n" in done.stdout


@pytest.mark.parametrize("module", ["torch", "packaging", "numpy"])
def test_a_broken_environment_is_examined(module: str) -> None:
    """In a process in which the module cannot be imported."""
    code = f"import sys; sys.modules[{module!r}] = None; from silodp.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr  # PyTorch itself warns where NumPy is missing
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("needed: "))
    assert module in line.lower().replace("pytorch", "torch")


def test_names_of_folders_and_programs_steer_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"\x1b[2J\n{WHOLE}"))
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "openssl").write_text("#!/bin/sh\nprintf 'OpenSSL \\033[2J 9'\n")
    (programs / "openssl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    done = silodp("doctor")
    assert "\x1b" not in done.stdout
    assert f"\\x1b[2J\\n{WHOLE}" in done.stdout
    assert "(OpenSSL \\x1b[2J 9)" in done.stdout
    assert done.stdout.splitlines().count(WHOLE) == 1


def absent(*_: object, **__: object) -> None:
    """No program is there."""


def unseeded(*_: object) -> bytes:
    raise BlockingIOError


@pytest.mark.parametrize(
    ("place", "value", "code", "says"),
    [
        ("shutil.which", absent, 0, "coordinator` and its tests: apt-get install nginx-light\n"),
        ("os.getrandom", unseeded, 1, "needed: the operating system has no entropy yet; "),
        ("LITTLE_SPACE", 2**62, 0, "MB are free at "),
    ],
)
def test_what_is_lacking_is_told_and_stops_only_who_needs_it(
    place: str, value: object, code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"silodp.runs.machine.{place}", value)
    done = silodp("doctor")
    assert done.returncode == code
    assert says in done.stdout

"""The wheel that `python -m build` makes: it has every file of the package, and runs where no checkout is.

No network is needed: the wheel alone is installed into a new environment, and takes its dependencies
from the environment that runs the tests.
"""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import silodp

ROOT = Path(__file__).parents[1]
SMALLEST = ("rounds=1", "cohort.slices=40", "cohort.image_size=32", "model.features=2", "model.levels=1")


def run(*command: object, cwd: Path) -> str:
    """What a command says, with nothing in its environment that leads Python to the checkout."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GIT_"))}
    done = subprocess.run(
        list(map(str, command)), env=clean, cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel in it."""
    place = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=place)
    python = place / "bin/python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=place)
    # Python reads no .pth files in a folder that a .pth file names: the checkout's stays unread.
    (own,) = place.glob("lib/python*/site-packages")
    paths = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (own / "dependencies.pth").write_text("\n".join(paths) + "\n")
    return place


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "src/silodp", cwd=ROOT)
    kept = {name.removeprefix("src/") for name in listed.splitlines() if (ROOT / name).is_file()}
    for needed in ("py.typed", "presets/demo.toml", "starts/head.safetensors", "report/style.css"):
        assert f"silodp/{needed}" in kept
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    about = {name for name in inside if name.startswith(f"silodp-{silodp.__version__}.dist-info/")}
    assert inside - about == kept


def test_it_is_the_installed_package_that_runs(environment: Path, tmp_path: Path) -> None:
    code = "import silodp, importlib.metadata as m; print(silodp.__file__, m.version('silodp'), sep='\\n')"
    place, version = run(environment / "bin/python", "-c", code, cwd=tmp_path).splitlines()
    assert Path(place).is_relative_to(environment)
    assert version == silodp.__version__


def test_its_commands_run_from_another_folder(environment: Path, tmp_path: Path) -> None:
    program = environment / "bin/silodp"
    # A commit in brackets would follow the version of a checkout.
    assert run(program, "--version", cwd=tmp_path).startswith(f"silodp {silodp.__version__}, PyTorch ")
    assert "Train one experiment." in run(program, "--help", cwd=tmp_path)
    assert "prostate-hospital" in run(program, "presets", cwd=tmp_path)
    changes = [word for change in SMALLEST for word in ("--set", change)]
    run(program, "run", "demo", *changes, "--device", "cpu", "--out", "run", cwd=tmp_path)
    assert (tmp_path / "run/summary.json").is_file()
    run(program, "report", "run", cwd=tmp_path)  # by templates and a sheet that are no Python
    assert (tmp_path / "run/report.html").is_file()

"""The small things that a person meets every day: versions, help, the demo's end, names of folders."""

import os
import subprocess
import sys
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from conftest import command_line as silodp
from conftest import forked, noting_browser

import silodp as package
from silodp.cli import demo
from silodp.cli.commands import COMMANDS
from silodp.errors import InputError
from silodp.runs.places import new_folder
from silodp.runs.version import version

TINY = ("rounds=1", "cohort.slices=40", "cohort.image_size=32", "model.features=2", "model.levels=1")


def test_the_version_names_silodp_and_pytorch() -> None:
    done = silodp("--version")
    assert (done.returncode, done.stdout) == (0, f"silodp {version()}, PyTorch {torch.__version__}\n")


def test_help_lists_commands_in_the_order_of_use() -> None:
    lines = silodp("--help").stdout.splitlines()
    words = [line.split(" ")[2] for line in lines[lines.index("Commands:") + 1 :]]
    assert [word for word in words if word] == list(COMMANDS)


@pytest.mark.parametrize(
    ("words", "meant"), [(["rnu"], "run"), (["audti", "x"], "audit"), (["data", "chek"], "check")]
)
def test_a_misspelt_command_is_guessed(words: list[str], meant: str) -> None:
    done = silodp(*words)
    assert done.returncode == 2
    assert f"Did you mean '{meant}'?" in done.stderr


SMALL_DEMO = f"""
from silodp.cli import demo
small = dict(change.split("=") for change in {TINY})
for changes in demo.VARIANTS.values():  # a start has the network that it has
    changes |= {{key: int(small[key]) for key in small if not ("model.start" in changes and "model." in key)}}
"""


def test_the_demo_ends_with_its_page(tmp_path: Path) -> None:
    code = f"{SMALL_DEMO}\nfrom silodp.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "--seed", "3", "--open"],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ | noting_browser(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = tmp_path / "runs/demo-1/report.html"
    assert (tmp_path / "opened").read_text().strip() == page.as_uri()
    assert done.stdout.endswith(f"{page.relative_to(tmp_path)}\n")
    assert "seed = 3" in (tmp_path / "runs/demo-1/dp-fedavg/experiment.toml").read_text()


def test_the_demo_ends_with_the_command_for_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "VARIANTS", deepcopy(demo.VARIANTS))
    exec(SMALL_DEMO, {})
    done = silodp("demo", cwd=tmp_path)
    assert done.stdout.endswith("page: silodp report runs/demo-1 --open\n"), done.stderr
    assert not (tmp_path / "runs/demo-1/report.html").exists()


def test_folders_asked_for_at_the_same_time_are_not_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        taken = [stack.enter_context(new_folder(None, "mine")) for _ in range(3)]
        assert taken == [Path(f"runs/mine-{number}") for number in (1, 2, 3)]
        assert all(path.stat().st_mode & 0o777 == 0o700 for path in taken)
        (taken[1] / "file").touch()
    assert [str(path) for path in Path().rglob("*")] == ["runs", "runs/mine-2", "runs/mine-2/file"]
    with pytest.raises(InputError, match="exists already"), new_folder(taken[1], "mine"):
        pass


def test_a_folder_that_stays_empty_goes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with new_folder(None, "mine"):
        pass
    assert list(tmp_path.iterdir()) == []
    Path("runs").mkdir()  # somebody's own
    with new_folder(None, "mine"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def _run(folder: Path) -> None:
    options = [word for change in TINY for word in ("--set", change)]
    done = silodp("run", "prostate-small", *options, "--device", "cpu", cwd=folder)
    (folder / f"{os.getpid()}.code").write_text(f"{done.returncode} {done.stderr}")


def test_two_runs_started_at_the_same_second_take_two_folders(tmp_path: Path) -> None:
    processes = [forked(_run, tmp_path) for _ in range(2)]
    for process in processes:
        process.join()
    said = [path.read_text() for path in tmp_path.glob("*.code")]
    assert [one.split()[0] for one in said] == ["0", "0"], said
    assert sorted(path.parent.name for path in tmp_path.glob("runs/*/summary.json")) == [
        "prostate-small-1",
        "prostate-small-2",
    ]


def test_the_package_shows_its_public_names() -> None:
    assert set(dir(package)) == {*package.__all__, "__version__"}
    assert all(getattr(package, name) is not None for name in dir(package))

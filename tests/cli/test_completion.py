"""The Tab key, by the protocol that shells use, in a process that cannot import PyTorch."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from silodp.cli import completion
from silodp.experiment import preset_names
from silodp.studies import study_names

WITHOUT_PYTORCH = """
import contextlib, io, json, os, sys
sys.modules["torch"] = None  # so that it cannot be imported
from silodp.cli import main
for line in sys.stdin:
    folder, words = json.loads(line)
    os.chdir(folder)
    os.environ |= {"COMP_WORDS": "\\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    sys.argv, code, said, complained = ["silodp"], 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, said.getvalue(), complained.getvalue()]), flush=True)
"""

Offered = Callable[..., list[str]]


@pytest.fixture(scope="module")
def offered() -> Iterator[Offered]:
    """What bash is told, in a folder, when the last of some words has been begun."""
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_PYTORCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "_SILODP_COMPLETE": "complete_bash"}, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(folder: Path, *words: str) -> list[str]:
            print(json.dumps([str(folder), ["silodp", *words]]), file=process.stdin, flush=True)
            code, said, complained = json.loads(process.stdout.readline())
            assert (code, complained) == (0, "")
            return said.split("\n")[:-1] if said != "\n" else []

        yield ask


def make_run(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "experiment.toml").touch()


def test_commands_and_studies(tmp_path: Path, offered: Offered) -> None:
    assert offered(tmp_path, "re") == ["resume", "report"]
    assert offered(tmp_path, "study", "") == study_names()
    assert offered(tmp_path, "study", "worth") == ["worth-it-prostate", "worth-it-ich"]


@pytest.mark.parametrize("command", [["run"], ["audit"], ["attack"], ["deploy", "run", "kit"]])
def test_presets_and_toml_files(command: list[str], tmp_path: Path, offered: Offered) -> None:
    (tmp_path / "mine.toml").touch()
    (tmp_path / "mine.txt").touch()
    assert offered(tmp_path, *command, "") == [*preset_names(), "mine.toml"]
    assert offered(tmp_path, *command, "mi") == ["mine.toml"]


@pytest.mark.parametrize(
    "command",
    [
        [name]
        for name in ("resume", "report", "predict", "evaluate", "export", "personalise", "privacy", "attack")
    ]
    + [["report", "runs/other-1"]],
)
def test_folders_of_runs(command: list[str], tmp_path: Path, offered: Offered) -> None:
    make_run(tmp_path / "runs/demo-1/dp-fedavg")
    make_run(tmp_path / "runs/other-1")
    (tmp_path / "runs/empty").mkdir()
    assert offered(tmp_path, *command, "ru") == ["runs/demo-1/dp-fedavg", "runs/other-1"]
    assert offered(tmp_path, *command, "runs/o") == ["runs/other-1"]


def test_runs_elsewhere(tmp_path: Path, offered: Offered) -> None:
    make_run(tmp_path / "studies/runs/first")
    assert offered(tmp_path, "resume", "studies/") == ["studies/runs/first"]
    beginning = f"{tmp_path}/studies/runs/f"
    assert offered(Path("/"), "resume", beginning) == [f"{beginning}irst"]


def test_names_that_a_shell_would_take_for_commands_are_not_offered(tmp_path: Path, offered: Offered) -> None:
    for name in ("good", "two words", "$(touch taken)", "`touch taken`", "a;b", "\x1b[2J", "quote'"):
        make_run(tmp_path / "runs" / name)
    (tmp_path / "$(x).toml").touch()
    assert offered(tmp_path, "attack", "") == ["runs/good", *preset_names()]


def test_files_are_left_to_the_shell(tmp_path: Path, offered: Offered) -> None:
    (tmp_path / "scans").mkdir()
    for words in (["data", "check", "sc"], ["run", "--out", "sc"], ["resume", "sc"], ["run", "sc"]):
        assert offered(tmp_path, *words) == []


def test_a_folder_that_may_not_be_looked_into_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path, deep: int) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("silodp.runs.places.runs_in", refuse)
    assert completion.run_folders("ru") == []


def test_installing_writes_what_bash_then_uses(tmp_path: Path) -> None:
    """Bash itself completes a line, after it has read what was installed for it."""
    program = tmp_path / "silodp"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import sys; sys.argv[0] = \"silodp\"; "
                       'from silodp.cli import main; main()\' "$@"\n')  # fmt: skip
    program.chmod(0o755)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    bash = shutil.which("bash")
    assert bash is not None

    def shell(script: str) -> str:
        done = subprocess.run(
            [bash, "--norc", "-c", script],
            env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return done.stdout

    shown = shell("silodp --show-completion; true")  # `true`: or bash would become silodp, and not be found
    assert "complete -o default -F _silodp_completion silodp" in shown
    assert "bash completion installed" in shell("silodp --install-completion; true")
    assert "source" in (tmp_path / ".bashrc").read_text()
    typed = 'COMP_WORDS=(silodp study fig); COMP_CWORD=2; _silodp_completion silodp; echo "${COMPREPLY[@]}"'
    assert shell(f'. "$HOME/.bashrc"; {typed}').split() == [
        name for name in study_names() if name.startswith("fig")
    ]

"""Text for the terminal: names from files steer nothing, and a plain terminal gets words, not a crash."""

import io
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import command_line, command_of, in_a_process
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.table import Table

from silodp.cli.terminal import console, prepare_streams, print_error, printable, say
from silodp.cohorts.catalogue import Problem
from silodp.errors import InputError

ESCAPE = "\x1b[2J\x1b[31mred\x9b1A"


@given(st.text())
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    lines = printable(text)
    assert not any((ord(sign) < 32 and sign not in "\t\n") or 127 <= ord(sign) < 160 for sign in lines)
    assert printable(lines) == lines
    one = printable(text, one_line=True)
    assert "\n" not in one
    one.encode()  # no half of a pair is left, which no stream could write


def test_an_error_is_one_line_with_its_way_out() -> None:
    error = InputError(f"{ESCAPE}\n{'x' * 100_000}; rename it")
    assert str(error).startswith("\\x1b[2J\\x1b[31mred\\x9b1A\\nxxx")
    assert str(error).endswith("xxx; rename it")
    assert len(str(error)) < 3000
    assert str(Problem("a\nb: it is fine", "it is not")) == "a\\nb: it is fine: it is not"


def test_what_is_plain_stays_as_it_is() -> None:
    text = "ε ≤ 3, «Zürich», 東京, 🙂"
    assert printable(text) == text
    assert printable("a\x1b[2Jb\nc", one_line=True) == "a\\x1b[2Jb\\nc"


def test_every_way_to_the_terminal_is_made_printable(capsys: pytest.CaptureFixture[str]) -> None:
    say(ESCAPE)
    print_error(f"{ESCAPE}\nmore")
    console().print(ESCAPE)
    console(stderr=True).print(ESCAPE)
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert "\x1b" not in text
        assert "\x9b" not in text
        assert "\\x1b[2J" in text
    assert "\\nmore" in shown.err


def test_tables_keep_their_own_colours_and_show_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    screen = console()
    screen._force_terminal, screen._color_system = True, screen._detect_color_system()
    table = Table(title=f"[bold]{ESCAPE}[/nothing]")
    table.add_column(f"hospital {ESCAPE}")
    table.add_row(f"[/] {ESCAPE}")
    screen.print(table)
    assert "\x1b[2J" not in out.getvalue()
    assert "\\x1b[2J" in out.getvalue()
    assert "[/] " in out.getvalue()  # no markup


def test_log_lines_are_made_printable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    prepare_streams()
    logging.getLogger("silodp").warning("round %d: %s counts as absent", 3, f"St. {ESCAPE}\nMary")
    assert capsys.readouterr().err == (
        "silodp: round 3: St. \\x1b[2J\\x1b[31mred\\x9b1A\\nMary counts as absent\n"
    )


def test_names_of_files_and_hospitals_are_shown_and_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0)
    for hospital in (f"A{ESCAPE}", "B"):
        for kind in ("ill", "well"):
            folder = tmp_path / "data" / hospital / kind
            folder.mkdir(parents=True)
            for number in range(6):
                image = Image.fromarray(noise.integers(0, 255, (16, 16)).astype(np.uint8))
                image.save(folder / f"{number}.png")
            (folder / f"{ESCAPE}.png").write_bytes(b"broken")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checked = command_line("data", "check", tmp_path / "data")
    refused = command_line("run", "--set", "cohort.path=x", "--set", tmp_path / "data")
    assert "\x1b" not in checked.stdout + checked.stderr + refused.stdout + refused.stderr
    assert (checked.returncode, refused.returncode) == (1, 2)
    assert "A\\x1b[2J" in checked.stdout


def test_a_terminal_of_the_c_locale() -> None:
    found = in_a_process(
        "privacy", "--noise-multiplier", "1", "--hospitals", "20", "--intermediaries", "12",
        LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii",
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")
    assert "eps add-or-" in found.stdout
    assert "7,478.2" in found.stdout


def test_standard_output_on_a_full_disk_is_one_line() -> None:
    command = command_of("presets")
    with open("/dev/full", "w") as full:
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr == "silodp: [Errno 28] No space left on device\n"

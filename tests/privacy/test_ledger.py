"""The ledger: what was released stands on disk first, and nobody can quietly take it back."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from silodp.errors import InputError
from silodp.privacy.events import Event
from silodp.privacy.ledger import Ledger, read_ledger


def event(round_: int, digest: str = "d") -> Event:
    return Event(round_, "model update", True, 0.5, 15, 1.25, "all", 1.0, digest=f"{digest}{round_}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def three(path: Path) -> list[Event]:
    """A ledger of three rounds on disk."""
    events = [event(1), event(2), event(3)]
    ledger = Ledger(path)
    for one in events:
        ledger.record([one])
    return events


def test_events_come_back_as_they_were(path: Path) -> None:
    quantile = Event(1, "clip quantile", True, 0.1, 3, None, "poisson", 0.3, digest="é\n")
    median = Event(1, "median norm", False, 0.0, 3, 2.0, "fraction", 2 / 3)
    Ledger(path).record([event(1), quantile])
    Ledger(path).record([median])
    assert Ledger(path).events == [event(1), quantile, median]


def test_a_new_ledger_is_an_empty_file(path: Path) -> None:
    assert Ledger(path).events == []
    assert path.read_bytes() == b""
    assert Ledger(path).events == []


def test_lines_are_readable_json(path: Path, three: list[Event]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert {line["noise_multiplier"] for line in lines} == {0.5}
    assert len({line["chain"] for line in lines}) == 3


def test_a_torn_last_line_is_dropped_wherever_it_tore(path: Path, three: list[Event]) -> None:
    content = path.read_bytes()
    whole = content[: content[:-1].rindex(b"\n") + 1]
    for cut in range(len(whole) + 1, len(content), 7):
        path.write_bytes(content[:cut])
        ledger = Ledger(path)
        assert ledger.events == three[:2]
        assert path.read_bytes() == content[:cut]  # opening changes nothing
        ledger.repair()
        assert path.read_bytes() == whole
        ledger.close()


def test_a_ledger_goes_on_after_a_torn_line(path: Path, three: list[Event]) -> None:
    path.write_bytes(path.read_bytes()[:-5])
    Ledger(path).record([event(3), event(4)])
    assert Ledger(path).events == [*three, event(4)]


@pytest.mark.parametrize("line", [0, 1, 2])
@pytest.mark.parametrize(
    ("field", "value"),
    [("noise_multiplier", 5.0), ("contributions", 1), ("round", 9), ("protected", False), ("digest", "x")],
)
def test_a_changed_line_is_refused(
    path: Path, three: list[Event], line: int, field: str, value: object
) -> None:
    lines = path.read_text().splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | {field: value})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=rf"line {line + 1}: .*changed"):
        Ledger(path)


@pytest.mark.parametrize(
    ("order", "line"), [([1, 2], 1), ([0, 2], 2), ([1, 0, 2], 1), ([0, 0, 1, 2], 2)],
    ids=["first deleted", "second deleted", "swapped", "repeated"],
)  # fmt: skip
def test_deleted_moved_and_repeated_lines_are_refused(
    path: Path, three: list[Event], order: list[int], line: int
) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[number] for number in order))
    with pytest.raises(InputError, match=rf"line {line}: .*changed"):
        Ledger(path)


@pytest.mark.parametrize("content", ["hello\n", "\n", "[]\n", "{}\n", '{"chain": "", "colour": 1}\n', "3\n"])
def test_what_is_no_entry_is_refused(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(InputError, match=r"ledger\.jsonl, line 1: not a ledger entry"):
        Ledger(path)


def test_a_refused_ledger_is_left_as_it_was(path: Path, three: list[Event]) -> None:
    spoilt = path.read_text().replace("0.5", "5.0", 1) + "torn"
    path.write_text(spoilt)
    with pytest.raises(InputError):
        Ledger(path)
    assert path.read_text() == spoilt


def test_the_same_release_drawn_again_counts_once(path: Path, three: list[Event]) -> None:
    content = path.read_bytes()
    for _ in range(2):
        ledger = Ledger(path)
        ledger.record(three)
        assert ledger.events == three
        ledger.close()
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "change", [{"digest": "other"}, {"noise_multiplier": 0.4}, {"contributions": 2}, {"round": 4}]
)
def test_another_release_counts_again(path: Path, three: list[Event], change: dict[str, object]) -> None:
    other = replace(three[-1], **change)  # type: ignore[arg-type]
    Ledger(path).record([other])
    assert Ledger(path).events == [*three, other]


def test_record_returns_only_when_the_events_are_on_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(path)
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, path.read_text()))

    monkeypatch.setattr(os, "fsync", fsync)
    ledger.record([event(1), event(2)])
    assert synced[-1] == (path.stat().st_ino, path.read_text())
    assert synced[-1][1].count("\n") == 2


def test_a_ledger_has_one_writer_at_a_time(path: Path, three: list[Event]) -> None:
    first = Ledger(path)
    with pytest.raises(
        InputError, match=r"ledger\.jsonl: another process is writing this ledger; wait for it"
    ):
        Ledger(path)
    assert read_ledger(path).events == three  # reading is free
    first.close()
    Ledger(path).record([event(4)])


def _appended(path: Path) -> None:
    line = path.read_bytes().splitlines(keepends=True)[-1]
    with path.open("ab") as file:
        file.write(line)


def _other_last_line(path: Path) -> None:
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(content[:-4] + bytes([content[-4] ^ 1]) + content[-3:])


def _replaced(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_appended, "was written to by another process"),
        (_other_last_line, "was written to by another process"),
        (lambda path: os.truncate(path, 10), "was written to by another process"),
        (_replaced, "was removed or replaced"),
        (lambda path: path.unlink(), "was removed or replaced"),
    ],
    ids=["appended", "last line", "cut", "replaced", "removed"],
)
def test_a_ledger_that_somebody_else_changed_takes_no_release(
    harm: Callable[[Path], None], message: str, path: Path, three: list[Event]
) -> None:
    """flock binds nobody who does not ask for it: a copy put in place, an editor, another program."""
    ledger = Ledger(path)
    ledger.check()
    harm(path)
    before = path.read_bytes() if path.exists() else b""
    for act in (ledger.check, lambda: ledger.record([event(4)])):
        with pytest.raises(InputError, match=message):
            act()
    assert (path.read_bytes() if path.exists() else b"") == before
    assert ledger.events == three


def test_a_ledger_replaced_while_it_is_written_releases_nothing(
    path: Path, three: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(path)
    monkeypatch.setattr(os, "fsync", lambda _: _replaced(path))
    with pytest.raises(InputError, match="was removed or replaced"):
        ledger.record([event(4)])


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_full_disk_leaves_no_part_of_a_line_and_the_event_is_written_next_time(
    failing: str, path: Path, three: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, before, write = Ledger(path), path.read_bytes(), os.write

    def full(descriptor: int, content: bytes = b"") -> int:
        write(descriptor, content[:20])
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, failing, full)
        with pytest.raises(InputError, match=r"ledger\.jsonl: cannot be written \(no space left on device\)"):
            ledger.record([event(4)])
    assert path.read_bytes() == before
    ledger.record([event(4)])
    assert read_ledger(path).events == [*three, event(4)]


def test_the_head_after_an_event_is_the_same_however_much_follows(path: Path, three: list[Event]) -> None:
    ledger = Ledger(path)
    assert [ledger.head_after([one]) for one in three] == ledger.chains
    assert ledger.head_after(three) == ledger.head

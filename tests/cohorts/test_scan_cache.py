"""A look at very many files is remembered, and whatever would make it another one is noticed."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cohort_files import save, write_csv

from silodp.cohorts import cache as cached
from silodp.cohorts import scan_cache
from silodp.cohorts.inspection import inspect, recognise
from silodp.cohorts.loading import look, read_store
from silodp.cohorts.sources import rsna_ich, rsna_labels
from silodp.cohorts.sources.rsna_ich import RsnaIch
from silodp.errors import InputError

HEADER = "ImageID,epidural,intraparenchymal,intraventricular,subarachnoid,subdural,healthy"
HEALTHY, ILL = "0,0,0,0,0,1", "0,0,0,0,1,0"


def draw(path: Path, grey: int) -> None:
    pixels = np.full((16, 16, 3), grey, dtype=np.uint8)
    pixels[0, 0] = 255 - grey
    save(path.parent, path.name, pixels)


def label(root: Path, **images: str) -> None:
    write_csv(root / "labels.csv", HEADER, *(f"{name},{values}" for name, values in images.items()))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six images; any number of files are many."""
    monkeypatch.setattr(rsna_ich, "MANY", 1)
    root = tmp_path / "ct"
    for number in range(6):
        draw(root / "images" / f"ID_{number}.png", 10 * number)
    label(root, **{f"ID_{number}": (HEALTHY, ILL)[number % 2] for number in range(6)})
    return root


@pytest.fixture
def settings(root: Path, tmp_path: Path) -> RsnaIch:
    return RsnaIch(path=str(root), cache=str(tmp_path / "cache"), image_size=16, hospitals=2)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where `scan` has looked."""
    looked: list[Path] = []
    scan = RsnaIch.scan

    def counted(self: RsnaIch, root: Path) -> object:
        looked.append(root)
        return scan(self, root)

    monkeypatch.setattr(RsnaIch, "scan", counted)
    return looked


def without_reader(found: object) -> dict[str, object]:
    return {name: value for name, value in vars(found).items() if name != "read"}


def outcome(work: Callable[[], object]) -> object:
    """What was found, or what was said instead."""
    try:
        return without_reader(work())
    except InputError as error:
        return str(error)


def test_the_second_look_finds_the_same_and_opens_no_list(
    settings: RsnaIch, scans: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = look(settings)
    assert len(first.scans) == 6
    monkeypatch.setattr(rsna_labels, "open_plain", None)  # whatever would open one fails
    second = look(settings)
    assert scans == [settings.root]
    assert without_reader(second) == without_reader(first)
    assert second.read(second.scans[3]).rows[0].name == "images/ID_3.png"


def test_few_files_are_looked_at_each_time(
    settings: RsnaIch, scans: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rsna_ich, "MANY", 8)
    look(settings)
    look(settings)
    assert len(scans) == 2


def test_a_sample_and_what_is_wrong_are_remembered(root: Path, settings: RsnaIch, scans: list[Path]) -> None:
    label(root, ID_0=HEALTHY, ID_1=ILL, ID_2=HEALTHY, ID_3=ILL, ID_9=ILL)
    some = settings.model_copy(update={"sample": 2})
    first, second = look(some), look(some)
    assert len(scans) == 1
    assert without_reader(second) == without_reader(first)
    assert len(second.scans) == 2
    assert [problem.name for problem in second.problems] == ["ID_9"]
    assert "2 of 4 files" in second.notes[-1]
    assert len(look(settings).scans) == 4  # other settings, another look
    look(some.model_copy(update={"hospitals": 2, "image_size": 32}))
    assert len(scans) == 2  # these are no matter of names


def changed_label(root: Path) -> None:
    times = os.stat(root / "labels.csv")
    label(root, **{f"ID_{number}": (ILL, HEALTHY)[number % 2] for number in range(6)})
    os.utime(root / "labels.csv", ns=(times.st_atime_ns, times.st_mtime_ns))  # only the time of change tells


def link_elsewhere(root: Path) -> None:
    (root / "more" / "ID_0.png").unlink()
    (root / "more" / "ID_0.png").symlink_to(root / "images" / "ID_1.png")


@pytest.mark.parametrize(
    "change",
    [
        lambda root: draw(root / "images" / "ID_7.png", 3),
        lambda root: (root / "images" / "ID_4.png").unlink(),
        lambda root: (root / "images" / "ID_4.png").rename(root / "images" / "ID_8.png"),
        lambda root: (root / "images").rename(root / "pictures"),
        lambda root: (root / "other.csv").write_text(f"{HEADER}\nID_0,{ILL}\n"),
        changed_label,
        link_elsewhere,
    ],
)
def test_another_name_list_or_link_is_noticed(
    change: Callable[[Path], object], root: Path, settings: RsnaIch, scans: list[Path]
) -> None:
    (root / "more").mkdir()
    (root / "more" / "ID_0.png").symlink_to(root / "images" / "ID_0.png")
    look(settings)
    change(root)
    before = len(scans)
    found = outcome(lambda: look(settings))
    assert len(scans) == before + 1
    assert found == outcome(lambda: settings.scan(root))


def test_an_image_that_was_replaced_is_read_again(root: Path, settings: RsnaIch, scans: list[Path]) -> None:
    before = read_store(settings)
    image = root / "images" / "ID_2.png"
    times = os.stat(image)
    draw(image, 21)
    os.utime(image, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = read_store(settings)
    assert len(scans) == 1  # the same names and lists
    number = [row.name for row in after.rows].index("images/ID_2.png")
    assert after.images[number].max() != before.images[number].max()


def test_what_an_older_version_saw_is_looked_at_again(
    settings: RsnaIch, scans: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have read names and lists in another way."""
    look(settings)
    monkeypatch.setattr(scan_cache, "__version__", "99")
    look(settings)
    look(settings)
    assert len(scans) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"decided_by": 3}', b"\xff"])
def test_a_damaged_memory_is_none(
    content: bytes, settings: RsnaIch, tmp_path: Path, scans: list[Path]
) -> None:
    first = look(settings)
    (memory,) = (tmp_path / "cache" / "looks").iterdir()
    memory.write_bytes(content)
    assert without_reader(look(settings)) == without_reader(first)
    assert len(scans) == 2
    assert json.loads(memory.read_bytes())["scans"]


def test_memories_are_private_one_for_each_cohort_and_go_with_the_cache(
    root: Path, settings: RsnaIch, tmp_path: Path
) -> None:
    read_store(settings)
    draw(root / "images" / "ID_7.png", 3)
    read_store(settings)
    folder = tmp_path / "cache" / "looks"
    (memory,) = folder.iterdir()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder, memory)]
    assert modes == [0o700, 0o700, 0o600]
    assert cached.clear(folder.parent)
    assert not folder.exists()


def test_a_cache_that_cannot_be_written_is_told_by_whoever_decodes(settings: RsnaIch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert len(look(settings).scans) == 6
    with pytest.raises(ValueError, match=r"cohort\.cache = .*: cannot be made"):
        read_store(settings)


def test_a_folder_is_walked_through_once_for_all_kinds(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[Path] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: walked.append(Path(path)) or scandir(path))

    def once() -> bool:
        seen = sorted(path for path in walked if path.is_relative_to(root))
        return seen == [root, root / "images"]

    given = {"path": str(root), "cache": str(tmp_path / "cache")}
    assert recognise(given)[0].kind == "rsna-ich"
    assert once()
    walked.clear()
    draw(root / "images" / "ID_7.png", 3)
    findings = inspect(given)[0]  # another call, another walk
    assert once()
    assert any("1 image files have no label" in note for note in findings.notes)

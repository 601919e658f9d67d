"""Decoded once: what is kept, when it is decoded again, and what a broken file does."""

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import forked
from PIL import Image

from silodp.cohorts import store as store_module
from silodp.cohorts.catalogue import Catalogue, Pictures, Problem, Scan
from silodp.cohorts.kinds import CohortSettings
from silodp.cohorts.sources.pixels import read_picture
from silodp.cohorts.store import Store, build_store, cached_store, open_store
from silodp.errors import InputError

SETTINGS = CohortSettings.of(kind="folder", image_size=16, channels=1)


class Files:
    """A folder of pictures, and how often each was decoded."""

    def __init__(self, root: Path, count: int = 6) -> None:
        self.root, self.decoded = root, list[str]()
        root.mkdir(exist_ok=True)
        rng = np.random.default_rng(0)
        for number in range(count):
            pixels = rng.integers(0, 256, (16, 16), dtype=np.uint8)
            Image.fromarray(pixels).save(root / f"{number}.png")

    def catalogue(self, **changes: Any) -> Catalogue:
        scans = tuple(
            Scan(path.name, (path,), label=int(path.stem) % 2, patient=f"p{int(path.stem) // 2}")
            for path in sorted(self.root.glob("*.png"))
        )
        plain = Catalogue(
            "folder", self.root, "pictures", "class", ("a", "b"), scans, self.read, notes=("a note",)
        )
        return replace(plain, **changes)

    def read(self, scan: Scan) -> Pictures:
        self.decoded.append(scan.name)
        image = read_picture(scan.files[0])
        row = scan.row(size=image.shape[-2:], features={"slice": 1.5})
        return Pictures(image[None], scan.labels(1), (row,))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "files")


@pytest.fixture
def cached(files: Files, tmp_path: Path) -> Callable[..., Store]:
    def cached(settings: CohortSettings = SETTINGS, **changes: Any) -> Store:
        return cached_store(files.catalogue(**changes), settings, tmp_path / "cache")

    return cached


def test_a_store_holds_what_the_files_hold(files: Files, cached: Callable[..., Store]) -> None:
    store = cached()
    assert store.images.shape == (6, 1, 16, 16)
    assert store.images.dtype == np.uint8
    for number in range(6):
        assert np.array_equal(store.images[number], read_picture(files.root / f"{number}.png"))
    assert store.labels is not None
    assert store.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert [row.patient for row in store.rows] == ["p0", "p0", "p1", "p1", "p2", "p2"]
    assert store.rows[3].features == {"slice": 1.5}
    assert store.rows[3].size == (16, 16)
    assert (store.kind, store.classes, store.notes) == ("folder", ("a", "b"), ("a note",))
    assert isinstance(store.images, np.memmap)


def test_files_and_lists_are_known_by_their_sha256(files: Files, cached: Callable[..., Store]) -> None:
    table = files.root / "patients.csv"
    for path in (table, files.root / "0.png"):
        path.write_bytes(b"abc")
    store = cached(lists=(table,))
    assert set(store.files) == {f"{number}.png" for number in range(6)} | {"patients.csv"}
    # FIPS 180-2, appendix B.1
    assert store.files["0.png"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert store.files["patients.csv"] == store.files["0.png"]
    table.write_text("abcd")
    assert cached(lists=(table,)).folder != store.folder


def test_the_second_time_nothing_is_decoded(files: Files, cached: Callable[..., Store]) -> None:
    first = cached()
    assert len(files.decoded) == 6
    again = cached()
    assert len(files.decoded) == 6
    assert np.array_equal(first.images, again.images)
    assert first.rows == again.rows


def test_changed_content_is_decoded_again(files: Files, cached: Callable[..., Store]) -> None:
    first = cached()
    Image.fromarray(np.eye(16, dtype=np.uint8) * 255).save(files.root / "3.png")
    second = cached()
    assert np.array_equal(second.images[3, 0], np.eye(16) * 255)
    assert first.folder != second.folder
    assert first.files["2.png"] == second.files["2.png"]
    assert first.files["3.png"] != second.files["3.png"]


def test_the_same_content_elsewhere_is_the_same_store(
    files: Files, cached: Callable[..., Store], tmp_path: Path
) -> None:
    first = cached()
    for path in files.root.glob("*.png"):
        os.utime(path, (1, 1))
    assert cached().folder == first.folder
    copy = Files(tmp_path / "copy")
    assert cached_store(copy.catalogue(), SETTINGS, tmp_path / "cache").folder == first.folder


@pytest.mark.parametrize(
    "change",
    [
        {"image_size": 32},
        {"channels": 3},
        {"storage": "float16"},
        {"mask_labels": (1,)},
        {"with_mask_only": True},
    ],
)
def test_another_form_is_another_store(cached: Callable[..., Store], change: dict[str, Any]) -> None:
    first = cached()
    second = cached(SETTINGS.model_copy(update=change))
    assert first.folder != second.folder


def test_other_labels_are_another_store(files: Files, cached: Callable[..., Store]) -> None:
    first = cached()
    scans = files.catalogue().scans
    flipped = tuple(replace(scan, label=1 - (scan.label or 0)) for scan in scans)
    second = cached(scans=flipped)
    assert second.labels is not None
    assert second.labels.tolist() == [1, 0, 1, 0, 1, 0]
    assert first.folder != second.folder


def test_broken_files_are_named_together_and_stop_nothing(files: Files, cached: Callable[..., Store]) -> None:
    whole = (files.root / "1.png").read_bytes()
    (files.root / "1.png").write_bytes(whole[: len(whole) // 2])
    (files.root / "2.png").write_text("no picture")
    Image.fromarray(np.full((16, 16), 7, dtype=np.uint8)).save(files.root / "4.png")
    store = cached(problems=(Problem("9.png", "label without an image"),))
    names = [problem.name for problem in store.problems]
    assert names == ["9.png", "1.png", "2.png", "4.png"]
    assert "truncated" in store.problems[1].what
    assert store.problems[2].what == "it is not a picture, or its beginning is damaged"
    assert str(store.problems[3]) == "4.png: it is constant"
    assert [row.name for row in store.rows] == ["0.png", "3.png", "5.png"]
    assert store.labels is not None
    assert store.labels.tolist() == [0, 1, 1]


def test_a_file_that_cannot_be_opened_is_named_like_others(
    files: Files, cached: Callable[..., Store]
) -> None:
    (files.root / "2.png").unlink()
    (files.root / "2.png").symlink_to("nowhere")
    for _ in range(2):
        store = cached()
        assert [problem.name for problem in store.problems] == ["2.png"]
        assert len(store.rows) == 5


def test_content_that_kept_its_size_and_time_is_noticed(files: Files, cached: Callable[..., Store]) -> None:
    path = files.root / "3.png"
    first, times = cached(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(bytes(changed))
    os.utime(path, ns=times)
    assert cached().files["3.png"] != first.files["3.png"]


def decode_forty_times(root: Path, caches: Path) -> None:
    files = Files.__new__(Files)
    files.root, files.decoded = root, []
    for turn in range(40):
        assert len(cached_store(files.catalogue(), SETTINGS, caches / str(turn)).rows) == 6


def test_processes_that_decode_the_same_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    Files(tmp_path / "files")
    processes = [forked(decode_forty_times, tmp_path / "files", tmp_path) for _ in range(3)]
    for process in processes:
        process.join()
        assert process.exitcode == 0


def test_a_cache_that_cannot_be_made_says_what_to_set(files: Files, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"cohort\.cache = .*: cannot be made \(Not a directory\); set it"):
        cached_store(files.catalogue(), SETTINGS, tmp_path / "file/cache")


def test_a_problem_that_is_gone_is_forgotten(files: Files, cached: Callable[..., Store]) -> None:
    gone = Problem("masks/9.png", "a mask without an image")
    assert cached(problems=(gone,)).problems == (gone,)
    assert cached().problems == ()


def test_a_file_that_can_now_be_read_is_read(files: Files, cached: Callable[..., Store]) -> None:
    def without_decoder(scan: Scan) -> Pictures:
        if scan.name == "2.png":
            raise RuntimeError("install a decoder")
        return files.read(scan)

    assert [problem.what for problem in cached(read=without_decoder).problems] == [
        "cannot be read (install a decoder)"
    ]
    files.decoded.clear()
    assert cached(read=without_decoder).problems  # tried again, and only that one
    assert files.decoded == []
    assert cached().problems == ()
    assert len(cached().rows) == 6


def test_images_of_unlike_size_are_named(files: Files, cached: Callable[..., Store]) -> None:
    Image.fromarray(np.arange(600, dtype=np.uint16).astype(np.uint8).reshape(20, 30)).save(
        files.root / "2.png"
    )
    store = cached(SETTINGS.model_copy(update={"image_size": None}))
    (problem,) = store.problems
    assert str(problem) == (
        "2.png: it has the shape (1, 20, 30), others (1, 16, 16); set cohort.image_size and cohort.channels"
    )
    assert cached().problems == ()


def test_nothing_readable_at_all(files: Files, cached: Callable[..., Store]) -> None:
    for path in files.root.glob("*.png"):
        path.write_bytes(b"")
    store = cached()
    assert len(store.problems) == 6
    assert len(store.rows) == len(store.images) == 0


def test_progress_counts_every_file(files: Files, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    cached_store(files.catalogue(), SETTINGS, tmp_path / "cache", lambda *told: seen.append(told))
    assert seen == [(number, 6) for number in range(1, 7)]


def test_an_interrupted_decoding_leaves_nothing_that_is_taken_for_whole(files: Files, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    cache = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        cached_store(files.catalogue(), SETTINGS, cache, interrupt)
    assert list(cache.iterdir()) == []
    assert len(cached_store(files.catalogue(), SETTINGS, cache).rows) == 6


def test_what_a_kill_leaves_is_swept_after_a_day(files: Files, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    old, young = cache / ".part-old", cache / ".part-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (1, 1))
    (cache / ".part-gone").symlink_to("nowhere")  # as one that is finished while it is looked at
    cached_store(files.catalogue(), SETTINGS, cache)
    assert not old.exists()
    assert young.exists()


def test_a_damaged_store_is_decoded_again(files: Files, cached: Callable[..., Store]) -> None:
    first = cached()
    before = np.array(first.images)
    with (first.folder / "images.bin").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(InputError, match="not a complete store"):
        open_store(first.folder)
    assert np.array_equal(cached().images, before)


def test_a_store_of_another_version_is_refused_by_name(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    build_store(files.catalogue(), SETTINGS, tmp_path / "out")
    monkeypatch.setattr(store_module, "FORMAT", 99)
    with pytest.raises(InputError, match=r"prepared by another version of silodp.*prepare it again"):
        open_store(tmp_path / "out")


def test_others_on_the_machine_cannot_look_into_the_cache(cached: Callable[..., Store]) -> None:
    mode = stat.S_IMODE(cached().folder.parent.stat().st_mode)
    assert mode & 0o077 == 0

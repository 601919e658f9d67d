"""A disk that fills up at any write of a run: one line, no part of a file, and nothing lost."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from silodp import Cohort, Experiment, InputError, files, resume, train
from silodp.runs import folder as run_folder
from silodp.runs.statement import read_statement


class FullDisk:
    """From the write with this number on, every write fails; the first of them has written the half."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int) -> None:
        self.left, self.hit = number, False
        opened, write, fsync = files.private_open, os.write, os.fsync

        def private_open(path: Path, mode: str) -> Any:
            return _Filling(opened(path, mode), self)

        def os_write(descriptor: int, content: bytes) -> int:
            if self.is_full():
                write(descriptor, content[: len(content) // 2])
                raise no_space()
            return write(descriptor, content)

        def os_fsync(descriptor: int) -> None:
            if self.is_full():
                raise no_space()
            fsync(descriptor)

        patch.setattr(files, "private_open", private_open)
        patch.setattr(run_folder, "private_open", private_open)
        patch.setattr(os, "write", os_write)
        patch.setattr(os, "fsync", os_fsync)

    def is_full(self) -> bool:
        self.left -= 1
        self.hit |= self.left <= 0
        return self.left <= 0


class _Filling:
    """An open file on such a disk."""

    def __init__(self, file: Any, disk: FullDisk) -> None:
        self._file, self._disk = file, disk

    def write(self, content: Any) -> int:
        if self._disk.is_full():
            self._file.write(content[: len(content) // 2])
            raise no_space()
        return int(self._file.write(content))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_Filling":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fills_up(number: int, experiment: Experiment, cohort: Cohort, folder: Path) -> bool:
    """Whether the run was still at work at this write."""
    with pytest.MonkeyPatch.context() as patch:
        disk = FullDisk(patch, number)
        try:
            train(experiment, cohort=cohort, out=folder, device="cpu")
        except InputError as error:
            assert "cannot be written (No space left on device); make room" in str(error)  # noqa: PT017
    return disk.hit


def test_a_disk_that_fills_up_at_any_write(experiment: Experiment, cohort: Cohort, tmp_path: Path) -> None:
    asked = experiment.change(rounds=2, local__state="fresh")
    whole = train(asked, cohort=cohort, out=tmp_path / "whole", device="cpu").folder
    number = 1
    while fills_up(number, asked, cohort, folder := tmp_path / str(number)):
        assert not list(folder.rglob("*.part")), number
        if (folder / "experiment.toml").exists():
            if (folder / "ledger.jsonl").exists():
                assert read_statement(folder).problems == (), number
            resume(folder, cohort=cohort, device="cpu")
        else:
            train(asked, cohort=cohort, out=folder, device="cpu")
        for name in ("ledger.jsonl", "model.safetensors", "experiment.toml"):
            assert (folder / name).read_bytes() == (whole / name).read_bytes(), (number, name)
        number += 1
    assert number > 25  # each file of the run, and some more than once

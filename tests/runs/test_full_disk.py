"""A disk that fills up at any write of a run: one line, no part of a file, and nothing lost."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import blob_cohort
from torch import nn

from silodp import Experiment, InputError, files, resume, train
from silodp.runs import folder as run_folder
from silodp.runs.result import Result
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


def fills_up(number: int, start: Callable[[Path], Any], folder: Path) -> InputError | None:
    """What the run said where it was still at work at this write."""
    with pytest.MonkeyPatch.context() as patch:
        disk = FullDisk(patch, number)
        try:
            start(folder)
        except InputError as error:
            return error
    assert not disk.hit
    return None


def test_a_disk_that_fills_up_at_any_write(experiment: Experiment, tmp_path: Path) -> None:
    """There are about 150 of them, and two runs for each: of one layer, on two hospitals' few images."""
    asked, few = (
        experiment.change(rounds=2, local__state="fresh", executor="sequential"),
        blob_cohort(2, 10, 8),
    )

    def layer() -> nn.Module:
        torch.manual_seed(0)
        return nn.Conv2d(1, 1, 3, padding=1)

    def start(folder: Path) -> Result:
        return train(asked, cohort=few, model=layer(), out=folder, device="cpu")

    whole, number = start(tmp_path / "whole").folder, 1
    while error := fills_up(number, start, folder := tmp_path / str(number)):  # kept, as by a notebook
        assert "cannot be written (No space left on device); make room" in str(error)
        assert not list(folder.rglob("*.part")), number
        if (folder / "experiment.toml").exists():
            if (folder / "ledger.jsonl").exists():
                assert read_statement(folder).problems == (), number
            resume(folder, cohort=few, model=layer(), device="cpu")
        else:
            start(folder)
        for name in ("ledger.jsonl", "model.safetensors", "experiment.toml"):
            assert (folder / name).read_bytes() == (whole / name).read_bytes(), (number, name)
        number += 1
    assert number > 25  # each file of the run, and some more than once

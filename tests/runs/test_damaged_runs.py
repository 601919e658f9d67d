"""A run's files when the disk is full, and when others had them in their hands."""

import json
import os
import resource
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same_files, blob_cohort, killed_run

import silodp
from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.files import replacing, write_atomically
from silodp.privacy.events import Event, read_event
from silodp.privacy.ledger import _link, read_ledger
from silodp.runs.folder import RunFolder
from silodp.tensor_files import read_plain_values, same_form


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """No file grows beyond so many bytes, as on a disk without room (EFBIG rather than ENOSPC)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, b"old")
    with full_after(1000), pytest.raises(InputError, match=r"a\.json: cannot be written \(File too large\)"):
        write_atomically(path, bytes(10_000))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_any_other_error_while_writing_leaves_no_part(tmp_path: Path) -> None:
    def write() -> None:
        with replacing(tmp_path / "a") as file:
            file.write(bytes(1 // (len(os.listdir(tmp_path)) - 1)))

    with pytest.raises(ZeroDivisionError):
        write()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("state", "room", "file"), [("kept", 8_000, "hospitals"), ("fresh", 4_000, "checkpoint.pt")]
)
def test_a_full_disk_while_a_checkpoint_or_a_hospitals_state_is_written(
    state: str, room: int, file: str, experiment: Experiment, tmp_path: Path
) -> None:
    """One line; the last checkpoint is whole, and the run goes on from it when there is room again."""
    asked = experiment.change(local__state=state)
    whole = silodp.train(asked, cohort=blob_cohort(), out=tmp_path / "whole")
    folder = tmp_path / "run"
    killed_run(asked, 1, cohort=blob_cohort(), out=folder)
    before = (folder / "checkpoint.pt").read_bytes()
    with full_after(room), pytest.raises(InputError) as error:
        silodp.resume(folder, cohort=blob_cohort())
    assert str(error.value).startswith(f"{folder / file}")
    assert ": cannot be written (" in str(error.value)
    assert "\n" not in str(error.value)
    assert (folder / "checkpoint.pt").read_bytes() == before
    assert not list(folder.rglob("*.part"))
    resumed = silodp.resume(folder, cohort=blob_cohort())
    assert_same_files(folder, whole.folder, "model.safetensors")
    assert resumed.epsilon == whole.epsilon


@pytest.mark.parametrize(
    "content",
    [
        [],
        ["ledger", "identity"],
        None,
        {},
        {"ledger": 1, "identity": {"experiment": "a", "cohort": "b", "model": "c"}},
        {"ledger": "", "identity": []},
        torch.zeros(3),
    ],
)
def test_a_checkpoint_that_is_something_else(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "checkpoint.pt")
    for read in (RunFolder(tmp_path).checkpoint_facts, lambda: RunFolder(tmp_path).load_checkpoint(CPU)):
        with pytest.raises(InputError, match=r"checkpoint\.pt: not a checkpoint of silodp"):
            read()


CPU = torch.device("cpu")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("called",)


def test_plain_values_are_those_of_pytorch_and_nothing_in_the_file_is_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plain = tmp_path / "file.pt", {"text": "ε", "numbers": [1, 2.5, -(10**20), None, True], "none": {}}
    tensors = {"one": torch.zeros(3), "half": torch.zeros(2, 2, dtype=torch.float16), "size": torch.Size([3])}
    ordered = OrderedDict(a=1, b=torch.zeros(2))
    parameter = torch.nn.Parameter(torch.zeros(2))
    torch.save({**plain, "tensors": tensors, "ordered": ordered, "parameter": parameter}, path)
    found = read_plain_values(path)
    assert {name: found[name] for name in plain} == plain
    assert found["tensors"] == dict.fromkeys(tensors)
    assert (found["ordered"], found["parameter"]) == ({"a": 1, "b": None}, None)
    torch.save({"ledger": "", "evil": Evil()}, path)
    assert read_plain_values(path) == {"ledger": "", "evil": None}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "change",
    [
        {"round": "3"},
        {"parameters": torch.zeros(3)},
        {"parameters": [1.0]},
        {"optimizer": []},
        {"intermediaries": 1.5},
        {"more": 1},
    ],
)
def test_a_checkpoint_of_another_form_is_refused_before_anything_is_taken_from_it(
    change: dict[str, Any], experiment: Experiment, tmp_path: Path
) -> None:
    killed_run(experiment, 1, cohort=blob_cohort(), out=tmp_path / "run")
    path = tmp_path / "run/checkpoint.pt"
    content = torch.load(path, weights_only=True)
    torch.save(content | {"state": content["state"] | change}, path)
    with pytest.raises(InputError, match="its checkpoint was written by another version of silodp"):
        silodp.resume(tmp_path / "run", cohort=blob_cohort())


def test_forms() -> None:
    like = {"a": torch.zeros(2), "b": [{"c": 1}], "d": None, "e": (0, 0.0)}
    assert same_form({"a": torch.ones(2), "b": [], "d": "x", "e": [7, 1]}, like)
    assert same_form({"a": torch.ones(2), "b": [{"c": 2}] * 3, "d": None, "e": [7, 1.5]}, like)
    odd_ones = {"a": torch.ones(3)}, {"b": [{"c": True}]}, {"b": {}}, {"d": []}, {"e": [7]}, {"e": ["7", 1]}
    for odd in odd_ones:
        assert not same_form({"a": torch.ones(2), "b": [], "d": None, "e": [7, 1]} | odd, like)


@pytest.mark.parametrize(
    "line",
    [
        "[" * 20_000,
        "9" * 10_000,
        '{"round": 1}',
        '{"round": 1e400, "intermediaries": 1}',
        '{"round": "1", "intermediaries": 1}',
        "[1]",
        "{}",
        "3",
        "null",
        "\udcff",
    ],
)
def test_an_odd_line_of_metrics_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 1: .*; restore the file"):
        RunFolder(tmp_path).metrics()


@pytest.mark.parametrize(
    "change",
    [
        {"round": 0},
        {"round": 10**12},
        {"round": True},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": float("nan")},
        {"sampling_rate": 0.0},
        {"released": "anything"},
        {"contributions": "2"},
        {"clip_bound": []},
        {"digest": None},
    ],
)
def test_a_ledger_line_with_odd_values_is_refused_though_its_hash_fits(
    change: dict[str, Any], tmp_path: Path
) -> None:
    fields = asdict(Event(1, "model update", True, 1.0, 1, None, "all", 1.0))
    assert asdict(read_event(fields)) == fields
    odd = Event(**(fields | change))
    line = json.dumps(asdict(odd) | {"chain": _link("", odd)})
    (tmp_path / "ledger.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match="line 1: not a ledger entry; restore the file"):
        read_ledger(tmp_path / "ledger.jsonl")


@pytest.mark.parametrize("name", ["ledger.jsonl", "metrics.jsonl", "checkpoint.pt"])
def test_a_pipe_in_a_run_folder_is_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    folder = RunFolder(tmp_path)
    read = {"ledger.jsonl": folder.ledger, "metrics.jsonl": folder.metrics}.get(name, folder.checkpoint_facts)
    with pytest.raises(InputError, match=r"not a regular file|not a checkpoint"):
        read()

"""Files of a run that are damaged end in one line that names the file and the way out."""

import json
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from small_runs import CT

from silodp import Experiment, train
from silodp.errors import InputError
from silodp.report import make_report

FILES = ("summary.json", "cohort.json", "metrics.jsonl")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "healthy"
    train(Experiment.build(CT | {"rounds": 1}), out=folder, device="cpu")
    (folder / "model.safetensors").unlink()  # predictions take time, and are tested elsewhere
    cohort = json.loads((folder / "cohort.json").read_text())
    cohort |= {"patients": 9, "left_out": ["a"], "notes": ["b"], "files": {"c": "d"}, "partition": "given"}
    cohort["members"] = {"hospital": {"train": ["c"]}}
    write(folder, "cohort.json", cohort)
    told = json.loads((folder / "summary.json").read_text())
    told["cohort"]["position_auc"] = 0.5
    write(folder, "summary.json", told)
    return folder


@pytest.fixture
def run(healthy: Path, tmp_path: Path) -> Path:
    return shutil.copytree(healthy, tmp_path / "run")


def write(run: Path, name: str, content: Any) -> None:
    (run / name).write_text(json.dumps(content) + "\n")


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("summary.json", {}, r"summary\.json: experiment is missing; restore the file, or remove it"),
        ("summary.json", [], r"summary\.json: damaged; restore the file, or remove it"),
        (
            "metrics.jsonl",
            {"round": 1},
            r"metrics\.jsonl, line 1: applied is missing; restore the file",
        ),
        ("cohort.json", {"images": 45}, r"cohort\.json: cohort is missing; restore the file, or remove it"),
    ],
)
def test_what_is_missing_is_named(name: str, content: Any, says: str, run: Path) -> None:
    write(run, name, content)
    with pytest.raises(InputError, match=says) as error:
        make_report([run], run / "report.html")
    assert "\n" not in str(error.value)
    assert not (run / "report.html").exists()


def test_a_cohort_without_hospitals(run: Path) -> None:
    write(run, "cohort.json", json.loads((run / "cohort.json").read_text()) | {"hospitals": {}})
    with pytest.raises(InputError, match=r"cohort\.json: hospitals is "):
        make_report([run], run / "report.html")


@pytest.mark.parametrize("name", ["summary.json", "cohort.json"])
def test_a_file_may_be_removed_as_suggested(name: str, run: Path) -> None:
    (run / name).unlink()
    assert make_report([run], run / "report.html").exists()


def places(content: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything in it; of the entries of a list or of hospitals, the first will do."""
    if isinstance(content, dict):
        for number, (key, value) in enumerate(content.items()):
            if number == 0 or before[-1:] != ("hospitals",):
                yield (*before, key)
                yield from places(value, (*before, key))
    elif isinstance(content, list) and content:
        yield (*before, 0)
        yield from places(content[0], (*before, 0))


def at(content: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        content = content[key]
    return content


def put(value: Any) -> Callable[[Any, Any], None]:
    def change(holder: Any, key: Any) -> None:
        holder[key] = value

    return change


def remove(holder: Any, key: Any) -> None:
    del holder[key]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", [remove, put(None), put("half \ud800 of a pair"), put([])])
def test_whatever_is_damaged_there_is_a_page_or_one_line(
    name: str, harm: Callable[[Any, Any], None], run: Path
) -> None:
    """Every field in turn is taken away, or is something else: never a traceback."""
    content = lines(run)[0] if name == "metrics.jsonl" else json.loads((run / name).read_text())
    found = list(places(content))
    assert len(found) > 25
    refused = []
    for place in found:
        damaged = deepcopy(content)
        harm(at(damaged, place[:-1]), place[-1])
        write(run, name, damaged)
        try:
            make_report([run], run / "report.html")
        except InputError as error:
            refused.append(str(error))
    assert refused
    assert [line for line in refused if name not in line or "restore the file" not in line] == []

"""A start: what its file may hold, where it says that it comes from, and what a run makes of that."""

import io
import json
from pathlib import Path

import pytest
import torch
from conftest import blob_cohort
from safetensors.torch import save, save_file
from torch import nn

from silodp import Cohort, Experiment, train
from silodp.errors import InputError
from silodp.models.kinds import ModelSettings
from silodp.models.start import CARRIED, begin_with, carried_starts, read_start, write_start
from silodp.report.page import compose
from silodp.report.reading import read_runs
from silodp.runs.statement import read_statement
from silodp.runs.training import resume

NETWORK = ModelSettings.of(kind="unet", features=2, levels=1, affine=True)


def network() -> nn.Module:
    return NETWORK.make(1, 1)


def written(path: Path, **about: object) -> Path:
    torch.manual_seed(7)
    write_start(path, network(), {"origin": "generated", "kind": "shapes", **about})
    return path


@pytest.fixture
def start(tmp_path: Path) -> Path:
    return written(tmp_path / "start.safetensors")


@pytest.fixture
def begun(experiment: Experiment, start: Path) -> Experiment:
    return experiment.change(model__affine=True, model__start=str(start), rounds=1)


def test_a_network_begins_where_the_start_ended(start: Path) -> None:
    torch.manual_seed(7)
    before, after = network(), network()
    begin_with(after, read_start(str(start)))
    for name, value in before.state_dict().items():
        torch.testing.assert_close(after.state_dict()[name], value, rtol=1e-3, atol=1e-6)  # half precision
        assert after.state_dict()[name].dtype == torch.float32


GOOD = network().state_dict()
FIRST = next(iter(GOOD))
torch.save(GOOD, PICKLED := io.BytesIO())
UNFIT = {
    "running mean": (save(GOOD | {"down.0.1.running_mean": torch.zeros(2)}), "a running statistic"),
    "batches tracked": (
        save(GOOD | {"n.num_batches_tracked": torch.tensor(3)}),
        "as running statistics have",
    ),
    "stranger": (save(GOOD | {"other.weight": torch.zeros(2)}), "'other.weight' is not in the network"),
    "missing": (save({name: GOOD[name] for name in list(GOOD)[1:]}), f"the network has '{FIRST}'"),
    "other shape": (save(GOOD | {FIRST: torch.zeros(3, 3)}), "has shape (3, 3), and the network's"),
    "not a number": (save(GOOD | {FIRST: GOOD[FIRST] * torch.nan}), "NaN or infinite"),
    "pickled": (PICKLED.getvalue(), "not a safetensors file, the only kind that is read"),
    "empty": (b"", "not a safetensors file"),
    "nowhere": (None, "neither a start of silodp"),
}
"""Content of a file, and what is said of it."""


@pytest.mark.parametrize("case", UNFIT)
def test_a_start_that_does_not_fit_is_one_clear_sentence(
    case: str, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    content, words = UNFIT[case]
    path = tmp_path / "unfit.safetensors"
    if content is not None:
        path.write_bytes(content)
    changed = experiment.change(model__affine=True, model__start=str(path))
    with pytest.raises(InputError) as caught:
        train(changed, cohort=cohort, out=tmp_path / "run", device="cpu")
    assert str(caught.value).startswith("model.start = ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_new_head_serves_other_classes(tmp_path: Path) -> None:
    two, three = (ModelSettings.of(kind="resnet", features=4, blocks=(1, 1)).make(1, n) for n in (2, 3))
    write_start(tmp_path / "two.safetensors", two, {})
    start = read_start(str(tmp_path / "two.safetensors"))
    with pytest.raises(InputError, match=r"'head\.weight' has shape \(2, 8\).*set model\.start_head=new"):
        begin_with(three, start)
    head = three.head.weight.clone()  # type: ignore[union-attr, operator]
    begin_with(three, start, new_head=True)
    assert torch.equal(three.head.weight, head)  # type: ignore[arg-type]
    torch.testing.assert_close(three.first.weight, two.first.weight, rtol=1e-3, atol=1e-6)  # type: ignore[union-attr]


def test_a_runs_files_say_where_its_start_comes_from(
    begun: Experiment, start: Path, cohort: Cohort, tmp_path: Path
) -> None:
    own = begun.change(model__start=str(start.rename(tmp_path / "Own.safetensors")))
    result = train(own, cohort=cohort, out=tmp_path / "run", device="cpu")
    record = result.summary["start"]
    assert record is not None
    assert (record["name"], record["origin"], len(record["digest"])) == ("Own", "generated", 64)
    assert read_statement(tmp_path / "run").to_dict()["start"] == record
    (run,) = read_runs([tmp_path / "run"])
    assert "<dt>Start</dt><dd>Own, trained on generated images only" in compose([run], images=False).html
    assert "Start: Own, trained on generated images only" in (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert not any("start" in note for note in result.summary["not_covered_by_epsilon"])


@pytest.mark.parametrize(("said", "origin"), [(None, "unknown"), ("public", "public")])
def test_what_no_file_vouches_for_stands_under_epsilon(
    said: str | None, origin: str, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    save_file(network().state_dict(), tmp_path / "mine.safetensors")
    changed = experiment.change(
        rounds=1, model__affine=True, model__start=str(tmp_path / "mine.safetensors"),
        **({"model__start_origin": said} if said else {}),
    )  # fmt: skip
    result = train(changed, cohort=cohort, out=tmp_path / "run", device="cpu")
    assert result.summary["start"]["origin"] == origin  # type: ignore[index]
    notes = [note for note in result.summary["not_covered_by_epsilon"] if note.startswith("the start (mine)")]
    assert len(notes) == 1
    assert notes[0] in read_statement(tmp_path / "run").not_covered


def test_nobody_but_the_file_can_say_that_a_start_is_made_of_made_up_images(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    save_file(network().state_dict(), tmp_path / "mine.safetensors")
    changed = experiment.change(
        model__affine=True, model__start=str(tmp_path / "mine.safetensors"), model__start_origin="generated"
    )
    with pytest.raises(InputError, match=r"model\.start_origin = generated: .* is not marked as generated"):
        train(changed, cohort=cohort, out=tmp_path / "run", device="cpu")


def test_a_run_goes_on_with_its_own_start_only(begun: Experiment, tmp_path: Path) -> None:
    changed = begun.change(local__state="fresh")
    train(changed, cohort=blob_cohort(), out=tmp_path / "run", device="cpu")
    torch.manual_seed(8)
    write_start(tmp_path / "start.safetensors", network(), {"origin": "generated"})
    with pytest.raises(InputError, match="another file than the experiment was started with"):
        resume(tmp_path / "run", rounds=2, cohort=blob_cohort(), device="cpu")


def test_the_starts_that_come_with_the_package_are_small_and_say_how_they_were_made() -> None:
    assert {"pelvis-8", "pelvis-16", "head"} <= set(carried_starts())
    assert sum(path.stat().st_size for path in CARRIED.glob("*.safetensors")) <= 6e6
    for name in carried_starts():
        about = read_start(name).about
        assert about["origin"] == "generated"
        begin_with(ModelSettings.of(**about["model"]).make(1, 1 if about["task"] == "segmentation" else 2),
                   read_start(name))  # fmt: skip
        card = (CARRIED / f"{name}.md").read_text()
        assert all(f"{about[key]:,}" in card for key in ("images", "steps", "seed"))
        assert json.dumps(dict(about))

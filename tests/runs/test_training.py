"""Whole runs: the folder, reproducibility, SIGKILL, and what is refused before anything is spent."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same_files, blob_cohort, killed_run, records, without_seconds
from safetensors.torch import load_file
from torch import nn

from silodp import Cohort, Experiment, InputError, resume, train
from silodp.hospital import Hospital
from silodp.messages import RoundPlan
from silodp.privacy.accountants import gaussian_epsilon
from silodp.runs.folder import RunFolder
from silodp.runs.version import version


def test_a_run_folder_holds_everything_and_both_epsilons_are_the_closed_form(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """z = 0.5, v = 2, three rounds: μ is √3/z for an intermediary and twice that for a hospital."""
    seen = []
    result = train(experiment, cohort=cohort, out=tmp_path / "run", device="cpu", on_round=seen.append)
    names = {path.name for path in result.folder.iterdir()} - {".lock"}
    assert names == {
        "experiment.toml", "cohort.json", "metrics.jsonl", "ledger.jsonl", "summary.json", "checkpoint.pt",
        "model.safetensors", "model-best.safetensors", "versions.json", "MODEL_CARD.md",
    }  # fmt: skip
    rounds = records(result.folder)
    assert [line["round"] for line in rounds] == [1, 2, 3] == [line["round"] for line in seen]
    assert set(rounds[0]["validation"]["hospitals"]) == {"hospital-0", "hospital-1", "hospital-2"}
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary["silodp"] == version()
    assert set(summary["test"]["last"]["mean"]) == {"dice", "iou", "hd95"}
    stored = load_file(result.folder / "model.safetensors")
    for name, value in result.model.state_dict().items():
        torch.testing.assert_close(stored[name], value)
    assert result.epsilon.intermediary == pytest.approx(gaussian_epsilon(math.sqrt(3) / 0.5, 0.1))
    assert result.epsilon.hospital == pytest.approx(gaussian_epsilon(math.sqrt(3) / 0.25, 0.1))
    assert result.epsilon.covers_everything
    per_round = [line["epsilon"]["hospital"] for line in rounds]
    assert per_round == sorted(per_round)


def test_the_written_experiment_gives_the_same_result_again(tmp_path: Path) -> None:
    first = Experiment.build(
        {"rounds": 2, "cohort": {"slices": 40, "image_size": 32}, "model": {"features": 2, "levels": 1}},
        {"seed": 3},
    )
    one = train(first, out=tmp_path / "one", device="cpu")
    loaded = Experiment.load(one.folder / "experiment.toml")
    assert loaded.format == 3
    two = train(loaded, out=tmp_path / "two", device="cpu")
    assert without_seconds(one.folder) == without_seconds(two.folder)
    assert_same_files(one.folder, two.folder, "ledger.jsonl", "model.safetensors", "experiment.toml")
    other = train(first.change(seed=4), out=tmp_path / "other", device="cpu")
    assert (one.folder / "ledger.jsonl").read_bytes() != (other.folder / "ledger.jsonl").read_bytes()


@pytest.mark.parametrize("server", ["fedavg", "fedadam", "fednova", "dp2-rmsprop"])
@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("count", [1, 3])
def test_every_optimizer_runs_private_or_not_split_or_not(
    server: str, noise: float, count: int, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    changes = {
        "server": {"optimizer": server} | ({"interval": 1} if server == "dp2-rmsprop" else {}),
        "privacy__noise_multiplier": noise,
        "intermediaries__count": count,
    }
    result = train(experiment.change(rounds=2, **changes), cohort=cohort, out=tmp_path / "run", device="cpu")
    assert all(math.isfinite(value) for value in result.test.values())
    assert math.isinf(result.epsilon.hospital) == (noise == 0)


@pytest.mark.parametrize(
    ("rule", "rate", "expected"), [("poisson", 0.5, 1.5), ("fraction", 2 / 3, 2.0), ("all", 1.0, 3.0)]
)
def test_participation_keeps_noise_whoever_comes(
    rule: str, rate: float, expected: float, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    changed = experiment.change(
        rounds=3,
        participation={"rule": rule} | ({} if rule == "all" else {"rate": rate}),
        clipping__rule="fixed",
        privacy__noise_multiplier=5.0,  # small ε are quick to account for
    )
    result = train(changed, cohort=cohort, out=tmp_path / "run", device="cpu")
    rounds = records(result.folder)
    for line in rounds:
        assert line["noise_std"] == pytest.approx(5.0 * 0.5 / (expected * 2), rel=1e-5)
    if rule == "fraction":
        assert {len(line["participants"]) for line in rounds} == {2}


def test_a_hospital_with_a_broken_update_is_named_and_the_run_goes_on(
    experiment: Experiment, cohort: Cohort, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = cohort.hospitals[1]
    huge = replace(broken, train=replace(broken.train, images=torch.full_like(broken.train.images, 3e38)))
    bad = Cohort("bad", (cohort.hospitals[0], huge, cohort.hospitals[2]))
    result = train(experiment, cohort=bad, out=tmp_path / "run", device="cpu")
    assert (
        "hospital-1: 2 of 2 intermediaries failed or gave NaN or infinity and count as nothing" in caplog.text
    )
    assert records(result.folder)[0]["absent"] == {}
    assert all(bool(torch.isfinite(p).all()) for p in result.model.parameters())


def test_the_first_round_of_an_adaptive_rule_only_measures(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    changed = experiment.change(intermediaries__rule="adaptive", intermediaries__count=1, rounds=1)
    result = train(changed, cohort=cohort, out=tmp_path / "run", device="cpu")
    (line,) = records(result.folder)
    assert not line["applied"]
    assert not result.epsilon.covers_everything
    assert any("un-noised" in note for note in result.summary["not_covered_by_epsilon"])
    untouched = train(
        changed.change(privacy__noise_multiplier=0.9), cohort=cohort, out=tmp_path / "b", device="cpu"
    )
    for one, two in zip(result.model.parameters(), untouched.model.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_v_is_capped_where_data_ends_and_log_and_metrics_say_so(
    experiment: Experiment, cohort: Cohort, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changed = experiment.change(
        rounds=2,
        intermediaries__rule="closed-form",
        privacy__noise_multiplier=9.0,
        intermediaries__min_samples=4,
    )
    result = train(changed, cohort=cohort, out=tmp_path / "run", device="cpu")
    for line in records(result.folder):
        assert line["intermediaries"] == 12 // 4  # the closed form would be sqrt(9·√30347/3) = 22
        assert line["intermediaries_capped"]
    assert caplog.text.count("v is capped at 3") == 1


def test_the_default_uses_no_unprotected_statistic(cohort: Cohort, tmp_path: Path) -> None:
    experiment = Experiment.build({"rounds": 2, "model": {"features": 2, "levels": 1}})
    result = train(experiment, cohort=cohort, out=tmp_path / "run", device="cpu")
    assert result.epsilon.covers_everything
    released = {event["released"] for event in records(result.folder, "ledger.jsonl")}
    assert released == {"model update", "clip quantile"}


def test_a_release_drawn_before_the_crash_is_not_counted_or_drawn_twice(
    experiment: Experiment, cohort: Cohort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the ledger's line and before the checkpoint: the same noise again, no second event."""
    whole = train(experiment, cohort=cohort, out=tmp_path / "whole", device="cpu")
    save = RunFolder.save_checkpoint

    def crash_before_round_two_is_saved(self: RunFolder, content: dict) -> None:
        if content["state"]["round"] == 2:
            raise OSError("the machine stops here")
        save(self, content)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", crash_before_round_two_is_saved)
        with pytest.raises(OSError, match="stops here"):
            train(experiment, cohort=cohort, out=tmp_path / "run", device="cpu")
    assert len(records(tmp_path / "run", "ledger.jsonl")) == 4
    resume(tmp_path / "run", cohort=cohort, device="cpu")
    assert_same_files(tmp_path / "run", whole.folder)


@pytest.mark.parametrize(
    ("changes", "killed_at"),
    [
        ({"rounds": 6, "checkpoint_every": 3}, 5),  # rounds 4 and 5 are done again, and ε counts them once
        ({"rounds": 4, "participation__members": 2, "server__optimizer": "fedadam"}, 2),
    ],
)
def test_a_killed_run_resumes_to_the_same_end(
    changes: dict[str, Any], killed_at: int, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    changed = experiment.change(**changes)
    whole = train(changed, cohort=cohort, out=tmp_path / "whole", device="cpu")
    killed_run(changed, killed_at, cohort=cohort, out=tmp_path / "run")
    resume(tmp_path / "run", cohort=cohort, device="cpu")
    assert without_seconds(tmp_path / "run") == without_seconds(whole.folder)
    assert_same_files(tmp_path / "run", whole.folder)


def test_one_hospitals_failure_does_not_break_the_others(
    experiment: Experiment,
    cohort: Cohort,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    honest = Hospital.answer

    def fails(self: Hospital, plan: RoundPlan, **more: bool) -> Any:
        if self.name == "hospital-2":
            raise RuntimeError("out of memory")
        return honest(self, plan, **more)

    monkeypatch.setattr(Hospital, "answer", fails)
    result = train(experiment, cohort=cohort, out=tmp_path / "run", device="cpu")
    assert "hospital-2 failed: out of memory" in caplog.text
    assert records(result.folder)[0]["absent"] == {"hospital-2": "it did not answer"}


def test_fednova_weighs_steps_that_differ(experiment: Experiment, cohort: Cohort, tmp_path: Path) -> None:
    """12, 12 and 24 images in batches of 4 are 3, 3 and 6 steps: the mean of Δ_i/a_i times τ_eff = 4."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"a": 20, "b": 20, "c": 40}
    images = {name: torch.randn(n, 1, 16, 16, generator=generator) for name, n in sizes.items()}
    uneven = Cohort.from_tensors({name: (x, (x > 0).float()) for name, x in images.items()})
    plain = experiment.change(
        rounds=1, intermediaries__count=1, clipping__rule="none", privacy__noise_multiplier=0.0,
        local__batch_size=4,
    )  # fmt: skip
    model = nn.Conv2d(1, 1, 3, padding=1)
    start = model.weight.detach().clone()
    moved = {}
    for kind in ("fedavg", "fednova"):
        done = train(plain.change(server__optimizer=kind), cohort=uneven, model=model, out=tmp_path / kind)
        moved[kind] = done.model.get_parameter("weight").detach() - start
    alone = [
        train(plain, cohort=Cohort(h.name, (h,)), model=model, out=tmp_path / h.name).model.get_parameter(
            "weight"
        )
        for h in uneven.hospitals
    ]
    deltas = [weight.detach() - start for weight in alone]
    torch.testing.assert_close(moved["fedavg"], sum(deltas) / 3)
    expected = 4 * (deltas[0] / 3 + deltas[1] / 3 + deltas[2] / 6) / 3
    torch.testing.assert_close(moved["fednova"], expected)


def test_preconditioned_rounds_have_a_clip_bound_of_their_own(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    changed = experiment.change(
        rounds=4, server__optimizer="dp2-rmsprop", server__interval=2, privacy__noise_multiplier=1e-3
    )
    result = train(changed, cohort=cohort, out=tmp_path / "run", device="cpu")
    bounds = [line["clip_bound"] for line in records(result.folder)]
    assert bounds[2] == bounds[0] == 0.5  # each phase begins where the experiment says
    assert bounds[3] > bounds[2]  # and follows its own, far larger norms


@pytest.mark.parametrize("rule", ["fixed", "adaptive"])
def test_without_diagnostics_nothing_un_noised_is_recorded(
    rule: str, experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """Not even where a rule reads it."""
    quiet = experiment.change(diagnostics=False, intermediaries={"rule": rule})
    result = train(quiet, cohort=cohort, out=tmp_path / "run", device="cpu")
    for line in records(result.folder):
        assert {line[key] for key in ("xi", "phi", "lambda", "cosine_std", "train_loss")} == {None}
    assert not any("lambda" in note for note in result.summary["not_covered_by_epsilon"])


def test_a_folder_that_exists_is_left_alone(experiment: Experiment, cohort: Cohort, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match="exists already"):
        train(experiment, cohort=cohort, out=tmp_path, device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_whose_creation_was_killed_can_be_used_again(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """Killed before experiment.toml was there: `resume` finds no run, so `run` must be the way out."""
    (tmp_path / ".lock").touch()
    (tmp_path / "experiment.toml.part").write_text("name = ")
    with pytest.raises(InputError, match="no run is there"):
        resume(tmp_path, cohort=cohort, device="cpu")
    result = train(experiment, cohort=cohort, out=tmp_path, device="cpu")
    assert not (result.folder / "experiment.toml.part").exists()


def test_a_run_in_use_is_not_resumed_by_a_second_process(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    train(experiment, cohort=cohort, out=tmp_path / "run", device="cpu")
    with RunFolder.open(tmp_path / "run"), pytest.raises(InputError, match="another process"):
        resume(tmp_path / "run", cohort=cohort, device="cpu")


def test_your_own_classifier_on_your_own_tensors(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    members = {}
    for name in ("north", "south"):
        labels = torch.arange(30) % 2
        images = torch.randn(30, 1, 8, 8, generator=generator) + labels.view(-1, 1, 1, 1)
        members[name] = (images, labels)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    experiment = Experiment.build(
        {
            "task": "classification", "rounds": 4,
            "privacy": {"noise_multiplier": 0.0}, "clipping": {"rule": "none"},
            "local": {"learning_rate": 0.01},
        }
    )  # fmt: skip
    result = train(
        experiment, cohort=Cohort.from_tensors(members), model=model, out=tmp_path / "run", device="cpu"
    )
    assert result.test["auc"] > 0.8
    assert set(result.test) == {"auc", "accuracy", "sensitivity", "specificity", "f1"}


def lonely(cohort: Cohort) -> Cohort:
    """One hospital, with one validation image."""
    first = cohort.hospitals[0]
    return Cohort("one", (replace(first, validation=first.validation[:1]),))


def classes(_: Cohort) -> Cohort:
    return Cohort.from_tensors({"a": (torch.randn(20, 1, 16, 16), torch.arange(20) % 2)})


class Pair(nn.Conv2d):
    """Answers with two tensors where one is wanted."""

    def forward(self, images: torch.Tensor) -> Any:
        return super().forward(images), images


@pytest.mark.parametrize(
    ("changes", "data", "model", "message"),
    [
        ({}, classes, None, r"task = segmentation: the targets have shape \(12,\)"),
        # At the bottom of four levels an image of 16² is one pixel.
        ({"model__norm": "batch", "model__levels": 4}, lonely, None, "cannot train on 1 images"),
        ({}, None, nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)), "buffer '1.running_mean'"),
        ({}, None, nn.Conv2d(3, 1, 1), "cannot train on 2 images of shape"),
        ({}, None, nn.Conv2d(1, 2, 1), "output has shape"),
        ({}, None, Pair(1, 1, 1), "cannot train on 2 images of shape"),
        ({"intermediaries__count": 7}, None, None,
         r"intermediaries.count = 7: hospital-0 has 12 training images"),
        ({"participation__members": 4}, None, None,
         r"participation\.members = 4: the cohort has 3 hospitals"),
        ({"budget": {"epsilon": 1.0}}, None, None,
         r"budget\.epsilon = 1: one round costs ε = .* 3 rounds need 3\.76"),
        ({"privacy__noise_multiplier": 0.0, "budget": {"epsilon": 1e6}}, None, None,
         r"set privacy\.noise_multiplier"),
    ],
)  # fmt: skip
def test_what_cannot_train_is_refused_before_a_folder_is_made(
    changes: dict[str, Any],
    data: Callable[[Cohort], Cohort] | None,
    model: nn.Module | None,
    message: str,
    experiment: Experiment,
    cohort: Cohort,
    tmp_path: Path,
) -> None:
    given = data(cohort) if data else cohort
    with pytest.raises(InputError, match=message) as error:
        train(experiment.change(**changes), cohort=given, model=model, out=tmp_path / "run", device="cpu")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def strangers(cohort: Cohort, members: int, images: int = 60) -> Cohort:
    """The cohort with other training images, and another number of them, at whom does not train."""
    other = blob_cohort(len(cohort.hospitals), 120)
    return Cohort(
        cohort.name,
        tuple(
            mine if number < members else replace(mine, train=theirs.train[-images:])
            for number, (mine, theirs) in enumerate(zip(cohort.hospitals, other.hospitals, strict=True))
        ),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"intermediaries__rule": "adaptive", "clipping__rule": "median", "server__optimizer": "fednova"},
        {"privacy__level": "sample"},
    ],
)
def test_training_never_touches_the_training_images_of_who_does_not_train(
    changes: dict, experiment: Experiment, tmp_path: Path
) -> None:
    cohort = blob_cohort(4)
    if changes.get("privacy__level"):
        changed = Experiment.build(
            {"rounds": 2, "model": {"features": 2, "levels": 1}, "privacy": {"level": "sample"}},
            {"participation.members": 2},
        )
    else:
        changed = experiment.change(participation__members=2, **changes)
    one = train(changed, cohort=cohort, out=tmp_path / "one", device="cpu")
    two = train(changed, cohort=strangers(cohort, 2), out=tmp_path / "two", device="cpu")
    assert without_seconds(one.folder) == without_seconds(two.folder)
    both = ("ledger.jsonl", "model.safetensors", "model-best.safetensors", "experiment.toml")
    assert_same_files(one.folder, two.folder, *both)
    assert one.summary["test"] == two.summary["test"]
    for line in records(one.folder):
        assert line["participants"] == ["hospital-0", "hospital-1"]


def test_who_does_not_train_is_validated_and_tested(experiment: Experiment, tmp_path: Path) -> None:
    """The model is that of the two alone; the metrics are of all four, and the summary says so."""
    cohort = blob_cohort(4)
    some = train(
        experiment.change(participation__members=2), cohort=cohort, out=tmp_path / "some", device="cpu"
    )
    alone = train(
        experiment, cohort=Cohort("two", cohort.hospitals[:2]), out=tmp_path / "alone", device="cpu"
    )
    names = {hospital.name for hospital in cohort.hospitals}
    for line in records(some.folder):
        assert set(line["validation"]["hospitals"]) == names
    tested = some.summary["test"]["last"]["hospitals"]
    assert set(tested) == names
    for name, metrics in alone.summary["test"]["last"]["hospitals"].items():
        assert tested[name] == metrics
    assert some.test["dice"] == pytest.approx(sum(found["dice"] for found in tested.values()) / 4)
    assert_same_files(some.folder, alone.folder, "model.safetensors")
    assert (some.epsilon, some.summary["delta"]) == (alone.epsilon, alone.summary["delta"])
    assert (some.summary["members"], some.summary["cohort"]["hospitals"]) == (2, 4)
    assert any(
        "2 of 4 hospitals that do not train" in note for note in some.summary["not_covered_by_epsilon"]
    )
    assert not any("do not train" in note for note in alone.summary["not_covered_by_epsilon"])


def test_a_hospital_that_only_lends_images_may_have_one_to_train_on(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    lone = strangers(cohort, 2, images=1)
    changed = experiment.change(rounds=1, participation__members=2)
    assert train(changed, cohort=lone, out=tmp_path / "run", device="cpu").summary["members"] == 2
    with pytest.raises(InputError, match="hospital-2 has 1 training images"):
        train(experiment, cohort=lone, out=tmp_path / "all", device="cpu")


def test_the_last_checkpoint_leaves_out_what_no_round_will_need_and_resuming_changes_nothing(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """Adam's moments of every intermediary: by far the largest part, kept only while rounds are left."""
    folder = RunFolder(tmp_path / "run")
    kept: list[set[str]] = []

    def look(_: dict[str, object]) -> None:
        kept.append({place.name.rsplit("-", 1)[0] for place in folder.hospitals.glob("*")})

    done = train(experiment, out=folder.path, cohort=cohort, on_round=look)
    everyone = {hospital.name for hospital in cohort.hospitals}
    assert kept == [everyone] * (experiment.rounds - 1) + [set()]
    before = shutil.copytree(folder.path, tmp_path / "before")
    again = resume(folder.path, cohort=cohort)
    assert (again.epsilon, again.summary["test"]) == (done.epsilon, done.summary["test"])
    assert_same_files(before, folder.path, "ledger.jsonl", "metrics.jsonl", "summary.json")

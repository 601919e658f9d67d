"""Trackers are told what metrics.jsonl and summary.json say, every step once, and cannot end a training."""

import json
import logging
import math
import shutil
import signal
import socket
import stat
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import (
    Killed,
    assert_same_files,
    blob_cohort,
    command_line,
    forked,
    kill_after,
    records,
    succeed,
)

from silodp import Cohort, Experiment, InputError, resume, train
from silodp.tracking import flat_settings, tracked, without_password

WHERE = {  # name at a tracker → where it stands in a line of metrics.jsonl
    "epsilon/hospital": ("epsilon", "hospital"),
    "epsilon/hospital_replace_one": ("epsilon", "replace_one", "hospital"),
    "epsilon/image": ("epsilon", "image"),
    "epsilon/intermediary": ("epsilon", "intermediary"),
    "epsilon/intermediary_replace_one": ("epsilon", "replace_one", "intermediary"),
    "train/loss": ("train_loss",),
    "diagnostics/lambda": ("lambda",),
    "diagnostics/xi": ("xi",),
    "diagnostics/phi": ("phi",),
    "diagnostics/cosine_std": ("cosine_std",),
    "round/intermediaries": ("intermediaries",),
    "round/clip_bound": ("clip_bound",),
    "round/noise_std": ("noise_std",),
    "seconds/round": ("seconds",),
    "seconds/training": ("training_seconds",),
    "validation/dice": ("validation", "mean", "dice"),
    "validation/iou": ("validation", "mean", "iou"),
    **{
        f"validation_hospitals/hospital-{number}/{metric}": (
            "validation", "hospitals", f"hospital-{number}", metric,
        )
        for number in range(3)
        for metric in ("dice", "iou")
    },
}  # fmt: skip

Points = dict[str, list[tuple[int, float]]]


def on_record(folder: Path) -> Points:
    """Every number that a run's own files hold: null is none."""
    found: Points = {}
    for record in records(folder):
        for name, path in WHERE.items():
            value = record
            for key in path:
                value = value[key]
            if value is not None:
                found.setdefault(name, []).append((record["round"], value))
        found.setdefault("round/participants", []).append((record["round"], len(record["participants"])))
    if (folder / "summary.json").exists():
        for which, test in json.loads((folder / "summary.json").read_text())["test"].items():
            for metric, value in test["mean"].items():
                found[f"test_{which}/{metric}"] = [(test["round"], value)]
            for hospital, metrics in test["hospitals"].items():
                for metric, value in metrics.items():
                    found[f"test_{which}_hospitals/{hospital}/{metric}"] = [(test["round"], value)]
    return {name: [p for p in points if p[1] is not None] for name, points in found.items()}


def in_tensorboard(folder: Path) -> Points:
    events = event_files(folder)
    return {
        name: [(point.step, point.value) for point in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def event_files(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()


def in_mlflow(folder: Path) -> Points:
    client, run = mlflow_run(folder)
    return {
        name: [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }


def mlflow_run(folder: Path) -> tuple[Any, Any]:
    from mlflow.tracking import MlflowClient

    kept = json.loads((folder / "mlflow.json").read_text())
    client = MlflowClient(kept["tracking_uri"])
    return client, client.get_run(kept["run_id"])


def assert_same(told: Points, recorded: Points) -> None:
    """Event files hold single precision."""
    assert set(told) == set(recorded)
    for name, points in recorded.items():
        assert sorted(step for step, _ in told[name]) == [step for step, _ in points], name
        assert [value for _, value in sorted(told[name])] == pytest.approx([v for _, v in points], rel=1e-6)


@pytest.fixture(autouse=True)
def _mlflow_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def tracked_run(experiment: Experiment, cohort: Cohort, folder: Path, **also: Any) -> None:
    with tracked(folder, tensorboard=True, mlflow=True, **also) as on_round:
        train(experiment, cohort=cohort, out=folder, device="cpu", on_round=on_round)


def tracked_resume(cohort: Cohort, folder: Path, rounds: int | None = None, **also: Any) -> None:
    with tracked(folder, tensorboard=True, mlflow=True, **also) as on_round:
        resume(folder, rounds=rounds, cohort=cohort, device="cpu", on_round=on_round)


def test_trackers_hold_what_the_run_folder_holds(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    seen: list[int] = []
    changed = experiment.change(checkpoint_every=2)
    tracked_run(changed, cohort, folder, also=lambda record: seen.append(record["round"]))
    assert seen == [1, 2, 3]
    recorded = on_record(folder)
    assert len(recorded["epsilon/hospital"]) == 3
    assert_same(in_tensorboard(folder), recorded)
    assert_same(in_mlflow(folder), recorded)

    names = [name for name in sorted(recorded) if name.startswith("epsilon/")]
    assert names[0] == "epsilon/hospital"
    assert [name for name, _ in sorted(recorded.items()) if "epsilon/i" in name][-2:] == [
        "epsilon/intermediary",
        "epsilon/intermediary_replace_one",
    ]


def test_settings_and_what_epsilon_leaves_out_go_with_it(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    folder = tmp_path / "run"
    tracked_run(experiment, cohort, folder)
    notes = json.loads((folder / "summary.json").read_text())["not_covered_by_epsilon"]
    assert any("the seed" in note for note in notes)

    _, run = mlflow_run(folder)
    assert run.data.tags["not_covered_by_epsilon"] == "; ".join(notes)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    settings = Experiment.load(folder / "experiment.toml")
    assert run.data.params["privacy.noise_multiplier"] == "0.5"
    assert run.data.params["privacy.delta"] == str(settings.privacy.delta)
    assert run.data.params["model.levels"] == "1"
    assert run.data.params == {name: str(value) for name, value in flat_settings(settings).items()}

    files = [*(folder / "tensorboard").iterdir()]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}  # also once copied elsewhere
    events = event_files(folder)
    assert events.Tags()["images"] == []
    (note, last) = events.Tensors("not covered by ε/text_summary")
    assert note.tensor_proto.string_val == last.tensor_proto.string_val == ["; ".join(notes).encode()]
    plugin = events.PluginTagToContent("hparams")
    start = HParamsPluginData.FromString(plugin["_hparams_/session_start_info"]).session_start_info
    assert start.hparams["privacy.noise_multiplier"].number_value == 0.5
    assert start.hparams["clipping.rule"].string_value == "quantile"
    assert "_hparams_/session_end_info" in plugin
    assert set(start.hparams) == set(run.data.params)
    shown = HParamsPluginData.FromString(plugin["_hparams_/experiment"]).experiment.metric_infos
    assert {info.name.tag for info in shown} <= set(events.Tags()["scalars"])
    assert len(shown) == 4


def test_where_images_lie_is_nobodys_business() -> None:
    files = {"kind": "npz", "path": "/home/someone/scans.npz", "cache": "/home/someone"}
    start = {"start": "/home/someone/pelvis.safetensors"}
    told = flat_settings(Experiment(cohort=files | {"mask_labels": [1, 2]}, model=start))
    assert "someone" not in str(told)
    assert told["model.start"] == "pelvis"
    assert told["cohort.mask_labels"] == "[1, 2]"


def test_what_is_no_number_is_left_out(experiment: Experiment, cohort: Cohort, tmp_path: Path) -> None:
    """Without privacy ε and C are infinite; without diagnostics λ and the loss are not there."""
    free = experiment.change(
        rounds=1, privacy__noise_multiplier=0.0, clipping__rule="none", diagnostics=False
    )
    tracked_run(free, cohort, tmp_path / "run")
    for told in (in_tensorboard(tmp_path / "run"), in_mlflow(tmp_path / "run")):
        assert not any(name.startswith(("epsilon/", "diagnostics/", "train/")) for name in told)
        assert "round/clip_bound" not in told
        assert all(math.isfinite(value) for points in told.values() for _, value in points)
        assert_same(told, on_record(tmp_path / "run"))


def tracked_in_a_process(experiment: Path, folder: Path, how: str, told: Connection) -> None:
    def also(record: dict[str, Any]) -> None:
        told.send(record["round"])

    if how == "start":
        tracked_run(Experiment.load(experiment), blob_cohort(), folder, also=also)
    else:
        tracked_resume(blob_cohort(), folder, also=also)


def test_killed_and_resumed_every_step_is_there_once(experiment: Experiment, tmp_path: Path) -> None:
    """SIGKILL at rounds that no checkpoint holds; redone with other noise they are other rounds."""
    changed = experiment.change(rounds=7, checkpoint_every=3, privacy__entropy="system")
    (tmp_path / "e.toml").write_text(changed.to_toml())
    folder, how, runs = tmp_path / "run", "start", set()
    for until in (2, 5, None):
        heard, told = Pipe(duplex=False)
        process = forked(tracked_in_a_process, tmp_path / "e.toml", folder, how, told)
        told.close()
        while until is not None and heard.recv() != until:
            pass
        if until is not None:
            process.kill()
        process.join()
        heard.close()
        assert process.exitcode == (0 if until is None else -signal.SIGKILL)
        if (folder / "mlflow.json").exists():
            runs.add(json.loads((folder / "mlflow.json").read_text())["run_id"])
        how = "resume"
    recorded = on_record(folder)
    assert [step for step, _ in recorded["validation/dice"]] == list(range(1, 8))
    assert_same(in_tensorboard(folder), recorded)
    assert_same(in_mlflow(folder), recorded)
    assert len(runs) == 1
    assert len(list((folder / "tensorboard").iterdir())) == 1


def test_an_interrupted_run_is_marked_and_then_finished_with_no_number_missing_or_double(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        tracked_run(experiment, cohort, folder, also=kill_after(2))
    client, run = mlflow_run(folder)
    assert run.info.status == "KILLED"
    assert "seed" in run.data.tags["not_covered_by_epsilon"]
    # As if killed while a round was being written: some of its numbers are there, some are not.
    spent = records(folder)[1]["epsilon"]["hospital"]
    client.log_metric(run.info.run_id, "epsilon/hospital", spent, step=2)
    tracked_resume(cohort, folder)
    client, again = mlflow_run(folder)
    assert (again.info.run_id, again.info.status) == (run.info.run_id, "FINISHED")
    (group,) = client.search_experiments(filter_string="name = 'silodp'")
    assert len(client.search_runs([group.experiment_id])) == 1
    assert_same(in_mlflow(folder), on_record(folder))


def test_resuming_a_finished_run_tells_what_is_missing_and_nothing_twice(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    train(experiment, cohort=cohort, out=folder, device="cpu")
    for _ in range(2):  # untracked until now; then nothing is missing any more
        tracked_resume(cohort, folder)
        assert_same(in_tensorboard(folder), on_record(folder))
        assert_same(in_mlflow(folder), on_record(folder))
    _, run = mlflow_run(folder)
    (place,) = (tmp_path / "mlruns").glob(f"*/{run.info.run_id}")
    shutil.rmtree(place)  # somebody tidied up
    tracked_resume(cohort, folder)
    assert mlflow_run(folder)[1].info.run_id != run.info.run_id
    assert_same(in_mlflow(folder), on_record(folder))


def test_a_run_that_goes_on_longer_is_followed(
    experiment: Experiment, cohort: Cohort, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """MLflow lets nobody change a setting: it keeps the rounds that were asked for at first."""
    folder = tmp_path / "run"
    tracked_run(experiment.change(local__state="fresh", rounds=1), cohort, folder)
    tracked_resume(cohort, folder, rounds=2)
    assert "failed" not in caplog.text
    recorded = on_record(folder)
    assert_same(in_tensorboard(folder), recorded)
    told = in_mlflow(folder)
    assert all(
        told[name][-1][0] == points[-1][0] == 2 for name, points in recorded.items() if "best" not in name
    )
    assert mlflow_run(folder)[1].data.params["rounds"] == "1"


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_server_that_is_gone_does_not_end_the_training(
    experiment: Experiment,
    cohort: Cohort,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{closed_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    caplog.set_level(logging.WARNING)
    folder, experiment = tmp_path / "run", experiment.change(privacy__delta=1e-5)  # of which nobody is warned
    tracked_run(experiment, cohort, folder)
    train(experiment, cohort=cohort, out=tmp_path / "plain", device="cpu")
    assert_same_files(folder, tmp_path / "plain", "model.safetensors")
    assert_same(in_tensorboard(folder), on_record(folder))
    (warning,) = caplog.messages
    assert warning.startswith("--mlflow failed (")
    assert "127.0.0.1" in warning
    assert "secret" not in warning
    assert warning.endswith(f"`silodp resume {folder} --mlflow` logs the rest")

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    tracked_resume(cohort, folder)
    assert_same(in_mlflow(folder), on_record(folder))


def test_trackers_that_break_on_the_way_do_not_end_the_training(
    experiment: Experiment, cohort: Cohort, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, experiment = tmp_path / "run", experiment.change(privacy__delta=1e-5)  # of which nobody is warned

    def harm(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            (folder / "tensorboard").write_text("in the way")
        if record["round"] == 2:
            shutil.rmtree(tmp_path / "mlruns")
            (tmp_path / "mlruns").write_text("in the way")

    tracked_run(experiment, cohort, folder, also=harm)
    train(experiment, cohort=cohort, out=tmp_path / "plain", device="cpu")
    assert_same_files(folder, tmp_path / "plain", "model.safetensors")
    assert [text.split(" failed")[0] for text in caplog.messages] == ["--tensorboard", "--mlflow"]


@pytest.mark.parametrize("uri", ["nonsense://somewhere", "http-less"])
def test_an_address_that_cannot_be_is_refused_before_the_run(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "http-less").write_text("a file, not a folder")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    says = rf"^MLFLOW_TRACKING_URI = {uri}: .*server's address or a folder"
    with pytest.raises(InputError, match=says), tracked(tmp_path / "run", mlflow=True):
        raise AssertionError("it must not come so far")


def test_hospitals_may_be_called_anything(experiment: Experiment, tmp_path: Path) -> None:
    names = ("St. Mary's / West (1)", "Zürich")
    cohort = blob_cohort(2)
    called = Cohort.from_tensors(
        {
            name: (torch.cat([part.images for part in data.parts.values()]),
                   torch.cat([part.targets for part in data.parts.values()]))
            for name, data in zip(names, cohort.hospitals, strict=True)
        }
    )  # fmt: skip
    folder = tmp_path / "run"
    tracked_run(experiment.change(rounds=1), called, folder)
    (line,) = records(folder)
    for told, mary in (
        (in_tensorboard(folder), "St. Mary's _ West (1)"),
        (in_mlflow(folder), "St. Mary_s _ West _1_"),
    ):
        for name, tag in ((names[0], mary), (names[1], "Zürich")):
            recorded = line["validation"]["hospitals"][name]["dice"]
            assert told[f"validation_hospitals/{tag}/dice"] == [(1, pytest.approx(recorded, rel=1e-6))]


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("https://me:secret@tracks.example/a", "https://tracks.example/a"),
        ("file:///data/mlruns", "file:///data/mlruns"),
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
    ],
)
def test_no_password_is_kept(uri: str, kept: str) -> None:
    assert without_password(uri) == kept


TINY = ["--set", "rounds=2", "--set", "cohort.slices=40", "--set", "cohort.image_size=32"]
TINY += ["--set", "model.features=2", "--set", "model.levels=1", "--device", "cpu"]


def test_without_mlflow_the_way_to_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    done = command_line("run", "demo", *TINY, "--mlflow", "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'silodp[mlflow]'" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert list(tmp_path.iterdir()) == []


def succeed_in(folder: Path, *words: str) -> None:
    assert "fail" not in succeed(*words, cwd=folder).stderr


def test_the_command_line_tracks_out_of_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no address set, MLflow's data lie in the folder that the command was given in."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(name)

    words = ("run", "prostate-small", *TINY, "--out", "run", "--tensorboard", "--mlflow")
    process = forked(succeed_in, tmp_path, *words)
    process.join()
    assert process.exitcode == 0
    folder = tmp_path / "run"
    told = in_tensorboard(folder)
    assert [step for step, _ in told["epsilon/hospital"]] == [1, 2]
    assert str(tmp_path) in json.loads((folder / "mlflow.json").read_text())["tracking_uri"]
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert in_mlflow(folder).keys() == told.keys()
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    shutil.rmtree(folder / "tensorboard")
    succeed_in(tmp_path, "resume", "run", "--tensorboard", "--device", "cpu")
    assert in_tensorboard(folder) == told

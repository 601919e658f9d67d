"""A cohort, a network, a local optimizer, a norm layer, a task: each is one object, here or anywhere."""

import json
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from silodp import Experiment, InputError, train
from silodp.cli.commands import app
from silodp.cohorts.catalogue import Catalogue, Pictures, Row, Scan
from silodp.cohorts.kinds import CohortSettings, FileCohort
from silodp.experiment import RULES
from silodp.local.optimizers import LocalSettings
from silodp.models.kinds import ModelSettings
from silodp.models.norm import NORMS, Norm
from silodp.tasks import TASKS, Task
from silodp.tasks.classification import CLASSIFICATION


class Blocks(FileCohort):
    """Bare numbers: hospital, patient, class, then 16 × 16 bytes an image, one image after the other."""

    takes: ClassVar[tuple[str, ...]] = (".blocks",)
    task: ClassVar[str | None] = "classification"
    kind: Literal["tests-blocks"] = "tests-blocks"
    turned: bool = False
    """Upside down."""

    def scan(self, root: Path) -> Catalogue:
        return Catalogue(
            self.kind, root.parent, "a file of blocks", "class", ("no", "yes"),
            (Scan(root.name, (root,)),), self._read,
        )  # fmt: skip

    def _read(self, scan: Scan) -> Pictures:
        found = np.fromfile(scan.files[0], np.uint8).reshape(-1, 3 + 256)
        rows = tuple(
            Row(f"{scan.name}#{number}", f"H{hospital}", f"P{patient}", size=(16, 16))
            for number, (hospital, patient) in enumerate(found[:, :2].tolist())
        )
        images = found[:, 3:].reshape(-1, 1, 16, 16)
        return Pictures(images[:, :, ::-1] if self.turned else images, found[:, 2], rows)


class Linear(ModelSettings):
    """One layer over all pixels."""

    kind: Literal["tests-linear"] = "tests-linear"
    side: int = 16

    def make(self, channels: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * self.side**2, outputs))


class Signs(LocalSettings):
    """Plain steps, from outside the package."""

    optimizer: Literal["tests-signs"] = "tests-signs"

    def step(self, values: torch.Tensor, gradients: torch.Tensor, state: dict[str, torch.Tensor]) -> None:
        values.sub_(gradients, alpha=self.learning_rate)


def blocks(path: Path, hospitals: int = 2, each: int = 24) -> Path:
    rng = np.random.default_rng(0)
    rows = []
    for hospital in range(hospitals):
        for number in range(each):
            label = number % 2
            image = rng.integers(0, 100, (16, 16)) + 150 * label * (np.arange(16) < 8)[:, None]
            rows.append(np.concatenate([[hospital, 100 * hospital + number // 2, label], image.ravel()]))
    np.concatenate(rows).astype(np.uint8).tofile(path)
    return path


def test_a_file_format_defined_by_a_user_is_checked_trained_on_and_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = blocks(tmp_path / "data.blocks")
    done = CliRunner().invoke(app, ["data", "check", str(path), "--set", "turned=true", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["kind"], found["images"], list(found["hospitals"])) == ("tests-blocks", 48, ["H0", "H1"])
    changes = [
        "cohort.kind=tests-blocks",
        f"cohort.path={path}",
        "model.kind=tests-linear",
        "task=classification",
    ]
    changes += [
        "local.optimizer=tests-signs",
        "local.learning_rate=0.1",
        "rounds=2",
        "intermediaries.rule=fixed",
    ]
    result = train(Experiment.build({}, changes), out=tmp_path / "run", device="cpu")
    assert result.test["auc"] > 0.9  # a half of the image is 150 brighter
    again = Experiment.load(tmp_path / "run/experiment.toml")
    assert isinstance(again.cohort, Blocks)
    assert isinstance(again.model, Linear)
    assert again.model.side == 16
    done = CliRunner().invoke(app, ["data", "prepare", str(path), "--out", str(tmp_path / "ready")])
    assert done.exit_code == 0, done.output
    ready = Experiment.build({}, [*changes[2:], "cohort.kind=prepared", f"cohort.path={tmp_path / 'ready'}"])
    assert train(ready, out=tmp_path / "other", device="cpu").test.keys() == result.test.keys()


def test_settings_of_a_users_kind_are_listed_and_others_refused(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["settings", "cohort"]).stdout
    assert "cohort.turned = false: Upside down." in listed
    with pytest.raises(InputError, match=r"cohort\.turned = True: not a setting of cohort\.kind = npz"):
        CohortSettings.of(kind="npz", turned=True)
    with pytest.raises(
        InputError, match=r"task = segmentation with cohort.kind = tests-blocks: set task=class"
    ):
        Experiment(cohort={"kind": "tests-blocks", "path": str(tmp_path)})


def test_a_norm_layer_defined_by_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(channels: int, affine: bool) -> nn.Module:
        return nn.Identity()

    with pytest.raises(InputError, match=r"model\.norm = 'none': .*choose one of batch, group, instance"):
        Experiment(model={"norm": "none"})
    monkeypatch.setitem(NORMS, "none", Norm(none))
    network = Experiment(model={"norm": "none", "levels": 1, "features": 2}).model.make(1, 1)
    assert any(isinstance(layer, nn.Identity) for layer in network.modules())
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in network.modules())
    monkeypatch.setitem(NORMS, "mixing", Norm(none, mixes_images=True))
    with pytest.raises(
        InputError, match=r"model\.norm = mixing with privacy\.level = sample: it mixes images"
    ):
        Experiment(model={"norm": "mixing"}, privacy={"level": "sample"})


def test_a_task_defined_by_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hinge(logits: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.multi_margin_loss(logits, labels.long())

    with pytest.raises(InputError, match="task = 'margins': choose one of segmentation, classification"):
        Experiment(task="margins")
    own = {**vars(CLASSIFICATION), "name": "margins", "loss": hinge, "model": "tests-linear"}
    monkeypatch.setitem(TASKS, "margins", Task(**own | {"cohort": "npz"}))
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    images = rng.integers(0, 100, (60, 16, 16)) + 150 * labels[:, None, None] * (np.arange(16) < 8)[:, None]
    np.savez(tmp_path / "data.npz", image=images.astype(np.uint8), label=labels, patient=np.arange(60))
    changes = {
        "cohort.path": str(tmp_path / "data.npz"),
        "cohort.hospitals": 2,
        "rounds": 2,
        "cohort.classes": 2,
    }
    experiment = Experiment.build({"task": "margins"}, changes | {"cohort.cache": str(tmp_path / "cache")})
    assert (experiment.cohort.kind, experiment.model.kind) == ("npz", "tests-linear")
    assert "auc" in train(experiment, out=tmp_path / "run", device="cpu").test


def test_every_choice_and_setting_is_listed() -> None:
    listed = CliRunner().invoke(app, ["settings"]).stdout
    for section, base in RULES.items():
        for name, rule in base.known.items():
            assert f"  {section}.{base.key} = {name}" in listed
            for field in rule.model_fields:
                assert f"  {section}.{field}" in listed
    tree = json.loads(CliRunner().invoke(app, ["settings", "--json"]).stdout)
    assert tree["privacy"]["settings"]["entropy"]["values"] == ["seed", "system"]
    assert tree["clipping"]["choices"]["quantile"]["settings"]["bit_share"]["default"] == 0.05
    done = CliRunner().invoke(app, ["settings", "clip"])
    assert "clip: no such section; there are experiment, cohort, model" in str(done.exception)

"""The same model in other programs gives the same masks."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import command_line, succeed
from discs_run import SIDE, train_on_discs

import silodp
from silodp import InputError
from silodp.inference.export import export
from silodp.local.trainer import network_input


@pytest.fixture(scope="module")
def segmented(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return train_on_discs(tmp_path_factory.mktemp("segmented"))


def test_onnx_says_the_same_as_predict(segmented: tuple[Path, Path], tmp_path: Path) -> None:
    import onnx  # not above: every process of the tests collects this file, and one needs it
    import onnxruntime

    run, data = segmented
    done = succeed("export", run, "--format", "onnx", "--out", tmp_path / "model.onnx")
    assert "onnxruntime agrees" in done.stdout
    images = np.load(data)["image"][:7]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(None, {"images": images[:, None].astype(np.float32)})
    assert np.abs(found - silodp.load(run, device="cpu")(images).numpy()).max() < 1e-4
    command_line("predict", run, data, "--out", tmp_path / "out")
    assert ((found > 0.5) == (np.load(tmp_path / "out/data.npz")["mask"][:7] > 0)).mean() > 0.9999
    facts = {one.key: one.value for one in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert facts["task"] == "segmentation"
    assert "scaled to −1…1" in facts["preparation"]
    assert {"epsilon_hospital", "epsilon_intermediary", "not_covered_by_epsilon"} <= facts.keys()


def test_an_onnx_file_that_says_something_else_is_not_kept(
    segmented: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another version of PyTorch wrote another network; a real one takes seconds to write."""
    import onnxruntime

    content = SimpleNamespace(metadata_props={}, SerializeToString=lambda: b"a network")
    written = SimpleNamespace(model=content, model_proto=content)
    session = SimpleNamespace(run=lambda *_: [np.full((1, 1, SIDE, SIDE), 2.0)])
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: written)
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: session)
    model = silodp.load(segmented[0], device="cpu")
    with pytest.raises(InputError, match=r"probabilities are off by [12]\S*; nothing was kept"):
        export(model, segmented[0], "onnx", tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_is_read_by_monai(segmented: tuple[Path, Path], tmp_path: Path) -> None:
    from monai.bundle import ConfigParser

    run, data = segmented
    out = tmp_path / "bundle"
    assert command_line("export", run, "--format", "monai", "--out", out).returncode == 0
    parser = ConfigParser()
    parser.read_config(out / "configs/inference.json")
    parser.read_meta(out / "configs/metadata.json")
    parser["bundle_root"] = str(out)
    network = parser.get_parsed_content("network")
    network.load_state_dict(parser.get_parsed_content("weights"))
    images = torch.from_numpy(np.load(data)["image"][:3])[:, None]
    with torch.no_grad():
        found = network(network_input(images)).sigmoid()
    assert (found - silodp.load(run, device="cpu")(images)).abs().max() < 1e-5
    told = json.loads((out / "configs/metadata.json").read_text())
    assert told["privacy"]["epsilon"]["hospital"] is None  # a run without privacy promises nothing
    assert "Research only" in told["intended_use"]
    assert (out / "docs/README.md").read_text() == (run / "MODEL_CARD.md").read_text()


def test_a_state_dict_is_plain(segmented: tuple[Path, Path], tmp_path: Path) -> None:
    run, _ = segmented
    assert command_line("export", run, "--format", "torch", "--out", tmp_path / "model.pt").returncode == 0
    values = torch.load(tmp_path / "model.pt", weights_only=True)
    network = silodp.load(run, device="cpu").network
    assert all(torch.equal(values[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "keras", "--out", "x"], "--format keras: choose onnx, monai, torch"),
        (["--format", "torch", "--out", "."], "--out .: exists already"),
    ],
)
def test_mistakes_are_one_line(segmented: tuple[Path, Path], options: list[str], message: str) -> None:
    done = command_line("export", segmented[0], *options)
    assert done.returncode == 2
    assert message in done.stderr


def test_the_card_and_the_model_file_say_what_they_are(segmented: tuple[Path, Path]) -> None:
    from safetensors import safe_open

    run, _ = segmented
    card = (run / "MODEL_CARD.md").read_text()
    test = json.loads((run / "summary.json").read_text())["test"]["last"]
    low, high = test["intervals"]["mean"]["dice"]
    assert f"| dice | {test['mean']['dice']:.3f} | {low:.3f}–{high:.3f} |" in card
    assert "without differential privacy" in card
    assert "no medical device" in card
    with safe_open(run / "model.safetensors", "pt") as file:
        facts = json.loads(file.metadata()["silodp"])
    assert facts["task"] == "segmentation"
    prepared = {"channels": 1, "size": [32, 32], "storage": "uint8", "classes": ["1"]}
    assert facts["preparation"] == prepared
    assert facts["ledger"] == json.loads((run / "summary.json").read_text())["ledger"]

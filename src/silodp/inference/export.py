"""Exports a trained model: ONNX, a MONAI bundle, or a plain state dict."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from silodp.errors import InputError
from silodp.files import refuse_filled, replacing, write_atomically, write_json
from silodp.inference.predictor import Predictor, output_count
from silodp.models.kinds import OwnNetwork
from silodp.runs.folder import read_summary, refuse_personal
from silodp.runs.schema import or_infinite, or_nan

SAME = 1e-4  # tolerance between the probabilities of two programs


class Pictures(nn.Module):
    """The network with its scaling: maps float images of 0…255 to probabilities."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.network = predictor.network
        self.scaled = predictor.preparation.scaled
        self.classes = predictor.target == "class"

    def forward(self, images: Tensor) -> Tensor:
        logits = self.network(images / 127.5 - 1 if self.scaled else images)
        probable: Tensor = logits.softmax(1) if self.classes else logits.sigmoid()
        return probable


def export(predictor: Predictor, run: Path, form: str, out: Path) -> str:
    """Writes the model of a run to a new place.

    Args:
        predictor: of the run, on the CPU.
        run: its folder.
        form: "onnx", "monai" or "torch".
        out: a new file, or for a bundle a new folder.

    Returns:
        A description of what was written.
    """
    if form not in FORMS:
        raise InputError(f"--format {form}: choose {', '.join(FORMS)}")
    refuse_filled(out)
    if form != "torch":
        refuse_personal(run, "only --format torch can be written of it, for the hospital itself")
    return FORMS[form](predictor, run, out)


def _torch(predictor: Predictor, run: Path, out: Path) -> str:
    with replacing(out) as file:
        torch.save(predictor.network.state_dict(), file)
    return f"the network's state dict; images are {predictor.preparation.in_words}"


def _onnx(predictor: Predictor, run: Path, out: Path) -> str:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  which PyTorch exports with
    except ImportError as error:
        raise InputError(
            f"--format onnx: {error.name} is missing; pip install 'silodp[export]', or set --format torch"
        ) from None
    settings, model = predictor.preparation.settings, Pictures(predictor).eval()
    shape = (settings.channels, *predictor.preparation.size)
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (3, *shape)).astype(np.float32))  # type: ignore[arg-type]
    with torch.no_grad():
        expected = torch.cat([model(one) for one in torch.split(images, 1)]).numpy()
    mixes = predictor.mixes_images(images)
    free = None if mixes else {"images": {0: torch.export.Dim("n")}}
    with warnings.catch_warnings(action="ignore"):  # of PyTorch about its own parts
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            model, (images[:1] if mixes else images,), input_names=["images"], output_names=["probabilities"],
            dynamo=True, dynamic_shapes=free, verbose=False,
        )  # fmt: skip
    assert program is not None
    program.model.metadata_props.update(_facts(predictor, run))
    write_atomically(out, program.model_proto.SerializeToString())
    session = onnxruntime.InferenceSession(out.read_bytes(), providers=["CPUExecutionProvider"])
    found = np.concatenate([session.run(None, {"images": one[None].numpy()})[0] for one in images])
    if (apart := float(np.abs(found - expected).max())) > SAME:
        out.unlink()
        raise InputError(
            f"--format onnx: onnxruntime's probabilities are off by {apart:.2g}; nothing was kept"
        )
    size = "one image at a time" if mixes else "any number of images"
    return f"ONNX, {size} of {shape} as numbers 0…255; onnxruntime agrees within {apart:.1g}"


def _monai(predictor: Predictor, run: Path, out: Path) -> str:
    """Writes a bundle: metadata, an inference configuration, the weights and the model card."""
    experiment, settings = predictor.experiment, predictor.preparation.settings
    if not isinstance(experiment.model, OwnNetwork):
        raise InputError(
            f"--format monai: model.kind = {experiment.model.kind} is known to Python only; use torch"
        )
    network = {
        "_target_": "silodp.inference.export.bundled_network",
        "settings": experiment.model.model_dump(mode="json"),
        "channels": settings.channels,
        "outputs": output_count(predictor.target, predictor.classes),
    }
    inference = {
        "imports": ["$import torch"],
        "bundle_root": ".",
        "network_def": network,
        "network": "$@network_def.eval()",
        "weights": "$torch.load(@bundle_root + '/models/model.pt', weights_only=True)",
        "load": "$@network.load_state_dict(@weights)",
        "preprocessing": predictor.preparation.in_words,
    }
    for folder in ("configs", "models", "docs"):
        (out / folder).mkdir(parents=True)
    write_json(out / "configs/metadata.json", _metadata(predictor, run), indent=1)
    write_json(out / "configs/inference.json", inference, indent=1)
    _torch(predictor, run, out / "models/model.pt")
    card = run / "MODEL_CARD.md"
    write_atomically(out / "docs/README.md", card.read_bytes() if card.is_file() else b"")
    return "a MONAI bundle; its network needs silodp installed"


def bundled_network(settings: dict[str, Any], channels: int, outputs: int) -> nn.Module:
    """The network of a bundle, without its weights."""
    from silodp.models.kinds import ModelSettings

    return ModelSettings.of(**settings).make(channels, outputs)


def _metadata(predictor: Predictor, run: Path) -> dict[str, Any]:
    from importlib.metadata import version  # MONAI itself takes seconds to import

    summary = read_summary(run)
    settings, test = predictor.preparation.settings, summary["test"]["last"]
    size = list(predictor.preparation.size)
    privacy = {"epsilon": summary["epsilon"], "delta": summary["delta"]}
    what = "probabilities" if predictor.target == "class" else "segmentation"
    image = {
        "type": "image", "format": "magnitude", "num_channels": settings.channels, "spatial_shape": size,
        "dtype": "float32", "value_range": [-1, 1], "is_patch_data": False,
        "channel_def": {str(number): "image" for number in range(settings.channels or 1)},
    }  # fmt: skip
    answer = {
        "type": what, "format": what, "num_channels": len(predictor.classes), "dtype": "float32",
        "spatial_shape": size if predictor.target == "mask" else [], "value_range": [0, 1],
        "is_patch_data": False,
        "channel_def": {str(number): name for number, name in enumerate(predictor.classes)},
    }  # fmt: skip
    return {
        "schema": "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/"
        "meta_schema_20240725.json",
        "version": "0.1.0",
        "changelog": {"0.1.0": "exported by silodp"},
        "monai_version": version("monai"),
        "pytorch_version": torch.__version__.partition("+")[0],
        "numpy_version": np.__version__,
        "required_packages_version": {"silodp": summary["silodp"]},
        "name": summary["experiment"],
        "task": f"{summary['task']}, trained by {summary['members']} hospitals with client-level privacy",
        "description": predictor.experiment.description or summary["experiment"],
        "authors": "not named",
        "copyright": "not named",
        "data_source": summary["cohort"]["cohort"],
        "data_type": "image",
        "intended_use": "Research only. Not a medical device; tried on the test images of its run alone.",
        "eval_metrics": {name: or_nan(value) for name, value in test["mean"].items()},
        "privacy": {**privacy, "not_covered_by_epsilon": summary["not_covered_by_epsilon"]},
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": answer}},
    }


def _facts(predictor: Predictor, run: Path) -> dict[str, str]:
    summary = read_summary(run)
    return {
        "task": summary["task"],
        "classes": ", ".join(predictor.classes),
        "preparation": predictor.preparation.in_words,
        "epsilon_hospital": str(or_infinite(summary["epsilon"]["hospital"])),
        "epsilon_intermediary": str(or_infinite(summary["epsilon"]["intermediary"])),
        "delta": str(summary["delta"]),
        "not_covered_by_epsilon": "; ".join(summary["not_covered_by_epsilon"]),
        "ledger": summary["ledger"],
        "silodp": summary["silodp"],
    }


FORMS: dict[str, Callable[[Predictor, Path, Path], str]] = {"onnx": _onnx, "monai": _monai, "torch": _torch}

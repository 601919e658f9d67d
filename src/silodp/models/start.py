"""A start: the weights of a network before round one, from a file, and their origin.

No ledger counts what a start was trained on, so its origin is part of every run that uses it: generated
images belong to nobody, public ones are known anyway; anything else may leak what ε does not cover.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from silodp.errors import InputError, did_you_mean
from silodp.files import parse_json, read_plain, to_json, write_atomically

if TYPE_CHECKING:
    from torch import Tensor, nn

    from silodp.models.kinds import ModelSettings

Origin = Literal["generated", "public", "unknown"]

CARRIED = Path(__file__).parent.parent / "starts"
MOST_BYTES = 2**32
IN_WORDS: dict[Origin, str] = {
    "generated": "generated images only, so it contains nobody's data",
    "public": "public data by the experiment's own account, which was not checked",
    "unknown": "unknown images; no ε covers what it learnt from them",
}


@dataclass(frozen=True)
class Start:
    """The content of a start's file.

    Attributes:
        name: of a start that comes with the package, or of the file.
        tensors: by parameter name, float32 on the CPU.
        about: how it was made, by the file; empty where the file does not say.
        digest: sha256 of the file.
        is_file: whether it is the user's file, not one of the package.
    """

    name: str
    tensors: dict[str, Tensor] = field(repr=False)
    about: Mapping[str, Any]
    digest: str
    is_file: bool = True

    def origin(self, stated: Origin | None) -> Origin:
        """generated if the file says so, else public if the experiment vouches for it, else unknown."""
        if self.about.get("origin") == "generated":
            return "generated"
        return "public" if stated == "public" else "unknown"


def parts_of(settings: ModelSettings, task: str) -> dict[str, int]:
    """Trainable parameters by `model.trainable`, for images of one channel and one mask or two classes."""
    from silodp.local.trainable import freeze_all_but

    numbers = {}
    for part in ("head", "norm+head", "all"):
        network = freeze_all_but(settings.make(1, 1 if task == "segmentation" else 2), part)
        numbers[part] = sum(one.numel() for one in network.parameters() if one.requires_grad)
    return numbers


def carried_starts() -> list[str]:
    """The names of the starts that come with the package."""
    return sorted(path.stem for path in CARRIED.glob("*.safetensors"))


def start_file(start: str) -> Path:
    """The path of a start, given by its name or path."""
    carried = CARRIED / f"{start}.safetensors"
    path = carried if carried.is_file() else Path(start).expanduser()
    if not path.is_file():
        raise InputError(
            f"model.start = {start}: neither a start of silodp ({', '.join(carried_starts())}) nor a file"
            + did_you_mean(start, carried_starts())
        )
    return path


def read_start(start: str) -> Start:
    """Reads a safetensors file, which cannot execute code."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = start_file(start)
    content = read_plain(path, MOST_BYTES)
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, RuntimeError, KeyError):
        raise InputError(
            f"model.start = {start}: not a safetensors file, the only kind that is read, since nothing in it "
            "runs; write yours with safetensors.torch.save_file(network.state_dict(), PATH)"
        ) from None
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise InputError(
                f"model.start = {start}: {name!r} is {tensor.dtype}, as running statistics have it; a model "
                "of silodp keeps none (use norm layers without), so leave it out of the file"
            )
        if not torch.isfinite(tensor).all():
            raise InputError(f"model.start = {start}: {name!r} holds NaN or infinite numbers; train it again")
    values = {name: tensor.float() for name, tensor in tensors.items()}
    digest = hashlib.sha256(content).hexdigest()
    return Start(path.stem, values, _about(content), digest, is_file=path.parent != CARRIED)


def _about(content: bytes) -> Mapping[str, Any]:
    """The metadata that `write_start` put into a file."""
    length = int.from_bytes(content[:8], "little")
    try:
        header = parse_json(content[8 : 8 + length])
        found = parse_json(header["__metadata__"]["silodp"].encode())["start"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def write_start(path: Path, network: nn.Module, about: Mapping[str, Any]) -> None:
    """Writes the weights of a network in half precision, with metadata."""
    from safetensors.torch import save

    tensors = {
        name: tensor.detach().cpu().half().contiguous() for name, tensor in network.state_dict().items()
    }
    write_atomically(path, save(tensors, {"silodp": to_json({"start": dict(about)})}))


def card(about: Mapping[str, Any]) -> str:
    """A description of a start in Markdown."""
    model = ", ".join(f"{key} {value}" for key, value in about["model"].items())
    scores = ", ".join(f"{name} {value:.3f}" for name, value in about["held_out"].items())
    lines = [
        f"- Trained on {about['images']:,} generated images: {about['made_from']}. No image of a patient was "
        "used, so it costs no ε.",
        f"- For {about['task']} on images of {about['image_size']}² pixels, {about['channels']} channel(s).",
        f"- Network: {model}.",
        f"- {about['steps']:,} steps of {about['batch_size']} images with AdamW, learning rate "
        f"{about['learning_rate']:g}, one cycle; every image newly augmented each time; seed "
        f"{about['seed']}; silodp {about['silodp']}.",
        f"- On held-out generated images, augmented as well: {scores}. This says nothing about real images.",
    ]
    return "\n".join([f"# A start: {about['kind']}", "", *lines, ""])


def begin_with(network: nn.Module, start: Start, *, new_head: bool = False) -> None:
    """Copies the start's weights into `network`, in place; names and shapes must match.

    Args:
        new_head: leave the last layer unchanged, for other classes than the start's.
    """
    import torch

    own = dict(network.named_parameters())
    names, setting = list(own), f"model.start = {start.name}"
    last = names[-1].rpartition(".")[0] + "." if names else ""
    wanted = [name for name in names if not (new_head and name.startswith(last))]
    if strangers := [name for name in start.tensors if name not in own]:
        running = any(word in strangers[0] for word in ("running_mean", "running_var"))
        why = "a running statistic, which models of silodp do not keep" if running else "not in the network"
        raise InputError(f"{setting}: its {strangers[0]!r} is {why}; {_way_out(start)}")
    for name in wanted:
        if name not in start.tensors:
            raise InputError(f"{setting}: the network has {name!r}, and the file does not; {_way_out(start)}")
        found, needed = tuple(start.tensors[name].shape), tuple(own[name].shape)
        if found != needed:
            way_out = "set model.start_head=new" if name.startswith(last) else _way_out(start)
            raise InputError(
                f"{setting}: its {name!r} has shape {found}, and the network's {needed}; {way_out}"
            )
    with torch.no_grad():
        for name in wanted:
            own[name].copy_(start.tensors[name])


def _way_out(start: Start) -> str:
    """The way out of a mismatch: the network settings of the start, where its file has them."""
    model = start.about.get("model")
    if not isinstance(model, dict):
        return "give a file of the same network"
    return "set " + ", ".join(f"model.{key}={value}" for key, value in model.items())

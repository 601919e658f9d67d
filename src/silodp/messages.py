"""The messages of a round: a public plan out, one vector of whole numbers a hospital back, then a release.

Plans and contributions can cross a network: `to_bytes` writes them as safetensors with a JSON header, and
`from_bytes` reads them strictly and never executes anything. Diagnostics are un-noised and never travel: only
an engine in the server's own process has them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from silodp.errors import InputError
from silodp.privacy.events import Event, read_event
from silodp.update_map import UpdateMap

_HEADER = struct.Struct("<Q")  # safetensors begin with the length of their header


@dataclass(frozen=True)
class RoundPlan:
    """Everything a hospital needs for one round. All of it is public.

    It does not say who is asked: privacy amplification by sampling needs that to stay secret.

    Attributes:
        round: counted from 1.
        parameters: (d,) the model θ as a flat vector, single precision, on the engine's device.
        intermediaries: v, the same for every hospital.
        clip_bound: C; infinite without clipping; None only where it will be the median of this round's norms
            (the authors' program; in process only).
        update_map: the scale in which updates travel.
        events: what the round will release; a hospital checks them against what it allows.
        model: digest of the parameters' names and shapes and of the frozen values, see `FlatModel.identity`.
    """

    round: int
    parameters: Tensor
    intermediaries: int
    clip_bound: float | None
    update_map: UpdateMap = field(default_factory=UpdateMap)
    events: tuple[Event, ...] = ()
    model: str = ""

    @property
    def bound(self) -> float:
        """C, of a plan whose updates are clipped: by then the norms have given it, where they do."""
        assert self.clip_bound is not None
        return self.clip_bound

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the whole plan, by which a contribution names the plan that it answers."""
        hashed = hashlib.sha256(json.dumps(self._public(), sort_keys=True).encode())
        for tensor in (self.parameters, self.update_map.divisor):
            if tensor is not None:
                hashed.update(tensor.detach().cpu().contiguous().numpy().data)
        return hashed.hexdigest()

    def _public(self) -> dict[str, Any]:
        """All of the plan but its tensors, as JSON can hold it."""
        fields = ("round", "intermediaries", "clip_bound", "model")
        events = [asdict(event) for event in self.events]
        own = {"per_step": self.update_map.per_step, "events": events}
        return {name: getattr(self, name) for name in fields} | own

    def to(self, device: torch.device) -> RoundPlan:
        """The same plan with its tensors on `device`."""
        scale = self.update_map
        divisor = None if scale.divisor is None else scale.divisor.to(device)
        moved = replace(scale, divisor=divisor)
        return replace(self, parameters=self.parameters.to(device), update_map=moved)

    def to_bytes(self) -> bytes:
        """Serialises the plan; the same plan gives the same bytes."""
        divisor = {} if self.update_map.divisor is None else {"divisor": self.update_map.divisor}
        return _packed("plan", self._public(), {"parameters": self.parameters} | divisor)

    @classmethod
    def from_bytes(cls, data: bytes) -> RoundPlan:
        """Reads a plan, its tensors on the CPU; raises InputError where the bytes are not one."""
        public, tensors = _unpacked("plan", data)
        try:
            events = tuple(read_event(one) for one in public.pop("events"))
            scale = UpdateMap(public.pop("per_step"), tensors.get("divisor"))
            known = tensors.keys() <= {"parameters", "divisor"}
            plan = cls(parameters=tensors["parameters"], **public, update_map=scale, events=events)
            sizes = [tensor.shape for tensor in tensors.values()]
            fits = (
                _is_count(plan.round)
                and _is_count(plan.intermediaries)
                and (type(plan.clip_bound) is float and plan.clip_bound > 0)
                and type(scale.per_step) is bool
                and known
                and type(plan.model) is str
                and all(size == sizes[0] and len(size) == 1 for size in sizes)
                and all(tensor.dtype == torch.float32 for tensor in tensors.values())
            )
        except (TypeError, ValueError, KeyError):
            fits = False
        if not fits:
            raise InputError("plan: the bytes are not a plan of silodp")
        return plan


@dataclass(frozen=True)
class Contribution:
    """One hospital's answer to a plan: one vector, whatever v is.

    Attributes:
        hospital: its name.
        round: of the plan that it answers.
        plan: digest of that plan.
        numbers: (d + 1,) float64: the sum of the clipped updates in units of the plan's lattice, then the sum
            of the quantile bits in units of theirs. Whole numbers; in a run without noise the plain sum.
    """

    hospital: str
    round: int
    plan: str
    numbers: Tensor

    def to_bytes(self) -> bytes:
        """Whole numbers as 64-bit integers."""
        whole = bool((self.numbers == self.numbers.round()).all()) and bool(
            (self.numbers.abs() < 2**62).all()
        )
        numbers = self.numbers.to(torch.int64) if whole else self.numbers
        public = {"hospital": self.hospital, "round": self.round, "plan": self.plan}
        return _packed("contribution", public, {"numbers": numbers})

    @classmethod
    def from_bytes(cls, data: bytes) -> Contribution:
        """Reads a contribution, its numbers float64 on the CPU; raises InputError where it is none."""
        public, tensors = _unpacked("contribution", data)
        try:
            answer = cls(**public, numbers=tensors.pop("numbers").double())
            fits = not tensors and _is_count(answer.round)
            fits = fits and type(answer.hospital) is str and type(answer.plan) is str
        except (TypeError, KeyError):
            fits = False
        if not fits:
            raise InputError("contribution: the bytes are not an answer to a plan of silodp")
        return answer


@dataclass(frozen=True)
class Diagnostics:
    """Un-noised statistics of one hospital's intermediaries. No ε covers them; they never travel.

    Attributes:
        norms: (v,) float64 L2 norms before clipping; 0 where an intermediary is lost.
        sketches: (v, k) float16 sketches of the updates, divided by their norms: for cosines without
            keeping the updates.
        loss: () float32 mean training loss.
    """

    norms: Tensor
    sketches: Tensor
    loss: Tensor


@dataclass(frozen=True)
class Release:
    """What a round made public: the released numbers, and the ledger events that record them.

    Attributes:
        mean: (d,) float32, the noisy mean of the clipped updates.
        clip_bound: C of this round.
        noise_std: σ, standard deviation of the noise in each coordinate of `mean`.
        fraction_below: b̃, the noised fraction of updates with norm ≤ C; None without quantile clipping.
        events: one an item released, with its digest.
        absent: hospitals that were asked and did not count, with the reason.
        ignored: answers that were not asked for, as (hospital, reason): each hospital counts once.
    """

    mean: Tensor
    clip_bound: float
    noise_std: float
    fraction_below: float | None
    events: tuple[Event, ...]
    absent: dict[str, str] = field(default_factory=dict)
    ignored: tuple[tuple[str, str], ...] = ()


def _packed(kind: str, public: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    """A message as safetensors; its kind and public fields stand as JSON in the header's metadata."""
    from safetensors.torch import save

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # One entry: safetensors writes several in any order, and equal messages must have equal bytes.
    packed: bytes = save(on_cpu, {"silodp": json.dumps([kind, public])})
    return packed


def _unpacked(kind: str, data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A message's public fields and its tensors, on the CPU; raises InputError for bytes of another kind.

    The fields may still be of any type, and there may be others.
    """
    from safetensors.torch import load

    try:
        (length,) = _HEADER.unpack_from(data)
        about = json.loads(data[_HEADER.size : _HEADER.size + length])["__metadata__"]
        found, public = json.loads(about["silodp"])
        if found == kind and isinstance(public, dict):
            return public, load(data)
    except Exception as error:  # struct, json and safetensors each raise their own types
        raise InputError(f"{kind}: {len(data)} bytes that cannot be read ({type(error).__name__})") from None
    raise InputError(f"{kind}: the bytes are a {found!r:.40}, or none of silodp")


def _is_count(value: Any) -> bool:
    """Whether it is a positive whole number; JSON's true, which is an int in Python, is none."""
    return type(value) is int and value > 0

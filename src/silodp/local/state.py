"""What a hospital carries from round to round, on its own disk: it is un-noised and never travels.

A folder a hospital, a file a round, its owner's alone. The last two rounds that were put down are kept: a
server that was killed while it wrote its checkpoint comes back to the one before.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import torch
from torch import Tensor

from silodp.errors import InputError
from silodp.files import private_folder, read_plain, replacing, write_atomically
from silodp.tensor_files import read_tensors, same_form

OptimizerState = dict[str, Tensor]


def state_folder(parent: Path, hospital: str) -> Path:
    """A hospital's folder: any name can be a hospital's, but not a folder's."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", hospital)[:40]
    return parent / f"{plain}-{hashlib.sha256(hospital.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def put_down(folder: Path, round_: int, states: list[OptimizerState], keep: int | None = None) -> None:
    """Writes the states after `round_`; of those put down before only `keep`, or the last ones, stay."""
    _made_private(folder)
    before = sorted(number for number in _rounds(folder) if number != round_)
    if keep in before:
        before = [number for number in before if number != keep] + [keep]
    with replacing(folder / f"{round_}.pt") as file:
        torch.save(states, file)
    for number in before[:-1]:
        (folder / f"{number}.pt").unlink()


def take_up(folder: Path, round_: int, like: OptimizerState, device: torch.device) -> list[OptimizerState]:
    """The states after `round_`, on `device`.

    Args:
        like: one state as the hospital's optimizer has them; files of another shape are refused.
    """
    path = folder / f"{round_}.pt"
    damaged = InputError(f"{path}: not the states of this hospital; restore it or start a new run")
    if not path.exists():
        raise InputError(
            f"{path}: the hospital's states are missing, without which its training cannot go on as it was; "
            "restore the file, or start a new run"
        )
    try:
        states = read_tensors(path, device)
    except Exception:  # PyTorch, pickle and zipfile each raise their own kinds on damaged files
        raise damaged from None
    if not same_form(states, [like]):
        raise damaged
    return states  # type: ignore[no-any-return]


def hand_on(source: Path, last: int, folder: Path, round_: int) -> None:
    """The states that `source` has after round `last` become those that `folder` has after `round_`.

    Args:
        last: 0 for a hospital that has none yet.
    """
    states = read_tensors(source / f"{last}.pt", torch.device("cpu")) if last else []
    put_down(folder, round_, states)


def put_down_secret(folder: Path, secret: bytes) -> None:
    """What a hospital's shares of noise come from: written once, before its first answer."""
    if not (folder / "secret").exists():
        _made_private(folder)
        write_atomically(folder / "secret", secret)


def take_up_secret(folder: Path) -> bytes | None:
    """The secret; None where none was put down."""
    path = folder / "secret"
    if not path.exists():
        return None
    secret = read_plain(path)
    if len(secret) != 32:
        raise InputError(f"{path}: not a hospital's secret; restore it or start a new run")
    return secret


def _made_private(folder: Path) -> None:
    """Its parent too: `mkdir` would leave that to the umask."""
    private_folder(folder.parent)
    private_folder(folder)


def _rounds(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.pt") if path.stem.isdecimal()]

"""A hospital's optimizer states and noise secret on its own disk: un-noised, private, never sent.

Each hospital has a folder (mode 0700) with one file a round. The last two rounds are kept: a server that was
killed while it wrote its checkpoint resumes from the one before.
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
    """A hospital's folder in `parent`; the name is made safe for a file system, and unique by a hash."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", hospital)[:40]
    return parent / f"{plain}-{hashlib.sha256(hospital.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def save_states(folder: Path, round_: int, states: list[OptimizerState], keep: int | None = None) -> None:
    """Saves the states after `round_`; of the rounds saved before, only `keep` or else the last one stays."""
    _make_private(folder)
    before = sorted(number for number in _rounds(folder) if number != round_)
    if keep in before:
        before = [number for number in before if number != keep] + [keep]
    with replacing(folder / f"{round_}.pt") as file:
        torch.save(states, file)
    for number in before[:-1]:
        (folder / f"{number}.pt").unlink()


def load_states(
    folder: Path, round_: int, like: OptimizerState, device: torch.device
) -> list[OptimizerState]:
    """Loads the states after `round_` onto `device`.

    Args:
        folder: the hospital's.
        round_: after which they were saved.
        like: a state of this optimizer; files with other names, shapes or dtypes are refused.
        device: of the trainer.
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
    except Exception:  # PyTorch, pickle and zipfile each raise their own types on damaged files
        raise damaged from None
    if not same_form(states, [like]):
        raise damaged
    return states  # type: ignore[no-any-return]


def hand_on(source: Path, last: int, folder: Path, round_: int) -> None:
    """Copies the states that `source` has after round `last` to `folder`, as those after `round_`.

    Args:
        source: a hospital's folder.
        last: a round that it has; 0 for a hospital without states.
        folder: the hospital's folder elsewhere, which is created.
        round_: the round that the server has reached.
    """
    states = read_tensors(source / f"{last}.pt", torch.device("cpu")) if last else []
    save_states(folder, round_, states)


def save_secret(folder: Path, secret: bytes) -> None:
    """Saves the secret of a hospital's noise shares; written once, before its first answer."""
    if not (folder / "secret").exists():
        _make_private(folder)
        write_atomically(folder / "secret", secret)


def load_secret(folder: Path) -> bytes | None:
    """Loads the secret; None where none was saved."""
    path = folder / "secret"
    if not path.exists():
        return None
    secret = read_plain(path)
    if len(secret) != 32:
        raise InputError(f"{path}: not a hospital's secret; restore it or start a new run")
    return secret


def _make_private(folder: Path) -> None:
    """Creates the folder and its parent with mode 0700, which `mkdir` would leave to the umask."""
    private_folder(folder.parent)
    private_folder(folder)


def _rounds(folder: Path) -> list[int]:
    """The rounds after which states were saved, in no order."""
    return [int(path.stem) for path in folder.glob("*.pt") if path.stem.isdecimal()]

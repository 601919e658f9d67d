"""Files of PyTorch that silodp reads back: nothing in them runs, and none is larger than it looks."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from silodp.files import open_plain


def read_tensors(path: Path, device: torch.device, *, mmap: bool = False) -> Any:
    """What `torch.save` wrote, tensors and plain values, on `device`; raises whatever is wrong with it.

    Args:
        mmap: map the file instead of reading it, where only some of it is wanted.
    """
    with open_plain(path, most=2**62) as file, zipfile.ZipFile(file) as parts:
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
            raise ValueError("PyTorch packs nothing, so what is read cannot be larger than the file")
    return torch.load(path, map_location=device, weights_only=True, mmap=mmap)


def same_form(found: Any, like: Any) -> bool:
    """Whether a value from a checkpoint can stand where this one stood: the same kinds, keys and shapes.

    Where there was nothing, anything plain may be; a list has any number of what its first one is.
    """
    if isinstance(like, Tensor):
        return isinstance(found, Tensor) and (found.shape, found.dtype) == (like.shape, like.dtype)
    if isinstance(like, dict):
        fits = isinstance(found, dict) and found.keys() == like.keys()
        return fits and all(same_form(value, like[key]) for key, value in found.items())
    if isinstance(like, tuple):
        fits = isinstance(found, list | tuple) and len(found) == len(like)
        return fits and all(map(same_form, found, like))
    if isinstance(like, list):
        return isinstance(found, list) and all(same_form(value, like[0]) for value in found)
    if like is None:
        return found is None or isinstance(found, int | float | str | Tensor)
    return type(found) is type(like) or (isinstance(like, float) and type(found) is int)

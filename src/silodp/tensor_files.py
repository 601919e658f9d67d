"""Files of PyTorch that silodp reads back: nothing in them runs, and none is larger than it looks."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silodp.files import open_plain

if TYPE_CHECKING:  # it takes seconds to import, and whoever reads plain values need not wait for it
    import torch


def read_tensors(path: Path, device: torch.device, *, mmap: bool = False) -> Any:
    """What `torch.save` wrote, tensors and plain values, on `device`; raises whatever is wrong with it.

    Args:
        mmap: map the file instead of reading it, where only some of it is wanted.
    """
    import torch

    with _parts(path):
        pass
    return torch.load(path, map_location=device, weights_only=True, mmap=mmap)


def read_plain_values(path: Path) -> Any:
    """What `torch.save` wrote but for the tensors, which are None; raises whatever is wrong with it.

    Numbers, texts, lists and dicts are read as they are, without PyTorch. Nothing that the file names is
    called, whatever it is.
    """
    with _parts(path) as parts:
        (name,) = (name for name in parts.namelist() if name.endswith("/data.pkl"))
        with parts.open(name) as file:
            return _PlainValues(file).load()


class _PlainValues(pickle._Unpickler):  # in Python: the one in C reserves as much memory as a file asks for
    def find_class(self, module: str, name: str) -> Any:
        return dict if (module, name) == ("collections", "OrderedDict") else lambda *_: None

    def persistent_load(self, _: Any) -> None:
        """In place of a tensor's numbers."""


@contextmanager
def _parts(path: Path) -> Iterator[zipfile.ZipFile]:
    with open_plain(path, most=2**62) as file, zipfile.ZipFile(file) as parts:
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
            raise ValueError("PyTorch packs nothing, so what is read cannot be larger than the file")
        yield parts


def same_form(found: Any, like: Any) -> bool:
    """Whether a value from a checkpoint can stand where this one stood: the same kinds, keys and shapes.

    Where there was nothing, anything plain may be; a list has any number of what its first one is.
    """
    from torch import Tensor

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

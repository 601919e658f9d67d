"""Reading of files from `torch.save`: nothing in them is executed, and memory is bounded by file size."""

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
    """Reads tensors and plain values, onto `device`; raises whatever PyTorch raises on damaged files.

    Args:
        path: of a file that `torch.save` wrote.
        device: for the tensors.
        mmap: map the file instead of reading it, where only a part is needed.
    """
    import torch

    with _parts(path):
        pass
    return torch.load(path, map_location=device, weights_only=True, mmap=mmap)


def read_plain_values(path: Path) -> Any:
    """Reads the plain values of a `torch.save` file without importing PyTorch; tensors become None.

    Guarantee: nothing that the file names is called.
    """
    with _parts(path) as parts:
        (name,) = (name for name in parts.namelist() if name.endswith("/data.pkl"))
        with parts.open(name) as file:
            return _PlainValues(file).load()


class _PlainValues(pickle._Unpickler):  # the C version allocates as much memory as a file asks for
    """Reads numbers, strings and collections; whatever else a file wants to build becomes None."""

    def find_class(self, module: str, name: str) -> Any:
        """Of the names in a file only that of ordered dictionaries, which PyTorch writes, means anything."""
        return dict if (module, name) == ("collections", "OrderedDict") else lambda *_: None

    def persistent_load(self, _: Any) -> None:
        """Stands in for tensor data."""


@contextmanager
def _parts(path: Path) -> Iterator[zipfile.ZipFile]:
    """Yields the zip file that `torch.save` wrote; refuses compressed parts, which grow when read."""
    with open_plain(path, most=2**62) as file, zipfile.ZipFile(file) as parts:
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
            raise ValueError("a compressed member, which torch.save never writes")
        yield parts


def same_form(found: Any, like: Any) -> bool:
    """Whether a value from a file has the types, keys, shapes and dtypes of `like`.

    Where `like` is None any number, string or tensor will do; a list may have any length, and each item must
    have the form of the first item of `like`.
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

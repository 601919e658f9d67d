"""One NumPy file of many images: `image` with `label` or `mask`, and optionally `patient` and `hospital`.

Any other array with one value an image is kept as a feature; `slice` is an image's position in its scan.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import PART_NAMES, Catalogue, Pictures, Row, Scan, Unreadable, first_line
from silodp.cohorts.kinds import MaskSettings
from silodp.cohorts.sources.limits import refuse_larger, times
from silodp.cohorts.sources.pixels import as_unit, mask_numbers, split_masks, values_in
from silodp.errors import InputError
from silodp.files import open_plain

NAMES = ("image", "label", "mask", "patient", "hospital", "part")  # each also in the plural


class Npz(MaskSettings):
    """One NumPy file of many images."""

    takes: ClassVar[tuple[str, ...]] = (".npz",)
    general: ClassVar[bool] = True
    kind: Literal["npz"] = "npz"

    def scan(self, root: Path) -> Catalogue:
        """Reads names and shapes; pixels are read later."""
        with open_arrays(root) as arrays:
            names = {
                name: next((found for found in (name, f"{name}s") if found in arrays), None) for name in NAMES
            }
            if names["image"] is None or (names["label"] is None) == (names["mask"] is None):
                raise InputError(
                    f"cohort.path = {root}: it holds the arrays {', '.join(sorted(arrays))}; "
                    "an npz cohort has `image` and either `label` or `mask`"
                )
            target: Literal["mask", "class"] = "mask" if names["mask"] else "class"
            if names["label"]:
                labels = _column(arrays[names["label"]], names["label"], root)
                classes = tuple(map(str, np.unique(labels).tolist()))
            else:
                stacked = arrays.header(str(names["mask"]))[0][1:-2]
                classes = tuple(map(str, self.mask_labels or range(1, 1 + (stacked[0] if stacked else 1))))
        read = partial(_read, names=names, classes=classes, settings=self)
        layout = f"an npz file with images and {'masks' if target == 'mask' else 'labels'}"
        place = root.resolve()  # which may be a link to anywhere
        return Catalogue("npz", place.parent, layout, target, classes, (Scan(root.name, (place,)),), read)


class Arrays(Mapping[str, NDArray[Any]]):
    """The arrays of an npz file, each read when it is accessed; other members are ignored."""

    def __init__(self, path: Path, file: zipfile.ZipFile) -> None:
        self._path, self._file = path, file
        self._members = {
            member.filename.removesuffix(".npy"): member
            for member in file.infolist()
            if member.filename.endswith(".npy")
        }
        refuse_larger(path, [1 + sum(member.file_size for member in self._members.values()) // 8])

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members  # without reading it

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of an array, checked against its size before anything is allocated."""
        with self._open(name) as array:
            version = np.lib.format.read_magic(array)
            reading = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            if version not in reading:
                raise Unreadable(f"{name} has a newer npy version; save it with field names in ASCII")
            shape, _, dtype = reading[version](array)
            start = array.tell()
        if dtype.hasobject:
            raise Unreadable(
                f"the array {name} has Python objects, as from pandas, which are never loaded; "
                f"save {name}.astype(str), or numbers"
            )
        if any(length < 0 for length in shape):
            raise Unreadable(f"{name} has the shape {shape}; save it as an array of numbers or text")
        if math.prod(shape) * dtype.itemsize != self._members[name].file_size - start:
            raise Unreadable(f"{name} declares {times(shape)} values of {dtype}, which it does not hold")
        return shape, dtype

    def __getitem__(self, name: str) -> NDArray[Any]:
        _, dtype = self.header(name)
        if dtype.kind not in "biufSU":
            raise Unreadable(f"{name} has values of {dtype}; save it as an array of numbers or text")
        with self._open(name) as array:
            values = np.lib.format.read_array(array, allow_pickle=False)
        if dtype.kind == "U":
            "".join(values.reshape(-1).tolist()).encode()  # raises if it is not valid text
        return values

    def _open(self, name: str) -> IO[bytes]:
        member = self._members[name]
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Unreadable(f"{name} is compressed in a way that NumPy does not use")
        return self._file.open(member)


@contextmanager
def open_arrays(path: Path) -> Iterator[Arrays]:
    """Opens an npz file; pickled objects are refused, since they could run code."""
    try:
        with open_plain(path, most=2**62) as plain:
            if plain.read(6) == b"\x93NUMPY":
                raise InputError(
                    f"cohort.path = {path}: a single array (npy); give an npz file with named arrays"
                )
            with zipfile.ZipFile(plain) as file:
                yield Arrays(path, file)
    except (InputError, Unreadable):
        raise
    except MemoryError:
        raise InputError(f"cohort.path = {path}: it needs more memory than there is") from None
    except Exception as error:  # zipfile, zlib and NumPy each raise their own kinds on damaged files
        reason = first_line(error)
        raise InputError(f"cohort.path = {path}: cannot be read as an npz file ({reason})") from None


def as_images(array: NDArray[Any]) -> NDArray[Any]:
    """Converts (n, h, w) or (n, h, w, c) to (n, channels, h, w); all but uint8 is scaled to 0…1."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[-1] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3):
        raise Unreadable(
            f"images of shape {array.shape}; give (n, h, w), or (n, channels, h, w) with 1 or 3 channels"
        )
    if array.dtype == np.uint8:
        return array
    finite = np.isfinite(array).all((1, 2, 3)) if array.dtype.kind == "f" else np.ones(len(array), bool)
    good = array[finite]
    if not len(good) or (array.dtype.kind == "f" and good.min() >= 0 and good.max() <= 1):
        return array  # an image with NaN is named later, by itself
    scaled = array.astype(np.float32)
    scaled[finite] = as_unit(good)  # one scale for all, so that images keep their brightness
    return scaled


def numbers_of(labels: NDArray[Any], classes: tuple[str, ...]) -> NDArray[np.int64]:
    """Numbers labels of any type 0, 1, 2, … in the order of their values."""
    values, numbers = np.unique(labels, return_inverse=True)
    assert tuple(map(str, values.tolist())) == classes
    return numbers.reshape(-1).astype(np.int64)


def _read(
    scan: Scan,
    names: Mapping[str, str | None],
    classes: tuple[str, ...],
    settings: MaskSettings,
) -> Pictures:
    with open_arrays(scan.files[0]) as arrays:
        images = as_images(arrays[str(names["image"])])
        count = len(images)
        targets: NDArray[Any]
        held: tuple[frozenset[float], ...] = ()
        if names["mask"]:
            targets, held = _masks(arrays[names["mask"]], images.shape, settings)
        else:
            targets = numbers_of(arrays[str(names["label"])], classes)
        known = {kind: arrays[name] for kind in NAMES[3:] if (name := names[kind])}
        features = {name: arrays[name].tolist() for name in arrays if _is_feature(arrays, name, names, count)}
    for name, values in known.items():
        if values.ndim != 1:
            raise Unreadable(f"{name} has the shape {values.shape}; give one value an image")
    for name, values in ((names["mask"] or names["label"], targets), *known.items()):
        if len(values) != count:
            raise Unreadable(f"{count} images but {len(values)} values of {name}; give one an image")
    nothing = [None] * count
    texts = {kind: [_text(value) for value in values.tolist()] for kind, values in known.items()}
    parts = [None if text is None else _part(text) for text in texts.get("part", nothing)]
    size = (images.shape[-2], images.shape[-1])
    rows = tuple(
        Row(
            f"{scan.name}#{number}",
            texts.get("hospital", nothing)[number],
            texts.get("patient", nothing)[number],
            parts[number],
            size,
            {name: values[number] for name, values in features.items()},
        )
        for number in range(count)
    )
    return Pictures(images, targets, rows, mask_values=held)


def _text(value: Any) -> str | None:
    """A name or a number as text; None for a missing one."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text.strip() or None


def _part(text: str) -> str:
    if text.lower() not in PART_NAMES:
        raise Unreadable(f"an image's part is {text!r}; it can be {', '.join(PART_NAMES)}")
    return PART_NAMES[text.lower()]


def _masks(
    masks: NDArray[Any], images: tuple[int, ...], settings: MaskSettings
) -> tuple[NDArray[np.uint8], tuple[frozenset[float], ...]]:
    """(n, masks, height, width) of 0 and 1, and the original values."""
    if masks.dtype == np.uint8 and masks.shape[-1] * 8 == images[-1] and masks.shape[-2] == images[-2]:
        masks = np.unpackbits(masks, axis=-1)
    if masks.dtype.kind in "if":
        masks = mask_numbers(masks)
    if masks.ndim == 3:
        split = split_masks(masks, settings.mask_labels, settings.mask_threshold)
        return split, (values_in(masks),)
    if settings.mask_labels is not None or masks.ndim != 4:
        raise Unreadable(
            f"masks of shape {masks.shape}; give (n, h, w) with cohort.mask_labels, or (n, masks, h, w)"
        )
    split = split_masks(masks, threshold=settings.mask_threshold)[:, :, 0]
    return split, tuple(values_in(masks[:, number]) for number in range(masks.shape[1]))


def _is_feature(arrays: Arrays, name: str, names: Mapping[str, str | None], count: int) -> bool:
    """Whether an array has a number or a text for each image."""
    if name in names.values():
        return False
    try:
        shape, dtype = arrays.header(name)
    except (Unreadable, ValueError):  # objects, or damaged; it is not needed
        return False
    return shape == (count,) and dtype.kind in "biufU"


def _column(values: NDArray[Any], name: str, path: Path) -> NDArray[Any]:
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError(
            f"cohort.path = {path}: {name} has the shape {values.shape}; give one class an image"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise InputError(f"cohort.path = {path}: {name} has NaN; give every image a class")
    return values

"""Reads new images without labels from any file that a cohort can have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Problem, Scan, Unreadable
from silodp.cohorts.kinds import FileCohort
from silodp.cohorts.sources.dicom import DICOM, has_dicom_mark, read_dicom
from silodp.cohorts.sources.layout import in_mask_folder
from silodp.cohorts.sources.medmnist import SPLITS
from silodp.cohorts.sources.nifti import is_nifti, read_nifti
from silodp.cohorts.sources.npz import as_images, open_arrays
from silodp.cohorts.sources.pixels import PICTURES, read_picture
from silodp.cohorts.sources.walking import files_below
from silodp.errors import InputError


@dataclass(frozen=True)
class Input:
    """The images of one file.

    Attributes:
        name: its path below the root.
        path: the file.
        images: (n, channels, h, w); bytes 0…255, or numbers 0…1.
        names: of the images.
        slices: for a volume, the index of each image among its slices; else None.
    """

    name: str
    path: Path
    images: NDArray[Any]
    names: tuple[str, ...]
    slices: tuple[int, ...] | None = None


def find_images(root: Path) -> tuple[list[tuple[str, Path]], list[Problem]]:
    """Images at a path, as (name, file), and what cannot be looked at; folders of masks are skipped."""
    if not root.exists():
        raise InputError(f"{root}: nothing is there")
    if root.is_file():
        return [(root.name, root)], []
    found, below = [], files_below(root)
    for name in below.files:
        if not in_mask_folder(name) and _is_image(root / name):
            found.append((name, root / name))
    if not found:
        raise InputError(
            f"{root}: no image below it; give pictures, DICOM, NIfTI or npz files{below.in_words}"
        )
    return found, [problem for problem in below.problems if not in_mask_folder(problem.name)]


def read_images(name: str, path: Path, settings: FileCohort) -> Input:
    """The images of one file, as in training except for size and channels.

    Raises:
        Exception: why the file cannot be used; decoders raise anything on a broken file.
    """
    if path.suffix.lower() == ".npz":
        return _arrays(name, path)
    scan = Scan(name, (path,))
    if is_nifti(path):
        volume = read_nifti(scan)
        places = tuple(int(row.features["slice"]) for row in volume.rows)
        return Input(name, path, volume.images, tuple(row.name for row in volume.rows), places)
    if path.suffix.lower() in DICOM or has_dicom_mark(path):
        frames = read_dicom(scan, settings.channels, head=settings.head)
        return Input(name, path, frames.images, tuple(row.name for row in frames.rows))
    return Input(name, path, read_picture(path)[None], (name,))


def _is_image(path: Path) -> bool:
    suffix = path.suffix.lower()
    return suffix in PICTURES or suffix in DICOM or suffix == ".npz" or is_nifti(path) or has_dicom_mark(path)


def _arrays(name: str, path: Path) -> Input:
    with open_arrays(path) as arrays:
        plain = next((key for key in ("image", "images") if key in arrays), None)
        if plain is not None:
            images = as_images(arrays[plain])
            return Input(name, path, images, tuple(f"{name}#{number}" for number in range(len(images))))
        if all(f"{split}_images" in arrays for split in SPLITS):
            parts = {split: as_images(arrays[f"{split}_images"]) for split in SPLITS}
            names = tuple(
                f"{name}#{split}-{number}" for split, part in parts.items() for number in range(len(part))
            )
            return Input(name, path, np.concatenate(list(parts.values())), names)
        raise Unreadable(f"it holds the arrays {', '.join(sorted(arrays))}; give one called image")

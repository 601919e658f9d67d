"""Writes predictions on new images in formats that other programs read."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Problem, why_unreadable
from silodp.cohorts.sources.limits import refuse_special
from silodp.cohorts.sources.pairing import without_ending
from silodp.cohorts.thumbnail import draw, png_bytes
from silodp.errors import InputError
from silodp.files import plain_name, private_folder, refuse_filled, write_atomically
from silodp.inference.inputs import Input, find_images, read_images
from silodp.inference.predictor import Predictor
from silodp.tables import write_csv

THRESHOLD = 0.5  # probability from which on a pixel belongs to a mask, as in the tests of a run

OnProgress = Callable[[int, int], None]


def predict_files(
    predictor: Predictor,
    root: Path,
    out: Path,
    *,
    overlays: bool = False,
    on_progress: OnProgress | None = None,
) -> list[Problem]:
    """Writes the prediction for every image at `root` into the new folder `out`, which is private.

    Masks become PNG files (0 and 255, a folder for each of several masks), a NIfTI volume in the geometry of
    its image (masks numbered from 1), or `mask` in an npz file for npz; classes become predictions.csv.

    Returns:
        The files that could not be used, and why.
    """
    refuse_filled(out)
    found, problems = find_images(root)
    alike = Counter(without_ending(name) for name, _ in found)  # files a.png and a.jpg keep their suffixes
    rows: list[dict[str, Any]] = []
    used = 0
    for done, (name, path) in enumerate(found, start=1):
        try:
            refuse_special(path, root if root.is_dir() else None)
            one = read_images(name, path, predictor.preparation.settings)
            probable = predictor.probabilities(one.images).numpy()
        except Exception as error:
            problems.append(Problem(name, why_unreadable(error)))
        else:
            used += 1
            private_folder(out)
            stem = without_ending(name) if alike[without_ending(name)] == 1 else name
            if predictor.target == "class":
                rows += _rows(one, probable, predictor.classes)
            else:
                _write_masks(one, stem, probable > THRESHOLD, predictor.classes, out)
            if overlays:
                masks = probable > THRESHOLD if predictor.target == "mask" else None
                _draw(one, stem, masks, out / "overlays")
        if on_progress is not None:
            on_progress(done, len(found))
    if not used:
        raise InputError(f"{root}: no image can be used; {'; '.join(map(str, problems[:3]))}")
    if predictor.target == "class":
        write_csv(out / "predictions.csv", rows)
    return problems


def _rows(found: Input, probable: NDArray[Any], classes: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name, shares in zip(found.names, probable, strict=True):
        each = {label: f"{share:.6f}" for label, share in zip(classes, shares, strict=False)}
        yield {"image": name, "predicted": classes[int(shares.argmax())], **each}


def _write_masks(
    found: Input, stem: str, masks: NDArray[np.bool_], classes: Sequence[str], out: Path
) -> None:
    if found.path.suffix.lower() == ".npz":
        content = io.BytesIO()
        np.savez_compressed(content, mask=masks.astype(np.uint8), name=np.array(found.names))
        _write(out / found.name, content.getvalue())
    elif found.slices is not None:
        _write(out / f"{stem}.nii.gz", _volume(found, masks))
    else:
        for name, of_image in zip(_numbered(found, stem), masks, strict=True):
            for mask, label in zip(of_image, classes, strict=False):
                folder = out if len(of_image) == 1 else out / plain_name(label)
                _write(folder / f"{name}.png", png_bytes(mask.astype(np.uint8) * 255))


def _volume(found: Input, masks: NDArray[np.bool_]) -> bytes:
    """A NIfTI file in the geometry of its image: masks are numbered from 1, later ones on top."""
    import gzip

    import nibabel
    from nibabel import orientations

    from silodp.cohorts.sources.nifti import from_seen, load_volume

    image = load_volume(found.path)
    upright = nibabel.as_closest_canonical(image)
    seen = np.zeros((len(masks), *masks.shape[-2:]), np.uint8)
    for number in range(masks.shape[1]):
        seen[masks[:, number]] = number + 1
    labels = np.zeros((upright.shape[2], *masks.shape[-2:]), np.uint8)
    labels[list(found.slices or ())] = seen
    turned = nibabel.Nifti1Image(from_seen(labels), upright.affine)
    back = orientations.ornt_transform(
        orientations.io_orientation(upright.affine), orientations.io_orientation(image.affine)
    )
    whole = turned.as_reoriented(back)
    result = nibabel.Nifti1Image(np.asarray(whole.dataobj), image.affine)
    result.header.set_xyzt_units(*image.header.get_xyzt_units())
    return gzip.compress(result.to_bytes(), mtime=0)


def _draw(found: Input, stem: str, masks: NDArray[np.bool_] | None, out: Path) -> None:
    for number, name in enumerate(_numbered(found, stem)):
        pixels = draw(found.images[number], None if masks is None else masks[number], 1024)
        _write(out / f"{name}.png", png_bytes(pixels))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def _numbered(found: Input, stem: str) -> list[str]:
    """Names for what is written of a file's images, with their numbers if there are several."""
    return [stem + name.removeprefix(found.name).replace("#", "-") for name in found.names]

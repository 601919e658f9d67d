"""NIfTI volumes as axial slices in radiological orientation: anterior up, the patient's right on the left.

Orientation comes from the file's affine (nibabel), so the result does not depend on the order of stored axes.
Brightness is scaled once for each volume, so that its slices stay comparable.
"""

from __future__ import annotations

import gzip
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Measure, Pictures, Scan, Unreadable, at_fault, first_line
from silodp.cohorts.sources.limits import refuse_larger, times
from silodp.cohorts.sources.pixels import as_unit, mask_numbers, with_masks

NIFTI = (".nii.gz", ".nii")
HEADER = 540  # bytes, of the longer kind
FURTHEST = 2**26  # bytes between the start and the voxels, for extensions
BROKEN = "it is no whole NIfTI file: {}"
NEAR = 2.0  # voxels by which corners of matching volumes may differ


def is_nifti(path: Path | str) -> bool:
    return str(path).lower().endswith(NIFTI)


def read_nifti(
    scan: Scan,
    mask_labels: tuple[int, ...] | None = None,
    with_mask_only: bool = False,
    mask_threshold: float | None = None,
) -> Pictures:
    """Reads the slices of one volume, from inferior to superior.

    Args:
        scan: its first file is the volume; others are masks. Without any, each slice gets the scan's label.
        mask_labels: of a single mask's file, each value a mask of its own.
        with_mask_only: leave out slices where the mask is empty. Otherwise only those are left out that show
            one grey (as at a volume's ends) and have nothing marked.
        mask_threshold: one mask of all from this value up; without it, and without labels, of all above 0.
    """
    from nibabel.affines import voxel_sizes

    def read_mask(path: Path) -> NDArray[Any]:
        with at_fault(path, BROKEN):
            return _mask(path, image, codes)

    try:
        image, codes = _canonical(scan.files[0])
        images = np.ascontiguousarray(_as_seen(as_unit(image.get_fdata(dtype=np.float32)))[:, None])
        kept = images.min((1, 2, 3)) < images.max((1, 2, 3))
        spacing = round(float(np.mean(voxel_sizes(image.affine)[:2])), 4)
        rows = tuple(
            scan.row(
                name=f"{scan.name}#{index}",
                size=images.shape[-2:],
                features={"slice": float(index), "spacing": spacing},
            )
            for index in range(len(images))
        )
        pictures = Pictures(images, scan.labels(len(images)), rows)
        if len(scan.files) > 1:
            pictures = with_masks(pictures, scan.files[1:], read_mask, mask_labels, mask_threshold)
            marked = pictures.targets.any((1, 2, 3))
            if with_mask_only and not marked.any():
                raise Unreadable(
                    "the mask is empty, and cohort.with_mask_only leaves nothing of it", scan.files[1]
                )
            kept = marked if with_mask_only else marked | kept
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # nibabel, gzip and zlib each raise their own kinds on damaged files
        raise Unreadable(BROKEN.format(first_line(error, *scan.files))) from error
    if not kept.any():
        raise Unreadable("each of its slices is constant")
    return pictures.at(kept)


def measure_nifti(path: Path) -> Measure:
    """Reads the size of its slices from the header."""
    image, _ = _canonical(path)
    return Measure(image.shape[1], image.shape[0])


def _canonical(path: Path) -> tuple[Any, tuple[str, ...]]:
    """A volume in canonical orientation (RAS+), and the orientation of its axes in the file."""
    import nibabel

    image = load_volume(path)
    if len(image.shape) != 3:
        raise Unreadable(f"it has the shape {times(image.shape)}; save one volume of three axes a file")
    return nibabel.as_closest_canonical(image), nibabel.aff2axcodes(image.affine)


def _load(path: Path) -> Any:
    """Opens a volume; voxels are not read yet.

    The header is checked first, and extensions are not read: nibabel's own function would decompress them.
    """
    import nibabel

    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        start = file.read(HEADER)
    kinds = (nibabel.Nifti1Image, nibabel.Nifti2Image)
    kind = next((kind for kind in kinds if kind.header_class.may_contain_header(start)), None)
    if kind is None:
        raise Unreadable(BROKEN.format("its header is damaged"))
    header = kind.header_class(start[: kind.header_class.sizeof_hdr])
    refuse_larger(path, map(int, header.get_data_shape()))
    if not 0 <= header.get_data_offset() <= FURTHEST:
        raise Unreadable(f"its numbers begin at byte {header.get_data_offset():,}, too far after its header")
    return kind(nibabel.arrayproxy.ArrayProxy(path, header), header.get_best_affine(), header)


def _as_seen(volume: NDArray[Any]) -> NDArray[Any]:
    """(right, front, up) as (slice, row, column)."""
    return volume[::-1, ::-1].transpose(2, 1, 0)


def from_seen(slices: NDArray[Any]) -> NDArray[Any]:
    """(slice, row, column) as (right, front, up)."""
    return slices.transpose(2, 1, 0)[::-1, ::-1]


def load_volume(path: Path) -> Any:
    """A volume as in its file, without axes of one: a nibabel image whose voxels are not read yet."""
    import nibabel

    return nibabel.squeeze_image(_load(path))


def _mask(path: Path, image: Any, codes: tuple[str, ...]) -> NDArray[Any]:
    """Reads the (slice, row, column) values of a volume's mask."""
    if not is_nifti(path):
        raise Unreadable("the mask is not a NIfTI volume, but its image is")
    mask, mask_codes = _canonical(path)
    if mask.shape != image.shape:
        raise Unreadable(f"the mask has {times(mask.shape)} voxels, its image {times(image.shape)}")
    # A mask without a position still has the image's order of voxels. If its axes also differ, it may or may
    # not have been reoriented; either guess would mirror some masks.
    if mask_codes != codes and (apart := _apart(mask, image)) > NEAR:
        raise Unreadable(
            f"the mask has the axes {''.join(mask_codes)} and lies {apart:.0f} voxels off, its image "
            f"{''.join(codes)}; save the mask with the image's affine"
        )
    return _as_seen(mask_numbers(np.asanyarray(mask.dataobj)))


def _apart(mask: Any, image: Any) -> float:
    """The largest distance between corresponding corners of two volumes, in voxels of the coarsest axis."""
    from nibabel import affines

    corners = np.array(list(product(*((0, length - 1) for length in image.shape))))
    ways = affines.apply_affine(mask.affine, corners) - affines.apply_affine(image.affine, corners)
    return float(np.linalg.norm(ways, axis=1).max() / affines.voxel_sizes(image.affine).max())

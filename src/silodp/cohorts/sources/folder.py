"""A folder of files with meaningful paths: `hospital/class/*`, or `hospital/images/*` and `hospital/masks/*`.

Files are pictures, DICOM or NIfTI. The level of hospitals may be missing. Folders train, validation and test,
at the top or in each hospital, define the part. Folders in masks (`masks/gland`, `masks/lesion`) are several
masks of an image. `patients.csv` (file, patient, and any features) or `cohort.patient_pattern` define the
patient. Or images are anywhere, and a csv has the class of each (`tables.py`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Catalogue, Measure, Pictures, Problem, Scan, Unreadable, one_picture
from silodp.cohorts.kinds import FileCohort, ImageSize, MaskCohort
from silodp.cohorts.sources.dicom import DICOM, has_dicom_mark, measure_dicom, read_dicom, read_dicom_image
from silodp.cohorts.sources.layout import (
    HEALTHY,
    LAYOUTS,
    by_part,
    class_names,
    in_mask_folder,
    is_paired,
    is_role,
    located,
)
from silodp.cohorts.sources.naming import checked_template
from silodp.cohorts.sources.nifti import NIFTI, is_nifti, measure_nifti, read_nifti
from silodp.cohorts.sources.pairing import (
    BESIDE,
    IMAGES,
    MASKS,
    Found,
    pair,
    patient_pattern,
    scan_of,
    volume_notes,
    with_pattern,
)
from silodp.cohorts.sources.pixels import (
    PICTURES,
    mask_numbers,
    measure_picture,
    read_mask_picture,
    read_picture,
    with_masks,
)
from silodp.cohorts.sources.tables import (
    COLUMNS,
    PATIENTS,
    Features,
    Labels,
    read_labels,
    tables_without_classes,
    with_patients,
)
from silodp.cohorts.sources.walking import Below, files_below
from silodp.errors import InputError

_NAMED = 8  # folders without an image that are named

_Scans = tuple[list[Scan], tuple[str, ...], list[Problem], str]  # names of classes or masks; how matched


class Folder(MaskCohort):
    """Folders of classes, or of images and masks."""

    general: ClassVar[bool] = True
    kind: Literal["folder"] = "folder"
    image_size: ImageSize | None = None
    """Width and height in pixels; by default the largest multiple of 16, at most 256, that enlarges none."""
    channels: Literal[1, 3] | None = None
    """By default 3 where any picture has colours, else 1."""
    mask_name: str | None = None
    """Of a mask's file without ending, {} standing for its image's, such as {}_manual1; others are left out.
    By default found out from the names."""

    def scan(self, root: Path) -> Catalogue:
        """Reads names, csv files with classes, and `patients.csv`; no image."""
        pattern = patient_pattern(self)
        if not root.is_dir():
            raise InputError(
                f"cohort.path = {root}: a file, and cohort.kind = folder reads {LAYOUTS}; give a folder"
            )
        below = files_below(root)
        names, notes = _images(below, root)
        labels = None if any(map(in_mask_folder, names)) else read_labels(root, below.files, names)
        problems = list(below.problems)
        features: Features = {}
        lists: tuple[Path, ...] = ()
        if labels is not None:
            paired = False
            scans, classes, more, how = _of_table(root, names, labels)
            features, lists = labels.features, labels.tables
            if without := len(names) - len(labels.label):
                notes.append(f"{without:,} images have no class in {lists[0].name} and are left out")
        else:
            try:
                found, outside = located(names, root)
            except InputError as error:
                raise InputError(f"{error}{tables_without_classes(root, below.files)}") from None
            problems += outside
            paired = is_paired(found, root)
            scans, classes, more, how = _of_pairs(root, found, self) if paired else _of_classes(root, found)
        problems += more
        if any(" second mask " in problem.what for problem in more):
            notes.append("several masks of an image: cohort.mask_name={}_… tells which are meant")
        if PATIENTS in below.files:
            lists = (*lists, root / PATIENTS)
            scans, told, more = with_patients(root / PATIENTS, scans, needed=pattern is None)
            features = {name: {**features.get(name, {}), **told.get(name, {})} for name in {*features, *told}}
            problems += more
        scans, more = with_pattern(scans, pattern)
        problems += more
        if any(each.patient is None and not _is_dicom(each.name) for each in scans):
            notes.append(
                "the files do not tell patients: each image counts as one; set cohort.patient_pattern, or "
                f"write {PATIENTS} with the columns {' and '.join(COLUMNS)}"
            )
        notes += volume_notes(scans, self)
        what = "images" if labels else "folders of images and masks" if paired else "folders of classes"
        target: Literal["class", "mask"] = "mask" if paired else "class"
        read = partial(_read, settings=self, features=features)
        return Catalogue(
            "folder",
            root,
            _layout(scans, what) + how,
            target,
            classes,
            tuple(sorted(scans, key=lambda scan: scan.name)),
            read,
            tuple(sorted(problems, key=str)),
            tuple(notes),
            lists,
            _measure,
        )


def read_image(scan: Scan, settings: FileCohort) -> Pictures:
    """A picture, or the frames of a DICOM file, with the scan's class."""
    path = scan.files[0]
    if _is_dicom(path):
        return read_dicom(scan, settings.channels, head=settings.head)
    return one_picture(scan, read_picture(path))


def read_files(scan: Scan, settings: MaskCohort) -> Pictures:
    """One image of any kind, with its class or with the masks in its further files."""
    if is_nifti(scan.files[0]):
        return read_nifti(scan, settings.mask_labels, settings.with_mask_only, settings.mask_threshold)
    pictures, masks = read_image(scan, settings), scan.files[1:]
    if not masks:
        return pictures
    pictures = with_masks(pictures, masks, _mask_numbers, settings.mask_labels, settings.mask_threshold)
    return pictures.at(np.any(pictures.targets, (1, 2, 3))) if settings.with_mask_only else pictures


def _read(scan: Scan, settings: MaskCohort, features: Features) -> Pictures:
    return read_files(scan, settings).with_features(features.get(scan.name, {}))


def _measure(scan: Scan) -> Measure:
    image = scan.files[0]
    if is_nifti(image):
        return measure_nifti(image)
    return measure_dicom(image) if _is_dicom(image) else measure_picture(image)


def _mask_numbers(path: Path) -> NDArray[Any]:
    """Reads the values of a mask's file, as (frames, height, width)."""
    if is_nifti(path):
        raise Unreadable("the mask is a volume, its image is not")
    if _is_dicom(path):
        return mask_numbers(read_dicom_image(path).pixels[:, 0])
    return read_mask_picture(path)[None]


def _is_dicom(path: Path | str) -> bool:
    """Whether an image file is DICOM: archives give these any extension, or none."""
    return not str(path).lower().endswith((*PICTURES, *NIFTI))


def _images(below: Below, root: Path) -> tuple[list[str], list[str]]:
    """All image files, and notes on other files and on folders without images."""
    images = [
        name
        for name in below.files
        if name.lower().endswith((*PICTURES, *DICOM, *NIFTI)) or has_dicom_mark(root / name)
    ]
    others = [
        PurePosixPath(name)
        for name in sorted(set(below.files) - set(images))
        if not name.lower().endswith((".csv", *BESIDE))
        and not PurePosixPath(name).stem.lower().startswith(("readme", "license"))
    ]
    kinds = ", ".join(sorted({path.suffix or "no ending" for path in others}))
    if not images:
        there = f"{len(others)} files ({kinds})" if others else "none at all"
        endings = ", ".join((*PICTURES, *DICOM, *NIFTI))
        raise InputError(
            f"cohort.path = {root}: no image below it, but {there}; a folder cohort has {LAYOUTS}, "
            f"with the endings {endings}{below.in_words}"
        )
    notes = [f"{len(others)} files of other kinds were left out ({kinds})"] if others else []
    if empty := _without_images(below.folders, images):
        more = f" and {len(empty) - _NAMED} more" if len(empty) > _NAMED else ""
        notes.append(f"folders without an image: {', '.join(empty[:_NAMED])}{more}")
    return images, notes


def _without_images(folders: Sequence[str], images: Sequence[str]) -> list[str]:
    """The folders without images, outermost first only."""
    full = {""}
    for folder in set(map(os.path.dirname, images)):
        while folder not in full:
            full.add(folder)
            folder = os.path.dirname(folder)
    return [folder for folder in folders if folder not in full and os.path.dirname(folder) in full]


def _of_classes(root: Path, found: Sequence[Found]) -> _Scans:
    classes = class_names({each.rest[0] for each in found}, root)
    places = {(each.rest[0], each.hospital) for each in found}
    hospitals = {hospital for _, hospital in places}
    if len(hospitals) > 1 and len(places) == len(classes):
        raise InputError(
            f"cohort.path = {root}: no two of the folders {', '.join(sorted(map(str, hospitals))[:3])} have "
            f"a class in common ({', '.join(classes[:3])}); a folder cohort has {LAYOUTS}"
        )
    if named := [name for name in hospitals if name and name.isalpha() and name.casefold() in HEALTHY]:
        raise InputError(
            f"cohort.path = {root}: {named[0]} would be a hospital, with the classes "
            f"{', '.join(classes[:3])}; put the images of a class into its folder itself, and their patients "
            f"into {PATIENTS}; or, if it is a hospital, give it another name"
        )
    number = {name: index for index, name in enumerate(classes)}
    return [scan_of(each, (root / each.name,), number[each.rest[0]]) for each in found], classes, [], ""


def _of_table(root: Path, names: Sequence[str], labels: Labels) -> _Scans:
    """Images with classes from a csv; hospitals are from the csv, else the folders if there are several."""
    found = by_part([Found(name, PurePosixPath(name).parts) for name in names], root)
    folders = {each.rest[0] for each in found if len(each.rest) > 1}
    classes = class_names(set(labels.label.values()), root)
    number = {name: index for index, name in enumerate(classes)}
    scans = []
    for each in found:
        if each.name not in labels.label:
            continue
        hospital = labels.hospital.get(each.name)
        if not labels.hospital and len(folders) > 1 and len(each.rest) > 1:
            hospital = each.rest[0]
        scan = scan_of(replace(each, hospital=hospital), (root / each.name,), number[labels.label[each.name]])
        scans.append(replace(scan, patient=labels.patient.get(each.name, scan.patient)))
    how = f"; classes from csv files ({', '.join(table.name for table in labels.tables)})"
    return scans, classes, list(labels.problems), how


def _of_pairs(root: Path, found: Sequence[Found], settings: Folder) -> _Scans:
    images = [each for each in found if each.rest[0].lower() in IMAGES]
    masks = [each for each in found if each.rest[0].lower() in MASKS]
    problems = [
        Problem(each.name, f"lies in {each.rest[0]}, a folder neither of images nor of masks")
        for each in found
        if not is_role(each)
    ]
    nested, kinds = ({each.rest[1] for each in some if len(each.rest) > 2} for some in (images, masks))
    if nested & kinds:  # both are in the same folders, such as those of patients
        kinds = set()
    if kinds and settings.mask_labels:
        raise InputError(
            f"cohort.mask_labels = {list(settings.mask_labels)}: the masks are in folders of their own "
            f"({', '.join(sorted(kinds))}), each file one mask; leave the setting out"
        )
    scans, more, ways = pair(root, images, masks, tuple(sorted(kinds)), checked_template(settings.mask_name))
    names = tuple(sorted(kinds)) or tuple(map(str, settings.mask_labels or ("mask",)))
    how = ", ".join(f"{way} ({count:,})" for way, count in ways.most_common())
    return scans, names, problems + more, f"; masks known by {how}" if how else ""


def _layout(scans: Sequence[Scan], what: str) -> str:
    hospitals = len({scan.hospital for scan in scans} - {None})
    named = f"in {hospitals} hospitals" if hospitals > 1 else "in one hospital"
    where = named if hospitals else "that name no hospital"
    parts = ", already divided into parts" if any(scan.part for scan in scans) else ""
    return f"{what} {where}{parts}"

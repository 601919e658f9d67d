"""Matches images with their masks, and finds the patient in a path or volume."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from silodp.cohorts.catalogue import Problem, Scan
from silodp.cohorts.kinds import FolderCohort, MaskCohort
from silodp.cohorts.sources.dicom import DICOM
from silodp.cohorts.sources.naming import EQUAL, matched
from silodp.cohorts.sources.nifti import NIFTI, is_nifti
from silodp.cohorts.sources.pixels import PICTURES
from silodp.errors import InputError

IMAGES = {"image", "images", "imagestr", "img", "imgs"}
MASKS = {
    "mask", "masks", "label", "labels", "labelstr", "seg", "segmentation", "segmentations", "annotations",
    "gt", "groundtruth", "ground_truth", "ground-truth", "manual", "1st_manual",
}  # fmt: skip
BESIDE = {"thumbs.db", "desktop.ini"}


@dataclass(frozen=True)
class Found:
    """A file, the hospital and part from its path, and the rest of the path: class or role, then name."""

    name: str
    rest: tuple[str, ...]
    hospital: str | None = None
    part: str | None = None


def without_ending(name: str) -> str:
    """A name without the extension of an image file; other dots stay, as in 1.2.840.7."""
    ending = next((each for each in (*NIFTI, *DICOM, *PICTURES) if name.lower().endswith(each)), "")
    return name[: len(name) - len(ending)]


def patient_pattern(settings: FolderCohort) -> re.Pattern[str] | None:
    """Compiles `cohort.patient_pattern`; InputError if it is not valid."""
    if settings.patient_pattern is None:
        return None
    field = f"cohort.patient_pattern = {settings.patient_pattern}"
    way = r"write the patient's part of a file's path in one pair of brackets, such as patient_(\d+)"
    try:
        pattern = re.compile(settings.patient_pattern)
    except re.error as error:
        raise InputError(f"{field}: not a regular expression ({error}); {way}") from None
    if pattern.groups != 1:
        raise InputError(f"{field}: it has {pattern.groups} groups; {way}")
    return pattern


def with_pattern(scans: list[Scan], pattern: re.Pattern[str] | None) -> tuple[list[Scan], list[Problem]]:
    """Sets the patients that a pattern finds in names; scans without one become problems."""
    if pattern is None:
        return scans, []
    found = [(scan, match[1] if (match := pattern.search(scan.name)) else None) for scan in scans]
    what = "cohort.patient_pattern finds no patient in its name"
    problems = [Problem(scan.name, what) for scan, patient in found if not patient]
    return [replace(scan, patient=patient) for scan, patient in found if patient], problems


def volume_notes(scans: Sequence[Scan], settings: MaskCohort) -> list[str]:
    """Notes on the treatment of volumes."""
    volumes = [scan for scan in scans if is_nifti(scan.name)]
    notes = []
    if settings.patient_pattern is None and any(map(_is_own_patient, volumes)):
        notes.append("a volume counts as a patient: if one person has several, set cohort.patient_pattern")
    if any(len(scan.files) == 1 or not settings.with_mask_only for scan in volumes):
        notes.append("slices of a volume that show one grey only are left out")
    return notes


def _is_own_patient(volume: Scan) -> bool:
    """Whether a volume's patient is only known from its own name."""
    name = without_ending(volume.name)
    return volume.patient in (name, f"{volume.hospital}/{PurePosixPath(name).name}")


def pair(
    root: Path,
    images: Sequence[Found],
    masks: Sequence[Found],
    kinds: tuple[str, ...] = (),
    template: str | None = None,
) -> tuple[list[Scan], list[Problem], Counter[str]]:
    """Matches images with masks by name (see `naming.py`); counts the ways in which names matched.

    Args:
        root: of all names.
        images: of all hospitals and parts.
        masks: of the same; a mask has its image's hospital and part.
        kinds: folders of masks, from each of which an image needs one; without any, it needs one.
        template: `cohort.mask_name`.
    """
    problems: list[Problem] = []
    groups = defaultdict(list)
    for image in images:
        groups[_key(image, image.rest[1:])].append(image)
    together: dict[Any, list[tuple[str, Found]]] = defaultdict(list)  # of a hospital, a part and a kind
    for mask in masks:
        kind, rest = (mask.rest[1], mask.rest[2:]) if kinds else ("", mask.rest[1:])
        if not rest:
            problems.append(Problem(mask.name, f"is beside the folders of masks ({', '.join(kinds)})"))
            continue
        *place, name = _key(mask, rest)
        together[*place, kind].append((name, mask))
    of_image: dict[Any, dict[str, str]] = defaultdict(dict)
    names: dict[Any, set[str]] = defaultdict(set)
    for where, part, name in groups:
        names[where, part].add(name)
    ways: Counter[str] = Counter()
    for (hospital, part, kind), mine in together.items():
        found = matched(names[hospital, part], [name for name, _ in mine], template)
        for name, mask in sorted(mine, key=lambda each: found.get(each[0], ("", ""))[1] != EQUAL):
            if name not in found:
                if template is None:
                    problems.append(Problem(mask.name, "is a mask without an image"))
                continue
            key = (hospital, part, found[name][0])
            if kind in of_image[key]:
                problems.append(Problem(mask.name, f"is a second mask of {groups[key][0].name}"))
            else:
                of_image[key][kind] = mask.name
                ways[found[name][1]] += 1
    scans = []
    for key, (image, *twins) in groups.items():
        missing = [kind for kind in kinds or ("",) if kind not in of_image[key]]
        if twins:
            what = "shares its name with another image, so that masks cannot tell them apart"
            problems += [Problem(each.name, what) for each in (image, *twins)]
        elif missing:
            problems.append(Problem(image.name, f"has no mask {' and '.join(missing)}".strip()))
        else:
            files = (image.name, *(of_image[key][kind] for kind in kinds or ("",)))
            scans.append(scan_of(image, tuple(root / file for file in files)))
    return scans, problems, ways


def _key(found: Found, rest: tuple[str, ...]) -> tuple[str | None, str | None, str]:
    """The key that an image and its mask share."""
    return (found.hospital, found.part, without_ending("/".join(rest)))


def scan_of(found: Found, files: tuple[Path, ...], label: int | None = None) -> Scan:
    patient = without_ending(found.name) if is_nifti(found.name) else None  # a volume shows one person
    return Scan(found.name, files, label, found.hospital, patient, found.part)

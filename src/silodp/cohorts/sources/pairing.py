"""Files found below a folder: images with their masks, and the patient in a name."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from silodp.cohorts.catalogue import Problem, Scan
from silodp.cohorts.sources.nifti import is_nifti, volume_name
from silodp.errors import InputError
from silodp.settings import CohortSettings

IMAGES = {"image", "images", "imagestr"}
MASKS = {"mask", "masks", "label", "labels", "labelstr", "segmentation", "segmentations"}
MASK_ENDING = re.compile(r"[_-](mask|seg|segmentation|label)s?$", re.IGNORECASE)
BESIDE = {"thumbs.db", "desktop.ini"}


@dataclass(frozen=True)
class Found:
    """A file, what the folders above it tell, and the rest of its path: a class or a role, then its name."""

    name: str
    rest: tuple[str, ...]
    hospital: str | None = None
    part: str | None = None


def files_below(root: Path) -> list[str]:
    """The names of all visible files below a folder, also below links, in their order."""
    names = []
    for folder, folders, files in os.walk(root, followlinks=True):
        here = os.path.realpath(folder)
        # A link to a folder above would be walked again and again.
        folders[:] = [
            name
            for name in folders
            if visible(name) and not Path(here).is_relative_to(os.path.realpath(os.path.join(folder, name)))
        ]
        below = PurePosixPath(Path(folder).relative_to(root).as_posix())
        names += [str(below / name) for name in files if visible(name)]
    return sorted(names)


def visible(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"


def without_ending(name: str) -> str:
    return volume_name(name) if is_nifti(name) else name.removesuffix(PurePosixPath(name).suffix)


def patient_pattern(settings: CohortSettings) -> re.Pattern[str] | None:
    """`cohort.patient_pattern`, or why it cannot be used."""
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
    """The scans with the patients that a pattern finds in their names; without one, as they are."""
    if pattern is None:
        return scans, []
    found = [(scan, match[1] if (match := pattern.search(scan.name)) else None) for scan in scans]
    what = "cohort.patient_pattern finds no patient in its name"
    problems = [Problem(scan.name, what) for scan, patient in found if not patient]
    return [replace(scan, patient=patient) for scan, patient in found if patient], problems


def pair(
    root: Path, images: Sequence[Found], masks: Sequence[Found], kinds: tuple[str, ...] = ()
) -> tuple[list[Scan], list[Problem]]:
    """Images with their masks, by name; a mask's may end in _mask, _seg, _segmentation or _label.

    Args:
        root: where names begin.
        images: of all hospitals and parts.
        masks: likewise; an image's is in its own hospital and part.
        kinds: folders of masks, from each of which an image needs one; without any, it needs one.
    """
    problems: list[Problem] = []
    groups = defaultdict(list)
    for image in images:
        groups[_key(image, image.rest[1:])].append(image)
    of_image: dict[Any, dict[str, str]] = defaultdict(dict)
    for mask in masks:
        kind, rest = (mask.rest[1], mask.rest[2:]) if kinds else ("", mask.rest[1:])
        if not rest:
            problems.append(Problem(mask.name, f"lies beside the folders of masks ({', '.join(kinds)})"))
            continue
        key = _key(mask, rest)
        key = key if key in groups else (*key[:2], MASK_ENDING.sub("", key[2]))
        if key not in groups:
            problems.append(Problem(mask.name, "is a mask without an image"))
        elif kind in of_image[key]:
            problems.append(Problem(mask.name, f"is a second mask of {groups[key][0].name}"))
        else:
            of_image[key][kind] = mask.name
    scans = []
    for key, (image, *twins) in groups.items():
        missing = [kind for kind in kinds or ("",) if kind not in of_image[key]]
        if twins:
            what = "shares its name with another image, so that masks cannot tell them apart"
            problems += [Problem(each.name, what) for each in (image, *twins)]
        elif missing:
            problems.append(Problem(image.name, f"has no mask {' and '.join(missing)}".strip()))
        else:
            mine = (image.name, *(of_image[key][kind] for kind in kinds or ("",)))
            scans.append(scan_of(image, tuple(root / name for name in mine)))
    return scans, problems


def _key(found: Found, rest: tuple[str, ...]) -> tuple[str | None, str | None, str]:
    """What an image and its mask have in common."""
    return (found.hospital, found.part, without_ending("/".join(rest)))


def scan_of(found: Found, files: tuple[Path, ...], label: int | None = None) -> Scan:
    patient = without_ending(found.name) if is_nifti(found.name) else None  # a volume shows one person
    return Scan(found.name, files, label, found.hospital, patient, found.part)

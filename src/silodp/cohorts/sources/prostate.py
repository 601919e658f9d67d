"""Prostate MRI of several sites, in the two layouts in which it is distributed.

- NIfTI volumes, one folder a site: `SITE/Case00.nii.gz` with `SITE/Case00_segmentation.nii.gz`, or equal
  names in `SITE/Image` and `SITE/Mask`.
- 2D slices with lists, as the paper's authors and NVIDIA FLARE's example prepare them: `SITE.json` with
  training, validation and testing, each of {"image": "SITE/Image/CASE/12.png", "label": "SITE/Mask/…"}.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

from silodp.cohorts.catalogue import Catalogue, Pictures, Problem, Scan
from silodp.cohorts.kinds import ImageSize, MaskCohort
from silodp.cohorts.sources.folder import read_files
from silodp.cohorts.sources.naming import MASK_ENDING
from silodp.cohorts.sources.nifti import NIFTI, is_nifti
from silodp.cohorts.sources.pairing import (
    IMAGES,
    MASKS,
    Found,
    pair,
    patient_pattern,
    volume_notes,
    with_pattern,
    without_ending,
)
from silodp.cohorts.sources.walking import Below, files_below
from silodp.errors import InputError
from silodp.files import read_json

LISTS = {"training": "train", "validation": "validation", "testing": "test"}
_LAST_NUMBER = re.compile(r"(\d+)\D*$")
_WANTED = (
    "prostate data are either one folder a site with NIfTI volumes (SITE/Case00.nii.gz with "
    "SITE/Case00_segmentation.nii.gz, or SITE/Image and SITE/Mask), or slices with a list SITE.json a site"
)


class Prostate(MaskCohort):
    """Prostate MRI of several sites."""

    task: ClassVar[str | None] = "segmentation"
    split: ClassVar[tuple[float, float, float]] = (0.5, 0.25, 0.25)  # as the paper's text
    one_mask_of: ClassVar[int] = 8  # its zones are the gland
    kind: Literal["prostate"] = "prostate"
    image_size: ImageSize | None = 256
    channels: Literal[1, 3] | None = 1
    with_mask_only: bool = True

    def scan(self, root: Path) -> Catalogue:
        """Reads names and lists only. Where there are lists, they define the cohort."""
        pattern = patient_pattern(self)
        if not root.is_dir():
            raise InputError(f"cohort.path = {root}: a file, not a folder; {_WANTED}")
        below = files_below(root)
        lists, notes = _lists(root, below)
        if lists:
            scans, problems = _from_lists(root, lists)
            layout = f"slices of {len(lists)} sites by json lists"
            split = "parts as in the json lists"
        else:
            scans, problems, more_notes = _from_volumes(root, below)
            notes += more_notes
            layout = f"NIfTI volumes of {len({scan.hospital for scan in scans})} sites"
            split = "split 50/25/25 as in the paper's text"
        scans, more = with_pattern(scans, pattern)
        notes += volume_notes(scans, self)
        if self.shares is None:
            notes.append(split)
        return Catalogue(
            "prostate",
            root,
            layout,
            "mask",
            tuple(map(str, self.mask_labels or ("gland",))),
            tuple(sorted(scans, key=lambda scan: scan.name)),
            partial(_read, settings=self),
            tuple(sorted((*problems, *more, *below.problems), key=str)),
            tuple(notes),
            tuple(lists),
        )


def _read(scan: Scan, settings: MaskCohort) -> Pictures:
    pictures = read_files(scan, settings)
    number = _LAST_NUMBER.search(PurePosixPath(scan.name).stem)
    if is_nifti(scan.name) or number is None:
        return pictures
    return pictures.with_features({"slice": float(number[1])})


def _from_volumes(root: Path, below: Below) -> tuple[list[Scan], list[Problem], list[str]]:
    """Matches images with segmentations within each site; a note on folders without any."""
    names = below.ending_in(*NIFTI)
    images: list[Found] = []
    masks: list[Found] = []
    problems = []
    for name in names:
        site, *folders, file = PurePosixPath(name).parts if "/" in name else ("", name)
        folder = folders[0].lower() if folders else ""
        if not site:
            problems.append(Problem(name, "is beside the folders of sites, in none of them"))
        elif len(folders) > 1 or folder not in {"", *IMAGES, *MASKS}:
            problems.append(
                Problem(name, f"lies in {'/'.join(folders)}, where neither images nor masks are read")
            )
        else:
            is_mask = folder in MASKS if folder else MASK_ENDING.search(without_ending(file)) is not None
            (masks if is_mask else images).append(Found(name, (folder, file), hospital=site))
    if not images and not masks:
        there = ", ".join(sorted({path.name for path in root.iterdir()})[:5]) or "nothing"
        strays = f"{len(problems)} NIfTI volumes elsewhere, such as {problems[0].name}, " if problems else ""
        raise InputError(
            f"cohort.path = {root}: neither was found, but {strays}{there}; {_WANTED}{below.in_words}"
        )
    scans, more, _ = pair(root, images, masks)
    without = {folder.partition("/")[0] for folder in below.folders}
    without -= {name.partition("/")[0] for name in names}
    notes = [f"{', '.join(sorted(without))}: no NIfTI volume there, so left out"] if without else []
    return [_named(scan) for scan in scans], problems + more, notes


def _named(scan: Scan) -> Scan:
    """The scan with its volume as the patient, whichever folder of the site it is in."""
    return replace(scan, patient=f"{scan.hospital}/{without_ending(PurePosixPath(scan.name).name)}")


def _lists(root: Path, below: Below) -> tuple[dict[Path, Mapping[str, Any]], list[str]]:
    """Reads the lists in the root and in its folders; notes on those that are not used."""
    found: dict[Path, Mapping[str, Any]] = {}
    for name in below.ending_in(".json"):
        path = root / name
        # dataset.json is the Decathlon's description of a site.
        if path.suffix != ".json" or path.name == "dataset.json" or name.count("/") > 1:
            continue
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise InputError(
                f"cohort.path = {path}: cannot be read as JSON ({error}); correct or remove it"
            ) from None
        if isinstance(content, dict) and not LISTS.keys().isdisjoint(content):
            found[path] = content
            _check_list(path, content)
    images = {path: {entry["image"] for name in LISTS for entry in found[path][name]} for path in found}
    for path in found:
        others = [images[other] for other in found if other != path]
        if len(others) > 1 and images[path] == set().union(*others):
            note = f"{path.relative_to(root).as_posix()} was left out: it repeats what the other lists hold"
            return {other: found[other] for other in found if other != path}, [note]
    sites = defaultdict(list)
    for path in found:
        sites[_site(path)].append(path)
    for site, paths in sites.items():
        if len(paths) > 1:
            both = " and ".join(str(path.relative_to(root)) for path in paths)
            raise InputError(f"cohort.path = {root}: {both} are both lists of {site}; remove one")
    return found, []


def _check_list(path: Path, content: Mapping[str, Any]) -> None:
    form = 'a list has training, validation and testing, each of {"image": …, "label": …}'
    for name in LISTS:
        if not isinstance(content.get(name), list):
            raise InputError(f"cohort.path = {path}: {name} is missing or no list; {form}")
        for number, entry in enumerate(content[name]):
            for key in ("image", "label"):
                if not isinstance(entry, dict) or not isinstance(entry.get(key), str):
                    raise InputError(f"cohort.path = {path}: {name}[{number}] has no {key}; {form}")


def _site(path: Path) -> str:
    return path.stem.removeprefix("client_")  # as FLARE's example names its lists


def _from_lists(root: Path, lists: Mapping[Path, Mapping[str, Any]]) -> tuple[list[Scan], list[Problem]]:
    scans: dict[str, Scan] = {}
    problems = []
    below = sorted(path for path in root.iterdir() if path.is_dir())
    for path, content in lists.items():
        site = _site(path)
        bases = (root, path.parent, *below)
        for name, part in LISTS.items():
            where = f"{path.relative_to(root).as_posix()} ({name})"
            for entry in content[name]:
                files = {key: _find(bases, entry[key]) for key in ("image", "label")}
                missing = [entry[key] for key, file in files.items() if not os.path.isfile(file)]
                problems += [Problem(file, f"is in {where}, but there is no such file") for file in missing]
                image = PurePosixPath(entry["image"])
                if str(image) in scans:
                    problems.append(Problem(str(image), f"is listed again in {where}"))
                elif not missing:
                    patient = f"{site}/{_case(image, site)}"
                    scans[str(image)] = Scan(str(image), tuple(files.values()), None, site, patient, part)
    return list(scans.values()), problems


def _case(image: PurePosixPath, site: str) -> str:
    """The folder of a patient's slices; a volume that is in no such folder is a patient itself."""
    folder = image.parent.name
    if is_nifti(image.name) and folder.lower() in {"", site.lower(), *IMAGES}:
        return without_ending(image.name)
    return folder


def _find(bases: Sequence[Path], name: str) -> Path:
    """Finds a listed file: below the root, beside its list, or in a folder of the root."""
    return next((base / name for base in bases if os.path.isfile(base / name)), bases[0] / name)

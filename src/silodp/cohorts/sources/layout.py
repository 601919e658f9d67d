"""What the folders of a path define: hospital, part, and class or role (image or mask)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from silodp.cohorts.catalogue import PART_NAMES, Problem
from silodp.cohorts.sources.pairing import IMAGES, MASKS, Found
from silodp.errors import InputError

HEALTHY = {"normal", "healthy", "negative", "neg", "control", "controls", "benign", "none", "no", "0"}
_NO = re.compile(r"(no|non|not|without) ")
LAYOUTS = "hospital/class/*.png, class/*.png, hospital/images/*.png with hospital/masks/*.png"


def located(names: Sequence[str], root: Path) -> tuple[list[Found], list[Problem]]:
    """Removes part and hospital from every path; problems for files outside."""
    found = by_part([Found(name, PurePosixPath(name).parts) for name in names], root)
    inner = [each for each in found if len(each.rest) > 1]
    if any(len(each.rest) > 2 for each in inner) and not any(is_role(each) for each in inner):
        hospitals = defaultdict(list)
        for each in inner:
            hospitals[each.rest[0]].append(replace(each, hospital=each.rest[0], rest=each.rest[1:]))
        inner = [each for mine in hospitals.values() for each in by_part(mine, root)]
    if not (located := [each for each in inner if len(each.rest) > 1]):
        raise InputError(
            f"cohort.path = {root}: {len(names)} images in no folder of a class or of images, such "
            f"as {names[0]}; a folder cohort has {LAYOUTS}"
        )
    outside = set(names) - {each.name for each in located}
    return located, [Problem(name, "is beside the folders of images, in none of them") for name in outside]


def by_part(found: list[Found], root: Path) -> list[Found]:
    """Removes the part from paths where all folders are parts; refuses a mixture."""
    folders = {each.rest[0] for each in found if len(each.rest) > 1}
    parts = {folder for folder in folders if folder.lower() in PART_NAMES}
    if any(each.part for each in found) or not parts:
        return found
    if parts != folders:
        where = next(each.name for each in found if each.rest[0] in parts)
        raise InputError(
            f"cohort.path = {root}: folders of parts ({', '.join(sorted(parts))}) beside others "
            f"({', '.join(sorted(folders - parts)[:3])}), at {where}; rename or move one of them"
        )
    return [
        replace(each, part=PART_NAMES[each.rest[0].lower()], rest=each.rest[1:])
        if len(each.rest) > 1
        else each
        for each in found
    ]


def in_mask_folder(name: str) -> bool:
    """Whether a file, by its path below the root, is in a folder of masks."""
    return any(folder.lower() in MASKS for folder in PurePosixPath(name).parts[:-1])


def is_role(found: Found) -> bool:
    return found.rest[0].lower() in IMAGES | MASKS


def is_paired(found: Sequence[Found], root: Path) -> bool:
    """Whether the folders hold images with masks rather than classes."""
    paired = {each.hospital: each.name for each in found if is_role(each)}
    others = [each.name for each in found if each.hospital not in paired]
    if paired and others:
        raise InputError(
            f"cohort.path = {root}: {next(iter(paired.values()))} is in a folder of images or masks, but "
            f"{others[0]} in one of a class; give all hospitals masks, or all classes"
        )
    if not paired:
        _refuse_too_high(found, root)
    return bool(paired)


def _refuse_too_high(found: Sequence[Found], root: Path) -> None:
    """Refuses folders of images and masks that are so deep that they would be taken for classes."""
    tops = defaultdict(set)
    for each in found:
        *folders, _ = PurePosixPath(each.name).parts
        for depth, folder in enumerate(folders):
            if folder.lower() in IMAGES | MASKS:
                tops["/".join(folders[: max(0, depth - 1)])].add(folder.lower() in IMAGES)
    if above := [top for top, roles in tops.items() if top and len(roles) == 2]:
        more = f" (and {len(above) - 1} more such folders)" if len(above) > 1 else ""
        raise InputError(
            f"cohort.path = {root}: one folder too high: folders of images and of masks would be taken for "
            f"classes; give cohort.path={root / min(above)}{more}"
        )


def class_names(names: Iterable[str], root: Path) -> tuple[str, ...]:
    """Alphabetical, or by number; the healthy class first, so that 1 is the disease where there are two."""
    classes = sorted(names, key=lambda name: (name.zfill(9) if name.isdecimal() else name.casefold(), name))
    alike = [name for name, count in Counter(name.casefold() for name in classes).items() if count > 1]
    if alike:
        raise InputError(
            f"cohort.path = {root}: folders of classes whose names differ in capitals only "
            f"({', '.join(alike)}); name them alike"
        )
    words = {name: re.sub(r"[\s_-]+", " ", name.casefold()) for name in classes}
    healthy = [name for name, text in words.items() if text in HEALTHY or _NO.match(text)]
    if len(healthy) == 1:
        classes.sort(key=lambda name: name != healthy[0])
    return tuple(classes)

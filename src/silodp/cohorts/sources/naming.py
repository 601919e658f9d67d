"""Matches masks with images by name: equal names, or names with common prefixes or suffixes.

`12.png` has `12_seg.png`, `mask_12.png` or `12-Disc-Avg.tif`; `21_training.tif` has `21_manual1.gif`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from silodp.errors import InputError

MASK_ENDING = re.compile(r"[_-](mask|seg|segmentation|label)s?$", re.IGNORECASE)
EQUAL = "equal names"
_WORD = re.compile(r"[^\W_]+$")
_TEMPLATE = "cohort.mask_name"


def matched(
    images: Collection[str], masks: Sequence[str], template: str | None = None
) -> dict[str, tuple[str, str]]:
    """Finds the image of each mask, and how it was found.

    Args:
        images: paths without ending, of one hospital and part.
        masks: of the same.
        template: a mask's name with {} for its image's; other masks are left out.
    """
    if template is not None:
        return _by_template(set(images), masks, template)
    found = {mask: (mask, EQUAL) for mask in masks if mask in images}
    for mask in masks:
        if mask not in found and (image := MASK_ENDING.sub("", mask)) in images:
            found[mask] = (image, f"the ending {mask[len(image) :]}")
    for way in (_by_what_masks_have_more, _by_what_both_have):
        taken = {image for image, _ in found.values()}
        free = [image for image in images if image not in taken]
        found |= way(free, [mask for mask in masks if mask not in found])
    return found


def checked_template(template: str | None) -> str | None:
    """Checks `cohort.mask_name`."""
    if template is not None and template.count("{}") != 1:
        raise InputError(
            f"{_TEMPLATE} = {template}: write {{}} once where the image's name stands, such as {{}}_manual1"
        )
    return template


def _by_template(images: set[str], masks: Sequence[str], template: str) -> dict[str, tuple[str, str]]:
    before, _, after = template.partition("{}")
    cores = {_core(image, _common(images)): image for image in images} | {image: image for image in images}
    found = {}
    for mask in masks:
        folder, _, name = mask.rpartition("/")
        long_enough = len(name) >= len(before) + len(after)
        if long_enough and name.startswith(before) and name.endswith(after):
            core = name[len(before) : len(name) - len(after)]
            if image := cores.get(f"{folder}/{core}" if folder else core):
                found[mask] = (image, f"{_TEMPLATE} = {template}")
    return found


def _by_what_masks_have_more(images: Collection[str], masks: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Matches by a prefix or suffix that two or more masks add to the names of their images."""
    known = set(images)
    found: dict[str, tuple[str, str]] = {}
    counts = Counter(more for mask in masks for more, _ in _splits(mask, known))
    for (before, after), count in counts.most_common():
        if count < 2 and not _stands_apart(before, after):
            continue
        how = f"the beginning {before}" if before else f"the ending {after}"
        taken = {image for image, _ in found.values()}
        for mask in masks:
            for more, image in _splits(mask, known):
                if more == (before, after) and mask not in found and image not in taken:
                    found[mask] = (image, how)
    return found


def _splits(mask: str, images: set[str]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yields every ((before, after), image) such that before + image + after is the mask's name."""
    folder, _, name = mask.rpartition("/")
    place = f"{folder}/" if folder else ""
    for cut in range(1, len(name)):
        for before, middle, after in (("", name[:cut], name[cut:]), (name[:cut], name[cut:], "")):
            joint = (middle[-1], after[0]) if after else (before[-1], middle[0])
            more = before + after
            if (
                f"{place}{middle}" in images
                and re.search(r"[^\W\d]", more)
                and not all(each.isdigit() for each in joint)
            ):
                yield (before, after), f"{place}{middle}"


def _stands_apart(before: str, after: str) -> bool:
    return not (before[-1:] or after[:1]).isalnum()


def _by_what_both_have(images: Collection[str], masks: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Matches by the rest of names where all images share a prefix and suffix and all masks another one."""
    if len(images) < 2 or len(masks) < 2:
        return {}
    ours, theirs = _common(images), _common(masks)
    cores = {_core(image, ours): image for image in images}
    how = f"{''.join(theirs) or 'nothing'} in place of {''.join(ours) or 'nothing'}"
    return {mask: (cores[core], how) for mask in masks if (core := _core(mask, theirs)) in cores}


def _common(paths: Iterable[str]) -> tuple[str, str]:
    """The prefix and the suffix, in whole words, that all names share."""
    names = [path.rpartition("/")[2] for path in paths]
    before = _WORD.sub("", _prefix(names))
    after = _WORD.sub("", _prefix([name[len(before) :][::-1] for name in names]))[::-1]
    return before, after


def _prefix(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    for at, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:at]
    return first


def _core(path: str, common: tuple[str, str]) -> str:
    folder, slash, name = path.rpartition("/")
    before, after = common
    return folder + slash + name[len(before) : len(name) - len(after)]

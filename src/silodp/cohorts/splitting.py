"""Train, validation and test: whole groups, hospital by hospital, every class in its share."""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.people import STREAM, Groups, Numbers
from silodp.cohorts.synthetic import random_stream

Content = list[tuple[int, int]]  # of a group: its classes, with how many images of each


def split_all(
    where: Numbers, labels: Numbers | None, groups: Groups, shares: NDArray[Any], seed: int
) -> Numbers:
    """The part of each group, hospital by hospital."""
    classes = np.zeros_like(groups.of) if labels is None else np.unique(labels, return_inverse=True)[1]
    width = int(classes.max()) + 1
    contents: list[Content] = [[] for _ in groups.sizes]
    pairs, counts = np.unique(groups.of * width + classes, return_counts=True)
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        contents[pair // width].append((pair % width, count))
    part = np.zeros_like(groups.sizes)
    for hospital in range(int(where.max()) + 1):
        rng = random_stream(seed, STREAM, 1, hospital)
        mine = rng.permutation(np.flatnonzero(where == hospital))
        mine = mine[np.argsort(-groups.sizes[mine], kind="stable")]
        part[mine] = _split([contents[group] for group in mine], shares.tolist(), bool(rng.integers(2)))
    return part


def _split(contents: list[Content], shares: list[float], test_first: bool) -> list[int]:
    """The part of each of a hospital's groups, larger ones first, so that each class keeps the shares.

    A group goes only where at least half of it is lacking, or else where most is: then no part is further
    from its share than the largest group, unless a part would stay empty. Among these parts its classes
    decide: the sum of their squared deviations, relative to what is wanted, is to fall most. A tie goes to
    the smaller parts, which starve more easily.
    """
    sizes = [sum(count for _, count in content) for content in contents]
    totals: Counter[int] = Counter()
    for kind, count in chain.from_iterable(contents):
        totals[kind] += count
    lacks = [share * sum(sizes) for share in shares]
    wanted = [{kind: share * total for kind, total in totals.items()} for share in shares]
    missing = [dict(classes) for classes in wanted]
    turns = (2, 1, 0) if test_first else (1, 2, 0)
    parts: list[int] = []
    empty = set(turns)
    for content, size in zip(contents, sizes, strict=True):
        if len(contents) - len(parts) <= len(empty):
            open_parts = [part for part in turns if part in empty]
        else:
            open_parts = [part for part in turns if lacks[part] >= size / 2 - 1e-9]
        best, most = max(turns, key=lacks.__getitem__), -math.inf
        for part in open_parts:
            gain = sum(
                (2 * missing[part][kind] - count) * count / wanted[part][kind] for kind, count in content
            )
            if gain > most + 1e-9:
                best, most = part, gain
        parts.append(best)
        empty.discard(best)
        lacks[best] -= size
        for kind, count in content:
            missing[best][kind] -= count
    return _feed_training(parts, sizes)


def _feed_training(parts: list[int], sizes: list[int]) -> list[int]:
    """Moves a second image to training where it has only one and another part has some to spare."""
    mine = [index for index, part in enumerate(parts) if part == 0]
    if sum(sizes[index] for index in mine) > 1:
        return parts
    spare = [index for index, part in enumerate(parts) if part != 0 and parts.count(part) > 1]
    larger = [index for index, size in enumerate(sizes) if size > 1]
    if spare:  # the smallest group of the part that has most of them
        parts[max(spare, key=lambda index: (parts.count(parts[index]), index))] = 0
    elif larger:
        parts[mine[0]], parts[larger[-1]] = parts[larger[-1]], 0
    return parts

"""A smaller sample in which rare kinds are not rare, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from silodp.cohorts.catalogue import Scan
from silodp.noise.streams import derive_seed


def sample_evenly(scans: Sequence[Scan], count: int, seed: int) -> tuple[Scan, ...]:
    """`count` of the scans (or all, if there are no more): evenly over labels, then over a label's strata.

    A stratum with fewer scans than its share gives all it has, and the others share the rest. Where scans
    carry parts (train, validation, test), each part keeps its proportion. The result is in the order of
    names. Of two draws with one seed, the larger keeps what the smaller took from a stratum.
    """
    ordered = sorted(scans, key=lambda scan: scan.name)
    if count >= len(ordered):
        return tuple(ordered)
    drawn: list[Scan] = []
    parts = _groups(ordered, lambda scan: scan.part or "")
    for part, share in zip(parts, proportional([len(g) for g in parts.values()], count), strict=True):
        labels = _groups(parts[part], lambda scan: str(scan.label))
        for label, half in zip(labels, water_fill([len(g) for g in labels.values()], share), strict=True):
            strata = _groups(labels[label], lambda scan: scan.stratum)
            for stratum, few in zip(strata, water_fill([len(g) for g in strata.values()], half), strict=True):
                members = strata[stratum]
                chance = np.random.default_rng(derive_seed(seed, "sample", part, label, stratum))
                drawn += [members[place] for place in chance.permutation(len(members))[:few]]
    return tuple(sorted(drawn, key=lambda scan: scan.name))


def water_fill(sizes: Sequence[int], total: int) -> list[int]:
    """Shares of `total`, as even as whole numbers can be, none above its size.

    The sizes must add up to `total` or more.
    """
    shares = [0] * len(sizes)
    # From the smallest up: whatever one of them lacks is spread over all that come after it.
    for done, place in enumerate(sorted(range(len(sizes)), key=lambda place: sizes[place])):
        shares[place] = min(sizes[place], total // (len(sizes) - done))
        total -= shares[place]
    return shares


def proportional(sizes: Sequence[int], total: int) -> list[int]:
    """Whole shares of `total` in proportion to the sizes, by largest remainder."""
    exact = [Fraction(size * total, sum(sizes)) for size in sizes]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda place: shares[place] - exact[place])
    for place in by_remainder[: total - sum(shares)]:
        shares[place] += 1
    return shares


def _groups(scans: Sequence[Scan], key: Callable[[Scan], str]) -> dict[str, list[Scan]]:
    groups: dict[str, list[Scan]] = {}
    for scan in scans:
        groups.setdefault(key(scan), []).append(scan)
    return dict(sorted(groups.items()))

"""Assigns groups of images to hospitals: as named, by a feature, or at random."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silodp.cohorts.catalogue import PARTS, Row
from silodp.cohorts.kinds import StoredCohort
from silodp.cohorts.people import STREAM, Groups, Numbers, listed
from silodp.cohorts.synthetic import random_stream
from silodp.errors import InputError

Dealt = tuple[tuple[str, ...], Numbers, list[str]]  # names of hospitals, the one of each group, notes

LEAST = len(PARTS)  # groups that a hospital needs: one for each part
MOST_VALUES = 100  # of a feature
REDRAWS = 100  # of a Dirichlet division that leaves a hospital nearly empty
ANEW = "cohort.shares=[0.6, 0.2, 0.2] splits all anew by patient"


def as_named(rows: Sequence[Row], first: Numbers, settings: StoredCohort) -> Dealt:
    names = sorted({str(row.hospital) for row in rows})
    if settings.hospitals not in (None, len(names)):
        raise InputError(
            f"cohort.hospitals = {settings.hospitals}: the files name {len(names)} "
            f"({listed(names, len(names))}); set cohort.hospitals={len(names)}, or deal "
            "all out anew with cohort.partition=equal"
        )
    return tuple(names), np.array([names.index(str(rows[index].hospital)) for index in first]), []


def by_feature(rows: Sequence[Row], groups: Groups, settings: StoredCohort) -> Dealt:
    """A hospital for each value of a feature; a group with several values goes to its most frequent one."""
    feature = settings.feature
    values = [_value(row.features.get(feature or "")) for row in rows]
    without = [row.name for row, value in zip(rows, values, strict=True) if value is None]
    if without:
        known = sorted({name for row in rows for name in row.features})
        raise InputError(
            f"cohort.feature = {feature}: {len(without)} of {len(rows)} images do not have it, such as "
            f"{without[0]}; choose one of those in the files: {', '.join(known) or 'there is none'}"
        )
    kinds = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    if len(kinds) > MOST_VALUES:
        raise InputError(
            f"cohort.feature = {feature}: {len(kinds)} different values would be as many hospitals; "
            f"choose a feature with at most {MOST_VALUES}"
        )
    texts = [value if isinstance(value, str) else f"{value:g}" for value in kinds]
    if len(set(texts)) < len(texts):  # numbers that differ in late digits
        texts = [str(value) for value in kinds]
    number = {value: index for index, value in enumerate(kinds)}
    codes = np.array([number[value] for value in values], dtype=np.int64)
    pairs, counts = np.unique(groups.of * len(kinds) + codes, return_counts=True)
    owners = pairs // len(kinds)
    order = np.lexsort((-counts, owners))
    where = pairs[order][np.unique(owners, return_index=True)[1]] % len(kinds)
    mixed = int((np.bincount(owners) > 1).sum())
    note = f"{groups.unit} with more than one {feature}, each put where most of its images are: {mixed}"
    return tuple(f"{feature} {text}" for text in texts), where, [note] if mixed else []


def _value(value: Any) -> float | str | None:
    """A feature's value in a form that can be compared; None where it is unknown."""
    if value is None or (isinstance(value, Real) and math.isnan(value)):
        return None
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else str(value)


def dealt(
    rows: Sequence[Row], labels: Numbers | None, groups: Groups, rule: str, settings: StoredCohort
) -> Dealt:
    """Simulates hospitals. Given parts are assigned one by one, so that every hospital has all of them."""
    named = {row.hospital for row in rows} - {None}
    count = _how_many(len(named), rule, settings)
    everything = np.arange(len(groups.sizes))
    batches = [everything] if groups.parts is None else [everything[groups.parts == p] for p in range(LEAST)]
    least = LEAST // len(batches)
    most = min(len(batch) for batch in batches) // least
    if count > most:
        field = f"sizes = {settings.sizes}" if rule == "sizes" else f"hospitals = {count}"
        need = f"{least} of {len(everything)} {groups.unit}" if least > 1 else f"{groups.unit} of every part"
        raise InputError(
            f"cohort.{field}: each of {count} hospitals needs {need}; give at most {most} hospitals"
        )
    rng = random_stream(settings.seed, STREAM, 0)
    where = np.zeros_like(groups.sizes)
    if rule == "patients":
        where[np.concatenate([rng.permutation(batch) for batch in batches])] = everything % count
    elif rule == "dirichlet":
        where = _dirichlet(labels, groups, count, settings, rng)
    else:
        weights = np.array(settings.sizes if rule == "sizes" else [1.0] * count)
        turn = 0
        for batch in batches:
            sizes = groups.sizes[batch]
            where[batch] = _fill(sizes, weights / weights.sum() * sizes.sum(), least, turn, rng)
            turn += len(batch)
    note = f"hospitals that the files name, which were not used (cohort.partition = {rule}): {len(named)}"
    return tuple(f"hospital-{number + 1:02d}" for number in range(count)), where, [note] if named else []


def _how_many(named: int, rule: str, settings: StoredCohort) -> int:
    """How many hospitals to simulate."""
    if rule != "sizes":
        if not (settings.hospitals or named):
            raise InputError(
                "cohort.hospitals: the files name no hospital; say how many to simulate, such as 6"
            )
        return settings.hospitals or named
    if settings.sizes is None:
        raise InputError("cohort.sizes: missing; give a relative size for each hospital, such as [3, 2, 1]")
    if settings.hospitals not in (None, len(settings.sizes)):
        raise InputError(
            f"cohort.hospitals = {settings.hospitals}: cohort.sizes is for {len(settings.sizes)}; "
            "give one size for each hospital"
        )
    return len(settings.sizes)


def _fill(sizes: Numbers, targets: NDArray[Any], least: int, turn: int, rng: np.random.Generator) -> Numbers:
    """Assigns groups, largest first, each to the hospital that lacks most: off by one group at most."""
    order = rng.permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    count = len(targets)
    where = np.full_like(sizes, -1)

    def deal(lacks: NDArray[Any], groups: Numbers) -> None:
        # Ties start at `turn`, so that the same hospital does not get the remainder of every part.
        heap = [(-lack, (index - turn) % count, index) for index, lack in enumerate(lacks.tolist())]
        heapq.heapify(heap)
        for group, size in zip(groups.tolist(), sizes[groups].tolist(), strict=True):
            surplus, tie, index = heap[0]
            where[group] = index
            heapq.heapreplace(heap, (surplus + size, tie, index))

    deal(targets, order)
    if np.bincount(where, minlength=count).min() < least:
        # A large group filled a hospital: hospitals with room get some small groups first.
        small = order[::-1][: count * least].reshape(least, count)
        room = sizes[small].sum(0) <= targets
        where[:] = -1
        where[small] = np.where(room, np.arange(count), -1)
        deal(targets - room * sizes[small].sum(0), order[where[order] < 0])
    return where


def _dirichlet(
    labels: Numbers | None, groups: Groups, count: int, settings: StoredCohort, rng: np.random.Generator
) -> Numbers:
    """Draws a hospital for each group, with probabilities of its class that are Dirichlet draws."""
    if labels is None:
        raise InputError(
            "cohort.partition = dirichlet: it skews classes, but the targets are masks; "
            "choose another, such as sizes"
        )
    classes = np.unique(labels, return_inverse=True)[1]
    alpha = np.full(count, min(settings.alpha or 0.5, 1e12))  # their sum must be finite
    for _ in range(REDRAWS):
        # A group's chances are the mean of its images': so draw one image of each, and go by its class.
        mixed = rng.permutation(len(classes))
        chosen = classes[mixed[np.unique(groups.of[mixed], return_index=True)[1]]]
        where = np.zeros_like(groups.sizes)
        for number, chances in enumerate(rng.dirichlet(alpha, int(classes.max()) + 1)):
            mine = np.flatnonzero(chosen == number)
            where[mine] = rng.choice(count, len(mine), p=chances)
        if not len(lacking_a_part(where, groups, count)):
            return where
    raise InputError(
        f"cohort.alpha = {settings.alpha:g}: {REDRAWS} draws left some of {count} hospitals with too few "
        f"{groups.unit} for {', '.join(PARTS)}; give a larger alpha or fewer hospitals"
    )


def lacking_a_part(where: Numbers, groups: Groups, count: int) -> Numbers:
    """Indices of hospitals that cannot have all parts."""
    if groups.parts is None:
        return np.flatnonzero(np.bincount(where, minlength=count) < LEAST)
    table = np.bincount(where * LEAST + groups.parts, minlength=count * LEAST)
    return np.flatnonzero(table.reshape(count, LEAST).min(1) == 0)


def refuse_lacking(
    where: Numbers, groups: Groups, names: tuple[str, ...], rule: str, settings: StoredCohort
) -> None:
    lacking = lacking_a_part(where, groups, len(names)).tolist()
    if not lacking:
        return
    field, way = {
        "given": (f"path = {settings.path}", "remove it, or deal all out anew with cohort.partition=equal"),
        "feature": (f"feature = {settings.feature}", "remove its images or choose another feature"),
        "sizes": (f"sizes = {settings.sizes}", "give fewer hospitals or less unequal sizes"),
    }.get(rule, (f"hospitals = {len(names)}", "give fewer hospitals"))
    mine = where == lacking[0]
    if groups.parts is None:
        what = f"has too few {groups.unit}: {mine.sum()}, where {LEAST} parts need one each"
    else:
        empty = [name for part, name in enumerate(PARTS) if part not in groups.parts[mine]]
        what, way = f"has no {' and no '.join(empty)} images", f"{way}, or {ANEW}"
    more = f" (and so for {len(lacking) - 1} more)" if len(lacking) > 1 else ""
    raise InputError(f"cohort.{field}: {names[lacking[0]]} {what}{more}; {way}")

"""Assigns each image to a hospital and a part, from a seed, and never one patient to two.

Images that must stay together form a group: those of one patient, and identical ones. Groups are assigned to
hospitals where the files name none, and to train, validation and test where the files define none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from silodp.cohorts.catalogue import PARTS, Row
from silodp.cohorts.dealing import ANEW, LEAST, as_named, by_feature, dealt, refuse_lacking
from silodp.cohorts.kinds import StoredCohort
from silodp.cohorts.people import Groups, Numbers, codes, examples_of, linked, people_of, spread
from silodp.cohorts.splitting import split_all
from silodp.errors import InputError

WORDS = {
    "given": "hospitals as the files name them",
    "patients": "simulated: whole {unit} dealt out in turn to {count} hospitals",
    "equal": "simulated: {count} hospitals with as many images each as whole {unit} allow",
    "sizes": "simulated: {count} hospitals of the relative sizes {sizes}",
    "dirichlet": "simulated: {count} hospitals, classes skewed by Dirichlet draws, alpha {settings.alpha:g}",
    "feature": "simulated: a hospital for each {settings.feature}",
}


@dataclass(frozen=True)
class Placement:
    """The hospital and part of every image.

    Attributes:
        hospitals: their names.
        hospital: (n,) which of them each image is in.
        part: (n,) index into `catalogue.PARTS`.
        simulated: whether the hospitals are simulated rather than named by the files.
        rule: the assignment, in words.
        notes: what a reader of results should know.
        people: (n,) equal for images that stay together: of one person, or of people with identical images;
            None where the files name no patient.
    """

    hospitals: tuple[str, ...]
    hospital: Numbers
    part: Numbers
    simulated: bool
    rule: str
    notes: tuple[str, ...]
    people: Numbers | None = None


def place(
    rows: Sequence[Row],
    labels: Numbers | None,
    digests: Sequence[str],
    settings: StoredCohort,
    default_shares: tuple[float, float, float],
) -> Placement:
    """Assigns every image to a hospital and a part.

    Args:
        rows: what the files say of each image.
        labels: (n,) classes; None where targets are masks.
        digests: a hash of each image's pixels; images with equal ones stay together.
        settings: with the defaults of their kind.
        default_shares: of train, validation and test, where neither settings nor files define them.
    """
    if not rows:
        raise InputError(f"cohort.path = {settings.path}: no image; give a path that holds some")
    rule = _rule(rows, settings)
    people, twins = people_of(rows, settings), codes(digests)
    parts, torn = _given_parts(rows, people, rule, settings)
    apart = np.zeros_like(people) if parts is None else parts
    if rule == "given":
        named = codes(row.hospital for row in rows)
        _refuse_two_hospitals(rows, people, named)
        apart = apart + named * LEAST
    # A patient in two parts, where that is allowed, counts as one person in each.
    if parts is not None and torn:
        bodies = np.where(people < 0, -1, codes((people * LEAST + parts).tolist()))
    else:
        bodies = people
    of = linked(bodies, twins + apart * len(rows))
    first = np.unique(of, return_index=True)[1]
    unit = "images" if (people < 0).all() else "patients"
    groups = Groups(of, np.bincount(of), None if parts is None else parts[first], unit)
    if rule == "given":
        names, where, notes = as_named(rows, first, settings)
    elif rule == "feature":
        names, where, notes = by_feature(rows, groups, settings)
    else:
        names, where, notes = dealt(rows, labels, groups, rule, settings)
    refuse_lacking(where, groups, names, rule, settings)
    sizes = " : ".join(f"{size:g}" for size in settings.sizes or ())
    words = WORDS[rule].format(count=len(names), settings=settings, unit=unit, sizes=sizes)
    if parts is None:
        shares = np.array(settings.shares or default_shares, dtype=float)
        shares /= shares.sum()
        part = split_all(where, labels, groups, shares, settings.seed)[of]
        words += f"; {', '.join(PARTS)} split by whole {unit}, {' : '.join(f'{s:.3g}' for s in shares)}"
    else:
        part = parts
        words += f"; {', '.join(PARTS)} as the files say"
    notes += torn
    notes += _notes(rows, people, groups, dealt=rule != "given" or parts is None, split=parts is None)
    if len(names) > 1:
        notes += _twins_apart(twins, "hospital", where[of])
    notes += _twins_apart(twins, "part", part)
    together = of if unit == "patients" else None
    return Placement(names, where[of], part, rule != "given", words, tuple(notes), together)


def _rule(rows: Sequence[Row], settings: StoredCohort) -> str:
    """The rule for hospitals; refused where the files do not allow it."""
    nameless = [row.name for row in rows if row.hospital is None]
    rule = settings.partition or ("equal" if len(nameless) == len(rows) else "given")
    if rule == "given" and nameless:
        raise InputError(
            f"cohort.partition = given: {len(nameless)} of {len(rows)} images name no hospital, such as "
            f"{nameless[0]}; name one for each, or deal all out anew with cohort.partition=equal"
        )
    return rule


def _given_parts(
    rows: Sequence[Row], people: Numbers, rule: str, settings: StoredCohort
) -> tuple[Numbers | None, list[str]]:
    """The part of each image as the files define it, if they do and no setting replaces it; notes."""
    if settings.shares is not None or any(row.part is None for row in rows):
        return None, []
    parts = np.array([PARTS.index(str(row.part)) for row in rows], dtype=np.int64)
    torn = spread(people, parts)
    if not torn:
        return parts, []
    examples = examples_of(torn, people, [(row.patient, row.part) for row in rows])
    what = f"patients in more than one part: {len(torn)} ({examples})"
    if settings.torn_patients == "refuse" or rule != "given":
        way = "" if rule != "given" else "; cohort.torn_patients=keep takes the parts as they are"
        raise InputError(f"cohort.path = {settings.path}: {what}; {ANEW}{way}")
    note = f"patients in more than one part, as the files say: {len(torn)}"
    return parts, [f"{note}; validation and test figures are too good"]


def _refuse_two_hospitals(rows: Sequence[Row], people: Numbers, named: Numbers) -> None:
    torn = spread(people, named)
    if torn:
        examples = examples_of(torn, people, [(row.patient, row.hospital) for row in rows])
        raise InputError(
            f"cohort.patient_ids = global: patients in more than one hospital: {len(torn)} ({examples}); "
            "set cohort.patient_ids=local if ids are unique within a hospital only, "
            "otherwise remove each patient from all hospitals but one"
        )


def _notes(rows: Sequence[Row], people: Numbers, groups: Groups, *, dealt: bool, split: bool) -> list[str]:
    """Notes on what the files leave open, or what in them was not used."""
    notes = []
    known = people >= 0
    if dealt and not known.all():
        notes.append(
            f"images that name no patient: {(~known).sum()} of {len(rows)}; each counts as a patient, "
            "so one person's images may be in two places"
        )
    together = np.bincount(np.unique(groups.of[known] * len(rows) + people[known]) // len(rows))
    if (together > 1).any():
        merged = together[together > 1].sum()
        notes.append(f"patients kept together because they share identical images: {merged}")
    said = sum(row.part is not None for row in rows)
    if split and said:
        notes.append(f"images whose part in the files was not used, for all were split anew: {said}")
    return notes


def _twins_apart(twins: Numbers, what: str, places: Numbers) -> list[str]:
    """A note on identical images that the files put in two places."""
    torn = len(spread(twins, places))
    return [f"pictures that occur in more than one {what}: {torn}"] if torn else []

"""What a federation knows of a hospital before it trains: all of it is public, and none of it an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from silodp.cohorts.cohort import HospitalData
from silodp.errors import InputError, short
from silodp.local.splitting import most_intermediaries
from silodp.tasks import Task

Target = Literal["mask", "class"]


@dataclass(frozen=True)
class HospitalFacts:
    """One hospital in numbers; ε covers none of them.

    Attributes:
        train, validation, test: how many images are in each part.
        shape: of an image: channels, height, width.
        storage: the images' type, such as "uint8".
        target: whether images are segmented or classified.
        outputs: how many masks an image has, or how many classes there are, or else how many its labels show.
        whole_patients: whether it is known whose each training image is.
        most_intermediaries: the largest v that it has images and patients for.
    """

    name: str
    train: int
    validation: int
    test: int
    shape: tuple[int, int, int]
    storage: str
    target: Target
    outputs: int
    whole_patients: bool
    most_intermediaries: int

    @property
    def images(self) -> dict[str, int]:
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Any) -> HospitalFacts:
        """Strictly: every number of its kind and in its range; else InputError."""
        try:
            facts = cls(**{**fields, "shape": tuple(fields["shape"])})
            counts = (
                facts.train, facts.validation, facts.test, facts.outputs, facts.most_intermediaries,
                *facts.shape,
            )  # fmt: skip
            fits = (
                len(facts.shape) == 3
                and all(type(count) is int and 0 < count < 2**40 for count in counts)
                and all(type(text) is str for text in (facts.name, facts.storage))
                and type(facts.whole_patients) is bool
                and facts.target in get_args(Target)
            )
        except (TypeError, ValueError, KeyError):
            fits = False
        if not fits:
            raise InputError(f"facts: {short(fields)} are not a hospital's; ask it again")
        return facts


def facts_of(
    hospital: HospitalData, task: Task, min_samples: int, classes: int | None = None
) -> HospitalFacts:
    """The facts of a checked hospital.

    Args:
        min_samples: how many images an intermediary has at least.
        classes: how many there are, where that is agreed on: then nobody's labels are looked at for it.
    """
    train = hospital.train
    channels, height, width = train.images.shape[1:]
    return HospitalFacts(
        name=hospital.name,
        train=len(train),
        validation=len(hospital.validation),
        test=len(hospital.test),
        shape=(channels, height, width),
        storage=str(train.images.dtype).removeprefix("torch."),
        target=task.target,
        outputs=classes or task.outputs(train.targets),
        whole_patients=train.patients is not None,
        most_intermediaries=most_intermediaries(len(train), min_samples, train.patients),
    )


def describe_facts(name: str, facts: Sequence[HospitalFacts], classes: int | None) -> dict[str, Any]:
    """What cohort.json says where the images are elsewhere: counts alone.

    Args:
        name: of the cohort.
        facts: of its hospitals, at least one.
        classes: how many, where that is agreed on.
    """
    first = facts[0]
    outputs = classes or max(one.outputs for one in facts)
    numbers = range(1, outputs + 1) if first.target == "mask" else range(outputs)
    return {
        "cohort": name,
        "images": sum(sum(one.images.values()) for one in facts),
        "channels": first.shape[0],
        "size": list(first.shape[1:]),
        "storage": first.storage,
        "target": first.target,
        "classes": [str(number) for number in numbers],
        "classes_counted": first.target == "class" and classes is None,
        "whole_patients": all(one.whole_patients for one in facts),
        "hospitals": {
            one.name: {part: {"images": count, "classes": {}} for part, count in one.images.items()}
            for one in facts
        },
    }

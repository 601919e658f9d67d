"""What a federation knows about a hospital before training: public counts and shapes, never images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from silodp.cohorts.cohort import HospitalData, all_numbers
from silodp.errors import InputError, short
from silodp.experiment import Experiment
from silodp.files import as_record
from silodp.local.splitting import most_intermediaries
from silodp.tasks import task_named

Count = Annotated[int, Field(gt=0, lt=2**40)]
Outputs = Annotated[int, Field(gt=0, le=10_000)]
"""One hospital's word can decide how large everybody's network is."""
Names = Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=10_000)]


@dataclass(frozen=True)
class HospitalFacts:
    """Public facts about one hospital; ε covers none of them.

    Attributes:
        train, validation, test: number of images in each part.
        shape: of an image: channels, height, width.
        storage: dtype of the images, such as "uint8".
        target: whether images have masks or classes.
        outputs: masks of an image; or classes, as agreed on or else as its labels show.
        whole_patients: whether the patient of each training image is known.
        most_intermediaries: the largest v for which it has images and patients.
        classes: names of the outputs in their order, where the hospital's files name them other than by
            number; they must be the same for all, or one network would learn two things as one.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    train: Count
    validation: Count
    test: Count
    shape: tuple[Count, Count, Count]
    storage: str
    target: Literal["mask", "class"]
    outputs: Outputs
    whole_patients: bool
    most_intermediaries: Count
    classes: Names = ()

    @property
    def images(self) -> dict[str, int]:
        """The number of images by part."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; `from_dict` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Any) -> HospitalFacts:
        """Reads facts strictly; raises InputError where a field has another type or an impossible value."""
        try:
            return as_record(cls, fields)
        except (TypeError, ValueError, RecursionError):
            raise InputError(f"facts: {short(fields)} are not a hospital's; ask it again") from None


def facts_of(hospital: HospitalData, experiment: Experiment) -> HospitalFacts:
    """Extracts the facts of a validated hospital that an experiment needs."""
    train, task = hospital.train, task_named(experiment.task)
    least = experiment.intermediaries.min_samples
    channels, height, width = train.images.shape[1:]
    outputs = experiment.cohort.classes or task.outputs(train.targets)
    numbered = all_numbers(hospital.classes) or (task.target == "mask" and outputs == 1)
    return HospitalFacts(
        name=hospital.name,
        train=len(train),
        validation=len(hospital.validation),
        test=len(hospital.test),
        shape=(channels, height, width),
        storage=str(train.images.dtype).removeprefix("torch."),
        target=task.target,
        outputs=outputs,
        whole_patients=train.patients is not None,
        most_intermediaries=most_intermediaries(len(train), least, train.patients),
        classes=() if numbered else hospital.classes,
    )


def describe_facts(name: str, facts: Sequence[HospitalFacts], classes: int | None) -> dict[str, Any]:
    """The content of cohort.json for a run whose images stay elsewhere: counts only.

    Args:
        name: of the cohort.
        facts: of its hospitals, at least one.
        classes: the agreed number of classes, if any.
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
        "classes": list(first.classes) or [str(number) for number in numbers],
        "classes_counted": first.target == "class" and classes is None,
        "whole_patients": all(one.whole_patients for one in facts),
        "hospitals": {
            one.name: {part: {"images": count, "classes": {}} for part, count in one.images.items()}
            for one in facts
        },
    }

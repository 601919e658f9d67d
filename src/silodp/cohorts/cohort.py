"""The data of a federation's hospitals. Nothing here depends on privacy, models or training."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from silodp.errors import InputError


@dataclass(frozen=True)
class Examples:
    """Images with their targets, held as two tensors.

    Attributes:
        images: (n, channels, height, width); uint8 (0…255) or floating point.
        targets: (n,) int64 class numbers, or (n, masks, height, width) of 0 and 1; masks may overlap.
        patients: (n,) int64, on the CPU: equal numbers for the images of one person; None where unknown.
    """

    images: Tensor
    targets: Tensor
    patients: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        """Shapes only: notebooks and logs are no place for patients' images."""
        of = f" of {len(set(self.patients.tolist()))} patients" if self.patients is not None else ""
        return f"Examples(images {tuple(self.images.shape)}, targets {tuple(self.targets.shape)}{of})"

    def __getitem__(self, index: Tensor | slice) -> Self:
        """The images at an index, on their device, without `patients`, which no training step uses."""
        return type(self)(self.images[index], self.targets[index])

    def to(self, device: torch.device) -> Self:
        return type(self)(self.images.to(device), self.targets.to(device), self.patients)


@dataclass(frozen=True)
class HospitalData:
    """One hospital's images, already divided so that no patient is in two parts.

    Attributes:
        classes: names of the classes or masks in the order of their numbers, where the files name them.
    """

    name: str
    train: Examples
    validation: Examples
    test: Examples
    classes: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def parts(self) -> dict[str, Examples]:
        return {"train": self.train, "validation": self.validation, "test": self.test}


@dataclass(frozen=True)
class Cohort:
    """The hospitals of one federation.

    Attributes:
        name: what it is called.
        hospitals: each with its own images.
        about: where the images come from, for a reader; see `description.describe`.
    """

    name: str
    hospitals: tuple[HospitalData, ...]
    about: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_tensors(
        cls,
        hospitals: Mapping[str, tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike]],
        *,
        name: str = "custom",
        shares: tuple[float, float, float] = (0.6, 0.2, 0.2),
        seed: int = 0,
    ) -> Self:
        """Divides each hospital's (images, targets) at random into train, validation and test.

        Where a patient has several images, give (images, targets, patients), with a number or a name for
        each image: all images of a patient then stay together, here and in intermediaries.

        Args:
            hospitals: by name. Images are (n, channels, height, width); targets (n,) classes or (n, masks,
                height, width). They are not copied.
            name: of the cohort.
            shares: of train, validation and test.
            seed: of the division.
        """
        generator = torch.Generator().manual_seed(seed)
        members = []
        for hospital, arrays in hospitals.items():
            images, targets = (torch.as_tensor(array).detach() for array in arrays[:2])
            patients = _numbers(arrays[2]) if len(arrays) > 2 else None
            for what, values in (("targets", targets), ("patients", patients)):
                if values is not None and len(images) != len(values):
                    raise InputError(
                        f"cohort: {hospital} has {len(images)} images but {len(values)} {what}; "
                        "give one for each image"
                    )
            parts = [
                Examples(images[mine], targets[mine], None if patients is None else patients[mine])
                for mine in _divided(len(images), patients, shares, generator)
            ]
            members.append(HospitalData(hospital, *parts))
        return cls(name, tuple(members))

    @property
    def knows_patients(self) -> bool:
        """Whether the patient of every training image is known."""
        return all(hospital.train.patients is not None for hospital in self.hospitals)

    def check(self, classes: int | None = None) -> Self:
        """Refuses data that would break or silently spoil training; returns the cohort itself.

        Args:
            classes: the agreed number of classes; None: they are counted in the labels.
        """
        if not self.hospitals:
            raise InputError("cohort: no hospital; give at least one")
        names = [hospital.name for hospital in self.hospitals]
        if len(set(names)) < len(names):
            raise InputError(f"cohort: two hospitals share a name in {names}; rename one")
        for name in names:
            if name.encode("utf-8", "ignore").decode() != name:
                raise InputError(f"cohort: a hospital is called {name!r}, which is not valid text; rename it")
        first = self.hospitals[0].train
        if first.images.ndim != 4:
            raise InputError(
                f"cohort: images of shape {tuple(first.images.shape)}; give (n, channels, height, width)"
            )
        everything = [
            (f"cohort: {hospital.name}, {part}", examples)
            for hospital in self.hospitals
            for part, examples in hospital.parts.items()
        ]
        for where, examples in everything:
            _check_part(where, examples, first)
        if first.targets.ndim == 1 and classes is not None:
            for where, examples in everything:
                if found := set(examples.targets.tolist()) - set(range(classes)):
                    raise InputError(
                        f"{where}: class {min(found)}, but cohort.classes = {classes}, so that classes are "
                        f"0 to {classes - 1}; correct the labels, or set another cohort.classes"
                    )
        elif first.targets.ndim == 1:
            known = set().union(*(hospital.train.targets.tolist() for hospital in self.hospitals))
            if len(known) < 2:
                raise InputError(
                    f"cohort: the training images are all of class {known.pop()}; "
                    "a classifier needs at least two classes"
                )
            if known != set(range(len(known))):
                raise InputError(
                    f"cohort: training classes {sorted(known)}; number them 0, 1, 2, … without a gap"
                )
            for where, examples in everything:
                found = set(examples.targets.tolist())
                if not found <= known:
                    raise InputError(
                        f"{where}: classes {sorted(found)}, but training knows {sorted(known)}; "
                        "number classes from 0 and give each to some hospital's training images"
                    )
        return self

    def fingerprint(self) -> str:
        """A hash of all tensors, so that a run is resumed on the same data only."""
        digest = hashlib.sha256()
        for hospital in self.hospitals:
            for part, examples in hospital.parts.items():
                digest.update(f"{hospital.name}/{part}".encode())
                tensors = (examples.images, examples.targets, examples.patients)
                for tensor in (tensor for tensor in tensors if tensor is not None):
                    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                    digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def _numbers(names: ArrayLike) -> Tensor:
    """(n,) int64: a number for each different name."""
    return torch.from_numpy(np.unique(np.asarray(names), return_inverse=True)[1].reshape(-1).astype(np.int64))


def _divided(
    count: int, patients: Tensor | None, shares: tuple[float, float, float], generator: torch.Generator
) -> list[Tensor]:
    """Draws the images of train, validation and test, whole patients where they are known."""
    first = round(shares[0] * count)
    edges = [first, first + round(shares[1] * count)]
    if patients is None:
        order = torch.randperm(count, generator=generator)
    else:
        people = torch.randperm(int(patients.max()) + 1, generator=generator)[patients]
        order = people.argsort(stable=True)
        # A part ends with the last image of a patient.
        sorted_people = people[order]
        for place, edge in enumerate(edges):
            while 0 < edge < count and sorted_people[edge] == sorted_people[edge - 1]:
                edge += 1
            edges[place] = edge
    starts = range(1, count) if patients is None else (sorted_people.diff().nonzero().flatten() + 1).tolist()
    if len(starts) >= 2 and all(shares):  # of so many people no part need be empty
        last = min(max(edges[1], starts[1]), starts[-1])
        first = min(max(edges[0], starts[0]), max(start for start in starts if start < last))
        edges = [first, last]
    return list(order.tensor_split(edges))


def all_numbers(names: Sequence[str]) -> bool:
    """Whether these names of classes are whole numbers."""
    return all(name.isdecimal() and str(int(name)) == name for name in names)


def _check_part(where: str, examples: Examples, like: Examples) -> None:
    images, targets, shape = examples.images, examples.targets, tuple(like.images.shape[1:])
    if len(images) == 0:
        raise InputError(
            f"{where}: no images, and each part needs some, of patients of its own; leave the hospital out "
            "or give it more"
        )
    if tuple(images.shape[1:]) != shape:
        raise InputError(
            f"{where}: images of shape {tuple(images.shape)}, expected (n, {', '.join(map(str, shape))})"
        )
    if images.is_floating_point() and not bool(torch.isfinite(images).all()):
        bad = int((~torch.isfinite(images).flatten(1).all(1)).nonzero()[0])
        raise InputError(f"{where}: image {bad} has NaN or infinite values; correct or remove it")
    if len(targets) != len(images):
        raise InputError(f"{where}: {len(images)} images but {len(targets)} targets")
    if examples.patients is not None and len(examples.patients) != len(images):
        raise InputError(f"{where}: {len(images)} images but {len(examples.patients)} patients")
    if targets.ndim not in (1, 4) or targets.ndim != like.targets.ndim:
        raise InputError(
            f"{where}: targets of shape {tuple(targets.shape)}; "
            "give (n,) classes or (n, masks, h, w) of 0 and 1, the same kind everywhere"
        )
    if targets.ndim == 4:
        if targets.shape[-2:] != images.shape[-2:]:
            masks, pictures = tuple(targets.shape[-2:]), tuple(images.shape[-2:])
            raise InputError(f"{where}: masks of {masks} for images of {pictures}")
        found, wanted = targets.shape[1], like.targets.shape[1]
        if found != wanted or found == 0:
            raise InputError(
                f"{where}: {found} masks an image, the first hospital's training images have {wanted}; "
                "give (n, masks, h, w) with the same masks everywhere, at least one, all 0 where nothing is"
            )
        if not bool(((targets == 0) | (targets == 1)).all()):
            raise InputError(f"{where}: a mask has values other than 0 and 1; threshold it")

"""What store.json may say: a prepared folder may come from strangers, and arrays are mapped as it says."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from silodp.cohorts.catalogue import Unreadable
from silodp.cohorts.kinds import CohortSettings, FileCohort

SIDE = 2**16  # pixels; no image is wider


class _Strict(BaseModel):
    """Of store.json, which may come from strangers: nothing is taken for what it is not."""

    model_config = ConfigDict(strict=True)


class _Format(_Strict):
    format: int


class ArrayShape(_Strict):
    """What store.json says of an array; only what `build_store` writes."""

    dtype: Literal["uint8", "float16", "int64"]
    shape: list[Annotated[int, Field(ge=0, le=2**40)]]


class Description(_Strict):
    """store.json. Rows are those of `Row`, in its order."""

    kind: str
    layout: str
    target: Literal["class", "mask"]
    classes: list[str]
    images: ArrayShape | None
    targets: ArrayShape | None
    rows: list[
        tuple[
            str,
            str | None,
            str | None,
            Literal["train", "validation", "test"] | None,
            tuple[int, int],
            dict[str, bool | int | float | str | None],
            list[str],
        ]
    ]
    digests: list[str]
    files: dict[str, str]
    problems: list[dict[Literal["name", "what"], str]]
    notes: list[str]
    mask_values: dict[str, list[float]]
    fit: Literal["stretch", "pad"]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        count = len(self.rows)
        if not issubclass(CohortSettings.known.get(self.kind, CohortSettings), FileCohort):
            raise ValueError(f"no kind of files is called {self.kind:.40}")
        if len(self.digests) != count:
            raise ValueError(f"{count} rows but {len(self.digests)} digests")
        if any(problem.keys() != {"name", "what"} for problem in self.problems):
            raise ValueError("a problem has a name and what it is")
        if self.images is None or self.targets is None:
            if count:
                raise ValueError(f"{count} rows but no images")
            return self
        masks = self.target == "mask"
        images, targets = self.images.shape, self.targets.shape
        if len(images) != 4 or images[1] not in (1, 3) or not all(1 <= side <= SIDE for side in images[2:]):
            raise ValueError(f"images cannot have the shape {images}")
        if targets != ([targets[0], len(self.classes), *images[2:]] if masks else targets[:1]) or not targets:
            raise ValueError(f"targets of images {images} cannot have the shape {targets}")
        if (images[0], targets[0]) != (count, count):
            raise ValueError(f"{count} rows but {images[0]} images and {targets[0]} targets")
        if self.images.dtype == "int64" or self.targets.dtype != ("uint8" if masks else "int64"):
            raise ValueError(f"images of {self.images.dtype} with targets of {self.targets.dtype}")
        return self


def read_description(text: bytes, version: int) -> Description:
    """store.json, every value of its own type and all counts in agreement; else why not, in one line."""
    try:
        if (found := _Format.model_validate_json(text).format) != version:
            raise Unreadable(f"prepared by another version of silodp, in format {found}")
        return Description.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, ("store.json", *first["loc"])))
        raise Unreadable(f"{where}: {first['msg']}") from None

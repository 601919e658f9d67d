"""The kinds of cohort: each is one class with its settings and its code.

docs/data.md describes what each kind expects at `path`. Kinds of files are in `sources/`, synthetic ones in
`synthetic_mri.py` and `synthetic_ct.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from silodp.errors import InputError
from silodp.settings import Count, Positive, Rule

if TYPE_CHECKING:
    from silodp.cohorts.catalogue import Catalogue, OnRead, Pictures, Scan
    from silodp.cohorts.cohort import Cohort
    from silodp.cohorts.synthetic import Drawing, Patient

ImageSize = Annotated[int, Field(ge=16, le=1024)]
Classes = Annotated[int, Field(ge=2)]
Seed = Annotated[int, Field(ge=0)]
Partition = Literal["given", "patients", "equal", "sizes", "dirichlet", "feature"]


class CohortSettings(Rule):
    """Which data the hospitals hold.

    Attributes:
        task: the only one that it has targets for; None: that depends on the files.
    """

    section: ClassVar[str] = "cohort"
    key: ClassVar[str] = "kind"
    usual: ClassVar[str] = "synthetic-mri"
    task: ClassVar[str | None] = None
    kind: str
    hospitals: Count | None = None
    """How many; by default as the files name."""
    classes: Classes | None = None
    """How many there are; the network's size follows. By default as many as the hospitals' labels show, which
    ε then does not cover."""

    def load(self, on_read: OnRead | None = None) -> Cohort:
        """The data, not yet checked.

        Args:
            on_read: called with the number of files decoded so far and in total, if any must be.
        """
        raise NotImplementedError

    @property
    def simulated(self) -> bool:
        """Whether the hospitals are synthetic or simulated, once the experiment is resolved."""
        return False

    @property
    def files(self) -> str | None:
        """Where its files are; None where it has none."""
        return None


class CustomCohort(CohortSettings):
    """A cohort that was passed in from Python."""

    kind: Literal["custom"] = "custom"

    def load(self, on_read: OnRead | None = None) -> Cohort:
        raise InputError(
            "cohort.kind = custom: this experiment was given its data from Python; "
            "run it with silodp.train(experiment, cohort=…)"
        )


class DeployedCohort(CohortSettings):
    """Each hospital's own, on its own machine (`silodp deploy`)."""

    kind: Literal["deployed"] = "deployed"
    image_size: ImageSize | None = None
    """Width and height in pixels that hospitals bring their images to; by default as their files are."""

    def load(self, on_read: OnRead | None = None) -> Cohort:
        raise InputError(
            "cohort.kind = deployed: the images are at the hospitals; train on them with `silodp deploy run`"
        )


class SyntheticCohort(CohortSettings):
    """Synthetic images, the same for the same seed."""

    hospitals: Count = 6
    slices: Count = 480
    """For training, over all hospitals."""
    image_size: ImageSize = 64
    seed: Seed = 0
    """Separate from the run's seed, so that runs with other seeds have the same hospitals."""

    def train_sizes(self) -> list[int]:
        """Training slices of each hospital; validation and test have a third of that each."""
        raise NotImplementedError

    def patients(self, hospital: int, train: int) -> list[Patient]:
        """A hospital's patients in all parts; those for training have `train` slices together."""
        raise NotImplementedError

    def draw_patient(self, patient: Patient) -> Drawing:
        """Images (slices, channels, size, size) and targets of one patient."""
        raise NotImplementedError

    def load(self, on_read: OnRead | None = None) -> Cohort:
        return _drawn(self)

    @property
    def simulated(self) -> bool:
        return True


@lru_cache(maxsize=1)  # for runs on the same data, as in the demo
def _drawn(settings: SyntheticCohort) -> Cohort:
    from silodp.cohorts.synthetic import draw_cohort

    return draw_cohort(settings)


class StoredCohort(CohortSettings):
    """Images from files; where these name no hospital, images are assigned to simulated ones."""

    only_with: ClassVar[Mapping[str, tuple[str, str]]] = {
        "sizes": ("partition", "sizes"),
        "alpha": ("partition", "dirichlet"),
        "feature": ("partition", "feature"),
    }
    path: str | None = None
    """A folder or a file."""
    image_size: ImageSize | None = None
    """Width and height in pixels; by default as the files are."""
    channels: Literal[1, 3] | None = None
    """By default as the files are."""
    patient_ids: Literal["global", "local"] = "global"
    """local: one id in two hospitals is two people."""
    partition: Partition | None = None
    """given: hospitals as the files name them; others: simulated. By default given where the files name any,
    else equal."""
    sizes: tuple[Positive, ...] | None = None
    """partition = sizes: of the hospitals, relative to each other."""
    alpha: Positive | None = None
    """partition = dirichlet: small for hospitals with unlike classes; by default 0.5."""
    feature: str | None = None
    """partition = feature: a hospital for each of its values, such as scanner."""
    shares: tuple[Positive, Positive, Positive] | None = None
    """Of train, validation and test; by default as the files say, else 0.6, 0.2, 0.2."""
    torn_patients: Literal["refuse", "keep"] = "refuse"
    """Patients whom the files put into two parts of one hospital."""
    seed: Seed = 0
    """Of the assignment to hospitals; separate from the run's seed."""

    @property
    def simulated(self) -> bool:
        return self.partition not in (None, "given")

    @property
    def files(self) -> str | None:
        return self.path

    @property
    def root(self) -> Path:
        """The folder or file that `path` names; InputError where there is none."""
        if self.path is None:
            raise InputError(
                f"cohort.path: cohort.kind = {self.kind} reads files; say where with --set cohort.path=…"
            )
        root = Path(self.path).expanduser()
        if not root.exists():
            raise InputError(f"cohort.path = {self.path}: nothing is there")
        return root

    def load(self, on_read: OnRead | None = None) -> Cohort:
        from silodp.cohorts.loading import load_files

        return load_files(self, on_read)

    @model_validator(mode="before")
    @classmethod
    def _fill_alpha(cls, tree: Any) -> Any:
        if isinstance(tree, dict) and tree.get("partition") == "dirichlet":
            return {"alpha": 0.5, **tree}
        return tree


class PreparedCohort(StoredCohort):
    """A folder that `silodp data prepare` wrote."""

    kind: Literal["prepared"] = "prepared"


class FileCohort(StoredCohort):
    """Images that are decoded once and kept in the cache. A kind of files is a class with `scan`.

    Attributes:
        takes: what `path` may be: "folder", or the extensions of one file.
        general: whether it also accepts what other kinds do; it is then tried last.
        head: whether its CT slices show heads, which have windows of their own.
        split: the shares of train, validation and test where neither settings nor files define them.
    """

    takes: ClassVar[tuple[str, ...]] = ("folder",)
    general: ClassVar[bool] = False
    head: ClassVar[bool] = False
    split: ClassVar[tuple[float, float, float]] = (0.6, 0.2, 0.2)
    storage: Literal["uint8", "float16"] = "uint8"
    """Of decoded images."""
    fit: Literal["stretch", "pad"] = "stretch"
    """How an image that is not square gets to image_size: stretched, or in its proportions with black beside
    it; masks alike."""
    skip_unreadable: bool = False
    """Leave out what cannot be used, instead of refusing all."""
    cache: str | None = None
    """Where decoded images are kept; by default silodp in XDG_CACHE_HOME or ~/.cache."""

    def scan(self, root: Path) -> Catalogue:
        """Finds what is at `root`, from names, lists and csv files only; else InputError."""
        raise NotImplementedError

    def decided_by(self, root: Path) -> list[Any] | None:
        """What the result of `scan` depends on, besides settings and seed; it must be quick to compute.

        A kind that returns something has its scans cached, and needs a `reader`. None: they are not cached.
        """
        return None

    def reader(self) -> Callable[[Scan], Pictures]:
        """The function for `Catalogue.read`, which is not in the cache."""
        raise NotImplementedError


class MaskSettings(FileCohort):
    """The meaning of the numbers in masks.

    Attributes:
        one_mask_of: how many values above 0 count as one mask without further settings.
    """

    one_mask_of: ClassVar[int] = 1
    mask_labels: tuple[Count, ...] | None = None
    """A mask for each of these values; by default masks hold 0 and one more, and anything else is refused."""
    mask_threshold: Positive | None = None
    """One mask of all from this value up: for soft edges, as JPEG makes them, or to join several labels."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.mask_labels is not None and self.mask_threshold is not None:
            raise InputError(
                f"cohort.mask_threshold = {self.mask_threshold:g} with cohort.mask_labels: labels are a mask "
                "each, a threshold makes one mask; leave one of them out"
            )
        return self


class FolderCohort(FileCohort):
    """One file an image or a scan."""

    sample: Count | None = None
    """How many files to draw, with classes balanced; by default all."""
    patient_pattern: str | None = None
    """A regular expression: its group is the patient in a file's path."""


class MaskCohort(FolderCohort, MaskSettings):
    """One file an image or a scan, with masks beside it."""

    with_mask_only: bool = False
    """Leave out slices without a mask."""

"""What every section of an experiment is made of, and the sections that have no rules to choose from.

Sections with rules stand beside their rules' code: `clipping.py`, `intermediary.py`, `participation.py`,
`server_optimizers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from silodp.errors import InputError

LONGEST = 200  # characters of a value in an error

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rule(Settings):
    """One way to do a thing, among several: its fields are its settings, its methods its code.

    A section's rules are the subclasses of one class, here or anywhere: defining one makes it known under
    its name, to TOML, to `--set` and to `silodp.train`. A setting that a rule does not have is refused.

    Attributes:
        section: of the experiment.
        key: the field that names the rule; each rule has it as a Literal with that default.
        usual: the rule where none is named.
        known: the rules by name.
    """

    section: ClassVar[str]
    key: ClassVar[str] = "rule"
    usual: ClassVar[str]
    known: ClassVar[dict[str, type[Rule]]]

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        if Rule in cls.__bases__:
            cls.known = {}  # a section
        elif isinstance(name := cls.name(), str):
            there = cls.known.get(name, cls)
            if (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(f"{cls.section}.{cls.key} = {name}: {there.__module__} has this rule already")
            cls.known[name] = cls

    @classmethod
    def name(cls) -> Any:
        """As in TOML; no text for what several rules have in common."""
        field = cls.model_fields.get(cls.key)
        return field.default if field else None

    @property
    def uncovered(self) -> str:
        """What ε does not cover where this rule is used, for the list under every ε; empty: nothing."""
        return ""

    @classmethod
    def chosen(cls, tree: Any) -> Any:
        """The rule of a section of settings; anything else as it is, for pydantic to refuse."""
        if not isinstance(tree, Mapping) or not all(isinstance(name, str) for name in tree):
            return tree
        name = tree.get(cls.key, cls.usual)
        rule = cls.known.get(name) if isinstance(name, str) else None
        if rule is None:
            raise InputError(
                f"{cls.section}.{cls.key} = {short(name)}: choose one of {', '.join(cls.known)}, "
                "or import what defines it first"
            )
        return rule.given(tree)

    @classmethod
    def given(cls, tree: Mapping[str, Any]) -> Self:
        """This rule with these settings; one that only other rules have is told so."""
        for setting in tree.keys() - cls.model_fields.keys():
            if any(setting in other.model_fields for other in cls.known.values()):
                own = ", ".join(field for field in cls.model_fields if field != cls.key)
                raise InputError(
                    f"{cls.section}.{setting} = {short(tree[setting])}: not a setting of "
                    f"{cls.section}.{cls.key} = {cls.name()}, which has {own or 'none'}; leave it out"
                )
        try:
            return cls(**tree)
        except ValidationError as error:
            raise InputError(f"{cls.section}.{first_sentence(error, cls)}") from None


def first_sentence(error: ValidationError, model: type[Settings]) -> str:
    """Pydantic's first finding as one line that names the field, the value and the way out."""
    finding = error.errors()[0]
    field = ".".join(str(part) for part in finding["loc"])
    if finding["type"] == "extra_forbidden":
        section: Any = model.model_fields
        for part in finding["loc"][:-1]:
            kind = section[str(part)].annotation
            section = next(choice for choice in (kind, *get_args(kind)) if hasattr(choice, "model_fields"))
            section = section.model_fields
        return f"{field}: no such setting; there are {', '.join(section)}"
    if finding["type"] == "value_error":
        reason = finding["ctx"]["error"]
        if not field or isinstance(reason, InputError):
            return str(reason)
    message = finding["msg"][0].lower() + finding["msg"][1:]
    return f"{field} = {short(finding['input'])}: {message}"


def short(value: Any) -> str:
    """A value as it was given; of a long one the beginning and the end."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number too long to be written, brackets without end
        return "a value without end"
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}"


class CohortSettings(Settings):
    """Which data the hospitals hold, and how images that name no hospital are dealt out.

    docs/data.md says what each kind expects at `path`.
    """

    kind: Literal[
        "synthetic-mri",
        "synthetic-ct",
        "rsna-ich",
        "prostate",
        "medmnist",
        "npz",
        "folder",
        "prepared",
        "custom",
    ] = "synthetic-mri"
    path: str | None = None  # a folder or a file, for all kinds but the synthetic ones
    hospitals: Count | None = None  # default: as the files name; 6 synthetic-mri, 20 synthetic-ct, rsna-ich
    slices: Count = 480  # synthetic: training slices over all hospitals
    # Default: 64 for synthetic cohorts, 224 for rsna-ich, 256 for prostate and folder, else as the files are.
    image_size: Annotated[int, Field(ge=16, le=1024)] | None = None
    # Default: 3 for rsna-ich (CT windows), as the files are for npz and medmnist, else 1.
    channels: Literal[1, 3] | None = None
    storage: Literal["uint8", "float16"] = "uint8"  # of decoded images
    # Draw so many files, classes evened out. Default: 25000 for rsna-ich, else all.
    sample: Count | None = None
    # How many classes there are; the model's size follows. Default: 2 for synthetic-ct and rsna-ich, else as
    # many as the hospitals' labels show, which ε then does not cover.
    classes: Annotated[int, Field(ge=2)] | None = None
    mask_labels: tuple[Count, ...] | None = None  # a mask for each value; default: one mask of all above 0
    with_mask_only: bool | None = None  # leave out slices without a mask; default: true for prostate
    patient_pattern: str | None = None  # a regular expression: its group is the patient in a file's path
    patient_ids: Literal["global", "local"] = "global"  # local: one id in two hospitals is two people
    # Default: given where the files name hospitals, else equal.
    partition: Literal["given", "patients", "equal", "sizes", "dirichlet", "feature"] | None = None
    sizes: tuple[Positive, ...] | None = None  # partition = sizes: of the hospitals, relative to each other
    alpha: Positive = 0.5  # partition = dirichlet: small for hospitals with unlike classes
    feature: str | None = None  # partition = feature: a hospital for each of its values, such as scanner
    # Train, validation, test. Default: as the files say, else 0.6, 0.2, 0.2 (prostate 0.5, 0.25, 0.25).
    shares: tuple[Positive, Positive, Positive] | None = None
    torn_patients: Literal["refuse", "keep"] = "refuse"  # whom the files put into two parts, in one hospital
    skip_unreadable: bool = False  # leave out what cannot be used, instead of refusing all
    cache: str | None = None  # where decoded images are kept; default: silodp in XDG_CACHE_HOME or ~/.cache
    seed: Annotated[int, Field(ge=0)] = 0  # apart from the run's seed: other chance, same hospitals

    @property
    def simulated(self) -> bool:
        """Whether the hospitals are made up or dealt out, once `partition` is resolved."""
        return self.kind.startswith("synthetic") or self.partition not in (None, "given")

    def filled(self) -> Self:
        """These settings with the defaults of their kind."""
        defaults = _COHORT_DEFAULTS.get(self.kind, {})
        return self.model_copy(
            update={name: value for name, value in defaults.items() if getattr(self, name) is None}
        )


_COHORT_DEFAULTS: dict[str, dict[str, Any]] = {
    "synthetic-mri": {"hospitals": 6, "image_size": 64, "channels": 1},
    "synthetic-ct": {"hospitals": 20, "image_size": 64, "channels": 1, "classes": 2},
    "rsna-ich": {"hospitals": 20, "image_size": 224, "channels": 3, "classes": 2, "sample": 25_000},
    "prostate": {"image_size": 256, "channels": 1, "with_mask_only": True},
    "folder": {"image_size": 256, "channels": 1, "with_mask_only": False},
}


class ModelSettings(Settings):
    """The network. `features` is its width; levels belong to unet, growth and blocks to densenet."""

    kind: Literal["unet", "densenet", "custom"] = "unet"
    features: Annotated[int, Field(ge=1, le=1024)] = 8
    levels: Annotated[int, Field(ge=1, le=8)] = 4  # how often a unet halves the image
    growth: Annotated[int, Field(ge=1, le=256)] = 32
    blocks: tuple[Count, ...] = (6, 12, 24, 16)
    norm: Literal["batch", "group", "instance"] = "batch"
    affine: bool = False  # whether norm layers have a scale and a shift
    # What trains and travels: all; norm (scales and shifts), head (the last layer), or patterns of
    # parameters' names, joined by +, such as "norm+head" or "up.*+head". The rest stays as it starts.
    trainable: Annotated[str, Field(min_length=1)] = "all"


class LocalSettings(Settings):
    """How an intermediary trains in one round."""

    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: Positive = 1e-3
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # sgd
    amsgrad: bool = True  # adam
    state: Literal["kept", "fresh"] = "kept"  # kept: each intermediary's moments live on across rounds
    epochs: Annotated[float, Field(gt=0, le=1000)] = (
        1.0  # a fraction takes that part of the steps, at least one
    )
    batch_size: Annotated[int, Field(ge=2)] = 8
    augmentation: Literal["none", "affine-flip"] = "none"

    @property
    def keeps_state(self) -> bool:
        """Whether anything lives on at the hospitals from round to round."""
        return self.state == "kept" and (self.optimizer == "adam" or self.momentum > 0)


class PrivacySettings(Settings):
    """Noise multiplier z: noise on the sum is z·C. Zero is a run without privacy."""

    noise_multiplier: NonNegative = 0.5
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None  # default: the paper's rule, 10^-k ≤ 1/hospitals
    entropy: Literal["seed", "system"] = (
        "seed"  # seed: reproducible, for study; system: for models to release
    )
    # central: the server adds it. shared: each hospital adds a share before its contribution leaves it.
    noise: Literal["central", "shared"] = "central"
    may_stay_away: Annotated[int, Field(ge=0)] = (
        0  # shared: so many hospitals' shares the noise can do without
    )
    level: Literal["client", "sample"] = "client"  # sample: DP-SGD at the hospitals (the paper's section 2.3)
    sample_clip_bound: Positive = 1.0  # sample: c, the bound on one image's gradient
    image_delta: Annotated[float, Field(gt=0, lt=1)] | None = (
        None  # sample: δ for one image; default: ≤ 1/images
    )

    @property
    def reproducible(self) -> bool:
        """Whether noise and draws come from the seed, so that a round redone is the same release."""
        return self.entropy == "seed"


class BudgetSettings(Settings):
    """The most a run may spend: a round that would overspend does not start."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None  # default: privacy.delta
    unit: Literal["hospital", "intermediary"] = "hospital"
    neighbours: Literal["add-or-remove", "replace-one"] = "add-or-remove"

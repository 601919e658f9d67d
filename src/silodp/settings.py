"""The sections of an experiment: every setting with its meaning and default.

A field that a rule does not use is ignored by it, so `--set clipping.rule=fixed` needs no other change.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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


class IntermediarySettings(Settings):
    """Into how many disjoint intermediaries each hospital is split (v)."""

    rule: Literal["fixed", "closed-form", "adaptive", "initial", "stable", "progressive"] = "closed-form"
    count: Count = 1  # fixed: v; the rules that estimate start from it
    min_samples: Annotated[int, Field(ge=1)] = 2  # BatchNorm needs two


class ClippingSettings(Settings):
    """The bound C on the L2 norm of one intermediary's update."""

    rule: Literal["none", "fixed", "median", "quantile"] = "quantile"
    bound: Positive = 1.0  # fixed: C; quantile: C of round one; median: used only if nobody answers
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    learning_rate: Positive = 0.2
    bit_share: Annotated[float, Field(gt=0, lt=1)] = 0.05  # of each round's privacy, for the quantile bits


class PrivacySettings(Settings):
    """Noise multiplier z: noise on the sum is z·C. Zero is a run without privacy."""

    noise_multiplier: NonNegative = 0.5
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None  # default: the paper's rule, 10^-k ≤ 1/hospitals
    entropy: Literal["seed", "system"] = (
        "seed"  # seed: reproducible, for study; system: for models to release
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


class ServerSettings(Settings):
    """What the server does with the released mean."""

    optimizer: Literal["fedavg", "fedadam", "fednova", "dp2-rmsprop", "custom"] = "fedavg"
    learning_rate: Positive | None = None  # default: 1; fedadam 0.03; dp2-rmsprop 1e-4 (1e-3 without noise)
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9  # fedadam
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99  # fedadam
    tau: Positive = 1e-9  # fedadam: added to √u
    bias_correction: bool = False  # fedadam
    noise_correction: bool = False  # fedadam: DP-AdamBC, subtract the noise's known variance from u
    interval: Count = 3  # dp2-rmsprop: rounds in a block
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.9  # dp2-rmsprop


class ParticipationSettings(Settings):
    """Which hospitals train at all, and which of them take part in a round."""

    # Only the first so many hospitals of the cohort train; the others only lend their validation and test
    # images. Default: all.
    members: Count | None = None
    rule: Literal["all", "poisson", "fraction"] = "all"
    rate: Annotated[float, Field(gt=0, le=1)] = 1.0

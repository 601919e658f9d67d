"""Everything a run needs, as one typed tree that comes from TOML and goes back to it.

A field that a rule does not use is ignored by it, so `--set clipping.rule=fixed` needs no other change.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from silodp.errors import InputError

PRESETS = Path(__file__).parent / "presets"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CohortSettings(Settings):
    """Which data the hospitals hold."""

    kind: Literal["synthetic-mri", "synthetic-ct", "custom"] = "synthetic-mri"
    hospitals: Count | None = None  # default: 6 for synthetic-mri, 20 for synthetic-ct
    slices: Count = 480  # training slices over all hospitals
    image_size: Annotated[int, Field(ge=16, le=1024)] = 64
    channels: Literal[1, 3] = 1  # synthetic-ct: 3 windows or the brain window alone
    seed: Annotated[int, Field(ge=0)] = 0  # apart from the run's seed: other chance, same hospitals


class ModelSettings(Settings):
    """The network. `features` is its width; growth and blocks belong to densenet."""

    kind: Literal["unet", "densenet", "custom"] = "unet"
    features: Annotated[int, Field(ge=1, le=1024)] = 8
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

    optimizer: Literal["fedavg", "fedadam", "fednova", "dp2-rmsprop"] = "fedavg"
    learning_rate: Positive | None = None  # default: 1; fedadam 0.03; dp2-rmsprop 1e-4 (1e-3 without noise)
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9  # fedadam
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99  # fedadam
    tau: Positive = 1e-9  # fedadam: added to √u
    bias_correction: bool = False  # fedadam
    noise_correction: bool = False  # fedadam: DP-AdamBC, subtract the noise's known variance from u
    interval: Count = 3  # dp2-rmsprop: rounds in a block
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.9  # dp2-rmsprop


class ParticipationSettings(Settings):
    """Which hospitals take part in a round."""

    rule: Literal["all", "poisson", "fraction"] = "all"
    rate: Annotated[float, Field(gt=0, le=1)] = 1.0


class Experiment(Settings):
    """One run, complete: running the same experiment again gives the same result."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] = "experiment"
    description: str = ""
    task: Literal["segmentation", "classification"] = "segmentation"
    rounds: Count = 30
    seed: Annotated[int, Field(ge=0)] = 0
    checkpoint_every: Count = 1
    diagnostics: bool = True  # un-noised ξ, φ, λ, cosines and losses in metrics.jsonl; ε does not cover them
    threads: Count | None = None  # on a CPU; default: all cores. Small models run best on one
    cohort: CohortSettings = CohortSettings()
    model: ModelSettings = ModelSettings()
    local: LocalSettings = LocalSettings()
    intermediaries: IntermediarySettings = IntermediarySettings()
    clipping: ClippingSettings = ClippingSettings()
    privacy: PrivacySettings = PrivacySettings()
    budget: BudgetSettings | None = None
    server: ServerSettings = ServerSettings()
    participation: ParticipationSettings = ParticipationSettings()

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise InputError(_first_sentence(error)) from None

    @model_validator(mode="before")
    @classmethod
    def _defaults_follow(cls, tree: Any) -> Any:
        """Another task has another cohort and network by default; DP-SGD at the hospitals splits nothing."""
        if not isinstance(tree, dict):
            return tree
        defaults: dict[str, dict[str, Any]] = {}
        if tree.get("task") == "classification":
            defaults = {"cohort": {"kind": "synthetic-ct"}, "model": {"kind": "densenet"}}
        privacy = tree.get("privacy")
        if isinstance(privacy, dict) and privacy.get("level") == "sample":
            defaults |= {"clipping": {"rule": "none"}, "intermediaries": {"rule": "fixed", "count": 1}}
            defaults["model"] = defaults.get("model", {}) | {"norm": "group"}
        given = {section: tree.get(section, {}) for section in defaults}
        filled = {name: defaults[name] | own for name, own in given.items() if isinstance(own, dict)}
        return {**tree, **filled}

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.privacy.level == "sample":
            self._refuse_with_sample_level()
        elif self.clipping.rule == "none" and self.privacy.noise_multiplier > 0:
            raise ValueError(
                f"clipping.rule = none with privacy.noise_multiplier = {self.privacy.noise_multiplier}: "
                "noise protects nobody without a bound; set clipping.rule, or privacy.noise_multiplier=0"
            )
        if self.server.noise_correction and self.server.optimizer != "fedadam":
            raise ValueError(
                f"server.noise_correction = true with server.optimizer = {self.server.optimizer}: "
                "it corrects fedadam's second moment only; set server.optimizer=fedadam or leave it out"
            )
        for kind, task in (("synthetic-mri", "segmentation"), ("synthetic-ct", "classification")):
            if self.cohort.kind == kind and self.task != task:
                raise ValueError(f"task = {self.task} with cohort.kind = {kind}: set task={task}")
        for model, task in (("unet", "segmentation"), ("densenet", "classification")):
            if self.model.kind == model and self.task != task:
                raise ValueError(f"model.kind = {model} with task = {self.task}: set task={task}")
        return self

    def _refuse_with_sample_level(self) -> None:
        """DP-SGD at the hospitals protects images; nothing else may mix them, clip them or draw hospitals."""
        parts, rule = self.intermediaries, self.participation.rule
        for field, value, fits, instead, why in (
            ("model.norm", self.model.norm, self.model.norm != "batch", "group", "BatchNorm mixes images"),
            ("intermediaries.rule", parts.rule, parts.rule == "fixed", "fixed", "hospitals are not split"),
            ("intermediaries.count", parts.count, parts.count == 1, 1, "hospitals are not split"),
            (
                "clipping.rule",
                self.clipping.rule,
                self.clipping.rule == "none",
                "none",
                "gradients are clipped",
            ),
            ("participation.rule", rule, rule == "all", "all", "a hospital that is away adds no noise"),
        ):
            if not fits:
                raise ValueError(
                    f"{field} = {value} with privacy.level = sample: {why}; set {field}={instead}"
                )

    @property
    def is_private(self) -> bool:
        return self.privacy.noise_multiplier > 0

    @classmethod
    def load(cls, source: str | Path, changes: Sequence[str] | Mapping[str, Any] = ()) -> Self:
        """Reads a preset by name, or a TOML file, with changes such as "privacy.noise_multiplier=0.3"."""
        path = PRESETS / f"{source}.toml"
        if not path.exists():
            path = Path(source)
            if not path.is_file():
                raise InputError(
                    f"experiment {str(source)!r} is neither a preset ({', '.join(preset_names())}) "
                    "nor a TOML file"
                )
        try:
            tree = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not valid TOML ({error})") from None
        return cls.build(tree, changes)

    @classmethod
    def build(cls, tree: Mapping[str, Any], changes: Sequence[str] | Mapping[str, Any] = ()) -> Self:
        """Validates a tree of settings after changing some of them; the way in for presets and Python."""
        tree = {key: dict(value) if isinstance(value, Mapping) else value for key, value in tree.items()}
        pairs = changes.items() if isinstance(changes, Mapping) else map(_parse_change, changes)
        for key, value in pairs:
            _put(tree, key, value)
        return cls(**tree)

    def change(self, **changes: Any) -> Self:
        """This experiment with some settings changed: `change(rounds=5, privacy__noise_multiplier=0.3)`."""
        return self.build(
            self.model_dump(exclude_none=True),
            {key.replace("__", "."): value for key, value in changes.items()},
        )

    def resolve(self, hospitals: int, threads: int, images: int = 1) -> Self:
        """Fills in what the defaults leave open, so that the written file says every number.

        Threads are among them: sums of floating-point numbers depend on how they are divided.
        """
        changes: dict[str, Any] = {"cohort.hospitals": hospitals, "threads": self.threads or threads}
        if self.privacy.delta is None:
            changes["privacy.delta"] = delta_by_rule(hospitals)
        if self.privacy.level == "sample" and self.privacy.image_delta is None:
            changes["privacy.image_delta"] = delta_by_rule(images)
        if self.budget is not None and self.budget.delta is None:
            changes["budget.delta"] = self.privacy.delta or changes["privacy.delta"]
        if self.server.learning_rate is None:
            rates = {"fedadam": 0.03, "dp2-rmsprop": 1e-4 if self.is_private else 1e-3}
            changes["server.learning_rate"] = rates.get(self.server.optimizer, 1.0)
        return self.build(self.model_dump(exclude_none=True), changes)

    def to_toml(self) -> str:
        import tomli_w

        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def delta_by_rule(hospitals: int) -> float:
    """The paper's δ: 10^-k with the smallest integer k such that 10^-k ≤ 1/hospitals."""
    return 10.0 ** -max(1, math.ceil(math.log10(hospitals) - 1e-12))


def preset_names() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def _parse_change(text: str) -> tuple[str, Any]:
    key, found, value = text.partition("=")
    if not found or not key.strip():
        raise InputError(f"--set {text!r}: write key=value, such as privacy.noise_multiplier=0.3")
    try:
        return key.strip(), tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()  # a bare word is a string


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise InputError(f"{key}: {section} is a value, not a section")
    tree[last] = value


def _first_sentence(error: ValidationError) -> str:
    """Pydantic's first finding as one line that names the field, the value and the way out."""
    finding = error.errors()[0]
    field = ".".join(str(part) for part in finding["loc"])
    if finding["type"] == "extra_forbidden":
        section: Any = Experiment.model_fields
        for part in finding["loc"][:-1]:
            kind = section[str(part)].annotation
            section = next(choice for choice in (kind, *get_args(kind)) if hasattr(choice, "model_fields"))
            section = section.model_fields
        return f"{field}: no such setting; there are {', '.join(section)}"
    if finding["type"] == "value_error" and not field:
        return str(finding["ctx"]["error"])
    message = finding["msg"][0].lower() + finding["msg"][1:]
    return f"{field} = {finding['input']!r}: {message}"

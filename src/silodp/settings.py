"""The base classes of an experiment's sections, and the sections without a choice of rules.

Sections with rules are defined beside the rules' code: `cohorts/kinds.py`, `models/kinds.py`,
`local/optimizers.py`, `intermediary.py`, `clipping.py`, `server_optimizers.py`, `participation.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from silodp.errors import InputError, did_you_mean, short
from silodp.refusals import describe_error

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
EvaluationBatch = Literal["image", "scan", "hospital"]


class Settings(BaseModel):
    """A section of an experiment. The string under a field describes it, for `silodp settings`.

    Attributes:
        section: its name in TOML.
        only_with: setting → (other setting, value): it has a meaning only there and is refused elsewhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    section: ClassVar[str] = ""
    only_with: ClassVar[Mapping[str, tuple[str, str]]] = {}

    @model_validator(mode="after")
    def _refuse_what_would_be_ignored(self) -> Self:
        """Raises InputError for a setting that was changed where `only_with` gives it no meaning."""
        for setting, (other, needed) in self.only_with.items():
            value, found = getattr(self, setting), getattr(self, other)
            if found != needed and value != type(self).model_fields[setting].default:
                raise InputError(
                    f"{self.section}.{setting} = {short(value)} with {self.section}.{other} = "
                    f"{found or 'its default'}: it is for {needed}; leave it out, or set "
                    f"{self.section}.{other}={needed}"
                )
        return self


class Rule(Settings):
    """One of several ways to do a thing: its fields are its settings, its methods its code.

    A section's rules are the subclasses of one class, in any file: defining a subclass makes it available
    under its name in TOML, in `--set` and in `silodp.train`. A setting that a rule does not have is refused.

    Attributes:
        key: the field that names the rule; each rule has it as a Literal with that default.
        usual: the default rule.
        known: the section's rules by name.
    """

    key: ClassVar[str] = "rule"
    usual: ClassVar[str]
    known: ClassVar[dict[str, type[Rule]]]

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Gives a section a table of its own in `known`, and enters a rule into its section's.

        Pydantic calls it when the class has its fields. A class of the same module and name, as from a file
        that is run again, replaces the former one; any other with that rule's name is refused.
        """
        if Rule in cls.__bases__:
            cls.known = {}  # a section
        elif isinstance(name := cls.name(), str):
            there = cls.known.get(name, cls)
            if (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(f"{cls.section}.{cls.key} = {name}: {there.__module__} has this rule already")
            cls.known[name] = cls

    def model_post_init(self, _: Any) -> None:
        self.__pydantic_fields_set__.add(self.key)  # a rule's name is always written out

    @classmethod
    def name(cls) -> Any:
        """The rule's name in TOML; no string for an abstract base of several rules."""
        field = cls.model_fields.get(cls.key)
        return field.default if field else None

    @property
    def uncovered(self) -> str:
        """What ε does not cover because of this rule, for the list under every ε; empty: nothing."""
        return ""

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """The rule that these settings name, such as `ModelSettings.of(kind="densenet", features=16)`."""
        rule: Self = cls.chosen(settings)
        return rule

    @classmethod
    def chosen(cls, tree: Any) -> Any:
        """Builds the rule that a section's settings name; anything else is passed on to pydantic.

        It is the validator of the section's field in `Experiment`, which so takes a table or an instance.

        Raises:
            InputError: no rule has this name, or the settings do not fit it.
        """
        if not isinstance(tree, Mapping) or not all(isinstance(name, str) for name in tree):
            return tree
        name = tree.get(cls.key, cls.usual)
        rule = cls.known.get(name) if isinstance(name, str) else None
        if rule is None:
            raise InputError(
                f"{cls.section}.{cls.key} = {short(name)}: choose one of {', '.join(cls.known)}, "
                "or import what defines it first" + did_you_mean(name, cls.known)
            )
        return rule.given(tree)

    @classmethod
    def given(cls, tree: Mapping[str, Any]) -> Self:
        """Builds this rule; a setting that only other rules have is refused with their names."""
        for setting in tree.keys() - cls.model_fields.keys():
            if others := [name for name, other in cls.known.items() if setting in other.model_fields]:
                own = ", ".join(field for field in cls.model_fields if field != cls.key)
                raise InputError(
                    f"{cls.section}.{setting} = {short(tree[setting])}: not a setting of "
                    f"{cls.section}.{cls.key} = {cls.name()}, which has {own or 'none'}; leave it out, or "
                    f"set {cls.section}.{cls.key} to {' or '.join(others)}"
                )
        try:
            return cls(**tree)
        except ValidationError as error:
            raise InputError(describe_error(error, cls, cls.section)) from None


class PrivacySettings(Settings):
    """How much noise is added, where, and whom it protects."""

    section: ClassVar[str] = "privacy"
    only_with: ClassVar[Mapping[str, tuple[str, str]]] = {
        "sample_clip_bound": ("level", "sample"),
        "image_delta": ("level", "sample"),
        "may_stay_away": ("noise", "shared"),
    }
    noise_multiplier: NonNegative = 0.5
    """z: noise on the sum is z·C. Zero is a run without privacy."""
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """By default the paper's rule, 10^-k ≤ 1/hospitals."""
    entropy: Literal["seed", "system"] = "seed"
    """seed: reproducible, for study; system: for models to release."""
    noise: Literal["central", "shared"] = "central"
    """central: the server adds it; shared: each hospital adds a share before it sends its contribution."""
    may_stay_away: Annotated[int, Field(ge=0)] = 0
    """shared: how many hospitals may be missing from a round while the noise is still sufficient."""
    level: Literal["client", "sample"] = "client"
    """sample: DP-SGD at the hospitals (the paper's section 2.3)."""
    sample_clip_bound: Positive | None = None
    """sample: c, the bound on one image's gradient; by default 1."""
    image_delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """sample: δ for one image; by default 10^-k ≤ 1/images."""

    @property
    def gradient_bound(self) -> float:
        """c of DP-SGD at the hospitals."""
        return self.sample_clip_bound or 1.0

    def shares(self, members: int) -> int:
        """How many hospitals' shares make up the full noise; 0: the server adds all of it."""
        return members - self.may_stay_away if self.noise == "shared" else 0

    @property
    def reproducible(self) -> bool:
        """Whether noise and draws come from the seed, so that a repeated round is the same release."""
        return self.entropy == "seed"


class EvaluationSettings(Settings):
    """How models are validated and tested."""

    section: ClassVar[str] = "evaluation"
    batch: EvaluationBatch = "image"
    """What the network sees at a time, where its norm layers let images depend on each other: one image, one
    patient's scan, or many images of a hospital. Only the first two can occur in clinical use."""


class DeploymentSettings(Settings):
    """Rounds over a network (`silodp deploy`)."""

    section: ClassVar[str] = "deployment"
    deadline: Positive = 600.0
    """Seconds after which a hospital that has not answered is absent from the round."""
    min_hospitals: Count | None = None
    """How many hospitals must answer a round; with fewer it waits. By default all that are asked."""


class BudgetSettings(Settings):
    """The largest ε that a run may spend: a round that would exceed it does not start."""

    epsilon: Positive
    """The largest ε."""
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """By default privacy.delta."""
    unit: Literal["hospital", "intermediary"] = "hospital"
    """Whose ε is limited."""
    neighbours: Literal["add-or-remove", "replace-one"] = "add-or-remove"
    """The neighbouring relation for which ε holds."""
    sets_noise: bool = False
    """Choose privacy.noise_multiplier so that all rounds together cost epsilon."""

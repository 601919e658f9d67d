"""An experiment: all settings of a run as one typed tree, read from TOML and written back to it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator

from silodp.changes import drop_other_rules, pairs_of, parse_change, put
from silodp.clipping import ClippingRule, QuantileClipping
from silodp.cohorts.kinds import CohortSettings
from silodp.cohorts.synthetic_mri import SyntheticMri
from silodp.compatibility import refuse_incompatible
from silodp.errors import InputError, did_you_mean
from silodp.files import read_toml
from silodp.intermediary import ClosedForm, IntermediaryRule
from silodp.local.optimizers import Adam, LocalSettings
from silodp.models.kinds import ModelSettings, UNetModel
from silodp.participation import Everyone, ParticipationRule
from silodp.refusals import describe_error
from silodp.server_optimizers import FedAvg, ServerRule
from silodp.settings import (
    BudgetSettings,
    Count,
    DeploymentSettings,
    EvaluationSettings,
    PrivacySettings,
    Rule,
    Settings,
)
from silodp.tasks import SEGMENTATION, TASKS, known_task

RULES: dict[str, type[Rule]] = {
    one.section: one
    for one in (
        CohortSettings, ModelSettings, LocalSettings, IntermediaryRule, ClippingRule, ServerRule,
        ParticipationRule,
    )
}  # fmt: skip
"""The sections that are a choice among rules, by name."""

RUN_FORMAT = 3
"""Version of a run folder's files; raised when older folders can no longer be read."""

PRESETS = Path(__file__).parent / "presets"


class Experiment(Settings):
    """All settings of one run: running the same experiment again gives the same result."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] = "experiment"
    """Name of the run, and of its folder by default."""
    description: str = ""
    """One line about it."""
    format: int | None = None
    """Version of the run's files; written when it starts."""
    task: Annotated[str, AfterValidator(known_task)] = "segmentation"
    """What is learnt: segmentation or classification."""
    rounds: Count = 30
    """Rounds of training."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of everything random in the run except the system's entropy."""
    checkpoint_every: Count = 1
    """Rounds between checkpoints: so many rounds a kill can cost."""
    diagnostics: bool = True
    """Write un-noised ξ, φ, λ, cosines and losses into metrics.jsonl; ε does not cover them."""
    threads: Count | None = None
    """On a CPU; default: all cores. Small models run best on one."""
    executor: Literal["auto", "sequential", "stacked", "captured"] = "auto"
    """How a hospital's intermediaries train: one after the other; stacked: several small ones in one step, on
    a CPU; captured: each step recorded and replayed, on a GPU. They differ by rounding."""
    cohort: Annotated[SerializeAsAny[CohortSettings], BeforeValidator(CohortSettings.chosen)] = SyntheticMri()
    model: Annotated[SerializeAsAny[ModelSettings], BeforeValidator(ModelSettings.chosen)] = UNetModel()
    local: Annotated[SerializeAsAny[LocalSettings], BeforeValidator(LocalSettings.chosen)] = Adam()
    intermediaries: Annotated[SerializeAsAny[IntermediaryRule], BeforeValidator(IntermediaryRule.chosen)] = (
        ClosedForm()
    )
    clipping: Annotated[SerializeAsAny[ClippingRule], BeforeValidator(ClippingRule.chosen)] = (
        QuantileClipping()
    )
    privacy: PrivacySettings = PrivacySettings()
    budget: BudgetSettings | None = None
    evaluation: EvaluationSettings = EvaluationSettings()
    deployment: DeploymentSettings = DeploymentSettings()
    server: Annotated[SerializeAsAny[ServerRule], BeforeValidator(ServerRule.chosen)] = FedAvg()
    participation: Annotated[SerializeAsAny[ParticipationRule], BeforeValidator(ParticipationRule.chosen)] = (
        Everyone()
    )

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise InputError(describe_error(error, Experiment)) from None

    @model_validator(mode="before")
    @classmethod
    def _defaults_follow(cls, tree: Any) -> Any:
        """Defaults that depend on other settings: cohort and network on the task, rules on privacy.level."""
        if not isinstance(tree, dict):
            return tree
        task = TASKS.get(str(tree.get("task")), SEGMENTATION)
        defaults: dict[str, dict[str, Any]] = {"cohort": {"kind": task.cohort}, "model": {"kind": task.model}}
        privacy = tree.get("privacy")
        if isinstance(privacy, dict) and privacy.get("level") == "sample":
            defaults |= {"clipping": {"rule": "none"}, "intermediaries": {"rule": "fixed", "count": 1}}
        if isinstance(privacy, dict) and privacy.get("noise") == "shared":
            tree = {"diagnostics": False, **tree}
        given = {section: tree.get(section, {}) for section in defaults}
        filled = {name: defaults[name] | own for name, own in given.items() if isinstance(own, dict)}
        return {**tree, **filled}

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        """Raises ValueError where settings contradict each other, see `compatibility`."""
        refuse_incompatible(self)
        return self

    @property
    def is_private(self) -> bool:
        """Whether there is noise, at the server or at the hospitals."""
        return self.privacy.noise_multiplier > 0

    @property
    def averaged_rounds(self) -> int:
        """The number of last rounds over which the model is averaged; 0: it is the last round's."""
        return math.ceil(self.rounds * self.server.average)

    @classmethod
    def load(cls, source: str | Path, changes: Sequence[str] | Mapping[str, Any] = ()) -> Self:
        """Reads a preset by name, or a TOML file, with changes such as "privacy.noise_multiplier=0.3"."""
        path = PRESETS / f"{source}.toml"
        is_preset = path.exists()
        if not is_preset:
            path = Path(source)
            if (path / "experiment.toml").is_file():
                raise InputError(
                    f"experiment {str(source)!r} is the folder of a run; continue it with `silodp resume "
                    f"{path}`, or run {path / 'experiment.toml'} again"
                )
            if not path.is_file():
                raise InputError(
                    f"experiment {str(source)!r} is neither a preset ({', '.join(preset_names())}) "
                    "nor a TOML file" + did_you_mean(source, preset_names())
                )
        tree = read_toml(path)
        if is_preset:
            tree = _named_after_files(tree, dict(pairs_of(changes)), str(source))
        return cls.build(tree, changes)

    @classmethod
    def build(cls, tree: Mapping[str, Any], changes: Sequence[str] | Mapping[str, Any] = ()) -> Self:
        """Validates a tree of settings after applying changes to it.

        Where a change names another rule, settings that only the former rule has are dropped.
        """
        tree = {key: dict(value) if isinstance(value, Mapping) else value for key, value in tree.items()}
        pairs = pairs_of(changes)
        drop_other_rules(tree, pairs, RULES)
        for key, value in pairs:
            put(tree, key, value)
        return cls(**tree)

    def change(self, **changes: Any) -> Self:
        """This experiment with some settings changed: `change(rounds=5, privacy__noise_multiplier=0.3)`.

        Settings that were never given take the defaults that go with the changes.
        """
        return self.build(
            self.model_dump(exclude_none=True, exclude_unset=True),
            {key.replace("__", "."): value for key, value in changes.items()},
        )

    def resolve(
        self, hospitals: int, threads: int, images: int = 1, simulated: bool | None = None
    ) -> ResolvedExperiment:
        """Fills in every default that depends on the cohort or the machine, so that the file is complete.

        The number of threads is among them: floating-point sums depend on how they are divided.

        Args:
            hospitals: in the cohort.
            threads: of this machine.
            images: training images of all members together.
            simulated: whether the hospitals of a cohort from files are simulated; None for other cohorts.
        """
        members = self.participation.members or hospitals
        if members > hospitals:
            raise InputError(
                f"participation.members = {members}: the cohort has {hospitals} hospitals; "
                f"set participation.members to at most {hospitals}"
            )
        if self.privacy.may_stay_away >= members:
            raise InputError(
                f"privacy.may_stay_away = {self.privacy.may_stay_away}: {members} hospitals train; set it to "
                f"at most {members - 1}"
            )
        cohort = self.cohort.model_dump(exclude_none=True) | {"hospitals": hospitals}
        for place in {"path", "cache"} & cohort.keys():  # so that a run can be resumed from any folder
            cohort[place] = str(Path(cohort[place]).expanduser().absolute())
        if simulated is not None:
            cohort.setdefault("partition", "equal" if simulated else "given")
        delta = self.privacy.delta or delta_by_rule(members)
        rate = self.server.learning_rate or self.server.usual_rate(private=self.is_private)
        changes = {
            "cohort": cohort,
            "threads": self.threads or threads,
            "format": RUN_FORMAT,
            "privacy.delta": delta,
            "server.learning_rate": rate,
        }
        if self.privacy.level == "sample":
            changes["privacy.sample_clip_bound"] = self.privacy.gradient_bound
            changes["privacy.image_delta"] = self.privacy.image_delta or delta_by_rule(images)
        if self.budget is not None:
            delta = self.budget.delta or delta
            changes["budget.delta"] = delta
            if self.budget.sets_noise:
                changes["privacy.noise_multiplier"] = self._noise_within(self.budget, delta, members)
                changes["budget.sets_noise"] = False  # a resumed run keeps its noise, with more rounds too
        tree = self.model_dump(exclude_none=True)
        return ResolvedExperiment.build(tree, changes)

    def _noise_within(self, budget: BudgetSettings, delta: float, members: int) -> float:
        """z with which all rounds together cost the budget's ε."""
        from silodp.privacy.calibration import Setting, Target, noise_for

        drawn = self.participation
        setting = Setting(
            delta,
            self.intermediaries.asked or 1,
            drawn.accounted_as(stateful=self.local.keeps_state),
            drawn.sampling_rate(members),
        )
        target = Target(budget.epsilon, budget.unit, budget.neighbours)
        # A little more, so that rounding does not cost the last round.
        return noise_for(target, setting, self.rounds) * (1 + 1e-5)

    def to_toml(self, *, defaults: bool = True) -> str:
        """TOML of all settings; without `defaults` only of those that were given."""
        import tomli_w

        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True, exclude_unset=not defaults))


class ResolvedExperiment(Experiment):
    """An experiment without open defaults, for a known cohort; every run folder has one."""

    @model_validator(mode="after")
    def _nothing_is_open(self) -> Self:
        """Raises ValueError for a default that was not filled in, as in a damaged file of a run."""
        cohort = self.cohort.model_fields_set
        for setting, value in (
            ("cohort.hospitals", self.cohort.hospitals if "hospitals" in cohort else None),
            ("threads", self.threads),
            ("privacy.delta", self.privacy.delta),
            ("server.learning_rate", self.server.learning_rate),
            ("budget.delta", self.budget is None or self.budget.delta),
        ):
            if value is None:
                raise ValueError(f"{setting}: is missing from the experiment of a run; restore it")
        return self

    @property
    def delta(self) -> float:
        """δ of every ε of the run."""
        assert self.privacy.delta is not None
        return self.privacy.delta

    @property
    def hospitals(self) -> int:
        """Number of hospitals in the cohort."""
        assert self.cohort.hospitals is not None
        return self.cohort.hospitals

    @property
    def members(self) -> int:
        """Number of hospitals that train."""
        return self.participation.members or self.hospitals


def cohort_at(path: Path, changes: Sequence[str]) -> dict[str, Any]:
    """Cohort settings for a path whose kind is not known yet, with changes such as "hospitals=6"."""
    return _section("cohort", {"path": str(path)}, changes)


def model_for(task: str, usual: Mapping[str, Any], changes: Sequence[str]) -> ModelSettings:
    """Model settings for a task, with changes such as "features=16" to the defaults in `usual`."""
    given = _section("model", {}, changes)
    same_kind = given.get("kind", usual.get("kind")) == usual.get("kind")
    kept = usual if same_kind else {"affine": usual["affine"]}
    return Experiment(task=task, model={**kept, **given}).model


def _section(name: str, settings: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """One section's settings after changes, which may leave out its name: "hospitals=6" or with "cohort."."""
    tree: dict[str, dict[str, Any]] = {name: settings}
    for key, value in map(parse_change, changes):
        put(tree, key if key.startswith(f"{name}.") else f"{name}.{key}", value)
    return tree[name]


def delta_by_rule(hospitals: int) -> float:
    """The paper's δ: 10^-k with the smallest integer k such that 10^-k ≤ 1/hospitals."""
    return 10.0 ** -max(1, math.ceil(math.log10(hospitals) - 1e-12))


def preset_names() -> list[str]:
    """Names of the presets in the package, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def _named_after_files(tree: dict[str, Any], changes: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """Names an experiment after the files that replace the preset's cohort, unless a change names it."""
    files = changes.get("cohort.path")
    if not isinstance(files, str):
        return tree
    path = Path(files).expanduser().absolute()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem if path.suffix == ".npz" else path.name).strip("-.")
    task = str(changes.get("task", tree.get("task", "segmentation")))
    description = f"{task.capitalize()} on {path.name}, with the settings of {preset}"
    return {**tree, "name": name or tree["name"], "description": description}

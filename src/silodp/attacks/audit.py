"""An empirical test of ε: train many small federations with and without a canary, and measure how well an
observer tells them apart.

- The federations are real: `Federation.rounds`, the mechanism, a ledger, honest hospitals that train a small
  network (`canary.py`). Noise, clipping, v and what the server does are an experiment's own.
- The observer knows everything but whether the canary takes part: its direction, the first model, data and
  batches of the honest hospitals, so their answers to each model. It sees the releases only. Its first score
  is the log-likelihood ratio of the two cases, the best possible one if the noise is right.
- The ledger claims a μ for each unit (and so an ε at every δ). More right guesses than that μ allows refute
  it (`privacy/lower_bound.py`). Each claim also says how many times too small the noise would have to be for
  this audit to notice (`privacy/power.py`).

With noise from a seed each federation has a seed of its own: its noise is independent, and an audit can be
repeated. With the system's noise it cannot.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from silodp.attacks.canary import SCORES, AuditFederations, OnRun
from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.privacy.events import Unit
from silodp.privacy.gaussian import gaussian_epsilon, gaussian_mu
from silodp.privacy.lower_bound import Bound, lower_bound
from silodp.privacy.power import detectable
from silodp.runs.threads import threads

FEWEST_RUNS = 20

EXPERIMENT = Experiment(
    name="default",
    intermediaries={"rule": "fixed", "count": 3},
    clipping={"rule": "quantile", "bound": 0.03},  # about what one step of Adam moves
    privacy={"noise_multiplier": 3.0},
)
"""Audited by default."""

Verdict = Literal["holds", "broken", "untested"]


@dataclass(frozen=True)
class AuditSettings:
    """The mechanism to audit, and the size and number of federations.

    Privacy, clipping, intermediaries, server and seed are taken from the experiment; its data, network, local
    training, rounds and budget are replaced.
    """

    experiment: Experiment = EXPERIMENT
    runs: int = 500  # of each kind: without the canary, with one intermediary of it, with all of it
    rounds: int = 4
    hospitals: int = 3  # the canary among them
    confidence: float = 0.99  # of each bound

    def __post_init__(self) -> None:
        for name, fits, way_out in (
            ("runs", self.runs >= FEWEST_RUNS, f"so few show nothing; use {FEWEST_RUNS} or more"),
            ("rounds", self.rounds >= 1, "nothing would be released; use 1 or more"),
            ("hospitals", self.hospitals >= 2, "one of them is the canary; use 2 or more"),
            ("confidence", 0.5 <= self.confidence < 1, "choose a chance from 0.5 to below 1, such as 0.99"),
        ):
            if not fits:
                raise InputError(f"{name} = {getattr(self, name)}: {way_out}")
        self._refuse_without_a_claim()

    def _refuse_without_a_claim(self) -> None:
        """Refuses rules that ε does not cover, and those that so few federations cannot test."""
        experiment = self.experiment
        drawn, split, clipping = experiment.participation, experiment.intermediaries, experiment.clipping
        uncovered = "ε does not cover what it reads un-noised, so there is no claim to audit"
        for name, value, refused, why in (
            ("privacy.level", experiment.privacy.level, experiment.privacy.level == "sample",
             "its noise is the hospitals' own, and the canary is a hospital; choose client"),
            ("privacy.noise_multiplier", "0", not experiment.is_private,
             "without noise nothing is claimed; choose a number above 0, such as 3"),
            ("clipping.rule", clipping.rule, bool(clipping.uncovered) or not clipping.bounded,
             f"{uncovered}; choose quantile or fixed"),
            ("intermediaries.rule", split.rule, bool(split.uncovered),
             f"{uncovered}; choose closed-form or fixed"),
            ("privacy.noise", "shared", experiment.privacy.noise == "shared",
             "who audits would know the others' shares; choose central, the noise is the same"),
            ("participation.rule", drawn.rule, drawn.sampling_rate(self.hospitals) < 1,
             "who is drawn is a secret that its ε counts on, and so few federations cannot test that; "
             "choose all to audit the noise alone"),
        ):  # fmt: skip
            if refused:
                raise InputError(f"{name} = {value}: {why}")


@dataclass(frozen=True)
class Finding:
    """A claimed ε beside the lower bound of the observer."""

    claim: str  # in words
    canary: Unit  # what was planted
    claimed: float  # ε by the federations' own ledgers
    claimed_mu: float  # the trade-off curve that this ε stands for
    shown: float  # ε of the curve that the observer refuted, at the same δ
    bound: Bound
    verdict: Verdict  # broken: the bound exceeds the claim; holds: it does not, and could have
    detectable: float | None  # noise so many times too small is noticed in 9 of 10 audits; None: none is


@dataclass(frozen=True)
class Audit:
    """The result: three claims with their tests; ε for add-or-remove neighbours."""

    settings: AuditSettings
    delta: float
    intermediaries: int  # v, as the experiment's rule chose it
    parameters: int  # of the network that was trained
    hospital: Finding
    intermediary: Finding
    paper: Finding  # the intermediary's ε, read as if it were a hospital's

    @property
    def findings(self) -> tuple[Finding, Finding, Finding]:
        return self.hospital, self.intermediary, self.paper

    @property
    def repeatable(self) -> bool:
        """Whether a second audit gives the same figures: not with noise of the system."""
        return self.settings.experiment.privacy.reproducible

    def to_dict(self) -> dict[str, Any]:
        """The content of the JSON output."""
        experiment = self.settings.experiment.model_dump(mode="json", exclude_none=True)
        tree = asdict(self) | {"repeatable": self.repeatable}
        return tree | {"settings": tree["settings"] | {"experiment": experiment}}


def audit(settings: AuditSettings | None = None, *, on_run: OnRun | None = None) -> Audit:
    """Trains `runs` federations of each kind and compares the shown with the claimed ε."""
    settings = settings or AuditSettings()
    with threads(1):  # small networks run best on one
        federations = AuditFederations(settings.experiment, settings.rounds, settings.hospitals)
        scores, claimed = federations.observe(settings.runs, on_run)
    whole, part = (
        lower_bound(scores[sent], scores[0], SCORES, settings.confidence) for sent in (federations.parts, 1)
    )

    def finding(claim: str, canary: Unit, epsilon: float, bound: Bound) -> Finding:
        mu = gaussian_mu(epsilon, federations.delta)
        notices = detectable(mu, settings.runs, settings.confidence)
        verdict: Verdict = "broken" if bound.mu > mu else "holds" if notices else "untested"
        shown = gaussian_epsilon(bound.mu, federations.delta)
        return Finding(claim, canary, epsilon, mu, shown, bound, verdict, notices)

    return Audit(
        settings,
        federations.delta,
        federations.parts,
        len(federations.start),
        finding("ε of a hospital", "hospital", claimed.hospital, whole),
        finding("ε of an intermediary", "intermediary", claimed.intermediary, part),
        finding("paper's ε, for a hospital", "hospital", claimed.intermediary, whole),
    )

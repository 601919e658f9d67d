"""An empirical check of ε: plant a canary, train many small federations with and without it, and see how
well an observer tells them apart.

(ε, δ)-privacy says TPR ≤ e^ε·FPR + δ for every way of guessing, so one observer's rates bound ε from below:

- The federations are real: `Federation.rounds`, the door, a ledger, honest hospitals that train a small
  network. One hospital, the canary, does not train: it sends the most that the clip bound lets pass.
- For a hospital all its v intermediaries send C·u, u a random direction, or it does not answer. For an
  intermediary one of them sends C·u or nothing, the others nothing in either world: what is promised to one
  holds whatever the others send, and honest training there would only blur what is to be seen.
- The observer knows u and all that is public, and sees what was released, nothing from behind the door. It
  measures a release along u in standard deviations of its noise, weights it by 1/z of its event, and adds up
  all rounds: the log-likelihood ratio of both worlds, up to a factor and to what the other hospitals sent.
  The updates alone and the quantile bits alone are tried as well.
- Half of the federations choose score, direction and threshold; the other half are counted. Clopper–Pearson
  limits make the bound true with the stated confidence, whatever the distributions are.

Each federation has a seed of its own: its noise is independent, and an audit can be repeated. First model,
data and batches of the honest hospitals are the same in all of them, for an observer may know these.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from silodp.cohorts.cohort import Cohort, Examples, HospitalData
from silodp.engines.in_process import InProcess
from silodp.errors import InputError
from silodp.exchange import HospitalUpdate, RoundPlan
from silodp.experiment import Experiment
from silodp.federation import found_federation
from silodp.hospital import Hospital
from silodp.local_training import LocalTrainer
from silodp.mechanism import Release
from silodp.parameters import FlatModel
from silodp.privacy.accountants import Epsilon, spent
from silodp.privacy.events import Unit
from silodp.privacy.ledger import Ledger
from silodp.privacy.lower_bound import Bound, Numbers, lower_bound
from silodp.randomness import derive_seed, generator
from silodp.sketch import signs
from silodp.tasks import task_named

FEWEST_RUNS = 20
SCORES = ("model updates", "clip quantile", "both")
_CANARY, _CPU, _MEMORY = "canary", torch.device("cpu"), "/dev/shm"

OnRun = Callable[[int, int], None]  # (done, total), after every federation
Verdict = Literal["holds", "broken", "untested"]


@dataclass(frozen=True)
class AuditSettings:
    """The federation that is audited, and how often it is trained."""

    runs: int = 500  # of each kind: without the canary, with one intermediary of it, with all of it
    noise_multiplier: float = 3.0
    intermediaries: int = 3
    rounds: int = 4
    hospitals: int = 3  # the canary among them
    delta: float | None = None  # default: the paper's rule
    confidence: float = 0.95  # of each bound
    seed: int = 0
    clipping: Literal["quantile", "fixed"] = "quantile"

    def __post_init__(self) -> None:
        for name, fits, way_out in (
            ("runs", self.runs >= FEWEST_RUNS, f"so few show nothing; use {FEWEST_RUNS} or more"),
            ("noise_multiplier", 0 < self.noise_multiplier < math.inf, "choose a number above 0, such as 3"),
            ("intermediaries", self.intermediaries >= 1, "a hospital is at least one; use 1 or more"),
            ("rounds", self.rounds >= 1, "nothing would be released; use 1 or more"),
            ("hospitals", self.hospitals >= 2, "one of them is the canary; use 2 or more"),
            ("delta", self.delta is None or 0 < self.delta < 1, "choose one between 0 and 1, such as 0.01"),
            ("confidence", 0 < self.confidence < 1, "choose a chance between 0 and 1, such as 0.95"),
            ("seed", self.seed >= 0, "use 0 or more"),
            ("clipping", self.clipping in ("quantile", "fixed"), "ε covers quantile and fixed; choose one"),
        ):
            if not fits:
                raise InputError(f"{name} = {getattr(self, name)}: {way_out}")


@dataclass(frozen=True)
class Finding:
    """A claim beside what the observer showed."""

    claim: str  # in words
    canary: Unit  # what was planted
    claimed: float  # ε by the federations' own ledgers
    bound: Bound
    verdict: (
        Verdict  # broken: the bound exceeds the claim; holds: this observer did not break it, and could have
    )
    testable: bool  # whether so many federations could have broken it at all


@dataclass(frozen=True)
class Audit:
    """Three claims put to the test; ε for add-or-remove neighbours."""

    settings: AuditSettings
    delta: float
    parameters: int  # of the network that was trained
    hospital: Finding
    intermediary: Finding
    paper: Finding  # the intermediary's ε, read as if it were a hospital's

    @property
    def findings(self) -> tuple[Finding, Finding, Finding]:
        return self.hospital, self.intermediary, self.paper

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)


def audit(settings: AuditSettings | None = None, *, on_run: OnRun | None = None) -> Audit:
    """Trains `runs` federations of each kind and sets what they show beside what they claim."""
    settings = settings or AuditSettings()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small networks run best on one
    try:
        bench = _Bench(settings)
        scores, claimed = bench.observe(on_run)
    finally:
        torch.set_num_threads(threads)
    of_hospital, of_intermediary = (
        lower_bound(scores[sent], scores[0], SCORES, bench.delta, settings.confidence)
        for sent in (settings.intermediaries, 1)
    )
    return Audit(
        settings,
        bench.delta,
        len(bench.start),
        _finding("ε of a hospital", "hospital", claimed.hospital, of_hospital),
        _finding("ε of an intermediary", "intermediary", claimed.intermediary, of_intermediary),
        _finding("paper's ε, for a hospital", "hospital", claimed.intermediary, of_hospital),
    )


def _finding(claim: str, canary: Unit, claimed: float, bound: Bound) -> Finding:
    verdict: Verdict = "holds" if bound.most > claimed else "untested"
    if bound.epsilon > claimed:
        verdict = "broken"
    return Finding(claim, canary, claimed, bound, verdict, bound.most > claimed)


class WithCanary(InProcess):
    """The default engine, and beside it a hospital of which `sent` intermediaries send C·u (0: no answer)."""

    def __init__(self, hospitals: Sequence[Hospital], direction: Tensor) -> None:
        super().__init__(hospitals)
        self.direction = direction
        self.sent = 0

    def train(self, plan: RoundPlan) -> Iterator[HospitalUpdate]:
        honest = tuple(name for name in plan.participants if name != _CANARY)
        yield from super().train(replace(plan, participants=honest))
        if self.sent:
            assert plan.clip_bound is not None, "both rules fix C before the round"
            # Every norm is C, so every bit says «norm ≤ C».
            yield HospitalUpdate(_CANARY, self.sent * plan.clip_bound * self.direction, self.sent / 2, 0)


class _Bench:
    """What all federations of an audit share: the hospitals, the first model, the canary's direction."""

    def __init__(self, settings: AuditSettings) -> None:
        self.settings = settings
        experiment = Experiment(
            name="audit",
            rounds=settings.rounds,
            diagnostics=False,
            cohort={"kind": "custom"},
            model={"kind": "custom"},
            intermediaries={"rule": "fixed", "count": settings.intermediaries},
            clipping={"rule": settings.clipping, "bound": 0.03},  # about what one step of Adam moves
            privacy={"noise_multiplier": settings.noise_multiplier, "delta": settings.delta},
        ).resolve(settings.hospitals, threads=1)
        assert experiment.privacy.delta is not None, "the experiment is resolved"
        self.delta = experiment.privacy.delta
        model = FlatModel(_network(settings.seed), _CPU)
        self.start = model.values.clone()
        trainer = LocalTrainer(model, task_named("segmentation"), experiment.local)
        direction = torch.randn(len(model), generator=generator(_CPU, settings.seed, "canary"))
        cohort = _cohort(settings, experiment.intermediaries.min_samples)
        self.honest = [
            Hospital(data, trainer, signs(len(model), _CPU), settings.seed) for data in cohort.hospitals[1:]
        ]
        self.engine = WithCanary(self.honest, direction / direction.norm())
        self.federation = found_federation(experiment, cohort, self.engine)

    def observe(self, on_run: OnRun | None) -> tuple[dict[int, Numbers], Epsilon]:
        """Scores by how many intermediaries of the canary sent something, and the largest ε claimed."""
        runs, kinds = self.settings.runs, sorted({0, 1, self.settings.intermediaries})
        scores = {sent: np.zeros((runs, len(SCORES))) for sent in kinds}
        claims: list[Epsilon] = []
        # A round waits until its ledger is on disk; these are kept for nobody, so memory is disk enough.
        disk = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="silodp-audit-", dir=disk) as folder:
            for number in range(runs):
                for sent in kinds:
                    seed = derive_seed(self.settings.seed, "audit", sent, number)
                    scores[sent][number], claim = self._run(seed, sent, Path(folder) / "ledger.jsonl")
                    claims.append(claim)
                    if on_run is not None:
                        on_run(len(claims), runs * len(kinds))
        return scores, max(claims, key=lambda claim: claim.hospital)

    def _run(self, seed: int, sent: int, path: Path) -> tuple[Numbers, Epsilon]:
        """One federation from its first round to its last: the observer's scores, and ε by its own ledger."""
        self.engine.sent = sent
        self.engine.restore({hospital.name: [] for hospital in self.honest})
        experiment = self.federation.experiment.model_copy(update={"seed": seed})
        federation = replace(self.federation, experiment=experiment)
        path.unlink(missing_ok=True)
        ledger = Ledger(path)
        scores = np.zeros(len(SCORES))
        for done in federation.rounds(federation.first_state(self.start.clone()), ledger):
            for name in done.release.absent.keys() - {_CANARY}:
                raise InputError(
                    f"noise_multiplier = {self.settings.noise_multiplier:g}: {name} could not train in round "
                    f"{done.plan.round} ({done.release.absent[name]}); choose less noise"
                )
            scores += _evidence(done.release, self.engine.direction)
        return scores, spent(ledger.events, self.delta)


def _evidence(release: Release, direction: Tensor) -> Numbers:
    """What the published numbers of one round say for the canary, by each of SCORES."""
    events = {event.released: event for event in release.events}
    update = float(release.mean.double() @ direction.double()) / release.noise_std
    both, bits = update / events["model update"].noise_multiplier, 0.0
    if release.fraction_below is not None:
        # The standard deviation of b̃ is z_b/2 over the denominator, as σ is z_u·C over it.
        multiplier = events["clip quantile"].noise_multiplier
        scale = release.noise_std / events["model update"].noise_multiplier / release.clip_bound
        bits = (release.fraction_below - 0.5) / (multiplier / 2 * scale)
        both += bits / multiplier
    return np.array([update, bits, both])


def _network(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "model"))
        return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 1, 5, padding=2))


def _cohort(settings: AuditSettings, images: int) -> Cohort:
    """Noisy pictures with a bright square, and its mask: so many an intermediary. The canary comes first."""
    chance, hospitals = generator(_CPU, settings.seed, "cohort"), []
    for number in range(settings.hospitals):
        masks = torch.zeros(images * settings.intermediaries, 1, 16, 16)
        for mask in masks:
            top, left = torch.randint(0, 10, (2,), generator=chance).tolist()
            mask[0, top : top + 6, left : left + 6] = 1
        examples = Examples(masks + 0.5 * torch.randn(masks.shape, generator=chance), masks)
        name = f"hospital-{number}" if number else _CANARY
        hospitals.append(HospitalData(name, examples, examples[:1], examples[:1]))
    return Cohort("audit", tuple(hospitals)).check()

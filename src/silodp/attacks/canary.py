"""Small real federations with a planted hospital, the canary, and the scores of an observer.

The canary does not train: it sends the most that the clip bound lets pass. For a hospital all its v
intermediaries send C·u, u a random direction, or it does not answer. For an intermediary one of them sends
C·u or nothing, the others nothing in either case: its guarantee holds whatever the others send.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from silodp.cohorts.cohort import Cohort, Examples, HospitalData
from silodp.engines.in_process import InProcess
from silodp.errors import InputError
from silodp.experiment import Experiment
from silodp.federation import Round
from silodp.hospital import Hospital
from silodp.local.clip import ROUNDING
from silodp.mechanism import Mechanism
from silodp.messages import Contribution, RoundPlan
from silodp.noise.streams import derive_seed, generator
from silodp.privacy.accountants import Epsilon, spent
from silodp.privacy.ledger import Ledger
from silodp.privacy.lower_bound import Numbers
from silodp.runs.build import build

SCORES = ("both", "model updates", "clip quantile")
_CANARY, _CPU, _MEMORY = "canary", torch.device("cpu"), "/dev/shm"

OnRun = Callable[[int, int], None]  # (done, total), after every federation


class WithCanary(InProcess):
    """The default engine and a canary, of which `sent` intermediaries send C·u (0: no answer).

    `known` is the sum of the honest hospitals' updates of the round along u, and the sum of their bits. An
    observer who knows their data computes both from the released model.
    """

    def __init__(self, hospitals: Sequence[Hospital], mechanism: Mechanism, direction: Tensor) -> None:
        super().__init__(hospitals)
        self.mechanism = mechanism
        self.direction = direction
        self.sent = 0
        self.known = 0.0, 0.0

    def train(
        self, plan: RoundPlan, asked: Sequence[str], *, diagnose: bool = False
    ) -> Iterator[Contribution]:
        along, bits = self.known = 0.0, 0.0
        for answer in super().train(plan, [name for name in asked if name != _CANARY], diagnose=diagnose):
            clipped, own_bits = self.mechanism.opened(plan, answer.numbers)
            along, bits = self.known = along + project(clipped, self.direction), bits + own_bits
            yield answer
        if self.sent:
            assert plan.clip_bound is not None, "both rules fix C before the round"
            # Every norm is C but for rounding, so every bit says «norm ≤ C».
            longest = plan.clip_bound * ROUNDING * self.direction
            updates = (longest.clone() for _ in range(self.sent))
            numbers, _ = self.mechanism.encode(plan, updates)
            yield Contribution(_CANARY, plan.round, plan.digest, numbers)


class AuditFederations:
    """The setting that all federations of an audit share: hospitals, first model, direction of the canary.

    Noise, clipping, rule for v, server and seed are the experiment's; data, network and local training are
    small replacements. Where the budget sets the noise, it does so for the rounds of the audit.

    Attributes:
        delta: of the claims.
        parts: v.
        start: the first model, a flat vector.
    """

    def __init__(self, experiment: Experiment, rounds: int, hospitals: int) -> None:
        budget = experiment.budget if experiment.budget and experiment.budget.sets_noise else None
        plan = Experiment(
            name="audit",
            threads=1,
            rounds=rounds,
            seed=experiment.seed,
            diagnostics=False,
            cohort={"kind": "custom"},
            model={"kind": "custom"},
            intermediaries=experiment.intermediaries,
            clipping=experiment.clipping,
            privacy=experiment.privacy,
            budget=budget,
            server=experiment.server,
        )
        network = _network(plan.seed)
        size = sum(parameter.numel() for parameter in network.parameters())
        split = plan.intermediaries
        self.parts = split.first_count(plan.privacy.noise_multiplier, size, hospitals)
        direction = torch.randn(size, generator=generator(_CPU, plan.seed, "canary"))
        made = build(
            plan,
            cohort=_cohort(plan.seed, hospitals, self.parts * split.min_samples),
            model=network,
            engine=lambda known: WithCanary(known[1:], known[0].mechanism, direction / direction.norm()),
            device="cpu",
        )
        assert isinstance(made.engine, WithCanary)
        self.experiment, self.engine, self.federation = made.experiment, made.engine, made.federation
        self.delta, self.start = made.experiment.delta, made.model.values.clone()

    def observe(self, runs: int, on_run: OnRun | None = None) -> tuple[dict[int, Numbers], Epsilon]:
        """Scores by number of intermediaries of the canary that send, and the largest claimed ε."""
        kinds = sorted({0, 1, self.parts})
        scores = {sent: np.zeros((runs, len(SCORES))) for sent in kinds}
        claims: list[Epsilon] = []
        # A round waits until its ledger is on disk; these ledgers are not kept, so memory is enough.
        disk = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="silodp-audit-", dir=disk) as folder:
            for number in range(runs):
                for sent in kinds:
                    seed = derive_seed(self.experiment.seed, "audit", sent, number)
                    scores[sent][number], claim = self._run(seed, sent, Path(folder) / "ledger.jsonl")
                    claims.append(claim)
                    if on_run is not None:
                        on_run(len(claims), runs * len(kinds))
        return scores, max(claims, key=lambda claim: claim.hospital)

    def _run(self, seed: int, sent: int, path: Path) -> tuple[Numbers, Epsilon]:
        """Trains one federation; the observer's scores, and ε by the ledger."""
        self.engine.sent = sent
        self.engine.load_states(path.parent, 0)
        experiment = self.experiment.model_copy(update={"seed": seed})
        federation = replace(self.federation, experiment=experiment)
        path.unlink(missing_ok=True)
        ledger = Ledger(path)
        scores = np.zeros(len(SCORES))
        for done in federation.rounds(federation.first_state(self.start.clone()), ledger):
            for name in done.release.absent.keys() - {_CANARY}:
                raise InputError(
                    f"privacy.noise_multiplier = {experiment.privacy.noise_multiplier:g}: {name} could not "
                    f"train in round {done.plan.round} ({done.release.absent[name]}); choose less noise, or "
                    "a smaller clipping.bound"
                )
            scores += self._evidence(done)
        return scores, spent(ledger.events, self.delta)

    def _evidence(self, done: Round) -> Numbers:
        """The evidence of one round for the canary, by each of SCORES.

        A release moves by a number of intermediaries' updates, with standard deviation z of its event;
        over z² this is the log-likelihood ratio of the two cases, up to a factor that is equal in all rounds.
        """
        release, plan = done.release, done.plan
        along, known_bits = self.engine.known
        denominator = self.federation.mechanism.expected_hospitals * plan.intermediaries
        multipliers = {event.released: event.noise_multiplier for event in release.events}
        moved = (project(release.mean, self.engine.direction) * denominator - along) / release.clip_bound
        update, bits = moved / multipliers["model update"] ** 2, 0.0
        if release.fraction_below is not None:
            moved = ((release.fraction_below - 0.5) * denominator - known_bits) / 0.5  # one bit moves by ½
            bits = moved / multipliers["clip quantile"] ** 2
        return np.array([update + bits, update, bits])


def project(vector: Tensor, direction: Tensor) -> float:
    """The projection of `vector` on a unit vector."""
    return float(vector.double() @ direction.double())


def _network(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "model"))
        return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 1, 5, padding=2))


def _cohort(seed: int, count: int, images: int) -> Cohort:
    """Noisy images with a bright square and its mask, `images` in each hospital. The canary comes first."""
    rng, hospitals = generator(_CPU, seed, "cohort"), []
    for number in range(count):
        masks = torch.zeros(images, 1, 16, 16)
        for mask in masks:
            top, left = torch.randint(0, 10, (2,), generator=rng).tolist()
            mask[0, top : top + 6, left : left + 6] = 1
        examples = Examples(masks + 0.5 * torch.randn(masks.shape, generator=rng), masks)
        name = f"hospital-{number}" if number else _CANARY
        hospitals.append(HospitalData(name, examples, examples[:1], examples[:1]))
    return Cohort("audit", tuple(hospitals)).check()

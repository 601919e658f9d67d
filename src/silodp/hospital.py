"""A hospital: its data, its v intermediaries, and local training that ends in one clipped sum.

Of Eq. 1 this is Δ_ij = θ_ij − θ, where intermediary j of hospital i has trained θ_ij from θ, and the sum over
j of what `Mechanism.encode` has clipped.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from silodp.cohorts.cohort import HospitalData
from silodp.errors import InputError
from silodp.local.clip import norm
from silodp.local.jobs import Executor, Job, Sequential, draw_job
from silodp.local.sketch import sketch
from silodp.local.splitting import split, split_sizes
from silodp.local.state import (
    OptimizerState,
    load_secret,
    load_states,
    save_secret,
    save_states,
    state_folder,
)
from silodp.local.steps import planned_steps
from silodp.local.trainer import LocalTrainer, average_states
from silodp.mechanism import Mechanism
from silodp.messages import Contribution, Diagnostics, RoundPlan
from silodp.noise.streams import derive_seed, generator, noise_of
from silodp.settings import EvaluationBatch
from silodp.tasks.scores import Scores, score

_CPU = torch.device("cpu")

log = logging.getLogger("silodp")


@dataclass
class _TrainingLog:
    """What training a hospital's intermediaries yields beside the updates; all of it is un-noised.

    Attributes:
        losses: (k,) mean losses, one tensor for each k intermediaries that were trained together.
        sketches: (k, …) sketches of their updates, where diagnostics were asked for.
        errors: what the network raised, at most one for each intermediary.
    """

    losses: list[Tensor] = field(default_factory=list)
    sketches: list[Tensor] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def diagnostics(self, norms: Tensor) -> Diagnostics:
        """Of the (v,) float64 norms before clipping, NaN or infinite where an intermediary is lost."""
        lost, sketches = ~torch.isfinite(norms), torch.cat(self.sketches)
        if lost.any():
            norms, sketches[lost] = norms.masked_fill(lost, 0.0), 0.0
        sketches *= norms.clamp(min=1e-30).reciprocal().float()[:, None]
        return Diagnostics(norms, sketches.half(), torch.cat(self.losses).nanmean())


class Hospital:
    """One participant: its data, its optimizer states, and its answers to plans.

    It sees plans and its own data, and nothing of the other hospitals.
    """

    def __init__(
        self,
        data: HospitalData,
        trainer: LocalTrainer,
        mechanism: Mechanism,
        seed: int,
        noise_seed: int | None = None,
        executor: Executor | None = None,
    ) -> None:
        """Sets up a hospital in this process.

        Args:
            data: its training, validation and test images; copied to the trainer's device.
            trainer: trains one intermediary; shared by the hospitals of a process.
            mechanism: the server's.
            seed: of its split, batches and augmentation.
            noise_seed: of its share of the noise, where it adds one; default: a secret of its own.
            executor: runs its intermediaries' training; default: one after the other.
        """
        self.name = data.name
        self.parts = {part: examples.to(trainer.device) for part, examples in data.parts.items()}
        self.states: list[OptimizerState] = []  # one an intermediary, where local.state = kept
        self._trainer = trainer
        self._executor: Executor = executor or Sequential(trainer)
        self.mechanism = mechanism
        self._seed = seed
        self._noise_seed = noise_seed
        self._secret = secrets.token_bytes(32)
        self._split: list[Tensor] = []  # image indices of each intermediary, for the last v
        self._round = 0  # the last round answered, where answering changed the states
        self._measured: tuple[RoundPlan, list[Tensor], _TrainingLog] | None = None  # for a plan without C
        # The last answer, where answering changed the states.
        self._answered: tuple[Contribution, Diagnostics | None] | None = None

    def answer(self, plan: RoundPlan, *, diagnose: bool = False) -> tuple[Contribution, Diagnostics | None]:
        """Splits the data, trains every intermediary from θ, and adds up the clipped differences.

        Guarantee: leaving out one intermediary moves the contribution by at most the mechanism's
        sensitivity; the same plan answered twice gives the same contribution, and states advance once.

        Args:
            plan: of a round not yet answered, or the very plan that was answered last.
            diagnose: also return un-noised statistics, which must not leave the process.

        Raises:
            Exception: the last failure, where every intermediary failed: then the hospital is absent.
        """
        if self._answered is not None and self._answered[0].plan == plan.digest:
            return self._answered[0], self._answered[1] if diagnose else None
        self._check_is_next(plan)
        trained = _TrainingLog()
        updates: Iterable[Tensor] = self._updates(plan, trained, diagnose)
        if self._measured and self._measured[0].digest == replace(plan, clip_bound=None).digest:
            _, updates, trained = self._measured
        self._measured = None
        noise = noise_of(self._noise_seed, plan.round, self._secret)
        numbers, norms = self.mechanism.encode(plan, updates, self.name, noise)
        lost = ~torch.isfinite(norms)
        if self.states:
            for number in lost.nonzero().flatten().tolist():  # with NaN in its moments it would fail for ever
                self.states[number] = self._trainer.fresh_state()
        if len(trained.errors) == plan.intermediaries:
            raise trained.errors[-1]  # nothing of this hospital counts: it is absent
        if lost.any():
            error = trained.errors[-1] if trained.errors else None
            why = f" ({type(error).__name__}: {error})" if error else ""
            log.warning(
                "round %d: %s: %d of %d intermediaries failed or gave NaN or infinity and count as nothing%s",
                plan.round, self.name, int(lost.sum()), plan.intermediaries, why,
            )  # fmt: skip
        measured = trained.diagnostics(norms) if diagnose else None
        answer = Contribution(self.name, plan.round, plan.digest, numbers), measured
        self._answered, self._round = (answer, plan.round) if self._is_stateful else (None, 0)
        return answer

    def measure_norms(self, plan: RoundPlan) -> Tensor:
        """(v,) float64 norms of the updates, 0 where one is lost; keeps the updates for `answer`."""
        if self._measured is None or self._measured[0].digest != plan.digest:
            self._check_is_next(plan)
            trained = _TrainingLog()
            updates = [update.clone() for update in self._updates(plan, trained, diagnose=True)]
            self._measured = plan, updates, trained
        _, updates, trained = self._measured
        if len(trained.errors) == plan.intermediaries:
            return torch.empty(0, dtype=torch.float64, device=plan.parameters.device)
        return torch.cat([norm(update).view(-1) for update in updates]).nan_to_num_(0.0, 0.0, 0.0)

    @property
    def _is_stateful(self) -> bool:
        """Whether answering again would differ: optimizer states, or a share of noise on a sum."""
        return bool(self.states) or self.mechanism.shares > 0

    def _check_is_next(self, plan: RoundPlan) -> None:
        """A round is answered once; another plan for it only after `load_states` has gone back before it."""
        if plan.round <= self._round:
            raise InputError(
                f"round {plan.round}: {self.name} has answered round {self._round}, by another plan or later"
            )

    def _updates(self, plan: RoundPlan, trained: _TrainingLog, diagnose: bool) -> Iterator[Tensor]:
        """Yields Δ_ij (d,) of every intermediary, or (k, d) of those that were trained together.

        All are in the same memory, which the caller may overwrite: keep none without a copy. They are in the
        plan's scale, so that clipping comes last. Nothing is trained before the first is asked for.

        Args:
            plan: whose θ the training starts from.
            trained: appended to as the training goes on.
            diagnose: whether to sketch each update.
        """
        settings = self._trainer.settings
        sizes = split_sizes(len(self.parts["train"]), plan.intermediaries)
        steps = [planned_steps(size, settings) for size in sizes]
        number = 0
        for outcome in self._executor.run(self._jobs(plan, steps)):
            update = outcome.values.sub_(plan.parameters)  # Δ_ij, in place
            update = plan.update_map.encode(update, settings.reach(steps[number]))
            trained.losses.append(outcome.loss.view(-1))
            if outcome.error is not None:
                trained.errors.append(outcome.error)
            if diagnose:
                trained.sketches.append(sketch(update.view(-1, len(plan.parameters))))
            number += outcome.loss.numel()
            yield update
        assert number == plan.intermediaries, "every job has an outcome"

    def _jobs(self, plan: RoundPlan, steps: Sequence[int]) -> Iterator[Job]:
        """Yields one training job for each intermediary, made when the job before is done."""
        trainer, examples = self._trainer, self.parts["train"]
        public_sizes = examples.patients is None or plan.intermediaries == 1
        states = self._states_for(plan.intermediaries)
        for number, part in enumerate(self._parts_for(plan.intermediaries)):
            rng = self._generator(trainer.device, "train", plan.round, number)
            state = states[number] if states else None
            yield draw_job(
                plan.parameters, examples, state, trainer.settings, rng, steps[number], public_sizes, part
            )

    def _parts_for(self, count: int) -> list[Tensor]:
        """Image indices of each of `count` intermediaries, on the trainer's device.

        The split depends on v alone: an intermediary must be the same images in every round for its ε to be
        anybody's. Whole patients make parts of unequal sizes; each takes the steps of an equal part, which
        are public.
        """
        if len(self._split) != count:
            examples = self.parts["train"]
            rng = self._generator(_CPU, "split", count)
            parts = split(len(examples), count, rng, examples.patients)
            self._split = [part.to(self._trainer.device) for part in parts]
        return self._split

    def save_states(self, folder: Path, round_: int, keep: int | None = None) -> None:
        """Saves its optimizer states and noise secret, as they are after `round_`.

        Args:
            folder: holds the hospitals' states; this one gets a folder of its own in it.
            round_: the round that was answered last.
            keep: which of the rounds saved before stays; default: the last.
        """
        place = state_folder(folder, self.name)
        if self.mechanism.shares and self._noise_seed is None:
            save_secret(place, self._secret)
        if round_ and self._trainer.settings.keeps_state:
            save_states(place, round_, self.states, keep)

    def load_states(self, folder: Path, round_: int) -> None:
        """Goes back to what it saved after `round_`; 0: to before its first round."""
        self._measured = self._answered = None
        self._round, self.states = round_, []
        place = state_folder(folder, self.name)
        if self.mechanism.shares and self._noise_seed is None:
            self._secret = load_secret(place) or self._secret
        if round_ and self._trainer.settings.keeps_state:
            self.states = load_states(place, round_, self._trainer.fresh_state(), self._trainer.device)

    def _states_for(self, count: int) -> list[OptimizerState]:
        """The kept optimizer states, one an intermediary; where v has changed, their mean for each."""
        if self._trainer.settings.state == "fresh":
            return []
        if not self.states:
            self.states = [self._trainer.fresh_state() for _ in range(count)]
        elif len(self.states) != count:
            self.states = average_states(self.states, count)
        return self.states

    def _generator(self, device: torch.device, *purpose: str | int) -> torch.Generator:
        return generator(device, self._seed, "hospital", self.name, *purpose)

    def evaluate(
        self, parameters: Tensor, part: str, *, thorough: bool, batch: EvaluationBatch | None = None
    ) -> Scores:
        """Scores (d,) parameters on one part of the hospital's data.

        Args:
            parameters: of the model, on the trainer's device.
            part: "train", "validation" or "test".
            thorough: all metrics with confidence intervals, instead of the quick ones.
            batch: what the network sees at a time; default: `evaluation.batch`.
        """
        task, examples = self._trainer.task, self.parts[part]
        logits, targets = self._trainer.logits(parameters, examples, batch).cpu(), examples.targets.cpu()
        if thorough:
            seed = derive_seed(self._seed, "bootstrap", self.name)
            return score(task, logits, targets, examples.patients, seed)
        return Scores(task.quick_metrics(logits, targets), len(examples), None)

"""Local steps on a GPU, recorded once as a CUDA graph and replayed for every batch of every intermediary.

Launching a small network's kernels one by one takes longer than running them. A graph launches them all at
once, for several intermediaries in parallel lanes, each with its own copy of the network.

Guarantee: lanes share nothing, and each runs the same kernels on the same shapes as if it were alone, so an
intermediary's result does not depend on the others. Networks that draw random numbers (dropout) are not
recorded.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice

import torch
from torch import Tensor

from silodp.cohorts.cohort import Examples
from silodp.local.jobs import Job, Outcome, Sequential
from silodp.local.parameters import FlatModel
from silodp.local.trainer import LocalTrainer

log = logging.getLogger("silodp")

LANES = 4
"""Intermediaries in parallel: more gain little (docs/performance.md), and each takes memory."""

_WARM_UP = 2
"""Steps before recording, in which libraries choose kernels and allocate memory."""


class Captured:
    """Runs jobs with equal batch sizes in parallel, as replayed steps.

    Falls back to `Sequential` for networks that cannot be recorded: those that branch on values in Python or
    draw random numbers. Memory: network, gradients, optimizer state and activations once a lane.
    """

    def __init__(self, trainer: LocalTrainer, lanes: int = LANES) -> None:
        """Sets up without recording anything yet.

        Args:
            trainer: on a GPU.
            lanes: how many intermediaries train in parallel.
        """
        self._trainer, self._most = trainer, lanes
        self._alone = Sequential(trainer)
        self._lanes = [_Lane(trainer)]
        self._steps: dict[tuple[int, int, bool], _Step | None] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yields outcomes in the order of the jobs, of which it takes as many together as there are lanes.

        Each outcome's values are its lane's own parameters, until the next group begins.
        """
        for _, alike in groupby(jobs, _batch_sizes):
            while group := list(islice(alike, self._most)):
                steps = self._recorded(group)
                if steps is None:
                    yield from self._alone.run(group)
                    continue
                self._train(group, steps)
                for lane in self._lanes[: len(group)]:
                    yield Outcome(lane.trainer.model.values, lane.total / len(steps))

    def _train(self, group: list[Job], steps: list[_Step]) -> None:
        """Trains a group, one job a lane; the CPU enqueues copies and replays, and waits for nothing."""
        lanes = self._lanes[: len(group)]
        for lane, job in zip(lanes, group, strict=True):
            lane.begin(job)
        for number, step in enumerate(steps):
            for job, batch in zip(group, step.batches, strict=True):
                batch.fill(job, number)
            step.graph.replay()
        for lane, job in zip(lanes, group, strict=True):
            lane.end(job)

    def _recorded(self, group: list[Job]) -> list[_Step] | None:
        """The recorded step of each batch; None where the network cannot be recorded."""
        steps = []
        for size in map(len, group[0].batches):
            key = len(group), size, bool(group[0].moves)
            if key not in self._steps:
                self._steps[key] = self._record(*key, group[0].examples)
            steps.append(self._steps[key])
        return None if None in steps else steps  # type: ignore[return-value]

    def _record(self, width: int, size: int, moves: bool, like: Examples) -> _Step | None:
        """Records the step of `width` lanes on batches of `size`; overwrites what the lanes hold.

        Args:
            width: number of lanes.
            size: images in a batch.
            moves: whether there is augmentation.
            like: some images and targets, for their shapes and dtypes.

        Returns:
            None where the network branches on values, draws random numbers, or memory is short.
        """
        while len(self._lanes) < width:
            model = FlatModel(copy.deepcopy(self._trainer.model.module), self._trainer.device)
            self._lanes.append(_Lane(replace(self._trainer, model=model)))
        lanes = self._lanes[:width]
        batches = [_Batch.empty(size, like, moves) for _ in lanes]
        graph, beside = torch.cuda.CUDAGraph(), _stream()
        here = torch.cuda.current_stream()
        try:
            before = torch.cuda.get_rng_state()
            beside.wait_stream(here)
            with torch.cuda.stream(beside):
                for _ in range(_WARM_UP):
                    _step_in_parallel(lanes, batches)
            here.wait_stream(beside)
            torch.cuda.synchronize()
            if not torch.equal(before, torch.cuda.get_rng_state()):
                return None  # the network draws: each job seeds that, and a GPU has one generator
            with torch.cuda.graph(graph, pool=self._pool, stream=beside):
                _step_in_parallel(lanes, batches)
        except Exception as error:  # PyTorch and users' networks each raise their own types
            torch.cuda.synchronize()
            _restore_generator()
            if isinstance(error, torch.cuda.OutOfMemoryError) and width > 1:
                self._most = 1  # from the next on
                del self._lanes[1:]
            else:
                log.info("local steps cannot be recorded as a CUDA graph and run more slowly: %s", error)
            return None
        return _Step(graph, batches)


class _Lane:
    """Resident memory of one intermediary: network, optimizer state, and the sum of its losses.

    A graph replays on the addresses that it was recorded with, so a job's θ and state are copied in and out.
    """

    def __init__(self, trainer: LocalTrainer) -> None:
        self.trainer = trainer
        self.state = trainer.working_state()
        self.total = torch.zeros((), device=trainer.device)
        self.stream = _stream()

    def begin(self, job: Job) -> None:
        """Copies in θ, and the job's optimizer state or zeros."""
        self.trainer.begin(job)
        self.trainer.working_state()
        self.total.zero_()
        if job.state is not None:
            _copy(job.state, self.state)

    def step(self, batch: _Batch) -> None:
        """One local step, which adds to the sum of losses."""
        self.total += self.trainer.step(batch.examples, batch.moves, self.state)

    def end(self, job: Job) -> None:
        """Copies the optimizer's state out, into the job's own tensors; θ stays in the lane."""
        if job.state is not None:
            _copy(self.state, job.state)


@dataclass(frozen=True)
class _Batch:
    """The memory from which a recorded step reads its batch."""

    examples: Examples
    moves: Tensor | None

    @classmethod
    def empty(cls, size: int, like: Examples, moves: bool) -> _Batch:
        """Zeros for `size` images and targets of the shapes and dtypes of `like`."""
        images = like.images.new_zeros(size, *like.images.shape[1:])
        targets = like.targets.new_zeros(size, *like.targets.shape[1:])
        return cls(Examples(images, targets), torch.zeros(size, 4, device=images.device) if moves else None)

    def fill(self, job: Job, step: int) -> None:
        """Copies the job's batch and augmentation of this step in, on the current stream."""
        places = job.batches[step]
        torch.index_select(job.examples.images, 0, places, out=self.examples.images)
        torch.index_select(job.examples.targets, 0, places, out=self.examples.targets)
        if self.moves is not None:
            self.moves.copy_(job.moves[step])


@dataclass(frozen=True)
class _Step:
    """A recorded step of some lanes, and the memory from which it reads their batches."""

    graph: torch.cuda.CUDAGraph
    batches: list[_Batch]


def _step_in_parallel(lanes: list[_Lane], batches: list[_Batch]) -> None:
    """One step of every lane, each on its own stream: after the current one's work, and before its next."""
    here = torch.cuda.current_stream()
    for lane, batch in zip(lanes, batches, strict=True):
        lane.trainer.model.module.train()
        lane.stream.wait_stream(here)
        with torch.cuda.stream(lane.stream):
            lane.step(batch)
    for lane in lanes:
        here.wait_stream(lane.stream)


def _restore_generator() -> None:
    """After a failed recording PyTorch 2.11 leaves the GPU's generator in capture mode; resets it."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(torch.Generator("cuda").graphsafe_get_state())


def _stream() -> torch.cuda.Stream:
    """A new stream on the current GPU; PyTorch's constructor has no types."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def _batch_sizes(job: Job) -> tuple[int, ...]:
    """What jobs must have in common to run in parallel: each size of a batch has a graph of its own."""
    return tuple(map(len, job.batches))


def _copy(source: dict[str, Tensor], into: dict[str, Tensor]) -> None:
    """Overwrites the tensors of `into` with those of the same names; their addresses stay."""
    for name, tensor in into.items():
        tensor.copy_(source[name])

"""The limit: the optimizer steps of a round in an ordinary PyTorch loop, and nothing else.

Parameters and Adam's moments are never reset, no difference is computed, clipped or added, and batches are
views of existing tensors: a framework that trains the same steps one by one cannot be faster. On a GPU the
limit is the step captured in a CUDA graph.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from silodp.bench.workloads import LEARNING_RATE, Batch, Workload

TRIES = 5


class BareLoop:
    """Some of a round's intermediaries, one after the other, on one network.

    On a GPU it computes in bfloat16 where autocast allows, as silodp does.
    """

    def __init__(
        self,
        workload: Workload,
        device: str = "cpu",
        channels_last: bool = True,
        part: int = 0,
        parts: int = 1,
        captured: bool = False,
    ) -> None:
        """Prepares the loop.

        Args:
            channels_last: the memory format of images and network; see `try_formats`.
            part: which share of the intermediaries to train, of `parts` processes that divide them.
            captured: replay the step as a CUDA graph.
        """
        self._device = torch.device(device)
        every = [one for number in range(workload.hospitals) for one in workload.divided(number)]
        batches = [batch for one in every[part::parts] for batch in one]
        self._steps = _Steps(workload, batches, self._device, channels_last, captured)

    @property
    def steps(self) -> int:
        """Steps of a round."""
        return len(self._steps.batches)

    def round(self) -> None:
        """Trains a round and waits for the device."""
        for images, targets in self._steps.batches:
            self._steps.step(images, targets)
        _wait(self._device)


class _Steps:
    """Steps of one network on prepared batches."""

    def __init__(
        self,
        workload: Workload,
        batches: Sequence[Batch],
        device: torch.device,
        channels_last: bool,
        captured: bool,
    ) -> None:
        memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self._device, self._loss = device, workload.loss
        self._network: nn.Module = workload.make_network().to(device)
        self._network.to(memory_format=memory_format)  # type: ignore[call-overload]
        self.batches = [
            (images.to(device).contiguous(memory_format=memory_format), targets.to(device))
            for images, targets in batches
        ]
        self._optimizer = torch.optim.Adam(
            self._network.parameters(), LEARNING_RATE, amsgrad=True, fused=True, capturable=captured
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        if captured:
            self._capture()

    def step(self, images: Tensor, targets: Tensor) -> None:
        if self._graph is None:
            self._train(images, targets)
        else:
            self._images.copy_(images)
            self._targets.copy_(targets)
            self._graph.replay()

    def _train(self, images: Tensor, targets: Tensor) -> None:
        self._optimizer.zero_grad()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            logits = self._network(images).float()
        self._loss(logits, targets).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def _capture(self) -> None:
        """Warms up on a side stream, then captures, as PyTorch's notes on CUDA graphs say."""
        self._images, self._targets = (one.clone() for one in self.batches[0])
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._train(self._images, self._targets)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self._optimizer.zero_grad()
        with torch.cuda.graph(graph):
            self._train(self._images, self._targets)
        self._graph = graph


def try_formats(workload: Workload, device: str = "cpu") -> tuple[bool, float]:
    """Whether channels-last is the faster memory format here, and the seconds of a step in the faster one.

    Measured on one thread, with the formats in turn, before the comparison starts.
    """
    place, threads = torch.device(device), torch.get_num_threads()
    torch.set_num_threads(1)
    batch = workload.with_steps(1).divided(0)[0][:1]
    formats = {last: _Steps(workload, batch, place, last, captured=False) for last in (True, False)}
    best = dict.fromkeys(formats, math.inf)
    for _ in range(TRIES):
        for last, one in formats.items():
            _wait(place)
            started = time.perf_counter()
            one.step(*one.batches[0])
            _wait(place)
            best[last] = min(best[last], time.perf_counter() - started)
    torch.set_num_threads(threads)
    fastest = min(best, key=best.__getitem__)
    return fastest, best[fastest]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()

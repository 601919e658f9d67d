"""The limit: the optimizer steps of a round in an ordinary PyTorch loop, and nothing else.

Parameters and Adam's moments are never reset, no difference is computed, clipped or added, and batches are
views of existing tensors: a framework that trains the same steps one by one cannot be faster. On a GPU the
limit is the step captured in a CUDA graph.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from silodp.bench.workloads import LEARNING_RATE, Workload

TRIES = 5


class BareLoop:
    """Some of a round's intermediaries, one after the other, on one network.

    On a GPU it computes in bfloat16 where autocast allows, as silodp does.

    Attributes:
        batches: images and targets of each step of a round, on the device.
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
        memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self._device, self._loss = torch.device(device), workload.loss
        self._network: nn.Module = workload.make_network().to(self._device)
        self._network.to(memory_format=memory_format)  # type: ignore[call-overload]
        every = [one for number in range(workload.hospitals) for one in workload.divided(number)]
        self.batches = [
            (images.to(self._device).contiguous(memory_format=memory_format), targets.to(self._device))
            for one in every[part::parts]
            for images, targets in one
        ]
        self._optimizer = torch.optim.Adam(
            self._network.parameters(), LEARNING_RATE, amsgrad=True, fused=True, capturable=captured
        )
        self._step = self._captured() if captured else self._train

    @property
    def steps(self) -> int:
        """Steps of a round."""
        return len(self.batches)

    def round(self) -> None:
        """Trains a round and waits for the device."""
        for images, targets in self.batches:
            self._step(images, targets)
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _train(self, images: Tensor, targets: Tensor) -> None:
        self._optimizer.zero_grad()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            logits = self._network(images).float()
        self._loss(logits, targets).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def _captured(self) -> Callable[[Tensor, Tensor], None]:
        """Warms up on a side stream, then captures, as PyTorch's notes on CUDA graphs say."""
        given_images, given_targets = (one.clone() for one in self.batches[0])
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._train(given_images, given_targets)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self._optimizer.zero_grad()
        with torch.cuda.graph(graph):
            self._train(given_images, given_targets)

        def replay(images: Tensor, targets: Tensor) -> None:
            given_images.copy_(images)
            given_targets.copy_(targets)
            graph.replay()

        return replay


def try_formats(workload: Workload, device: str = "cpu") -> tuple[bool, float]:
    """Whether channels-last is the faster memory format here, and the seconds of a step in the faster one.

    Measured on one thread, with the formats in turn, before the comparison starts.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    one_step = replace(workload, hospitals=1, intermediaries=1, images=workload.batch)
    loops = {last: BareLoop(one_step, device, last) for last in (True, False)}
    best = dict.fromkeys(loops, math.inf)
    for _ in range(TRIES):
        for last, loop in loops.items():
            started = time.perf_counter()
            loop.round()
            best[last] = min(best[last], time.perf_counter() - started)
    torch.set_num_threads(threads)
    fastest = min(best, key=best.__getitem__)
    return fastest, best[fastest]

"""Hospitals in several processes of this machine: each core trains some of them, one after the other.

Small networks do not use two cores well; two hospitals do. This process trains its share, too. The others are
forked when the hospitals are there, so images and networks are not copied. A hospital stays with its process,
which keeps its optimizer states.
"""

from __future__ import annotations

import contextlib
import io
import logging
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from silodp.engines.in_process import InProcess, ask
from silodp.errors import InputError
from silodp.hospital import Hospital


class Workers(InProcess):
    """The same engine over this process and forked ones.

    Guarantee: the same numbers as `InProcess` with as many threads, whatever the number of processes: a
    hospital's answer depends on the plan and its own data alone, and answers come in the order asked.

    Memory: a network a process; answers that wait for an earlier hospital's.
    """

    def __init__(self, hospitals: Sequence[Hospital], count: int) -> None:
        """Forks the processes.

        Args:
            hospitals: all on the CPU.
            count: of processes, this one included; at most one a hospital.
        """
        own, *groups = _grouped(hospitals, count)
        super().__init__(hospitals)
        self._hospitals = {one.name: one for one in own}  # those in this process
        self._pipes: dict[str, Connection] = {}
        self._processes = []
        self._waiting: dict[Connection, list[str]] = {}  # hospitals that have not answered the last request
        fork = multiprocessing.get_context("fork")
        for group in groups:
            here, there = fork.Pipe()
            # Whoever else holds an end of this pipe keeps the process waiting for us after our death.
            inherited = [here, *self._pipes.values()]
            process = fork.Process(target=_serve, args=(group, there, inherited), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes |= dict.fromkeys((one.name for one in group), here)

    def close(self) -> None:
        """The processes end when nobody speaks to them any more."""
        for pipe in self._pipes.values():
            pipe.close()
        for process in self._processes:
            process.join(5)
            process.kill()

    def _each(
        self, method: str, names: Sequence[str], *given: Any, **named: Any
    ) -> Iterator[tuple[str, Any]]:
        """As in `InProcess`.

        A process hears all its names at once and answers one after the other, without waiting for this one,
        which meanwhile asks its own hospitals. Answers to a request that was given up here are thrown away.
        """
        for pipe, others in self._waiting.items():
            for _ in others:
                _receive(pipe)
        waiting = self._waiting = {}
        own = [name for name in names if name in self._hospitals]
        for name in names:
            if name in self._pipes:
                waiting.setdefault(self._pipes[name], []).append(name)
        request = _packed((method, given, named))
        for pipe, mine in waiting.items():
            _send_request(pipe, mine, request)
        found: dict[str, Any] = {}
        for name in names:
            while name not in found:
                answered = wait(list(waiting), 0 if own else None)
                for ready in answered:
                    assert isinstance(ready, Connection)
                    found[waiting[ready].pop(0)] = _receive(ready)
                    if not waiting[ready]:
                        del waiting[ready]
                if own and not answered:
                    here = own.pop(0)
                    found[here] = ask(self._hospitals[here], method, given, named)
            yield name, found.pop(name)


def workers_for(wanted: int, threads: int, hospitals: int, device: torch.device) -> int:
    """How many processes: those wanted; for 0 one a core, where the device and `threads` allow it.

    One thread in each: a forked process cannot use the threads that PyTorch had before.
    """
    why = None
    if device.type != "cpu" or not hasattr(os, "fork"):
        why = "hospitals in processes of their own train on CPUs, on systems that can fork;"
    elif threads != 1:
        why = f"each process trains with one thread, and threads = {threads}; set threads=1, or"
    if why is None:
        return max(1, min(wanted or len(os.sched_getaffinity(0)), hospitals))
    if wanted > 1:
        raise InputError(f"--workers {wanted}: {why} leave it out")
    return 1


def _grouped(hospitals: Sequence[Hospital], count: int) -> list[list[Hospital]]:
    """The hospitals in groups of about as many training images: the largest first, to the smallest group."""
    groups: list[list[Hospital]] = [[] for _ in range(min(count, len(hospitals)))]
    images = [0] * len(groups)
    for one in sorted(hospitals, key=lambda one: -len(one.parts["train"])):
        smallest = images.index(min(images))
        groups[smallest].append(one)
        images[smallest] += len(one.parts["train"])
    return groups


def _serve(hospitals: list[Hospital], pipe: Connection, inherited: list[Connection]) -> None:
    """A process: answers requests until nobody is there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    for other in inherited:
        other.close()
    mine = {one.name: one for one in hospitals}
    answers: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
    threading.Thread(target=_send_answers, args=(pipe, answers), daemon=True).start()
    lines = _LogLines()
    # What the process that asks has here may wait for a lock that one of its threads held when it forked.
    logging.getLogger("silodp").handlers[:], logging.getLogger("silodp").propagate = [lines], False
    with contextlib.suppress(EOFError, OSError):
        while True:
            names = pipe.recv()
            method, given, named = pickle.loads(pipe.recv_bytes())
            for name in names:
                answer = ask(mine[name], method, given, named)
                answers.put(_packed_answer(answer, lines.drained()))


def _send_answers(pipe: Connection, answers: queue.SimpleQueue[memoryview]) -> None:
    """A thread: the next hospital trains while the answer before it waits until there is room in the pipe."""
    with contextlib.suppress(OSError):
        while True:
            pipe.send_bytes(answers.get())


class _LogLines(logging.Handler):
    """Keeps what is logged here, for the process that asks to say it."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.name, record.levelno, record.getMessage()))

    def drained(self) -> list[tuple[str, int, str]]:
        lines, self._lines = self._lines, []
        return lines


class _Pickler(pickle.Pickler):
    """Writes tensors as their plain memory, much faster than PyTorch's way, which makes a zip file."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor and value.dtype in _PLAIN:
            return torch.from_numpy, (value.detach().numpy(),)
        return NotImplemented


_PLAIN = (torch.float16, torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


def _packed(value: Any) -> memoryview:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getbuffer()


def _packed_answer(answer: Any, lines: list[tuple[str, int, str]]) -> memoryview:
    try:
        packed = _packed((answer, lines))
        if isinstance(answer, Exception):
            pickle.loads(packed)  # not every exception that can be written can be read
        return packed
    except Exception:  # of an exception that holds what cannot be sent
        return _packed((RuntimeError(f"{type(answer).__name__}: {answer}"), lines))


def _send_request(pipe: Connection, names: list[str], request: memoryview) -> None:
    try:
        pipe.send(names)
        pipe.send_bytes(request)
    except OSError:
        raise _process_ended() from None


def _receive(pipe: Connection) -> Any:
    """One hospital's answer."""
    try:
        answer, lines = pickle.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        raise _process_ended() from None
    for name, level, line in lines:
        logging.getLogger(name).log(level, "%s", line)
    return answer


def _process_ended() -> RuntimeError:
    return RuntimeError(
        "a process that trains hospitals has ended; out of memory? go on with fewer --workers"
    )

"""Timers by name: each counts its own time, and everything is as it was when they are gone."""

import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from silodp.bench import timers as module
from silodp.bench.timers import Timers


@dataclass(frozen=True)
class Frozen:
    work: object


def test_a_part_does_not_count_what_another_within_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 4.0, 10.0])  # the outer begins, the inner from 1 to 4, the outer ends at 10
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    timers = Timers()
    inner = timers.around("inner", lambda: None)
    timers.around("outer", inner)()
    assert timers.seconds == {"outer": 7.0, "inner": 3.0}
    assert timers.calls == {"outer": 1, "inner": 1}


def test_functions_are_theirs_again_afterwards() -> None:
    before, frozen = time.sleep, Frozen(abs)
    with Timers() as timers:
        timers.put("sleep", "time:sleep")
        timers.put_on("work", frozen, "work")
        time.sleep(0)
        assert frozen.work(-1) == 1  # type: ignore[operator]
        assert timers.calls == {"sleep": 1, "work": 1}
    assert (time.sleep, frozen.work) == (before, abs)


def test_a_place_that_is_gone_is_named() -> None:
    with Timers() as timers:
        timers.put("part", "silodp.bench.timers:Timers.nothing")
        timers.put("part", "silodp.nowhere:function")
    assert timers.missing == ["silodp.bench.timers:Timers.nothing", "silodp.nowhere:function"]

"""A hospital in an actor of Ray: answers requests of `runs.cluster` with the usual `Hospital`.

The function `answer` keeps no state between calls: data and network are built once in each process, and what
a hospital carries from round to round is in the run folder, for the next actor.
"""

from __future__ import annotations

import json
import logging
import platform
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from silodp.cohorts import Cohort, load_cohort
from silodp.cohorts.catalogue import PARTS
from silodp.cohorts.cohort import Examples, HospitalData
from silodp.engines.scores import parameters_from, scores_to_bytes
from silodp.errors import InputError
from silodp.experiment import ResolvedExperiment
from silodp.facts import facts_of
from silodp.hospital import Hospital
from silodp.local.trainer import LocalTrainer
from silodp.messages import RoundPlan
from silodp.runs.build import build_hospitals, build_trainer, derive, device_named
from silodp.runs.parts import Public
from silodp.tensor_files import read_tensors

log = logging.getLogger("silodp")


@dataclass(frozen=True)
class _Site:
    """What a process has built, for any hospital of one cohort."""

    public: Public
    trainer: LocalTrainer
    cohort: Cohort
    hospitals: dict[str, Hospital] = field(default_factory=dict)

    def hospital(self, name: str) -> Hospital:
        """The hospital, built when it is first needed; its images then stay on the device."""
        if name not in self.hospitals:
            (data,) = (one for one in self.cohort.hospitals if one.name == name)
            self.hospitals[name] = build_hospitals(self.public, self.trainer, [data])[0]
        return self.hospitals[name]


def answer(request: bytes) -> bytes:
    """Answers a request of `runs.cluster`; every error is in the reply."""
    about, payload = unpacked(request)
    reply: dict[str, Any] = {"problem": None, "saved": False, "warnings": []}
    content = b""
    with _warnings_into(reply["warnings"]):
        try:
            site = _site(json.dumps(about["job"]))
            hospital = site.hospital(about["hospital"])
            if about["kind"] == "plan":
                content = _trained(site, hospital, about, payload, reply)
            else:
                parameters = parameters_from(payload, len(site.public.model)).to(site.trainer.device)
                scores = hospital.evaluate(
                    parameters, about["part"], thorough=about["thorough"], batch=about["batch"]
                )
                content = scores_to_bytes(scores)
        except Exception as error:
            kind = next(one for one in (InputError, ValueError, Exception) if isinstance(error, one))
            said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            reply["problem"] = [kind.__name__, said]
    return packed(reply, content)


def _trained(
    site: _Site, hospital: Hospital, about: Mapping[str, Any], payload: bytes, reply: dict[str, Any]
) -> bytes:
    """Trains, with states loaded before and saved after, for whichever actor answers next."""
    plan = RoundPlan.from_bytes(payload).to(site.trainer.device)
    if plan.model != site.public.model.identity:
        raise InputError(
            f"plan: it is for another network than {platform.node()} builds; give it the same model.start"
        )
    run, last, working = Path(about["run"]), about["last"], Path(about["working"])
    hospital.save_states(run, 0)  # the secret for its noise, if it needs one and has none yet
    hospital.load_states(run, 0)
    if last:
        hospital.load_states(working if about["is_working"] else run, last)
    try:
        contribution, _ = hospital.answer(plan)
    finally:  # also after an error, since states may have changed
        hospital.save_states(working, plan.round)
        reply["saved"] = True
    return contribution.to_bytes()


@lru_cache(maxsize=1)
def _site(job: str) -> _Site:
    """Builds what this process answers with, once: the job is the same for all messages of a run."""
    about = json.loads(job)
    experiment = ResolvedExperiment.build(tomllib.loads(about["experiment"]))
    torch.set_num_threads(experiment.threads or 1)  # sums depend on how they are divided
    cohort = load_cohort(experiment.cohort) if about["cohort"] is None else read_cohort(Path(about["cohort"]))
    if cohort.fingerprint() != about["fingerprint"]:
        raise InputError(
            f"cohort: {platform.node()} reads other images than the machine that started the run; put the "
            "same files there, under the same path"
        )
    facts = [facts_of(one, experiment) for one in cohort.hospitals]
    public = derive(experiment, facts, device_named(about["device"]))
    return _Site(public, build_trainer(public, cohort.hospitals), cohort)


def write_cohort(path: Path, cohort: Cohort) -> None:
    """Writes a cohort from Python, for `read_cohort` in other processes on this machine."""
    hospitals = {
        hospital.name: {
            part: {name: value for name, value in vars(examples).items() if value is not None}
            for part, examples in hospital.parts.items()
        }
        for hospital in cohort.hospitals
    }
    torch.save(hospitals, path)


def read_cohort(path: Path) -> Cohort:
    """Maps a file of `write_cohort`, so that the processes on a machine share it."""
    content = read_tensors(path, torch.device("cpu"), mmap=True)
    return Cohort(
        "custom",
        tuple(
            HospitalData(name, *(Examples(**parts[part]) for part in PARTS))
            for name, parts in content.items()
        ),
    )


def packed(about: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """A line of JSON, then the payload."""
    return json.dumps(about).encode() + b"\n" + payload


def unpacked(message: bytes) -> tuple[dict[str, Any], bytes]:
    line, _, payload = message.partition(b"\n")
    return json.loads(line), payload


@contextmanager
def _warnings_into(lines: list[str]) -> Iterator[None]:
    """Collects silodp's warnings in `lines`, since nobody reads an actor's log."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    listener = Listener(logging.WARNING)
    log.addHandler(listener)
    try:
        yield
    finally:
        log.removeHandler(listener)

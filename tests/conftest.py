"""Small things that many tests need. One thread: tests then run the same beside busy neighbours.

`pytest --seed-offset N` puts other seeds behind every test that draws: a test asserts a law, or a figure with
a tolerance derived from its variance, so it must hold with any of them.
"""

import contextlib
import functools
import gc
import io
import json
import logging
import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SILODP_WORKERS", "1")  # tests run side by side already

import hypothesis
import hypothesis.core
import numpy as np
import pytest
import torch
import typer
from typer.main import get_command

from silodp import Cohort, Experiment
from silodp.cohorts.cohort import Examples
from silodp.local import stacked
from silodp.local.trainer import LocalTrainer

torch.set_num_threads(1)


def _not_waited_for(descriptor: int) -> None:
    """In place of `os.fsync`: what a killed process wrote is there anyway, and no test stops the machine.

    Disks take milliseconds for each, and the suite has tens of thousands. Commands in processes of their own
    do wait; tests that are about it put their own in its place.
    """


os.fsync = _not_waited_for

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy neighbour is no failure
hypothesis.settings.load_profile("untimed")

SEED_OFFSET = "SILODP_TEST_SEED_OFFSET"  # for child processes that import this file, xdist's workers too


def shift_seeds(offset: int) -> None:
    """Adds `offset` wherever a generator is given a whole number as its seed, in tests and in the package."""

    class Generator(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            return super().manual_seed((seed + offset) % 2**63)

    def shifting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(seed: Any = None, *rest: Any, **more: Any) -> Any:
            whole = isinstance(seed, int | np.integer) and seed >= 0
            return original(int(seed) + offset if whole else seed, *rest, **more)

        return call

    torch.Generator = Generator  # type: ignore[misc]
    torch.manual_seed = shifting(torch.manual_seed)
    for name in ("default_rng", "SeedSequence", "PCG64", "seed"):
        setattr(np.random, name, shifting(getattr(np.random, name)))
    random.seed = shifting(random.seed)
    hypothesis.core.global_force_seed = offset


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed-offset", type=int, default=0, help="other seeds behind every test that draws")


def pytest_configure(config: pytest.Config) -> None:
    if (offset := config.getoption("--seed-offset")) and SEED_OFFSET not in os.environ:
        os.environ[SEED_OFFSET] = str(offset)
        shift_seeds(offset)


if SEED_OFFSET in os.environ:
    shift_seeds(int(os.environ[SEED_OFFSET]))


def pytest_collection(session: pytest.Session) -> None:
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits comes first, for one process of the tests, while the others compute; then the studies.

    Those share their runs, and a process without work takes over the end of another's, not the beginning.
    """
    items.sort(key=lambda item: (item.get_closest_marker("waits") is None, "studies" not in item.path.parts))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported by now stays: the garbage collector need not look at a million objects again."""
    gc.enable()
    gc.freeze()


@pytest.fixture(autouse=True)
def _a_start_of_its_own() -> None:
    """What a test draws without a seed of its own does not hang on the tests before it."""
    # `torch.manual_seed` keeps a traceback of each call for a GPU that may come.
    torch.default_generator.manual_seed(int(os.environ.get(SEED_OFFSET, 0)))
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(autouse=True, scope="session")
def _one_trial_of_each_form() -> Iterator[None]:
    """Whether a network of the package can be stacked is tried once for all runs of one form."""
    known: dict[object, bool] = {}
    tried = stacked.can_stack

    def can_stack(trainer: LocalTrainer, examples: Examples) -> bool:
        module = trainer.model.module
        if not type(module).__module__.startswith("silodp."):
            return tried(trainer, examples)
        trained = tuple(value.requires_grad for value in module.parameters())
        settings = type(trainer.settings), str(trainer.settings), trainer.sample_level is None
        images = examples.images.shape, examples.images.dtype, trainer.device
        form = str(module), trained, settings, trainer.task, images
        if form not in known:
            known[form] = tried(trainer, examples)
        return known[form]

    with mock.patch.object(stacked, "can_stack", can_stack):
        yield


def blob_cohort(hospitals: int = 3, images: int = 20, size: int = 16) -> Cohort:
    """Noisy pictures with a bright square, and its mask: quick to make and to learn."""
    generator = torch.Generator().manual_seed(5)
    members = {}
    for number in range(hospitals):
        masks = torch.zeros(images, 1, size, size)
        for mask in masks:
            top, left = torch.randint(0, size - 6, (2,), generator=generator).tolist()
            mask[0, top : top + 6, left : left + 6] = 1
        noise = torch.randn(masks.shape, generator=generator)
        members[f"hospital-{number}"] = (masks + (0.3 + 0.1 * number) * noise, masks)
    return Cohort.from_tensors(members)


@pytest.fixture
def cohort() -> Cohort:
    return blob_cohort()


@pytest.fixture(scope="session")
def experiment() -> Experiment:
    """A private segmentation that trains in a moment."""
    return Experiment.build(
        {
            "name": "tiny",
            "rounds": 3,
            "model": {"features": 2, "levels": 1},
            "local": {"learning_rate": 0.01, "batch_size": 8},
            "intermediaries": {"rule": "fixed", "count": 2},
            "clipping": {"bound": 0.5},
        }
    )


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds with v = 2, z = 0.5 and quantile clipping, which nobody changes."""
    from silodp import train

    tree = {"rounds": 4, "model": {"features": 2, "levels": 1}, "local": {"batch_size": 4}}
    experiment = Experiment.build({**tree, "intermediaries": {"rule": "fixed", "count": 2}})
    folder = tmp_path_factory.mktemp("finished") / "run"
    return train(experiment, cohort=blob_cohort(), out=folder, device="cpu").folder


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium; see `browser.Browser`."""
    from browser import started  # takes a moment to import, and few tests need it

    with started(tmp_path_factory.mktemp("browser")) as found:
        yield found


def command_line(
    *arguments: object, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`silodp …` in this process, with what a process of its own would say and how it would end.

    A new process imports PyTorch and MONAI first, which takes seconds; `in_a_process` is for one a command.
    """
    from silodp.cli import main

    said, complained, root, code = io.StringIO(), io.StringIO(), logging.getLogger(), 0
    with (
        mock.patch("typer.main.get_command", _commands_of),
        mock.patch.object(sys, "argv", ["silodp", *map(str, arguments)]),
        mock.patch.object(root, "handlers", []),  # pytest's; the command line installs its own
        mock.patch.dict(os.environ, environment),
        contextlib.chdir(cwd or Path()),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(complained),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(arguments, code, said.getvalue(), complained.getvalue())


def command_with_cache(
    *arguments: object, cwd: Path, how: Callable[..., subprocess.CompletedProcess[str]] = command_line
) -> subprocess.CompletedProcess[str]:
    """A command in a folder that has a cache of its own, on a wide terminal."""
    return how(*arguments, cwd=cwd, XDG_CACHE_HOME=str(cwd / "cache"), COLUMNS="160")


def succeed(
    *arguments: object,
    how: Callable[..., subprocess.CompletedProcess[str]] = command_line,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """A command that must end with exit code 0; `how` it is run and `options` as of `command_line`."""
    done = how(*arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def noting_browser(folder: Path) -> dict[str, str]:
    """The environment for a browser that only writes what it should open into `folder/opened`."""
    (folder / "browser").write_text(f'#!/bin/sh\necho "$1" > {folder}/opened\n')
    (folder / "browser").chmod(0o755)
    return {"BROWSER": str(folder / "browser")}


@functools.cache
def _commands_of(app: typer.Typer) -> Any:
    """Typer takes 30 ms to put all commands together, whichever is asked for."""
    return get_command(app)


def command_of(*arguments: object) -> list[str]:
    """What starts `silodp …` in a process of its own, with the suite's other seeds where it has any."""
    how = ["-m", "silodp"]
    if SEED_OFFSET in os.environ:
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import conftest"
        how = ["-c", f"{code}; from silodp.cli import main; main()"]
    return [sys.executable, *how, *map(str, arguments)]


def in_a_process(
    *arguments: object, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`silodp …` as a person starts it."""
    whole = os.environ | environment
    return subprocess.run(
        command_of(*arguments), capture_output=True, text=True, cwd=cwd, env=whole, check=False
    )


def forked(work: Callable[..., object], *arguments: object) -> BaseProcess:
    """A process of its own that has imported everything already: a fork of a server that does no work."""
    server = multiprocessing.get_context("forkserver")
    ours = ["silodp.cli", "silodp.runs.training", "silodp.studies.output"]
    theirs = ["hypothesis", "pytest", "scipy.ndimage", "mlflow", "tensorboardX"]
    server.set_forkserver_preload([*theirs, *ours])
    process = server.Process(target=_with_environment, args=(dict(os.environ), work, arguments))
    process.start()
    return process


def _with_environment(
    environment: dict[str, str], work: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    os.environ.clear()
    os.environ.update(environment)  # the server has that of the moment when it started
    work(*arguments)


class Picky(torch.nn.Module):
    """A network with an input check, as users write them: it raises on bright images."""

    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if float(images.amax()) > 50:
            raise ValueError("not a scan")
        return self.body(images)  # type: ignore[no-any-return]


class Killed(Exception):
    """Stands for the end of the process."""


def kill_after(number: int) -> Callable[[dict[str, Any]], None]:
    """For `on_round`: the run ends when this round has been recorded."""

    def on_round(record: dict[str, Any]) -> None:
        if record["round"] == number:
            raise Killed

    return on_round


def killed_run(experiment: Experiment, number: int, **more: Any) -> None:
    """A training (`more` is for `train`) that ends as by a kill when this round has been recorded."""
    from silodp import train

    with pytest.raises(Killed):
        train(experiment, device="cpu", on_round=kill_after(number), **more)


def records(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of a run's file."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def without_seconds(folder: Path) -> list[dict[str, Any]]:
    """What the rounds say, but for how long they took."""
    return [
        {key: value for key, value in line.items() if not key.endswith("seconds")} for line in records(folder)
    ]


def assert_same_files(one: Path, two: Path, *names: str) -> None:
    """To the byte; by default what was spent and what was learnt."""
    for name in names or ("ledger.jsonl", "model.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name

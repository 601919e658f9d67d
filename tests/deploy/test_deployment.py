"""Two hospitals, each with processes of its own, over TLS on loopback: the whole way of a deployment."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from conftest import command_line, command_of, forked
from processes import free_port, until
from safetensors.torch import load_file

from silodp import Experiment, train
from silodp.deploy.kit import init
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.privacy.ledger import read_ledger
from silodp.runs.statement import read_statement

pytest.importorskip("flwr")
pytestmark = pytest.mark.waits
NAMES = ("hospital-01", "hospital-02")  # as the synthetic cohort calls its first two
DATA = {"kind": "synthetic-mri", "hospitals": 2, "slices": 48, "image_size": 32}
ASKED = ("rounds=4", "cohort.image_size=32", "local.batch_size=4", "privacy.delta=0.01")
PATIENCE = 90  # seconds, for a busy machine


def start(log: Path, *words: object) -> subprocess.Popen[bytes]:
    """A command in a process group of its own, as a service manager has it."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command_of("deploy", *words), stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    """SIGTERM to the command, which ends what it started; SIGKILL to all of them."""
    if process.poll() is None:
        if number == signal.SIGKILL:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        process.wait(PATIENCE)


def stop_all(processes: dict[str, subprocess.Popen[bytes]]) -> None:
    for process in processes.values():
        process.terminate()
    for process in processes.values():
        process.wait(PATIENCE)


class Deployment:
    """A kit on one machine, its coordinator and its hospitals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        front, port, page = free_port(), free_port(), free_port()
        init(folder, NAMES, f"localhost:{front}")
        place = folder / "coordinator"
        for file in ("coordinator.toml", "nginx.conf"):
            text = (place / file).read_text(encoding="utf-8")
            (place / file).write_text(
                text.replace("18443", str(port)).replace("8050", str(page)), encoding="utf-8"
            )
        for name in NAMES:
            path = folder / "hospitals" / name / "site.toml"
            head, _ = path.read_text(encoding="utf-8").split("[cohort]")
            head = head.replace("epsilon = 8.0", "epsilon = 40.0\nseeded_noise = true")
            head = head.replace("validation_metrics = false", "validation_metrics = true")
            head = head.replace('superlink = "', f'page_port = {free_port()}\nsuperlink = "', 1)
            data = "".join(f"{key} = {json.dumps(value)}\n" for key, value in DATA.items())
            path.write_text(f'{head}[cohort]\n{data}hospital = "{name}"\n', encoding="utf-8")
        self.hospitals: dict[str, subprocess.Popen[bytes]] = {}

    def start_hospital(self, name: str) -> None:
        folder = self.folder / "hospitals" / name
        self.hospitals[name] = start(self.folder / f"{name}.log", "hospital", folder)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = command_line("deploy", "run", self.folder, "--patience", PATIENCE, *words)
        assert done.returncode == 0, done.stderr + self.logs()
        return done

    def logs(self) -> str:
        return "".join(
            f"\n--- {path}\n{path.read_text(encoding='utf-8', errors='replace')[-1500:]}"
            for path in sorted(self.folder.rglob("*.log"))
        )

    def site_rounds(self, name: str, since: int) -> list[int]:
        path = self.folder / "hospitals" / name / "state" / "ledger.jsonl"
        return [event.round for event in read_ledger(path).events][since:]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    # Not pytest's own folder: a Unix socket's path has at most 107 bytes.
    import tempfile

    with tempfile.TemporaryDirectory(prefix="silodp-") as folder, ExitStack() as stack:
        made = Deployment(Path(folder) / "kit")
        coordinator = start(made.folder / "coordinator.log", "coordinator", made.folder)
        stack.callback(stop, coordinator)
        for name in NAMES:
            made.start_hospital(name)
        stack.callback(stop_all, made.hospitals)
        yield made


def asked(*changes: str) -> list[str]:
    return [word for change in (*ASKED, *changes) for word in ("--set", change)]


def test_the_model_is_that_of_one_process(deployment: Deployment, tmp_path: Path) -> None:
    """The preset for whole hospitals, over TLS with node keys; noise from a seed, to be compared."""
    own = [f"cohort.{key}={value}" for key, value in DATA.items() if key != "kind"]
    here = Experiment.load("prostate-hospital", [*ASKED, *own, "privacy.entropy=seed", "diagnostics=false"])
    expected = load_file(train(here, out=tmp_path / "here", device="cpu").folder / "model.safetensors")
    run = tmp_path / "there"
    deployment.run("prostate-hospital", *asked("privacy.entropy=seed"), "--out", str(run))
    found = load_file(run / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    statement = read_statement(run)
    assert statement.problems == ()
    assert statement.figures["hospital", "add-or-remove"].epsilon == pytest.approx(8.0, rel=1e-3)
    for name in NAMES:
        said = json.loads((run / "deployment" / "statements" / f"{name}.json").read_text(encoding="utf-8"))
        assert said["epsilon"]["outside"] == pytest.approx(8.0, rel=1e-3)
        assert deployment.site_rounds(name, 0) == [1, 2, 3, 4]


def _run_in_background(kit: Path, run: Path, log: Path, resume: bool) -> None:
    """`deploy run` in a process that may be killed."""
    import sys

    from silodp.cli import main

    how = ["--resume", "--out", str(run)] if resume else ["prostate-hospital", *asked(), "--out", str(run)]
    sys.argv = ["silodp", "deploy", "run", str(kit), "--patience", str(PATIENCE), *how]
    with log.open("a", encoding="utf-8") as output:
        sys.stdout = sys.stderr = output
        main()


def test_a_hospital_and_then_the_coordinator_are_killed_and_the_run_ends(
    deployment: Deployment, tmp_path: Path
) -> None:
    """With the system's entropy: one event a release in every ledger, and no ε more than was planned."""
    before = {name: len(deployment.site_rounds(name, 0)) for name in NAMES}
    run, log = tmp_path / "run", tmp_path / "run.log"
    working = forked(_run_in_background, deployment.folder, run, log, False)
    metrics = run / "metrics.jsonl"

    def rounds() -> int:
        return len(metrics.read_text(encoding="utf-8").splitlines()) if metrics.exists() else 0

    try:
        until(lambda: rounds() >= 1 or not working.is_alive(), "round one")
        stop(deployment.hospitals["hospital-02"], signal.SIGKILL)  # site and link, in the middle of a round
        # Later than its upload of the plan: a link waits half a minute for the rest of one that was cut off.
        until(lambda: 2 in deployment.site_rounds("hospital-01", before["hospital-01"]), "its answer")
        assert working.pid is not None
        os.kill(working.pid, signal.SIGKILL)
        working.join(PATIENCE)
    finally:
        deployment.start_hospital("hospital-02")
    done = rounds()
    assert 1 <= done < 4, log.read_text(encoding="utf-8") + deployment.logs()
    deployment.run("--resume", "--out", str(run))
    events = read_ledger(run / "ledger.jsonl").events
    assert [event.round for event in events] == [1, 2, 3, 4]
    for name in NAMES:
        assert deployment.site_rounds(name, before[name]) == [1, 2, 3, 4]
    z = events[0].noise_multiplier
    spent = read_statement(run).figures["hospital", "add-or-remove"].epsilon
    assert spent == pytest.approx(gaussian_epsilon(2 / z, 0.01), rel=1e-3)
    assert not (run / "deployment" / "noise-secret").exists()
    assert not list((run / "deployment").glob("round/*.contribution"))


def test_a_site_refuses_what_its_people_have_not_allowed(deployment: Deployment, tmp_path: Path) -> None:
    """The coordinator cannot talk it out of its limits: nothing is trained, and the reason is in its log."""
    words = asked("budget.epsilon=400", "rounds=2")
    done = command_line(
        "deploy", "run", deployment.folder, "prostate-hospital", *words, "--out", tmp_path / "run"
    )
    assert done.returncode == 2
    assert "does not sign the agreement: limits.epsilon = 40" in done.stderr
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    refusals = deployment.folder / "hospitals" / NAMES[0] / "state" / "refusals.jsonl"
    assert "limits.epsilon = 40" in refusals.read_text(encoding="utf-8")

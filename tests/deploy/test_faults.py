"""Whatever is lost, late, doubled, changed or killed on the way: the run ends, and every ledger is right."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from network import REHEARSAL, Federation, Killed, Lost, Network
from safetensors.torch import load_file

from silodp import Experiment
from silodp.deploy.engine import RemoteEngine
from silodp.deploy.envelope import seal
from silodp.deploy.journal import Journal
from silodp.deploy.last_answer import LastAnswer
from silodp.errors import InputError
from silodp.hospital import Hospital
from silodp.messages import Contribution
from silodp.privacy.ledger import Ledger, read_ledger
from silodp.runs.folder import RunFolder

ROUNDS = 3
SILENT = REHEARSAL.model_copy(update={"validation_metrics": False})


@pytest.fixture(scope="module")
def tiny(experiment: Experiment) -> Experiment:
    return experiment.change(
        privacy__entropy="seed", threads=1, rounds=ROUNDS, intermediaries__count=1, local__batch_size=16,
        deployment__deadline=60.0,
    )  # fmt: skip


@pytest.fixture
def hospitals(tmp_path: Path) -> Federation:
    return Federation(tmp_path, SILENT)


def quiet_run(experiment: Experiment, folder: Path) -> dict[str, torch.Tensor]:
    run = Federation(folder, SILENT).run(experiment)
    return load_file(run.folder / "model.safetensors")


@pytest.fixture(scope="module")
def undisturbed(tiny: Experiment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return quiet_run(tiny, tmp_path_factory.mktemp("undisturbed"))


class Weather:
    """Draws what goes wrong; every run of bad luck ends."""

    def __init__(self, hospitals: Federation, seed: int) -> None:
        self.rng = random.Random(seed)
        self.hospitals = hospitals
        self.old: list[bytes] = []
        self.happened: Counter[str] = Counter()

    def mishap(self, hospital: str, request: bytes, reply: bytes) -> list[bytes | None]:
        self.old.append(reply)
        what = self.rng.choice(["fine"] * 40 + list(MISHAPS) * 5 + ["coordinator killed"])
        self.happened[what] += 1
        if what == "coordinator killed":
            raise Killed
        if what == "site restarted":
            self.hospitals.start(hospital)
        if what == "asked twice":
            assert self.hospitals.sites[hospital].handle(request) == reply
        return MISHAPS[what](self, reply) if what in MISHAPS else [reply]

    def _changed(self, reply: bytes) -> bytes:
        place = self.rng.randrange(len(reply))
        return reply[:place] + bytes([reply[place] ^ 1]) + reply[place + 1 :]


MISHAPS: dict[str, Callable[[Weather, bytes], list[bytes | None]]] = {
    "lost": lambda weather, reply: [None],
    "twice": lambda weather, reply: [reply, reply],
    "changed": lambda weather, reply: [weather._changed(reply)],
    "another's, or an old one": lambda weather, reply: [weather.rng.choice(weather.old)],
    "cut": lambda weather, reply: [reply[: weather.rng.randrange(len(reply))]],
    "site restarted": lambda weather, reply: [reply],
    "asked twice": lambda weather, reply: [reply],
}


def test_forty_rounds_of_bad_weather_change_nothing(
    hospitals: Federation, tiny: Experiment, tmp_path: Path
) -> None:
    """Each round and hospital with a schedule of its own; coordinator and sites are killed now and then."""
    long = tiny.change(rounds=40, local__state="fresh")
    expected = quiet_run(long, tmp_path / "quiet")
    weather = Weather(hospitals, seed=0)

    def network() -> Network:
        return hospitals.network(rng=weather.rng, mishap=weather.mishap)

    begun = False
    while True:
        try:
            if not begun:
                hospitals.run(long, network())
            else:
                hospitals.resume(network())
        except Killed:
            begun = (hospitals.out / "deployment" / "agreement.json").exists()
            continue
        break
    assert set(weather.happened) == {"fine", "coordinator killed", *MISHAPS}
    assert_all_is_right(hospitals, expected, 40)


def assert_all_is_right(
    hospitals: Federation, expected: dict[str, torch.Tensor] | None = None, rounds: int = ROUNDS
) -> None:
    """One event a round in the coordinator's ledger and in each site's, and the model of a quiet run."""
    own = read_ledger(hospitals.out / "ledger.jsonl").events
    for events in (own, *(site.ledger.events for site in hospitals.sites.values())):
        found = [event.round for event in events if event.released == "model update"]
        assert found == list(range(1, rounds + 1))
    if expected is not None:
        found = load_file(hospitals.out / "model.safetensors")
        assert all(torch.equal(found[name], values) for name, values in expected.items())


COORDINATOR_DIES: dict[str, tuple[type, str]] = {
    "before it journals a reply": (Journal, "add"),
    "before it closes a round": (Journal, "close"),
    "before a release is in the ledger": (Ledger, "record"),
    "before its checkpoint": (RunFolder, "save_checkpoint"),
    "before a line of metrics": (RunFolder, "add_metrics"),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("where", COORDINATOR_DIES)
@pytest.mark.parametrize(("entropy", "number"), [("seed", 1), ("system", 2)])
def test_a_coordinator_killed_anywhere_goes_on(
    hospitals: Federation,
    where: str,
    when: str,
    entropy: str,
    number: int,
    tiny: Experiment,
    undisturbed: dict[str, torch.Tensor],
) -> None:
    """With the system's entropy too: nothing is drawn twice, for the noise of a sum is its own."""
    asked = tiny.change(privacy__entropy=entropy)
    owner, name = COORDINATOR_DIES[where]
    last = number + (name == "save_checkpoint")  # one is written before round one
    with dying(owner, name, when, lambda call: call == last, hospitals.out), pytest.raises(Killed):
        hospitals.run(asked)
    hospitals.resume()
    assert_all_is_right(hospitals, undisturbed if entropy == "seed" else None)


@pytest.mark.parametrize("who", ["hospital-0", "hospital-2"])
def test_who_counts_in_a_round_is_settled_before_its_noise_is_drawn(
    hospitals: Federation, who: str, tiny: Experiment
) -> None:
    """Killed with a release in the ledger; whoever is away, or back, when it goes on makes no second one."""
    asked = tiny.change(privacy__entropy="system", deployment={"deadline": 5.0, "min_hospitals": 2})
    third = dying(RunFolder, "save_checkpoint", "before", lambda call: call == 3, hospitals.out)
    with third, pytest.raises(Killed):
        hospitals.run(asked)
    hospitals.resume(hospitals.network(away=lambda name: name == who))
    events = read_ledger(hospitals.out / "ledger.jsonl").events
    assert [event.round for event in events if event.released == "model update"] == [1, 2, 3]
    absent = [list(line["absent"]) for line in RunFolder(hospitals.out).metrics()]
    assert absent == [[], [], [who]]


@contextmanager
def dying(owner: type, name: str, when: str, calls: Callable[[int], bool], only: Path) -> Iterator[None]:
    """The process ends at these calls of a method, of those on something that lies in `only` or nowhere."""
    original: Callable[..., object] = getattr(owner, name)
    seen = 0

    def call(self: object, *arguments: object, **more: object) -> object:
        nonlocal seen
        place = getattr(self, "path", None) or getattr(self, "_folder", None) or only
        if not Path(str(place)).is_relative_to(only):
            return original(self, *arguments, **more)
        seen += 1
        dies = calls(seen)
        if dies and when == "before":
            raise Killed
        result = original(self, *arguments, **more)
        if dies:
            raise Killed
        return result

    with mock.patch.object(owner, name, call):
        yield


SITE_DIES: dict[str, tuple[type, str]] = {
    "the ledger": (Ledger, "record"),
    "its states": (Hospital, "save_states"),
    "the reply": (LastAnswer, "write"),
}


@pytest.mark.parametrize("state", ["fresh", "kept"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("where", SITE_DIES)
def test_a_site_killed_in_a_round_answers_it_as_it_would_have(
    hospitals: Federation, where: str, when: str, state: str, tiny: Experiment
) -> None:
    asked = tiny.change(local__state=state, privacy__noise="shared", privacy__entropy="system")
    owner, name = SITE_DIES[where]
    killed = []

    def handle(hospital: str, sealed: bytes) -> bytes:
        try:
            return hospitals.sites[hospital].handle(sealed)
        except Killed:
            killed.append(hospital)
            hospitals.start(hospital)
            return b""

    handlers = {one: (lambda sealed, one=one: handle(one, sealed)) for one in hospitals.sites}
    with dying(owner, name, when, lambda call: call % 5 == 3, only=hospitals.folder / "sites"):
        hospitals.run(asked, Network(handlers))
    assert killed, "no site was killed"
    assert_all_is_right(hospitals)


def test_a_slow_hospital_is_absent_and_its_late_answer_counts_nowhere(
    hospitals: Federation, tiny: Experiment
) -> None:
    asked = tiny.change(deployment={"deadline": 30.0, "min_hospitals": 2})
    network = hospitals.network()
    round_two = False
    network.slow = lambda name: 45.0 if round_two and name == "hospital-1" else 0.0

    def on_round(record: dict) -> None:
        nonlocal round_two
        round_two = record["round"] == 1

    run = hospitals.run(asked, network, on_round=on_round)
    lines = RunFolder(run.folder).metrics()
    assert [list(line["absent"]) for line in lines] == [[], ["hospital-1"], []]
    assert len(read_ledger(run.folder / "ledger.jsonl").events) == len(lines[0]["participants"]) * 2


def test_with_too_few_hospitals_a_round_waits_and_says_so(
    hospitals: Federation, tiny: Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    network = hospitals.network()
    gone = False
    network.away = lambda name: gone and name == "hospital-2" and network.clock.now < 200

    def on_round(record: dict) -> None:
        nonlocal gone
        gone = True

    run = hospitals.run(tiny, network, on_round=on_round)
    assert network.clock.now >= 200
    assert "waiting for hospital-2; 2 of 3 hospitals have answered, and 3 must" in caplog.text
    assert all(not line["absent"] for line in RunFolder(run.folder).metrics())


def test_a_forged_answer_is_refused_and_its_author_named(
    hospitals: Federation,
    tiny: Experiment,
    undisturbed: dict[str, torch.Tensor],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """hospital-1 answers over hospital-0's connection, before hospital-0 does."""
    forged = 0

    def mishap(hospital: str, request: bytes, reply: bytes) -> list[bytes | None]:
        nonlocal forged
        if hospital != "hospital-0" or forged > 3:
            return [reply]
        forged += 1
        opened = hospitals.opened("hospital-0", reply)
        return [seal(opened, hospitals.keys["hospital-1"])]

    network = hospitals.network(mishap=mishap)
    hospitals.run(tiny, network)
    assert "hospital-0: reply: it was changed on the way" in caplog.text
    assert "or signed by another key: it is signed by hospital-1; it is asked again" in caplog.text
    assert_all_is_right(hospitals, undisturbed)


def test_an_old_answer_is_no_answer_to_a_new_question(
    tiny: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A hospital's own words, signed and all, to a question of before: figures of a model long gone."""
    quiet, hospitals = Federation(tmp_path / "quiet"), Federation(tmp_path / "replayed")
    first: dict[str, bytes] = {}
    seen: set[bytes] = set()

    def mishap(hospital: str, request: bytes, reply: bytes) -> list[bytes | None]:
        if b'"kind": "evaluate"' not in request or request in seen:
            return [reply]
        seen.add(request)
        return [first.setdefault(hospital, reply)]

    runs = quiet.run(tiny), hospitals.run(tiny, hospitals.network(mishap=mishap))
    figures = [[line["validation"] for line in RunFolder(run.folder).metrics()] for run in runs]
    assert figures[0] == figures[1]
    assert "hospital-0: its reply is to another request; it is asked again" in caplog.text


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"outputs": 2}, "hospital-1: float32 images of 1 × 8 × 8, each with 2 masks"),
        ({"outputs": 10**6}, "hospital-1 does not send its facts"),
        ({"name": "hospital-0"}, "hospital-1 does not send its facts"),
    ],
)
def test_a_hospital_whose_facts_cannot_be_is_named_before_anything_is_built(
    claim: dict[str, object], words: str, hospitals: Federation, tiny: Experiment
) -> None:
    def mishap(hospital: str, request: bytes, reply: bytes) -> list[bytes | None]:
        if hospital != "hospital-1" or b'"kind": "facts"' not in request:
            return [reply]
        opened = hospitals.opened(hospital, reply)
        about = {**opened.about, "facts": {**opened.about["facts"], **claim}}
        return [seal(replace(opened, about=about), hospitals.keys[hospital])]

    with pytest.raises(InputError, match=words):
        hospitals.run(tiny, hospitals.network(mishap=mishap))
    assert not hospitals.out.exists()


@pytest.mark.parametrize(
    "scores",
    [
        {"values": {}},
        {"values": {"dice": 0.5, "iou": 0.5, "mine": 1.0}},
        {"values": {"dice": 1e999, "iou": 0.5}},
        {"values": {"dice": 0.5, "iou": 0.5}, "images": 10**400},
        {"values": {"dice": 0.5, "iou": 0.5}, "resampled": {"dice": [0.5] * 1000}},
        [],
    ],
)
def test_a_hospital_that_lies_about_its_figures_is_left_out_of_them(
    scores: object, tiny: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hospitals = Federation(tmp_path)
    if isinstance(scores, dict):
        scores = {"images": 4, "patients": None, "resampled": {}, **scores}

    def mishap(hospital: str, request: bytes, reply: bytes) -> list[bytes | None]:
        if hospital != "hospital-0" or b'"kind": "evaluate"' not in request:
            return [reply]
        opened = hospitals.opened(hospital, reply)
        return [seal(replace(opened, payload=json.dumps(scores).encode()), hospitals.keys[hospital])]

    run = hospitals.run(tiny, hospitals.network(mishap=mishap))
    assert len(RunFolder(run.folder).metrics()) == ROUNDS
    for line in RunFolder(run.folder).metrics():
        assert set(line["validation"]["hospitals"]) == {"hospital-1", "hospital-2"}
        assert 0 <= line["validation"]["mean"]["dice"] <= 1
    assert set(run.summary["test"]["last"]["hospitals"]) == {"hospital-1", "hospital-2"}
    assert "hospital-0" in caplog.text


def test_a_hospital_that_sends_no_figures_is_waited_for_once(tiny: Experiment, tmp_path: Path) -> None:
    """Not for minutes in every round: validation must not hold up the training."""
    hospitals = Federation(tmp_path)

    def mishap(hospital: str, request: bytes, reply: bytes) -> list[bytes | None]:
        return [] if hospital == "hospital-0" and b'"kind": "evaluate"' in request else [reply]

    network = hospitals.network(mishap=mishap)
    run = hospitals.run(tiny.change(deployment__deadline=50.0), network)
    for line in RunFolder(run.folder).metrics():
        assert set(line["validation"]["hospitals"]) == {"hospital-1", "hospital-2"}
    assert 50 <= network.clock.now < 100


@pytest.mark.parametrize("gone", [0.0, 5.0])
def test_a_hospital_that_dies_with_a_message_is_asked_again_when_it_is_back(
    hospitals: Federation, gone: float, tiny: Experiment, undisturbed: dict[str, torch.Tensor]
) -> None:
    """Not at the deadline, which may be a day away; even where nobody noticed that it was gone."""
    network = hospitals.network()
    taken: list[float] = []

    def handle(sealed: bytes) -> bytes:
        if not taken and b'"kind": "plan"' in sealed:
            taken.append(network.clock.now)
            network.waiting.append((1e9, "never", "hospital-1", sealed))
            raise Lost
        return hospitals.sites["hospital-1"].handle(sealed)

    network.handlers = {**network.handlers, "hospital-1": handle}
    network.away = lambda name: name == "hospital-1" and bool(taken) and network.clock.now < taken[0] + gone
    asked = tiny.change(deployment__deadline=86400.0)
    hospitals.run(asked, network)
    assert network.clock.now - taken[0] < (60 if gone else 200)
    assert_all_is_right(hospitals, undisturbed)


@pytest.mark.parametrize("noise", ["central", "shared"])
def test_an_answer_that_cannot_count_is_none(hospitals: Federation, noise: str, tiny: Experiment) -> None:
    """A vector of another shape, signed and all: too few have answered, and nothing is closed or released."""
    asked = tiny.change(privacy__noise=noise, deployment__min_hospitals=3)

    def mishap(hospital: str, request: bytes, reply: bytes) -> list[bytes | None]:
        if hospital != "hospital-1" or b'"kind": "plan"' not in request:
            return [reply]
        opened = hospitals.opened(hospital, reply)
        short = replace(Contribution.from_bytes(opened.payload), numbers=torch.zeros(3, dtype=torch.float64))
        return [seal(replace(opened, payload=short.to_bytes()), hospitals.keys[hospital])]

    with pytest.raises(
        InputError, match=r"2 of 3 hospitals take part, and 3 must .*hospital-1: its update has shape"
    ):
        hospitals.run(asked, hospitals.network(mishap=mishap))
    assert read_ledger(hospitals.out / "ledger.jsonl").events == []
    hospitals.resume()
    assert_all_is_right(hospitals)


def test_a_statement_that_is_not_signed_ends_nothing(
    hospitals: Federation, tiny: Experiment, caplog: pytest.LogCaptureFixture
) -> None:

    def mishap(hospital: str, request: bytes, reply: bytes) -> list[bytes | None]:
        opened = hospitals.opened(hospital, reply)
        if hospital != "hospital-1" or "signature" not in opened.about or b'"kind": "finish"' not in request:
            return [reply]
        return [seal(replace(opened, about={"signature": "zz"}), hospitals.keys[hospital])]

    network = hospitals.network(mishap=mishap)
    run = hospitals.run(tiny, network)
    said = sorted(path.name for path in (run.folder / "deployment" / "statements").glob("*.json"))
    assert said == ["hospital-0.json", "hospital-2.json"]
    assert "hospital-1: its signature on its statement is not valid" in caplog.text


def test_norms_do_not_travel(hospitals: Federation, tmp_path: Path) -> None:
    engine = RemoteEngine(hospitals.coordinator(), "r", tmp_path / "round", 60.0, None)
    with pytest.raises(InputError, match="norms do not leave a hospital"):
        engine.measure_norms(None, [])  # type: ignore[arg-type]

"""Bytes over a real SuperLink, through a real proxy, with TLS and node keys: what gets through, what not."""

import http.client
import logging
import os
import shutil
import signal
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flower_stage import HOSPITALS, TOY, Stage
from processes import until

from silodp.engines.flower import internals as flower
from silodp.engines.flower import wire
from silodp.engines.flower.grid import FlowerTransport
from silodp.engines.flower.proxy import FLEET_PATHS
from silodp.engines.flower.superlink import online
from silodp.engines.transport import Unreachable
from silodp.errors import InputError

pytestmark = pytest.mark.waits

LINKED = HOSPITALS[:2]  # with links in processes of their own


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    if not (shutil.which("nginx") or Path("/usr/sbin/nginx").exists()):
        pytest.fail("nginx is not here; install Debian's nginx-light, or what your system calls it")
    stage = Stage(tmp_path_factory.mktemp("flower"))
    try:
        stage.start()
        yield stage
    finally:
        stage.stop()


@pytest.fixture
def transport(stage: Stage) -> Iterator[FlowerTransport]:
    """With all links of the hospitals up, whatever the test before did to them."""
    for name in LINKED:
        if name not in stage.links:
            stage.link(name)
    transport = stage.transport()
    until(lambda: transport.connected() >= set(LINKED), "the hospitals are connected")
    yield transport
    transport.close()


def round_trip(transport: FlowerTransport, messages: Mapping[str, bytes]) -> None:
    """Each hospital gets its message and sends the very bytes back."""
    sent = {transport.send(hospital, message): message for hospital, message in messages.items()}
    while sent:
        delivery = transport.receive(150)
        assert delivery is not None, "no reply came"
        assert delivery.content == sent.pop(delivery.ticket), delivery.problem


def everyone(size: int) -> dict[str, bytes]:
    return {hospital: os.urandom(size) for hospital in LINKED}


@pytest.mark.parametrize("size", [0, 1000, 31_000_000])
def test_bytes_come_back_exactly(transport: FlowerTransport, size: int) -> None:
    round_trip(transport, everyone(size))
    assert transport.receive(0.3) is None


def test_a_hospital_that_is_not_there_is_named(transport: FlowerTransport) -> None:
    assert TOY not in transport.connected()
    with pytest.raises(Unreachable, match=f"^{TOY}: not connected"):
        transport.send(TOY, b"anyone?")
    with pytest.raises(InputError, match="'omega': not in the roster"):
        transport.send("omega", b"anyone?")


def test_who_has_no_key_of_the_roster_or_no_ca_gets_nowhere(
    stage: Stage, transport: FlowerTransport, caplog: pytest.LogCaptureFixture
) -> None:
    ca, stranger = stage.ca, wire.load_private_key(stage.folder / "stranger.key")
    public = flower.public_key_to_bytes(stranger.public_key())
    activate = flower.ActivateNodeRequest(public_key=public, heartbeat_interval=30)
    with closing(wire._client(flower.FleetHttpClient, stage.proxy_address, ca, [])) as keyless:
        with pytest.raises(flower.httpx.HTTPStatusError, match="401"):
            keyless.ActivateNode(activate)
        with pytest.raises(flower.httpx.HTTPStatusError, match="403"):
            keyless.RegisterNode(activate)
    with closing(wire.fleet_client(stage.proxy_address, ca, stranger)) as unknown:
        with pytest.raises(flower.httpx.HTTPStatusError) as refused:
            unknown.ActivateNode(activate)
        assert "2004" in refused.value.response.text
        someone = flower.Node(node_id=1)
        with pytest.raises(flower.httpx.HTTPStatusError, match="401"):
            unknown.PullMessages(flower.PullMessagesRequest(node=someone))
    with caplog.at_level(logging.WARNING), stage.toy(lambda question: question, ca="other.crt"):
        until(lambda: "certificate verify failed" in caplog.text, "the link says that it knows no such CA")
        assert TOY not in transport.connected()


def test_a_link_with_an_unknown_key_says_so_and_goes_on_trying(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), stage.toy(lambda question: question, key="stranger"):
        until(lambda: caplog.text.count("2004") >= 2, "the link is refused twice")


def test_a_stranger_with_the_ca_reaches_fleet_paths_alone(stage: Stage) -> None:
    shut = [
        "/", "/health", "/docs", "/openapi.json", "/v1/control/start-run", "/v1/control/register-node",
        "/v1/control/list-nodes", "/v1/runtime/acquire-task", "/v1/runtime/get-nodes", "/v1/fleet/",
        "/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/fleet/get-run", "/v1/fleet/get-fab",
        "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "//v1/control/start-run",
        "/v1/fleet/..%2fcontrol/start-run", "/v1/fleet/pull-messages/../../control/start-run",
        "/v1/fleet/pull-messages/", "/v1/fleet/pull-messages;/../../control/start-run", "/V1/control/stop",
        "/v1/fleet/pull-messages%2f..%2f..%2fcontrol%2fstart-run", "/v1/./control/start-run", "/v1/control",
    ]  # fmt: skip
    assert {path: status(stage, path) for path in shut if status(stage, path) != 403} == {}
    # What is open asks for a node's signature.
    assert {status(stage, f"/v1/fleet/{name}") for name in FLEET_PATHS} == {401}


def status(stage: Stage, path: str) -> int:
    context = ssl.create_default_context(cafile=str(stage.ca))
    connection = http.client.HTTPSConnection("127.0.0.1", stage.proxy_port, context=context, timeout=30)
    try:
        connection.request("POST", path, b"", {"content-type": "application/protobuf"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_nobody_takes_the_servers_task_without_the_secret(stage: Stage) -> None:
    where = stage.address, stage.ca
    wanted = flower.AcquireTaskRequest(supported_task_types=[flower.TaskType.SERVER_APP])
    with closing(wire.control_client(*where)) as control:
        control.StartRun(wire.start_run_request())  # a task to be had
    for client in (
        wire._client(flower.RuntimeHttpClient, *where, []),
        wire.executor_client(*where, b"guessed"),
    ):
        with closing(client), pytest.raises(flower.httpx.HTTPStatusError, match="401"):
            client.AcquireTask(wanted)


def test_a_coordinator_with_a_wrong_secret_says_so_and_submits_nothing(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"guessed")
    before = (stage.logs / "superlink.log").read_text().count("Created run")
    with closing(stage.transport(tmp_path / "secret")) as transport:
        until(lambda: "401" in transport.problem, "it is refused")
        assert transport.connected() == frozenset()
        with pytest.raises(Unreachable, match=r"the SuperLink is not there .*401"):
            transport.send("alpha", b"?")
    assert (stage.logs / "superlink.log").read_text().count("Created run") == before


def test_a_foreign_app_runs_nowhere(
    stage: Stage, transport: FlowerTransport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    where = stage.address, stage.ca
    with closing(wire.control_client(*where)) as control:
        run_id = control.StartRun(foreign_app(tmp_path / "touched")).run_id
    round_trip(transport, everyone(10))
    with caplog.at_level(logging.WARNING), closing(stage.transport()) as another:
        until(lambda: another.connected() >= set(LINKED), "another transport is up")
        round_trip(another, everyone(10))
    assert f"run {run_id} is not this coordinator's" in caplog.text
    assert not (tmp_path / "touched").exists()
    assert not list((stage.logs / "flower").rglob("apps"))


def foreign_app(touched: Path) -> Any:
    code = f"from pathlib import Path\nPath({str(touched)!r}).touch()\n".encode()
    project = wire._EMPTY_APP.replace(b"silodp", b"foreign").replace(
        b"foreign_carries_no_code", b"foreign.app"
    )
    content = flower.build_fab_from_files(
        {"pyproject.toml": project, "foreign/app.py": code, "foreign/__init__.py": code}
    )[0]
    request = wire.start_run_request()
    request.fab.content, request.fab.hash_str = content, ""
    return request


def test_why_a_site_failed_stays_at_the_hospital(stage: Stage, transport: FlowerTransport) -> None:
    def fail(question: bytes) -> bytes:
        raise RuntimeError("a secret of the hospital")

    with stage.toy(fail):
        delivery = asked(transport, b"?")
    assert delivery.content is None
    assert delivery.problem == "the site failed"


def asked(transport: FlowerTransport, message: bytes) -> Any:
    until(lambda: TOY in transport.connected(), "the toy is connected")
    ticket = transport.send(TOY, message)
    delivery = transport.receive(150)
    assert delivery is not None
    assert delivery.ticket == ticket
    return delivery


def test_a_message_is_kept_while_the_site_is_down(stage: Stage, transport: FlowerTransport) -> None:
    tries: list[bytes] = []

    def down_at_first(question: bytes) -> bytes:
        tries.append(question)
        if len(tries) < 2:
            raise ConnectionRefusedError("nobody listens")
        return b"up"

    with stage.toy(down_at_first):
        assert asked(transport, b"there?").content == b"up"
    assert tries == [b"there?"] * 2


def test_a_late_reply_to_a_forgotten_ticket_is_thrown_away(stage: Stage, transport: FlowerTransport) -> None:
    go = threading.Event()

    def slow(question: bytes) -> bytes:
        go.wait()
        return question

    with stage.toy(slow):
        until(lambda: TOY in transport.connected(), "the toy is connected")
        late = transport.send(TOY, b"first")
        assert transport.receive(0.5) is None
        transport.forget(late)
        go.set()
        assert asked(transport, b"second").content == b"second"
        until(lambda: late not in transport._asked, "the late reply was thrown away")
        assert transport.receive(0.3) is None


class Rogue:
    """A hospital with a good key whose link is not ours."""

    def __init__(self, stage: Stage, client: Any) -> None:
        self._client = client
        public = flower.public_key_to_bytes(stage.nodes[TOY])
        joining = flower.ActivateNodeRequest(public_key=public, heartbeat_interval=1800)
        self._node = flower.Node(node_id=client.ActivateNode(joining).node_id)
        self._announcement = partial(flower.PushMessagesRequest, node=self._node)

    def question(self) -> Any:
        got = self._client.PullMessages(flower.PullMessagesRequest(node=self._node))
        return flower.message_from_proto(got.messages_list[0])

    def stall(self) -> None:
        """Announces a reply and never sends it."""
        reply = wire.reply_to(self.question(), b"never sent")
        with flower.no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            head = flower.message_to_proto(flower.remove_content_from_message(reply))
            tree = flower.get_object_tree(reply)
            self._client.PushMessages(self._announcement(messages_list=[head], message_object_trees=[tree]))

    def talk_nonsense(self) -> None:
        """Sends what is no message of ours."""
        empty = flower.Message(flower.RecordDict(), reply_to=self.question())
        wire.push(empty, self._announcement, self._client, self._node)

    def leave(self) -> None:
        self._client.DeactivateNode(flower.DeactivateNodeRequest(node_id=self._node.node_id))


@pytest.fixture
def rogue(stage: Stage) -> Iterator[Rogue]:
    key = wire.load_private_key(stage.folder / f"{TOY}.key")
    with closing(wire.fleet_client(stage.proxy_address, stage.ca, key)) as client:
        rogue = Rogue(stage, client)
        yield rogue
        rogue.leave()


@pytest.mark.usefixtures("transport")  # for the links of the hospitals
def test_a_hospital_that_stalls_holds_up_nobody(stage: Stage, rogue: Rogue) -> None:
    with closing(stage.transport(download=3600)) as transport:
        until(lambda: transport.connected() >= {*LINKED, TOY}, "all are connected")
        transport.send(TOY, b"answer me")
        rogue.stall()
        until(lambda: not transport._asked, "its reply is being downloaded")
        round_trip(transport, everyone(100))
        assert transport.receive(0) is None


def test_a_reply_that_does_not_come_or_is_nonsense_is_a_problem(stage: Stage, rogue: Rogue) -> None:
    with closing(stage.transport(download=1)) as transport:
        until(lambda: TOY in transport.connected(), "the rogue is connected")
        for answer in (rogue.stall, rogue.talk_nonsense):
            ticket = transport.send(TOY, b"answer me")
            answer()
            delivery = transport.receive(150)
            assert delivery is not None
            assert (delivery.ticket, delivery.content) == (ticket, None)
            assert delivery.problem.startswith("its reply could not be read: ")


def test_a_link_that_is_stopped_signs_off_and_joins_again_at_once(
    stage: Stage, transport: FlowerTransport
) -> None:
    stage.end("alpha")
    assert "alpha" not in transport.connected()
    assert online(stage.address, stage.ca, stage.nodes) == {*LINKED} - {"alpha"}
    assert "signed off; PyTorch was not imported" in stage.log("alpha")
    stage.link("alpha")
    until(lambda: "alpha" in transport.connected(), "alpha is back")
    assert "2004" not in stage.log("alpha")
    round_trip(transport, {"alpha": b"again"})


def test_a_killed_superlink_is_started_again_and_all_come_back(
    stage: Stage, transport: FlowerTransport
) -> None:
    def never(question: bytes) -> bytes:
        time.sleep(1000)
        return question

    with stage.toy(never):
        until(lambda: TOY in transport.connected(), "the toy is connected")
        ticket, old = transport.send(TOY, b"?"), stage.superlink.pid
        assert old is not None
        os.kill(old, signal.SIGKILL)
        delivery = transport.receive(150)
        assert delivery is not None
        assert (delivery.ticket, delivery.content) == (ticket, None)
        assert "ask again" in delivery.problem
    until(lambda: transport.connected() >= set(LINKED), "all are back")
    assert stage.superlink.pid not in (None, old)
    round_trip(transport, everyone(1000))


def test_a_coordinator_that_was_killed_begins_a_new_run(stage: Stage, transport: FlowerTransport) -> None:
    """The old run's task lives for a minute more: it is in nobody's way."""
    transport.send("alpha", b"for the old run")
    with closing(stage.transport()) as new:
        until(lambda: new.connected() >= set(LINKED), "the new transport is up")
        round_trip(new, everyone(10))

"""The coordinator's end: a run of Flower without an app, which carries silodp's messages.

Flower would start a process for the server's part of an app. Here the coordinator takes that task itself,
with the SuperLink's secret, and works on it from its own process. The app that Flower requires contains no
code and is never unpacked.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from silodp.engines.flower import internals as flower
from silodp.engines.flower import wire
from silodp.engines.transport import Delivery, Unreachable
from silodp.errors import InputError, printable, short

POLL = 0.1  # seconds between two requests for replies
TASK_HEARTBEAT = 10.0  # seconds; the SuperLink ends a task that is silent for 60

log = logging.getLogger(__name__)


_NODE = flower.Node(node_id=flower.SUPERLINK_NODE_ID)  # by which the coordinator sends and receives


@dataclass(frozen=True)
class _Run:
    """A task of the SuperLink that this process works on."""

    run_id: int
    client: Any


class FlowerTransport:
    """Carries bytes over a SuperLink; a `Transport`.

    Hospitals are identified by the public keys of their nodes only. One thread keeps the task alive and asks
    for replies; each reply is downloaded in a thread of its own, so that a hospital that announces a reply
    and never sends it delays no other. When the SuperLink or the task is gone, outstanding messages are
    delivered with a problem, and a new run is started as soon as there is a SuperLink again.
    """

    def __init__(
        self,
        address: str,
        ca: Path,
        secret: Path,
        nodes: Mapping[str, EllipticCurvePublicKey],
        *,
        ttl: float = 12 * 3600.0,
        download: float = 120.0,
    ) -> None:
        """Starts to connect, without waiting.

        Args:
            address: host:port of the SuperLink, on loopback.
            ca: certificate of the CA that signed the SuperLink's.
            secret: file of the SuperLink's executor secret.
            nodes: public key of each hospital's node by the hospital's name; no two are the same.
            ttl: seconds after which the SuperLink deletes an unanswered message. With a round's deadline, a
                hospital that was disconnected does not receive outdated plans.
            download: seconds for the pieces of a reply after it was announced.
        """
        self._address, self._ca, self._ttl, self._download = address, ca, ttl, download
        self._names = {bytes(flower.public_key_to_bytes(key)): name for name, key in nodes.items()}
        try:
            self._secret = secret.read_bytes()
        except OSError as error:
            raise InputError(f"{secret}: cannot be read ({error.strerror}); see deploy init") from None
        wire.tls_context(ca)
        self.problem = "not connected yet"  # why there is no connection; empty while there is one
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._waiting: set[str] = set()  # tickets that are waited for
        self._asked: set[str] = set()  # ids of messages without a reply yet, forgotten ones included
        self._arrived: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="flower transport", daemon=True)
        self._thread.start()

    def connected(self) -> frozenset[str]:
        """Names of the hospitals whose nodes are online; none while there is no SuperLink."""
        run = self._run
        try:
            return frozenset(self._online(run)) if run else frozenset()
        except Exception as error:
            self._failed(run, error)
            return frozenset()

    def send(self, hospital: str, message: bytes) -> str:
        """Uploads a message for a hospital and returns its ticket.

        Raises:
            Unreachable: the hospital is not online, or there is no SuperLink.
        """
        if hospital not in self._names.values():
            raise InputError(
                f"hospital {short(hospital)}: not in the roster; it has {sorted(self._names.values())}"
            )
        run = self._run
        if run is None:
            raise Unreachable(f"{hospital}: the SuperLink is not there ({self.problem}); try again later")
        try:
            node_id = self._online(run).get(hospital)
            if node_id is None:
                raise Unreachable(f"{hospital}: not connected; its link must run and reach the coordinator")
            sent = wire.to_node(message, run.run_id, node_id, self._ttl)
            ticket = wire.push(sent, flower.PushAppMessagesRequest, run.client, _NODE)
        except Unreachable:
            raise
        except Exception as error:
            self._failed(run, error)
            raise Unreachable(f"{hospital}: could not be sent to ({wire.reason_of(error)})") from None
        with self._lock:
            if ticket and self._run is run:
                self._waiting.add(ticket)
                self._asked.add(ticket)
                return ticket
        raise Unreachable(f"{hospital}: the SuperLink did not take the message; try again")

    def receive(self, timeout: float) -> Delivery | None:
        """The next reply to any ticket, or why it does not come; None after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                delivery = self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            with self._lock:
                if delivery.ticket in self._waiting:
                    self._waiting.remove(delivery.ticket)
                    return delivery

    def forget(self, ticket: str) -> None:
        """Stops waiting for a reply; when it comes, it is dropped."""
        with self._lock:
            self._waiting.discard(ticket)

    def close(self) -> None:
        """Ends the run; the SuperLink refuses late replies."""
        self._closed.set()
        self._thread.join(2 * wire.REQUEST_TIMEOUT)
        with self._lock:
            run, self._run = self._run, None
        if run:
            with suppress(Exception):
                run.client.PushTaskOutput(flower.PushTaskOutputRequest(sub_status=flower.SubStatus.COMPLETED))
            run.client.close()

    # --- the thread that keeps the run -------------------------------------------------------------

    def _work(self) -> None:
        beaten = 0.0
        while not self._closed.is_set():
            run = self._run
            try:
                if run is None:
                    run = self._begin()
                    with self._lock:
                        self._run, self.problem = run, ""
                    log.info("run %d begun at %s", run.run_id, self._address)
                    beaten = time.monotonic()
                if time.monotonic() - beaten > TASK_HEARTBEAT:
                    if not run.client.SendTaskHeartbeat(flower.SendTaskHeartbeatRequest()).success:
                        raise wire.ProtocolError("the SuperLink has ended the task")
                    beaten = time.monotonic()
                self._collect(run)
            except Exception as error:
                self._failed(run, error)
                self._closed.wait(0.5)
            self._closed.wait(POLL)

    def _begin(self) -> _Run:
        """Submits a run and acquires its task."""
        where = self._address, self._ca
        control = wire.control_client(*where)
        executor = wire.executor_client(*where, self._secret)
        wanted = flower.AcquireTaskRequest(supported_task_types=[flower.TaskType.SERVER_APP])
        try:
            # First tasks that others left; this also fails with a wrong secret before a run is submitted.
            while (taken := executor.AcquireTask(wanted)).token:
                self._refuse(wire.task_client(*where, taken.token), taken.task.run_id)
            answer = control.StartRun(wire.start_run_request())
            if not answer.HasField("run_id"):
                raise wire.ProtocolError("the SuperLink did not take the run")
            while (taken := executor.AcquireTask(wanted)).token:
                client = wire.task_client(*where, taken.token)
                if taken.task.run_id == answer.run_id:
                    client.PullTaskInput(flower.PullTaskInputRequest())  # includes the app, which is not used
                    return _Run(answer.run_id, client)
                self._refuse(client, taken.task.run_id)
            raise wire.ProtocolError("the run's task is taken: is there another coordinator?")
        finally:
            control.close()
            executor.close()

    def _refuse(self, client: Any, run_id: int) -> None:
        """Ends a run that somebody else submitted, or that a killed coordinator left."""
        log.warning("run %d is not this coordinator's; it is ended, and its app is not opened", run_id)
        with suppress(Exception):
            client.PushTaskOutput(
                flower.PushTaskOutputRequest(
                    sub_status=flower.SubStatus.FAILED, details="this SuperLink runs no apps"
                )
            )
        client.close()

    def _failed(self, run: _Run | None, error: Exception) -> None:
        """Records an error; unless it is temporary, the run is over."""
        reason = wire.reason_of(error)
        temporary = wire.status_of(error) in (None, *wire.UNAVAILABLE)
        lasting = isinstance(error, wire.ProtocolError) or not temporary
        with self._lock:
            if reason != self.problem:
                log.warning("%s: %s", self._address, reason)
            self.problem = reason
            if run is None or run is not self._run or not lasting:
                return
            self._run = None
            self._asked.clear()
            for ticket in self._waiting:
                self._arrived.put(Delivery(ticket, None, "the SuperLink lost the run; ask again"))
        run.client.close()

    # --- messages ------------------------------------------------------------------------------------

    def _online(self, run: _Run) -> dict[str, int]:
        """Ids of the nodes that are online and in the roster, by hospital."""
        nodes = run.client.GetNodes(flower.GetNodesRequest()).nodes
        self.problem = ""
        return {
            self._names[node.public_key]: node.node_id for node in nodes if node.public_key in self._names
        }

    def _collect(self, run: _Run) -> None:
        """Asks for replies; each is downloaded in a thread."""
        with self._lock:
            asked = list(self._asked)
        if not asked:
            return
        got = run.client.PullMessages(flower.PullAppMessagesRequest(message_ids=asked))
        self.problem = ""
        for proto, tree in zip(got.messages_list, got.message_object_trees, strict=True):
            head = flower.message_from_proto(proto)
            ticket = head.metadata.reply_to_message_id
            with self._lock:
                self._asked.discard(ticket)
                wanted = ticket in self._waiting
            threading.Thread(target=self._take, args=(run, ticket, head, tree, wanted), daemon=True).start()

    def _take(self, run: _Run, ticket: str, head: Any, tree: Any, wanted: bool) -> None:
        """Downloads a reply, unless it is no longer wanted, and lets the SuperLink delete it."""
        content, problem = None, ""
        if head.has_error():
            problem = printable(head.error.reason, one_line=True)[:200] or "the hospital could not answer"
        elif wanted:
            try:
                content = wire.pull(
                    tree, run.run_id, run.client, _NODE, seconds=self._download, give_up=self._closed
                )
            except Exception as error:
                problem = f"its reply could not be read: {wire.reason_of(error)}"
        self._arrived.put(Delivery(ticket, content, problem))
        wire.confirm(head.metadata.message_id, run.run_id, run.client, _NODE)

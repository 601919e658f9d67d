"""A hospital's end: a Fleet client of Flower that carries bytes and runs no code.

It never requests or unpacks an app, and opens no port. Whatever the coordinator sends is only passed to
`handle(bytes) -> bytes`. Flower's own node is not used, since it would download code and run it with access
to the node's key.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silodp.engines.flower import internals as flower
from silodp.engines.flower import wire
from silodp.errors import printable

HEARTBEAT = float(
    flower.HEARTBEAT_MIN_INTERVAL
)  # seconds; after twice as long without one, a node is offline
LONGEST_BACKOFF = 5.0  # seconds

_HINTS = {
    412: " (the key is not registered, or the SuperLink has not noticed yet that this node had disconnected)",
    401: " (the SuperLink does not know this node, or the clock is more than 5 s ahead)",
    403: " (the proxy refuses this path: is it the coordinator's address?)",
}

log = logging.getLogger(__name__)

Handle = Callable[[bytes], bytes]


@dataclass(frozen=True)
class LinkSettings:
    """The address and the identity of a link.

    Attributes:
        address: host:port of the coordinator's proxy.
        ca: certificate of the CA that signed the server's.
        key: file of the node's private key, P-384 in OpenSSH's format.
        poll: seconds between two requests for messages.
        site_patience: seconds for which a message is kept while `handle` raises OSError, which means that the
            site is not running.
        largest: most bytes of a message.
    """

    address: str
    ca: Path
    key: Path
    poll: float = 0.2
    site_patience: float = 600.0
    largest: int = wire.LARGEST


def run_link(settings: LinkSettings, handle: Handle, stop: threading.Event) -> None:
    """Connects, passes each message to `handle`, and sends its answer, until `stop` is set. Blocks.

    Errors of the connection or the SuperLink are logged, and it connects again. When `stop` is set the node
    is deactivated, so that it can connect again at once; after a kill the SuperLink refuses the same key for
    up to 20 s, and the link keeps trying. If `handle` raises OSError, the site is not running, and the
    message is tried again; for any other exception, the answer is a fixed sentence.

    Raises:
        InputError: the key or the CA certificate cannot be read.
    """
    key = wire.load_private_key(settings.key)
    wire.tls_context(settings.ca)
    pause = 0.5
    while not stop.is_set():
        client = wire.fleet_client(settings.address, settings.ca, key)
        try:
            node_id = _join(client, key)
            pause = 0.5
            log.info("connected to %s", settings.address)
            _Session(settings, handle, stop, client, node_id).run()
        except Exception as error:  # whatever Flower or the network raises, it connects again
            log.warning(
                "%s: %s%s", settings.address, _line(error), _HINTS.get(wire.status_of(error) or 0, "")
            )
        finally:
            client.close()
        stop.wait(pause)
        pause = min(2 * pause, LONGEST_BACKOFF)


def _line(error: Exception) -> str:
    return printable(wire.reason_of(error), one_line=True)


def _join(client: Any, key: Any) -> int:
    public = flower.public_key_to_bytes(key.public_key())
    request = flower.ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT)
    return int(client.ActivateNode(request).node_id)


class _Session:
    """One connection, from activation to deactivation."""

    def __init__(
        self, settings: LinkSettings, handle: Handle, stop: threading.Event, client: Any, node_id: int
    ) -> None:
        self._settings, self._handle, self._stop, self._client = settings, handle, stop, client
        self._node = flower.Node(node_id=node_id)
        self._over = threading.Event()

    def run(self) -> None:
        """Runs until `stop` is set; raises if the SuperLink no longer knows this node."""
        heart = threading.Thread(target=self._beat, daemon=True)
        heart.start()
        try:
            while not self._stop.is_set():
                got = self._retrying(
                    lambda: self._client.PullMessages(flower.PullMessagesRequest(node=self._node))
                )
                if not got.messages_list:
                    self._stop.wait(self._settings.poll)
                    continue
                self._work(flower.message_from_proto(got.messages_list[0]), got.message_object_trees[0])
        finally:
            self._over.set()
            heart.join(wire.REQUEST_TIMEOUT)
            with suppress(Exception):
                self._client.DeactivateNode(flower.DeactivateNodeRequest(node_id=self._node.node_id))

    def _beat(self) -> None:
        """Sends heartbeats, also during a long `handle`; errors show in the next pull."""
        request = flower.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        while not self._over.wait(HEARTBEAT / 2):
            with suppress(Exception):
                self._client.SendNodeHeartbeat(request)

    def _work(self, head: Any, tree: Any) -> None:
        message_id, run_id = head.metadata.message_id, head.metadata.run_id
        try:
            question = self._retrying(
                lambda: wire.pull(
                    tree, run_id, self._client, self._node,
                    seconds=wire.REQUEST_TIMEOUT, largest=self._settings.largest,
                )
            )  # fmt: skip
        except Exception as error:
            if wire.status_of(error) == 401:
                raise
            log.warning("a message could not be read: %s", _line(error))
            reply = wire.reply_to(head, None, "the message could not be read")
        else:
            reply = wire.reply_to(head, *self._answer(question))
        if self._stop.is_set() and not reply.has_content():
            return  # stopping; the coordinator asks again
        # Flower delivers a message once, confirmed or not, and a confirmation only frees the SuperLink's
        # memory; so it is sent after the answer.
        self._send(reply)
        with suppress(Exception):
            self._client.ConfirmMessageReceived(
                flower.ConfirmMessageReceivedRequest(
                    node=self._node, run_id=run_id, message_object_id=message_id
                )
            )

    def _answer(self, question: bytes) -> tuple[bytes | None, str]:
        """The site's answer, or None and a sentence."""
        deadline = time.monotonic() + self._settings.site_patience
        waiting = False
        while True:
            try:
                return self._unless_stopped(question), ""
            except OSError as error:
                if time.monotonic() > deadline or self._stop.is_set():
                    return None, "the site did not answer"
                if not waiting:
                    log.warning("the site does not answer (%s); its message is kept and tried again", error)
                waiting = True
                self._stop.wait(1.0)
            except Exception:
                log.exception("a message could not be answered")
                return None, "the site failed"

    def _unless_stopped(self, question: bytes) -> bytes:
        """Calls `handle` in a thread, so that a link that is told to stop need not wait for it."""
        done: Future[bytes] = Future()

        def work() -> None:
            try:
                done.set_result(self._handle(question))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        while not wait([done], timeout=0.2).done:
            if self._stop.is_set():
                raise ConnectionError("stopped")
        return done.result()

    def _send(self, reply: Any) -> None:
        def announce(head: Any, tree: Any) -> Any:
            # Without the site's computing time, which Flower's own node would send.
            return self._client.PushMessages(
                flower.PushMessagesRequest(node=self._node, messages_list=[head], message_object_trees=[tree])
            )

        try:
            self._retrying(lambda: wire.push(reply, announce, self._client, self._node))
        except Exception as error:
            if wire.status_of(error) == 401:
                raise
            # 403: the run is over. The coordinator has continued without this answer, or asks again.
            log.warning("an answer was not taken: %s", _line(error))

    def _retrying(self, request: Callable[[], Any]) -> Any:
        """Repeats a request while the proxy or SuperLink is unavailable; raises errors that are permanent."""
        pause = 0.5
        while True:
            try:
                return request()
            except flower.httpx.TransportError as error:
                reason: Exception = error
            except flower.httpx.HTTPStatusError as error:
                if error.response.status_code not in (502, 503, 504):
                    raise
                reason = error
            log.warning("%s: %s", self._settings.address, _line(reason))
            if self._stop.wait(pause):
                raise reason
            pause = min(2 * pause, LONGEST_BACKOFF)

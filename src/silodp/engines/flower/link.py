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
from functools import partial
from pathlib import Path
from typing import Any

from silodp.engines.flower import internals as flower
from silodp.engines.flower import wire

POLL = 0.2  # seconds between two requests for messages
HEARTBEAT = float(flower.HEARTBEAT_MIN_INTERVAL)  # seconds; after twice as long a node is offline
SITE_PATIENCE = 600.0  # seconds for which a message is kept while the site is not running
LONGEST_BACKOFF = 5.0  # seconds

_HINTS = {
    412: " (the key is not registered, or the SuperLink has not noticed yet that this node had disconnected)",
    401: " (the SuperLink does not know this node, or the clock is more than 5 s ahead)",
    403: " (the proxy refuses this path: is it the coordinator's address?)",
}

log = logging.getLogger(__name__)

Handle = Callable[[bytes], bytes]


def run_link(address: str, ca: Path, key_file: Path, handle: Handle, stop: threading.Event) -> None:
    """Connects, passes each message to `handle`, and sends its answer, until `stop` is set. Blocks.

    Errors of the connection or the SuperLink are logged, and it connects again. When `stop` is set the node
    is deactivated, so that it can connect again at once; after a kill the SuperLink refuses the same key for
    up to 20 s, and the link keeps trying. If `handle` raises OSError, the site is not running, and the
    message is tried again; for any other exception, the answer is a fixed sentence.

    Args:
        address: host:port of the coordinator's proxy.
        ca: certificate of the CA that signed the server's.
        key_file: the node's private key, P-384 in OpenSSH's format.
        handle: the site.
        stop: set from another thread or a signal handler.

    Raises:
        InputError: the key or the CA certificate cannot be read.
    """
    key = wire.load_private_key(key_file)
    wire.tls_context(ca)
    public = flower.public_key_to_bytes(key.public_key())
    joining = flower.ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT)
    pause = 0.5
    while not stop.is_set():
        client = wire.fleet_client(address, ca, key)
        try:
            node_id = client.ActivateNode(joining).node_id
            pause = 0.5
            log.info("connected to %s", address)
            _Session(address, handle, stop, client, node_id).run()
        except Exception as error:  # whatever Flower or the network raises, it connects again
            hint = _HINTS.get(wire.status_of(error) or 0, "")
            log.warning("%s: %s%s", address, wire.reason_of(error), hint)
        finally:
            client.close()
        stop.wait(pause)
        pause = min(2 * pause, LONGEST_BACKOFF)


class _Session:
    """One connection, from activation to deactivation."""

    def __init__(
        self, address: str, handle: Handle, stop: threading.Event, client: Any, node_id: int
    ) -> None:
        self._address, self._handle, self._stop, self._client = address, handle, stop, client
        self._node = flower.Node(node_id=node_id)
        self._over = threading.Event()

    def run(self) -> None:
        """Runs until `stop` is set; raises if the SuperLink no longer knows this node."""
        heart = threading.Thread(target=self._send_heartbeats, daemon=True)
        heart.start()
        try:
            while not self._stop.is_set():
                got = self._retrying(
                    lambda: self._client.PullMessages(flower.PullMessagesRequest(node=self._node))
                )
                if not got.messages_list:
                    self._stop.wait(POLL)
                    continue
                self._work(flower.message_from_proto(got.messages_list[0]), got.message_object_trees[0])
        finally:
            self._over.set()
            heart.join(wire.REQUEST_TIMEOUT)
            with suppress(Exception):
                self._client.DeactivateNode(flower.DeactivateNodeRequest(node_id=self._node.node_id))

    def _send_heartbeats(self) -> None:
        """Sends heartbeats, also during a long `handle`; errors show in the next pull."""
        request = flower.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        while not self._over.wait(HEARTBEAT / 2):
            with suppress(Exception):
                self._client.SendNodeHeartbeat(request)

    def _work(self, head: Any, tree: Any) -> None:
        client, node, run_id = self._client, self._node, head.metadata.run_id
        try:
            question = self._retrying(
                lambda: wire.pull(tree, run_id, client, node, seconds=wire.REQUEST_TIMEOUT)
            )
        except Exception as error:
            if wire.status_of(error) == 401:
                raise
            log.warning("a message could not be read: %s", wire.reason_of(error))
            reply = wire.reply_to(head, None, "the message could not be read")
        else:
            reply = wire.reply_to(head, *self._answer(question))
        if self._stop.is_set() and not reply.has_content():
            return  # stopping; the coordinator asks again
        # Flower delivers a message once, confirmed or not, and a confirmation only frees the SuperLink's
        # memory; so it is sent after the answer.
        self._send(reply)
        wire.confirm(head.metadata.message_id, run_id, client, node)

    def _answer(self, question: bytes) -> tuple[bytes | None, str]:
        """The site's answer, or None and a sentence."""
        deadline = time.monotonic() + SITE_PATIENCE
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
        # Without the site's computing time, which Flower's own node would send.
        announcement = partial(flower.PushMessagesRequest, node=self._node)
        try:
            self._retrying(lambda: wire.push(reply, announcement, self._client, self._node))
        except Exception as error:
            if wire.status_of(error) == 401:
                raise
            # 403: the run is over. The coordinator has continued without this answer, or asks again.
            log.warning("an answer was not taken: %s", wire.reason_of(error))

    def _retrying(self, request: Callable[[], Any]) -> Any:
        """Repeats a request while the proxy or SuperLink is unavailable; raises errors that are permanent."""
        pause = 0.5
        while True:
            try:
                return request()
            except flower.httpx.TransportError as error:
                reason: Exception = error
            except flower.httpx.HTTPStatusError as error:
                if error.response.status_code not in wire.UNAVAILABLE:
                    raise
                reason = error
            log.warning("%s: %s", self._address, wire.reason_of(reason))
            if self._stop.wait(pause):
                raise reason
            pause = min(2 * pause, LONGEST_BACKOFF)

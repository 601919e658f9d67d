"""A hospital's end: a Fleet client of Flower that carries bytes and runs nothing.

It never asks for an app, unpacks none and opens no port. Whatever the coordinator sends, all that happens
here is `handle(bytes) -> bytes`. Flower's own node is not used: it would fetch code and run it beside the
node's key.
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

HEARTBEAT = float(flower.HEARTBEAT_MIN_INTERVAL)  # seconds; silent for twice as long, a node is offline
LONGEST_BACKOFF = 5.0  # seconds

_HINTS = {
    412: " (the key is not registered, or the SuperLink has not noticed yet that this node had gone)",
    401: " (the SuperLink does not know this node; a clock that is 5 s ahead is refused, too)",
    403: " (the proxy lets nobody through here: is it the coordinator's address?)",
}

log = logging.getLogger(__name__)

Handle = Callable[[bytes], bytes]


@dataclass(frozen=True)
class LinkSettings:
    """Where a link connects to, and as whom.

    Attributes:
        address: host:port of the coordinator's proxy.
        ca: certificate of the CA that signed the server's.
        key: file of the node's private key, P-384 in OpenSSH's format.
        poll: seconds between two questions for messages.
        site_patience: seconds for which a message is kept while `handle` raises OSError, which says that
            the site is not there.
        largest: bytes of a message.
    """

    address: str
    ca: Path
    key: Path
    poll: float = 0.2
    site_patience: float = 600.0
    largest: int = wire.LARGEST


def run_link(settings: LinkSettings, handle: Handle, stop: threading.Event) -> None:
    """Connects, and passes each message to `handle` and its answer back, until `stop` is set. Blocks.

    Whatever happens to the connection or the SuperLink, it is logged and tried again. When `stop` is set
    the node is signed off, so that it may join again at once; after a kill the SuperLink refuses the same
    key for up to 20 s, until it has noticed, and the link keeps trying. Where `handle` raises OSError the
    site is not there, and the message is tried again; any other exception is answered with a sentence that
    says nothing of it.

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
        except Exception as error:  # whatever Flower or the network raises, a hospital comes back
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
    """One connection, from joining to leaving."""

    def __init__(
        self, settings: LinkSettings, handle: Handle, stop: threading.Event, client: Any, node_id: int
    ) -> None:
        self._settings, self._handle, self._stop, self._client = settings, handle, stop, client
        self._node = flower.Node(node_id=node_id)
        self._over = threading.Event()

    def run(self) -> None:
        """Until `stop` is set, or the SuperLink no longer knows this node (raises)."""
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
        """Goes on while `handle` works for an hour. The next pull finds out about what goes wrong here."""
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
            return  # leaving: the coordinator asks again
        # Flower hands a message out once, confirmed or not: to confirm only frees the SuperLink's memory. So
        # it comes after the answer, and a link that dies before it has lost nothing that could be kept.
        self._send(reply)
        with suppress(Exception):
            self._client.ConfirmMessageReceived(
                flower.ConfirmMessageReceivedRequest(
                    node=self._node, run_id=run_id, message_object_id=message_id
                )
            )

    def _answer(self, question: bytes) -> tuple[bytes | None, str]:
        """The site's bytes, or a sentence in their place."""
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
        """`handle` may work for an hour; a link that is told to stop leaves it alone and signs off."""
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
            # Without the seconds that the site took, which Flower's own node would send along.
            return self._client.PushMessages(
                flower.PushMessagesRequest(node=self._node, messages_list=[head], message_object_trees=[tree])
            )

        try:
            self._retrying(lambda: wire.push(reply, announce, self._client, self._node))
        except Exception as error:
            if wire.status_of(error) == 401:
                raise
            # 403: the run is over. The coordinator has gone on without this answer, or asks again.
            log.warning("an answer was not taken: %s", _line(error))

    def _retrying(self, request: Callable[[], Any]) -> Any:
        """Rides out a proxy or SuperLink that is gone for a while; raises what will not pass by waiting."""
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

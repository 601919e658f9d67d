"""Flower's clients and messages, as silodp uses them to carry bytes."""

from __future__ import annotations

import hashlib
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from silodp.engines.flower import internals as flower
from silodp.errors import InputError, printable

LARGEST = 2**31 - 1  # bytes of one message
REQUEST_TIMEOUT = 30.0  # seconds for one HTTP request, of which the largest carries 5 MiB
UNAVAILABLE = (502, 503, 504)  # HTTP statuses of a proxy or SuperLink that may be back in a moment
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_FRAMING = 2**20  # bytes that Flower adds to a message's pieces
_MESSAGE_TYPE = "query"  # Flower admits train, evaluate and query; it means nothing here


logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log five requests a second


class ProtocolError(Exception):
    """What came over Flower is not what this transport expects."""


# --- clients -----------------------------------------------------------------------------------------


def fleet_client(address: str, ca: Path, key: Any) -> Any:
    """A hospital's client: every request is signed with the node's private key."""
    return _client(
        flower.FleetHttpClient, address, ca, [flower.NodeAuthHttpInterceptor(key, key.public_key())]
    )


def control_client(address: str, ca: Path) -> Any:
    return _client(flower.ControlHttpClient, address, ca, [])


def executor_client(address: str, ca: Path, secret: bytes) -> Any:
    """A client that can acquire tasks of the SuperLink, with its secret."""
    signing = flower.SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[_ACQUIRE])
    return _client(flower.RuntimeHttpClient, address, ca, [signing])


def task_client(address: str, ca: Path, token: str) -> Any:
    """A client for the task of a token."""
    return _client(flower.RuntimeHttpClient, address, ca, [flower.RuntimeTokenHttpInterceptor(token=token)])


def _client(kind: Any, address: str, ca: Path, interceptors: list[Any]) -> Any:
    context = tls_context(ca)
    client = kind(f"https://{address}", interceptors=interceptors, verify=context, timeout=REQUEST_TIMEOUT)
    client.close()
    # Flower's own follows redirects, and uses a proxy of the environment even for loopback.
    client._client = flower.httpx.Client(
        verify=context, timeout=REQUEST_TIMEOUT, trust_env=not _is_loopback(address)
    )
    return client


def tls_context(ca: Path) -> ssl.SSLContext:
    """A context that trusts only servers with a certificate of this CA."""
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{ca}: not a CA certificate ({error}); give the ca.crt of the kit") from None


def _is_loopback(address: str) -> bool:
    host = address.rsplit(":", 1)[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def status_of(error: Exception) -> int | None:
    """The HTTP status of a refused request; None where the request got no answer."""
    return error.response.status_code if isinstance(error, flower.httpx.HTTPStatusError) else None


def reason_of(error: Exception) -> str:
    """One printable line about an error of a request."""
    said = f"{type(error).__name__} {error}"
    if isinstance(error, flower.httpx.HTTPStatusError):
        said = f"HTTP {error.response.status_code} {error.response.text[:200]}"
    return printable(said.strip(), one_line=True)


# --- keys --------------------------------------------------------------------------------------------


def load_private_key(path: Path) -> Any:
    """Reads a node's private key: P-384, in OpenSSH's format, without a passphrase."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"{path}: not a node key ({error}); make one with ssh-keygen -t ecdsa -b 384"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp384r1":
        raise InputError(f"{path}: not a P-384 key; make one with ssh-keygen -t ecdsa -b 384")
    return key


# --- messages ----------------------------------------------------------------------------------------


def to_node(content: bytes, run_id: int, node_id: int, ttl: float) -> Any:
    """A message from the coordinator to a node."""
    metadata = flower.Metadata(
        run_id=run_id, message_id="", src_node_id=flower.SUPERLINK_NODE_ID, dst_node_id=node_id,
        reply_to_message_id="", group_id="", created_at=time.time(), ttl=ttl, message_type=_MESSAGE_TYPE,
    )  # fmt: skip
    return flower.make_message(metadata, content=_as_record(content))


def reply_to(message: Any, content: bytes | None, problem: str = "") -> Any:
    """A node's reply to a message: bytes, or a problem."""
    if content is not None:
        return flower.Message(_as_record(content), reply_to=message)
    return flower.Message(flower.Error(code=2, reason=problem), reply_to=message)


def _as_record(content: bytes) -> Any:
    # An array travels in pieces of 5 MiB; the same bytes in a ConfigRecord would be one request.
    array = flower.Array(dtype="uint8", shape=(len(content),), stype="bytes", data=content)
    return flower.RecordDict({"message": flower.ArrayRecord({"bytes": array})})


def push(message: Any, announcement: Callable[..., Any], client: Any, node: Any) -> str:
    """Uploads a message: first its head and the tree of its pieces, then the pieces that the answer asks for.

    Args:
        message: to send.
        announcement: the kind of request for head and tree, which differs between node and coordinator.
        client: of the node or of the coordinator's task.
        node: that sends.

    Returns:
        The message's id; empty where the SuperLink does not take it.
    """
    with flower.no_object_id_recompute():
        message_id = message.object_id
        message.metadata.__dict__["_message_id"] = message_id
        pieces = flower.get_all_nested_objects(message)
        head = flower.message_to_proto(flower.remove_content_from_message(message))
        tree = flower.get_object_tree(message)
        answer = client.PushMessages(announcement(messages_list=[head], message_object_trees=[tree]))
        if "" in getattr(answer, "message_ids", ()):
            return ""

        def upload(object_id: str, content: bytes) -> None:
            request = flower.PushObjectRequest(
                node=node, run_id=message.metadata.run_id, object_id=object_id, object_content=content,
                session_id=answer.session_id,
            )  # fmt: skip
            if not client.PushObject(request).stored:
                raise ProtocolError("the SuperLink did not take a piece of the message")

        flower.push_objects(pieces, upload, object_ids_to_push=set(answer.objects_to_push))
    return str(message_id)


def pull(
    tree: Any,
    run_id: int,
    client: Any,
    node: Any,
    *,
    seconds: float,
    largest: int = LARGEST,
    give_up: threading.Event | None = None,
) -> bytes:
    """Downloads a message's pieces and puts its bytes together.

    A sender may announce pieces and never send them: it waits for `seconds`, or until `give_up` is set.

    Raises:
        ProtocolError: it is not one array, or has more than `largest` bytes, possibly by repeating a piece.
    """
    got = 0

    def download(object_id: str) -> bytes:
        nonlocal got
        if give_up is not None and give_up.is_set():
            raise ProtocolError("given up")
        answer = client.PullObject(flower.PullObjectRequest(node=node, run_id=run_id, object_id=object_id))
        if not answer.object_found:
            raise ProtocolError("a piece of the message is gone")
        if not answer.object_available:
            raise flower.ObjectUnavailableError(object_id)
        got += len(answer.object_content)  # two threads may add at once; the limit need not be exact
        if got > largest + _FRAMING:
            raise ProtocolError(f"more than {largest:,} bytes")
        return bytes(answer.object_content)

    ids = list(dict.fromkeys(part.object_id for part in flower.iterate_object_tree(tree)))
    # Pieces arrive after the announcement; Flower's default pauses of seconds would add up.
    contents = flower.pull_objects(
        ids, download, max_time=seconds, max_tries_per_object=None, initial_backoff=0.1, backoff_cap=0.5
    )
    return joined(contents, largest)


def confirm(message_id: str, run_id: int, client: Any, node: Any) -> None:
    """Lets the SuperLink delete a message that came; if this fails, it only keeps it in memory."""
    request = flower.ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=message_id)
    with suppress(Exception):
        client.ConfirmMessageReceived(request)


def joined(contents: Mapping[str, bytes], largest: int = LARGEST) -> bytes:
    """The bytes of the one array among a message's pieces. Raises ProtocolError."""
    try:
        heads = {
            name: flower.get_object_head_values_from_object_content(piece) for name, piece in contents.items()
        }
        arrays = [name for name, (kind, _, _) in heads.items() if kind == flower.Array.__qualname__]
        if len(arrays) != 1:
            raise ProtocolError(f"{len(arrays)} arrays where one was expected")
        chunks = heads[arrays[0]][1]
        order = json.loads(flower.get_object_body(contents[arrays[0]], flower.Array))["arraychunk_ids"]
        ids = [chunks[number] for number in order]
        if sum(len(contents[name]) for name in ids) > largest + _FRAMING:
            raise ProtocolError(f"more than {largest:,} bytes")
        return b"".join(flower.get_object_body(contents[name], flower.ArrayChunk) for name in ids)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise ProtocolError(f"not a message of this transport ({type(error).__name__})") from None


# --- the coordinator's run ---------------------------------------------------------------------------

# It names modules that do not exist, so running this app raises an ImportError.
_EMPTY_APP = b"""[project]
name = "silodp"
version = "0"
description = "Carries bytes; holds no code"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "silodp"
[tool.flwr.app.components]
serverapp = "silodp_carries_no_code:server"
clientapp = "silodp_carries_no_code:client"
"""


def start_run_request() -> Any:
    """A request to start a run of an app without code."""
    content = flower.build_fab_from_files({"pyproject.toml": _EMPTY_APP})[0]
    app = flower.Fab(hashlib.sha256(content).hexdigest(), content, {})
    return flower.StartRunRequest(fab=flower.fab_to_proto(app))

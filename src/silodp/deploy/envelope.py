"""Signed requests and replies between the coordinator and a site, independent of the transport.

A request names the run, the hospital and what is asked; a reply names the request that it answers, by its
digest. Both are signed (Ed25519) over all of their bytes, so nobody on the way, not even another hospital,
can change, forge or swap one. Identity follows from the key, never from who delivers a message.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import ConfigDict

from silodp.errors import InputError
from silodp.files import as_record

RequestKind = Literal["facts", "agree", "plan", "evaluate", "finish"]
ReplyKind = Literal["answer", "refusal"]

_MAGIC = b"\nsilodp-deploy-1"
_SIGNATURE = 64  # bytes
_LENGTH = struct.Struct("<I")
_LONGEST_HEADER = 2**22


@dataclass(frozen=True)
class Request:
    """A request of the coordinator to one site.

    Attributes:
        kind: what is asked.
        run: number of the run.
        hospital: name of the addressee.
        about: small public values, as JSON.
        payload: a plan's bytes, parameters, or nothing.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    side: ClassVar[str] = "request"

    kind: RequestKind
    run: str
    hospital: str
    about: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes = b""


@dataclass(frozen=True)
class Reply:
    """A site's reply to one request.

    Attributes:
        kind: an answer, or a refusal with its reason in `about`.
        request: digest of the request.
        hospital: name of the sender.
        about: small public values, as JSON.
        payload: a contribution's bytes, scores, a statement, or nothing.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    side: ClassVar[str] = "reply"

    kind: ReplyKind
    request: str
    hospital: str
    about: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    @property
    def reason(self) -> str:
        """The reason of a refusal."""
        return str(self.about.get("reason", "it gives no reason"))


Message = TypeVar("Message", Request, Reply)


def digest(sealed: bytes) -> str:
    """SHA-256 of a sealed request, by which a reply names it."""
    return hashlib.sha256(sealed).hexdigest()


def seal(message: Request | Reply, key: Ed25519PrivateKey) -> bytes:
    """Signs and serialises a message: payload, header, signature.

    What differs between hospitals comes last, so that a transport that cuts messages into pieces stores the
    pieces of a plan only once.
    """
    fields = {name: value for name, value in vars(message).items() if name != "payload"}
    header = json.dumps(fields, sort_keys=True).encode()
    body = message.payload + header + _LENGTH.pack(len(header))
    return body + key.sign(_signed_as(message.side) + body) + _MAGIC


def unseal(kind: type[Message], sealed: bytes, key: Ed25519PublicKey) -> Message:
    """Verifies and reads a request or a reply; InputError unless `key` signed it and all fields are valid."""
    side, end = kind.side, len(sealed) - len(_MAGIC) - _SIGNATURE
    if sealed[-len(_MAGIC) :] != _MAGIC or end < _LENGTH.size:
        raise InputError(f"{side}: {len(sealed)} bytes that are none of silodp's")
    body = sealed[:end]
    try:
        key.verify(sealed[end : -len(_MAGIC)], _signed_as(side) + body)
    except InvalidSignature:
        raise InputError(f"{side}: it was changed on the way, or signed by another key") from None
    try:
        (length,) = _LENGTH.unpack(body[-_LENGTH.size :])
        start = end - _LENGTH.size - length
        if length > _LONGEST_HEADER or start < 0:
            raise ValueError
        header = as_record(kind, json.loads(body[start : -_LENGTH.size]))
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            f"{side}: signed, but not what this version of silodp sends; use the same version"
        ) from None
    return replace(header, payload=body[:start])


def _signed_as(side: str) -> bytes:
    """Begins what is signed, so that a reply cannot pass for a request."""
    return f"silodp {side} 1\0".encode()

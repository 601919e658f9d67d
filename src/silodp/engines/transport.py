"""The interface of transports, which carry bytes to hospitals and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from silodp.errors import InputError


class Unreachable(InputError):
    """The hospital is not connected now; it may be later."""


@dataclass(frozen=True)
class Delivery:
    """The outcome of a message: the hospital's reply, or a problem.

    A transport does not verify who wrote the bytes; their reader checks the signature.
    """

    ticket: str
    content: bytes | None
    problem: str = ""


class Transport(Protocol):
    """Carries bytes to hospitals and back, without interpreting them."""

    def connected(self) -> frozenset[str]:
        """Names of the hospitals that are online now."""
        ...

    def send(self, hospital: str, message: bytes) -> str:
        """Sends a message; returns a ticket that identifies its reply.

        Raises:
            Unreachable: the hospital is not connected, or the transport is down.
        """
        ...

    def receive(self, timeout: float) -> Delivery | None:
        """The next reply to any ticket, or None after `timeout` seconds.

        Every ticket that was not forgotten gets one delivery at most. A problem may be delivered long after a
        hospital has become silent, so a caller needs a deadline of its own.
        """
        ...

    def forget(self, ticket: str) -> None:
        """Stops waiting for a ticket: a late reply is dropped."""
        ...

    def close(self) -> None:
        """Ends the transport."""
        ...

"""Carrying bytes to hospitals and back, whatever the network is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from silodp.errors import InputError


class Unreachable(InputError):
    """The hospital is not connected now; it may be later."""


@dataclass(frozen=True)
class Delivery:
    """What came of a message: the hospital's bytes as they were sent, or why nothing came.

    Who wrote the bytes is not known here: a reader checks their signature.
    """

    ticket: str
    content: bytes | None
    problem: str = ""


class Transport(Protocol):
    """Carries bytes to hospitals and back; knows nothing of what they mean."""

    def connected(self) -> frozenset[str]:
        """Names of the hospitals that are online now."""
        ...

    def send(self, hospital: str, message: bytes) -> str:
        """Hands a message over; returns a ticket by which its reply is known.

        Raises:
            Unreachable: the hospital is not connected, or what carries messages is down.
        """
        ...

    def receive(self, timeout: float) -> Delivery | None:
        """The next reply to any ticket, or None after `timeout` seconds.

        Every ticket that was not forgotten gets one delivery at most. A problem may come long after the
        hospital went silent, so a caller keeps a deadline of its own.
        """
        ...

    def forget(self, ticket: str) -> None:
        """The ticket is no longer waited for: a late reply is thrown away."""
        ...

    def close(self) -> None:
        """Nothing is sent or received any more."""
        ...

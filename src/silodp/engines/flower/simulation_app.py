"""The process of Flower's simulation: the driver of Ray, and the leader of a process group.

Its ServerApp carries bytes between the training process and Flower's Grid; its ClientApp, in an actor of Ray,
passes them to the function `module:function`. Neither interprets them. When the training process ends, for
whatever reason, the connection closes, and all processes of the group are killed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from silodp.engines.flower import simulation_internals as flower
from silodp.errors import printable

_KIND = "query"  # Flower admits train, evaluate and query; it means nothing here
_LIFE = 30 * 24 * 3600.0  # seconds after which Flower forgets a message
_PAUSE = 0.01  # seconds between two looks for replies

Outgoing = SimpleQueue[tuple[str, bytes | None, str] | None]
"""What goes to the training process: a ticket (empty: the simulation has ended), bytes or None, a problem."""


def main() -> None:
    """`python -c … DESCRIPTOR SETTINGS`: runs until the connection ends."""
    connection, settings = Connection(int(sys.argv[1])), json.loads(sys.argv[2])
    outgoing: Outgoing = SimpleQueue()
    # A thread of its own sends, so that reading never waits for the other side to read.
    sender = threading.Thread(target=_send_all, args=(connection, outgoing), daemon=True)
    sender.start()
    try:
        _run(settings, connection, outgoing)
    except BaseException as error:
        while error.__cause__ is not None:  # Flower wraps what happened twice
            error = error.__cause__
        outgoing.put(("", None, f"{type(error).__name__}: {error}"))
    outgoing.put(None)
    sender.join(10)
    shutil.rmtree(settings["folder"], ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # Ray leaves helper processes behind


def _run(settings: dict[str, Any], connection: Connection, outgoing: Outgoing) -> None:
    server, client = flower.ServerApp(), flower.ClientApp()

    @server.main()  # type: ignore[untyped-decorator]
    def relay(grid: flower.Grid, context: flower.Context) -> None:
        _relay(grid, settings["nodes"], connection, outgoing)

    client.query()(partial(answer_in_actor, settings["handler"]))
    resources = {"num_cpus": settings["cpus"], "num_gpus": settings["gpus"]}
    # Flower hands them to Ray as an actor's options; an actor that died would stay in its pool for good.
    resources["max_restarts"] = -1
    flower.run_simulation(
        server, client, settings["nodes"],
        backend_config={"client_resources": resources, "init_args": settings["ray"]},
    )  # fmt: skip


def _relay(grid: flower.Grid, count: int, connection: Connection, outgoing: Outgoing) -> None:
    """Passes messages on and replies back, until the other side closes the connection."""
    while len(nodes := sorted(grid.get_node_ids())) < count:  # nodes appear shortly after the grid
        time.sleep(_PAUSE)
    tickets: dict[str, str] = {}  # by Flower's number of the message
    while True:
        if not tickets or connection.poll(_PAUSE):
            try:
                ticket, node, content = connection.recv()
            except (EOFError, OSError):
                return
            message = flower.Message(_record(content), nodes[node], _KIND, ttl=_LIFE)
            (number,) = grid.push_messages([message])
            tickets[number] = ticket
        for reply in grid.pull_messages(list(tickets)) if tickets else ():
            ticket = tickets.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                outgoing.put((ticket, None, _in_short(reply.error.reason)))
            else:
                outgoing.put((ticket, _bytes(reply), ""))


def _in_short(reason: str) -> str:
    """Shortens Flower's reason, `<class 'package.Kind'>:<'text'>`; for a dead actor that is a page."""
    found = re.match(r"<class '[\w.]*?(\w+)'>", reason)
    if found and found[1].startswith("Actor"):
        return f"its actor ended ({found[1]})"
    return printable(" ".join(reason.split()), one_line=True)[:300]


def _send_all(connection: Connection, outgoing: Outgoing) -> None:
    with suppress(OSError):  # the other side is gone, which `_relay` sees as well
        while (answer := outgoing.get()) is not None:
            connection.send(answer)


def answer_in_actor(handler: str, message: flower.Message, context: flower.Context) -> flower.Message:
    """Answers a message with the handler's bytes; runs in an actor of Ray."""
    return flower.Message(_record(_loaded(handler)(_bytes(message))), reply_to=message)


@cache
def _loaded(handler: str) -> Any:
    module, _, name = handler.partition(":")
    return getattr(import_module(module), name)


def _record(content: bytes) -> flower.RecordDict:
    array = flower.Array(dtype="uint8", shape=(len(content),), stype="bytes", data=content)
    return flower.RecordDict({"message": flower.ArrayRecord({"bytes": array})})


def _bytes(message: flower.Message) -> bytes:
    return bytes(message.content["message"]["bytes"].data)

"""A link with a toy in the place of a site: ADDRESS CA KEY HANDLER FOLDER."""

import logging
import sys
import time
from pathlib import Path

from silodp.engines.flower.link import LinkSettings, run_link, stop_on_signals

address, ca, key, handler, folder = sys.argv[1:]


def echo(question: bytes) -> bytes:
    return question


def reverse(question: bytes) -> bytes:
    return question[::-1]


def fail(question: bytes) -> bytes:
    raise RuntimeError("a secret of the hospital")


def slow(question: bytes) -> bytes:
    """Answers once a file is there."""
    while not (Path(folder) / "go").exists():
        time.sleep(0.05)
    return question


def absent(question: bytes) -> bytes:
    """The site's process is not up until a file is there."""
    if not (Path(folder) / "site-is-up").exists():
        raise ConnectionRefusedError("nobody listens")
    return question


logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
settings = LinkSettings(address, Path(ca), Path(key))
run_link(settings, {one.__name__: one for one in (echo, reverse, fail, slow, absent)}[handler], stop_on_signals())
print("signed off; PyTorch was", "imported" if "torch" in sys.modules else "not imported")

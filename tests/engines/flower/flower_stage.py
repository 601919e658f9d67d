"""Certificates, keys and processes of a small federation on loopback, for the tests of this folder."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import free_port

from silodp.deploy.certificates import issue_server, new_authority
from silodp.deploy.keys import new_node_key, write_node_key, write_private
from silodp.engines.flower.grid import FlowerTransport
from silodp.engines.flower.link import Handle, run_link
from silodp.engines.flower.proxy import nginx_config, proxy
from silodp.engines.flower.superlink import LOGS, superlink

HOSPITALS = ("alpha", "beta", "gamma")  # `Stage.link` starts their links, in processes of their own
TOY = "delta"  # its link is a thread of the test, or no link at all
LINK = Path(__file__).with_name("echo_link.py")


class Stage:
    """A coordinator's SuperLink and proxy, keys of the hospitals, and links that were started."""

    def __init__(self, folder: Path, database: bool = False) -> None:
        self.folder, self.logs, self.ca = folder, folder / LOGS, folder / "ca.crt"
        authority = new_authority("tests")
        server = issue_server(authority, ["localhost", "127.0.0.1"])
        for name, certified in (("ca", authority), ("server", server), ("other", new_authority("others"))):
            (folder / f"{name}.crt").write_bytes(certified.pem)
        write_private(folder / "server.key", server.key)
        keys = {name: new_node_key() for name in (*HOSPITALS, TOY, "stranger")}
        for name, key in keys.items():
            write_node_key(folder / f"{name}.key", key)
        self.nodes = {name: key.public_key() for name, key in keys.items() if name != "stranger"}
        (folder / "superexec.secret").write_bytes(secrets.token_bytes(32))
        port, self.proxy_port = free_port(), free_port()
        self.address, self.proxy_address = f"127.0.0.1:{port}", f"127.0.0.1:{self.proxy_port}"
        self.superlink = superlink(folder, port, self.nodes, folder / "state.db" if database else None)
        (folder / "proxy").mkdir()
        (folder / "nginx.conf").write_text(nginx_config(self.proxy_address, port), encoding="utf-8")
        self.proxy = proxy(folder / "nginx.conf", folder / "nginx.log")
        self.links: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self.superlink.start()
        self.proxy.start()

    def transport(self, secret: Path | None = None, download: float = 20.0) -> FlowerTransport:
        """The coordinator's end; `secret` in place of its own."""
        secret = secret or self.folder / "superexec.secret"
        return FlowerTransport(self.address, self.ca, secret, self.nodes, download=download)

    def link(self, name: str) -> None:
        """Starts a link in a process of its own; its log is NAME.log."""
        with open(self.folder / f"{name}.log", "ab") as output:
            self.links[name] = subprocess.Popen(
                [sys.executable, LINK, self.proxy_address, self.ca, self.folder / f"{name}.key"],
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @contextmanager
    def toy(self, handle: Handle, key: str = TOY, ca: str = "ca.crt") -> Iterator[None]:
        """A link in a thread, which has signed off at the end."""
        stop = threading.Event()
        where = self.proxy_address, self.folder / ca, self.folder / f"{key}.key"
        thread = threading.Thread(target=run_link, args=(*where, handle, stop))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def end(self, name: str) -> None:
        process = self.links.pop(name)
        process.terminate()
        process.wait(30)

    def stop(self) -> None:
        for process in self.links.values():
            process.kill()
            process.wait()
        self.proxy.stop()
        self.superlink.stop()

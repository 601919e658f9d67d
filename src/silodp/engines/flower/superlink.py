"""The coordinator's SuperLink: on loopback, with TLS, and without any app's code.

Everybody who reaches its port and has the CA certificate may submit apps and register keys. So it listens on
loopback only, and `proxy` exposes what hospitals need. With process isolation it starts no app itself, and
only those who know its secret can take a task.

Its state is in memory. With a database a round of small messages took about twice as long, one of 31 MB up
to half as long again (benchmarks/deploy_round.py --database), and it buys nothing: no run of Flower can be
resumed, the coordinator's own checkpoint is, and keys are registered again after each start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from silodp.engines.flower import internals as flower
from silodp.engines.flower import wire
from silodp.engines.flower.supervisor import Program, Supervisor, flower_environment
from silodp.errors import InputError
from silodp.files import private_folder


@dataclass(frozen=True)
class SuperLinkSettings:
    """Settings of a SuperLink.

    Attributes:
        port: on 127.0.0.1.
        ca: certificate of the CA; the server's certificate must name 127.0.0.1, and localhost for nginx.
        certificate, key: of the server.
        secret: file with the executor's secret, any bytes, readable by its owner only.
        folder: for its log and Flower's own files.
        database: a file of SQLite; None: in memory.
    """

    port: int
    ca: Path
    certificate: Path
    key: Path
    secret: Path
    folder: Path
    database: Path | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


def superlink(settings: SuperLinkSettings, roster: Mapping[str, str]) -> Supervisor:
    """Makes a supervisor for a SuperLink that registers the hospitals' node keys after each start.

    Args:
        settings: of the SuperLink.
        roster: public key of each hospital's node by its name, in OpenSSH's format.
    """
    keys = {name: wire.public_key_bytes(name, key) for name, key in roster.items()}
    folder = settings.folder.absolute()
    for path in (settings.ca, settings.certificate, settings.key, settings.secret):
        if not path.is_file():
            raise InputError(f"{path}: missing; make the coordinator's folder with deploy init")
    private_folder(folder)
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return Supervisor(
        Program(
            name="SuperLink",
            command=_command(settings),
            log_file=folder / "superlink.log",
            listens=settings.address,
            ready=lambda: _healthy(settings),
            after_start=lambda: register(settings.address, settings.ca, keys),
            environment=flower_environment(folder) | {"PATH": os.pathsep.join(programs)},
        )
    )


def register(address: str, ca: Path, keys: Mapping[str, bytes]) -> None:
    """Registers node keys that a SuperLink does not know yet."""
    client = wire.control_client(address, ca)
    try:
        known = {bytes(node.public_key) for node in client.ListNodes(flower.ListNodesRequest()).nodes_info}
        for name, key in keys.items():
            if key not in known:
                client.RegisterNode(flower.RegisterNodeRequest(public_key=key, name=name))
    finally:
        client.close()


def online(address: str, ca: Path, roster: Mapping[str, str]) -> frozenset[str]:
    """Names of the hospitals whose nodes are connected; OSError if the SuperLink does not answer."""
    keys = {wire.public_key_bytes(name, key): name for name, key in roster.items()}
    client = wire.control_client(address, ca)
    try:
        nodes = client.ListNodes(flower.ListNodesRequest()).nodes_info
    except flower.httpx.HTTPError as error:
        raise ConnectionError(f"{address}: {wire.reason_of(error)}") from None
    finally:
        client.close()
    found = {bytes(node.public_key) for node in nodes if node.status == "online"}
    return frozenset(name for key, name in keys.items() if key in found)


def _command(settings: SuperLinkSettings) -> list[str]:
    words = [
        "flower-superlink", "--host", "127.0.0.1", "--port", str(settings.port),
        "--ssl-ca-certfile", str(settings.ca.absolute()),
        "--ssl-certfile", str(settings.certificate.absolute()),
        "--ssl-keyfile", str(settings.key.absolute()),
        "--enable-supernode-auth",
        "--isolation", "process", "--superexec-auth-secret-file", str(settings.secret.absolute()),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    return words + (["--database", str(settings.database.absolute())] if settings.database else [])


def _healthy(settings: SuperLinkSettings) -> bool:
    with flower.httpx.Client(verify=wire.tls_context(settings.ca), trust_env=False, timeout=5) as client:
        return bool(client.get(f"https://{settings.address}/health").status_code == 200)

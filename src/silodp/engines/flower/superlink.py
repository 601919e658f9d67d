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
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from silodp.engines.flower import internals as flower
from silodp.engines.flower import wire
from silodp.engines.flower.supervisor import Supervisor, flower_environment
from silodp.errors import InputError
from silodp.files import private_folder

LOGS = Path("log", "superlink")  # in the coordinator's folder: superlink.log, and Flower's own files


def superlink(
    place: Path, port: int, nodes: Mapping[str, EllipticCurvePublicKey], database: Path | None = None
) -> Supervisor:
    """Makes a supervisor for a SuperLink that registers the hospitals' node keys after each start.

    Args:
        place: the coordinator's folder: ca.crt, server.crt and server.key, whose certificate must name
            127.0.0.1, and localhost for nginx; superexec.secret, any bytes, readable by its owner only.
        port: on 127.0.0.1.
        nodes: public key of each hospital's node by the hospital's name.
        database: a file of SQLite; None: in memory.
    """
    for name in ("ca.crt", "server.crt", "server.key", "superexec.secret"):
        if not (place / name).is_file():
            raise InputError(f"{place / name}: missing; make the coordinator's folder with deploy init")
    address, ca, folder = f"127.0.0.1:{port}", place / "ca.crt", place.absolute() / LOGS
    private_folder(folder)
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return Supervisor(
        "SuperLink",
        _command(place, port, database),
        folder / "superlink.log",
        listens=address,
        ready=lambda: _healthy(address, ca),
        after_start=lambda: _register(address, ca, nodes),
        environment=flower_environment(folder) | {"PATH": os.pathsep.join(programs)},
    )


def _register(address: str, ca: Path, nodes: Mapping[str, EllipticCurvePublicKey]) -> None:
    """Registers node keys that a SuperLink does not know yet."""
    client = wire.control_client(address, ca)
    try:
        known = {bytes(node.public_key) for node in client.ListNodes(flower.ListNodesRequest()).nodes_info}
        for name, node in nodes.items():
            if (key := flower.public_key_to_bytes(node)) not in known:
                client.RegisterNode(flower.RegisterNodeRequest(public_key=key, name=name))
    finally:
        client.close()


def online(address: str, ca: Path, nodes: Mapping[str, EllipticCurvePublicKey]) -> frozenset[str]:
    """Names of the hospitals whose nodes are connected; OSError if the SuperLink does not answer."""
    client = wire.control_client(address, ca)
    try:
        known = client.ListNodes(flower.ListNodesRequest()).nodes_info
    except flower.httpx.HTTPError as error:
        raise ConnectionError(f"{address}: {wire.reason_of(error)}") from None
    finally:
        client.close()
    found = {bytes(node.public_key) for node in known if node.status == "online"}
    return frozenset(name for name, key in nodes.items() if flower.public_key_to_bytes(key) in found)


def _command(place: Path, port: int, database: Path | None) -> list[str]:
    place = place.absolute()
    words = [
        "flower-superlink", "--host", "127.0.0.1", "--port", str(port),
        "--ssl-ca-certfile", str(place / "ca.crt"),
        "--ssl-certfile", str(place / "server.crt"),
        "--ssl-keyfile", str(place / "server.key"),
        "--enable-supernode-auth",
        "--isolation", "process", "--superexec-auth-secret-file", str(place / "superexec.secret"),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    return words + (["--database", str(database.absolute())] if database else [])


def _healthy(address: str, ca: Path) -> bool:
    with flower.httpx.Client(verify=wire.tls_context(ca), trust_env=False, timeout=5) as client:
        return bool(client.get(f"https://{address}/health").status_code == 200)

"""The coordinator's proxy, which exposes the eight paths that a link needs, and nothing else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from silodp.engines.flower.supervisor import Program, Supervisor, answers
from silodp.errors import InputError, short
from silodp.files import read_text

# What a node of Flower needs; a link requests no run and no app. Nodes are registered on loopback only.
FLEET_PATHS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "pull-object",
    "push-object",
    "confirm-message-received",
)


def nginx_config(
    listen: str, server_cert: Path, server_key: Path, upstream: str, ca: Path, folder: Path
) -> str:
    """A complete configuration of nginx, for `nginx -p PREFIX -c FILE -e stderr` by any user.

    Relative paths start at the prefix, so that a kit can be moved.

    Args:
        listen: address:port that hospitals reach.
        server_cert: its certificate.
        server_key: and key.
        upstream: host:port of the SuperLink, on loopback; its certificate must name localhost.
        ca: of the SuperLink's certificate.
        folder: for nginx's pid and temporary files; it must exist.
    """
    for name, value in (("listen", listen), ("upstream", upstream)):
        if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.*-]+):[0-9]{1,5}", value):
            raise InputError(f"{name} = {short(value)}: not address:port, as 0.0.0.0:8443 is")
    for path in (server_cert, server_key, ca, folder):
        if re.search(r'["\\$\x00-\x1f]', str(path)):
            raise InputError(f"{short(str(path))}: nginx cannot be given this path; use letters and digits")
    from jinja2 import StrictUndefined, Template

    template = Template(
        (Path(__file__).parent / "nginx.conf").read_text(encoding="utf-8"),
        undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    config: str = template.render(
        listen=listen, server_cert=server_cert, server_key=server_key, upstream=upstream, ca=ca,
        folder=folder, paths=FLEET_PATHS,
    )  # fmt: skip
    return config


def proxy(config: Path, log_file: Path) -> Supervisor:
    """Makes a supervisor for nginx.

    Args:
        config: as `nginx_config` writes it; its paths start at its folder.
        log_file: for its errors.
    """
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise InputError(
            "nginx: not installed, and hospitals must reach only what it lets through; install it (Debian: "
            "apt install nginx-light), or give --no-proxy if another proxy does this"
        )
    found = re.search(r"^ *listen (\S+) ssl;", read_text(config), re.MULTILINE)
    if found is None:
        raise InputError(f"{config}: it has no `listen HOST:PORT ssl;`; restore it from the kit")
    listen = found[1]
    words = [program, "-p", f"{config.parent.absolute()}/", "-c", str(config.absolute()), "-e", "stderr"]
    return Supervisor(Program("nginx", words, log_file, listens=listen, ready=lambda: answers(listen)))

"""The coordinator's proxy, which exposes the eight paths that a link needs, and nothing else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from silodp.engines.flower.supervisor import Supervisor, answers
from silodp.errors import InputError
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


def nginx_config(listen: str, port: int) -> str:
    """A complete configuration of nginx, for `nginx -p PREFIX -c FILE -e stderr` by any user.

    Its paths start at the prefix, so that a kit can be moved: ca.crt, server.crt and server.key, whose
    certificate must name localhost, and the folder `proxy` for nginx's pid and temporary files.

    Args:
        listen: address:port that hospitals reach.
        port: of the SuperLink, on loopback.
    """
    from jinja2 import StrictUndefined, Template

    template = Template(
        (Path(__file__).parent / "nginx.conf").read_text(encoding="utf-8"),
        undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return str(template.render(listen=listen, port=port, paths=FLEET_PATHS))


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
    return Supervisor("nginx", words, log_file, listens=listen, ready=lambda: answers(listen))

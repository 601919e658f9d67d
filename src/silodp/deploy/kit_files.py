"""The files of a kit that are no keys, from templates; `kit.py` decides who gets which."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any, Literal

from silodp import __version__
from silodp.deploy.config import split_address
from silodp.deploy.folders import write_new
from silodp.files import private_folder

TEMPLATES = Path(__file__).parent / "templates"
PLACES = {
    "home": "/var/lib/silodp",
    "venv": "/opt/silodp",
    "program": "/opt/silodp/bin/silodp",
    "data": "/srv/silodp/data",
    "version": __version__,
}
"""Paths that the systemd units expect."""


def write_files(folder: Path, kind: Literal["coordinator", "hospital"], **values: Any) -> None:
    """Writes the files of a folder that are no keys: each template of its kind, under the same path.

    Args:
        folder: of the coordinator or a hospital.
        kind: of the folder.
        values: as the templates have them.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES / kind),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # names, addresses and numbers, checked before
    )
    for name in environment.list_templates():
        private_folder((folder / name).parent)
        write_new(folder / name, environment.get_template(name).render(PLACES | values))


def listen_address(address: str) -> str:
    """The address that the proxy listens on: all interfaces, unless hospitals use loopback."""
    host, port = split_address(address)
    if host == "localhost":
        return f"127.0.0.1:{port}"
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return f"0.0.0.0:{port}"
    if ip.is_loopback:
        return address
    return f"0.0.0.0:{port}" if ip.version == 4 else f"[::]:{port}"

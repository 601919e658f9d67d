"""The contents of a kit's files; `kit.py` decides who gets which, and with which mode."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from silodp import __version__
from silodp.deploy.config import CoordinatorSettings, SiteSettings, split_address
from silodp.engines.flower.proxy import nginx_config

TEMPLATES = Path(__file__).parent / "templates"
PLACES = {
    "home": "/var/lib/silodp",
    "venv": "/opt/silodp",
    "program": "/opt/silodp/bin/silodp",
    "data": "/srv/silodp/data",
    "version": __version__,
}
"""Paths that the systemd units expect."""

Files = Iterator[tuple[str, str]]


def coordinator_files(settings: CoordinatorSettings, **facts: Any) -> Files:
    """Yields (path, text) of the files in the coordinator's folder that are no keys.

    Args:
        facts: fingerprint, server_until, keys, as its README.md has them.
    """
    yield from _rendered("coordinator", {**settings.model_dump(), **facts})
    yield "nginx.conf", nginx_config(_listen(settings.address), settings.port)


def hospital_files(name: str, address: str, **facts: Any) -> Files:
    """Yields (path, text) of the files in a hospital's folder that are no keys.

    Args:
        name: of the hospital.
        address: of the coordinator.
        facts: fingerprint, hospitals, keys, as the templates have them.
    """
    page_port = SiteSettings(name=name, superlink=address).page_port
    yield from _rendered("hospital", {"name": name, "address": address, "page_port": page_port, **facts})


def _listen(address: str) -> str:
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


def _rendered(folder: str, values: dict[str, Any]) -> Files:
    """Renders each file in a folder of templates; their paths in a kit are those in it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES / folder),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # names, addresses and numbers, checked before
    )
    for name in environment.list_templates():
        yield name, environment.get_template(name).render(PLACES | values)

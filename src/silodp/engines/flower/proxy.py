"""What the coordinator shows to the network: the eight paths that a link needs, and nothing else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from silodp.engines.flower.supervisor import Program, Supervisor, answers
from silodp.errors import InputError, short
from silodp.files import read_text

# A node of Flower needs these; a link asks for no run and no app. Registering is the coordinator's, on
# loopback.
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
    """A whole configuration of nginx, for `nginx -p PREFIX -c FILE -e stderr` by any user.

    Paths that are not absolute start at the prefix, so that a kit can be moved.

    Args:
        listen: address:port that hospitals reach.
        server_cert: its certificate.
        server_key: and key.
        upstream: host:port of the SuperLink, on loopback; its certificate must name localhost.
        ca: of the SuperLink's certificate.
        folder: for nginx's pid and what it puts down; it must exist.
    """
    for name, value in (("listen", listen), ("upstream", upstream)):
        if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.*-]+):[0-9]{1,5}", value):
            raise InputError(f"{name} = {short(value)}: not address:port, as 0.0.0.0:8443 is")
    for path in (server_cert, server_key, ca, folder):
        if re.search(r'["\\$\x00-\x1f]', str(path)):
            raise InputError(f"{short(str(path))}: nginx cannot be given this path; use letters and digits")
    temporary = "".join(
        f'    {kind}_temp_path "{folder}/{kind}";\n'
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    paths = "".join(
        f"        location = /v1/fleet/{name} {{ proxy_pass https://superlink/v1/fleet/{name}; }}\n"
        for name in FLEET_PATHS
    )  # with the path once more: otherwise it would be passed on as it was written, %2e%2e and all
    return f"""\
daemon off;
worker_processes 1;
pid "{folder}/nginx.pid";
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    server_tokens off;
{temporary}\
    client_max_body_size 16m;  # a piece of a message has 5 MiB
    limit_conn_zone $binary_remote_addr zone=callers:1m;
    upstream superlink {{ server {upstream}; keepalive 16; keepalive_timeout 3s; }}  # the SuperLink's: 5 s
    server {{
        listen {listen} ssl;
        ssl_certificate "{server_cert}";
        ssl_certificate_key "{server_key}";
        ssl_protocols TLSv1.2 TLSv1.3;
        limit_conn callers 64;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_request_buffering off;
        proxy_buffering off;
        proxy_read_timeout 120s;
        proxy_ssl_trusted_certificate "{ca}";
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        location / {{ return 403; }}
{paths}\
    }}
}}
"""


def proxy(config: Path, log_file: Path) -> Supervisor:
    """nginx to `start` and `stop`.

    Args:
        config: as `nginx_config` writes it; its paths start at its folder.
        log_file: for its complaints.
    """
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise InputError(
            "nginx: not here, and hospitals must reach nothing but what it lets through; install it (Debian: "
            "apt install nginx-light), or give --no-proxy where another proxy does its work"
        )
    found = re.search(r"^ *listen (\S+) ssl;", read_text(config), re.MULTILINE)
    if found is None:
        raise InputError(f"{config}: it says nowhere `listen HOST:PORT ssl;`; restore it from the kit")
    listen = found[1]
    words = [program, "-p", f"{config.parent.absolute()}/", "-c", str(config.absolute()), "-e", "stderr"]
    return Supervisor(Program("nginx", words, log_file, listens=listen, ready=lambda: answers(listen)))

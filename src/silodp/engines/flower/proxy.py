"""What the coordinator shows to the network: the ten paths that a node needs, and nothing else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from silodp.engines.flower.supervisor import Program, Supervisor, answers
from silodp.errors import InputError, cannot_write, short

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
    """A whole configuration of nginx, for `nginx -c FILE -e stderr` by any user that may bind `listen`.

    It stays in the foreground and writes nothing outside `folder`. TLS ends here and begins anew on the way
    to the SuperLink, whose certificate is checked.

    Args:
        listen: address:port that hospitals reach.
        server_cert: its certificate.
        server_key: and key.
        upstream: host:port of the SuperLink, on loopback; its certificate must name localhost.
        ca: of the SuperLink's certificate.
        folder: for nginx's pid and what it must put down, which are the coordinator's alone.
    """
    for name, value in (("listen", listen), ("upstream", upstream)):
        if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.*-]+):[0-9]{1,5}", value):
            raise InputError(f"{name} = {short(value)}: not address:port, as 0.0.0.0:8443 is")
    cert, key, root, place = map(_quoted, (server_cert, server_key, ca, folder))
    paths = "\n".join(
        f"        location = /v1/fleet/{name} {{ proxy_pass https://superlink; }}" for name in FLEET_PATHS
    )
    return f"""\
daemon off;
worker_processes 1;
pid {place[:-1]}/nginx.pid";
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path {place[:-1]}/body";
    proxy_temp_path {place[:-1]}/proxy";
    fastcgi_temp_path {place[:-1]}/fastcgi";
    uwsgi_temp_path {place[:-1]}/uwsgi";
    scgi_temp_path {place[:-1]}/scgi";
    client_max_body_size 16m;  # a piece of a message has 5 MiB
    limit_conn_zone $binary_remote_addr zone=callers:1m;
    upstream superlink {{ server {upstream}; keepalive 16; keepalive_timeout 3s; }}  # the SuperLink's: 5 s
    server {{
        listen {listen} ssl;
        ssl_certificate {cert};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.2 TLSv1.3;
        limit_conn callers 64;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_request_buffering off;
        proxy_buffering off;  # nothing is put down on disk, which nginx's worker may not even write
        proxy_read_timeout 120s;
        proxy_ssl_trusted_certificate {root};
        proxy_ssl_verify on;
        proxy_ssl_name localhost;  # nginx compares names alone: an address in a certificate does not do
        location / {{ return 403; }}
{paths}
    }}
}}
"""


def proxy(
    listen: str, server_cert: Path, server_key: Path, upstream: str, ca: Path, folder: Path
) -> Supervisor:
    """nginx to `start` and `stop`, with `nginx_config` written into `folder`, which is made if need be."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise InputError("nginx: not on this machine; install nginx-light, or what your system calls it")
    text = nginx_config(listen, server_cert, server_key, upstream, ca, folder)
    config = folder.absolute() / "nginx.conf"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        config.write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(config, error) from None
    words = [program, "-c", str(config), "-e", "stderr"]
    log = folder.absolute() / "nginx.log"
    return Supervisor(Program("nginx", words, log, listens=listen, ready=lambda: answers(listen)))


def _quoted(path: Path) -> str:
    text = str(path.absolute())
    if re.search(r'["\\$\x00-\x1f]', text):
        raise InputError(f"{short(text)}: nginx cannot be given this path; use letters, digits, - and _")
    return f'"{text}"'

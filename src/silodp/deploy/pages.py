"""Live pages on loopback, of a coordinator and of a hospital's site, each served by the program it shows.

Guarantee: a page only reads. It answers GET on 127.0.0.1 only, and refuses requests with another host name
(DNS rebinding). Text from others is escaped, and nothing is loaded from elsewhere. If a page cannot be
served, the program continues without it.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from silodp.errors import InputError
from silodp.files import to_json

log = logging.getLogger("silodp")

TEMPLATES = Path(__file__).parent / "page"
GENERATOR = "silodp deploy"
HOSTS = ("127.0.0.1", "localhost", "[::1]")
FRESH = 0.5  # seconds for which a status is reused for all readers

Status = Callable[[], Any]
View = Callable[[Any], dict[str, Any]]


def serve_site_page(folder: Path, port: int) -> AbstractContextManager[str | None]:
    """Serves the page of a hospital's folder while a block runs.

    The context's value is the page's address, or None if the port is not available.

    Args:
        folder: with site.toml.
        port: on 127.0.0.1; 0: any that is free.
    """
    from silodp.deploy.config import read_site
    from silodp.deploy.page_views import site_view
    from silodp.deploy.status import site_status

    name = read_site(folder).name
    return _served(port, "site.html", f"{name}: its site", lambda: site_status(folder), site_view)


def serve_coordinator_page(place: Path, port: int) -> AbstractContextManager[str | None]:
    """As `serve_site_page`, for a coordinator's folder."""
    from silodp.deploy.config import read_coordinator
    from silodp.deploy.coordinator_status import coordinator_status
    from silodp.deploy.page_views import coordinator_view

    name = read_coordinator(place).name
    title = "The coordinator" if name == "coordinator" else f"{name}: the coordinator"
    return _served(port, "coordinator.html", title, lambda: coordinator_status(place), coordinator_view)


class _Server(ThreadingHTTPServer):
    """Serves one page, which is made anew when it is requested."""

    daemon_threads = True

    def __init__(self, port: int, template: str, title: str, read: Status, view: View) -> None:
        self._template, self._title, self._read, self._view = template, title, read, view
        self._lock = threading.Lock()
        self._known: tuple[float, Any, str] = (-FRESH, None, "")
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs readers that disconnect in the middle of a request."""
        log.debug("a reader of the page went away", exc_info=True)

    def status(self) -> tuple[Any, str]:
        """The status, or None and why it cannot be read."""
        with self._lock:
            at, status, problem = self._known
            if time.monotonic() - at >= FRESH:
                try:
                    status, problem = self._read(), ""
                except (InputError, OSError) as error:
                    status, problem = None, str(error)
                self._known = time.monotonic(), status, problem
            return status, problem

    def json(self) -> str:
        status, problem = self.status()
        return to_json(status if status is not None else {"problem": problem}, indent=1) + "\n"

    def html(self) -> str:
        from silodp.deploy.page_views import ASKED, when
        from silodp.report.frame import render

        status, problem = self.status()
        return render(
            self._template, GENERATOR, self._title, folder=TEMPLATES, script=_script(), when=when,
            now=when(time.time()), asked=ASKED, problem=problem, status=status,
            view=self._view(status) if status is not None else {},
        ).html  # fmt: skip


@cache
def _script() -> str:
    return (TEMPLATES / "live.js").read_text(encoding="utf-8")


@cache
def _headers() -> dict[str, str]:
    """HTTP headers that allow the page's own style and script only, by their hashes, and no frame."""
    from silodp.report.frame import style

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    policy = (
        f"default-src 'none'; script-src {digest(_script())}; style-src {digest(style())}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "silodp", ""
    timeout = 10  # seconds for a request to be sent

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in [f"{name}:{port}" for name in HOSTS]:
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "this page is for this machine only\n")
            return
        pages = {
            "/": (self.server.html, "text/html"),
            "/status.json": (self.server.json, "application/json"),
        }
        if self.path not in pages:
            self._send(HTTPStatus.NOT_FOUND, "there are / and /status.json\n")
            return
        make, kind = pages[self.path]
        try:
            content = make()
        except Exception:
            log.exception("the page could not be made")
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "the page could not be made; the log says why\n")
            return
        self._send(HTTPStatus.OK, content, kind)

    def _refuse(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, "this page can only be read\n")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

    def _send(self, code: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        content = text.encode("utf-8", "replace")
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        if code == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        for name, value in _headers().items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: an open page sends a request every two seconds."""


@contextmanager
def _served(port: int, template: str, title: str, read: Status, view: View) -> Iterator[str | None]:
    try:
        server = _Server(port, template, title, read, view)
    except OSError as error:
        log.warning("no page: port %d of 127.0.0.1 is not available (%s)", port, error.strerror or error)
        yield None
        return
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="page", daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    log.info("its page: %s", address)
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

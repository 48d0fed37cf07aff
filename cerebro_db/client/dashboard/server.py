"""Answers a browser on this machine: who has the token sees what the database user sees, and can change nothing.

Other programs of this machine can reach the port, and pages of other sites can make a browser ask it.  So every answer
needs the token, which the first address carries into a cookie; the name of the host must be that of this machine
(a foreign name that leads here is refused); and only GET is answered.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import traceback
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sqlalchemy import Engine

from ..errors import ClientError, NoSuchRun
from ..report import model
from . import pages

HOST = "127.0.0.1"
COOKIE = "cerebro_dashboard"
WITHIN = 30  # seconds of silence, after which a connection is closed
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Dashboard:
    """A server of the loopback address. Port 0: any that is free."""

    def __init__(self, engine: Engine, port: int) -> None:
        self.token = secrets.token_urlsafe(24)
        try:
            self._server = _Server((HOST, port), _Handler)
        except OSError as error:
            raise ClientError(
                f"The port {port} cannot be used: {error.strerror}.", "--port takes another one."
            ) from error
        self._server.engine, self._server.token = engine, self.token
        self.port: int = self._server.server_address[1]

    @property
    def address(self) -> str:
        """What a browser opens."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def serve(self) -> None:
        """Until ``close``, or Ctrl-C."""
        with self._server:
            self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        self._server.shutdown()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    engine: Engine
    token: str

    def __init__(self, *given: Any) -> None:
        self.one_at_a_time = threading.Lock()  # a report of a large run takes memory
        self.kept: model.Kept = {}
        super().__init__(*given)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Anybody on this machine can send anything, and nothing of it is printed. Errors of pages are, by do_GET."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = WITHIN
    server_version, sys_version = "cerebro_db", ""

    def do_GET(self) -> None:
        try:
            where = urlsplit(self.path)
            asked = parse_qs(where.query)
        except ValueError:
            return self._say(HTTPStatus.BAD_REQUEST, "This is no address.")
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            text = f"The dashboard is at {HOST}:{port} of the machine that it runs on. A tunnel needs the same port."
            return self._say(HTTPStatus.FORBIDDEN, text)
        if (given := asked.get("token", [""])[0]) and where.path == "/":
            return self._enter(given)
        if not self._is(self._cookie()):
            return self._say(
                HTTPStatus.FORBIDDEN, "Open the address that cerebro dashboard has printed: it has the token in it."
            )
        answers: dict[str, Callable[[list[pages.Key]], tuple[str, str]]] = {
            "/": lambda _: ("text/html", pages.overview(self.server.engine)),
            "/report": lambda keys: ("text/html", pages.report(self.server.engine, keys, self.server.kept)),
            "/state": lambda keys: ("text/plain", pages.state(self.server.engine, keys)),
        }
        if where.path not in answers:
            return self._say(HTTPStatus.NOT_FOUND, "There is no such page.")
        try:
            keys = list(dict.fromkeys(map(pages.key_of, asked.get("run", []))))
        except ValueError:
            return self._say(HTTPStatus.BAD_REQUEST, "run must be a number, a colon and the name of its owner.")
        if where.path == "/report" and not 1 <= len(keys) <= pages.MOST_COMPARED:
            return self._say(
                HTTPStatus.BAD_REQUEST, f"Choose 1 to {pages.MOST_COMPARED} runs. The list of runs is at /."
            )
        try:
            with self.server.one_at_a_time:
                kind, text = answers[where.path](keys)
        except NoSuchRun as error:
            return self._say(HTTPStatus.NOT_FOUND, f"{error.message} The list of runs is at /.")
        except ClientError as error:
            return self._say(HTTPStatus.BAD_GATEWAY, f"The database does not answer: {error.message}")
        except Exception as error:  # a defect; the browser is told, and the terminal
            traceback.print_exception(error)
            return self._say(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
        self._answer(HTTPStatus.OK, kind, text)

    def _enter(self, given: str) -> None:
        """Take the token out of the address, where the history of the browser would keep it."""
        if not self._is(given):
            return self._say(HTTPStatus.FORBIDDEN, "This is the token of another dashboard.")
        cookie = f"{COOKIE}_{self.server.server_address[1]}={given}; HttpOnly; SameSite=Lax; Path=/"
        self._answer(HTTPStatus.SEE_OTHER, "text/plain", "", {"Location": "/", "Set-Cookie": cookie})

    def _cookie(self) -> str:
        """The token that the browser sends, among the cookies of other servers of this machine."""
        wanted = f"{COOKIE}_{self.server.server_address[1]}"
        for one in self.headers.get("Cookie", "").split(";"):
            name, _, value = one.strip().partition("=")
            if name == wanted:
                return value
        return ""

    def _is(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, "text/plain", text + "\n")

    def _answer(self, status: HTTPStatus, kind: str, text: str, more: dict[str, str] | None = None) -> None:
        payload = text.encode()
        self.send_response(status)
        for name, value in {**HEADERS, **(more or {}), "Content-Type": f"{kind}; charset=utf-8"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *arguments: Any) -> None:
        """The token would be in the first line."""

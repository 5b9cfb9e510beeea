"""Hands one file to the Perfetto UI: on the loopback interface, once, and then the server is gone."""

from __future__ import annotations

import re
import secrets
import shutil
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from trace_doctor.errors import OutputError

UI = "https://ui.perfetto.dev"
ADDRESS = "127.0.0.1"
PORT = 9001
"""The only port of this machine that the UI may connect to, by its Content-Security-Policy; that of trace_processor as well."""
WAIT_S = 300.0
SILENCE_S = 10.0
"""A connection that says nothing for so long is closed."""


def hand_over(path: Path, announce: Callable[[str], object], *, port: int = PORT, wait_s: float = WAIT_S) -> None:
    """Serve the file to the first who asks for it by the UI's address, which `announce` is told; return once it is sent.

    Raises OutputError where the port is taken, or nobody came in time.
    """
    try:
        server = _Server((ADDRESS, port), path)
    except OSError as error:
        msg = f"port {port} of {ADDRESS} can't be listened on: {error.strerror}"
        hint = "end what listens there: another `trace-doctor open`, or trace_processor"
        raise OutputError(msg, where=str(path), hint=hint) from None
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            announce(server.link)
            if not server.sent.wait(wait_s):
                msg = f"nobody fetched the file within {wait_s:g} s"
                raise OutputError(msg, where=str(path), hint="open the printed address in a browser of this machine")
        finally:
            server.shutdown()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], file: Path) -> None:
        super().__init__(address, _Handler)
        name = re.sub(r"[^A-Za-z0-9._-]", "_", file.name)
        self.file, self.sent, self.lock = file, Event(), Lock()
        # who is not told the address can't guess it, though other users of the machine reach the port
        self.place = f"/{secrets.token_urlsafe(16)}/{name}"
        self.host = f"{ADDRESS}:{self.server_port}"
        self.link = f"{UI}/#!/?url=http://{self.host}{self.place}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hangs up may come again; all else is a bug."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SILENCE_S

    def do_GET(self) -> None:
        """The file, where it is asked for by its address and was not given away yet."""
        if self.path != self.server.place or self.headers["Host"] != self.server.host:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with self.server.lock:
            if self.server.sent.is_set():
                self.send_error(HTTPStatus.GONE)
                return
            with self.server.file.open("rb") as file:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("Content-Length", str(self.server.file.stat().st_size))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                shutil.copyfileobj(file, self.wfile)
            self.wfile.flush()
            self.server.sent.set()

    def do_OPTIONS(self) -> None:
        """Browsers ask first whether a page of the web may read from this machine."""
        self.send_response(HTTPStatus.NO_CONTENT)
        self.send_header("Access-Control-Allow-Methods", "GET")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def end_headers(self) -> None:
        """Every answer is for the UI alone."""
        self.send_header("Access-Control-Allow-Origin", UI)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

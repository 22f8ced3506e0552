"""A server on loopback that says what it is told to and keeps what it was sent: real HTTP, in a thread of its own."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Request(NamedTuple):
    """What arrived, and when (monotonic seconds). Names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float


class Say(NamedTuple):
    """An answer. `cut`: the connection is reset instead of an answer, after this many bytes of its body if any are
    given. `after_seconds`: it takes that long."""

    status: int = 200
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = ()
    cut: int | None = None
    after_seconds: float = 0.0


class Stub:
    """`url`; `requests` that arrived; `answers` to give, the last one again and again."""

    def __init__(self, *answers: Say | Callable[[Request], Say]) -> None:
        self.answers = list(answers) or [Say()]
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._leave = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, request: Request) -> Say:
        with self._lock:
            self.requests.append(request)
            said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        said = said if isinstance(said, Say) else said(request)
        self._leave.wait(said.after_seconds)
        return said

    @contextmanager
    def served(self) -> Generator[Stub, None, None]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._leave.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 100

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news here."""


def _handler(stub: Stub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self._body()
            headers = {name.lower(): value for name, value in self.headers.items()}
            said = stub.answer(Request(self.command, self.path, headers, body, time.monotonic()))
            if said.cut is not None and not said.cut:
                self._reset()
                return
            self.send_response(said.status)
            for name, value in (("Content-Length", str(len(said.body))), *said.headers):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said.body[: said.cut])
            if said.cut is not None:
                self._reset()

        do_GET = do_POST = do_PUT = do_DELETE = _serve

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _reset(self) -> None:
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    return Handler


@contextmanager
def stub(*answers: Say | Callable[[Request], Say]) -> Generator[Stub, None, None]:
    """A server for the time of a test."""
    with Stub(*answers).served() as served:
        yield served


def nobody() -> str:
    """The URL of a port at which nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"

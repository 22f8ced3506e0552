"""Fakes that are real servers, asked by real sockets: by a coroutine, and by a blocking call in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import urllib.request
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import perdure
from perdure import CanLookUp, Found, Idempotent, NotFound, Operation, effect, workflow
from perdure.testing import Aftermath, drill


class Books:
    """What the server has carried out, by key, and where it listens."""

    def __init__(self) -> None:
        self.done: dict[str, list[int]] = {}
        self.port = 0


class Handler(BaseHTTPRequestHandler):
    """Does it once per key where a key is given; tells what it has done."""

    books: Books

    def do_POST(self) -> None:
        cents = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        done = self.books.done.setdefault(self.path, [])
        if not (self.headers.get("Idempotency-Key") and done):
            done.append(cents)
        self._answer({"receipt": f"{self.path} {cents}"})

    def do_GET(self) -> None:
        self._answer({"receipts": [f"{self.path} {cents}" for cents in self.books.done.get(self.path, [])]})

    def _answer(self, value: object) -> None:
        raw = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def service() -> Generator[dict[type, object]]:
    """A server of its own for each trial."""
    books = Books()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Mine", (Handler,), {"books": books}))
    books.port = server.server_address[1]
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.001})
    serving.start()
    try:
        yield {Books: books}
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def ask(path: str, cents: int | None = None, **headers: str) -> Any:
    url = f"http://127.0.0.1:{perdure.use(Books).port}/{path}"
    body = None if cents is None else json.dumps(cents).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=5) as answer:
        return json.load(answer)


@effect(downstream=Idempotent())
def charge(order: str, cents: int) -> str:
    op = perdure.operation()
    return str(ask(op.id, cents, **op.headers)["receipt"])


@charge.key
def _(order: str, cents: int) -> str:
    return order


@effect(downstream=CanLookUp(settle_after=5))
async def transfer(order: str, cents: int) -> str:
    op, body = perdure.operation(), json.dumps(cents).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", perdure.use(Books).port)
    writer.write(b"POST /%s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (op.id.encode(), len(body), body))
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["receipt"])


@transfer.key
def _(order: str, cents: int) -> str:
    return order


@transfer.lookup
def _(op: Operation) -> Found[str] | NotFound:
    receipts = ask(op.id)["receipts"]
    return Found(receipts[0]) if receipts else NotFound()


@workflow
async def pays(order: str) -> list[str]:
    return list(await asyncio.gather(charge.call(order, 5), transfer(order, 7)))


def moved_once(after: Aftermath) -> None:
    assert sorted(after.use(Books).done.values()) == [[5], [7]], after.use(Books).done


def test_nothing_moves_twice() -> None:
    report = asyncio.run(drill(pays, "o-1", provide=service, check=moved_once))
    assert report.has_passed, report
    assert "looked up, found" in report["after Execute of 0.2/transfer#1"].evidence
    assert "sent; succeeded" in report["after Execute of 0.1/charge#1"].evidence

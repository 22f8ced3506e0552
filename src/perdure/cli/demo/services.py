"""The outside world of the demo: a model server, a ticket service, a payments service and one that knows policies, each
a process with a database of its own.

They know nothing of perdure: this file imports the standard library alone and is run by its path. Each writes down
every request it gets, answered or not, and tells what it wrote under GET /records (of what waits for its answer:
GET /records?unanswered=1); the demo's figures are made of that.

    python services.py model    --database model.db    [--hold N] [--think-seconds 0.05] [--upstream URL]
    python services.py tickets  --database tickets.db
    python services.py payments --database payments.db [--hold CLAIM ...]
    python services.py policies --database policies.db

A service listens on a free loopback port, prints that port on one line, and ends when its standard input is closed,
so it never outlives whoever started it.

The model server speaks OpenAI's chat-completions protocol and answers from a script; with `--upstream` it passes the
request on to a real model and writes down both sides. `--hold`: the N-th distinct question, or the payment for CLAIM,
is answered only when it is sent again; the first sending waits until its sender is gone. That makes the moment of the
kill exact. The payments service has paid by then: what is lost is its answer.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import re
import select
import socket
import sqlite3
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

HOLD_SECONDS_MAX = 60.0
UPSTREAM_SECONDS_MAX = 300.0
BODY_BYTES_MAX = 1_000_000
QUOTED_MAX = 200

Json = dict[str, Any]

# ── what was asked, and what was answered ───────────────────────────────────────────────────

RECORDS_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    number      INTEGER PRIMARY KEY,     -- in order of arrival
    ordinal     INTEGER NOT NULL,        -- which distinct request this is: 1, 2, ...; sent again, it keeps its ordinal
    received_at REAL NOT NULL,
    answered_at REAL,                    -- NULL: never answered
    held        INTEGER NOT NULL DEFAULT 0,  -- 1: it waits for its answer until its sender is gone
    caller      TEXT NOT NULL,           -- the User-Agent
    method      TEXT NOT NULL,
    path        TEXT NOT NULL,
    digest      TEXT NOT NULL,           -- of method, path and body
    key         TEXT,                    -- the Idempotency-Key
    body        TEXT NOT NULL,
    status      INTEGER,
    answer      TEXT
);
CREATE INDEX IF NOT EXISTS by_digest ON requests (digest, ordinal);
CREATE INDEX IF NOT EXISTS by_ordinal ON requests (ordinal);
"""


class Records:
    """Every request, written down before it is looked at and again when it is answered."""

    def __init__(self, database: sqlite3.Connection, lock: threading.RLock) -> None:
        self._database, self._lock = database, lock
        database.executescript(RECORDS_SCHEMA)

    def received(self, caller: str, method: str, path: str, key: str | None, body: str) -> tuple[int, int, bool]:
        """Number and ordinal of a request that just arrived, and whether it was sent before."""
        digest = hashlib.sha256(f"{method} {path}\n{body}".encode()).hexdigest()
        with self._lock:
            earlier = self._one("SELECT min(ordinal) FROM requests WHERE digest = ?", digest)
            ordinal = earlier or 1 + (self._one("SELECT max(ordinal) FROM requests") or 0)
            cursor = self._database.execute(
                "INSERT INTO requests (ordinal, received_at, caller, method, path, digest, key, body)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (ordinal, time.time(), caller, method, path, digest, key, body),
            )
            return cast(int, cursor.lastrowid), ordinal, bool(earlier)

    def answered(self, number: int, status: int, answer: str) -> None:
        with self._lock:
            self._database.execute(
                "UPDATE requests SET answered_at = ?, status = ?, answer = ? WHERE number = ?",
                (time.time(), status, answer, number),
            )

    def held(self, number: int) -> None:
        with self._lock:
            self._database.execute("UPDATE requests SET held = 1 WHERE number = ?", (number,))

    def read(self, *, only_unanswered: bool) -> list[Json]:
        condition = "WHERE answered_at IS NULL" if only_unanswered else ""
        with self._lock:
            cursor = self._database.execute(f"SELECT * FROM requests {condition} ORDER BY number")  # noqa: S608
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def _one(self, sql: str, *parameters: object) -> int | None:
        return cast("int | None", self._database.execute(sql, parameters).fetchone()[0])


# ── what both services share ────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    text: str
    number: int  # of all that arrived
    ordinal: int  # of the distinct ones
    sent_before: bool
    sender_is_gone: Callable[[], bool] = field(repr=False)

    def json(self) -> Json:
        """The body as an object. ValueError if it is none."""
        value = json.loads(self.text)
        if not isinstance(value, dict):
            raise ValueError(f"expected a JSON object, found {type(value).__name__}")
        return cast(Json, value)


@dataclass(frozen=True)
class Answer:
    status: int
    body: Json
    headers: dict[str, str] = field(default_factory=dict[str, str])


class SenderIsGone(Exception):
    """Nobody is left to answer."""


class Service:
    """A database, its records, and what a request is answered with. Subclasses fill in `answer` and `refusal`."""

    name = "service"

    def __init__(self, path: str) -> None:
        self.lock = threading.RLock()
        self.database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = NORMAL")
        self.records = Records(self.database, self.lock)

    def answer(self, request: Request) -> Answer:
        """The answer to one request; called from a thread per connection."""
        raise NotImplementedError

    def refusal(self, status: int, message: str) -> Answer:
        """An error in the shape in which this service tells errors."""
        raise NotImplementedError

    def wait_for_the_sender_to_go(self, request: Request) -> None:
        """Returns when it is taking too long: then the request is answered after all."""
        self.records.held(request.number)
        end = time.monotonic() + HOLD_SECONDS_MAX
        while time.monotonic() < end:
            if request.sender_is_gone():
                raise SenderIsGone
            time.sleep(0.005)


KEYS_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (          -- Idempotency-Key: the same key makes the same thing once
    key TEXT PRIMARY KEY, request TEXT NOT NULL, answer TEXT NOT NULL
)
"""


class KeyedService(Service):
    """One that honours an Idempotency-Key."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.database.execute(KEYS_SCHEMA)

    def once(self, request: Request, make: Callable[[], Answer]) -> Answer:
        """What is made and answered, or what was answered when the same key came first."""
        key, asked = request.headers.get("idempotency-key"), f"{request.path}\n{request.text}"
        if key is None:
            return make()
        row = self.database.execute("SELECT request, answer FROM keys WHERE key = ?", (key,)).fetchone()
        if row is not None:
            return Answer(200, json.loads(row[1])) if row[0] == asked else self.refusal(409, f"key {key!r} was used")
        answer = make()
        if answer.status < 400:
            self.database.execute("INSERT INTO keys VALUES (?, ?, ?)", (key, asked, json.dumps(answer.body)))
        return answer


def handler_for(service: Service) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60
        disable_nagle_algorithm = True  # head and body are two writes: on a connection that is kept, the second waits

        def do_GET(self) -> None:
            if self.path in {"/records", "/records?unanswered=1"}:
                records = service.records.read(only_unanswered="?" in self.path)
                self.send(Answer(200, {"service": service.name, "requests": records}))
            else:
                self.serve("")

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdigit() or int(length) > BODY_BYTES_MAX:
                self.close_connection = True
                self.send(service.refusal(411, f"Content-Length must be a number up to {BODY_BYTES_MAX}"))
                return
            self.serve(self.rfile.read(int(length)).decode("utf-8", "replace"))

        def serve(self, text: str) -> None:
            caller = self.headers.get("User-Agent", "")
            key = self.headers.get("Idempotency-Key")
            number, ordinal, sent_before = service.records.received(caller, self.command, self.path, key, text)
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            gone = self.sender_is_gone
            try:
                answer = service.answer(
                    Request(self.command, url.path, query, headers, text, number, ordinal, sent_before, gone)
                )
            except SenderIsGone:
                self.close_connection = True
                return
            except ValueError as error:
                answer = service.refusal(400, str(error))
            service.records.answered(number, answer.status, json.dumps(answer.body))
            self.send(answer)

        def send(self, answer: Answer) -> None:
            body = json.dumps(answer.body).encode()
            try:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except ConnectionError:
                self.close_connection = True

        def sender_is_gone(self) -> bool:
            readable, _, _ = select.select([self.connection], [], [], 0)
            try:
                return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""
            except ConnectionError:
                return True

        def log_message(self, format: str, *arguments: Any) -> None:
            """The records say it all."""

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve(service: Service) -> None:
    """Serve until standard input is closed."""
    server = Server(("127.0.0.1", 0), handler_for(service))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(0)


# ── the model server ────────────────────────────────────────────────────────────────────────

PLANS = [
    "Read what each customer wrote before, assess, decide, pay, write. Approve up to 500 EUR without a person.",
    "Sort the claims by amount, the smallest first. Approve up to 200 EUR without a person.",
    "Ask the customers for photographs first. Approve up to 100 EUR without a person.",
]


def scripted(task: str, system: str, question: str, times_asked: int) -> str:
    """What the scripted model says. Asked for a plan again, it makes another one, as models do."""
    amount = float(found.group(1)) if (found := re.search(r"([\d.]+) EUR", question)) else 0.0
    limit = float(found.group(1)) if (found := re.search(r"Approve up to ([\d.]+) EUR", system)) else 0.0
    match task:
        case "plan":
            return PLANS[min(times_asked, len(PLANS) - 1)]
        case "assess":
            return f"The damage fits the story; {amount:.0f} EUR is what such a repair costs."
        case "decide":
            verdict = "approve" if amount <= limit else "refer"
            return f"{verdict}: {amount:.0f} EUR, and the plan lets us approve up to {limit:.0f} EUR."
        case "summarize":
            return f"{question.count(' approve')} claims approved, {question.count(' refer')} referred to a person."
        case _:
            return "I can plan, assess, decide and summarize."


class ModelServer(Service):
    """POST /v1/chat/completions, as OpenAI has it; errors in OpenAI's shape too."""

    name = "model"

    def __init__(
        self, path: str, *, hold: Collection[str] = (), think_seconds: float = 0.0, upstream: str = ""
    ) -> None:
        super().__init__(path)
        self.hold, self.think_seconds, self.upstream = hold, think_seconds, upstream.rstrip("/")
        self.plans_made = 0

    def answer(self, request: Request) -> Answer:
        if (request.method, request.path) != ("POST", "/v1/chat/completions"):
            return self.refusal(404, f"Unknown request URL: {request.method} {request.path}.", code="unknown_url")
        if not request.headers.get("authorization", "").startswith("Bearer "):
            return self.refusal(401, "You didn't provide an API key.", code="invalid_api_key")
        if str(request.ordinal) in self.hold and not request.sent_before:
            self.wait_for_the_sender_to_go(request)
        return self.relayed(request) if self.upstream else self.completion(request)

    def refusal(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> Answer:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return Answer(status, {"error": {"message": message, "type": kind, "param": param, "code": code}})

    def completion(self, request: Request) -> Answer:
        try:
            asked = request.json()
        except ValueError as error:
            return self.refusal(400, f"We could not parse the JSON body of your request: {error}")
        if not isinstance(asked.get("model"), str):
            return self.refusal(400, "you must provide a model parameter")
        if asked.get("stream"):
            return self.refusal(400, "This model does not stream.", param="stream", code="unsupported_value")
        try:
            contents = {str(message["role"]): str(message["content"]) for message in asked["messages"]}
        except (KeyError, TypeError):
            return self.refusal(400, "messages must be a list of objects with role and content.", param="messages")
        time.sleep(self.think_seconds)
        return Answer(200, self.chat_completion(request, asked["model"], contents))

    def chat_completion(self, request: Request, model: str, contents: dict[str, str]) -> Json:
        question = contents.get("user", "")
        task = found.group(1) if (found := re.match(r"Task: (\w+)", question)) else ""
        with self.lock:
            text = scripted(task, contents.get("system", ""), question, self.plans_made)
            self.plans_made += task == "plan"
        prompt_tokens, completion_tokens = len(request.text) // 4, len(text) // 4
        return {
            "id": f"chatcmpl-{request.number}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }

    def relayed(self, request: Request) -> Answer:
        """The answer of the real model. The key passes through and is not written down.

        What is no chat completion with a text is refused: the agent could do nothing with it.
        """
        try:
            onward = urllib.request.Request(
                self.upstream + "/chat/completions",
                data=request.text.encode(),
                headers={"Content-Type": "application/json", "Authorization": request.headers["authorization"]},
            )
            with urllib.request.urlopen(onward, timeout=UPSTREAM_SECONDS_MAX) as response:
                text = response.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            after, said = error.headers.get("Retry-After"), error.read().decode(errors="replace")
            body = error_in(said) or self.quoted(error.code, said)
            return Answer(error.code, body, {"Retry-After": after} if after else {})
        except (OSError, ValueError, http.client.HTTPException) as error:
            return self.refusal(502, f"it did not answer: {error}")
        return Answer(200, json.loads(text)) if has_text(text) else Answer(502, self.quoted(502, text))

    def quoted(self, status: int, said: str) -> Json:
        """An error that tells the beginning of what is no answer."""
        return self.refusal(status, f"it said {' '.join(said.split())[:QUOTED_MAX] or 'nothing'}").body


def has_text(answer: str) -> bool:
    """Whether it is a chat completion that says something."""
    try:
        return isinstance(json.loads(answer)["choices"][0]["message"]["content"], str)
    except (ValueError, LookupError, TypeError):
        return False


def error_in(answer: str) -> Json | None:
    """The answer, if it is an error as OpenAI has them."""
    try:
        error = json.loads(answer)
        return cast(Json, error) if isinstance(error["error"]["message"], str) else None
    except (ValueError, LookupError, TypeError):
        return None


# ── the ticket service ──────────────────────────────────────────────────────────────────────

TICKETS_SCHEMA = """
CREATE TABLE IF NOT EXISTS tickets (
    id INTEGER PRIMARY KEY, customer TEXT NOT NULL, claim TEXT NOT NULL, title TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS comments (
    id INTEGER PRIMARY KEY, ticket INTEGER NOT NULL REFERENCES tickets, text TEXT NOT NULL
);
"""

Route = Callable[["TicketService", Request, re.Match[str]], Answer]


class TicketService(KeyedService):
    """POST /tickets, GET /tickets?customer=, POST /tickets/N/comments; POSTs honour an Idempotency-Key."""

    name = "tickets"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.database.executescript(TICKETS_SCHEMA)

    def answer(self, request: Request) -> Answer:
        for method, pattern, route in ROUTES:
            if method == request.method and (found := re.fullmatch(pattern, request.path)):
                with self.lock:
                    return self.once(request, partial(route, self, request, found))
        return self.refusal(404, f"there is no {request.method} {request.path}")

    def refusal(self, status: int, message: str) -> Answer:
        return Answer(status, {"error": message})

    def create(self, request: Request, _: re.Match[str]) -> Answer:
        customer, claim, title = texts(request, "customer", "claim", "title")
        cursor = self.database.execute(
            "INSERT INTO tickets (customer, claim, title) VALUES (?, ?, ?)", (customer, claim, title)
        )
        return Answer(201, {"id": cursor.lastrowid, "customer": customer, "claim": claim, "title": title})

    def comment(self, request: Request, found: re.Match[str]) -> Answer:
        (text,) = texts(request, "text")
        ticket = int(found.group(1))
        if self.database.execute("SELECT 1 FROM tickets WHERE id = ?", (ticket,)).fetchone() is None:
            return self.refusal(404, f"there is no ticket {ticket}")
        cursor = self.database.execute("INSERT INTO comments (ticket, text) VALUES (?, ?)", (ticket, text))
        return Answer(201, {"id": cursor.lastrowid, "ticket": ticket, "text": text})

    def list(self, request: Request, _: re.Match[str]) -> Answer:
        cursor = self.database.execute(
            "SELECT id, customer, claim, title FROM tickets WHERE customer = coalesce(?, customer) ORDER BY id",
            (request.query.get("customer"),),
        )
        names = ("id", "customer", "claim", "title")
        return Answer(200, {"tickets": [dict(zip(names, row, strict=True)) for row in cursor]})


ROUTES: list[tuple[str, str, Route]] = [
    ("POST", r"/tickets", TicketService.create),
    ("GET", r"/tickets", TicketService.list),
    ("POST", r"/tickets/(\d+)/comments", TicketService.comment),
]


def texts(request: Request, *names: str) -> list[str]:
    """These fields of the body. ValueError if one is missing or no text."""
    body = request.json()
    for name in names:
        if not isinstance(body.get(name), str):
            raise ValueError(f"{name} must be a text")
    return [body[name] for name in names]


# ── the payments service ────────────────────────────────────────────────────────────────────

PAYMENTS_SCHEMA = """
CREATE TABLE IF NOT EXISTS payments (
    id INTEGER PRIMARY KEY, route TEXT NOT NULL, claim TEXT NOT NULL, cents INTEGER NOT NULL, reference TEXT
)
"""


class PaymentService(KeyedService):
    """Three ways to pay, as there are in the world; GET /payments and GET /payments?claim= list what was paid, by
    whichever.

    POST /charges honours an Idempotency-Key. POST /transfers does not, and takes a `reference` of the sender's by which
    GET /transfers?reference= finds it. POST /payouts does neither. Each takes `claim` and `cents`.
    """

    name = "payments"

    def __init__(self, path: str, *, hold: Collection[str] = ()) -> None:
        super().__init__(path)
        self.hold = hold
        self.database.execute(PAYMENTS_SCHEMA)

    def refusal(self, status: int, message: str) -> Answer:
        return Answer(status, {"error": message})

    def answer(self, request: Request) -> Answer:
        match request.method, request.path:
            case "GET", "/payments" | "/transfers":
                return self.list(request)
            case "POST", "/charges":
                with self.lock:
                    answer = self.once(request, lambda: self.pay(request))
            case "POST", "/transfers" | "/payouts":
                with self.lock:
                    answer = self.pay(request)
            case _:
                return self.refusal(404, f"there is no {request.method} {request.path}")
        if answer.body.get("claim") in self.hold and not request.sent_before:
            self.wait_for_the_sender_to_go(request)
        return answer

    def pay(self, request: Request) -> Answer:
        (claim,) = texts(request, "claim")
        (cents,) = whole_numbers(request, "cents")
        reference, route = request.json().get("reference"), request.path.removeprefix("/")
        cursor = self.database.execute(
            "INSERT INTO payments (route, claim, cents, reference) VALUES (?, ?, ?, ?)",
            (route, claim, cents, reference),
        )
        return Answer(201, {"id": cursor.lastrowid, "route": route, "claim": claim, "cents": cents})

    def list(self, request: Request) -> Answer:
        """Of transfers those with the reference that is asked for; else those of the claim, or all."""
        if request.path == "/transfers":
            condition, asked = "route = 'transfers' AND reference = ?", request.query.get("reference")
        else:
            condition, asked = "claim = coalesce(?, claim)", request.query.get("claim")
        with self.lock:
            cursor = self.database.execute(
                f"SELECT id, route, claim, cents, reference FROM payments WHERE {condition} ORDER BY id",  # noqa: S608
                (asked,),
            )
            names = ("id", "route", "claim", "cents", "reference")
            return Answer(200, {"payments": [dict(zip(names, row, strict=True)) for row in cursor]})


# ── the policies ────────────────────────────────────────────────────────────────────────────

POLICIES_SCHEMA = """
CREATE TABLE IF NOT EXISTS policies (
    "order" TEXT PRIMARY KEY, percent INTEGER NOT NULL, "limit" INTEGER NOT NULL
)
"""


class PolicyService(Service):
    """GET /policies?order= tells how much of an order is paid back, in percent, and up to which limit, in cents.

    POST /policies with all three sets it. After POST /hold with `reads` so many of the next looks get no answer while
    their senders live.
    """

    name = "policies"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.to_hold = 0
        self.database.execute(POLICIES_SCHEMA)

    def refusal(self, status: int, message: str) -> Answer:
        return Answer(status, {"error": message})

    def answer(self, request: Request) -> Answer:
        match request.method, request.path:
            case "GET", "/policies":
                return self.look(request)
            case "POST", "/policies":
                (order,), (percent, limit) = texts(request, "order"), whole_numbers(request, "percent", "limit")
                with self.lock:
                    self.database.execute("REPLACE INTO policies VALUES (?, ?, ?)", (order, percent, limit))
                return Answer(200, {"order": order, "percent": percent, "limit": limit})
            case "POST", "/hold":
                with self.lock:
                    (self.to_hold,) = whole_numbers(request, "reads")
                return Answer(200, {"reads": self.to_hold})
            case _:
                return self.refusal(404, f"there is no {request.method} {request.path}")

    def look(self, request: Request) -> Answer:
        order = request.query.get("order", "")
        with self.lock:
            is_held = self.to_hold > 0
            self.to_hold -= is_held
        if is_held:
            self.wait_for_the_sender_to_go(request)
        with self.lock:
            row = self.database.execute('SELECT percent, "limit" FROM policies WHERE "order" = ?', (order,)).fetchone()
        if row is None:
            return self.refusal(404, f"there is no policy for {order!r}")
        return Answer(200, {"order": order, "percent": row[0], "limit": row[1]})


def whole_numbers(request: Request, *names: str) -> list[int]:
    """These fields of the body. ValueError if one is missing or no whole number above 0."""
    body = request.json()
    for name in names:
        if type(body.get(name)) is not int or body[name] <= 0:
            raise ValueError(f"{name} must be a whole number above 0")
    return [body[name] for name in names]


# ── started as a process ────────────────────────────────────────────────────────────────────


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("service", choices=["model", "tickets", "payments", "policies"])
    parser.add_argument("--database", required=True, type=Path)
    parser.add_argument("--hold", nargs="+", default=())
    parser.add_argument("--think-seconds", type=float, default=0.0)
    parser.add_argument("--upstream", default="")
    given = parser.parse_args(arguments)
    database = str(given.database)
    if given.service == "tickets":
        serve(TicketService(database))
    elif given.service == "policies":
        serve(PolicyService(database))
    elif given.service == "payments":
        serve(PaymentService(database, hold=given.hold))
    else:
        serve(ModelServer(database, hold=given.hold, think_seconds=given.think_seconds, upstream=given.upstream))


if __name__ == "__main__":
    main(sys.argv[1:])

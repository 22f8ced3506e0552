"""The order service: a process of its own, which keeps in a database of its own what its shops did.

    python -m tests.retail.service DATABASE

    POST /shops                    a new shop, as it was at the start; with {"hold": N} its N-th change is carried out,
                                   and answered only when whoever asked for it is gone
    GET  /shops/7/tools/TOOL       reads; `args` are JSON in the query
    POST /shops/7/ROUTE/TOOL       changes, with {"args": ...}, on a route that honours an Idempotency-Key (`keyed`),
                                   one that takes a `reference` by which it is found again (`referenced`), or `bare`
    GET  /shops/7/books            which changes were carried out; of the one with this `reference`
    GET  /shops/7/changes          what differs from the start

It starts and ends, and writes down its requests, as the services of the demo do.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.retail.shop import READS, WRITES, RefusedError, Shop, Start

from perdure.cli.demo.services import Answer, Request, Service, serve

SCHEMA = """
CREATE TABLE shops (id INTEGER PRIMARY KEY, hold INTEGER NOT NULL);
CREATE TABLE records (shop INTEGER, name TEXT, id TEXT, body TEXT NOT NULL, PRIMARY KEY (shop, name, id));
CREATE TABLE books (
    shop INTEGER, number INTEGER, route TEXT NOT NULL, key TEXT, reference TEXT, tool TEXT NOT NULL, args TEXT NOT NULL,
    answer TEXT NOT NULL, PRIMARY KEY (shop, number)
);
CREATE UNIQUE INDEX keyed ON books (shop, key) WHERE route = 'keyed';
"""


class Done(NamedTuple):
    """A change in the books."""

    number: int
    tool: str
    args: str
    answer: str


class OrderService(Service):
    """See above."""

    name = "orders"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.database.executescript(SCHEMA)
        self.start = Start()

    def refusal(self, status: int, message: str) -> Answer:
        return Answer(status, {"error": message})

    def answer(self, request: Request) -> Answer:
        for method, pattern, route in ROUTES:
            if method == request.method and (found := re.fullmatch(pattern, request.path)):
                return route(self, request, *found.groups())
        return self.refusal(404, f"there is no {request.method} {request.path}")

    def open(self, request: Request) -> Answer:
        with self.transaction() as database:
            cursor = database.execute("INSERT INTO shops (hold) VALUES (?)", (request.json().get("hold", 0),))
        return Answer(201, {"shop": cursor.lastrowid})

    def read(self, request: Request, shop: str, tool: str) -> Answer:
        if tool not in READS:
            return self.refusal(404, f"{tool} reads nothing")
        with self.lock:
            records = self.shop(shop)
        try:
            answer = READS[tool](records, **json.loads(request.query["args"]))
        except RefusedError as no:
            return self.refusal(409, str(no))
        return Answer(200, {"answer": json.dumps(answer)})

    def change(self, request: Request, shop: str, route: str, tool: str) -> Answer:
        if tool not in WRITES:
            return self.refusal(404, f"{tool} changes nothing")
        asked, key = request.json(), request.headers.get("idempotency-key")
        args = json.dumps(asked["args"], sort_keys=True)
        with self.transaction() as database:
            if route == "keyed" and (done := self.done(shop, "route = 'keyed' AND key = ?", key)):
                is_same = (done[0].tool, done[0].args) == (tool, args)
                return Answer(200, {"answer": done[0].answer}) if is_same else self.refusal(422, f"key {key} was used")
            records = self.shop(shop)
            try:
                WRITES[tool](records, **asked["args"])
            except RefusedError as no:
                return self.refusal(409, str(no))
            self.keep(shop, records)
            number, answer = 1 + len(self.done(shop)), f"{tool} done"
            row = (shop, number, route, key, asked.get("reference"), tool, args, answer)
            database.execute("INSERT INTO books VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            (hold,) = database.execute("SELECT hold FROM shops WHERE id = ?", (shop,)).fetchone()
        if number == hold:
            self.wait_for_the_sender_to_go(request)
        return Answer(201, {"answer": answer})

    def books(self, request: Request, shop: str) -> Answer:
        with self.lock:
            reference = request.query.get("reference")
            done = self.done(shop) if reference is None else self.done(shop, "reference = ?", reference)
        return Answer(200, {"books": [{**each._asdict(), "args": json.loads(each.args)} for each in done]})

    def changes(self, request: Request, shop: str) -> Answer:
        with self.lock:
            found = self.shop(shop).changes()
        return Answer(200, {"changes": [[list(path), value] for path, value in found.items()]})

    # ── the database ─────────────────────────────────────────────────────────────────────────
    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """All or nothing, one at a time."""
        with self.lock:
            self.database.execute("BEGIN IMMEDIATE")
            try:
                yield self.database
            except BaseException:
                self.database.execute("ROLLBACK")
                raise
            self.database.execute("COMMIT")

    def shop(self, shop: str) -> Shop:
        changed: dict[str, dict[str, Any]] = {"users": {}, "orders": {}}
        for name, key, body in self.database.execute("SELECT name, id, body FROM records WHERE shop = ?", (shop,)):
            changed[name][key] = json.loads(body)
        return Shop(self.start, **changed)

    def keep(self, shop: str, records: Shop) -> None:
        rows = [
            (shop, name, key, json.dumps(body))
            for name, table in records.tables.items()
            for key, body in table.touched.items()
        ]
        self.database.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", rows)

    def done(self, shop: str, condition: str = "true", *parameters: str | None) -> list[Done]:
        sql = f"SELECT number, tool, args, answer FROM books WHERE shop = ? AND {condition} ORDER BY number"
        return [Done(*row) for row in self.database.execute(sql, (shop, *parameters))]


ROUTES: list[tuple[str, str, Callable[..., Answer]]] = [
    ("POST", r"/shops", OrderService.open),
    ("GET", r"/shops/(\d+)/tools/(\w+)", OrderService.read),
    ("POST", r"/shops/(\d+)/(keyed|referenced|bare)/(\w+)", OrderService.change),
    ("GET", r"/shops/(\d+)/books", OrderService.books),
    ("GET", r"/shops/(\d+)/changes", OrderService.changes),
]

if __name__ == "__main__":
    serve(OrderService(sys.argv[1]))

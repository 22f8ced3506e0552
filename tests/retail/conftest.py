"""The order service of these tests, a process of its own, and what is asked of it from outside."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.retail.shop import Record
from tests.schedules.processes import environment

from perdure.cli.demo.processes import DIRECT, Service, serving


@dataclass(frozen=True)
class Orders:
    """The service, asked by HTTP. Every test has shops of its own, so nothing has to be put back."""

    service: Service

    def open_shop(self, *, hold: int = 0) -> int:
        """A new shop; its `hold`-th change gets no answer while its sender lives."""
        return int(self._ask("/shops", {"hold": hold})["shop"])

    def books(self, shop: int) -> list[Record]:
        """Which changes were carried out, in order."""
        books: list[Record] = self._ask(f"/shops/{shop}/books")["books"]
        return books

    def changes(self, shop: int) -> dict[tuple[str, ...], Any]:
        return {tuple(path): value for path, value in self._ask(f"/shops/{shop}/changes")["changes"]}

    def count_of_held(self) -> int:
        return sum(sending.held for sending in self.service.records(only_unanswered=True))

    def _ask(self, path: str, body: Record | None = None) -> Record:
        raw = None if body is None else json.dumps(body).encode()
        with DIRECT.open(urllib.request.Request(self.service.url + path, data=raw), timeout=60) as response:
            answer: Record = json.load(response)
        return answer


@pytest.fixture(scope="session")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orders]:
    folder = tmp_path_factory.mktemp("orders")
    program = ("-m", "tests.retail.service", str(folder / "orders.db"))
    with serving("orders", folder / "orders.log", *program, environment=environment()) as service:
        yield Orders(service)

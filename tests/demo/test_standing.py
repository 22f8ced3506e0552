"""The third act: decisions are checked before they are acted upon; and what it tells when they are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.demo.test_demo import environment

from perdure.cli.demo.figures import Payment, Sending
from perdure.cli.demo.processes import examples
from perdure.cli.demo.stage import Stage
from perdure.cli.demo.standing import DESK, figures_of, standing


@dataclass(frozen=True)
class Told:
    """Records, as they are when all went as promised."""

    sendings: tuple[Sending, ...]
    books: tuple[Payment, ...]
    asked: dict[str, list[int]]

    def kept(self) -> list[bool]:
        return [row.kept for row in figures_of(self.sendings, self.books, self.asked)]


def sending(service: str, path: str, caller: str, order: str, **body: object) -> Sending:
    return Sending(
        service=service, digest=f"{service}-{caller}-{order}", key=None, caller=caller, received_at=1.0,
        answered_at=2.0, held=0, status=201, method="POST", path=path,
        body=json.dumps({"claim": order, **body}), answer="{}",
    )  # fmt: skip


NOTE = sending("tickets", "/tickets", "claims-agent/2", "O-5", title="nothing: it was settled by hand, payment 10")
COMMENT = replace(NOTE, path="/tickets/1/comments", body='{"text": "well"}')
PAID = {order: sending("payments", "/charges", "claims-agent/2", order) for order in ("O-3", "O-4", "O-5")}
BY_HAND = sending("payments", "/payouts", "person/9", "O-5")
BOOKS = (
    Payment(10, "payouts", "O-5", 40_000),
    Payment(11, "charges", "O-4", 40_000),
    Payment(12, "charges", "O-3", 64_000),
)
TOLD = Told((COMMENT, BY_HAND, PAID["O-3"], PAID["O-4"], NOTE), BOOKS, {"O-3": [50, 80], "O-4": [50], "O-5": [50]})


def test_all_figures_are_kept_when_it_went_as_promised() -> None:
    assert TOLD.kept() == [True, True, True]


def but(n: int, **changes: Any) -> tuple[Payment, ...]:
    return (*BOOKS[:n], BOOKS[n]._replace(**changes), *BOOKS[n + 1 :])


BROKEN: dict[str, tuple[Callable[[], Told], list[int]]] = {
    "the amount of before was paid": (lambda: replace(TOLD, books=but(2, cents=40_000)), [0]),
    "both were paid": (lambda: replace(TOLD, books=(*BOOKS, Payment(13, "charges", "O-3", 40_000))), [0]),
    "nobody was asked again": (lambda: replace(TOLD, asked={**TOLD.asked, "O-3": [50]}), [0]),
    "asked again with the facts of before": (lambda: replace(TOLD, asked={**TOLD.asked, "O-3": [50, 50]}), [0]),
    "asked again about what is the same": (lambda: replace(TOLD, asked={**TOLD.asked, "O-4": [50, 50]}), [1]),
    "what stands was never paid": (lambda: replace(TOLD, books=(BOOKS[0], BOOKS[2])), [1]),
    "it was paid a second time": (lambda: replace(TOLD, books=(*BOOKS, Payment(13, "charges", "O-5", 40_000))), [2]),
    "the agent has tried to pay": (lambda: replace(TOLD, sendings=(*TOLD.sendings, PAID["O-5"])), [2]),
    "it does not say why": (lambda: replace(TOLD, sendings=TOLD.sendings[:-1]), [2]),
    "it names another payment": (lambda: replace(TOLD, books=but(0, id=1)), [2]),
    "a person said it": (lambda: replace(TOLD, sendings=(*TOLD.sendings[:-1], replace(NOTE, caller="person/9"))), [2]),
    "nothing was recorded": (lambda: Told((), (), {}), [0, 1, 2]),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_promise_is_told(what: str) -> None:
    change, broken = BROKEN[what]
    assert [n for n, good in enumerate(change().kept()) if not good] == broken


def test_an_agent_whose_decisions_rest_on_nothing_keeps_one_of_three(tmp_path: Path) -> None:
    """One amount is approved again although the policy gives another; one order is paid twice."""
    source = (examples() / DESK).read_text()
    assert source.count("@decide.premise") == 3
    careless = tmp_path / DESK
    careless.write_text("\n".join(line for line in source.splitlines() if not line.startswith("@decide.premise")))
    with ExitStack() as stack:
        stage = Stage(tmp_path, environment(), careless, stack)
        stage.start_services(held_question=0, held_claims=["none"])
        rows = standing(stage, careless)
    assert [(row.found, row.kept) for row in rows] == [
        ("50%, 80%: 400 EUR", False),
        ("50%: 400 EUR", True),
        ("paid 2x by the agent, not told", False),
    ]

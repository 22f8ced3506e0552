"""Mistakes that teams make, each in one workflow, and what of their fakes shows it."""

from __future__ import annotations

import itertools

from tests.drill.shop import Bank

import perdure
from perdure import CanLookUp, Idempotent, NoGuarantee, NotFound, Operation, effect, step, workflow


@effect(downstream=Idempotent())
async def charge_without_key(order: str) -> str:
    """It says that the other side honours keys, and gives it none."""
    bank = perdure.use(Bank)
    return await bank.send(f"{order} {sum(bank.requests.values())}", 5)


@effect(downstream=Idempotent())
async def numbered(order: str) -> str:
    """The other side makes a new receipt for each request."""
    bank = perdure.use(Bank)
    await bank.send(perdure.operation().id, 5)
    return f"receipt {sum(bank.requests.values())}"


@effect(downstream=CanLookUp())
async def transfer_looked_up_wrongly(order: str) -> str:
    return await perdure.use(Bank).send(perdure.operation().id, 5)


@transfer_looked_up_wrongly.lookup
async def _(op: Operation) -> NotFound:
    """It asks for something else than what was sent."""
    return NotFound()


@effect(downstream=NoGuarantee())
async def post(order: str) -> str:
    return await perdure.use(Bank).send(perdure.operation().id, 5)


@effect(downstream=NoGuarantee())
async def unclear(order: str) -> str:
    raise perdure.InDoubt("nobody knows")


for each in (charge_without_key, numbered, transfer_looked_up_wrongly, post, unclear):
    each.key(lambda order: order)


@step
async def pay_in_a_step(order: str) -> str:
    """An effect that is declared as a step: it runs again whenever its outcome is not known."""
    return await perdure.use(Bank).send(order, 5)


@step
async def count() -> int:
    return next(COUNTER)


COUNTER = itertools.count()
PAID: list[str] = []


@workflow
async def has_no_key(order: str) -> str:
    return await charge_without_key(order)


@workflow
async def new_receipts(order: str) -> str:
    return await numbered(order)


@workflow
async def looks_up_wrongly(order: str) -> str:
    return await transfer_looked_up_wrongly(order)


@workflow
async def pays_in_a_step(order: str) -> str:
    return await pay_in_a_step(order)


@workflow
async def pays_in_its_code(order: str) -> str:
    PAID.append(order)  # perdure: ignore
    return await post(order)


@workflow
async def pays_through_a_global(order: str) -> str:
    helps(order)
    return await post(order)


def helps(order: str) -> None:
    BANK.pay_at_once(order)


class Till:
    def __init__(self) -> None:
        self.paid: dict[str, list[str]] = {"paid": []}

    def pay_at_once(self, order: str) -> None:
        self.paid["paid"].append(order)


BANK = Till()


@workflow
async def draws_a_number(order: str) -> str:
    return f"{await post(order)} {perdure.random()} {perdure.uuid4()} {await draws_in_a_child()}"


@workflow
async def draws_in_a_child() -> str:
    return str(perdure.uuid4())


@workflow
async def counts(order: str) -> str:
    return f"{order} {await count()}"


@workflow
async def swallows(order: str) -> str:
    try:
        await post(order)
    except perdure.StepError:
        pass
    return "posted"


@workflow
async def asks_nobody(order: str) -> str:
    return order


@workflow
async def waits_for_ever(order: str) -> str:
    return await perdure.receive("approval", str)


@workflow
async def is_blocked_anyway(order: str) -> str:
    return await unclear(order)

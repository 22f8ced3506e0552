"""A trip that is booked as a whole or not at all: what was booked is cancelled again when the rest cannot be.

    python examples/trip.py
"""

import asyncio

import perdure
from perdure import Idempotent, effect, workflow

TAKEN = {"hotel"}
BOOKED: dict[str, str] = {}


@effect(downstream=Idempotent())
async def book(what: str) -> str:
    if what in TAKEN:
        raise perdure.Final(f"no {what} is left")
    BOOKED[perdure.operation().id] = what
    print(f"  booked: {what}")
    return perdure.operation().id


@book.key
def _(what: str) -> str:
    return what


@book.undo
async def _(booking: str, what: str) -> None:
    if BOOKED.pop(booking, None):
        print(f"  cancelled: {what}")


@workflow
async def trip(plan: list[str]) -> str:
    async with perdure.saga():
        for what in plan:
            await book(what)
    return "booked"


async def main() -> None:
    async with perdure.Runtime(":memory:", workflows=[trip]) as runtime:
        run = await runtime.start(trip.call(["flight", "car", "hotel"]), id="trip")
        try:
            await run.result()
        except perdure.Final as error:
            print(error, *error.__notes__, sep="\n")
        print("still booked:", list(BOOKED.values()))


if __name__ == "__main__":
    asyncio.run(main())

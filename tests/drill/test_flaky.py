"""Fakes that lose answers and refuse at first: what is in doubt although nothing of ours went wrong is drilled too."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import perdure
from perdure import CanLookUp, Found, Idempotent, NoGuarantee, NotFound, Operation, Retry, effect, step, workflow
from perdure.testing import Aftermath, drill


class Flaky:
    """The first request of each kind meets with an exception, after it was carried out or before."""

    def __init__(self) -> None:
        self.requests = Counter[str]()
        self.done = Counter[str]()

    def answer(self, kind: str, error: Exception, *, is_done_first: bool) -> str:
        key = perdure.operation().id
        self.requests[kind] += 1
        is_first = self.requests[kind] == 1
        honours_keys = kind == "charge"
        if (is_done_first or not is_first) and not (honours_keys and self.done[key]):
            self.done[key] += 1
        if is_first:
            raise error
        return f"{kind} done"


def fakes() -> dict[type, object]:
    return {Flaky: Flaky()}


LOST = ConnectionResetError("the answer is lost")


@effect(downstream=Idempotent())
async def charge(order: str) -> str:
    return perdure.use(Flaky).answer("charge", LOST, is_done_first=True)


@effect(downstream=CanLookUp(settle_after=5), retry=Retry(max_attempts=3))
async def lost_request(order: str) -> str:
    return perdure.use(Flaky).answer("lost_request", LOST, is_done_first=False)


@effect(downstream=CanLookUp(settle_after=5))
def lost_answer(order: str) -> str:
    return perdure.use(Flaky).answer("lost_answer", LOST, is_done_first=True)


@effect(downstream=NoGuarantee(), retry=Retry(max_attempts=3))
async def busy(order: str) -> str:
    return perdure.use(Flaky).answer("busy", perdure.Retryable("busy", after=5), is_done_first=False)


@charge.key
@lost_request.key
@lost_answer.key
@busy.key
def _(order: str) -> str:
    return order


@lost_request.lookup
@lost_answer.lookup
async def _(op: Operation) -> Found[str] | NotFound:
    return Found(f"{op.action} done") if perdure.use(Flaky).done[op.id] else NotFound()


@step
async def stumble() -> int:
    if perdure.attempt().number == 1:
        raise ConnectionError("not now")
    return perdure.attempt().number


@workflow
async def all_of_it(order: str) -> list[Any]:
    first = [await charge(order), await lost_request(order), await lost_answer.call(order)]
    return [*first, await busy(order), await stumble()]


def once_each(after: Aftermath) -> None:
    assert [*after.use(Flaky).done.values()] == [1, 1, 1, 1], after.use(Flaky).done


def test_what_is_in_doubt_anyway_ends_in_the_same_way() -> None:
    report = asyncio.run(drill(all_of_it, "o-1", provide=fakes, check=once_each))
    assert report.has_passed, report
    tried = {result.name for result in report.results}
    assert {
        "after Execute of lost_request#1", "before the look-up of lost_request#1",
        "after the look-up of lost_answer#1", "before Prepare of charge#1, attempt 2",
        "after the record of a failed attempt of stumble#1", "before the proof that busy#1 did nothing",
        "hung after Execute of busy#1, attempt 2, thawed after the takeover",
    } <= tried  # fmt: skip
    never = report["after Execute of lost_answer#1, its look-up never sure"]
    assert "settled: succeeded" in never.evidence

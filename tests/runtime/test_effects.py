"""Effects in a worker: what leaves, what is recorded, what becomes of a doubt."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from functools import partial
from typing import Any

import pytest
from tests.runtime.hosting import GatedStore, eventually, host_of, kinds, live, on_one_store, run_async

import perdure
from perdure import (
    CanLookUp,
    DuplicateOperation,
    Final,
    Found,
    Idempotent,
    NoGuarantee,
    NotDurableError,
    NotFound,
    Operation,
    OperationConflict,
    Retry,
    RunBlockedError,
    Runtime,
    StepError,
    Unsure,
    UsageError,
    effect,
    step,
    workflow,
)
from perdure.errors import FencedError
from perdure.ledger import EffectState, LedgerEntry
from perdure.store.protocol import EffectFilter
from perdure.testing.sweep import sweep_crashes

DONE: dict[str, int] = {}
"""What the other side has carried out: key to amount."""
REQUESTS: list[tuple[str, int]] = []
"""What reached the other side."""
SCRIPT: list[BaseException | str] = []
"""What the other side does with the next requests: an exception is raised without doing anything; "lost" does it and
loses the answer."""
LOOKS: list[Any] = []


@pytest.fixture(autouse=True)
def fresh_other_side() -> None:
    DONE.clear()
    REQUESTS.clear()
    SCRIPT.clear()
    LOOKS.clear()


class Lost(Exception):
    """The connection went away while the answer was waited for."""


async def request(key: str, cents: int) -> str:
    REQUESTS.append((key, cents))
    what = SCRIPT.pop(0) if SCRIPT else "done"
    if isinstance(what, BaseException):
        raise what
    DONE.setdefault(key, cents)
    if what == "lost":
        raise ConnectionResetError("the connection went away")
    if what == "hang":
        await asyncio.sleep(60)
    return f"receipt for {cents}"


QUICK = Retry(max_attempts=3, first_delay=0.001, max_delay=0.01)


@effect(downstream=Idempotent(), retry=QUICK, timeout=5)
async def charge(order: str, cents: int) -> str:
    op = perdure.operation()
    answer = await request(op.id, cents)
    op.reference = f"re_{order}"
    return answer


@charge.key
def _(order: str, cents: int) -> str:
    return order


@effect(downstream=CanLookUp(settle_after=0.01), timeout=5)
async def transfer(order: str, cents: int) -> str:
    return await request(perdure.operation().id, cents)


@transfer.key
def _(order: str, cents: int) -> str:
    return order


@transfer.lookup
async def _(op: Operation) -> Found[str] | NotFound | Unsure:
    LOOKS.append(op)
    assert dict(op.arguments) == {"order": "o", "cents": 5}
    if op.id in DONE:
        return Found(f"receipt for {DONE[op.id]}", "tr_1")
    return NotFound()


@effect(downstream=NoGuarantee(), timeout=5)
async def mail_letter(order: str, cents: int) -> str:
    return await request(perdure.operation().id, cents)


@mail_letter.key
def _(order: str, cents: int) -> str:
    return order


@workflow
async def pays(how: str) -> str:
    effects = {"charge": charge, "transfer": transfer, "mail": mail_letter}
    return await effects[how]("o", 5)


def rows(runtime: Any) -> list[LedgerEntry]:
    return host_of(runtime).store.effects(EffectFilter())


async def settle(run: Any, *, choice: str, value: Any = None, reference: str | None = None, by: str = "") -> None:
    await run.settle(choice, value=value, reference=reference, by=by)


def outcome(how: str) -> Any:
    async def main() -> Any:
        async with on_one_store()(pays) as runtime:
            run = await runtime.start(pays.call(how), id="r")
            return await run.result(timeout=20), rows(runtime), await kinds(run)

    return run_async(main())


@pytest.mark.parametrize("how", ["charge", "transfer", "mail"])
def test_an_effect_that_answers_is_recorded_before_and_after(how: str) -> None:
    result, (row,), history = outcome(how)
    assert result == "receipt for 5"
    assert (row.status, row.attempts, row.business_key, row.run_id) == (EffectState.SUCCEEDED, 1, "o", "r")
    assert row.result == b'"receipt for 5"'
    assert history == ["run.started", "effect.started", "effect.succeeded", "run.completed"]
    assert [(row.operation_id, 5)] == REQUESTS
    assert row.external_ref == ("re_o" if how == "charge" else None)


def test_a_lost_answer_is_asked_for_again_under_the_same_key() -> None:
    SCRIPT[:] = ["lost"]
    result, (row,), history = outcome("charge")
    assert result == "receipt for 5"
    assert [(row.operation_id, 5)] * 2 == REQUESTS
    assert {row.operation_id: 5} == DONE
    assert (row.status, row.attempts) == (EffectState.SUCCEEDED, 2)
    assert history[1:-1] == ["effect.started", "effect.in_doubt", "effect.started", "effect.succeeded"]


def test_attempts_that_did_nothing_are_counted() -> None:
    SCRIPT[:] = [ConnectionRefusedError("nobody there")] * 4
    with pytest.raises(ConnectionRefusedError):
        outcome("charge")
    assert len(REQUESTS) == QUICK.max_attempts


def test_a_lost_answer_is_looked_up() -> None:
    SCRIPT[:] = ["lost"]
    result, (row,), history = outcome("transfer")
    assert result == "receipt for 5"
    assert len(REQUESTS) == 1
    assert (row.status, row.attempts, row.external_ref) == (EffectState.SUCCEEDED, 1, "tr_1")
    assert history[1:-1] == ["effect.started", "effect.in_doubt", "effect.looked_up", "effect.succeeded"]


def test_what_was_not_found_twice_failed() -> None:
    SCRIPT[:] = [ConnectionResetError("gone")]
    with pytest.raises(StepError, match="did nothing"):
        outcome("transfer")
    assert len(LOOKS) == 2


def test_a_lost_answer_without_guarantee_is_settled_by_a_person() -> None:
    SCRIPT[:] = ["lost"]

    async def main() -> Any:
        async with on_one_store()(pays) as runtime:
            run = await runtime.start(pays.call("mail"), id="r")
            with pytest.raises(RunBlockedError) as blocked:
                await run.result(timeout=20)
            assert blocked.value.reason == "unknown_effect"
            (row,) = rows(runtime)
            assert row.status is EffectState.UNKNOWN
            await settle(run, choice="succeeded", value="by hand", reference="letter-7", by="ann")
            assert await run.result(wait_blocked=True, timeout=20) == "by hand"
            (row,) = rows(runtime)
            assert (row.status, row.external_ref) == (EffectState.SUCCEEDED, "letter-7")
            assert len(REQUESTS) == 1

    run_async(main())


def test_a_person_may_want_it_tried_again() -> None:
    SCRIPT[:] = ["lost"]

    async def main() -> Any:
        async with on_one_store()(pays) as runtime:
            run = await runtime.start(pays.call("mail"), id="r")
            with pytest.raises(RunBlockedError):
                await run.result(timeout=20)
            await settle(run, choice="retry", by="ann")
            assert await run.result(wait_blocked=True, timeout=20) == "receipt for 5"
            (row,) = rows(runtime)
            assert (row.status, row.attempts) == (EffectState.SUCCEEDED, 2)

    run_async(main())


def test_a_refusal_is_final_and_nothing_is_in_doubt() -> None:
    SCRIPT[:] = [Final("no such account")]
    with pytest.raises(Exception, match="no such account"):
        outcome("mail")


def test_an_effect_outside_a_run_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(NotDurableError, match=r"charge\.plain"):
            await charge("o", 5)

    run_async(main())


@step
async def pays_inside() -> str:
    return await charge("o", 5)


@workflow
async def pays_in_a_step() -> str:
    return await pays_inside()


def test_an_effect_inside_a_step_is_refused() -> None:
    async def main() -> None:
        async with on_one_store()(pays_in_a_step) as runtime:
            run = await runtime.start(pays_in_a_step.call(), id="r")
            with pytest.raises(UsageError, match="inside the body of a step"):
                await run.result(timeout=20)

    run_async(main())
    assert REQUESTS == []


@workflow
async def pays_twice(second: int) -> list[Any]:
    first = await mail_letter("o", 5)
    try:
        return [first, await mail_letter("o", second)]
    except (DuplicateOperation, OperationConflict) as no:
        return [first, type(no).__name__]


@pytest.mark.parametrize(("second", "said"), [(5, "DuplicateOperation"), (6, "OperationConflict")])
def test_a_repeat_sends_nothing(second: int, said: str) -> None:
    async def main() -> Any:
        async with on_one_store()(pays_twice) as runtime:
            run = await runtime.start(pays_twice.call(second), id="r")
            return await run.result(timeout=20)

    assert run_async(main()) == ["receipt for 5", said]
    assert len(REQUESTS) == 1


# ── a crash at every write ──────────────────────────────────────────────────────────────────


async def settled_by_a_person(runtime: Any) -> Any:
    """Starts the run; when it asks what became of an effect, looks at the other side's books and says so."""
    run = await runtime.start(pays.call("mail"), id="r")
    while True:
        try:
            return await run.result(timeout=20)
        except RunBlockedError:
            (row,) = rows(runtime)
            if row.operation_id in DONE:
                await settle(run, choice="succeeded", value="receipt for 5", by="ann")
            else:
                await settle(run, choice="retry", by="ann")
            await eventually(partial(is_other, runtime, row), "the decision is taken in")


def is_other(runtime: Any, row: LedgerEntry) -> bool:
    return rows(runtime) != [row]


@pytest.mark.parametrize("how", ["charge", "transfer", "mail"])
@pytest.mark.parametrize("answer", ["done", "lost"])
def test_a_crash_at_any_write_pays_once(how: str, answer: str) -> None:
    worst = Counter[str]()

    async def scenario(runtime: Any) -> Any:
        if not rows(runtime):
            fresh_side(answer)
        if how == "mail":
            result = await settled_by_a_person(runtime)
        else:
            run = await runtime.start(pays.call(how), id="r")
            result = await run.result(timeout=20)
        (row,) = rows(runtime)
        assert row.status is EffectState.SUCCEEDED
        assert {row.operation_id: 5} == DONE, "it happened once, under the recorded id"
        assert set(REQUESTS) == {(row.operation_id, 5)}
        worst[how] = max(worst[how], len(REQUESTS))
        return result

    sweep = run_async(sweep_crashes(scenario, workflows=[pays]))
    assert sweep.result == "receipt for 5"
    if how == "transfer":
        assert worst[how] == 1, "what was carried out is found, never sent again"


def fresh_side(answer: str) -> None:
    DONE.clear()
    REQUESTS.clear()
    LOOKS.clear()
    SCRIPT[:] = [answer]


# ── hosted code ─────────────────────────────────────────────────────────────────────────────


@effect(downstream=CanLookUp(), timeout=5)
def book(order: str, cents: int) -> str:
    op = perdure.operation()
    REQUESTS.append((op.id, cents))
    DONE.setdefault(op.id, cents)
    return f"receipt for {cents}"


@book.key
def _(order: str, cents: int) -> str:
    return order


@book.lookup
def _(op: Operation) -> Found[str] | NotFound | Unsure:
    return Found(f"receipt for {DONE[op.id]}") if op.id in DONE else NotFound()


@workflow
def books(order: str) -> str:
    return book(order, 5)


def test_a_plain_workflow_books_once_whatever_crashes() -> None:
    async def scenario(runtime: Any) -> Any:
        if not rows(runtime):
            fresh_side("done")
        run = await runtime.start(books.call("o"), id="r")
        result = await run.result(timeout=20)
        (row,) = rows(runtime)
        assert (row.status, REQUESTS) == (EffectState.SUCCEEDED, [(row.operation_id, 5)])
        return result

    assert run_async(sweep_crashes(scenario, workflows=[books])).result == "receipt for 5"


# ── threads ─────────────────────────────────────────────────────────────────────────────────


@effect(downstream=NoGuarantee(), timeout=60)
def posts(order: str) -> int:
    return perdure.attempt().number


@posts.key
def _(order: str) -> str:
    return order


@workflow
async def posts_one() -> int:
    return await posts.call("o")


def test_where_no_thread_can_be_had_nothing_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, start = Counter[str](), threading.Thread.start

    def start_at_last(thread: threading.Thread) -> None:
        if thread.name.startswith("perdure-step") and refused[thread.name] < 2:
            refused[thread.name] += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_at_last)

    async def main() -> None:
        async with on_one_store()(posts_one) as runtime:
            run = await runtime.start(posts_one.call(), id="r")
            assert await run.result(timeout=20) == 1
            assert "effect.in_doubt" not in await kinds(run)

    run_async(main())
    assert refused == {"perdure-step-1": 2}


# ── ids of requests ─────────────────────────────────────────────────────────────────────────


NOTING: list[str] = []
MAY_NOTE = threading.Event()


@effect(downstream=Idempotent(), timeout=60)
def submits(order: str) -> str:
    NOTING.append("begun")
    MAY_NOTE.wait(20)
    try:
        _ = perdure.operation().note_request_id("batch 1")
    except FencedError:
        NOTING.append("fenced")
        raise
    NOTING.append("sent")
    return "submitted"


@submits.key
def _(order: str) -> str:
    return order


@workflow
async def batches() -> str:
    return await submits.call("o")


def test_an_id_is_kept_before_the_request_is_sent() -> None:
    NOTING.clear()
    MAY_NOTE.set()

    async def main() -> None:
        async with on_one_store()(batches) as runtime:
            assert await (await runtime.start(batches.call(), id="r")).result(timeout=20) == "submitted"
            assert [row.external_request_id for row in rows(runtime)] == ["batch 1"]

    run_async(main())
    assert NOTING == ["begun", "sent"]


@pytest.mark.parametrize("when", ["before it is noted", "while that is written"])
def test_a_thread_whose_run_was_lost_does_not_send_and_waits_for_nothing(when: str) -> None:
    NOTING.clear()
    MAY_NOTE.clear()

    async def main() -> None:
        store = GatedStore()
        async with Runtime(store, workflows=[batches]) as runtime:
            await runtime.start(batches.call(), id="r")
            await eventually(lambda: NOTING == ["begun"])
            run, store.gate = live(runtime, "r"), threading.Event()
            if when == "while that is written":
                MAY_NOTE.set()
                await eventually(lambda: run.under_way is not None)
            host_of(runtime).turns.forget(run)
            MAY_NOTE.set()
            await eventually(lambda: NOTING == ["begun", "fenced"])
            gate, store.gate = store.gate, None
            gate.set()

    run_async(main())


# ── look-ups ────────────────────────────────────────────────────────────────────────────────


THREADS: list[str] = []


@effect(downstream=CanLookUp(), timeout=5)
async def wire(order: str) -> str:
    raise ConnectionResetError("the connection went away")


@wire.key
def _(order: str) -> str:
    return order


@wire.lookup
def _(op: Operation) -> Found[str] | NotFound | Unsure:
    THREADS.append(threading.current_thread().name)
    return Found("receipt")


@workflow
async def wires() -> str:
    return await wire("o")


@effect(downstream=CanLookUp(), timeout=5)
async def remit(order: str) -> str:
    raise ConnectionResetError("the connection went away")


@remit.key
def _(order: str) -> str:
    return order


@remit.lookup
async def _(op: Operation) -> Found[str] | NotFound | Unsure:
    what = SCRIPT.pop(0)
    if isinstance(what, BaseException):
        raise what
    if what == "cancelled":
        inner = asyncio.create_task(asyncio.sleep(60))
        inner.cancel()
        await inner
    return Found("receipt")


@workflow
async def remits() -> str:
    return await remit("o")


@pytest.mark.parametrize("first", ["cancelled", SystemExit(3), GeneratorExit(), asyncio.CancelledError()])
def test_whatever_a_look_up_ends_with_the_doubt_goes_on(first: Any) -> None:
    SCRIPT[:] = [first, "found"]

    async def main() -> None:
        async with on_one_store()(remits) as runtime:
            run = await runtime.start(remits.call(), id="r")
            assert await run.result(timeout=20) == "receipt"
            looked = [each for each in await run.history() if each.kind == "effect.looked_up"]
            assert len(looked) == 2

    run_async(main())


def test_a_plain_look_up_runs_in_a_thread() -> None:
    """It may block, and the loop goes on."""

    async def main() -> None:
        async with on_one_store()(wires) as runtime:
            run = await runtime.start(wires.call(), id="r")
            assert await run.result(timeout=20) == "receipt"

    run_async(main())
    assert [name.startswith("perdure-step") for name in THREADS] == [True]

"""Schedules of effects, each by name: cancelled, paused, late, twice, shared, renamed, forgotten."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest
from tests.runtime.hosting import eventually, host_of, kinds, on_one_store, run_async

import perdure
from perdure import (
    CanLookUp,
    DuplicateOperation,
    Found,
    NoGuarantee,
    NotFound,
    Operation,
    OperationConflict,
    Retry,
    Run,
    RunBlockedError,
    Runtime,
    StepError,
    Unsure,
    effect,
    workflow,
)
from perdure.history import events as e
from perdure.ledger import EffectState, LedgerEntry
from perdure.runtime import mail
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Append, EffectFilter
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import sweep_crashes

SENT: list[tuple[str, int]] = []
"""What reached the other side: operation and attempt."""
ANSWERS: list[Any] = []
"""What comes of the next requests: an exception is raised, anything else returned."""
KEYS: list[str] = []
"""What the key function of a renamed effect gives, if it is not the order."""


class Gates:
    """Where a request stands still."""

    def __init__(self) -> None:
        self.arrived, self.released = asyncio.Event(), asyncio.Event()
        self.thread_arrived, self.thread_released = threading.Event(), threading.Event()


GATES = [Gates()]


@pytest.fixture(autouse=True)
def fresh_other_side() -> None:
    SENT.clear()
    ANSWERS.clear()
    KEYS.clear()
    GATES[:] = [Gates()]


def request() -> Any:
    op = perdure.operation()
    SENT.append((op.id, op.attempt))
    op.reference = f"reference {len(SENT)}"
    answer = ANSWERS.pop(0) if ANSWERS else f"receipt {len(SENT)}"
    if isinstance(answer, BaseException):
        raise answer
    return answer


QUICK = Retry(max_attempts=3, first_delay=0.001, max_delay=0.01)


@effect(downstream=NoGuarantee(), retry=QUICK, timeout=5)
async def pay(order: str) -> str:
    return str(request())


@effect(downstream=NoGuarantee(), timeout=5)
async def pay_slowly(order: str) -> str:
    answer = str(request())
    GATES[0].arrived.set()
    await GATES[0].released.wait()
    return answer


ATTEMPT_SECONDS = 60


@effect(downstream=NoGuarantee(), timeout=ATTEMPT_SECONDS)
def pay_in_a_thread(order: str) -> str:
    op = perdure.operation()
    answer = str(request())
    if op.attempt == 1:
        GATES[0].thread_released.wait(20)
    return answer


@effect(downstream=NoGuarantee(), timeout=5, scope="global")
async def pay_for_all(order: str) -> str:
    answer = str(request())
    await asyncio.sleep(0.02)
    return answer


@effect(downstream=NoGuarantee(), timeout=5, scope="global", on_repeat="reuse")
async def pay_once_for_all(order: str) -> str:
    answer = str(request())
    await asyncio.sleep(0.02)
    return answer


for declared in (pay, pay_slowly, pay_in_a_thread, pay_for_all, pay_once_for_all):

    @declared.key
    def _(order: str) -> str:
        return order


def rows(runtime: Runtime) -> list[LedgerEntry]:
    return host_of(runtime).store.effects(EffectFilter())


def row(runtime: Runtime) -> LedgerEntry:
    (only,) = rows(runtime)
    return only


async def is_blocked(run: Run[Any]) -> bool:
    return await run.status() == "blocked"


async def blocked(run: Run[Any]) -> RunBlockedError:
    with pytest.raises(RunBlockedError) as stuck:
        await run.result(timeout=20)
    return stuck.value


async def out_of_time(clock: FakeClock) -> None:
    """The first attempt's request has left its thread, and then the attempt's time is up."""
    await eventually(lambda: len(SENT) == 1)
    clock.advance(ATTEMPT_SECONDS + 1)


async def events(run: Run[Any], kind: type[e.Event]) -> list[Any]:
    store = run._client._store  # pyright: ignore[reportPrivateUsage]
    info = store.find(run.id)
    assert info is not None
    decoded = [e.decode(row.envelope) for row in store.load(info.rid, from_seq=0).rows]
    return [event for event in decoded if isinstance(event, kind)]


# ── attempts are counted, durably ───────────────────────────────────────────────────────────


@workflow
async def pays(order: str = "o") -> str:
    return await pay(order)


def test_refusals_that_are_tried_again_are_counted() -> None:
    ANSWERS[:] = [perdure.Retryable("busy") for _ in range(10)]

    async def main() -> None:
        async with on_one_store()(pays) as runtime:
            run = await runtime.start(pays.call(), id="r")
            with pytest.raises((StepError, perdure.Retryable), match="busy"):
                await run.result(timeout=20)
            assert (row(runtime).status, row(runtime).attempts) == (EffectState.FAILED_FINAL, 3)
            refused = await events(run, e.EffectNotDone)
            assert [event.attempt_counted for event in refused] == [1, 2]
            assert all(event.retry_at > 0 and event.operation == row(runtime).operation_id for event in refused)

    run_async(main())
    assert [attempt for _, attempt in SENT] == [1, 2, 3]


# ── cancelling ──────────────────────────────────────────────────────────────────────────────


@workflow
async def changes_its_mind_at_once() -> str:
    task = asyncio.ensure_future(pay("o"))
    await asyncio.sleep(0)
    task.cancel()
    return "cancelled"


def test_cancelled_before_its_start_is_durable_nothing_leaves() -> None:
    async def main() -> None:
        async with on_one_store()(changes_its_mind_at_once) as runtime:
            run = await runtime.start(changes_its_mind_at_once.call(), id="r")
            assert await run.result(timeout=20) == "cancelled"
            assert rows(runtime) == [] or row(runtime).status is EffectState.FAILED_FINAL
            assert [event.how for event in await events(run, e.EffectFailed)] == ["cancelled"]

    run_async(main())
    assert SENT == []


@workflow
async def changes_its_mind_later(slowly: bool) -> str:
    task = asyncio.ensure_future((pay_slowly if slowly else pay)("o"))
    await perdure.receive("cancel")
    task.cancel()
    return "cancelled"


def test_cancelled_in_flight_it_is_held_until_its_outcome_is_known() -> None:
    async def main() -> None:
        async with on_one_store()(changes_its_mind_later) as runtime:
            run = await runtime.start(changes_its_mind_later.call(True), id="r")
            await asyncio.wait_for(GATES[0].arrived.wait(), 20)
            await run.send("cancel")
            await eventually(lambda: has_happened(run, "call.cancelled"))
            await asyncio.sleep(0.05)
            assert await run.status() not in {"completed", "failed", "cancelled"}, "the run's end waits for it"
            GATES[0].released.set()
            assert await run.result(timeout=20) == "cancelled"
            assert row(runtime).status is EffectState.SUCCEEDED
            assert (await kinds(run))[-2:] == ["effect.succeeded", "run.completed"]

    run_async(main())
    assert len(SENT) == 1


async def has_happened(run: Run[Any], kind: str) -> bool:
    return kind in await kinds(run)


def test_cancelled_while_unknown_a_retry_sends_nothing() -> None:
    ANSWERS[:] = [ConnectionResetError("gone")]

    async def main() -> None:
        async with on_one_store()(changes_its_mind_later) as runtime:
            run = await runtime.start(changes_its_mind_later.call(False), id="r")
            await blocked(run)
            await run.send("cancel")
            await eventually(lambda: has_happened(run, "call.cancelled"))
            await run.settle("retry", by="ann")
            assert await run.result(timeout=20, wait_blocked=True) == "cancelled"
            assert (row(runtime).status, row(runtime).attempts) == (EffectState.FAILED_FINAL, 1)

    run_async(main())
    assert len(SENT) == 1


# ── pausing ─────────────────────────────────────────────────────────────────────────────────


@effect(downstream=NoGuarantee(), retry=Retry(max_attempts=2, first_delay=0.2, jitter=0), timeout=5)
async def pay_later(order: str) -> str:
    return str(request())


@pay_later.key
def _(order: str) -> str:
    return order


@workflow
async def pays_later() -> str:
    return await pay_later("o")


def test_while_a_run_is_paused_no_further_attempt_leaves() -> None:
    ANSWERS[:] = [perdure.Retryable("busy")]

    async def main() -> None:
        async with on_one_store()(pays_later) as runtime:
            run = await runtime.start(pays_later.call(), id="r")
            await eventually(lambda: has_happened(run, "effect.not_done"))
            await run.pause()
            await eventually(lambda: has_happened(run, "run.paused"))
            await asyncio.sleep(0.4)
            assert len(SENT) == 1
            await run.resume()
            assert await run.result(timeout=20) == "receipt 2"

    run_async(main())
    assert [attempt for _, attempt in SENT] == [1, 2]


# ── late answers, second answers, odd answers ───────────────────────────────────────────────


@workflow
async def pays_in_a_thread() -> str:
    return await pay_in_a_thread.call("o")


def test_a_late_answer_settles_what_a_person_is_asked_about() -> None:
    async def main() -> None:
        clock = FakeClock()
        async with on_one_store(clock=clock)(pays_in_a_thread) as runtime:
            run = await runtime.start(pays_in_a_thread.call(), id="r")
            await out_of_time(clock)
            assert (await blocked(run)).reason == "unknown_effect"
            GATES[0].thread_released.set()
            assert await run.result(timeout=20, wait_blocked=True) == "receipt 1"
            assert (row(runtime).status, row(runtime).external_ref) == (EffectState.SUCCEEDED, "reference 1")
            assert [event.how for event in await events(run, e.EffectSucceeded)] == ["late"]
            assert [event.choice for event in await events(run, e.RunUnblocked)] == ["answered_late"]

    run_async(main())


LOOKED: list[str] = []


def passed(clock: FakeClock) -> bool:
    """A little time has."""
    clock.advance(0.01)
    return True


@effect(downstream=CanLookUp(settle_after=0), timeout=ATTEMPT_SECONDS, retry=QUICK)
def pay_out_of_time(order: str) -> str:
    if perdure.operation().attempt == 1:
        GATES[0].thread_arrived.set()
        GATES[0].thread_released.wait(20)
        raise ConnectionResetError("the connection went away")
    return str(request())


@pay_out_of_time.key
def _(order: str) -> str:
    return order


@pay_out_of_time.lookup
def _(op: Operation) -> NotFound:
    LOOKED.append(op.id)
    return NotFound()


@workflow
async def pays_out_of_time() -> str:
    return await pay_out_of_time.call("o")


@pytest.mark.parametrize("ends", [True, False])
def test_nothing_is_sent_again_while_a_thread_of_ours_may_still_send(ends: bool) -> None:
    """What a look-up says before that thread has ended proves nothing; if it does not end, a person is asked."""
    LOOKED.clear()

    async def main() -> None:
        clock = FakeClock()
        async with on_one_store(grace=0.05, clock=clock)(pays_out_of_time) as runtime:
            run = await runtime.start(pays_out_of_time.call(), id="r")
            await eventually(GATES[0].thread_arrived.is_set)
            clock.advance(ATTEMPT_SECONDS + 1)
            await eventually(lambda: passed(clock) and len(LOOKED) == 2)
            if ends:
                GATES[0].thread_released.set()
                await eventually(lambda: passed(clock) and len(SENT) == 1)
                assert await run.result(timeout=20) == "receipt 1"
                assert len(LOOKED) > 2, "asked once more, after it had ended"
            else:
                clock.advance(ATTEMPT_SECONDS)
                await eventually(lambda: passed(clock) and row(runtime).status is EffectState.UNKNOWN)
                assert "still runs in a thread here" in (await blocked(run)).hint
                assert SENT == []

    run_async(main())
    GATES[0].thread_released.set()
    assert [attempt for _, attempt in SENT] == ([2] if ends else [])


@workflow
async def pays_in_a_thread_and_waits() -> str:
    try:
        receipt = await pay_in_a_thread.call("o")
    except StepError as no:
        receipt = str(no)
    await perdure.receive("go")
    return receipt


def test_success_twice_under_two_references_keeps_both() -> None:
    async def main() -> None:
        clock = FakeClock()
        async with on_one_store(clock=clock)(pays_in_a_thread_and_waits) as runtime:
            run = await runtime.start(pays_in_a_thread_and_waits.call(), id="r")
            await out_of_time(clock)
            await blocked(run)
            await run.settle("retry", by="ann")
            await eventually(lambda: has_happened(run, "effect.succeeded"))
            assert row(runtime).external_ref == "reference 2"
            GATES[0].thread_released.set()
            await eventually(lambda: has_happened(run, "effect.noted"))
            assert (row(runtime).external_ref, row(runtime).references) == ("reference 2", "reference 1")
            assert row(runtime).status is EffectState.SUCCEEDED
            await run.send("go")
            assert await run.result(timeout=20) == "receipt 2"

    run_async(main())


def test_success_after_a_person_has_said_failed_is_shown_and_changes_nothing() -> None:
    async def main() -> None:
        clock = FakeClock()
        async with on_one_store(clock=clock)(pays_in_a_thread_and_waits) as runtime:
            run = await runtime.start(pays_in_a_thread_and_waits.call(), id="r")
            await out_of_time(clock)
            await blocked(run)
            await run.settle("failed", by="ann", reason="not in their books")
            await eventually(lambda: has_happened(run, "effect.failed"))
            GATES[0].thread_released.set()
            await eventually(lambda: has_happened(run, "effect.noted"))
            assert row(runtime).status is EffectState.FAILED_FINAL
            assert "answered success after all" in row(runtime).note
            await run.send("go")
            assert "ann" in await run.result(timeout=20)

    run_async(main())


@effect(downstream=NoGuarantee(), timeout=5)
async def pay_oddly(order: str) -> int:
    request()
    return object()  # type: ignore[return-value]


@pay_oddly.key
def _(order: str) -> str:
    return order


@workflow
async def pays_oddly() -> int:
    return await pay_oddly("o")


def test_a_result_that_cannot_be_recorded_is_a_success_and_a_person_supplies_it() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(pays_oddly) as runtime:
            run = await runtime.start(pays_oddly.call(), id="r")
            assert (await blocked(run)).reason == "undecodable"
            assert (row(runtime).status, row(runtime).external_ref) == (EffectState.SUCCEEDED, "reference 1")
        async with make(pays_oddly) as runtime:
            run = await runtime.get("r")
            await run.settle("succeeded", value=42, by="ann")
            assert await run.result(timeout=20, wait_blocked=True) == 42
            assert row(runtime).result == b"42"

    run_async(main())
    assert len(SENT) == 1


# ── a decision is about the attempt that it saw ─────────────────────────────────────────────


def test_a_second_decision_about_the_first_attempt_says_nothing_about_the_second() -> None:
    ANSWERS[:] = [ConnectionResetError("gone"), ConnectionResetError("gone again")]

    async def main() -> None:
        async with on_one_store()(pays) as runtime:
            run = await runtime.start(pays.call(), id="r")
            await blocked(run)
            await asyncio.gather(run.settle("retry", by="ann"), run.settle("failed", by="bob"))
            await eventually(lambda: len(SENT) == 2)
            await eventually(lambda: row(runtime).status is EffectState.UNKNOWN and row(runtime).attempts == 2)
            await asyncio.sleep(0.1)
            assert row(runtime).status is EffectState.UNKNOWN, "bob spoke of the first attempt"
            await run.settle("succeeded", value="by hand", by="ann")
            assert await run.result(timeout=20, wait_blocked=True) == "by hand"

    run_async(main())


# ── one id, several who want it ─────────────────────────────────────────────────────────────


@workflow
async def pays_twice_at_once() -> list[str]:
    outcomes = await asyncio.gather(pay("o"), pay("o"), pay("p"), return_exceptions=True)
    return [outcome if isinstance(outcome, str) else type(outcome).__name__ for outcome in outcomes]


def test_one_key_twice_at_once_is_sent_once() -> None:
    async def main() -> None:
        async with on_one_store()(pays_twice_at_once) as runtime:
            run = await runtime.start(pays_twice_at_once.call(), id="r")
            assert await run.result(timeout=20) == ["receipt 1", "DuplicateOperation", "receipt 2"]

    run_async(main())
    assert len(SENT) == 2


@workflow
async def pays_for_all(reuses: bool) -> str:
    try:
        return await (pay_once_for_all if reuses else pay_for_all)("o")
    except DuplicateOperation:
        return "duplicate"


@pytest.mark.parametrize("reuses", [False, True])
def test_two_runs_with_one_global_id_in_one_commit(reuses: bool) -> None:
    async def main() -> None:
        async with on_one_store()(pays_for_all) as runtime:
            started = [runtime.start(pays_for_all.call(reuses), id=f"r{n}") for n in range(4)]
            runs = await asyncio.gather(*started)
            results = sorted([await run.result(timeout=20) for run in runs])
            assert results == (["receipt 1"] * 4 if reuses else ["duplicate"] * 3 + ["receipt 1"])
            assert row(runtime).attempts == 1

    run_async(main())
    assert len(SENT) == 1


@workflow
async def pays_in_chapters(chapter: int, seen: list[str], order: str) -> list[str]:
    try:
        seen.append(await pay(order))
    except (DuplicateOperation, OperationConflict) as no:
        seen.append(type(no).__name__)
    if chapter < 2:
        perdure.continue_as_new(chapter + 1, seen, order)
    return seen


def test_the_next_chapter_does_not_pay_again() -> None:
    async def main() -> None:
        async with on_one_store()(pays_in_chapters) as runtime:
            run = await runtime.start(pays_in_chapters.call(0, [], "o"), id="r")
            assert await run.result(timeout=20) == ["receipt 1", "DuplicateOperation", "DuplicateOperation"]

    run_async(main())
    assert len(SENT) == 1


# ── renamed, changed, forgotten ─────────────────────────────────────────────────────────────


def payer(name: str, *aliases: str) -> Any:
    """A workflow whose effect has this name: before, and after a deploy."""

    @effect(downstream=NoGuarantee(), timeout=5, name=name, aliases=aliases)
    async def pays_by_any_name(order: str) -> str:
        return str(request())

    @pays_by_any_name.key
    def _(order: str) -> str:
        return KEYS[0] if KEYS else order

    @workflow(name="renamed")
    async def renamed() -> list[str]:
        seen = [await pays_by_any_name("o")]
        await perdure.receive("go")
        try:
            seen.append(await pays_by_any_name("o"))
        except DuplicateOperation as no:
            seen.append(type(no).__name__)
        return seen

    return renamed


def after_a_deploy(before: Any, after: Any, then: Any) -> Any:
    async def main() -> Any:
        make = on_one_store()
        async with make(before) as runtime:
            run = await runtime.start(before.call(), id="r")
            await eventually(lambda: has_happened(run, "effect.succeeded"))
        async with make(after) as runtime:
            run = await runtime.get("r")
            await run.send("go")
            return await then(run)

    return run_async(main())


def test_a_renamed_effect_is_still_the_same_operation() -> None:
    async def then(run: Run[Any]) -> Any:
        return await run.result(timeout=20)

    result = after_a_deploy(payer("refund"), payer("repay", "refund"), then)
    assert result == ["receipt 1", "DuplicateOperation"]
    assert len(SENT) == 1


def test_a_key_function_that_gives_another_key_on_replay_is_a_divergence() -> None:
    async def then(run: Run[Any]) -> Any:
        KEYS.append("another")
        return await blocked(run)

    stuck = after_a_deploy(payer("refund"), payer("refund"), then)
    assert stuck.reason == "diverged"
    assert "key function gives 'another' now" in str(stuck)
    assert len(SENT) == 1


@workflow
async def pays_both() -> list[str]:
    return [await pay_for_all("o"), await pay("o")]


def test_pruning_forgets_a_runs_ids_and_keeps_global_ones() -> None:
    async def main() -> None:
        async with on_one_store()(pays_both, pays_for_all) as runtime:
            run = await runtime.start(pays_both.call(), id="r")
            await run.result(timeout=20)
            store = host_of(runtime).store
            assert store.prune(ended_before=far_future(), limit=10) == 1
            assert [entry.scope for entry in rows(runtime)] == ["global"]
            other = await runtime.start(pays_for_all.call(False), id="other")
            assert await other.result(timeout=20) == "duplicate"

    run_async(main())
    assert len(SENT) == 2


def far_future() -> int:
    return 2**60


# ── hosted code, and crashes at every write ─────────────────────────────────────────────────

DONE: dict[str, str] = {}


@effect(downstream=CanLookUp(), timeout=5)
async def book(order: str) -> str:
    return DONE.setdefault(perdure.operation().id, str(request()))


@book.key
def _(order: str) -> str:
    return order


@book.lookup
async def _(op: Operation) -> Found[str] | NotFound | Unsure:
    return Found(DONE[op.id]) if op.id in DONE else NotFound()


async def hosted() -> list[str]:
    return [await book("first"), *await asyncio.gather(book("second"), book("third"))]


@workflow
async def hosts() -> list[str]:
    return sorted(await perdure.section("agent").run(hosted))


def test_a_section_books_once_whatever_crashes() -> None:
    async def scenario(runtime: Any) -> Any:
        if not rows(runtime):
            SENT.clear()
            DONE.clear()
        run = await runtime.start(hosts.call(), id="r")
        result = await run.result(timeout=20)
        assert all(entry.status is EffectState.SUCCEEDED for entry in rows(runtime))
        assert len({operation for operation, _ in SENT}) == len(SENT) == 3
        return len(result)

    assert run_async(sweep_crashes(scenario, workflows=[hosts])).result == 3


# ── what it costs ───────────────────────────────────────────────────────────────────────────


class CountingStore(MemoryStore):
    """Counts the commits that say something about an effect."""

    commits = 0

    def commit(self, writes: Any) -> Any:
        appends = [write for write in writes if isinstance(write, Append)]
        CountingStore.commits += any(write.effects for write in appends)
        return super().commit(writes)


def test_an_effect_whose_first_attempt_answers_makes_two_commits() -> None:
    async def main() -> None:
        CountingStore.commits = 0
        async with Runtime(CountingStore(), workflows=[pays]) as runtime:
            await (await runtime.start(pays.call(), id="r")).result(timeout=20)
        assert CountingStore.commits == 2

    run_async(main())


@pytest.mark.parametrize(("name", "commits"), [("pay", 4), ("pay_at_once", 3)])
def test_a_refusal_is_durable_before_the_wait_for_the_next_attempt(name: str, commits: int) -> None:
    """Where there is no wait, it and the next start are one commit."""
    ANSWERS[:] = [perdure.Retryable("busy")]

    async def main() -> None:
        CountingStore.commits = 0
        clock = FakeClock()
        async with Runtime(CountingStore(clock), workflows=[pays, pays_at_once], clock=clock) as runtime:
            run = await runtime.start(pays.call() if name == "pay" else pays_at_once.call(), id="r")
            if name == "pay":
                await eventually(lambda: has_happened(run, "effect.not_done"))
                clock.advance(1)
            await run.result(timeout=20)
        assert CountingStore.commits == commits

    run_async(main())


@effect(downstream=NoGuarantee(), retry=Retry(max_attempts=3, first_delay=0, jitter=0), timeout=5)
async def pay_at_once(order: str) -> str:
    return str(request())


@pay_at_once.key
def _(order: str) -> str:
    return order


@workflow
async def pays_at_once() -> str:
    return await pay_at_once("o")


@effect(downstream=NoGuarantee(), retry=Retry(max_attempts=3, first_delay=60), timeout=5)
async def pay_patiently(order: str) -> str:
    return str(request())


@pay_patiently.key
def _(order: str) -> str:
    return order


@workflow
async def pays_patiently() -> str:
    return await pay_patiently("o")


def test_who_dies_between_two_refusals_leaves_no_doubt() -> None:
    """Refused, dead in the wait, sent again, refused for good: two proofs, and nobody is asked. Were the first of them
    not durable, the second would prove nothing of the request before it."""
    ANSWERS[:] = [perdure.Retryable("busy"), perdure.Final("no such account")]

    async def main() -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        async with RuntimeUnderTest(store, clock=clock, workflows=[pays_patiently]) as first:
            await first.start(pays_patiently.call(), id="r")
            await first.run_dry()
            assert [entry.status for entry in rows(first)] == [EffectState.FAILED_RETRYABLE]
            await first.die()
        async with RuntimeUnderTest(store.again(), clock=clock, workflows=[pays_patiently]) as second:
            with pytest.raises(perdure.Final, match="no such account"):
                await (await second.get("r")).result()
            assert [(entry.status, entry.attempts) for entry in rows(second)] == [(EffectState.FAILED_FINAL, 2)]
            assert await second.inbox() == []

    run_async(main())


def test_a_decision_about_the_run_settles_no_effect() -> None:
    """Somebody unblocks a run, without having seen what is in doubt: nothing is sent again."""
    ANSWERS[:] = [ConnectionResetError("gone")]

    async def main() -> None:
        async with on_one_store()(pays) as runtime:
            run = await runtime.start(pays.call(), id="r")
            await blocked(run)
            letter = msgspec.json.encode(mail.ControlLetter(by="bob", choice="retry"))
            await run._post("unblock", "", letter)  # pyright: ignore[reportPrivateUsage]

            async def is_read() -> bool:
                return not any(entry.pending for entry in await runtime.inbox())

            await eventually(is_read)
            await run.settle("succeeded", value="by hand", by="ann")
            assert await run.result(timeout=20, wait_blocked=True) == "by hand"

    run_async(main())
    assert len(SENT) == 1

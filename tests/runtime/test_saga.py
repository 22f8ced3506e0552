"""Sagas: what was done is taken back, once, whatever crashes; and a person hears of what cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, on_one_store, run_async

import perdure
from perdure import (
    Client,
    DeclarationError,
    DuplicateOperation,
    Final,
    Idempotent,
    NoGuarantee,
    RunBlockedError,
    RunCancelledError,
    UsageError,
    effect,
    step,
    workflow,
)
from perdure.ledger import EffectState, LedgerEntry
from perdure.store.protocol import EffectFilter
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import sweep_crashes

# ── the outside world, which knows nothing of us ────────────────────────────────────────────


class World:
    """A travel office with books of its own. It honours ids: a request under an id that it knows changes nothing."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        self.answered: dict[str, str] = {}
        self.standing: list[str] = []
        self.log: list[str] = []
        self.script: dict[str, list[Any]] = {}
        self.refused: dict[str, str] = {}
        self.may_go_on = asyncio.Event()

    async def request(self, id: str, what: str) -> str:
        script = self.script.get(what)
        problem = script.pop(0) if script else None
        if isinstance(problem, BaseException):
            raise problem
        if what in self.refused and self.refused[what] in {"", id}:
            self.refused[what] = id  # under this id the answer stays the same
            raise Final("not today")
        if problem == "hang":
            await self.may_go_on.wait()
        if id not in self.answered:
            self.answered[id] = f"{what}!"
            self.log.append(what)
            verb, _, thing = what.partition(" ")
            (self.standing.append if verb == "book" else self.standing.remove)(thing)
        if problem == "lost":
            raise ConnectionResetError("the connection went away")
        return self.answered[id]


WORLD = World()


def fresh_world(**script: list[Any]) -> None:
    WORLD.begin_anew()
    WORLD.script = {what.replace("_", " "): list(problems) for what, problems in script.items()}


@pytest.fixture(autouse=True)
def _world() -> None:
    fresh_world()


@effect(downstream=Idempotent(), timeout=5)
async def book(thing: str) -> str:
    return await WORLD.request(perdure.operation().id, f"book {thing}")


@book.key
def _(thing: str) -> str:
    return thing


@book.undo
async def _(receipt: str, thing: str) -> None:
    assert receipt == f"book {thing}!", "the undoing gets the effect's own result"
    await WORLD.request(perdure.operation().id, f"drop {thing}")


@effect(downstream=NoGuarantee(), timeout=5)
async def wire(thing: str) -> str:
    return await WORLD.request(perdure.operation().id, f"book {thing}")


@wire.key
def _(thing: str) -> str:
    return thing


@wire.undo(downstream=Idempotent())
async def _(receipt: str, thing: str) -> None:
    await WORLD.request(perdure.operation().id, f"drop {thing}")


@effect(downstream=Idempotent(), timeout=5, reversible=False)
async def mail_letter(thing: str) -> str:
    return await WORLD.request(perdure.operation().id, f"book {thing}")


@mail_letter.key
def _(thing: str) -> str:
    return thing


LETTERS = perdure.Policy("letters", 1, [perdure.Rule("may be sent", "mail_letter", then="allow")])


@effect(downstream=Idempotent(), timeout=5, recovery="compensate")
async def promise(thing: str) -> str:
    return await WORLD.request(perdure.operation().id, f"book {thing}")


@promise.key
def _(thing: str) -> str:
    return thing


@promise.undo
async def _(receipt: str, thing: str) -> None:
    await WORLD.request(perdure.operation().id, f"drop {thing}")


class NoRoom(Exception):
    """Why a trip fails."""


THINGS = ("flight", "hotel", "car")


def rows(runtime: Any) -> dict[str, LedgerEntry]:
    store: Any = getattr(runtime, "_store", None) or host_of(runtime).store
    return {f"{row.action_name} {row.business_key}": row for row in store.effects(EffectFilter())}


def told(result: list[str]) -> list[str]:
    return [line.removeprefix("saga: ") for line in result]


@workflow
async def trip(fails_after: int) -> list[str]:
    try:
        async with perdure.saga():
            for count, thing in enumerate(THINGS):
                if count == fails_after:
                    raise ValueError("no room")
                await book(thing)
            if fails_after == len(THINGS):
                raise ValueError("no room")
    except ValueError as error:
        return list(getattr(error, "__notes__", []))
    return ["booked"]


async def result_of(call: Any, **options: Any) -> tuple[Any, dict[str, LedgerEntry]]:
    async with RuntimeUnderTest(workflows=[call.of]) as runtime:
        run = await runtime.start(call, id="r")
        return await run.result(), rows(runtime)


# ── the plain story ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fails_after", [0, 1, 2, 3])
def test_what_was_done_is_undone_the_last_one_first(fails_after: int) -> None:
    notes, ledger = run_async(result_of(trip.call(fails_after)))
    done = list(THINGS[:fails_after])
    assert WORLD.log == [f"book {thing}" for thing in done] + [f"drop {thing}" for thing in reversed(done)]
    assert WORLD.standing == []
    shown = ", ".join(f"book '{thing}'" for thing in reversed(done))
    assert told(notes) == ([f"undone: {shown}"] if done else [])
    for thing in done:
        assert ledger[f"book {thing}"].compensated_by == ledger[f"book.undo {thing}"].operation_id
        assert ledger[f"book.undo {thing}"].status is EffectState.SUCCEEDED


def test_what_went_well_stands() -> None:
    assert run_async(result_of(trip.call(9)))[0] == ["booked"]
    assert WORLD.standing == list(THINGS)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_effect_that_is_refused_was_not_done(position: int) -> None:
    WORLD.script[f"book {THINGS[position]}"] = [Final("no such thing")]

    @workflow
    async def refused() -> str:
        async with perdure.saga():
            for thing in THINGS:
                await book(thing)
        return "booked"

    with pytest.raises(Final, match="no such thing") as caught:
        run_async(result_of(refused.call()))
    assert WORLD.log == [f"{verb} {thing}" for verb, things in (
        ("book", THINGS[:position]), ("drop", reversed(THINGS[:position]))) for thing in things]  # fmt: skip
    assert any("undone" in note for note in getattr(caught.value, "__notes__", [])) == (position > 0)


@pytest.mark.parametrize("lost", ["none", "lost"])
@pytest.mark.parametrize("fails_after", [0, 1, 2, 3, 9])
def test_a_crash_at_any_write_undoes_all_and_nothing_twice(fails_after: int, lost: str) -> None:
    script = {} if lost == "none" else {"drop_hotel": ["lost"], "book_flight": ["lost"]}

    async def scenario(runtime: Any) -> Any:
        if not rows(runtime):
            fresh_world(**script)
        run = await runtime.start(trip.call(fails_after), id="r")
        result = await run.result()
        done = list(THINGS[:fails_after]) if fails_after <= 3 else []
        assert WORLD.standing == (list(THINGS) if fails_after == 9 else [])
        assert [w for w in WORLD.log if w.startswith("drop")] == [f"drop {thing}" for thing in reversed(done)]
        ledger = rows(runtime)
        for thing in done:
            assert ledger[f"book {thing}"].compensated_by == ledger[f"book.undo {thing}"].operation_id
        return result

    sweep = run_async(sweep_crashes(scenario, workflows=[trip]))
    assert sweep.error is None, sweep.error
    assert sweep.crashes > 2


# ── tasks, cancelling, nesting ──────────────────────────────────────────────────────────────


@workflow
async def books_together() -> str:
    async with perdure.saga(), asyncio.TaskGroup() as group:
        for thing in THINGS:
            group.create_task(book(thing))
        group.create_task(fails_late())
    return "booked"


async def fails_late() -> None:
    await perdure.sleep(1)
    raise NoRoom


def test_effects_of_child_tasks_belong_to_it() -> None:
    with pytest.raises(Exception, match=r"unhandled errors|NoRoom"):
        run_async(result_of(books_together.call()))
    assert WORLD.standing == []
    assert len(WORLD.log) == 6
    booked, dropped = WORLD.log[:3], WORLD.log[3:]
    assert sorted(dropped) == sorted(what.replace("book", "drop") for what in booked)


@workflow
async def aborts_a_group() -> str:
    try:
        async with perdure.saga(), asyncio.TaskGroup() as group:
            group.create_task(book("flight"))
            await book("hotel")
            raise NoRoom
    except* NoRoom:
        pass
    return "failed"


def test_an_effect_that_was_cancelled_in_flight_is_undone_when_it_is_known_to_have_happened() -> None:
    fresh_world(book_flight=["hang"])

    async def main() -> None:
        async with on_one_store()(aborts_a_group) as runtime:
            run = await runtime.start(aborts_a_group.call(), id="r")
            await eventually(lambda: "book hotel" in WORLD.log)
            await asyncio.sleep(0.05)
            assert "drop hotel" not in WORLD.log, "it waits for the one that may have happened"
            WORLD.may_go_on.set()
            await run.result(timeout=20)

    run_async(main())
    assert WORLD.standing == []
    assert WORLD.log == ["book hotel", "book flight", "drop flight", "drop hotel"]


@workflow
async def waits_inside() -> str:
    async with perdure.saga():
        await book("flight")
        await book("hotel")
        await perdure.receive("go")
    return "booked"


def test_cancelling_the_run_undoes() -> None:
    async def scenario(runtime: Any) -> Any:
        if not rows(runtime):
            fresh_world()
        run = await runtime.start(waits_inside.call(), id="r")
        await eventually(lambda: len(rows(runtime)) >= 2 and "book hotel" in WORLD.log)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        assert (WORLD.standing, WORLD.log[2:]) == ([], ["drop hotel", "drop flight"])
        return "cancelled"

    sweep = run_async(sweep_crashes(scenario, workflows=[waits_inside]))
    assert sweep.result == "cancelled", sweep.error


@workflow
async def is_cancelled_while_undoing() -> str:
    try:
        async with perdure.saga():
            await book("flight")
            await book("hotel")
            raise NoRoom
    except NoRoom:
        return "the cancellation is lost"


def test_a_cancellation_while_it_undoes_comes_out_in_the_end() -> None:
    fresh_world(drop_hotel=["hang"])

    async def main() -> None:
        async with on_one_store()(is_cancelled_while_undoing) as runtime:
            run = await runtime.start(is_cancelled_while_undoing.call(), id="r")
            await eventually(lambda: not WORLD.script["drop hotel"])
            await run.cancel()
            await asyncio.sleep(0.05)
            WORLD.may_go_on.set()
            with pytest.raises(RunCancelledError):
                await run.result(timeout=20)

    run_async(main())
    assert WORLD.standing == []
    assert WORLD.log == ["book flight", "book hotel", "drop hotel", "drop flight"]


@workflow
async def nested(inner_fails: bool, outer_fails: bool) -> str:
    try:
        async with perdure.saga():
            await book("flight")
            try:
                async with perdure.saga():
                    await book("hotel")
                    if inner_fails:
                        raise ValueError("inner")
            except ValueError:
                pass
            await book("car")
            if outer_fails:
                raise LookupError("outer")
    except LookupError:
        return "failed"
    else:
        return "booked"


@pytest.mark.parametrize(
    ("inner", "outer", "log", "standing"),
    [
        (False, False, "book flight, book hotel, book car", ["flight", "hotel", "car"]),
        (True, False, "book flight, book hotel, drop hotel, book car", ["flight", "car"]),
        (False, True, "book flight, book hotel, book car, drop car, drop hotel, drop flight", []),
        (True, True, "book flight, book hotel, drop hotel, book car, drop car, drop flight", []),
    ],
)
def test_what_an_inner_saga_did_belongs_to_the_outer_one(
    inner: bool, outer: bool, log: str, standing: list[str]
) -> None:
    run_async(result_of(nested.call(inner, outer)))
    assert ", ".join(WORLD.log) == log
    assert WORLD.standing == standing


@workflow
async def turns_at_the_pivot(inner: bool) -> list[str]:
    try:
        async with perdure.saga():
            await book("flight")
            if inner:
                async with perdure.saga():
                    await book("hotel")
                    perdure.pivot()
            else:
                await book("hotel")
                perdure.pivot()
            await book("car")
            raise ValueError("late")
    except ValueError as error:
        return error.__notes__


@pytest.mark.parametrize("inner", [False, True])
def test_nothing_before_the_pivot_is_undone(inner: bool) -> None:
    notes, _ = run_async(result_of(turns_at_the_pivot.call(inner)))
    assert WORLD.log[3:] == ["drop car"]
    assert sorted(told(notes)) == [
        "stands: book 'flight' (done before pivot()), book 'hotel' (done before pivot())",
        "undone: book 'car'",
    ]


# ── people ──────────────────────────────────────────────────────────────────────────────────


@workflow
async def wires() -> list[str]:
    try:
        async with perdure.saga():
            await book("flight")
            await asyncio.wait_for(wire("money"), 0.05)
    except TimeoutError as error:
        return error.__notes__
    return []


async def blocked(run: Any, reason: str) -> RunBlockedError:
    with pytest.raises(RunBlockedError) as caught:
        await run.result(timeout=20)
    assert caught.value.reason == reason
    return caught.value


async def entry_of(runtime: Any) -> Any:
    async with Client(host_of(runtime).store) as client:
        (entry,) = await client.inbox()
        return entry


def test_undoing_waits_for_an_unknown_effect_and_goes_on_when_it_is_settled() -> None:
    fresh_world(book_money=["lost"])

    @workflow
    async def in_doubt() -> str:
        async with perdure.saga():
            await book("flight")
            async with asyncio.TaskGroup() as group:
                group.create_task(wire("money"))
                group.create_task(fails_late())
        return ""

    async def main() -> None:
        from tests.runtime.test_effects import settle

        async with on_one_store()(in_doubt) as runtime:
            run = await runtime.start(in_doubt.call(), id="r")
            await blocked(run, "unknown_effect")
            await asyncio.sleep(1.2)  # long past the failure of the other task
            assert WORLD.log == ["book flight", "book money"]
            await settle(run, choice="succeeded", value='"book money!"', by="ann")
            with pytest.raises(Exception, match="unhandled"):
                await run.result(wait_blocked=True, timeout=20)

    run_async(main())
    assert WORLD.log[2:] == ["drop money", "drop flight"]
    assert WORLD.standing == []


@workflow(policy=LETTERS)
async def fails_with(how: str) -> list[str]:
    effects = {"book": book, "promise": promise, "mail": mail_letter}
    try:
        async with perdure.saga():
            await book("flight")
            await effects[how]("thing")
            await book("car")
            raise ValueError("late")
    except ValueError as error:
        return error.__notes__


@pytest.mark.parametrize(
    ("how", "script", "choice", "value", "standing", "notes"),
    [
        ("book", True, "retry", None, [], ["undone: book 'car', book 'thing', book 'flight'"]),
        ("book", True, "fail", None, ["thing"],
         ["undone: book 'car', book 'flight'", "stands: book 'thing' (left standing by ann: so be it)"]),
        ("book", True, "value", "x", ["thing"],
         ["undone: book 'car', book 'thing' (by hand by ann: so be it), book 'flight'"]),
        ("mail", False, "fail", None, ["thing"],
         ["undone: book 'car', book 'flight'", "stands: mail_letter 'thing' (left standing by ann: so be it)"]),
        ("mail", False, "value", None, ["thing"],
         ["undone: book 'car', book 'flight', mail_letter 'thing' (by hand by ann: so be it)"]),
        ("promise", False, "value", "undo", [], ["undone: book 'car', promise 'thing', book 'flight'"]),
        ("promise", False, "value", "undone", ["thing"],
         ["undone: book 'car', promise 'thing' (by hand by ann: so be it), book 'flight'"]),
        ("promise", False, "fail", None, ["thing"],
         ["undone: book 'car', book 'flight'", "stands: promise 'thing' (left standing by ann: so be it)"]),
    ],
)  # fmt: skip
def test_a_person_decides_about_what_a_machine_must_not_or_cannot_undo(
    how: str, script: bool, choice: Any, value: Any, standing: list[str], notes: list[str]
) -> None:
    scenario = decided_by_a_person(fails_with, how, script=script, choice=choice, value=value, standing=standing)
    sweep = run_async(sweep_crashes(scenario, workflows=[fails_with]))
    assert sweep.result == notes, sweep.error


def decided_by_a_person(
    workflow: Any, how: str, *, script: bool, choice: Any, value: Any, standing: list[str]
) -> Callable[[Any], Awaitable[Any]]:
    """A saga that fails and asks, and what somebody says; the rest is undone before, and only what they allow after."""
    reason = "needs_person" if how == "promise" else "failed_compensation"

    async def scenario(runtime: Any) -> Any:
        if not rows(runtime):
            fresh_world()
            if script:
                WORLD.refused["drop thing"] = ""
        run = await runtime.start(workflow.call(how), id="r")
        asked: list[tuple[str, str]] = []
        result: list[str] | None = None
        while result is None:
            try:
                result = await run.result(timeout=20)
            except RunBlockedError as error:
                asked.append((error.reason, error.hint))
                assert "drop thing" not in WORLD.log
                await run.unblock(choice, value=value, by="ann", reason="so be it")
                await eventually(lambda: not_blocked(runtime))
        assert all(why == reason and "thing" in hint and "undone: book 'car'" in hint for why, hint in asked)
        assert sorted(WORLD.standing) == sorted(standing)
        assert WORLD.log.count("drop flight") == WORLD.log.count("drop car") == 1
        assert WORLD.log.count("drop thing") == ("thing" not in standing)
        return told(result)

    return scenario


def not_blocked(runtime: Any) -> bool:
    from perdure.store.protocol import Filter, Status

    return not any(info.status is Status.BLOCKED for info in runtime._store.runs(Filter()))


def test_a_promise_is_not_undone_by_trying_again() -> None:
    async def main() -> None:
        async with on_one_store()(fails_with) as runtime:
            run = await runtime.start(fails_with.call("promise"), id="r")
            error = await blocked(run, "needs_person")
            assert "promise 'thing' is about to be undone" in error.hint
            assert set((await entry_of(runtime)).choices) == {"value", "fail"}
            await run.unblock("retry")
            await run.unblock("value", value="yes")
            await eventually(lambda: hint_says(runtime, "refused"))
            assert "drop thing" not in WORLD.log
            await run.unblock("value", value="undo", by="ann")
            await run.result(wait_blocked=True, timeout=20)
            assert "drop thing" in WORLD.log

    run_async(main())


def hint_says(runtime: Any, what: str) -> bool:
    from perdure.store.protocol import Filter

    (info,) = host_of(runtime).store.runs(Filter())
    return what in (info.hint or "")


def test_what_was_undone_is_reused_by_nobody() -> None:
    @workflow
    async def books_again() -> str:
        try:
            async with perdure.saga():
                await book("flight")
                raise ValueError("once")
        except ValueError:
            pass
        try:
            return await book("flight")
        except DuplicateOperation:
            return "refused"

    assert run_async(result_of(books_again.call()))[0] == "refused"
    assert WORLD.standing == []


# ── what an undoing is, other than a call of its own ────────────────────────────────────────


@effect(downstream=Idempotent(), timeout=5)
async def transfer(thing: str) -> str:
    return await WORLD.request(perdure.operation().id, f"book {thing}")


@transfer.key
def _(thing: str) -> str:
    return thing


@transfer.undo(downstream=NoGuarantee())
async def _(receipt: str, thing: str) -> str:
    return await WORLD.request(perdure.operation().id, f"drop {thing}")


@workflow
async def transfers() -> list[str]:
    try:
        async with perdure.saga():
            await book("flight")
            await transfer("money")
            raise ValueError("late")
    except ValueError as error:
        return error.__notes__


@pytest.mark.parametrize(
    ("choice", "revisions", "standing"), [("succeeded", [0], []), ("retry", [0], []), ("failed", [0, 1], [])]
)
def test_an_undoing_in_doubt_is_settled_and_goes_on(choice: str, revisions: list[int], standing: list[str]) -> None:
    """A person says what became of it: it happened, it did not and is sent again, or it failed and is decided anew."""

    async def main() -> None:
        from tests.runtime.test_effects import settle

        fresh_world(drop_money=["lost" if choice == "succeeded" else ConnectionResetError("gone")])
        async with on_one_store()(transfers) as runtime:
            run = await runtime.start(transfers.call(), id="r")
            await blocked(run, "unknown_effect")
            assert "drop flight" not in WORLD.log, "the rest waits for it"
            assert rows(runtime)["transfer money"].compensated_by is None
            await settle(run, choice=choice, value='"drop money!"' if choice == "succeeded" else None, by="ann")
            if choice == "failed":
                await eventually(lambda: hint_says(runtime, "could not be undone"))
                await run.unblock("retry", by="ann")
            assert told(await run.result(wait_blocked=True, timeout=20)) == [
                "undone: transfer 'money', book 'flight'"
            ]
            undone = [row for row in host_of(runtime).store.effects(EffectFilter()) if "undo" in row.action_name]
            mine = sorted((row for row in undone if row.business_key == "money"), key=lambda row: row.revision)
            assert [row.revision for row in mine] == revisions
            assert rows(runtime)["transfer money"].compensated_by == mine[-1].operation_id

    run_async(main())
    assert WORLD.standing == standing
    assert WORLD.log.count("drop money") == 1


@effect(downstream=Idempotent(), timeout=5)
def book_in_thread(thing: str) -> str:
    WORLD.standing.append(thing)
    return thing


@book_in_thread.key
def _(thing: str) -> str:
    return thing


def crew() -> str:
    return book_in_thread("room")


@workflow
async def hosts() -> list[str]:
    try:
        async with perdure.saga():
            await book("flight")
            await perdure.section("crew").run(crew)
            raise ValueError("late")
    except ValueError as error:
        return error.__notes__


def test_what_hosted_code_did_is_listed_and_not_undone() -> None:
    async def main() -> None:
        async with on_one_store()(hosts) as runtime:
            run = await runtime.start(hosts.call(), id="r")
            error = await blocked(run, "failed_compensation")
            assert "book_in_thread 'room' (called by hosted code)" in error.hint
            await run.unblock("fail")
            notes = await run.result(wait_blocked=True, timeout=20)
            assert told(notes) == ["undone: book 'flight'", "stands: book_in_thread 'room' (left standing)"]

    run_async(main())
    assert WORLD.standing == ["room"]


@workflow
async def leaves_a_task_behind() -> str:
    booking = asyncio.create_task(books_in_a_saga())
    await perdure.sleep(1)
    assert not booking.done()
    return "done"


async def books_in_a_saga() -> None:
    async with perdure.saga():
        await book("flight")
        await perdure.receive("never")


def test_a_saga_in_a_task_that_is_left_behind_is_undone_before_the_run_ends() -> None:
    assert run_async(result_of(leaves_a_task_behind.call()))[0] == "done"
    assert WORLD.log == ["book flight", "drop flight"]


@workflow
async def gathers() -> str:
    async with perdure.saga():
        await asyncio.gather(book("flight"), book("hotel"), fails_late())
    return ""


@pytest.mark.parametrize("slow", [False, True])
def test_what_gather_leaves_under_way_is_waited_for_and_undone(slow: bool) -> None:
    fresh_world(book_hotel=["hang"] if slow else [])

    async def main() -> None:
        async with on_one_store()(gathers) as runtime:
            run = await runtime.start(gathers.call(), id="r")
            await eventually(lambda: "book flight" in WORLD.log)
            await asyncio.sleep(1.2)
            WORLD.may_go_on.set()
            with pytest.raises(perdure.StepError, match="NoRoom"):
                await run.result(timeout=20)

    run_async(main())
    assert WORLD.standing == []
    assert len(WORLD.log) == 4


@workflow
async def grows(things: int) -> str:
    async with perdure.saga():
        for n in range(things):
            await book(f"thing {n}")
        await perdure.receive("go")
    return ""


def test_a_waiting_saga_leaves_memory_and_undoes_nothing_by_that() -> None:
    from tests.runtime.hosting import let_go

    async def main() -> None:
        async with on_one_store()(grows) as runtime:
            run = await runtime.start(grows.call(3), id="r")
            await eventually(lambda: len(WORLD.log) == 3)
            await let_go(runtime, "r")
            await asyncio.sleep(0.05)
            assert len(WORLD.standing) == 3
            await run.cancel()
            with pytest.raises(RunCancelledError):
                await run.result(timeout=20)

    run_async(main())
    assert WORLD.standing == []



GOT: list[Any] = []


@effect(downstream=Idempotent())
async def pay(amount: Decimal) -> Decimal:
    return amount


@pay.key
def _(amount: Decimal) -> str:
    return str(amount)


async def takes_anything(paid, amount):  # type: ignore[no-untyped-def] # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
    GOT.extend([paid, amount])  # pyright: ignore[reportUnknownArgumentType]


pay.undo(takes_anything)  # pyright: ignore[reportUnknownArgumentType]


@workflow
async def pays_and_fails() -> str:
    async with perdure.saga():
        await pay(Decimal("1.50"))
        raise ValueError("late")


def test_an_undo_takes_the_types_of_the_effect_where_it_names_none() -> None:
    GOT.clear()
    with pytest.raises(ValueError, match="late"):
        run_async(result_of(pays_and_fails.call()))
    assert [type(each) for each in GOT] == [Decimal, Decimal]
    assert [str(each) for each in GOT] == ["1.50", "1.50"]


# ── bad input ───────────────────────────────────────────────────────────────────────────────


@step
async def in_a_step(what: str) -> str:
    function: Callable[[], Any] = getattr(perdure, what)
    try:
        function()
    except UsageError as error:
        return str(error)
    return "no error"


@workflow
async def misuses(what: str) -> str:
    try:
        if what == "pivot":
            perdure.pivot()
        elif what == "continue":
            async with perdure.saga():
                perdure.continue_as_new("x")
        elif what == "outlives":
            leftover: list[asyncio.Task[Any]] = []
            try:
                async with perdure.saga():
                    leftover.append(asyncio.create_task(books_late()))
                    await perdure.sleep(0)
                    raise ValueError("early")
            except ValueError:
                await leftover[0]
        else:
            return await in_a_step(what.removeprefix("step:"))
    except UsageError as error:
        return str(error)
    return "no error"


async def books_late() -> None:
    await perdure.sleep(1)
    await book("late")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (misuses.call("pivot"), "outside every saga"),
        (misuses.call("continue"), "could not undo what this one did"),
        (misuses.call("outlives"), "effect book was called in a task or thread that was started inside a saga"),
        (misuses.call("step:saga"), "inside the body of a step"),
        (misuses.call("step:pivot"), "inside the body of a step"),
    ],
)
def test_misuse_is_refused_with_one_clear_error(call: Any, said: str) -> None:
    again = call.of.call(*call.args)
    assert said in run_async(result_of(again))[0]
    assert WORLD.log == []


@pytest.mark.parametrize("what", ["saga", "pivot"])
def test_outside_a_run_it_is_refused(what: str) -> None:
    with pytest.raises(UsageError, match="outside a run"):
        getattr(perdure, what)()


def test_an_undo_of_another_signature_is_refused_at_declaration() -> None:
    @effect(downstream=Idempotent())
    async def pay(order: str, cents: int) -> str:
        return f"{order} {cents}"

    with pytest.raises(DeclarationError, match=r"the undo of pay takes \(result, order, cents\), not \(order\)"):

        @pay.undo  # type: ignore[arg-type]
        async def _(order: str) -> None: ...

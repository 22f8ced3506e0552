"""Sagas in `def` workflows and sections: undone once, last one first, whatever crashes and whoever cancels."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, is_in_memory, kinds, on_one_store, run_async
from tests.runtime.test_effects import settle
from tests.runtime.test_saga import (
    LETTERS,
    THINGS,
    WORLD,
    blocked,
    book,
    decided_by_a_person,
    fresh_world,
    mail_letter,
    promise,
    result_of,
    rows,
    told,
    transfer,
    wire,
)

import perdure
from perdure import Final, RunCancelledError, UsageError, step, workflow
from perdure.runtime import sections
from perdure.runtime.hosted import journal
from perdure.testing.sweep import sweep_crashes

wait = perdure.sync.wait


@pytest.fixture(autouse=True)
def _world() -> None:
    fresh_world()


@step
def note(what: str) -> str:
    return what


# ── the plain story ─────────────────────────────────────────────────────────────────────────


@workflow
def trip(fails_after: int) -> list[str]:
    try:
        with perdure.saga():
            for count, thing in enumerate(THINGS):
                if count == fails_after:
                    raise ValueError("no room")
                wait(book.call(thing))
            if fails_after == len(THINGS):
                raise ValueError("no room")
    except ValueError as error:
        return list(getattr(error, "__notes__", []))
    return ["booked"]


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
        shown = ", ".join(f"book '{thing}'" for thing in reversed(done))
        assert told(result) == (["booked"] if fails_after == 9 else [f"undone: {shown}"] if done else [])
        return result

    sweep = run_async(sweep_crashes(scenario, workflows=[trip]))
    assert sweep.error is None, sweep.error
    assert sweep.crashes > 2


# ── nesting, pivots, threads ────────────────────────────────────────────────────────────────


@workflow
def nested(inner_fails: bool, outer_fails: bool) -> str:
    try:
        with perdure.saga():
            wait(book.call("flight"))
            try:
                with perdure.saga():
                    wait(book.call("hotel"))
                    if inner_fails:
                        raise ValueError("inner")
            except ValueError:
                pass
            wait(book.call("car"))
            if outer_fails:
                raise LookupError("outer")
    except LookupError:
        return "failed"
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
def turns_at_the_pivot() -> list[str]:
    try:
        with perdure.saga():
            wait(book.call("flight"))
            with perdure.saga():
                wait(book.call("hotel"))
                perdure.pivot()
            wait(book.call("car"))
            raise ValueError("late")
    except ValueError as error:
        return error.__notes__


def test_nothing_before_the_pivot_is_undone() -> None:
    notes, _ = run_async(result_of(turns_at_the_pivot.call()))
    assert WORLD.log[3:] == ["drop car"]
    assert sorted(told(notes)) == [
        "stands: book 'flight' (done before pivot()), book 'hotel' (done before pivot())",
        "undone: book 'car'",
    ]


def books(thing: str) -> str:
    return wait(book.call(thing))


@workflow
def books_in_threads() -> str:
    try:
        with perdure.saga(), ThreadPoolExecutor(3) as pool:
            for thing in THINGS:
                pool.submit(books, thing)
            raise ValueError("while they book")
    except ValueError:
        return "undone"


def test_effects_of_threads_that_are_started_inside_belong_to_it() -> None:
    async def scenario(runtime: Any) -> Any:
        if not rows(runtime):
            fresh_world()
        run = await runtime.start(books_in_threads.call(), id="r")
        result = await run.result()
        booked, dropped = WORLD.log[:3], WORLD.log[3:]
        assert WORLD.standing == []
        assert sorted(dropped) == sorted(what.replace("book", "drop") for what in booked)
        return result

    sweep = run_async(sweep_crashes(scenario, workflows=[books_in_threads]))
    assert sweep.result == "undone", sweep.error


@workflow
def leaves_a_thread_behind() -> str:
    began = threading.Event()

    def books_slowly() -> None:
        began.set()
        wait(book.call("hotel"))

    with perdure.saga():
        wait(book.call("flight"))
        threading.Thread(target=books_slowly).start()
        began.wait()
        wait(book.call("car"))
        raise ValueError("late")


def test_undoing_waits_for_what_another_thread_has_sent() -> None:
    fresh_world(book_hotel=["hang"])

    async def main() -> None:
        async with on_one_store()(leaves_a_thread_behind) as runtime:
            run = await runtime.start(leaves_a_thread_behind.call(), id="r")
            await eventually(lambda: {"book flight", "book car"} <= set(WORLD.log) and not WORLD.script["book hotel"])
            await asyncio.sleep(0.05)
            assert not any(what.startswith("drop") for what in WORLD.log)
            WORLD.may_go_on.set()
            with pytest.raises(ValueError, match="late"):
                await run.result(timeout=20)

    run_async(main())
    assert WORLD.standing == []
    assert WORLD.log[2:4] == ["book hotel", "drop hotel"]


# ── cancelling ──────────────────────────────────────────────────────────────────────────────


@workflow
def waits_inside() -> str:
    with perdure.saga():
        wait(book.call("flight"))
        try:
            with perdure.saga():
                wait(book.call("hotel"))
                raise ValueError("inner")
        except ValueError:
            pass
        wait(book.call("car"))
        perdure.sync.receive("go")
    return "booked"


@pytest.mark.parametrize("leaves", [False, True])
def test_cancelling_the_run_undoes(leaves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the code is: in its thread, unwound, out of memory, or in a process that is gone."""
    if leaves:
        monkeypatch.setattr(sections, "UNWIND_SECONDS", 0.001)

    async def scenario(runtime: Any) -> Any:
        if not rows(runtime):
            fresh_world()
        run = await runtime.start(waits_inside.call(), id="r")
        await eventually(lambda: "book car" in WORLD.log)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        drops = ["drop hotel", "drop car", "drop flight"]
        assert (WORLD.standing, [what for what in WORLD.log if "drop" in what]) == ([], drops)
        return "cancelled"

    sweep = run_async(sweep_crashes(scenario, workflows=[waits_inside]))
    assert sweep.result == "cancelled", sweep.error


def test_cancelling_a_run_that_nobody_has_in_memory_undoes() -> None:
    from tests.runtime.hosting import let_go

    async def main() -> None:
        async with on_one_store()(waits_inside) as runtime:
            run = await runtime.start(waits_inside.call(), id="r")
            await eventually(lambda: "book car" in WORLD.log)
            await let_go(runtime, "r")
            await asyncio.sleep(0.05)
            assert WORLD.standing == ["flight", "car"]
            await run.cancel()
            with pytest.raises(RunCancelledError):
                await run.result(timeout=20)
            assert not is_in_memory(runtime, "r")
            assert (await kinds(run)).count("section.undoes") == 1

    run_async(main())
    assert WORLD.standing == []


@workflow
def sends_last() -> str:
    with perdure.saga():
        wait(book.call("flight"))
        wait(book.call("hotel"))
    return "booked"


@pytest.mark.parametrize("problem", ["hang", "lost"])
def test_an_effect_that_is_on_its_way_when_the_run_is_cancelled_is_undone_if_it_happened(problem: str) -> None:
    """Also after a crash: its answer came after the cancellation, and code that is run again gets none."""

    async def scenario(runtime: Any) -> Any:
        if not rows(runtime):
            fresh_world(book_hotel=["hang", problem])
        run = await runtime.start(sends_last.call(), id="r")
        await eventually(lambda: len(WORLD.script["book hotel"]) < 2 or "book hotel" in WORLD.log)
        await run.cancel()
        await eventually(lambda: "call.cancelled" in _kinds_of(runtime))
        WORLD.may_go_on.set()
        with pytest.raises(RunCancelledError):
            await run.result()
        assert (WORLD.standing, WORLD.log.count("drop flight")) == ([], 1)
        assert WORLD.log.count("drop hotel") == WORLD.log.count("book hotel")
        return "cancelled"

    sweep = run_async(sweep_crashes(scenario, workflows=[sends_last]))
    assert sweep.result == "cancelled", sweep.error


@workflow
def fails_inside() -> str:
    try:
        with perdure.saga():
            wait(book.call("flight"))
            wait(book.call("hotel"))
            raise ValueError("full")
    except ValueError:
        return "the cancellation is lost"


def test_a_cancellation_while_it_undoes_comes_out_in_the_end() -> None:
    fresh_world(drop_hotel=["hang"])

    async def main() -> None:
        async with on_one_store()(fails_inside) as runtime:
            run = await runtime.start(fails_inside.call(), id="r")
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
def in_doubt() -> str:
    with perdure.saga():
        wait(book.call("flight"))
        wait(wire.call("money"))
    return "sent"


def test_an_effect_in_doubt_is_settled_before_a_cancelled_run_undoes() -> None:
    fresh_world(book_money=["lost"])

    async def main() -> None:
        make = on_one_store()
        async with make(in_doubt) as runtime:
            run = await runtime.start(in_doubt.call(), id="r")
            await blocked(run, "unknown_effect")
            await run.cancel()
            await eventually(lambda: "run.cancel_requested" in _kinds_of(runtime))
            assert not any(what.startswith("drop") for what in WORLD.log)
        async with make(in_doubt) as runtime:
            run = await runtime.start(in_doubt.call(), id="r")
            await settle(run, choice="succeeded", value='"book money!"', by="ann")
            with pytest.raises(RunCancelledError):
                await run.result(wait_blocked=True, timeout=20)

    run_async(main())
    assert WORLD.standing == []
    assert WORLD.log[2:] == ["drop money", "drop flight"]


def _kinds_of(runtime: Any) -> list[str]:
    store: Any = getattr(runtime, "_store", None) or host_of(runtime).store
    return [row.kind for _, rid, _, _ in store.heads() for row in store.load(rid, from_seq=0).rows]


@workflow
def without_a_saga() -> str:
    wait(book.call("flight"))
    perdure.sync.receive("go")
    return "booked"


def test_hosted_code_without_sagas_ends_at_once_when_it_is_cancelled() -> None:
    async def main() -> None:
        async with on_one_store()(without_a_saga) as runtime:
            run = await runtime.start(without_a_saga.call(), id="r")
            await eventually(lambda: "book flight" in WORLD.log)
            await run.cancel()
            with pytest.raises(RunCancelledError):
                await run.result(timeout=20)
            assert not {"section.undoes", "section.ended"} & set(await kinds(run))

    run_async(main())
    assert WORLD.standing == ["flight"]


# ── people ──────────────────────────────────────────────────────────────────────────────────


@workflow(policy=LETTERS)
def fails_with(how: str) -> list[str]:
    effects = {"book": book, "promise": promise, "mail": mail_letter}
    try:
        with perdure.saga():
            wait(book.call("flight"))
            wait(effects[how].call("thing"))
            wait(book.call("car"))
            raise ValueError("late")
    except ValueError as error:
        return error.__notes__


@pytest.mark.parametrize(
    ("how", "script", "choice", "value", "standing", "notes"),
    [
        ("book", True, "retry", None, [], ["undone: book 'car', book 'thing', book 'flight'"]),
        ("book", True, "fail", None, ["thing"],
         ["undone: book 'car', book 'flight'", "stands: book 'thing' (left standing by ann: so be it)"]),
        ("mail", False, "value", None, ["thing"],
         ["undone: book 'car', book 'flight', mail_letter 'thing' (by hand by ann: so be it)"]),
        ("promise", False, "value", "undo", [], ["undone: book 'car', promise 'thing', book 'flight'"]),
        ("promise", False, "fail", None, ["thing"],
         ["undone: book 'car', book 'flight'", "stands: promise 'thing' (left standing by ann: so be it)"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("leaves", [False, True])
def test_a_person_decides_about_what_a_machine_must_not_or_cannot_undo(
    how: str, script: bool, choice: Any, value: Any, standing: list[str], notes: list[str], leaves: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if leaves:
        monkeypatch.setattr(sections, "UNWIND_SECONDS", 0.001)
    scenario = decided_by_a_person(fails_with, how, script=script, choice=choice, value=value, standing=standing)
    sweep = run_async(sweep_crashes(scenario, workflows=[fails_with]))
    assert sweep.result == notes, sweep.error


@workflow
def transfers() -> list[str]:
    try:
        with perdure.saga():
            wait(book.call("flight"))
            wait(transfer.call("money"))
            raise ValueError("late")
    except ValueError as error:
        return error.__notes__


@pytest.mark.parametrize("restarts", [False, True])
def test_an_undoing_in_doubt_that_a_person_settles_is_what_took_it_back(restarts: bool) -> None:
    fresh_world(drop_money=["lost"])

    async def main() -> None:
        make = on_one_store()
        async with make(transfers) as runtime:
            run = await runtime.start(transfers.call(), id="r")
            await blocked(run, "unknown_effect")
            assert "drop flight" not in WORLD.log, "the rest waits for it"
            if restarts:
                await runtime.__aexit__(None, None, None)
                runtime = make(transfers)
                await runtime.__aenter__()
                run = await runtime.start(transfers.call(), id="r")
            await settle(run, choice="succeeded", value="null", by="ann")
            assert told(await run.result(wait_blocked=True, timeout=20)) == [
                "undone: transfer 'money', book 'flight'"
            ]
            ledger = rows(runtime)
            assert ledger["transfer money"].compensated_by == ledger["transfer.undo money"].operation_id
            if restarts:
                await runtime.__aexit__(None, None, None)

    run_async(main())
    assert WORLD.standing == []


# ── sections of async workflows ─────────────────────────────────────────────────────────────


def crew(fails: bool) -> str:
    try:
        with perdure.saga():
            wait(book.call("room"))
            if fails:
                raise ValueError("inner")
    except ValueError:
        return "undone"
    return "stands"


async def async_crew(fails: bool) -> str:
    try:
        async with perdure.saga():
            await book("room")
            await asyncio.gather(book("desk"), book("chair"))
            if fails:
                raise ValueError("inner")
    except ValueError:
        return "undone"
    return "stands"


@workflow
async def hosts(is_async: bool, fails: bool) -> list[str]:
    try:
        async with perdure.saga():
            await book("flight")
            function: Any = async_crew if is_async else crew
            said = await perdure.section("crew").run(function, fails)
            raise ValueError(said)
    except ValueError as error:
        return [str(error), *error.__notes__]


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_section_has_undone_itself_stands_nowhere(is_async: bool) -> None:
    async def scenario(runtime: Any) -> Any:
        if not rows(runtime):
            fresh_world()
        run = await runtime.start(hosts.call(is_async, True), id="r")
        result = await run.result()
        assert WORLD.standing == []
        return result

    sweep = run_async(sweep_crashes(scenario, workflows=[hosts]))
    assert sweep.result == ["undone", "saga: undone: book 'flight'"], sweep.error


def test_what_a_section_did_in_order_is_a_persons_to_undo() -> None:
    async def main() -> None:
        async with on_one_store()(hosts) as runtime:
            run = await runtime.start(hosts.call(False, False), id="r")
            error = await blocked(run, "failed_compensation")
            assert "book 'room' (called by hosted code)" in error.hint
            await run.unblock("fail")
            assert told(await run.result(wait_blocked=True, timeout=20)) == [
                "stands", "undone: book 'flight'", "stands: book 'room' (left standing)"
            ]  # fmt: skip

    run_async(main())
    assert WORLD.standing == ["room"]


async def waits_in_a_crew(kind: str) -> None:
    async with perdure.saga():
        await book("room")
        await book("desk")
        await asyncio.Event().wait()


def waits_in_a_thread(kind: str) -> None:
    with perdure.saga():
        wait(book.call("room"))
        wait(book.call("desk"))
        perdure.sync.receive("never")


@workflow
async def cancels_its_section(kind: str) -> str:
    function: Any = waits_in_a_crew if kind == "async" else waits_in_a_thread
    try:
        async with perdure.saga(), asyncio.TaskGroup() as group:
            await book("flight")
            group.create_task(perdure.section("crew").run(function, kind))
            await perdure.receive("enough")
            raise ValueError("enough")
    except* ValueError:
        pass
    return "cancelled"


@pytest.mark.parametrize("kind", ["async", "def"])
def test_a_section_that_is_cancelled_undoes_before_the_saga_around_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "HELD_LOOK_SECONDS", 0.02)

    async def scenario(runtime: Any) -> Any:
        if not rows(runtime):
            fresh_world()
        run = await runtime.start(cancels_its_section.call(kind), id="r")
        await eventually(lambda: "book desk" in WORLD.log)
        with contextlib.suppress(perdure.RunFinishedError):
            await run.send("enough", None)
        result = await run.result()
        assert WORLD.log == ["book flight", "book room", "book desk", "drop desk", "drop room", "drop flight"]
        return result

    sweep = run_async(sweep_crashes(scenario, workflows=[cancels_its_section]))
    assert sweep.result == "cancelled", sweep.error


# ── misuse ──────────────────────────────────────────────────────────────────────────────────


@workflow
def continues_inside() -> str:
    with perdure.saga():
        try:
            perdure.continue_as_new()
        except UsageError as error:
            return str(error)


@workflow
def pivots_outside() -> str:
    try:
        perdure.pivot()
    except UsageError as error:
        return str(error)
    return "no error"


@workflow
async def says_with() -> str:
    try:
        with perdure.saga():
            pass
    except UsageError as error:
        return str(error)
    return "no error"


@workflow
def refused() -> str:
    with perdure.saga():
        wait(book.call("flight"))
    return ""


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (continues_inside.call(), "could not undo what this one did"),
        (pivots_outside.call(), "outside every saga"),
        (says_with.call(), "async with perdure.saga()"),
    ],
)
def test_misuse_is_refused_with_one_clear_error(call: Any, said: str) -> None:
    assert said in run_async(result_of(call.of.call(*call.args)))[0]


def test_an_effect_that_is_refused_was_not_done() -> None:
    fresh_world(book_flight=[Final("no such thing")])
    with pytest.raises(Final, match="no such thing"):
        run_async(result_of(refused.call()))
    assert WORLD.log == []

"""Transactional effects: what they change in the store's database and what is recorded of them, both or neither."""

from __future__ import annotations

# pyright: reportPrivateUsage=false
import asyncio
import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.hosting import host_of, kinds, on_one_store, run_async

import perdure
from perdure import DeclarationError, NoGuarantee, Retry, Runtime, StepError, UsageError, effect, step, workflow
from perdure.ledger import EffectState
from perdure.store.protocol import EffectFilter
from perdure.store.sqlite import guests
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.crashing import Crash, CrashingStore

BODIES: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    BODIES.clear()


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "shop.db")
    SqliteStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER NOT NULL CHECK (count >= 0))")
        database.execute("INSERT INTO stock VALUES ('lamp', 3)")
        database.commit()
    return path


def stock(path: str) -> int:
    with contextlib.closing(sqlite3.connect(path)) as database:
        (count,) = database.execute("SELECT count FROM stock WHERE item = 'lamp'").fetchone()
        return int(count)


@effect(transactional=True)
def reserve(item: str, count: int) -> int:
    BODIES.append(item)
    database = perdure.transaction()
    database.execute("UPDATE stock SET count = count - ? WHERE item = ?", (count, item))
    perdure.operation().reference = f"{item}/{count}"
    (left,) = database.execute("SELECT count FROM stock WHERE item = ?", (item,)).fetchone()
    return int(left)


@reserve.key
def _(item: str, count: int) -> str:
    return item


@workflow
async def sells(count: int) -> int:
    return await reserve.call("lamp", count)


def outcome(path: str, call: Any) -> Any:
    async def main() -> Any:
        async with Runtime(path, workflows=[call.of]) as runtime:
            run = await runtime.start(call, id="r")
            return await run.result(timeout=20)

    return run_async(main())


def test_a_change_and_its_record_are_one_commit(path: str) -> None:
    async def main() -> None:
        async with Runtime(path, workflows=[sells]) as runtime:
            run = await runtime.start(sells.call(2), id="r")
            assert await run.result(timeout=20) == 1
            (row,) = host_of(runtime).store.effects(EffectFilter())
            assert (row.status, row.attempts, row.external_ref) == (EffectState.SUCCEEDED, 1, "lamp/2")
            assert await kinds(run) == ["run.started", "effect.succeeded", "run.completed"]

    run_async(main())
    assert (stock(path), BODIES) == (1, ["lamp"])


def test_what_raises_changes_nothing(path: str) -> None:
    with pytest.raises(StepError, match="CHECK constraint failed"):
        outcome(path, sells.call(7))
    assert stock(path) == 3


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fail_at", range(1, 8))
def test_a_crash_at_any_write_reserves_once(path: str, fail_at: int, when: Any) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(quiet)
        crashed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def crash() -> BaseException:
            loop.call_soon_threadsafe(crashed.set)
            return Crash()

        store = CrashingStore(SqliteStore(path), fail_at=fail_at, when=when, how=crash)
        first: Any = Runtime(store, workflows=[sells])
        with contextlib.suppress(Crash):
            await first.__aenter__()
            began = asyncio.ensure_future(_result(first))
            died = asyncio.ensure_future(crashed.wait())
            await asyncio.wait([began, died], return_when=asyncio.FIRST_COMPLETED)
            began.cancel()
            died.cancel()
            await host_of(first).abandon()
        store.inner.close()
        async with Runtime(path, workflows=[sells]) as again:
            assert await _result(again) == 1

    run_async(main())
    assert stock(path) == 1


def quiet(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The crash is made on purpose."""


async def _result(runtime: Runtime) -> Any:
    run = await runtime.start(sells.call(2), id="r")
    return await run.result(timeout=20)


@effect(transactional=True)
def meddles(statement: str) -> None:
    perdure.transaction().execute(statement)


@meddles.key
def _(statement: str) -> str:
    return statement


@workflow
async def lets_meddle(statement: str) -> None:
    await meddles.call(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT", "DELETE FROM events", "UPDATE runs SET status = 'x'", "DROP TABLE effects", "ATTACH 'x' AS y",
        "DELETE FROM uses", "UPDATE accounts SET since = 0", "DELETE FROM account_waits", "CREATE TEMP TABLE RUNS (x)",
        "PRAGMA user_version = 99", "PRAGMA query_only = ON", "PRAGMA writable_schema = 1",
    ],
)  # fmt: skip
def test_the_transaction_and_the_store_are_not_the_bodys_to_touch(path: str, statement: str) -> None:
    with pytest.raises(StepError, match="not authorized"):
        outcome(path, lets_meddle.call(statement))
    SqliteStore(path).close()


@pytest.mark.parametrize("statement", ["PRAGMA user_version", "PRAGMA table_info('stock')"])
def test_the_body_may_look_at_what_its_library_asks_for(path: str, statement: str) -> None:
    outcome(path, lets_meddle.call(statement))


def test_all_tables_of_the_store_are_known_as_its_own(tmp_path: Path) -> None:
    path = str(tmp_path / "empty.db")
    SqliteStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert {name for name in tables if not name.startswith("sqlite_")} == guests.OURS


@effect(transactional=True, timeout=0.2)
def counts_for_ever() -> int:
    database = perdure.transaction()
    database.execute("UPDATE stock SET count = 0")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    return int(database.execute(endless).fetchone()[0])


@counts_for_ever.key
def _() -> str:
    return "all"


@workflow
async def waits_for_ever() -> int:
    return await counts_for_ever.call()


def test_what_takes_too_long_is_ended_and_changes_nothing(path: str) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        outcome(path, waits_for_ever.call())
    assert time.monotonic() - began < 10
    assert stock(path) == 3


@effect(transactional=True, retry=Retry(max_attempts=3, first_delay=0.001))
def works_at_last() -> int:
    BODIES.append("try")
    perdure.transaction().execute("UPDATE stock SET count = count - 1")
    if len(BODIES) < 3:
        raise ConnectionError("not yet")
    return len(BODIES)


@works_at_last.key
def _() -> str:
    return "once"


@workflow
async def tries() -> int:
    return await works_at_last.call()


def test_a_failed_attempt_is_undone_before_the_next(path: str) -> None:
    assert outcome(path, tries.call()) == 3
    assert stock(path) == 2


def test_a_store_that_is_no_database_says_so() -> None:
    async def main() -> None:
        async with on_one_store()(sells) as runtime:
            run = await runtime.start(sells.call(1), id="r")
            with pytest.raises(UsageError, match="no database"):
                await run.result(timeout=20)

    run_async(main())


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(DeclarationError, match="not both"):

        @effect(transactional=True, downstream=NoGuarantee())
        def both() -> None: ...

    with pytest.raises(DeclarationError, match="awaits nothing"):

        @effect(transactional=True)
        async def awaits() -> None: ...

    with pytest.raises(DeclarationError, match="at most 5 s"):

        @effect(transactional=True, timeout=60)
        def long() -> None: ...

    with pytest.raises(DeclarationError, match="what the other side guarantees"):

        @effect()
        def nothing() -> None: ...


@step
async def asks_in_a_step() -> None:
    perdure.transaction()


@workflow
async def asks() -> None:
    await asks_in_a_step()


def test_a_transaction_belongs_into_a_transactional_effect(path: str) -> None:
    with pytest.raises(UsageError, match="transactional=True"):
        outcome(path, asks.call())


def test_it_begins_when_what_else_the_run_writes_is_written(path: str) -> None:
    """It comes while an append of its run is under way, after which nothing else would be written."""

    async def main() -> None:
        async with Runtime(path, workflows=[sells]) as runtime:
            turns = host_of(runtime).turns
            begin, begun = turns.transactions.begin, list[Any]()

            def begin_while_writing(flight: Any) -> None:
                if not begun:
                    turns.writer._lone_seconds = 1.0  # so that it is written by a thread, and takes a while
                    turns.mark(flight.live)
                    turns.writer._flush()
                    assert flight.live.under_way is not None
                begun.append(flight)
                begin(flight)

            turns.transactions.begin = begin_while_writing  # type: ignore[method-assign]
            assert await _result(runtime) == 1

    run_async(main())

# ── undone ──────────────────────────────────────────────────────────────────────────────────


@reserve.undo
def _(left: int, item: str, count: int) -> int:
    database = perdure.transaction()
    database.execute("UPDATE stock SET count = count + ? WHERE item = ?", (count, item))
    return left + count


@workflow
async def reserves_in_a_saga() -> int:
    async with perdure.saga():
        await reserve.call("lamp", 2)
        raise ValueError("no delivery")


def test_what_a_transaction_did_is_undone_in_one(path: str) -> None:
    async def main() -> None:
        async with Runtime(path, workflows=[reserves_in_a_saga]) as runtime:
            run = await runtime.start(reserves_in_a_saga.call(), id="r")
            with pytest.raises(ValueError, match="no delivery"):
                await run.result(timeout=20)
            rows = {row.action_name: row for row in host_of(runtime).store.effects(EffectFilter())}
            assert rows["reserve"].compensated_by == rows["reserve.undo"].operation_id
            assert rows["reserve.undo"].status is EffectState.SUCCEEDED

    run_async(main())
    assert stock(path) == 3

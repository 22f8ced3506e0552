"""Workers and the runs they own: entering, claiming, dying and being succeeded. Inside transactions of the writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.clock import MICROSECONDS
from perdure.store import rules
from perdure.store.protocol import Claim, Status
from perdure.store.rules import Death
from perdure.store.sqlite.commit import QUERIES, is_quiet
from perdure.store.sqlite.rows import RUN_COLUMNS, run_info

FOR_EVER = (1 << 63) - 1
Known = frozenset[tuple[str, int]]


class Owned(msgspec.Struct, frozen=True):
    """A run as its dead owner left it."""

    rid: int
    status: str
    claimed_length: int
    deaths: int
    lone: int


class Due(NamedTuple):
    due_at: int
    rid: int
    deaths: int


def has_entered(connection: sqlite3.Connection, worker: str) -> bool:
    return connection.execute(QUERIES["worker_exists"], (worker,)).fetchone() is not None


# ── death ────────────────────────────────────────────────────────────────────────────────────
def bury(
    connection: sqlite3.Connection, dead: str, *, proven: bool, retry_after: Sequence[float], now: int
) -> list[int]:
    """Free all runs of a lost worker and remove it; on proof, count what its death means for each. Gives their rids."""
    owned = [Owned(*row) for row in connection.execute(QUERIES["owned_by"], (dead,))]
    deaths = _count_deaths(connection, owned, retry_after) if proven else {}
    for run in owned:
        _free(connection, run, deaths.get(run.rid), dead=dead, how="proof" if proven else "suspicion", now=now)
    if proven:  # else it may be delivering: what it has taken is its own until then
        connection.execute(QUERIES["free_posts"], (dead,))
    connection.execute(QUERIES["delete_worker"], (dead,))
    return [run.rid for run in owned]


def _count_deaths(
    connection: sqlite3.Connection, owned: Sequence[Owned], retry_after: Sequence[float]
) -> dict[int, Death]:
    suspects = {run.rid for run in owned if _is_candidate(connection, run)}
    is_alone = len(suspects) == 1
    return {
        run.rid: rules.count_death(run.deaths, run.lone, is_alone=is_alone, retry_after=retry_after)
        if run.rid in suspects
        else rules.INNOCENT
        for run in owned
    }


def _is_candidate(connection: sqlite3.Connection, run: Owned) -> bool:
    return run.status == Status.RUNNING and is_quiet(connection, run.rid, run.claimed_length)


def _free(connection: sqlite3.Connection, run: Owned, death: Death | None, *, dead: str, how: str, now: int) -> None:
    values: dict[str, Any] = {"rid": run.rid, "dead": dead, "how": how, "now": now, "due_at": now}
    values |= {"deaths": None, "lone": None}
    if death is not None:
        due_at = now + round(death.delay_seconds * MICROSECONDS)
        values |= {"due_at": due_at, "deaths": death.deaths, "lone": death.lone}
    connection.execute(QUERIES["bury_run"], values)
    if death is not None and death.is_looping:
        connection.execute(QUERIES["block_run"], (rules.CRASH_LOOP, rules.CRASH_LOOP_HINT, run.rid))


# ── claiming ─────────────────────────────────────────────────────────────────────────────────
def due_runs(
    connection: sqlite3.Connection, *, now: int, limit: int, known: Known, only: frozenset[str] | None
) -> list[Due]:
    """What could be claimed, oldest due first, with at most one suspect among them."""
    if only is not None:
        return _one_suspect(_due_by_id(connection, now, known, only), limit)
    found = list[Due]()
    for workflow, version in known:
        found += _due(connection, "due_runs", workflow, version, now, limit)
        found += _due(connection, "due_suspects", workflow, version, now)
    return _one_suspect(found, limit)


def _due(connection: sqlite3.Connection, query: str, *parameters: Any) -> list[Due]:
    return [Due(due_at, rid, deaths) for rid, due_at, deaths in connection.execute(QUERIES[query], parameters)]


def _due_by_id(connection: sqlite3.Connection, now: int, known: Known, only: Iterable[str]) -> list[Due]:
    found = list[Due]()
    for run_id in only:
        row = connection.execute(QUERIES["due_run"], (run_id, now)).fetchone()
        if row is not None and (row[3], row[4]) in known:
            found.append(Due(row[1], row[0], row[2]))
    return found


def _one_suspect(found: list[Due], limit: int) -> list[Due]:
    found.sort()
    suspects = [due for due in found if due.deaths >= 2]
    spared = set(suspects[1:])
    return [due for due in found if due not in spared][:limit]


def has_suspect(connection: sqlite3.Connection, worker: str) -> bool:
    """Whether the worker owns a run of two deaths that has made no progress since."""
    owned = [Owned(*row) for row in connection.execute(QUERIES["suspects_of"], (worker,))]
    return any(is_quiet(connection, run.rid, run.claimed_length) for run in owned)


def claim_run(connection: sqlite3.Connection, rid: int, worker: str, now: int) -> tuple[Claim, int]:
    """The run is the worker's from now on; with its length."""
    last = connection.execute(QUERIES["last_event"], (rid,)).fetchone()
    length = 0 if last is None else last[0] + 1
    values = {"rid": rid, "worker": worker, "now": now, "length": length}
    connection.execute(QUERIES["claim_run"], values)
    columns = connection.execute(QUERIES["claimed_run"], (rid,)).fetchone()
    claim = Claim(run_info(columns), *columns[RUN_COLUMNS:])
    if claim.lost_owner is not None:
        connection.execute(QUERIES["clear_lost"], (rid,))
    return claim, length


def first_due(connection: sqlite3.Connection, known: Known, only: frozenset[str] | None) -> int | None:
    if only is not None:
        return min((due.due_at for due in _due_by_id(connection, FOR_EVER, known, only)), default=None)
    firsts = [connection.execute(QUERIES["first_due"], pair).fetchone()[0] for pair in known]
    return min((first for first in firsts if first is not None), default=None)

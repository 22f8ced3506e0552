"""What a commit of many writes does inside its transaction.

Each write is judged against what is there, in order. What is only written (new runs, rows, blobs, ends) is collected
and written together: at the end, or before anything is read. A plain append by the run's owner is judged by what the
last commit left in memory (`Facts`) and reads nothing.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from perdure.gates.budget import Awaited, Movement, SharedAccount, Waiter, with_room
from perdure.history.spending import UNITS
from perdure.ledger.entry import LedgerEntry
from perdure.store import rules
from perdure.store.protocol import (
    DECISION_KIND,
    QUIET_KINDS,
    Append,
    Change,
    Decide,
    Done,
    Ended,
    Exists,
    Fenced,
    ForkPoint,
    Held,
    Letter,
    Missing,
    Moved,
    NewRun,
    Outcome,
    Overdrawn,
    OverRate,
    Row,
    Status,
    Watch,
    Write,
)
from perdure.store.sql import load_queries
from perdure.store.sqlite.rows import (
    account_columns,
    approval_columns,
    approval_entry,
    ledger_entry,
    run_info,
    shared_account,
)
from perdure.store.sqlite.writer import Facts

QUERIES = load_queries(os.path.join(os.path.dirname(__file__), "queries"))
INSERT_EVENT, INSERT_WITH_GAPS = QUERIES["insert_event"], QUERIES["insert_event_with_gaps"]
NULL = -1
"""What stands for it in the queries that say so: for each None the driver first looks for an adapter."""


def append_alone(connection: sqlite3.Connection, facts: Facts, write: Write) -> Done | None:
    """The commonest commit there is, one row of a run that is known to stand where the append expects it: one INSERT.

    None if it is anything else; then nothing was done, and `Commit` does it. The outcome would be the same.
    """
    if type(write) is not Append or not _is_plain(write, facts):
        return None
    row = write.rows[0]
    is_whole = row.input is not None and row.output is not None
    connection.execute(INSERT_EVENT if is_whole else INSERT_WITH_GAPS, event_values(write.rid, row, write.id))
    return _stands(facts, write)


def _is_plain(append: Append, facts: Facts) -> bool:
    """Whether this is one row, and nothing else, of a run that is known to stand where the append expects it."""
    if facts.standing.get(append.rid) != (append.epoch, append.expected_length):
        return False
    if len(append.rows) != 1 or append.change is not None or append.blobs or append.taken:
        return False
    return not (
        append.new_runs or append.watches or append.letters or append.effects or append.posts
        or append.approvals or append.uses or append.notes or append.spending
    )  # fmt: skip


def _stands(facts: Facts, append: Append) -> Done:
    """Note where the run stands after an append of one row."""
    rid, length = append.rid, append.expected_length + 1
    facts.standing[rid] = (append.epoch, length)
    return Done(rid, length)


def event_values(rid: int, row: Row, append_id: bytes | None) -> tuple[Any, ...]:
    """The row as INSERT_WITH_GAPS wants it, and INSERT_EVENT if nothing is missing. `append_id` goes with an append's
    first row.

    Bytes as bytearray: for each bytes object the driver, too, first looks for an adapter, half a microsecond long.
    Written out, since every event passes here."""
    envelope, before, after, head = row.envelope, row.input, row.output, row.hash
    return (
        rid, row.seq, row.at, row.kind,
        bytearray(envelope) if type(envelope) is bytes else envelope,
        bytearray(before) if type(before) is bytes else NULL if before is None else before,
        bytearray(after) if type(after) is bytes else NULL if after is None else after,
        bytearray(head) if type(head) is bytes else head,
        NULL if append_id is None else bytearray(append_id),
    )  # fmt: skip


class Addressee(msgspec.Struct, frozen=True):
    """What a letter has to know of the run that it is for."""

    rid: int
    status: str
    owner: str | None
    wakes: str
    due_at: int | None


class Commit:
    """One transaction's worth of writes. `facts` are changed as it goes; the caller forgets them if it fails."""

    def __init__(self, connection: sqlite3.Connection, facts: Facts, now: int) -> None:
        self._connection = connection
        self._facts = facts
        self._now = now
        self._ids = dict[str, tuple[int, bytes] | None]()
        self._new_runs = list[tuple[Any, ...]]()
        self._events = list[tuple[Any, ...]]()
        self._events_with_gaps = list[tuple[Any, ...]]()
        self._blobs = list[tuple[int, bytes, bytes]]()
        self._taken = list[tuple[int, int]]()
        self._ended = list[tuple[Any, ...]]()

    def apply(self, writes: Sequence[Write]) -> list[Outcome]:
        for write in writes:
            if isinstance(write, NewRun):
                self._ids[write.run_id] = self._sql("rid_of", write.run_id).fetchone()
        outcomes = list[Outcome]()
        for write in writes:
            if type(write) is Append and _is_plain(write, self._facts):  # most are
                self._add(write.rid, write.rows[0], write.id)
                outcomes.append(_stands(self._facts, write))
            else:
                outcomes.append(self._write(write))
        self._flush()
        return outcomes

    def judge(self, intent: Append) -> Outcome | None:
        """Whether an append of this id was applied, or would be refused; None if it can be applied."""
        self._flush()
        found = self._sql("append_at", intent.rid, intent.expected_length).fetchone()
        if found is not None and found[0] == intent.id:
            return Done(intent.rid, intent.expected_length + 1)
        return self._judge(intent) or self._judge_uses(intent)

    def _write(self, write: Write) -> Outcome:
        match write:
            case Append():
                return self._append(write)
            case NewRun():
                return self._start(write)
            case Letter():
                return self._send(write)
            case Decide():
                return self._decide(write)

    def _sql(self, name: str, *parameters: Any) -> sqlite3.Cursor:
        """Execute one query, after all that was collected before it."""
        self._flush()
        return self._connection.execute(QUERIES[name], parameters)

    def _sql_named(self, name: str, values: dict[str, Any]) -> None:
        self._flush()
        self._connection.execute(QUERIES[name], values)

    def _flush(self) -> None:
        """Write what was collected."""
        if self._new_runs:
            self._connection.executemany(QUERIES["insert_run"], self._new_runs)
            self._new_runs.clear()
        if self._events:
            self._connection.executemany(INSERT_EVENT, self._events)
            self._events.clear()
        if self._events_with_gaps:
            self._connection.executemany(INSERT_WITH_GAPS, self._events_with_gaps)
            self._events_with_gaps.clear()
        if self._blobs:
            self._connection.executemany(QUERIES["insert_blob"], self._blobs)
            self._blobs.clear()
        if self._taken:
            self._connection.executemany(QUERIES["take_letter"], self._taken)
            self._taken.clear()
        if self._ended:
            ended, self._ended = self._ended, []
            self._end_all(ended)

    # ── appends ──────────────────────────────────────────────────────────────────────────────
    def _append(self, append: Append) -> Outcome:
        standing = self._facts.standing.get(append.rid)
        if standing != (append.epoch, append.expected_length) or not append.rows:
            refusal = self._judge(append)
            if refusal is not None:
                return refusal
        if append.new_runs or append.watches or append.effects or append.uses or append.spending:
            refusal = self._judge_others(append)
            if refusal is not None:
                return refusal
        return self._record(append)

    def _judge(self, append: Append) -> Outcome | None:
        """Why the append is not to be applied (now, or any more), or None."""
        found = self._sql("standing", append.rid).fetchone()
        if found is None:
            return Missing()
        epoch, status, last_seq, last_rowless = found
        length = 0 if last_seq is None else last_seq + 1
        if self._was_applied(append, last_rowless):
            return Done(append.rid, append.expected_length + len(append.rows))
        if epoch != append.epoch:
            return Fenced(epoch)
        if Status(status).is_final:
            return Ended(Status(status))
        return None if length == append.expected_length else Moved(length)

    def _was_applied(self, append: Append, last_rowless: bytes | None) -> bool:
        if not append.rows:
            return last_rowless == append.id
        found = self._sql("append_at", append.rid, append.expected_length).fetchone()
        return found is not None and found[0] == append.id

    def _judge_others(self, append: Append) -> Outcome | None:
        created = set[str]()
        for new in append.new_runs:
            found = self._sql("run_by_id", new.run_id).fetchone()
            if found is not None:
                return Exists(run_info(found))
            created.add(new.run_id)
        for watch in append.watches:
            if watch.run_id not in created and self._sql("rid_of", watch.run_id).fetchone() is None:
                return Missing()
        held = next(filter(None, (self._judge_effect(entry) for entry in append.effects)), None)
        return held or self._judge_uses(append) or self._judge_spending(append)

    def _judge_uses(self, append: Append) -> OverRate | None:
        """A use that is recorded already is not counted twice."""
        for use, beside in rules.uses_beside(append.uses):
            self._flush()
            new = [use_id for use_id in beside if self._sql("is_use", use.bucket, use_id).fetchone() is None]
            if len(new) >= use.uses_max:
                return OverRate(use, self._now + use.period)
            values = {"bucket": use.bucket, "use_id": use.use_id, "since": self._now - use.period}
            before = use.uses_max - 1 - len(new)
            found = self._connection.execute(QUERIES["use_before"], values | {"uses": before}).fetchone()
            if found is not None:
                return OverRate(use, found[0] + use.period)
        return None

    def _judge_spending(self, append: Append) -> Overdrawn | None:
        spent = rules.spend(append.spending, self._account)
        return spent if isinstance(spent, Overdrawn) else None

    def _account(self, account: str, since: int) -> SharedAccount | None:
        found = self._sql("account", account, since).fetchone()
        return None if found is None else shared_account(found)

    def _judge_effect(self, entry: LedgerEntry) -> Held | None:
        """An operation of scope `run` has the run in its id; only a global one can be another run's."""
        if entry.scope == "run":
            return None
        found = self._sql("holder_of_effect", entry.operation_id).fetchone()
        if found is None or found[0] == entry.rid:
            return None
        return Held(ledger_entry(self._sql("effect", entry.operation_id).fetchone()))

    def _record(self, append: Append) -> Done:
        rid, rows = append.rid, append.rows
        append_id: bytes | None = append.id
        for row in rows:
            self._add(rid, row, append_id)
            append_id = None
        if not rows:
            self._sql("note_rowless", append.id, rid)
        length = append.expected_length + len(rows)
        self._facts.standing[rid] = (append.epoch, length)
        for digest, body in append.blobs:
            self._blobs.append((rid, digest, body))
        for mail_id in append.taken:
            self._taken.append((mail_id, rid))
        if append.change is not None or append.new_runs or append.watches or append.letters:
            self._record_others(append)
        elif (
            append.effects or append.posts or append.approvals or append.uses or append.notes or append.spending
        ):
            self._record_effects(append)
        return Done(rid, length)

    def _add(self, rid: int, row: Row, append_id: bytes | None) -> None:
        is_whole = append_id is not None and row.input is not None and row.output is not None
        (self._events if is_whole else self._events_with_gaps).append(event_values(rid, row, append_id))

    def _record_others(self, append: Append) -> None:
        """What touches the index row, or other runs. After the rows, in the order in which each may see the last."""
        for new in append.new_runs:
            self._create(new)
        for watch in append.watches:
            self._watch(watch)
        self._record_effects(append)
        if append.change is not None:
            self._change(append.rid, append.change)
        for letter in append.letters:
            self._send(letter)

    def _record_effects(self, append: Append) -> None:
        for entry in append.effects:
            self._sql("write_effect", *entry)
        for asked in append.approvals:
            self._sql("write_approval", *approval_columns(asked))
        for post in append.posts:
            self._sql("insert_post", *post[:10])
        for use in append.uses:
            self._sql("insert_use", use.bucket, use.use_id, self._now, self._now + use.period)
        for note in append.notes:
            self._sql("keep_note", *note)
        spent = rules.spend(append.spending, self._account)
        if not isinstance(spent, Overdrawn):  # that was judged before
            for account in spent.values():
                self._sql("write_account", *account_columns(account))
            for at in rules.freed(append.spending):
                self._tell_of_room(append, spent[at])
        for movement in append.spending:
            if movement.waits or movement.tells:
                self._see_to_waiting(append, movement)

    def _see_to_waiting(self, append: Append, movement: Movement) -> None:
        """Of calls that wait until there is more in an account: note this one, or tell them all."""
        at = movement.account, movement.since
        if movement.waits:
            self._sql("forget_earlier_waits", *at)
            self._sql("insert_wait", *at, append.rid, rules.call_that_waits(movement), *movement.waits)
            return
        waiting = self._sql("waits_for", *at, append.rid).fetchall()
        self._sql("clear_waits", *at)
        self._tell_all(append, [rid for (rid,) in waiting], movement.tells)

    def _tell_of_room(self, append: Append, now: SharedAccount) -> None:
        """Those who wait for what is free now are told, each once; who is too late says again that it waits."""
        at = now.account, now.since
        taken = [now.taken(unit) for unit in UNITS]
        rows = self._sql("waits_with_room", *at, append.rid, *taken, rules.WAITERS_TOLD_MAX).fetchall()
        found = with_room((Waiter(rid, call, Awaited(*awaited)) for rid, call, *awaited in rows), now)
        for each in found:
            self._sql("forget_wait", *at, each.rid, each.call)
        self._tell_all(append, [each.rid for each in found], rules.ROOM)

    def _tell_all(self, append: Append, rids: Iterable[int], body: bytes) -> None:
        for rid in dict.fromkeys(rids):
            found = self._sql("addressee_by_rid", rid).fetchone()
            if found is not None and not Status(found[1]).is_final:
                letter_id = rules.raise_letter_id(append.id, rid)
                self._deliver(Addressee(*found), letter_id, "unblock", "", body, self._now)

    # ── changes of the index row ─────────────────────────────────────────────────────────────
    def _change(self, rid: int, change: Change) -> None:
        if change.version is not None:
            self._sql("move_run", change.version, rid)
        if change.ending is not None and change.status is not None:
            self._end(rid, change, change.status, change.ending)
        elif change.release:
            self._release(rid, change)
        else:
            self._sql_named("change_run", self._changed(rid, change))

    def _end(self, rid: int, change: Change, status: Status, ending: bytes) -> None:
        if change.state is not None or change.chapter_seq is not None:
            self._sql_named("change_run", self._changed(rid, change))
        waiting = change.waiting
        self._ended.append((
            str(status), change.reason, change.hint, None if waiting is None else bytearray(waiting),
            self._now, bytearray(ending), rid,
        ))  # fmt: skip
        self._facts.standing.pop(rid, None)

    def _changed(self, rid: int, change: Change) -> dict[str, Any]:
        return {
            "rid": rid,
            "status": change.status,
            "reason": change.reason,
            "hint": change.hint,
            "waiting": change.waiting,
            "state": change.state,
            "chapter_seq": change.chapter_seq,
            "now": self._now,
        }

    def _release(self, rid: int, change: Change) -> None:
        due_at = change.due_at
        kinds = [kind for (kind,) in self._sql("waiting_kinds", rid)]
        if rules.is_waking(change.wakes, kinds):
            due_at = rules.earlier(due_at, self._now)
        self._forgive(rid)
        values = self._changed(rid, change) | {"due_at": due_at, "wakes": change.wakes}
        self._sql_named("release_run", values)
        self._facts.standing.pop(rid, None)  # a run that waits costs no memory; who claims it notes where it stands

    def _forgive(self, rid: int) -> None:
        """A run that made progress and was given up alive is no suspect any more."""
        found = self._sql("deaths_without_progress", rid).fetchone()
        if found is not None and not is_quiet(self._connection, rid, found[1]):
            self._sql("forgive", rid)

    def _end_all(self, ended: Sequence[tuple[Any, ...]]) -> None:
        """Runs that have ended: who watches them is told, their mail is dropped."""
        self._connection.executemany(QUERIES["end_run"], ended)
        endings = {rid: ending for *_, ending, rid in ended}
        rids = msgspec.json.encode([*endings]).decode()
        self._sql("clear_mailboxes", rids)
        watchers = self._sql("watchers_of", rids).fetchall()
        for rid, watcher_rid, key in watchers:
            self._tell(rid, endings[rid], watcher_rid, key)
        if watchers:
            self._sql("clear_watchers", rids)

    def _watch(self, watch: Watch) -> None:
        rid, status, ending = self._sql("watched", watch.run_id).fetchone()
        if Status(status).is_final:
            self._tell(rid, ending, watch.watcher_rid, watch.key)
        else:
            self._sql("insert_watcher", rid, watch.watcher_rid, watch.key)

    def _tell(self, ended_rid: int, ending: bytes, watcher_rid: int, key: str) -> None:
        found = self._sql("addressee_by_rid", watcher_rid).fetchone()
        if found is not None and not Status(found[1]).is_final:
            letter_id = rules.ending_letter_id(ended_rid, key)
            self._deliver(Addressee(*found), letter_id, "child", key, ending, self._now)

    # ── new runs ─────────────────────────────────────────────────────────────────────────────
    def _start(self, new: NewRun) -> Outcome:
        found = self._ids[new.run_id]
        if found is None:
            return Done(self._create(new), new.length) if self._has_point(new.forked_from) else Missing()
        rid, create_id = found
        if create_id == new.id:
            return Done(rid, new.length)
        return Exists(run_info(self._sql("run_by_rid", rid).fetchone()))

    def _has_point(self, point: ForkPoint | None) -> bool:
        return point is None or self._sql("append_at", point.rid, point.seq).fetchone() is not None

    def _create(self, new: NewRun) -> int:
        rid = self._next_rid()
        self._ids[new.run_id] = rid, new.id
        status, owner, epoch, due_at = self._first_owner(new)
        self._new_runs.append((
            rid, new.run_id, bytearray(new.id), new.workflow, new.version, str(status),
            NULL if owner is None else owner, epoch, bytearray(new.input_digest), new.created_at, self._now,
            NULL if due_at is None else due_at, NULL if new.parent_run_id is None else new.parent_run_id, _tags(new),
            str(rules.first_wakes(new)), new.length, new.chapter_seq,
        ))  # fmt: skip
        if new.lineage or new.forked_from is not None:
            self._sql("note_origin", *_origin(new), rid)
        if new.forked_from is not None:
            self._sql("copy_events", rid, new.forked_from.rid, new.forked_from.seq)
            self._sql("copy_blobs", rid, new.forked_from.rid)
        for row in new.rows:
            self._add(rid, row, None)
        self._blobs.extend((rid, digest, body) for digest, body in new.blobs)
        self._facts.standing[rid] = (epoch, new.length)
        return rid

    def _first_owner(self, new: NewRun) -> tuple[Status, str | None, int, int | None]:
        """Status, owner, epoch, due time. An owner that has been declared dead meanwhile gets nothing."""
        if new.owner is None:
            return Status.QUEUED, None, 0, new.due_at
        if self._has_entered(new.owner):
            return Status.RUNNING, new.owner, 1, None
        return Status.RUNNING, None, 1, self._now

    def _has_entered(self, worker: str) -> bool:
        if worker not in self._facts.workers and self._sql("worker_exists", worker).fetchone() is not None:
            self._facts.workers.add(worker)
        return worker in self._facts.workers

    def _next_rid(self) -> int:
        newest = self._facts.newest_rid
        if newest is None:
            (newest,) = self._sql("newest_rid").fetchone()
        self._facts.newest_rid = newest + 1
        return int(newest) + 1

    # ── letters ──────────────────────────────────────────────────────────────────────────────
    def _send(self, letter: Letter) -> Outcome:
        found = self._sql("addressee", letter.run_id).fetchone()
        if found is None:
            return Missing()
        run = Addressee(*found)
        if Status(run.status).is_final:
            return Ended(Status(run.status))
        self._deliver(run, letter.id, letter.kind, letter.key, letter.body, letter.sent_at, letter.by)
        return Done(run.rid)

    def _decide(self, given: Decide) -> Outcome:
        found = self._sql("addressee", given.run_id).fetchone()
        if found is None:
            return Missing()
        run = Addressee(*found)
        if Status(run.status).is_final:
            return Ended(Status(run.status))
        if self._sql("letter_exists", run.rid, given.id).fetchone() is None:
            refusal = self._judge_decision(run.rid, given)
            if refusal is not None:
                return refusal
            self._deliver(run, given.id, DECISION_KIND, given.approval_id, given.body, self._now)
        return Done(run.rid)

    def _judge_decision(self, rid: int, given: Decide) -> Outcome | None:
        found = self._sql("approval", given.approval_id).fetchone()
        entry = None if found is None else approval_entry(found)
        if entry is not None and entry.rid != rid:
            entry = None
        waiting = self._sql("letters_about", rid, DECISION_KIND, given.approval_id).fetchall()
        return rules.refused(given, entry, waiting, self._now)

    def _deliver(
        self, run: Addressee, letter_id: bytes, kind: str, key: str, body: bytes, sent_at: int, by: str = ""
    ) -> None:
        cursor = self._sql("insert_letter", run.rid, letter_id, kind, key, body, sent_at, by)
        if cursor.rowcount == 1 and run.owner is None and rules.is_waking(run.wakes, (kind,)):
            self._sql("wake_run", rules.earlier(run.due_at, self._now), run.rid)


def is_quiet(connection: sqlite3.Connection, rid: int, claimed_length: int) -> bool:
    """Whether nothing but starts and takeovers was recorded since the run was claimed. Looks no further than that."""
    kinds = connection.execute(QUERIES["kinds_since"], (rid, claimed_length))
    return all(kind in QUIET_KINDS for (kind,) in kinds)


def _origin(new: NewRun) -> tuple[str | None, str | None, int | None]:
    """The columns that only forks and their children have."""
    lineage = msgspec.json.encode(new.lineage).decode() if new.lineage else None
    point = new.forked_from
    return (lineage, None, None) if point is None else (lineage, point.run_id, point.seq)


def _tags(new: NewRun) -> str:
    return msgspec.json.encode(dict(new.tags)).decode() if new.tags else "{}"

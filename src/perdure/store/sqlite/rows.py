"""Rows of the database as values of the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.decisions import ApprovalEntry, ApprovalState, Vote
from perdure.gates.budget import SharedAccount
from perdure.history.spending import Amount, Limits
from perdure.ledger.entry import LedgerEntry
from perdure.ledger.states import EffectState
from perdure.store.protocol import RunInfo, Status, WorkerInfo

RUN_COLUMNS = len(RunInfo._fields)


def run_info(columns: Sequence[Any]) -> RunInfo:
    """From the columns that every query on runs gives, in the order of RunInfo."""
    tags = columns[14]
    read_tags: dict[str, str] = {} if tags == "{}" else msgspec.json.decode(tags)
    lineage = columns[18]
    descends: tuple[int, ...] = () if lineage is None else msgspec.json.decode(lineage, type=tuple[int, ...])
    return RunInfo._make(
        (*columns[:4], Status(columns[4]), *columns[5:14], read_tags, *columns[15:18], descends, *columns[19:21])
    )


def worker_info(columns: Sequence[Any]) -> WorkerInfo:
    return WorkerInfo._make((*columns[:5], tuple(msgspec.json.decode(columns[5]))))


def ledger_entry(columns: Sequence[Any]) -> LedgerEntry:
    return LedgerEntry._make((*columns[:10], EffectState(columns[10]), *columns[11:]))


def approval_entry(columns: Sequence[Any]) -> ApprovalEntry:
    *before, status, approvers, quorum, recheck = columns[:14]
    *between, said, used_by, policy, goal, scope, escalates_at, escalate_to = columns[14:]
    names = tuple(msgspec.json.decode(approvers, type=list[str]))
    votes = msgspec.json.decode(said, type=tuple[Vote, ...])
    others = tuple(msgspec.json.decode(escalate_to, type=list[str]))
    return ApprovalEntry._make(
        (*before, ApprovalState(status), names, quorum, bool(recheck), *between, votes, used_by, policy, goal, scope,
         escalates_at, others)
    )  # fmt: skip


def approval_columns(entry: ApprovalEntry) -> Sequence[Any]:
    return entry._replace(
        approvers=msgspec.json.encode(entry.approvers).decode(),  # type: ignore[arg-type]
        recheck=int(entry.recheck), said=msgspec.json.encode(entry.said).decode(),  # type: ignore[arg-type]
        escalate_to=msgspec.json.encode(entry.escalate_to).decode(),  # type: ignore[arg-type]
    )  # fmt: skip


def shared_account(columns: Sequence[Any]) -> SharedAccount:
    account, since, used, held, raised = columns
    spent, reserved = (msgspec.json.decode(each, type=Amount) for each in (used, held))
    return SharedAccount(account, since, spent, reserved, msgspec.json.decode(raised, type=Limits))


def account_columns(account: SharedAccount) -> Sequence[Any]:
    return (*account[:2], *(msgspec.json.encode(each).decode() for each in account[2:]))

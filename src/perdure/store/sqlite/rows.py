"""Rows of the database as values of the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.ledger.entry import LedgerEntry
from perdure.ledger.states import EffectState
from perdure.store.protocol import RunInfo, Status, WorkerInfo

RUN_COLUMNS = len(RunInfo._fields)


def run_info(columns: Sequence[Any]) -> RunInfo:
    """From the columns that every query on runs gives, in the order of RunInfo."""
    tags = columns[14]
    read_tags: dict[str, str] = {} if tags == "{}" else msgspec.json.decode(tags)
    return RunInfo._make((*columns[:4], Status(columns[4]), *columns[5:14], read_tags, *columns[15:RUN_COLUMNS]))


def worker_info(columns: Sequence[Any]) -> WorkerInfo:
    return WorkerInfo._make((*columns[:5], tuple(msgspec.json.decode(columns[5]))))


def ledger_entry(columns: Sequence[Any]) -> LedgerEntry:
    return LedgerEntry._make((*columns[:10], EffectState(columns[10]), *columns[11:]))

"""The SQL of this store, and how many events are written in one statement.

`executemany` makes a statement of each row, and between two of them the driver lets other threads run and then waits
until it may go on: up to five milliseconds each time, while one of them computes. One statement for many rows takes two
thirds of the time, and other threads run all the while.
"""

from __future__ import annotations

import functools
import os
import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

from perdure.store.sql import load_queries

QUERIES = load_queries(os.path.join(os.path.dirname(__file__), "queries"))

Event = tuple[Any, ...]
"""A row as the queries that insert events want it."""

SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""How many rows the statements for many hold; what is left of the smallest that suffices is filled up."""

NO_EVENT = (0,) * 9
"""The statements leave out rows without a run."""

_PLACES = "(?, ?, ?, ?, ?, ?, ?, ?, ?)"


def is_one(count: int) -> bool:
    """Whether there is a statement for so many events."""
    return SIZES[0] <= count <= SIZES[-1]


def insert_events(connection: sqlite3.Connection, events: Sequence[Event]) -> None:
    """Write them in the transaction that is open."""
    if len(events) < SIZES[0]:
        connection.executemany(QUERIES["insert_event_with_gaps"], events)
        return
    for start in range(0, len(events), SIZES[-1]):
        connection.execute(*statement_for(events[start : start + SIZES[-1]]))


def statement_for(events: Sequence[Event]) -> tuple[str, tuple[Any, ...]]:
    """One statement for all of them, at most the largest of `SIZES`, and what goes with it."""
    size = next(size for size in SIZES if size >= len(events))
    return _statement(size), (*chain.from_iterable(events), *NO_EVENT * (size - len(events)))


@functools.cache
def _statement(size: int) -> str:
    return QUERIES["insert_events"].replace(_PLACES, ", ".join([_PLACES] * size))

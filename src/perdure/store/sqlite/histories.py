"""How is a long history read in little time?

To fetch a row costs SQLite's driver about as much as to replay it: each of its columns is asked for by itself, and
each row lets go of the interpreter once. So all rows but the first ones come packed: many as one, column by column. A
pack that does not come apart into what was put in (a row is missing, or damaged) is read row by row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import starmap
from typing import Any

from perdure.codec.digests import DIGEST_SIZE
from perdure.store.protocol import Row
from perdure.store.sqlite.commit import QUERIES

ROWS_PER_PACK = 256
"""As many are read one by one first: most histories have no more."""

_BETWEEN = b"\x1f"


def rows_from(connection: sqlite3.Connection, rid: int, first: int) -> list[Row]:
    """The events of a run from position `first` on, in their order, up to the first that is missing."""
    rows: list[Row] = []
    while True:
        until = first + ROWS_PER_PACK - 1
        found = _packed(connection, (rid, first, until)) if rows else None
        if found is None:
            found = list(starmap(Row, connection.execute(QUERIES["events_between"], (rid, first, until))))
        rows += found
        if len(found) < ROWS_PER_PACK:
            return rows
        first += ROWS_PER_PACK


def _packed(connection: sqlite3.Connection, which: tuple[int, int, int]) -> list[Row] | None:
    """These rows, read as one; None if there are none, one is missing between others, or one is damaged."""
    packed = connection.execute(QUERIES["events_between_packed"], which).fetchone()
    seqs, ats, kinds, envelopes, inputs, no_inputs, outputs, no_outputs, hashes, shortest, longest = packed
    if seqs is None:
        return None
    count = seqs.count(",") + 1
    positions = range(which[1], which[1] + count)
    if seqs != ",".join(map(str, positions)) or not shortest == longest == DIGEST_SIZE:
        return None
    columns: Sequence[Sequence[Any]] = (
        positions, [*map(int, ats.split(","))], kinds.split(","), envelopes.split(_BETWEEN),
        _payloads(inputs, no_inputs), _payloads(outputs, no_outputs),
        [hashes[at : at + DIGEST_SIZE] for at in range(0, len(hashes), DIGEST_SIZE)],
    )  # fmt: skip
    if any(len(column) != count for column in columns):
        return None
    return list(map(Row, *columns))


def _payloads(blobs: bytes, nulls: str) -> list[bytes | None]:
    """`nulls`: for each row whether it has no such payload, 1 or 0. Not as many as rows if one is damaged."""
    parts = blobs.split(_BETWEEN)
    if len(parts) != len(nulls):
        return []
    return [None if null == "1" else blob for blob, null in zip(parts, nulls, strict=True)]

"""What a run begins with: its first rows, its seed, the manifest of the code that it is started under."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar

from perdure.codec import Memo, pack
from perdure.gates.budget import limits_of
from perdure.history import events as e
from perdure.history.chain import GENESIS, link
from perdure.runtime.contracts import manifest
from perdure.specs import Budget, WorkflowSpec
from perdure.store.protocol import NewRun, Row


def _any_seed(run_id: str) -> int:
    return int.from_bytes(os.urandom(7), "big")


SEED_OF: ContextVar[Callable[[str], int]] = ContextVar("perdure_seed_of", default=_any_seed)
"""What the random numbers of a new run derive from, given its id. A drill does the same run many times over."""


def new_run(
    spec: WorkflowSpec, run_id: str, input_raw: bytes, *, now: int, parent: str | None = None, owner: str | None = None,
    tags: Mapping[str, str] | None = None, due_at: int | None = None, goal: str = "",
    scope: Mapping[str, str] | None = None, budget: Budget | None = None, lineage: tuple[int, ...] = (),
) -> NewRun:  # fmt: skip
    """The rows that a run begins with. `budget`: another one than the workflow declares."""
    packed = pack(input_raw, Memo())
    budget = budget or spec.budget
    stated = dict(scope) if scope else None
    started = e.RunStarted(
        spec.name, spec.version, SEED_OF.get()(run_id), manifest(spec), packed.digest, parent, goal, stated,
        None if budget is None else limits_of(budget),
    )  # fmt: skip
    envelope = e.encode(started)
    row = Row(0, now, e.kind(started), envelope, packed.inline, None, link(GENESIS, 0, now, envelope))
    return NewRun(
        id=os.urandom(16), run_id=run_id, workflow=spec.name, version=spec.version, input_digest=started.identity,
        created_at=now, rows=(row,), blobs=packed.blobs, tags=dict(tags or {}), parent_run_id=parent, owner=owner,
        due_at=None if owner else (due_at if due_at is not None else now), lineage=lineage,
    )  # fmt: skip

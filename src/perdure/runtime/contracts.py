"""What a run is started under, and whether one that was started under something else may go on here.

The middle is `perdure.contract`; here it meets the files that the source stands in, and the histories.
"""

from __future__ import annotations

import functools
import linecache
import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.contract.manifest import manifest_of, read
from perdure.history import events as e
from perdure.specs import WorkflowSpec

if TYPE_CHECKING:
    from perdure.contract.manifest import Manifest
    from perdure.engine.chapters import Blocked
    from perdure.runtime.live import LiveRun
    from perdure.store.protocol import Store


@functools.lru_cache(maxsize=1_024)
def manifest(spec: WorkflowSpec) -> dict[str, Any]:
    """What a run of this workflow is started under; made when it is first wanted, and not to be changed."""
    from perdure import __version__

    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return manifest_of(spec, perdure=__version__, python=python, topology=topology(spec))


def topology(spec: WorkflowSpec) -> str:
    """The outline of the durable calls in a workflow's source; empty if it cannot be read. It only explains: whatever
    is odd about a source must keep no run from starting."""
    from perdure.contract.source import outline_of

    if not isinstance(spec.function, types.FunctionType):
        return ""
    try:
        return outline_of(spec.function, _text_of)
    except Exception:
        return ""


def _text_of(function: types.FunctionType) -> str:
    return "".join(linecache.getlines(function.__code__.co_filename, function.__globals__))


# ── may it go on ────────────────────────────────────────────────────────────────────────────


class Admission(NamedTuple):
    """What becomes of a run whose manifest is not that of the code here. `refusal`: why it is parked; `note`: what is
    recorded, where the code claims what is new to the run."""

    refusal: str = ""
    note: e.Adopted | None = None


def admitted(events: Sequence[e.Event], spec: WorkflowSpec, *, runs_as: int) -> Admission:
    """Whether a run with these events, which workers find as version `runs_as`, may go on under this code."""
    from perdure.contract.compare import Given, Verdict, compare

    now = manifest(spec)
    used = {event.name for event in events if isinstance(event, e.Keyed)}
    accepts = spec.surroundings.accepts
    compared = compare(Given(_manifests(events), read(now), runs_as, spec.replays, accepts, used))
    match compared.verdict:
        case Verdict.INCOMPATIBLE:
            return Admission(f"{compared.told(Verdict.INCOMPATIBLE)}; {_WAY_OUT}")
        case Verdict.CLAIMED:
            return Admission(note=e.Adopted(now, "claimed", compared.told(Verdict.CLAIMED)))
        case _:
            return Admission()


_WAY_OUT = (
    "nothing of it was executed here. Keep the old version registered beside this one, or have this code claim the run "
    "(replays=, on_contract_drift=), or move it: perdure runs move"
)


def _manifests(events: Sequence[e.Event]) -> list[Manifest]:
    """All that a run was ever to go on under, the latest last."""
    return [read(event.manifest) for event in events if isinstance(event, e.RunStarted | e.ChapterStarted | e.Adopted)]


# ── where they part ─────────────────────────────────────────────────────────────────────────


def hint(live: LiveRun, failure: Blocked, store: Store) -> str:
    """What is said of a run that cannot go on: where code and history part, with what changed in the source, and the
    line that guards it."""
    if failure.parting is None:
        return failure.hint
    events = [e.decode(row.envelope) for row in store.load(live.rid).rows]
    line = patch(events, live.execution.spec, failure)
    told = failure.hint + explanation(events, live.execution.spec, failure)
    return told + (f" The line to add: {line}" if line else "")


def explanation(events: Sequence[e.Event], spec: WorkflowSpec, failure: Blocked) -> str:
    """What is to be added to the message of a divergence: what is known of why, and what to do."""
    from perdure.contract.patches import explained

    if failure.parting is None:
        return ""
    told = explained(failure.parting, _manifests(events)[-1].topology, topology(spec))
    around = _around(events, spec)
    return f" {told}" + (f" Not as it was then: {around}." if around else "")


AROUND = frozenset({"perdure", "python", "frameworks"})
"""What may be another one although nobody has edited anything."""


def _around(events: Sequence[e.Event], spec: WorkflowSpec) -> str:
    from perdure.contract.compare import Given, compare

    compared = compare(Given(_manifests(events), read(manifest(spec))))
    return "; ".join(each.told for each in compared.differences if each.field in AROUND)


def patch(events: Sequence[e.Event], spec: WorkflowSpec, failure: Blocked) -> str:
    """The line that guards the change; empty if no guard is any help."""
    from perdure.contract.patches import patch_for

    if failure.parting is None:
        return ""
    return patch_for(failure.parting, _manifests(events)[-1].topology, topology(spec))

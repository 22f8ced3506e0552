"""The last door before the store: what should have a mark by then is refused, and nothing of it is written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.secrets.test_scrubbing import hides

from perdure import workflow
from perdure.errors import PerdureBug
from perdure.history import events as e
from perdure.runtime.beginnings import new_run
from perdure.store.guarded import guarded
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Append, Change, Done, NewRun, Note, Post, Row, Status

SECRET = "value-of-key-1"


@workflow
async def nothing(given: Any) -> Any:
    return given


def a_run(given: Any) -> NewRun:
    """A run that begins with this, encoded before anybody knew what is secret."""
    return new_run(nothing.spec, "r", nothing.spec.arguments.dumps((given,), {}), now=1, owner=None)


@pytest.mark.parametrize("given", [SECRET, {SECRET: 1}, [SECRET, "x" * 5000], ["y" * 5000 + SECRET]])
def test_payloads_and_blobs_that_hold_it_are_refused(given: Any) -> None:
    store = MemoryStore()
    raw, new = msgspec.json.encode(given), a_run("nothing")
    row, blobs = (replace(new.rows[0], input=raw), ()) if len(raw) <= 1024 else (new.rows[0], ((b"d" * 32, raw),))
    with hides(key=SECRET), pytest.raises(PerdureBug) as no:
        guarded(store).commit([new._replace(rows=(row,), blobs=blobs)])
    assert SECRET not in str(no.value)
    assert store.find("r") is None


def test_envelopes_that_hold_it_are_refused_and_names_are_not_looked_at() -> None:
    store = MemoryStore()
    (outcome,) = store.commit([a_run("nothing")])
    assert isinstance(outcome, Done)
    refused = e.CancelRequested(f"because {SECRET}")
    named = e.StepStarted("0", 1, SECRET)
    with hides(key=SECRET):
        with pytest.raises(PerdureBug):
            guarded(store).commit([_append(outcome.rid, refused)])
        assert len(store.load(outcome.rid).rows) == 1
        guarded(store).commit([_append(outcome.rid, named)])
    assert len(store.load(outcome.rid).rows) == 2


def _append(rid: int, event: e.Event, **more: Any) -> Append:
    row = Row(1, 2, e.kind(event), e.encode(event), None, None, b"h" * 32)
    return Append(b"a" * 16, rid, 0, 1, (row,), **more)


def test_what_is_not_hashed_gets_its_marks() -> None:
    store = MemoryStore()
    (outcome,) = store.commit([a_run("nothing")])
    assert isinstance(outcome, Done)
    raw = f'["{SECRET}"]'.encode()
    change = Change(status=Status.BLOCKED, reason="needs_person", hint=f"what of {SECRET}?", state=raw)
    post = Post("p", outcome.rid, "mail", "k", raw, 1)
    door = guarded(store)
    with hides(key=SECRET):
        door.commit([_append(outcome.rid, e.TimePassed(), change=change, posts=(post,))])
        door.post([post._replace(post_id="q", error=SECRET)])
        door.keep(Note("kind", "key", raw, 1))
    info = store.find("r")
    assert info is not None
    assert (info.hint, info.state) == ("what of ‹secret:key›?", '["‹secret:key›"]'.encode())
    assert [each.payload for each in store.posts()] == ['["‹secret:key›"]'.encode()] * 2
    assert SECRET not in str([store.posts(), store.notes("kind")])


def test_events_have_marks_within_their_parts_as_well() -> None:
    with hides(key=SECRET):
        event = e.EffectNoted("0", 1, "pay", 1, "op", f"request {SECRET}", SECRET, f"note {SECRET}")
        hidden = e.without_secrets(event)
        assert e.without_secrets(hidden) is hidden
    assert hidden == e.EffectNoted("0", 1, "pay", 1, "op", "request ‹secret:key›", "‹secret:key›", "note ‹secret:key›")

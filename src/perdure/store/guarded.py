"""The last door before a store: nothing that is never recorded goes through it.

What enters a hash (rows and their payloads) has its marks since it was encoded; here it is only looked at, and refused
as PerdureBug if a secret is left in it. Columns that nothing is computed from (hints, notes, references, tags, letters,
what persons said) get their marks here, whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from perdure.codec import hiding
from perdure.codec.hiding import hidden, hidden_text
from perdure.codec.shape import Unfit
from perdure.decisions import ApprovalEntry
from perdure.errors import PerdureBug
from perdure.history import events as e
from perdure.ledger.entry import LedgerEntry
from perdure.store.protocol import Append, Blob, Change, Decide, Letter, NewRun, Note, Outcome, Post, Row, Store, Write

T = TypeVar("T", str, "str | None")


def guarded(store: Store) -> Store:
    """The store behind the door. What reads goes to the store itself."""
    return cast("Store", _Guarded(store))


def unguarded(store: Store) -> Store:
    """The store that was guarded."""
    return store.inner if isinstance(store, _Guarded) else store


class _Guarded:
    """A store whose writes are looked at."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        return self.inner.commit([clean(write) for write in writes])

    def transact(self, intent: Append, fill: Callable[[Any], Append]) -> Outcome:
        return self.inner.transact(intent, lambda connection: _append(fill(connection)))

    def post(self, posts: Sequence[Post]) -> int:
        return self.inner.post([_post(post) for post in posts])

    def settle_post(self, worker: str, post: Post) -> bool:
        return self.inner.settle_post(worker, post._replace(error=hidden_text(post.error)))

    def keep(self, note: Note) -> None:
        self.inner.keep(note._replace(body=_body(note.body)))


def clean(write: Write) -> Write:
    """The write without what is never recorded. PerdureBug if that stands where nothing can be changed any more."""
    match write:
        case Append():
            return _append(write)
        case NewRun():
            return _new_run(write)
        case Letter():
            return write._replace(body=_body(write.body))
        case Decide():
            return write._replace(body=_body(write.body))


def _append(append: Append) -> Append:
    _look_at(append.rows, append.blobs)
    return replace(
        append,
        change=None if append.change is None else _change(append.change),
        new_runs=tuple(map(_new_run, append.new_runs)),
        letters=tuple(letter._replace(body=_body(letter.body)) for letter in append.letters),
        effects=tuple(map(_effect, append.effects)),
        approvals=tuple(map(_approval, append.approvals)),
        posts=tuple(map(_post, append.posts)),
        spending=tuple(each._replace(tells=_body(each.tells)) for each in append.spending),
    )


def _new_run(new: NewRun) -> NewRun:
    _look_at(new.rows, new.blobs)
    tags: Mapping[str, str] = {hidden_text(name): hidden_text(value) for name, value in new.tags.items()}
    return new._replace(tags=tags)


def _change(change: Change) -> Change:
    return change._replace(
        hint=_text(change.hint), state=_optional(change.state), waiting=_optional(change.waiting),
        ending=_optional(change.ending),
    )  # fmt: skip


def _effect(entry: LedgerEntry) -> LedgerEntry:
    return entry._replace(
        external_ref=_text(entry.external_ref), external_request_id=_text(entry.external_request_id),
        note=hidden_text(entry.note), references=hidden_text(entry.references), result=_optional(entry.result),
    )  # fmt: skip


def _approval(entry: ApprovalEntry) -> ApprovalEntry:
    said = tuple(
        replace(vote, by=hidden_text(vote.by), role=hidden_text(vote.role), comment=hidden_text(vote.comment),
                to=hidden_text(vote.to))
        for vote in entry.said
    )  # fmt: skip
    return entry._replace(
        subject=hidden_text(entry.subject), note=hidden_text(entry.note), body=_optional(entry.body), said=said
    )


def _post(post: Post) -> Post:
    return post._replace(payload=_body(post.payload), key=hidden_text(post.key), error=hidden_text(post.error))


def _text(text: str | None) -> str | None:
    return None if text is None else hidden_text(text)


def _optional(body: bytes | None) -> bytes | None:
    return None if body is None else _body(body)


def _body(body: bytes) -> bytes:
    try:
        return hidden(body) if body else body
    except Unfit:
        raise _left() from None


# ── what is hashed ──────────────────────────────────────────────────────────────────────────


def _look_at(rows: Sequence[Row], blobs: Sequence[Blob]) -> None:
    if hiding.active is None:
        return
    for row in rows:
        event = e.decode(row.envelope)
        if e.without_secrets(event) is not event or any(
            _body(each) != each for each in (row.input, row.output) if each
        ):
            raise _left()
    if any(hiding.active.is_in(blob) for _, blob in blobs):
        raise _left()


def _left() -> PerdureBug:
    return PerdureBug(
        "what is about to be written holds the value of a secret. Nothing of it was written. If the value became known "
        "only after this was encoded, then trying again mends it"
    )

"""Notes: small things that are known beside the runs."""

from __future__ import annotations

import pytest

from perdure.store.protocol import Moved, Note
from perdure.testing.conformance.base import ENDED, StoreCase, append

FOREVER = 2**62


class NotePromises(StoreCase):
    def test_a_note_comes_back_as_it_was(self) -> None:
        note = Note("drill", "handle/1/\N{SNOWMAN}", b"\x00body", 2**53)
        self.store.keep(note)
        assert self.store.notes("drill") == self.again().notes("drill") == [note]
        assert self.store.notes("drill", note.key) == [note]

    def test_a_later_note_of_the_same_kind_and_key_takes_its_place(self) -> None:
        self.store.keep(Note("drill", "a", b"first", 20))
        self.store.keep(Note("drill", "a", b"second", 10))
        self.store.keep(Note("other", "a", b"third", 30))
        assert self.store.notes("drill") == [Note("drill", "a", b"second", 10)]
        assert self.store.notes("other", "a") == [Note("other", "a", b"third", 30)]

    def test_the_newest_come_first(self) -> None:
        for key, at in (("b", 10), ("c", 30), ("a", 10), ("d", 20)):
            self.store.keep(Note("drill", key, b"", at))
        assert [note.key for note in self.store.notes("drill")] == ["c", "d", "a", "b"]

    def test_there_are_none_of_a_kind_or_key_that_nobody_wrote(self) -> None:
        self.store.keep(Note("drill", "a", b"", 1))
        assert self.store.notes("drills") == []
        assert self.store.notes("drill", "") == []

    def test_a_note_outlives_runs_and_handles(self) -> None:
        self.store.keep(Note("drill", "a", b"kept", 1))
        self.done(append(self.start(), 1, change=ENDED))
        assert self.store.prune(ended_before=FOREVER, limit=10) == 1
        self.reopen()
        if not list(self.store.heads()):
            pytest.skip("this store forgets when it is closed")
        assert [note.body for note in self.store.notes("drill")] == [b"kept"]

    def test_of_two_who_move_a_note_one_does(self) -> None:
        seen = Note("seen", "b", b"by ann", 2)
        self.store.keep(Note("denied", "a", b"", 1))
        assert self.store.move_note("denied", "a", seen)
        assert not self.again().move_note("denied", "a", seen._replace(body=b"by bob"))
        assert (self.store.notes("denied"), self.store.notes("seen")) == ([], [seen])

    def test_a_note_comes_with_an_append_or_not_at_all(self) -> None:
        rid, note = self.start(), Note("denied", "a", b"why", 7)
        assert isinstance(self.write(append(rid, 5, notes=(note,))), Moved)
        assert self.store.notes("denied") == []
        self.done(append(rid, 1, notes=(note,)))
        assert self.again().notes("denied") == [note]

    def test_a_note_is_news_to_others(self) -> None:
        other = self.again()
        other.changed()
        self.store.keep(Note("drill", "a", b"", 1))
        assert other.changed()

"""Random numbers that are the same on replay: derived from the run's seed, from who draws, and from how often it has.

Nobody's draw moves anybody else's: a task that draws once more changes nothing for its siblings.
"""

from __future__ import annotations

import uuid
from hashlib import sha256

from perdure.engine.loop import DeterministicLoop, LoopTask, current_task


class Randomness:
    """What the tasks of one chapter draw."""

    __slots__ = ("_chapter", "_loop", "_loose", "_seed")

    def __init__(self, loop: DeterministicLoop, *, seed: int, chapter: int) -> None:
        self._loop, self._seed, self._chapter = loop, seed, chapter
        self._loose = 0

    def draw(self) -> bytes:
        """32 random bytes: of the current task's path and its n-th use; of plain callbacks together."""
        task = current_task(self._loop)
        if isinstance(task, LoopTask):
            task.randoms += 1
            return drawn(self._seed, str(self._chapter), task.path, task.randoms)
        self._loose += 1
        return drawn(self._seed, str(self._chapter), "callback", self._loose)


def drawn(seed: int, place: str, who: str, use: int) -> bytes:
    """What `who` draws there for the n-th time: 32 bytes."""
    return sha256(f"{seed}:{place}:{who}:{use}".encode()).digest()


def as_number(drawn: bytes) -> float:
    """A number in [0, 1), of the 53 bits that a float has."""
    return (int.from_bytes(drawn[:7], "big") >> 3) / (1 << 53)


def as_uuid(drawn: bytes) -> uuid.UUID:
    """A UUID of version 4."""
    return uuid.UUID(bytes=drawn[:16], version=4)

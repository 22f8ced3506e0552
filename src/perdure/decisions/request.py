"""What people are asked, as it is stored, hashed and shown."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from perdure.codec.canonical import canonical_bytes
from perdure.codec.hiding import hidden

APPROVAL_ID_DIGITS = 16
NO_VALUE = msgspec.Raw(b"null")


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a request: all of it is shown to whoever decides, and all of it is in the hash that they name.

    `kind` is `approval` or `question`. `name`: of the call to be approved, or the question's text. `of`: what kind of
    call it is; `arguments` are its arguments, or the question's subject, as canonical JSON; `key`: an effect's business
    key. `type`: what an answer is, in words; `choices`: the answers there are, where they can be listed.
    `approvers`: who may decide, persons or roles; nobody named means everybody. `quorum`: how many different persons
    have to approve. `within`: microseconds from asking, 0 for ever. `risk`: `high` if the call is an effect that is
    irreversible, or declared to be of high risk. `facts`: what an approval rests on, by name, as it was when people
    were asked. `remind`, `escalate`: microseconds from asking after which people are reminded, and after which those of
    `escalate_to` may decide, too; 0 for never.
    """

    kind: str
    name: str
    of: str = ""
    arguments: msgspec.Raw = NO_VALUE
    key: str = ""
    type: str = ""
    choices: tuple[msgspec.Raw, ...] = ()
    approvers: tuple[str, ...] = ()
    quorum: int = 1
    within: int = 0
    recheck: bool = True
    note: str = ""
    risk: str = ""
    facts: tuple[tuple[str, msgspec.Raw], ...] = ()
    remind: int = 0
    escalate: int = 0
    escalate_to: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        """The body as it is stored: one text for one request."""
        return hidden(_encode(self))

    def refuses(self, value: bytes) -> str | None:
        """Why this is none of the answers there are, where they can be listed; None if it is."""
        choices = [bytes(each) for each in self.choices]
        if not choices or value in choices:
            return None
        return f"{value.decode()} is no answer; one of {b', '.join(choices).decode()} is"

    @property
    def label(self) -> str:
        """The name of the call that asks: `approve:refund`, `ask`."""
        return f"approve:{self.name}" if self.kind == "approval" else "ask"


_encode = msgspec.json.Encoder(order="sorted").encode
decode_request = msgspec.json.Decoder(Request).decode


def identity(chapter: int, task: str, n: int) -> str:
    """Which call of a run it is that asks.

    >>> identity(0, "0.2", 5)
    '0:0.2:5'
    """
    return f"{chapter}:{task}:{n}"


def approval_id(run_id: str, call: str) -> str:
    """The id of a request, the same however often its run is executed again. 64 bits of a SHA-256 over the canonical
    JSON of [run id, identity of the call].

    >>> approval_id("claim-42", "0:0:3")
    '2c708deedbba2ebd'
    """
    return sha256(canonical_bytes([run_id, call])).hexdigest()[:APPROVAL_ID_DIGITS]


def request_hash(run_id: str, call: str, workflow: str, version: int, body: bytes) -> bytes:
    """What a person names who decides: SHA-256 over the canonical JSON of [run id, identity of the call, workflow,
    version], a line feed, and the request's body. 32 bytes."""
    head: list[Any] = [run_id, call, workflow, version]
    return sha256(canonical_bytes(head) + b"\n" + body).digest()

"""What a hook is told about the inbox."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from perdure.decisions.entry import What

if TYPE_CHECKING:
    from perdure.api.inbox import InboxEntry

class InboxNotice(msgspec.Struct, frozen=True):
    """Something in the inbox, as `Runtime(on_inbox=...)` is told of it.

    `what`: it is `new`; or it is an open request that is announced again, because its run was resumed or came to
    another worker (`repeat`), because nobody has decided for so long (`reminder`), or because now others may
    decide, too (`escalation`). `id` is the same however often this notice is delivered. `entry`: as it was at the
    time `at`.
    """

    id: str
    what: What
    entry: InboxEntry
    at: datetime


__all__ = ["InboxNotice"]

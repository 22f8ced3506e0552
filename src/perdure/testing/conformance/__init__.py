"""What every store has to pass: the protocol's sentences, each as a test.

Subclass `StoreConformance`, say how your store is opened, and pytest runs the suite against it:

    class TestMyStore(StoreConformance):
        def open(self, place, clock):
            return MyStore(place / "my.db", clock=clock)
"""

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{part}"
        for part in (
            "base", "accounts", "appends", "effects", "approvals", "forks", "rates", "mail", "workers", "reading",
            "notes", "care",
        )
    )
)

from perdure.testing.conformance.accounts import AccountPromises  # noqa: E402
from perdure.testing.conformance.appends import AppendPromises  # noqa: E402  after their asserts are made to explain
from perdure.testing.conformance.approvals import ApprovalPromises  # noqa: E402
from perdure.testing.conformance.base import StillClock  # noqa: E402
from perdure.testing.conformance.care import CarePromises  # noqa: E402
from perdure.testing.conformance.effects import EffectPromises  # noqa: E402
from perdure.testing.conformance.forks import ForkPromises  # noqa: E402
from perdure.testing.conformance.mail import MailPromises  # noqa: E402
from perdure.testing.conformance.notes import NotePromises  # noqa: E402
from perdure.testing.conformance.rates import RatePromises  # noqa: E402
from perdure.testing.conformance.reading import ReadPromises  # noqa: E402
from perdure.testing.conformance.workers import WorkerPromises  # noqa: E402

__all__ = ["StillClock", "StoreConformance"]


class StoreConformance(
    AppendPromises,
    EffectPromises,
    ApprovalPromises,
    ForkPromises,
    RatePromises,
    AccountPromises,
    MailPromises,
    WorkerPromises,
    ReadPromises,
    NotePromises,
    CarePromises,
):
    """The whole suite. `open(place, clock)` opens a store; called again with the same place, another handle on it."""

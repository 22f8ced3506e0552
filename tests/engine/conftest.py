"""Engine tests run as code does while a Runtime is open: with the dispatchers of asyncio in place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.engine import exact


@pytest.fixture(autouse=True)
def exact_asyncio() -> Iterator[None]:
    exact.install()
    yield
    exact.uninstall()

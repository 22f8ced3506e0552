"""Something of perdure broken on purpose, so that a test sees whether that is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


class Broken:
    """Breaks something of perdure for one test: a method gets another body, which is given the right one first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, cls: Any, method: str, body: Callable[..., Any]) -> None:
        right = getattr(cls, method)

        def wrong(*given: Any, **named: Any) -> Any:
            return body(right, *given, **named)

        self._monkeypatch.setattr(cls, method, wrong)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Broken:
    return Broken(monkeypatch)

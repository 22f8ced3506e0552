"""The pytest plugin; pytest finds it by itself where perdure is installed.

    async def test_a_claim_is_paid_after_two_days(perdure_runtime):
        run = await perdure_runtime.start(claims_agent.call("claim-42"))
        assert await run.result() == "refunded"

`perdure_runtime` is a `perdure.testing.runtime.RuntimeUnderTest`, open while the test runs, on the test's event loop.
An `async def` test that asks for it needs no other plugin; marked for pytest-asyncio or anyio, it is theirs to run.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perdure.testing.runtime import RuntimeUnderTest

FIXTURE = "perdure_runtime"


@pytest.fixture
def perdure_runtime() -> RuntimeUnderTest:
    """A Runtime with everything in memory, a clock that skips, a guard, and each turn replayed from the start."""
    from perdure.testing.runtime import RuntimeUnderTest

    return RuntimeUnderTest()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever runs the test's coroutine finds the runtime open in it."""
    for item in items:
        if isinstance(item, pytest.Function) and FIXTURE in item.fixturenames and inspect.iscoroutinefunction(item.obj):
            item.obj = _with_open_runtime(item, item.obj)


def _with_open_runtime(item: pytest.Function, test: Any) -> Any:
    @functools.wraps(test)
    async def opened(*arguments: Any, **fixtures: Any) -> None:
        runtime: Any = item.funcargs[FIXTURE]
        async with runtime:
            await test(*arguments, **fixtures)

    return opened


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the coroutine of a test that nobody else is to run."""
    if not _is_ours(pyfuncitem):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: value for name, value in pyfuncitem.funcargs.items() if name in names}))
    return True


def _is_ours(item: pytest.Function) -> bool:
    is_others = "anyio_backend" in item.fixturenames or item.get_closest_marker("asyncio") is not None
    return FIXTURE in item.fixturenames and inspect.iscoroutinefunction(item.obj) and not is_others

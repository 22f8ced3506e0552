"""The pytest plugin; pytest finds it by itself where perdure is installed.

    async def test_a_claim_is_paid_after_two_days(perdure_runtime):
        run = await perdure_runtime.start(claims_agent.call("claim-42"))
        assert await run.result() == "refunded"

`perdure_runtime` is a `perdure.testing.runtime.RuntimeUnderTest`, open while the test runs, on the test's event loop.
An `async def` test that asks for it needs no other plugin; marked for pytest-asyncio or anyio, it is theirs to run.

    @pytest.mark.perdure_drill(claims_agent.call("claim-42"), provide=fakes, check=paid_once)
    def test_claims_survive_the_drill(perdure_drill): ...

A test with that mark fails, with the report, if the drill finds something; the mark takes what `perdure.testing.drill`
takes. The report is the fixture `perdure_drill`, for a test that wants to look at it, too.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perdure.testing.drilling import DrillReport
    from perdure.testing.runtime import RuntimeUnderTest

FIXTURE = "perdure_runtime"
DRILL = "perdure_drill"


@pytest.fixture
def perdure_runtime() -> RuntimeUnderTest:
    """A Runtime with everything in memory, a clock that skips, a guard, and each turn replayed from the start."""
    from perdure.testing.runtime import RuntimeUnderTest

    return RuntimeUnderTest()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{DRILL}(workflow_or_call, *args, **options): a drill; the test fails if it finds something"
    )


@pytest.fixture
def perdure_drill(request: pytest.FixtureRequest) -> DrillReport:
    """What came of the drill that the test's mark asks for."""
    from perdure.testing.drilling import drill

    mark = request.node.get_closest_marker(DRILL)
    if mark is None:
        raise pytest.UsageError(f"{DRILL} needs a mark: @pytest.mark.{DRILL}(workflow.call(...), provide=...)")
    return asyncio.run(drill(*mark.args, **mark.kwargs))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A drill that found something is a test that failed."""
    report: DrillReport | None = getattr(item, "funcargs", {}).get(DRILL)
    if report is not None:
        report.check()
    yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever runs the test's coroutine finds the runtime open in it. Who is marked for a drill gets one."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker(DRILL) and DRILL not in item.fixturenames:
            item.fixturenames.append(DRILL)
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

"""The pytest plugin, in test suites of users."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import asyncio
from datetime import timedelta

import pytest
import perdure
from perdure import step, workflow

calls = []

@step(retry=perdure.Retry(max_attempts=3, first_delay=50))
async def fetch(item: int) -> int:
    calls.append(item)
    if len(calls) % 2:
        raise ConnectionError("not now")
    return item * 2

@workflow
async def double(item: int) -> int:
    await perdure.sleep(days=2)
    return await fetch(item)

@workflow
async def parent(item: int) -> int:
    return await double(item) + 1


# days pass at once without any other plugin
async def test_days_pass_at_once(perdure_runtime):
    before = perdure_runtime.clock.time
    run = await perdure_runtime.start(parent.call(4), id="p")
    assert await run.result() == 9
    assert perdure_runtime.clock.time - before > timedelta(days=2)
    assert [event.kind for event in await run.history()][-1] == "run.completed"


# each test has a runtime of its own
@pytest.mark.parametrize("item", [1, 2])
async def test_each_has_a_runtime_of_its_own(perdure_runtime, item, tmp_path):
    run = await perdure_runtime.start(double.call(item), id="the same")
    assert await run.result() == 2 * item
    assert [summary.id for summary in await perdure_runtime.list()] == ["the same"]


# a test that fails fails
async def test_that_fails(perdure_runtime):
    run = await perdure_runtime.start(double.call(4))
    assert await run.result() == 9


# a workflow that depends on what is not recorded is found out
turns = []

@workflow
async def moody() -> int:
    turns.append(None)
    return await fetch(len(turns))

async def test_a_workflow_that_depends_on_what_is_not_recorded_is_found_out(perdure_runtime):
    run = await perdure_runtime.start(moody.call())
    with pytest.raises(perdure.RunBlockedError, match="not do the same again.*fetch#1.*item.:1.*item.:2") as blocked:
        await run.result()
    assert blocked.value.reason == "diverged"


# workflow code is guarded
import time

@workflow
async def hasty() -> float:
    try:
        return time.time()
    except perdure.PerdureError:
        return 0.0

async def test_workflow_code_is_guarded(perdure_runtime):
    run = await perdure_runtime.start(hasty.call())
    with pytest.raises(perdure.RunBlockedError, match="time.time"):
        await run.result()


# workflows may be declared inside the test
async def test_workflows_may_be_declared_inside_the_test(perdure_runtime):
    @step
    async def add(a: int, b: int) -> int:
        return a + b

    @workflow
    async def inner(n: int) -> int:
        return await add(n, 1)

    @workflow
    async def outer(n: int) -> int:
        return await inner(n) + await inner(n + 1)

    run = await perdure_runtime.start(outer.call(1))
    assert await run.result() == 5


# steps get what the test provides
class Payments:
    def pay(self, amount: int) -> str:
        return f"paid {amount}"

@step
async def pay(amount: int) -> str:
    return perdure.use(Payments).pay(amount)

@workflow
async def checkout(amount: int) -> str:
    return await pay(amount)

async def test_steps_get_what_the_test_provides(perdure_runtime):
    perdure_runtime.provide(Payments, Payments())
    run = await perdure_runtime.start(checkout.call(7))
    assert await run.result() == "paid 7"


# a test marked for anyio is left to it
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_test_marked_for_anyio_is_left_to_it(perdure_runtime, anyio_backend):
    run = await perdure_runtime.start(double.call(4))
    assert await run.result() == 8


# a fixture may use it before the test does
@pytest.fixture
def clock(perdure_runtime):
    return perdure_runtime.clock

async def test_a_fixture_may_use_it_before_the_test_does(clock):
    assert clock.time.year == 2030
"""




PROJECT = """[tool.pytest.ini_options]
addopts = "-p perdure.testing.plugin --strict-markers"
filterwarnings = ["error", "ignore::pytest.PytestAssertRewriteWarning"]
"""


def test_a_suite_of_a_user(pytester: pytest.Pytester) -> None:
    """All in one: to start pytest takes longer than these tests."""
    pytester.makepyprojecttoml(PROJECT)
    pytester.path.joinpath("test_shop.py").write_text(SUITE)
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=SUITE.count("async def test_"), failed=1)
    result.stdout.fnmatch_lines(["*assert 8 == 9*", "FAILED*::test_that_fails *"])


def test_the_plugin_is_an_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"perdure.testing.plugin": "perdure.testing.plugin"}


DRILLS = """
import pytest
import perdure
from perdure import NoGuarantee, effect, step, workflow

SENT = []

@effect(downstream=NoGuarantee())
async def send(to: str) -> str:
    SENT.append(to)
    return "sent"

@send.key
def _(to):
    return to

@step
async def send_in_a_step(to: str) -> str:
    SENT.append(to)
    return "sent"

@workflow
async def sends(to: str) -> str:
    return await send(to)

@workflow
async def sends_in_a_step(to: str) -> str:
    return await send_in_a_step(to)

def nothing_sent():
    SENT.clear()
    return {}

def sent_once(after):
    assert len(SENT) == 1, f"sent {len(SENT)} times"

@pytest.mark.perdure_drill(sends.call("ada"), provide=nothing_sent, check=sent_once)
def test_passes():
    pass

@pytest.mark.perdure_drill(sends, "ada", provide=nothing_sent, check=sent_once)
async def test_looks_at_the_report(perdure_drill, perdure_runtime):
    assert perdure_drill["after Execute of send#1"].has_passed
    assert perdure_drill.effects == {"send": "no_guarantee"}
    assert await (await perdure_runtime.start(sends.call("bo"))).result() == "sent"

@pytest.mark.perdure_drill(sends_in_a_step.call("ada"), provide=nothing_sent, check=sent_once)
def test_fails():
    raise AssertionError("it never comes to this")

def test_has_no_mark(perdure_drill):
    pass
"""


def test_a_test_that_is_marked_for_a_drill_fails_when_the_drill_finds_something(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml(PROJECT)
    pytester.makepyfile(DRILLS)
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*perdure_drill needs a mark: @pytest.mark.perdure_drill(workflow.call(...), provide=...)*",
            "*FAILED  after step send_in_a_step#1",
            "*your check: AssertionError: sent 2 times*",
        ]
    )
    result.stdout.no_fnmatch_line("E *it never comes to this*")

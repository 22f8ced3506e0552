"""What a `def` workflow can ask for beside its steps: the same as an async one, and as exactly."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import step, workflow
from perdure.runtime import sections
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import sweep_crashes


@step
def note(what: str) -> str:
    return what


@step
async def plan(topic: str) -> list[str]:
    return [f"{topic} {n}" for n in range(2)]


@workflow
async def length_of(what: str) -> int:
    await note.call(what)
    return len(what)


@workflow
def lengths(what: str) -> int:
    return len(note(what))


@workflow
async def never() -> str:
    try:
        await perdure.receive("never")
    finally:
        await note.call("cleaned up")
    return "it came"


@workflow
async def stubborn() -> str:
    try:
        return str(await perdure.receive("never"))
    except asyncio.CancelledError:
        return await note.call("ended all the same")


# ── async steps and workflows ───────────────────────────────────────────────────────────────


@workflow
def waits_for_async() -> list[Any]:
    words = perdure.sync.wait(plan.call("tea"))
    return [words, perdure.sync.wait(length_of.call(words[0])), lengths(words[1]), perdure.sync.wait(note.call("def"))]


def test_async_steps_and_workflows_are_waited_for_by_name() -> None:
    async def main() -> None:
        sweep = await sweep_crashes(waits_for_async.call(), workflows=[length_of, lengths])
        assert sweep.result == [["tea 0", "tea 1"], 5, 5, "def"]

    asyncio.run(main())


@workflow
def forgets_to_wait(of: str) -> str:
    return str(plan(of) if of == "step" else length_of(of))


@step
def forgets_where_it_is() -> None:
    _ = perdure.sleep(1)


@workflow
def forgets_to_await(what: str) -> None:
    match what:
        case "sleep":
            _ = perdure.sleep(days=2)
        case "receive":
            _ = perdure.receive("word")
        case "ask":
            _ = perdure.ask("really?")
        case "with_approval":
            _ = perdure.with_approval(note.call("tea"), by="ann")
        case "start":
            _ = perdure.start(agent.call("tea"))
        case _:
            forgets_where_it_is()


@pytest.mark.parametrize("what", ["sleep", "receive", "ask", "with_approval", "start", "in a step"])
def test_what_nobody_can_await_is_refused_when_it_is_called(what: str) -> None:
    """It would never happen, and the code behind a wait of two days would run at once."""
    told = "sleep.. was called inside the body of a step" if what == "in a step" else rf"write perdure\.sync\.{what}\("

    async def main() -> None:
        async with RuntimeUnderTest(workflows=[forgets_to_await, agent]) as runtime:
            with pytest.raises(perdure.UsageError, match=told):
                await (await runtime.start(forgets_to_await.call(what))).result()

    asyncio.run(main())


@pytest.mark.parametrize("of", ["step", "workflow"])
def test_an_async_step_called_as_usual_is_refused(of: str) -> None:
    async def main() -> None:
        async with RuntimeUnderTest(workflows=[forgets_to_wait, length_of]) as runtime:
            run = await runtime.start(forgets_to_wait.call(of))
            with pytest.raises(perdure.UsageError, match=r"write perdure.sync.wait\((plan|length_of).call\(...\)\)"):
                await run.result()

    asyncio.run(main())


@workflow
def agent(topic: str) -> str:
    noted = note(topic)
    perdure.sync.sleep(0.001)
    return ", ".join([noted, *perdure.sync.wait(plan.call(topic))])


@workflow
def listens() -> str:
    return perdure.sync.receive("word", str)


@workflow
async def blocks(how: str) -> None:
    perdure.sync.wait(plan.call("tea")) if how == "wait" else perdure.sync.sleep(1)


@step
def naps() -> None:
    perdure.sync.sleep(1)


@step
def waits_for_another_step() -> None:
    perdure.sync.wait(plan.call("tea"))


@step
def overhears() -> None:
    perdure.sync.receive("word")


@workflow
async def goes_wrong(body: str) -> None:
    await {"naps": naps, "overhears": overhears, "waits": waits_for_another_step}[body].call()


def test_outside_of_a_run_a_def_workflow_is_the_plain_function() -> None:
    assert agent("tea") == "tea, tea 0, tea 1"
    with pytest.raises(perdure.UsageError, match=r"perdure\.sync\.receive\(\) was called outside a run"):
        listens()


def test_outside_of_a_run_a_call_is_not_waited_for_in_a_running_loop() -> None:
    async def main() -> None:
        with pytest.raises(perdure.UsageError, match=r"inside a running event loop: await the call"):
            perdure.sync.wait(plan.call("tea"))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (blocks.call("wait"), r"in an async workflow; await the call there"),
        (blocks.call("sleep"), r"in an async workflow; await perdure\.sleep\(\) there"),
        (goes_wrong.call("naps"), r"sync\.sleep\(\) was called inside the body of a step; use time\.sleep\(\) there"),
        (goes_wrong.call("overhears"), r"sync\.receive\(\) was called inside the body of a step; it belongs into"),
        (goes_wrong.call("waits"), r"sync\.wait\(\) was called inside the body of a step; it belongs into a `def`"),
    ],
)
def test_elsewhere_a_blocking_wait_is_refused(call: Any, told: str) -> None:
    async def main() -> None:
        async with RuntimeUnderTest(workflows=[blocks, goes_wrong]) as runtime:
            with pytest.raises(perdure.UsageError, match=told):
                await (await runtime.start(call)).result()

    asyncio.run(main())


# ── patched ─────────────────────────────────────────────────────────────────────────────────


@workflow(name="changing")
def before_the_change() -> list[str]:
    return [note("one"), note("two"), perdure.sync.receive("word", str), note("three")]


@workflow(name="changing")
def after_the_change() -> list[str]:
    got = [note("one")]
    if perdure.patched("early"):
        got.append(note("early patch"))
    got += [note("two"), perdure.sync.receive("word", str)]
    if perdure.patched("late"):
        got.append(note("late patch"))
    return [*got, note("three"), str(perdure.patched("early")), str(perdure.patched("late"))]


def test_a_run_under_way_has_passed_one_guard_and_not_the_other(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")

    async def old() -> None:
        async with perdure.Runtime(store, workflows=[before_the_change]) as runtime:
            run = await runtime.start(before_the_change.call(), id="run")
            while sum(event.kind == "step.completed" for event in await run.history()) < 2:
                await asyncio.sleep(0.005)

    async def new() -> list[str]:
        async with perdure.Runtime(store, workflows=[after_the_change]) as runtime:
            run = await runtime.get("run")
            await run.send("word", "go")
            return list(await run.result(timeout=20))

    asyncio.run(old())
    assert asyncio.run(new()) == ["one", "two", "go", "late patch", "three", "False", "True"]


@workflow
def guarded() -> list[str]:
    return [note("one"), *([note("patched")] if perdure.patched("p") else []), note("two")]


def test_a_guard_answers_alike_over_every_crash() -> None:
    async def main() -> None:
        sweep = await sweep_crashes(guarded.call())
        assert sweep.result == ["one", "patched", "two"]

    asyncio.run(main())


# ── state ───────────────────────────────────────────────────────────────────────────────────


@workflow
def tells_how_far() -> str:
    for n in range(3):
        perdure.set_state({"done": n})
        note(f"step {n}")
    perdure.set_state({"done": 3})
    perdure.sync.receive("go")
    perdure.set_state("the end")
    return "done"


def test_the_state_never_goes_back_while_the_code_runs_again(tmp_path: Path) -> None:
    """It is seen by whoever looks, at any moment: every state that is written is noted here."""

    async def main() -> None:
        store, seen = str(tmp_path / "runs.db"), list[Any]()

        async def look(run: Any) -> Any:
            state = await run.state()
            if not seen or seen[-1] != state:
                seen.append(state)
            return state

        for _ in range(3):
            async with perdure.Runtime(store, workflows=[tells_how_far]) as runtime:
                run = await runtime.start(tells_how_far.call(), id="run")
                while await look(run) != {"done": 3}:
                    await asyncio.sleep(0)
                for _ in range(50):
                    await look(run)
                    await asyncio.sleep(0.001)
        async with perdure.Runtime(store, workflows=[tells_how_far]) as runtime:
            run = await runtime.get("run")
            await run.send("go")
            assert await run.result(timeout=20) == "done"
            await look(run)
        numbers: list[int] = [state["done"] for state in seen if state and state != "the end"]
        assert numbers == sorted(numbers)
        assert seen[-1] == "the end"

    asyncio.run(main())


def tries_to_set_state() -> None:
    perdure.set_state("from the section")


@workflow
async def hosts(what: str) -> Any:
    function: Any = {"state": tries_to_set_state, "chapter": perdure.continue_as_new}[what]
    return await perdure.section("s").run(function)


@pytest.mark.parametrize(("what", "told"), [("state", "the state is the workflow's"), ("chapter", "own code")])
def test_what_belongs_to_the_workflow_is_refused_in_a_section(what: str, told: str) -> None:
    async def main() -> None:
        async with RuntimeUnderTest(workflows=[hosts]) as runtime:
            run = await runtime.start(hosts.call(what))
            with pytest.raises(perdure.UsageError, match=told):
                await run.result()

    asyncio.run(main())


# ── current_run and the log ─────────────────────────────────────────────────────────────────


REPLAYING: list[bool] = []


@workflow(version=3)
def knows_itself() -> list[Any]:
    REPLAYING.append(perdure.current_run().is_replaying)
    perdure.logger().warning("begins")
    note("one")
    perdure.logger().warning("has noted")
    me = perdure.current_run()
    perdure.sync.receive("go")
    return [me.id, me.workflow, me.version, me.chapter, me.started_at == perdure.current_run().started_at]


def test_a_run_knows_itself_and_logs_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    REPLAYING.clear()

    async def life(*, is_last: bool) -> Any:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[knows_itself]) as runtime:
            run = await runtime.start(knows_itself.call(), id="me")
            while not is_last and not any(event.kind == "step.completed" for event in await run.history()):
                await asyncio.sleep(0.005)
            if is_last:
                await run.send("go")
                return await run.result(timeout=20)
            return None

    asyncio.run(life(is_last=False))
    assert asyncio.run(life(is_last=True)) == ["me", "knows_itself", 3, 0, True]
    assert REPLAYING == [False, True]
    begun = [record for record in caplog.records if record.message == "begins"]
    assert len(begun) == 1
    assert getattr(begun[0], "run_id", None) == "me"


# ── children that are not waited for at once ────────────────────────────────────────────────


@workflow
def starts_two() -> list[Any]:
    first = perdure.sync.start(length_of.call("four"))
    second = perdure.sync.start(lengths.call("seven.."), id="mine")
    between = note("between")
    return [first.id, second.id, between, second.result(), first.result(), first.result()]


def test_started_children_over_every_crash() -> None:
    async def main() -> None:
        sweep = await sweep_crashes(starts_two.call(), workflows=[length_of, lengths])
        assert sweep.result == ["swept/0:0.main.length_of.0", "mine", "between", 7, 4, 4]

    asyncio.run(main())


async def starting() -> list[Any]:
    first = await perdure.start(length_of.call("four"))
    second = await perdure.start(never.call(), id="second")
    second.cancel()
    with pytest.raises(perdure.RunCancelledError):
        await second.result()
    return [first.id, await first.result()]


@workflow
async def starts_in_a_section() -> Any:
    return await perdure.section("s").run(starting)


def test_async_hosted_code_starts_children_over_every_crash() -> None:
    async def main() -> None:
        sweep = await sweep_crashes(starts_in_a_section.call(), workflows=[length_of, never])
        assert sweep.result == ["swept/0:0.main.length_of.0", 4]

    asyncio.run(main())


@workflow
def cancels(which: str) -> list[str]:
    child = perdure.sync.start((never if which == "never" else stubborn).call(), id="child")
    note("between")
    child.cancel()
    try:
        child.result()
    except perdure.RunCancelledError:
        return ["cancelled", note("after")]
    return []


@workflow
def leaves_them(on_cancel: Any) -> str:
    perdure.sync.start(never.call(), id="child", on_cancel=on_cancel)
    return note("returned")


@pytest.mark.parametrize(("which", "status"), [("never", "cancelled"), ("stubborn", "completed")])
def test_a_cancelled_child_is_waited_for_over_every_crash(which: str, status: str) -> None:
    async def main() -> None:
        async def scenario(runtime: RuntimeUnderTest) -> Any:
            run = await runtime.start(cancels.call(which), id="swept")
            result = await run.result()
            child: Any = await runtime.get("child")
            kinds = [event.kind for event in await child.history()]
            return [result, await child.status(), kinds.count("run.cancel_requested"), kinds.count("step.completed")]

        sweep = await sweep_crashes(scenario, workflows=[never, stubborn, cancels])
        assert sweep.result == [["cancelled", "after"], status, 1, 1]

    asyncio.run(main())


def test_a_child_left_running_is_cancelled_and_waited_for_over_every_crash() -> None:
    async def main() -> None:
        async def scenario(runtime: RuntimeUnderTest) -> Any:
            run = await runtime.start(leaves_them.call("wait"), id="swept")
            result = await run.result()
            child: Any = await runtime.get("child")
            kinds = [event.kind for event in await child.history()]
            return [result, await child.status(), kinds.count("run.cancel_requested"), kinds.count("step.completed")]

        sweep = await sweep_crashes(scenario, workflows=[never, leaves_them])
        assert sweep.result == ["returned", "cancelled", 1, 1]

    asyncio.run(main())


def test_an_abandoned_child_goes_on() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(workflows=[never, leaves_them]) as runtime:
            assert await (await runtime.start(leaves_them.call("abandon"))).result() == "returned"
            child: Any = await runtime.get("child")
            await child.send("never")
            assert await child.result() == "it came"

    asyncio.run(main())


@workflow
def waits_for_a_child() -> str:
    child = perdure.sync.start(never.call(), id="child")
    note("begun")
    return child.result()


def test_the_wait_for_a_started_child_gives_its_thread_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(sections, "UNWIND_SECONDS", 0.05)
        async with perdure.Runtime(
            str(tmp_path / "runs.db"), workflows=[never, waits_for_a_child], evict_after=0.05
        ) as runtime:
            run = await runtime.start(waits_for_a_child.call(), id="parent")
            while (await run.summary()).reason != "child":
                await asyncio.sleep(0.005)
            assert not [t for t in threading.enumerate() if t.name.startswith("perdure-section-parent")]
            await (await runtime.get("child")).send("never")
            assert await run.result(timeout=20) == "it came"

    asyncio.run(main())


@workflow
def takes_a_taken_id() -> str:
    try:
        return str(perdure.sync.start(length_of.call("abc"), id="taken").result())
    except perdure.RunConflictError as error:
        return str(error)


def test_a_taken_id_is_told_when_the_result_is_asked_for() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(workflows=[length_of, takes_a_taken_id]) as runtime:
            await (await runtime.start(length_of.call("other"), id="taken")).result()
            assert "'taken' belongs to length_of" in await (await runtime.start(takes_a_taken_id.call())).result()

    asyncio.run(main())


# ── chapters ────────────────────────────────────────────────────────────────────────────────


@workflow
def counts_down(n: int, seen: list[str]) -> list[str]:
    seen.append(note(f"chapter {perdure.current_run().chapter}"))
    if n:
        perdure.continue_as_new(n - 1, seen)
    return [*seen, perdure.sync.receive("m", str), str(perdure.sync.wait(length_of.call("abc")))]


def test_chapters_over_every_crash_and_messages_are_carried() -> None:
    async def main() -> None:
        async def scenario(runtime: RuntimeUnderTest) -> Any:
            run = await runtime.start(counts_down.call(2, []), id="swept")
            if not any(
                event.kind == "message.arrived" or event.kind == "run.continued" for event in await run.history()
            ):
                await run.send("m", "carried")
            return await run.result()

        sweep = await sweep_crashes(scenario, workflows=[counts_down, length_of])
        assert sweep.result == ["chapter 0", "chapter 1", "chapter 2", "carried", "3"]

    asyncio.run(main())


@workflow
def changes_its_mind(given: list[Any]) -> None:
    try:
        perdure.continue_as_new(given)
    finally:
        given.append(object())


def test_arguments_of_the_next_chapter_that_cannot_be_recorded_any_more_fail_the_run() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(workflows=[changes_its_mind]) as runtime:
            run = await runtime.start(changes_its_mind.call([]))
            with pytest.raises(perdure.EncodeError, match="object"):
                await run.result(timeout=10)

    asyncio.run(main())


@workflow
def continues_too_early(how: str) -> None:
    if how == "child":
        perdure.sync.start(never.call())
        perdure.continue_as_new("again")
    failed: list[BaseException] = []

    def elsewhere() -> None:
        try:
            perdure.continue_as_new("again")
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    raise failed[0]


@pytest.mark.parametrize(("how", "told"), [("child", "main/never is in flight"), ("thread", "own code")])
def test_a_chapter_does_not_end_while_something_is_in_flight(how: str, told: str) -> None:
    async def main() -> None:
        async with RuntimeUnderTest(workflows=[continues_too_early, never]) as runtime:
            run = await runtime.start(continues_too_early.call(how))
            with pytest.raises(perdure.UsageError, match=told):
                await run.result()

    asyncio.run(main())

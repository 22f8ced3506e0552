"""A run whose code was changed meanwhile is compared before anything of it executes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.code import module_of, workflow_of
from tests.runtime.hosting import eventually, host_of, is_in_memory, on_one_store, run_async

import perdure
from perdure import RunBlockedError, Runtime, Status, workflow
from perdure.audit.verify import verify
from perdure.history import events as e

BODY = """
SEEN = []

@step
async def search(query: str) -> str:
    SEEN.append(query)
    return query.upper()

@step
async def rank(hits: str) -> str:
    SEEN.append("rank")
    return hits

@workflow(OPTIONS)
async def agent() -> str:
    hits = await search("tea")
    await perdure.receive("go on")
    return await rank(hits)
"""

Make = Callable[[str], Any]
On = Callable[..., Runtime]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda options: workflow_of(tmp_path, BODY.replace("OPTIONS", options))


@pytest.fixture
def on() -> On:
    return on_one_store()


async def park(runtime: Runtime, agent: Any) -> None:
    """Have a run waiting for its message."""
    async with runtime:
        await runtime.start(agent.call(), id="r")
        await eventually(lambda: is_in_memory(runtime, "r"))
        await runtime.drain()


async def go_on(runtime: Runtime) -> Any:
    async with runtime:
        run = await runtime.get("r")
        if await run.status() is not Status.BLOCKED:
            await run.send("go on")
        return await run.result(timeout=20)


async def let_load(runtime: Runtime) -> None:
    """Have the run loaded and let go of, without getting any further."""
    async with runtime:
        await (await runtime.get("r")).send("something else")
        await runtime.drain()


async def adopted(runtime: Runtime) -> list[e.Adopted]:
    async with runtime:
        history = await (await runtime.get("r")).history()
        return [happened.event for happened in history if isinstance(happened.event, e.Adopted)]


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ('prompt_release="May"', 'prompt_release="June"', "the prompt release was May, and is June"),
        ('model_policy_version="1"', 'model_policy_version="2"', "the model policy was 1, and is 2"),
        ('tool_catalog_version="1"', 'tool_catalog_version="2"', "the tool catalogue was 1, and is 2"),
        ("tools=[search, rank]", "tools=[rank]", "the run has used search, which is no tool any more"),
    ],
)
def test_what_is_declared_is_the_contract(on: On, make: Make, then: str, now: str, told: str) -> None:
    async def main() -> None:
        await park(on(agent := make(then)), agent)
        other = make(now)
        with pytest.raises(RunBlockedError) as caught:
            await go_on(on(other))
        assert caught.value.reason == "incompatible_version"
        assert told in caught.value.hint
        assert other.spec.function.__globals__["SEEN"] == []
        assert await adopted(on()) == []
        async with on(make(then)) as runtime:  # the old code is deployed again
            run = await runtime.get("r")
            await run.unblock("retry", by="ann")
            assert await run.result(wait_blocked=True, timeout=20) == "TEA"

    run_async(main())


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ('prompt_release="May"', 'prompt_release="June", on_contract_drift="accept"'),
        ('prompt_release="May"', 'prompt_release="June", on_contract_drift={"prompt_release": "accept"}'),
        ('version=7, prompt_release="May"', 'version=8, replays={7}, prompt_release="June"'),
        ("version=7", "version=8, replays={7}"),
    ],
)
def test_what_is_claimed_goes_on_and_is_recorded_once(on: On, make: Make, then: str, now: str) -> None:
    async def main() -> None:
        await park(on(agent := make(then)), agent)
        other = make(now)
        for _ in range(3):
            await let_load(on(other))
        assert await go_on(on(other)) == "TEA"
        (found,) = await adopted(on())
        assert found.how == "claimed"
        assert found.manifest["workflow_version"] == other.spec.version
        assert found.told

    run_async(main())


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("", 'prompt_release="May", tools=[search]'),
        ('prompt_release="May"', ""),
        ("tools=[search]", "tools=[search, rank]"),
        ("tools=[search, rank]", "tools=[search]"),
        ("", "raises=[ValueError]"),
    ],
)
def test_what_explains_strands_nobody_and_is_not_recorded(on: On, make: Make, then: str, now: str) -> None:
    async def main() -> None:
        await park(on(agent := make(then)), agent)
        assert await go_on(on(make(now))) == "TEA"
        assert await adopted(on()) == []

    run_async(main())


def test_what_a_runtime_declares_is_that_of_its_workflows(on: On, make: Make) -> None:
    async def main() -> None:
        agent, own = make(""), make('prompt_release="own"')
        await park(on(agent, prompt_release="May"), agent)
        with pytest.raises(RunBlockedError, match="the prompt release was May, and is June"):
            await go_on(on(agent, prompt_release="June"))
        async with on(own, prompt_release="May") as runtime:
            run = await runtime.get("r")
            await run.unblock("retry")
            with pytest.raises(RunBlockedError, match="the prompt release was May, and is own"):
                await run.result(timeout=20)
        async with on(agent, prompt_release="May") as runtime:
            await (await runtime.get("r")).unblock("retry")
            assert await (await runtime.get("r")).result(timeout=20, wait_blocked=True) == "TEA"

    run_async(main())


def test_children_are_under_what_the_runtime_declares(on: On) -> None:
    @workflow
    async def child() -> str:
        return "done"

    @workflow
    async def parent() -> str:
        return await child()

    async def main() -> None:
        async with on(parent, child, prompt_release="May") as runtime:
            run = await runtime.start(parent.call(), id="r")
            assert await run.result(timeout=20) == "done"
            inner = next(each for each in await runtime.list() if each.parent)
            (first, *_) = await (await runtime.get(inner.id)).history()
            assert isinstance(first.event, e.RunStarted)
            assert first.event.manifest["prompt_release"] == "May"

    run_async(main())


def test_two_workers_of_two_versions_may_hand_a_run_to_and_fro(on: On, make: Make) -> None:
    """In a rolling deploy a run of version 7 is now with the new worker, now with an old one."""
    seven, eight = make('version=7, prompt_release="May"'), make('version=8, replays={7}, prompt_release="June"')

    async def main() -> None:
        await park(on(seven), seven)
        for agent in (eight, seven, eight, seven):
            await let_load(on(agent))
        assert await go_on(on(seven)) == "TEA"
        assert len(await adopted(on())) == 1

    run_async(main())


LINE = '    hits = await search("tea")\n'


def test_a_divergence_tells_what_changed_in_the_source_and_the_line_to_add(on: On, tmp_path: Path) -> None:
    then = BODY.replace("OPTIONS", "")
    now = then.replace(LINE, '    await rank("first")\n' + LINE)

    async def main() -> None:
        await park(on(agent := workflow_of(tmp_path, then)), agent)
        with pytest.raises(RunBlockedError) as caught:
            await go_on(on(workflow_of(tmp_path, now)))
        hint = caught.value.hint
        assert caught.value.reason == "diverged"
        assert "In the source since the run began: step rank appeared, first." in hint
        line = 'The line to add: if perdure.patched("add step rank"): around the call of rank, at contract_code_'
        assert line in hint

    run_async(main())


BY_VARIABLE = """
import os

@step
async def search(query: str) -> str:
    return query

@step
async def rank(query: str) -> str:
    return query

@workflow
async def agent() -> str:
    if os.environ["HOW"] == "search":
        hits = await search("tea")
    else:
        hits = await rank(os.environ["HOW"])
    await perdure.receive("go on")
    return hits
"""


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ("search", "rank", "A condition between them came out otherwise, probably that of the `else` around rank: one"),
        ("rank", "rank more", "What this call is given is something else now"),
    ],
)
def test_where_no_edit_is_the_cause_no_line_is_to_be_added(
    on: On, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, now: str, told: str
) -> None:
    async def main() -> None:
        agent = workflow_of(tmp_path, BY_VARIABLE)
        monkeypatch.setenv("HOW", then)
        await park(on(agent), agent)
        monkeypatch.setenv("HOW", now)
        with pytest.raises(RunBlockedError) as caught:
            await go_on(on(workflow_of(tmp_path, BY_VARIABLE)))
        hint = caught.value.hint
        assert f"The durable calls in the source are what they were when the run began. {told}" in hint
        assert "The line to add" not in hint
        assert "The code changed" not in hint

    run_async(main())


PAYING = """
import asyncio
SENT = []
HANGS = asyncio.Event()

@effect(downstream=perdure.NoGuarantee())
async def pay(order: str) -> str:
    SENT.append(order)
    await HANGS.wait()
    return "paid"

@pay.key
def _(order: str) -> str: return order

async def host(order: str) -> str:
    return await pay(order)

@workflow(prompt_release="RELEASE")
async def agent() -> str:
    return await CALL
"""


@pytest.mark.parametrize("call", ['pay("o1")', 'perdure.section("host").run(host, "o1")'])
def test_an_incompatible_run_with_an_effect_under_way_touches_nothing(on: On, tmp_path: Path, call: str) -> None:
    """Also not the effect, which nobody here asks for: what is to be done about it is for the right code to say."""
    text = PAYING.replace("CALL", call)

    async def main() -> None:
        agent = workflow_of(tmp_path, text.replace("RELEASE", "May"))
        async with on(agent, lease=0.1) as runtime:
            await runtime.start(agent.call(), id="r")
            await eventually(lambda: agent.spec.function.__globals__["SENT"] == ["o1"])
            await host_of(runtime).abandon()
        other = workflow_of(tmp_path, text.replace("RELEASE", "June"))
        async with on(other) as second:
            run = await second.get("r")
            with pytest.raises(RunBlockedError, match="prompt release"):
                await run.result(timeout=20)
            kinds = [happened.kind for happened in await run.history()]
        assert other.spec.function.__globals__["SENT"] == []
        assert "effect.in_doubt" not in kinds

    run_async(main())


def test_deprecate_patch_names_the_run_that_still_takes_the_old_way(on: On, tmp_path: Path) -> None:
    plain = BODY.replace("OPTIONS", "")
    guarded = plain.replace(LINE, '    if perdure.patched("rank first"):\n        await rank("first")\n' + LINE)
    bare = plain.replace(LINE, '    perdure.deprecate_patch("rank first")\n    await rank("first")\n' + LINE)

    async def main() -> None:
        await park(on(agent := workflow_of(tmp_path, plain)), agent)
        await let_load(on(workflow_of(tmp_path, guarded)))
        with pytest.raises(RunBlockedError, match=r"perdure.patched\('rank first'\) with False"):
            await go_on(on(workflow_of(tmp_path, bare)))
        other = on_one_store()
        await park(other(agent := workflow_of(tmp_path, guarded)), agent)
        assert await go_on(other(workflow_of(tmp_path, bare))) == "TEA"

    run_async(main())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("tools=3", "a list of functions"),
        ("tools=[3]", "a list of functions"),
        ("tools=[search, search]", "two tools have one name"),
        ('tools={"search": object()}', "is no JSON"),
        ('prompt_release=""', "a text of 1 to 200 characters"),
        ('frameworks="msgspec"', "a list of packages"),
        ('frameworks=["no-such-package-here"]', "is installed here"),
        ('on_contract_drift="perhaps"', "'block', 'accept', or a dict"),
        ('on_contract_drift={"topology": "accept"}', "'block', 'accept', or a dict"),
        ("on_contract_drift=3", "'block', 'accept', or a dict"),
        ('prompt_releas="x"', "did you mean prompt_release=?"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_declared(make: Make, options: str, told: str) -> None:
    with pytest.raises(perdure.DeclarationError, match="contract_code_") as caught:
        make(options)
    assert told in str(caught.value)


def test_a_framework_is_recorded_with_its_version(make: Make) -> None:
    assert make('frameworks=["msgspec"]').spec.surroundings.frameworks == (("msgspec", msgspec.__version__),)


def test_the_order_in_which_tools_are_named_says_nothing(make: Make) -> None:
    assert make("tools=[search, rank]").spec.surroundings == make("tools=[rank, search]").spec.surroundings


def test_a_module_without_a_source_starts_runs(on: On, tmp_path: Path) -> None:
    module = module_of(tmp_path, "x = 1")
    exec("import perdure\n@perdure.workflow\nasync def agent() -> str:\n    return 'done'\n", vars(module))

    async def main() -> None:
        async with on(module.agent) as runtime:
            assert await (await runtime.start(module.agent.call(), id="r")).result(timeout=20) == "done"

    run_async(main())


def test_a_worker_that_is_started_paused_performs_nothing_until_runs_are_resumed(on: On, make: Make) -> None:
    async def main() -> None:
        agent = make("")
        seen: list[str] = agent.spec.function.__globals__["SEEN"]
        await park(on(agent), agent)
        async with on() as client:
            await (await client.get("r")).send("go on")
        async with perdure.Client(host_store(on)) as client:
            await client.start(agent.call(), id="new")
        for _ in range(2):  # after a second incident too
            async with on(agent, paused=True, evict_after=0) as worker:
                for run_id in ("r", "new"):
                    run = await worker.get(run_id)
                    await eventually(lambda: is_paused(worker, run_id), "it is paused")  # noqa: B023
                assert seen == ["tea"]
        async with on(agent, paused=True, evict_after=0) as worker:
            run = await worker.get("r")
            await run.resume(by="ann")
            assert await run.result(timeout=20) == "TEA"
            (await_new,) = [each for each in await worker.list() if each.id == "new"]
            assert (await_new.status, await_new.reason) == (Status.WAITING, "paused")
            new = await worker.get("new")
            await new.resume()
            await eventually(lambda: seen.count("tea") == 2)
            await new.send("other")
            await worker.drain()
            await new.send("go on")  # loaded again: it stays resumed
            assert await new.result(timeout=20) == "TEA"
            told = [happened.event for happened in await run.history() if isinstance(happened.event, e.RunPaused)]
            assert [event.by for event in told] == ["a worker that was started paused"]

    run_async(main())


def host_store(on: On) -> Any:
    """The store that the runtimes share."""
    return on()._given  # pyright: ignore[reportPrivateUsage]


async def is_paused(runtime: Runtime, run_id: str) -> bool:
    summary = await (await runtime.get(run_id)).summary()
    return summary.reason == "paused"


VERSIONS = """
@step
async def search(query: str) -> str:
    return query

@step
async def rank(hits: str) -> str:
    return hits + ", ranked"

@workflow(version=7, prompt_release="May")
async def agent() -> str:
    hits = await search("tea")
    await perdure.receive("go on")
    await perdure.sleep(days=2)
    return hits

@workflow(name="agent", version=8, prompt_release="June")
async def agent_8() -> str:
    hits = await search("tea")
    await perdure.receive("go on")
    return await rank(hits)

@workflow(name="agent", version=9)
async def agent_9() -> str:
    return await rank("tea")
"""


def test_a_run_is_moved_to_another_version_if_it_replays_there(on: On, tmp_path: Path) -> None:
    seven = workflow_of(tmp_path, VERSIONS)
    module = seven.spec.function.__globals__
    eight, nine = module["agent_8"], module["agent_9"]

    async def main() -> None:
        await park(on(seven), seven)
        async with perdure.Client(host_store(on), workflows=[eight, nine]) as client:
            run = await client.get("r")
            with pytest.raises(
                perdure.errors.MoveRefused, match="does not replay under version 9: the history has step"
            ):
                await run.move(9)
            with pytest.raises(perdure.UnknownNameError, match="no version of agent '10'"):
                await run.move(10)
            before = await run.history()
            assert (await run.move(8, by="ann"), (await run.summary()).version) == (7, 8)
            assert (await run.summary()).status is Status.WAITING
            (added,) = (await run.history())[len(before) :]
            assert isinstance(added.event, e.Adopted)
            assert (added.event.how, added.event.by, added.event.manifest["prompt_release"]) == ("moved", "ann", "June")
            for fork, version in ((await run.fork(added.seq - 1), 7), (await run.fork(added.seq), 8)):
                assert (await fork.summary()).version == version
        assert verify(host_store(on).again()).damage == ()
        await let_load(on(seven))  # it is none of its runs any more
        assert await go_on(on(eight)) == "tea, ranked"
        assert verify(host_store(on).again()).damage == ()
        assert len(await adopted(on())) == 1
        async with perdure.Client(host_store(on), workflows=[eight]) as client:
            with pytest.raises(perdure.RunFinishedError):
                await (await client.get("r")).move(8)

    run_async(main())


def test_a_run_that_is_parked_for_its_code_goes_on_where_it_is_moved_to(on: On, tmp_path: Path) -> None:
    seven = workflow_of(tmp_path, VERSIONS)
    eight = seven.spec.function.__globals__["agent_8"]
    other = workflow_of(tmp_path, VERSIONS.replace('    hits = await search("tea")', '    hits = await rank("tea")'))

    async def main() -> None:
        await park(on(seven), seven)
        with pytest.raises(RunBlockedError, match="rank"):
            await go_on(on(other))
        async with on(eight) as runtime:
            run = await runtime.get("r")
            assert await run.move(8) == 7
            assert await run.result(timeout=20, wait_blocked=True) == "tea, ranked"

    run_async(main())


def test_a_run_that_a_worker_has_in_hands_is_not_moved(on: On, tmp_path: Path) -> None:
    seven = workflow_of(tmp_path, VERSIONS)
    eight = seven.spec.function.__globals__["agent_8"]

    async def main() -> None:
        async with on(seven, eight, evict_after=60) as runtime:
            run = await runtime.start(seven.call(), id="r")
            await eventually(lambda: is_in_memory(runtime, "r"))
            with pytest.raises(perdure.errors.MoveRefused, match="has it in hands"):
                await run.move(8)
            assert (await run.summary()).version == 7

    run_async(main())


HANDED = """
@step(on_input_drift="accept")
async def search(query: str) -> str:
    return query

@workflow(version=7, prompt_release="May")
async def agent(chapter: int = 1) -> str:
    if chapter == 2:
        await perdure.receive("first")
    hits = await search("tea of 7")
    await perdure.receive("go on")
    if chapter == 1:
        perdure.continue_as_new(2)
    return f"{hits}, ended by 7"

@workflow(name="agent", version=8, replays={7}, prompt_release="June")
async def agent_8(chapter: int = 1) -> str:
    if chapter == 2:
        await perdure.receive("first")
    hits = await search("tea of 8")
    await perdure.receive("go on")
    if chapter == 1:
        perdure.continue_as_new(2)
    return f"{hits}, ended by 8"
"""


def test_whoever_has_a_run_back_takes_what_the_other_has_recorded(on: On, tmp_path: Path) -> None:
    """It began under this code; but between it was under another, which gave a step other arguments."""
    seven = workflow_of(tmp_path, HANDED)
    eight = seven.spec.function.__globals__["agent_8"]

    async def main() -> None:
        async with on(seven) as runtime:
            await runtime.start(seven.call(2), id="r")
            await runtime.drain()
        async with on(eight) as runtime:
            await (await runtime.get("r")).send("first")
            await runtime.drain()
        assert len(await adopted(on())) == 1
        assert await go_on(on(seven)) == "tea of 8, ended by 7"

    run_async(main())


def test_a_chapter_belongs_to_the_version_that_it_began_under(on: On, tmp_path: Path) -> None:
    """Code that claims a run begins its next chapter: that has never been under the old code, which does not get it."""
    seven = workflow_of(tmp_path, HANDED)
    eight = seven.spec.function.__globals__["agent_8"]

    async def main() -> None:
        await park(on(seven), seven)
        async with on(eight) as runtime:
            run = await runtime.get("r")
            await run.send("go on")
            await runtime.drain()
            assert (await run.summary()).version == 8
        async with on(seven) as runtime:
            await (await runtime.get("r")).send("first")
            await runtime.drain()
            assert await (await runtime.get("r")).status() is not Status.BLOCKED
        assert verify(host_store(on).again()).damage == ()
        assert await go_on(on(eight)) == "tea of 8, ended by 8"
        assert verify(host_store(on).again()).damage == ()

    run_async(main())


APPROVED = """
@effect(downstream=perdure.Idempotent())
async def pay(order: str) -> str:
    return "paid"

@pay.key
def _(order: str) -> str: return order

@workflow(version=7)
async def agent() -> str:
    return await perdure.with_approval(pay.call("o1"), by={"ann"})

@workflow(name="agent", version=8)
async def agent_8() -> str:
    return await perdure.with_approval(pay.call("o1"), by={"ann"}) + " by 8"
"""


@pytest.mark.parametrize("decides_first", [True, False])
def test_what_people_were_shown_before_a_move_is_what_they_decide_about(
    on: On, tmp_path: Path, decides_first: bool
) -> None:
    """The call is the same: it is not asked for again, and their yes lets it pass."""
    seven = workflow_of(tmp_path, APPROVED)
    eight = seven.spec.function.__globals__["agent_8"]

    async def main() -> None:
        async with on(seven) as runtime:
            await runtime.start(seven.call(), id="r")
            await runtime.drain()
            (shown,) = await runtime.requests(run="r")
        async with perdure.Client(host_store(on), workflows=[eight]) as client:
            for decides in (decides_first, not decides_first):
                if decides:
                    await client.approve(shown.id, hash=shown.hash, by="ann")
                else:
                    await (await client.get("r")).move(8)
        async with on(eight) as runtime:
            assert await (await runtime.get("r")).result(timeout=20) == "paid by 8"
            assert [each.id for each in await runtime.requests(run="r")] == [shown.id]
        assert verify(host_store(on).again()).damage == ()

    run_async(main())

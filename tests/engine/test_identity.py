"""What a call is known by: its task's path and its ordinal there; and what randomness derives from."""

from __future__ import annotations

import asyncio
import weakref

import pytest
from tests.engine.driving import Driver

import perdure
from perdure import step, workflow
from perdure.errors import EncodeError, UsageError


@step
async def fetch(item: int) -> int:
    return item


@step(name="look up")
async def search(item: int) -> int:
    return item


@workflow
async def child(item: int) -> int:
    return item


@workflow
async def branches() -> int:
    async def branch() -> None:
        await fetch(1)
        await search(2)
        await fetch(3)
        await asyncio.gather(fetch(4), search(5))

    await asyncio.gather(branch(), branch())
    return await child(6)


def test_labels_show_task_name_and_use() -> None:
    driver = Driver(branches)
    while not driver.asked[0].startswith("0/"):
        driver.complete(driver.asked[0], 0)
    assert [label for label in driver.performed if label.startswith("0.2")] == [
        "0.2/fetch#1",
        "0.2/look up#1",
        "0.2/fetch#2",
        "0.2.1/fetch#1",
        "0.2.2/look up#1",
    ]
    driver.end_child("child", 6)
    driver.check_replays()


def test_the_first_tasks_of_two_runs_hash_alike_but_not_in_the_set_of_all_tasks() -> None:
    roots = [loop.live_tasks()[0] for loop in (Driver(branches).execution.loop, Driver(branches).execution.loop)]
    assert hash(roots[0]) == hash(roots[1]) == roots[0].ordinal
    kept = [hash(kept) for root in roots for kept in weakref.getweakrefs(root)]
    assert len(set(kept)) == len(kept)


def test_ordinals_count_all_calls_of_a_task() -> None:
    driver = Driver(branches)
    assert driver.ask("0.1/fetch#1").key == ("0.1", 0)
    driver.complete("0.1/fetch#1", 1)
    assert driver.ask("0.1/look up#1").key == ("0.1", 1)
    driver.complete("0.1/look up#1", 1)
    assert driver.ask("0.1/fetch#2").key == ("0.1", 2)


@workflow
async def made_early_run_late() -> list[int]:
    first, second = fetch(1), fetch(2)
    return [await second, await first]


def test_a_call_has_its_identity_when_it_first_runs_not_when_it_is_made() -> None:
    driver = Driver(made_early_run_late)
    assert driver.argument("0/fetch#1") == 2
    driver.complete("0/fetch#1", 2)
    assert driver.argument("0/fetch#2") == 1
    assert driver.complete("0/fetch#2", 1).result() == [2, 1]
    driver.check_replays()


@workflow
async def handed_on() -> int:
    call = fetch.call(1)

    async def elsewhere() -> int:
        return await call

    return await asyncio.create_task(elsewhere())


def test_a_call_belongs_to_the_task_that_awaits_it() -> None:
    assert Driver(handed_on).asked == ["0.1/fetch#1"]


@workflow
async def made_twice() -> int:
    call = fetch.call(1)
    await call
    return await call


def test_a_call_is_made_once() -> None:
    driver = Driver(made_twice).complete("fetch", 1)
    with pytest.raises(UsageError, match=r"write \.call\(\.\.\.\) again"):
        driver.result()


def test_the_same_call_given_twice_to_gather_is_one_call() -> None:
    driver = Driver(gathers_one_twice)
    assert driver.asked == ["0.1/fetch#1"]
    assert driver.complete("fetch", 5).result() == [5, 5]
    driver.check_replays()


@workflow
async def gathers_one_twice() -> list[int]:
    call = fetch.call(1)
    return list(await asyncio.gather(call, call))


@workflow
async def refuses_arguments(case: str) -> int:
    if case == "one too many":
        return await fetch(1, 2)  # type: ignore[call-arg]
    if case == "an unknown name":
        return await fetch(itme=1)  # type: ignore[call-arg]
    return await fetch(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ["one too many", "an unknown name"])
def test_wrong_arguments_are_refused_where_the_call_is_made(case: str) -> None:
    driver = Driver(refuses_arguments, case)
    with pytest.raises(TypeError, match="fetch"):
        driver.result()
    assert driver.performed == []


def test_an_argument_that_cannot_be_recorded_is_named_and_nothing_is_asked() -> None:
    driver = Driver(refuses_arguments, "a value that is no number")
    with pytest.raises(EncodeError, match="item"):
        driver.result()
    assert driver.performed == []


# ── randomness ──────────────────────────────────────────────────────────────────────────────


@workflow(name="draws")
async def drawing() -> dict[str, list[float]]:
    drawn: dict[str, list[float]] = {}

    async def branch(name: str) -> None:
        drawn[name] = [perdure.random()]
        await fetch(1)
        drawn[name].append(perdure.random())

    await asyncio.gather(branch("a"), branch("b"))
    return drawn


@workflow(name="draws")
async def drawing_once_more() -> dict[str, list[float]]:
    drawn: dict[str, list[float]] = {}

    async def branch(name: str) -> None:
        drawn[name] = [perdure.random()]
        await fetch(1)
        drawn[name].append(perdure.random())
        if name == "a":
            perdure.uuid4()
            drawn[name].append(perdure.random())

    await asyncio.gather(branch("a"), branch("b"))
    return drawn


def test_one_more_random_number_in_a_branch_shifts_no_other() -> None:
    driver = Driver(drawing).complete("0.2/fetch#1", 1).complete("0.1/fetch#1", 1)
    drawn = driver.result()
    changed = driver.replay(drawing_once_more).result()
    assert changed["a"][:2] == drawn["a"]
    assert changed["b"] == drawn["b"]
    assert len({*changed["a"], *changed["b"]}) == 5
    assert all(0 <= number < 1 for number in changed["a"])
    driver.check_replays()


def test_the_order_of_outcomes_does_not_change_randomness() -> None:
    one = Driver(drawing).complete("0.2/fetch#1", 1).complete("0.1/fetch#1", 1)
    other = Driver(drawing).complete("0.1/fetch#1", 1).complete("0.2/fetch#1", 1)
    assert one.result() == other.result()


@workflow
async def ids() -> list[str]:
    made = [perdure.uuid4() for _ in range(3)]
    assert all(made_one.version == 4 for made_one in made)
    return [str(made_one) for made_one in made]


def test_uuids_are_stable_and_distinct() -> None:
    driver = Driver(ids)
    assert len(set(driver.result())) == 3
    assert driver.replay().result() == driver.result()
    driver.check_replays()

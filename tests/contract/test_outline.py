"""The outline of durable calls: what it sees, what it does not care about, and how two of them are told apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.code import workflow_of

from perdure.contract.outline import AROUND, CHARACTERS_MAX, CUT, Place, changes, outline, places, told_changes
from perdure.contract.patches import patch_for
from perdure.runtime.contracts import topology

AGENT = """
@step
async def plan(claim: str) -> list[str]: ...

@step
async def search(query: str, limit: int = 3) -> str: ...

@effect(downstream=perdure.Idempotent())
async def pay(claim: str) -> str: ...

@pay.key
def _(claim: str) -> str: return claim

async def look_up(queries):
    return await asyncio.gather(*(search(query) for query in queries))

@workflow
async def agent(claim: str) -> str:
    queries = await plan(claim)
    hits = await look_up(queries)
    if not hits:
        await perdure.sleep(days=2)
    try:
        receipt = await perdure.with_approval(pay.call(claim), by={"ann"})
    finally:
        await perdure.receive("closed")
    return receipt
"""

OUTLINE = """\
step plan(claim: str) -> list[str]
parallel
 loop
  step search(query: str, limit: int = ...) -> str
if
 sleep days=2
effect pay(claim: str) -> str
approval
finally
 receive closed"""


def test_the_outline_of_a_workflow(tmp_path: Path) -> None:
    assert topology(workflow_of(tmp_path, AGENT).spec) == OUTLINE


SAME = {
    "a comment": ("    queries = await plan(claim)", "    # what to look for\n    queries = await plan(claim)"),
    "an empty line": ("    hits =", "\n\n    hits ="),
    "a renamed local variable": ("receipt", "answer"),
    "a formatter": (
        'perdure.with_approval(pay.call(claim), by={"ann"})',
        "perdure.with_approval(\n  pay.call(\n    claim,\n  ),\n  by={'ann'},\n)",
    ),
    "a renamed helper": ("look_up", "search_all"),
    "a docstring": ("    queries = await", '    """Handles a claim."""\n    queries = await'),
    "a log line": ("    hits =", "    perdure.logger(__name__).info('planned')\n    hits ="),
    "the body of a step": ("-> list[str]: ...", "-> list[str]:\n    return [claim]"),
    "an option of a step": ("@step\nasync def plan", "@step(timeout=3)\nasync def plan"),
    "another default": ("limit: int = 3", "limit: int = 5"),
    "a local function": (
        "    hits = await look_up(queries)",
        "    async def find():\n        return await look_up(queries)\n    hits = await find()",
    ),
    "another workflow": (
        "@workflow\n", "@workflow\nasync def other() -> None:\n    await perdure.sleep(1)\n\n@workflow\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", SAME)
def test_what_the_outline_does_not_care_about(tmp_path: Path, edit: str) -> None:
    before, after = SAME[edit]
    edited = AGENT.replace(before, after)
    assert edited != AGENT
    assert topology(workflow_of(tmp_path, edited).spec) == OUTLINE


OTHERS = {
    "added": (
        "    try:", "    await plan(claim)\n    try:",
        "step plan appeared, after sleep days=2",
    ),
    "removed": (
        "    queries = await plan(claim)", "    queries = [claim]",
        "step plan vanished; it stood first",
    ),
    "moved": (
        "    hits = await look_up(queries)\n", "",
        "step search vanished; it stood after step plan, in parallel > loop",
    ),
    "in another block": (
        "    try:\n        receipt =", "    for _ in claim:\n        await plan(claim)\n    try:\n        receipt =",
        "step plan appeared, after sleep days=2, in loop",
    ),
    "another schema": (
        "async def plan(claim: str) ->", "async def plan(claim: str, year: int) ->",
        "step plan has another schema: (claim: str) -> list[str] then, (claim: str, year: int) -> list[str] now",
    ),
    "another length": (
        "days=2", "days=3",
        "sleep days=3 appeared, after step search, in if; sleep days=2 vanished; it stood after step search, in if",
    ),
    "parallel no more": (
        "asyncio.gather(*(search(query) for query in queries))", "search(queries[0])",
        "step search moved: after step plan, in parallel > loop then, after step plan now",
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", OTHERS)
def test_differences_are_told_in_words(tmp_path: Path, edit: str) -> None:
    before, after, told = OTHERS[edit]
    now = topology(workflow_of(tmp_path, AGENT.replace(before, after)).spec)
    assert told_changes(OUTLINE, now) == told


def test_a_source_that_is_not_to_be_had_has_no_outline_and_starts_all_the_same(tmp_path: Path) -> None:
    agent = workflow_of(tmp_path, AGENT)
    Path(agent.spec.function.__code__.co_filename).unlink()
    assert topology(agent.spec) == ""


def test_a_source_that_was_edited_after_it_was_loaded_is_not_taken_for_it(tmp_path: Path) -> None:
    agent = workflow_of(tmp_path, AGENT)
    path = Path(agent.spec.function.__code__.co_filename)
    path.write_text("\n\n\n" + path.read_text())
    assert topology(agent.spec) == ""


def test_functions_that_call_one_another_for_ever_have_an_end(tmp_path: Path) -> None:
    agent = workflow_of(
        tmp_path,
        """
        @step
        async def ask() -> int: ...

        async def one():
            await ask()
            await other()

        async def other():
            await one()

        @workflow
        async def agent() -> None:
            await one()
        """,
    )
    assert topology(agent.spec) == "step ask() -> int"


def test_a_long_outline_is_cut() -> None:
    text = outline([Place("step", f"step_number_{n}") for n in range(1_000)])
    assert len(text) <= CHARACTERS_MAX + len(CUT)
    assert text.endswith(CUT)


NAMES = st.text("abcdef_", min_size=1, max_size=8)
PLACES = st.lists(
    st.builds(
        Place, st.sampled_from(["step", "effect", "child"]), NAMES,
        st.sampled_from(["", "()", "(a: int) -> str"]), st.lists(st.sampled_from(AROUND), max_size=3).map(tuple),
    ),
    max_size=20,
)  # fmt: skip


@given(PLACES)
def test_an_outline_can_be_read_again(some: list[Place]) -> None:
    assert places(outline(some)) == some


@given(PLACES, PLACES)
def test_what_appeared_and_vanished_makes_the_one_of_the_other(one: list[Place], other: list[Place]) -> None:
    found = changes(outline(one), outline(other))
    balance: dict[str, int] = {}
    for place in one:
        balance[place.label] = balance.get(place.label, 0) - 1
    for place in other:
        balance[place.label] = balance.get(place.label, 0) + 1
    for change in found:
        balance[change.place.label] += {"appeared": -1, "vanished": 1}.get(change.what, 0)
    assert not any(balance.values())
    assert bool(found) == (one != other)


PATCHES = {
    (
        "step a",
        "step b",
        "step a",
        "step b\nstep a",
    ): 'if perdure.patched("add step b"): around the call of b, at app.py:3',
    (
        "step a",
        "",
        "step a",
        "",
    ): 'if not perdure.patched("remove step a"): around the call of a, put back where it stood',
    ("step a", "step b", "step a\nstep b", "step b\nstep a"): (
        'if perdure.patched("step b before step a"): ... else: the old order, at app.py:3'
    ),
    ("step a", "step b", "step a", "step b"): (
        'if perdure.patched("step b instead of step a"): ... else: the old call, at app.py:3'
    ),
    ("step a", "step a", "step a", "step a"): "",
    ("step a", "step b", "if\n step a\nelse\n step b", "if\n step a\nelse\n step b"): "",
    ("sleep", "sleep", "sleep days=2", "sleep days=2"): "",
    ("step a", "step b", "step a", "step a"): (
        'if perdure.patched("step b before step a"): ... else: the old order, at app.py:3'
    ),
    ("step a", "step b", "", "step b"): (
        'if perdure.patched("step b before step a"): ... else: the old order, at app.py:3'
    ),
}
"""Recorded, asked, and both outlines; where those say that nothing has changed there is no line."""


@pytest.mark.parametrize("case", PATCHES)
def test_the_line_to_add(case: tuple[str, str, str, str]) -> None:
    recorded, asked, then, now = case
    assert patch_for((recorded, asked, "app.py:3"), then, now) == PATCHES[case]

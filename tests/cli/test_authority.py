"""Who may decide what, on the command line: judged at once where it is known, and else said to be judged later."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from tests.cli.terminal import Terminal, one_line
from tests.cli.test_approvals import drain, entry

APP = '''
    """A run that asks for an approval, one that is over its budget, one that wants a person."""

    import perdure
    from perdure import Authority, Budget, NeedsPerson, Runtime, step, workflow

    AUTHORITY = Authority(
        {"ann": ["supervisor"], "bo": []}, may={"over_budget": {"supervisor"}, "needs_person": {"supervisor"}}
    )

    @step
    async def post(note: str) -> str:
        return note

    @step
    async def judge() -> str:
        raise NeedsPerson("is it so?")

    @workflow
    async def pays() -> str:
        return await perdure.with_approval(post.call("x"), by="supervisor")

    @workflow(budget=Budget(steps=1))
    async def posts() -> str:
        return await post("x") + await post("y")

    @workflow
    async def judges() -> str:
        return await judge()

    async def drain(*starts):
        async with Runtime(workflows=[pays, posts, judges], authority=AUTHORITY) as runtime:
            for id, call in starts:
                await runtime.start(call, id=id)
            await runtime.drain(max_seconds=20)
'''


@pytest.fixture
def desk(terminal: Terminal) -> Terminal:
    """Three runs that wait for people, and nobody who executes them."""
    (terminal.folder / "app.py").write_text(textwrap.dedent(APP))
    drain(terminal, '("r", pays.call()), ("b", posts.call()), ("j", judges.call())')
    return terminal


def decisions(desk: Terminal, by: str) -> list[list[str]]:
    """One of each kind."""
    it: dict[str, Any] = entry(desk, "r")["request"]
    return [
        ["approve", it["id"], "--hash", it["hash"], "--by", by, "--as", "supervisor"],
        ["raise-budget", "b", "--steps", "2", "--by", by],
        ["unblock", "j", "--value", '"yes"', "--by", by],
    ]


def configured(desk: Terminal, how: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    if how == "option":
        return ["--authority", "app.py:AUTHORITY"]
    if how == "environment":
        monkeypatch.setenv("PERDURE_AUTHORITY", "app.py:AUTHORITY")
    else:
        (desk.folder / "pyproject.toml").write_text('[tool.perdure]\nauthority = "app.py:AUTHORITY"\n')
    return []


@pytest.mark.parametrize("how", ["option", "environment", "pyproject"])
def test_who_may_not_is_told_at_once_and_nothing_is_sent(
    how: str, desk: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = configured(desk, how, monkeypatch)
    for decision in decisions(desk, "bo"):
        refused = desk.here("inbox", *decision, *more)
        assert refused.exit_code == 6, refused.stderr
        assert "bo is no supervisor" in one_line(refused) or "bo may not" in one_line(refused)
    assert not any(entry(desk, run)["pending"] for run in "rbj")
    for decision in decisions(desk, "ann"):
        told = desk.here("inbox", *decision, *more)
        assert (told.exit_code, told.stderr) == (0, "")
    drain(desk)
    for run in "rbj":
        assert '"status": "completed"' in desk.here("runs", "show", run, "--json").stdout


def test_where_nobody_is_known_who_may_it_says_who_judges(desk: Terminal) -> None:
    for decision in decisions(desk, "bo"):
        told = desk.here("inbox", *decision)
        assert told.exit_code == 0
        assert "whether bo may decide that is judged by the worker of the run" in one_line(told)
    drain(desk)
    for run in "rbj":  # refused there, and what was asked stands
        assert not entry(desk, run)["pending"]
        assert "refused" in desk.here("runs", "show", run).stdout


@pytest.mark.parametrize(
    ("target", "says"),
    [("app.py:NO", "app.py has no NO"), ("app.py:perdure", "authority="), ("no.py:A", "there is no file no.py")],
)
def test_what_is_no_authority_is_said(target: str, says: str, desk: Terminal) -> None:
    refused = desk.here("inbox", *decisions(desk, "ann")[1], "--authority", target)
    assert refused.exit_code == 2
    assert says in one_line(refused)
    assert not entry(desk, "b")["pending"]

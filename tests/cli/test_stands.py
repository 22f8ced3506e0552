"""Which decisions would stand today, and what of a run that went back does not count any more: on the command line."""

from __future__ import annotations

import json
import textwrap

import pytest
from tests.cli.terminal import Terminal, until

APP = '''
    """Decides by a policy that stands in a file, and pays."""

    from pathlib import Path

    import perdure
    from perdure import Idempotent, effect, step, workflow

    def policy() -> int:
        return int(Path("policy").read_text())

    def note(what: str) -> None:
        with open("books", "a") as books:
            books.write(f"{what}\\n")

    @step(recovery="verify")
    async def decide(order: str) -> int:
        return 40 + policy()

    @decide.premise("policy")
    def _(order: str) -> int:
        return policy()

    @step
    async def think(about: str) -> str:
        return about

    @effect(downstream=Idempotent())
    async def pay(order: str, cents: int) -> str:
        note(f"paid {cents} for {order}")
        return f"paid {cents}"

    @pay.key
    def _(order: str, cents: int) -> str:
        return f"{order}:{cents}"

    @pay.undo
    async def _(receipt: str, order: str, cents: int) -> None:
        note(f"took {cents} back from {order}")

    @workflow
    async def pays(order: str, cents: int) -> str:
        receipt = await pay(order, cents)
        await perdure.receive("on")
        return receipt

    @workflow
    async def hands_on(order: str) -> str:
        cents = await decide(order)
        child = await perdure.start(pays.call(order, cents))
        await perdure.receive("go")
        await pay(f"{order}-2", cents)
        return await child.result()

    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        await think("tea")
        await pay(order, cents)
        await perdure.receive("go")
        return await pay(f"{order}-2", cents)
'''


@pytest.fixture
def waits(terminal: Terminal) -> Terminal:
    """A run that has decided, and waits for a message."""
    (terminal.folder / "app.py").write_text(textwrap.dedent(APP))
    (terminal.folder / "policy").write_text("1")
    with terminal.begun("run", "app.py:agent", '"o"', "--id", "r"):
        until(lambda: "succeeded" in terminal.here("runs", "show", "r").stdout, "it has paid once")
    return terminal


def stands(terminal: Terminal) -> str:
    return " ".join(terminal.here("runs", "stands", "r", "--app", "app.py").stdout.split())


def test_it_says_what_would_stand_today_and_changes_nothing(waits: Terminal) -> None:
    before = waits.here("runs", "show", "r", "--json").stdout
    assert "0/decide#1 yes" in stands(waits)
    (waits.folder / "policy").write_text("2")
    text = stands(waits)
    assert "0/decide#1 no 0/decide#1 rests on policy 1, which is 2 now recompute" in text
    assert "1 result had again; relied on by 0/pay#1; owed: 0/pay#1" in text
    (found,) = json.loads(waits.here("runs", "stands", "r", "--app", "app.py", "--json").stdout)
    assert (found["stands"], found["then"], found["now"]) == (False, {"policy": 1}, {"policy": 2})
    (waits.folder / "policy").unlink()
    assert "0/decide#1 cannot be told cannot be read: FileNotFoundError" in stands(waits)
    assert waits.here("runs", "show", "r", "--json").stdout == before
    assert waits.here("runs", "stands", "r").exit_code == 2


def test_a_run_whose_process_was_killed_goes_back_to_what_stands(waits: Terminal) -> None:
    """`kill -9`, and the policy changes while nobody is there. What was paid on the old one is taken back."""
    (waits.folder / "policy").write_text("2")
    waits.here("runs", "send", "r", "go", "null")
    done = waits.run("run", "app.py:agent", '"o"', "--id", "r")
    assert done.stdout == "paid 42\n", done.stderr
    assert (waits.folder / "books").read_text().splitlines() == [
        "paid 41 for o", "paid 42 for o", "paid 42 for o-2", "took 41 back from o",
    ]  # fmt: skip
    shown = waits.here("runs", "show", "r").stdout
    assert "decisions checked (resumed): 0/decide#1 policy changed: recompute" in shown
    assert "superseded: succeeded" in shown
    assert "rewound to event 1: 0/decide#1 has another result now" in shown
    assert waits.here("store", "verify").exit_code == 0


def test_a_run_whose_process_was_killed_stops_the_child_that_it_does_not_want_any_more(terminal: Terminal) -> None:
    """Parent and child die together; the old child is stopped and taken back, and another one is started."""
    (terminal.folder / "app.py").write_text(textwrap.dedent(APP))
    (terminal.folder / "policy").write_text("1")
    with terminal.begun("run", "app.py:hands_on", '"o"', "--id", "r"):
        until(lambda: "succeeded" in terminal.here("runs", "show", "r/0.pays.1").stdout, "the child has paid")
    (terminal.folder / "policy").write_text("2")
    terminal.here("runs", "send", "r", "go", "null")
    with terminal.begun("run", "app.py:hands_on", '"o"', "--id", "r"):
        until(lambda: "succeeded" in terminal.here("runs", "show", "r/0.pays.1.2").stdout, "another child has paid")
    terminal.here("runs", "send", "r/0.pays.1.2", "on", "null")
    done = terminal.run("run", "app.py:hands_on", '"o"', "--id", "r")
    assert done.stdout == "paid 42\n", done.stderr
    books = (terminal.folder / "books").read_text().splitlines()
    assert sorted(books) == ["paid 41 for o", "paid 42 for o", "paid 42 for o-2", "took 41 back from o"]
    assert books[-1] == "took 41 back from o"
    assert "cancelled" in terminal.here("runs", "show", "r/0.pays.1").stdout
    assert "owes what child r/0.pays.1 has done" in terminal.here("runs", "show", "r").stdout
    assert terminal.here("store", "verify").exit_code == 0

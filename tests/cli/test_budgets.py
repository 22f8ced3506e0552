"""Budgets on the command line: what is over one is shown, raised and let fail; what was used is added up."""

from __future__ import annotations

import json
import textwrap

import pytest
from tests.cli.terminal import Terminal, one_line

APP = '''
    """Thinks as often as it is told."""

    import perdure
    from perdure import Budget, Usage, step, workflow

    @step(uses=Usage(tokens=40, cost="0.04"))
    async def think(n: int) -> int:
        perdure.used(model="small", input_tokens=20, output_tokens=10, cost="0.03")
        return n

    @workflow(budget=Budget(tokens=90, cost=1))
    async def thinks(times: int) -> int:
        return sum([await think(n) for n in range(times)])
'''


@pytest.fixture
def over(terminal: Terminal) -> Terminal:
    """A run that is over its budget."""
    (terminal.folder / "app.py").write_text(textwrap.dedent(APP))
    assert terminal.here("run", "app.py:thinks", "3", "--id", "r").exit_code == 3
    return terminal


def test_the_inbox_shows_it_and_a_person_raises_it(over: Terminal) -> None:
    text = over.here("inbox", "list").stdout
    for line in (
        "r: over_budget in 0/think#3",
        "the run's budget is 90 tokens: 60 tokens used, and this call wants 40 tokens",
        "    raise-budget  the budget gets a new limit, and the call is made\n",
        "    --fail        the call is not made; the workflow sees perdure.OverBudget\n",
    ):
        assert line in " ".join(text.split("\n    ")) or line in text, text
    (entry,) = json.loads(over.here("inbox", "list", "--json").stdout)
    assert entry["budget"] == {
        "account": "", "unit": "tokens", "limit": "90", "used": "60", "reserved": "0", "wanted": "40", "since": None,
    }  # fmt: skip
    told = over.here("inbox", "raise-budget", "r", "--tokens", "100", "--by", "ann", "--reason", "nearly there")
    assert told.stdout == "told run r: budget raised to tokens 100, by ann\n", told.stderr
    assert over.here("run", "app.py:thinks", "3", "--id", "r").stdout == "3\n"
    assert "budget raised to 100 tokens by ann" in over.here("runs", "show", "r").stdout


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--tokens", "90", "--by", "ann"), "is 90 tokens already"),
        (("--by", "ann"), "give a new limit"),
        (("--tokens", "100"), "say who decides: --by NAME"),
        (("--steps", "5", "--by", "ann"), "does not limit steps; it limits 90 tokens, a cost of 1"),
        (("--wall", "soon", "--by", "ann"), "a duration is a number of seconds"),
        (("--cost", "much", "--by", "ann"), "an amount of money"),
        (("--tokens", "100", "--by", "ann", "--budget", "tag x=y"), "no budget of which it wants more 'tag x=y'"),
    ],
)
def test_what_cannot_be_raised_is_one_line(over: Terminal, given: tuple[str, ...], says: str) -> None:
    answer = over.here("inbox", "raise-budget", "r", *given)
    assert answer.exit_code != 0
    assert says in one_line(answer)


def test_costs_are_added_up(over: Terminal) -> None:
    (by_run,) = json.loads(over.here("store", "cost", "--json").stdout)
    assert by_run == {
        "name": "r", "calls": 2, "attempts": 2, "tokens": 60, "cost": "0.06", "saved_calls": 0, "saved_tokens": 0,
        "saved_cost": "0",
    }  # fmt: skip
    assert "small" in over.here("store", "cost", "--by", "model").stdout
    assert json.loads(over.here("store", "cost", "--workflow", "other", "--json").stdout) == []
    assert "there is no run 'q'" in one_line(over.here("store", "cost", "--run", "q"))

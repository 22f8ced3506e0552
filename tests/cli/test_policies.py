"""Policies on the command line: tried before they are in force, given to workers and runs, and what they denied."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest
from tests.cli.terminal import Terminal, one_line

APP = '''
    import perdure
    from perdure import Idempotent, effect, workflow

    @effect(downstream=Idempotent(), reversible=False)
    async def refund(order: str, cents: int) -> str:
        return f"refunded {cents}"

    @refund.key
    def _(order: str, cents: int) -> str:
        return order

    @workflow
    async def pays(order: str, cents: int) -> str:
        return await refund(order, cents)
'''
POLICY = """
name = "shop"
version = 3
[[rule]]
name = "bounds"
calls = "refund"
must = { cents = { "<=" = 5000 } }
scope = { order = "order" }
rate = "10 per hour"
then = "allow"
"""


def squeezed(text: str) -> str:
    """Without the breaks of lines and columns."""
    return " ".join(text.split())


@pytest.fixture
def desk(terminal: Terminal) -> Terminal:
    (terminal.folder / "app.py").write_text(textwrap.dedent(APP))
    (terminal.folder / "policy.toml").write_text(POLICY)
    return terminal


def pays(desk: Terminal, order: str, cents: int, *more: str) -> Any:
    return desk.here(
        "run", "app.py", order, str(cents), "--id", f"r-{order}-{cents}", "--policy", "policy.toml",
        "--scope", f"order={order}", *more,
    )  # fmt: skip


def test_a_policy_is_tried_on_calls(desk: Terminal) -> None:
    fine = 'refund({"order": "42", "cents": 50})'
    much = 'refund({"order": "42", "cents": 50000})'
    good = desk.here("code", "policy", "policy.toml", "--call", fine, "--scope", "order=42")
    assert good.exit_code == 0
    assert squeezed(good.stdout) == "refund: allow, policy shop version 3, rule 'bounds'; counts against 10 per hour"
    both = desk.here("code", "policy", "policy.toml", "--call", fine, "--call", much, "--scope", "order=42", "--json")
    assert both.exit_code == 1
    told = json.loads(both.stdout)
    assert (told["policy"], told["version"], told["rules"]) == ("shop", 3, ["bounds"])
    assert [each["verdict"] for each in told["calls"]] == ["allow", "refuse"]
    assert told["calls"][1]["why"] == "it must keep cents <= 5000, and has cents 50000"
    other = desk.here("code", "policy", "policy.toml", "--call", "wire()")
    assert (other.exit_code, "approve, policy default" in other.stdout) == (0, True)


def test_what_is_no_policy_or_no_call_is_one_clear_error(desk: Terminal) -> None:
    (desk.folder / "wrong.toml").write_text(POLICY + "thn = 1\n")
    for args, wanted in (
        (("wrong.toml",), "wrong.toml: rule 'bounds': there is no field 'thn'"),
        (("none.toml",), "none.toml: the policy cannot be read"),
        (("policy.toml", "--call", "refund"), "'refund' is no call"),
        (("policy.toml", "--call", "refund([1])"), "is no call"),
        (("policy.toml", "--scope", "order"), "--scope order: write it as NAME=VALUE"),
    ):
        said = desk.here("code", "policy", *args)
        assert said.exit_code != 0
        assert wanted in one_line(said)


def test_runs_are_held_to_a_policy_and_what_was_denied_is_shown_until_it_is_seen(desk: Terminal) -> None:
    assert "refunded 50" in pays(desk, "42", 50, "--goal", "make it right").stdout
    assert pays(desk, "42", 50000).exit_code == 1
    shown = desk.here("runs", "show", "r-42-50").stdout
    assert "pays version 1 started for 'make it right', scope: order 42" in squeezed(shown)
    assert "denied by policy shop version 3, rule 'bounds'" in squeezed(desk.here("runs", "show", "r-42-50000").stdout)
    listed = squeezed(desk.here("inbox", "list").stdout)
    assert "r-42-50000: denied in 0/refund#1" in listed
    assert '{"cents": 50000, "order": "42"}' in listed
    assert desk.here("inbox", "acknowledge", "r-42-50000", "--by", "ann").exit_code == 0
    assert desk.here("inbox", "list").stdout == ""
    assert desk.here("inbox", "acknowledge", "r-42-50000", "--by", "ann").exit_code != 0


def test_a_policy_is_tried_on_what_was_recorded(desk: Terminal) -> None:
    pays(desk, "42", 50)
    pays(desk, "43", 4000)
    (desk.folder / "policy.toml").write_text(POLICY.replace("5000", "3999"))
    said = desk.here("code", "policy", "policy.toml", "--recorded", "--json")
    assert said.exit_code == 1
    found = {each["run"]: each["verdict"] for each in json.loads(said.stdout)["calls"]}
    assert found == {"r-42-50": "allow", "r-43-4000": "refuse"}


def test_a_start_states_goal_and_scope(desk: Terminal) -> None:
    start = ("start", "app.py", "42", "50", "--id", "r", "--goal", "g", "--scope")
    assert desk.here(*start, "order=42").exit_code == 0
    assert desk.here(*start, "order=42").exit_code == 0
    other = desk.here(*start, "order=43")
    assert (other.exit_code != 0, "input or scope" in other.stderr) == (True, True)


def test_rates_are_counted_over_a_sequence_of_calls(desk: Terminal) -> None:
    small, large = 'refund({"order": "42", "cents": 50})', 'refund({"order": "42", "cents": 5001})'
    lines = ["# eleven within an hour", *(f"{n}m {small}" for n in range(10)), f"20m {large}", f"59m {small}",
             "", f"60m {small}", f"1.01h {small}"]  # fmt: skip
    (desk.folder / "calls.txt").write_text("\n".join(lines))
    said = desk.here("code", "policy", "policy.toml", "--scope", "order=42", "--sequence", "calls.txt", "--json")
    assert said.exit_code == 1
    calls = json.loads(said.stdout)["calls"]
    assert [each["verdict"] for each in calls] == [*["allow"] * 10, "refuse", "refuse", "allow", "refuse"]
    assert calls[11]["why"] == "its rate of 10 per hour is used up until 3600 s"
    told = desk.here("code", "policy", "policy.toml", "--scope", "order=42", "--sequence", "calls.txt")
    assert "refund at 3540 s: refuse, policy shop version 3, rule 'bounds': its rate of" in squeezed(told.stdout)


@pytest.mark.parametrize(
    ("text", "says"),
    [("x refund({})", "calls.txt, line 1: x: a duration is"), ("1s refund", "calls.txt, line 1: 'refund' is no call"),
     ("2s refund({})\n1s refund({})", "line 2: refund at 1 s: it comes after a call at 2 s")],
)  # fmt: skip
def test_a_sequence_that_is_none_is_said(text: str, says: str, desk: Terminal) -> None:
    (desk.folder / "calls.txt").write_text(text)
    said = desk.here("code", "policy", "policy.toml", "--sequence", "calls.txt")
    assert (said.exit_code, said.stdout) == (2, "")
    assert says in one_line(said)

"""`perdure runs fork`: a run that goes another way from an event of another one, and what people are asked of it."""

from __future__ import annotations

import json
import textwrap

import pytest
from tests.cli.terminal import Terminal, one_line, until
from tests.cli.test_effects import steady

APP = '''
    import perdure
    from perdure import NoGuarantee, effect, step, workflow

    @step
    async def outline(topic: str) -> str:
        return f"about {topic}"

    @effect(downstream=NoGuarantee(), risk="high")
    async def post(letter: str) -> str:
        with open("sent", "a") as sent:
            sent.write(letter + "\\n")
        return f"posted {letter}"

    @post.key
    def _(letter: str) -> str:
        return letter

    @workflow
    async def writes(topic: str) -> str:
        return await post(await outline(topic))
'''


@pytest.fixture
def office(terminal: Terminal) -> Terminal:
    """One run that has ended: run.started, step.completed, effect.started, effect.succeeded, run.completed."""
    (terminal.folder / "app.py").write_text(textwrap.dedent(APP))
    assert terminal.here("run", "app.py:writes", "tea", "--id", "r").exit_code == 0
    return terminal


def sent(office: Terminal) -> list[str]:
    return (office.folder / "sent").read_text().splitlines()


def test_a_fork_is_made_once_shown_and_goes_on_where_its_copy_ends(office: Terminal) -> None:
    made = office.here("runs", "fork", "r", "--at", "3", "--id", "f", "--by", "ann", "--reason", "what if")
    assert (made.exit_code, made.stdout) == (0, "run f is forked from run r after event 3\n")
    again = office.here("runs", "fork", "r", "--at", "3", "--id", "f", "--json")
    assert json.loads(again.stdout) == {"run": "f", "forked_from": "r", "forked_at": 3}
    listed = office.here("runs", "list").stdout
    assert "FORKED FROM" in listed.splitlines()[0]
    assert "r after event 3" in listed
    shown = office.here("runs", "show", "f").stdout
    assert "forked from run r after event 3" in shown
    told = office.here("runs", "show", "f", "--all").stdout
    assert "ann" in told
    assert "what if" in told
    with office.begun("worker", "app.py"):
        until(lambda: "version 1, completed" in office.here("runs", "show", "f").stdout, "the fork goes on by itself")
    assert sent(office) == ["about tea"], "what stands in the copy is not done again"


@pytest.mark.parametrize(
    ("option", "told", "letters"),
    [
        ("--reuse", "nothing is sent; the original's result stands for the call's, if it has succeeded", 1),
        ("--retry", "it is done all the same, a second time, under an operation id of its own", 2),
    ],
)
def test_what_the_original_did_is_in_the_inbox_before_it_is_done_again(
    office: Terminal, option: str, told: str, letters: int
) -> None:
    assert office.here("runs", "fork", "r", "--at", "1", "--id", "f").exit_code == 0
    with office.begun("worker", "app.py"):
        until(lambda: "done_by_original" in office.here("inbox", "list").stdout, "a person is asked")
        text = " ".join(steady(office.here("inbox", "list").stdout).split())
        assert text.startswith("f: done_by_original in 0/post#1, since 2026-01-01 00:00:00 UTC")
        assert "was done by the original, run r, with the same arguments: 0/post#1, key 'about tea'" in text
        assert "risk high" in text
        for choice in ("--retry", "--reuse", "--fail"):
            assert f" {choice} " in text
        (entry,) = json.loads(office.here("inbox", "list", "--json").stdout)
        assert (entry["risk"], entry["operation"]) == ("high", None)
        refused = office.here("inbox", "settle", "f", "--failed")
        assert refused.exit_code == 6
        assert "perdure inbox unblock" in one_line(refused)
        decided = office.here("inbox", "unblock", "f", option, "--by", "ann")
        assert " ".join(decided.stdout.split()) == f"told run f, 0/post#1: {option[2:]}; {told}"
        until(lambda: "version 1, completed" in office.here("runs", "show", "f").stdout, "the fork goes on")
    assert sent(office) == ["about tea"] * letters


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nobody"], 5, "there is no run 'nobody'"),
        (["r", "--at", "2"], 6, "effect 0/post#1 is under way; the nearest events where it can: 1 (before it), 3"),
        (["r", "--at", "4"], 6, "the run has ended there"),
        (["r", "--at", "99"], 6, "has no event 99: it has 0 to 4"),
        (["r", "--id", "r"], 6, "belongs to writes"),
        (["r", "--at", "first"], 2, "Invalid value for '--at'"),
        (["r", "--at", "-1"], 2, "Invalid value for '--at'"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_leaves_nothing(
    office: Terminal, words: list[str], code: int, told: str
) -> None:
    refused = office.here("runs", "fork", *words)
    assert refused.exit_code == code, refused.stderr
    assert told in refused.stderr
    assert refused.stdout == ""
    assert [line.split()[0] for line in office.here("runs", "list").stdout.splitlines()[1:]] == ["r"]

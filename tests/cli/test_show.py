"""What `runs`, `inbox` and `store` print: readable for people, JSON for programs, whatever state a run is in."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from tests.cli.terminal import Terminal, until

import perdure
from perdure import NeedsPerson, Retry, Runtime, step, workflow
from perdure.api.workflow import AnyWorkflow
from perdure.cli.options import seconds_from
from perdure.cli.show import length, safe, short

HOSTILE = "\x1b[31mred\x07\x9b2J\r\n[bold]not rich[/bold]"


@step(retry=Retry(max_attempts=3, first_delay=0.01, jitter=0))
async def flaky(number: int) -> int:
    if perdure.attempt().number < 3:
        raise perdure.Retryable("not yet")
    perdure.heartbeat({"half": True})
    return number


@step
async def wise() -> int:
    raise NeedsPerson("hard")


@step(timeout=0.01, retry=Retry(max_attempts=1))
async def slow() -> None:
    await asyncio.sleep(60)


@workflow
async def completes() -> dict[str, Any]:
    perdure.patched("newer")
    numbers = await asyncio.gather(flaky(1), flaky(2))
    await perdure.sleep(0.01)
    return {"numbers": list(numbers), "big": "x" * 3_000, "hostile": HOSTILE}


@workflow
async def fails() -> None:
    raise ValueError(HOSTILE)


@workflow
async def times_out() -> None:
    await slow()


@workflow
async def fails_in_a_child() -> None:
    await fails()


@workflow
async def is_cancelled() -> None:
    await perdure.receive("never")


@workflow
async def is_parked() -> int:
    return await wise()


@workflow
async def diverged() -> None:
    await asyncio.Event().wait()


@workflow
async def has_chapters(number: int) -> int:
    await flaky(number)
    if number < 3:
        perdure.continue_as_new(number + 1)
    return number


@workflow
async def waits() -> None:
    await asyncio.gather(perdure.sleep(days=2), perdure.receive("reply"))


@workflow
async def is_paused() -> None:
    await perdure.receive("never")


@workflow
async def with_a_section() -> str:
    result: str = await perdure.section("crew").run(hosted)
    return result


def hosted() -> str:
    return "hosted"


ALL: list[AnyWorkflow] = [
    completes, fails, times_out, fails_in_a_child, is_cancelled, is_parked, diverged, has_chapters, waits, is_paused,
    with_a_section,
]  # fmt: skip

ENDS = {
    "completes": "completed",
    "fails": "failed",
    "times_out": "failed",
    "fails_in_a_child": "failed",
    "is_cancelled": "cancelled",
    "is_parked": "blocked",
    "diverged": "blocked",
    "has_chapters": "completed",
    "waits": "waiting",
    "is_paused": "waiting",
    "with_a_section": "completed",
}


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    """A store with runs that ended, or stand still, in every way."""
    asyncio.run(fill(str(terminal.folder / "perdure.db")))
    return terminal


async def fill(url: str) -> None:
    async with Runtime(url, workflows=ALL, evict_after=0) as runtime:
        for each in ALL:
            call = each.call(1) if each is has_chapters else each.call()
            await runtime.start(call, id=each.name, tags={"kind": "test"})
        await (await runtime.get("is_cancelled")).cancel("no need", force=True)
        await (await runtime.get("is_paused")).pause("ann")
        while {summary.id: str(summary.status) for summary in await runtime.list() if summary.id in ENDS} != ENDS:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("args", [[], ["--all"]])
def test_every_run_can_be_shown(shop: Terminal, args: list[str]) -> None:
    for run in ENDS:
        result = shop.here("runs", "show", run, *args)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.isascii() or not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.stdout)
        assert "\x1b" not in result.stdout
        head, *lines = result.stdout.splitlines()
        assert head.startswith(f"run {run}: {run} version 1, {ENDS[run]}")
        columns = ["TIME", "OFFSET", "CALL", "WHAT", "ATTEMPT", "TOOK", "VALUE"]
        assert lines[0].split() == (["EVENT", *columns] if args else columns)


def test_every_run_can_be_exported_as_json(shop: Terminal) -> None:
    for run, status in ENDS.items():
        told = json.loads(shop.here("runs", "show", run, "--json").stdout, parse_constant=pytest.fail)
        assert (told["run"]["id"], told["run"]["status"], told["run"]["tags"]) == (run, status, {"kind": "test"})
        assert [event["seq"] for event in told["events"]] == list(range(len(told["events"])))
        assert all(re.fullmatch("[0-9a-f]{64}", event["hash"]) for event in told["events"])
    assert (
        json.loads(shop.here("runs", "show", "completes", "--json").stdout)["events"][-1]["output"]["hostile"]
        == HOSTILE
    )


def told(shop: Terminal, run: str, *args: str) -> list[str]:
    """Offset, call, what, attempt, took and value of each moment, without its times."""
    lines = shop.here("runs", "show", run, *args).stdout.splitlines()[2:]
    lines = [re.sub(r"^(\d+ {2,})?.{19}  \+\d+(\.\d)? m?s\s+", "", line) for line in lines]
    return [re.sub(r"  +", " | ", re.sub(r"\b\d+(\.\d)? m?s\b", "_", line)) for line in lines]


def test_a_timeline_tells_attempts_and_results(shop: Terminal) -> None:
    lines = told(shop, "completes")
    assert lines[0] == "completes version 1 started | {}"
    assert "patched('newer') is True" in lines
    again = r"0\.1/flaky#1 \| failed, again at .* \| 1 \| _ \| Retryable at test_show\.py:\d+ in flaky: not yet"
    assert any(re.fullmatch(again, each) for each in lines)
    assert '0.1/flaky#1 | heartbeat | 3 | {"half":true}' in lines
    assert "0.1/flaky#1 | completed | 3 | _ | 1" in lines
    assert "time passed" in lines
    assert lines[-1].startswith("completed | {")
    assert lines[-1].endswith("…")


def test_a_timeline_tells_of_children_chapters_and_sections(shop: Terminal) -> None:
    child = told(shop, "fails_in_a_child")
    failed = r"0/fails#1 \| child \S+ failed \| _ \| ValueError at test_show\.py:\d+ in fails: .*"
    assert any(re.fullmatch(failed, each) for each in child)
    assert not any("started" in each for each in child[1:]), "what was answered is not told twice"
    assert any(re.match(r"0/fails#1 \| child \S+ started", each) for each in told(shop, "fails_in_a_child", "--all"))
    chapters = told(shop, "has_chapters")
    assert 'chapter 2 began | {"number":2}' in chapters
    assert len([each for each in chapters if each.startswith("0/flaky#1 | completed | 3")]) == 3
    assert '0/crew#1 | section ended | _ | "hosted"' in told(shop, "with_a_section")


def test_what_a_run_waits_for(shop: Terminal) -> None:
    assert re.fullmatch(
        r"waits for a timer in 0\.1/sleep, until \S+ \S+ UTC \(1 d 23 h\); message 'reply' in 0\.2/receive:reply",
        shop.here("runs", "show", "waits").stdout.splitlines()[-1],
    )
    waits = json.loads(shop.here("runs", "show", "waits", "--json").stdout)["waits"]
    assert [each["what"] for each in waits] == ["a timer", "message 'reply'"]
    for run, last in (("is_paused", "waits for somebody who resumes it"),):
        assert shop.here("runs", "show", run).stdout.splitlines()[-1] == last


def test_lists(shop: Terminal) -> None:
    found = json.loads(shop.here("runs", "list", "--status", "failed", "--status", "blocked", "--json").stdout)
    assert {each["id"] for each in found} >= {"fails", "times_out", "fails_in_a_child", "is_parked", "diverged"}
    assert {each["status"] for each in found} == {"failed", "blocked"}
    assert len(json.loads(shop.here("runs", "list", "--limit", "2", "--json").stdout)) == 2
    assert json.loads(shop.here("runs", "list", "--tag", "kind=other", "--json").stdout) == []
    nothing = shop.here("runs", "list", "--workflow", "other")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert re.fullmatch(r"perdure: there is no run of a workflow 'other'; near: .*fails.*\nno runs\n", nothing.stderr)
    inbox = json.loads(shop.here("inbox", "list", "--json").stdout)
    assert {(each["run"], each["reason"]) for each in inbox} == {
        ("is_parked", "needs_person"),
        ("diverged", "deadlocked"),
    }


PARKED = """\
is_parked: needs_person in 0/wise#1, since 2026-01-01 00:00:00 UTC
    hard
    --retry       the call is tried again, its attempts counted anew
    --value JSON  what you give stands for the call's result
    --fail        the call fails; the workflow sees a StepError
"""


def test_the_inbox_says_what_each_choice_does(shop: Terminal) -> None:
    text = re.sub(r"since \S+ \S+ UTC", "since 2026-01-01 00:00:00 UTC", shop.here("inbox", "list").stdout)
    assert PARKED in text
    assert "diverged: deadlocked, since" in text
    assert text.endswith("\ndecide with: perdure inbox unblock RUN, and one of the choices\n")
    assert max(map(len, text.splitlines())) <= 80


def test_what_no_choice_gets_on_offers_none(terminal: Terminal) -> None:
    terminal.here("start", "app.py:greet", "--id", "g")
    with closing(sqlite3.connect(terminal.folder / "perdure.db")) as store, store:
        store.execute("UPDATE runs SET due_at = due_at - 120 * 1000000")
    listed = terminal.here("inbox", "list").stdout
    assert listed.startswith("g: no_worker_for_version, since")
    assert "unblock" not in listed


def test_why_a_run_is_blocked_stands_once_and_below_the_table(shop: Terminal) -> None:
    text = shop.here("runs", "show", "diverged").stdout
    table, _, below = text.partition("\n\n")
    assert table.splitlines()[-1].rstrip().endswith("blocked as deadlocked")
    assert below.startswith("diverged: deadlocked, since")
    assert "test_show.py:" in below
    assert max(map(len, below.splitlines())) <= 80
    assert "no more of its code runs" in below


def test_a_message_that_nobody_waits_for_is_sent_and_remarked_on(shop: Terminal) -> None:
    assert shop.here("runs", "send", "waits", "reply", "yes").stderr == ""
    result = shop.here("runs", "send", "waits", "repyl", "yes")
    assert (result.exit_code, result.stdout) == (0, "sent repyl to run waits\n")
    assert result.stderr == "perdure: run waits does not wait for 'repyl' now, but for 'reply'\n"


def test_what_was_done_as_json(shop: Terminal) -> None:
    def told(*args: str) -> Any:
        return json.loads(shop.here(*args, "--json").stdout)

    assert told("runs", "send", "waits", "reply") == {"run": "waits", "sent": "reply"}
    assert told("runs", "pause", "waits") == {"run": "waits", "asked": "pause"}
    assert told("runs", "resume", "waits") == {"run": "waits", "asked": "resume"}
    assert told("runs", "cancel", "waits") == {"run": "waits", "cancel": "requested"}
    assert told("runs", "cancel", "fails") == {"run": "fails", "cancel": "failed"}
    assert told("inbox", "unblock", "diverged", "--fail") == {"run": "diverged", "call": None, "choice": "fail"}
    assert told("store", "prune", "--older-than", "1d") == {"pruned": 0}
    assert told("store", "stats")["runs_blocked"] == 2


def test_the_store_is_sound_after_all_that(shop: Terminal) -> None:
    result = shop.here("store", "verify")
    assert (result.exit_code, result.stdout.endswith("all as it was written\n")) == (0, True), result.stdout


def test_lint_finds_and_counts(terminal: Terminal) -> None:
    (terminal.folder / "bad.py").write_text(
        "import time\nfrom perdure import workflow\n@workflow\nasync def bad() -> float:\n    return time.time()\n"
    )
    result = terminal.here("code", "lint", "bad.py")
    assert result.exit_code == 1
    assert result.stdout.startswith("bad.py:5:12: error clock")
    assert result.stderr == "perdure: 1 error\n"
    (finding,) = json.loads(terminal.here("code", "lint", "bad.py", "--json").stdout)
    assert (finding["line"], finding["rule"], finding["function"]) == (5, "clock", "bad")
    (terminal.folder / "bad.py").write_text("x = 1\n")
    assert terminal.here("code", "lint", ".").exit_code == 0


def test_a_run_that_no_live_worker_holds(terminal: Terminal) -> None:
    with terminal.begun("worker", "app.py") as worker:
        worker.says("worker serves")
        terminal.here("start", "app.py:count", "6", "--id", "c")
        until(lambda: "3" in terminal.notes, "step 3")
        assert terminal.here("runs", "show", "c").stdout.splitlines()[0] == "run c: count version 3, running"
        worker.send(signal.SIGKILL)
        worker.ends()
        text = terminal.here("runs", "show", "c").stdout
        assert text.splitlines()[0] == "run c: count version 3, running (no live worker)"
        assert re.search(r"^waits for a worker, since \S+ is dead", text, re.MULTILINE)
        assert "running (no live worker)" in terminal.here("runs", "list").stdout
    with terminal.begun("worker", "app.py") as worker:
        worker.says("worker serves")
        until(lambda: terminal.notes.count("3") == 2, "step 3 again")
        worker.send(signal.SIGTERM)
        worker.ends()
    text = terminal.here("runs", "show", "c").stdout
    assert text.splitlines()[0] == "run c: count version 3, running (no live worker)"
    assert re.search(r"^waits for a worker$|^waits for a worker;", text, re.MULTILINE)


# ── words ───────────────────────────────────────────────────────────────────────────────────


def test_nothing_reaches_the_terminal_that_it_would_obey() -> None:
    assert safe(HOSTILE) == "\\x1b[31mred\\x07\\x9b2J [bold]not rich[/bold]"
    assert safe("ünlaut · ✓") == "ünlaut · ✓"
    assert short("x" * 500) == "x" * 199 + "…"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("10 m", 600), ("1.5h", 5400), ("30d", 2592000), ("2w", 1209600)]
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_from(text, option="--x") == seconds


LENGTHS = {0: "0 ms", 0.0125: "12 ms", 59.94: "59.9 s", 60: "1 m 0 s", 86_399: "23 h 59 m", 1e6: "11 d 13 h"}


@pytest.mark.parametrize(("seconds", "text"), LENGTHS.items())
def test_lengths(seconds: float, text: str) -> None:
    assert length(seconds) == text

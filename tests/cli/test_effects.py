"""Effects on the command line: what is in doubt is shown, settled, listed, and its phases are told with times."""

from __future__ import annotations

import json
import re
import signal
import textwrap
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from tests.cli.terminal import Begun, Terminal, one_line, until

APP = '''
    """The post takes letters, and the answer is lost if there is a file called `storm`."""

    import pathlib
    import perdure
    from perdure import CanLookUp, Found, NoGuarantee, NotFound, Operation, Unsure, effect, workflow

    @effect(downstream=NoGuarantee())
    async def post(letter: str, pages: int) -> dict[str, int]:
        with open("sent", "a") as sent:
            sent.write(perdure.operation().id + "\\n")
        if pathlib.Path("storm").exists():
            raise ConnectionResetError("the connection went away")
        perdure.operation().reference = f"post-{letter}"
        return {letter: pages}

    @post.key
    def _(letter: str, pages: int) -> str:
        return letter

    @effect(downstream=CanLookUp(settle_after=0))
    async def pay(order: str) -> str:
        raise ConnectionResetError("the connection went away")

    @pay.key
    def _(order: str) -> str:
        return order

    @pay.lookup
    async def _(op: Operation) -> Found[str] | NotFound | Unsure:
        return Found("receipt", "pay-1")

    @workflow
    async def writes(letter: str) -> dict[str, int]:
        return await post(letter, 3)

    @workflow
    async def pays() -> str:
        return await pay("o")

    @workflow
    async def in_chapters(left: int) -> str:
        receipt = await pay(f"o-{left}")
        if left:
            perdure.continue_as_new(left - 1)
        return receipt
'''


@pytest.fixture
def office(terminal: Terminal) -> Terminal:
    (terminal.folder / "app.py").write_text(textwrap.dedent(APP))
    return terminal


@pytest.fixture
def storm(office: Terminal) -> Terminal:
    """One run whose effect is in doubt."""
    (office.folder / "storm").touch()
    assert office.here("run", "app.py:writes", "a", "--id", "r").exit_code == 3
    return office


def steady(text: str) -> str:
    """The text without what is different every time."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-01-01 00:00:00", text)
    return re.sub(r"\b[0-9a-f]{32}\b", "ID", text)


def test_the_inbox_shows_what_was_sent_and_what_each_choice_does(storm: Terminal) -> None:
    text = steady(storm.here("inbox", "list").stdout)
    assert text.startswith("r: unknown_effect in 0/post#1, since 2026-01-01 00:00:00 UTC\n")
    for line in (
        "    operation     ID\n",
        "    effect        post, key 'a' (no guarantee, risk low)\n",
        '    sent          {"letter": "a", "pages": 3}\n',
        "    when          2026-01-01 00:00:00 UTC, attempt 1\n",
        "    --succeeded   it happened: what you give is its result,",
        "    --failed      it did not happen: the call fails,",
        "    --retry       it did not happen, and is sent again\n",
    ):
        assert line in text, text
    assert text.endswith("\n\nof an effect say what became of it: perdure inbox settle RUN, and one of the choices\n")
    assert "inbox unblock" not in text, "which would be refused"
    (entry,) = json.loads(storm.here("inbox", "list", "--json").stdout)
    assert (entry["operation"]["status"], entry["sent"]) == ("unknown", {"letter": "a", "pages": 3})


def test_a_person_settles_and_the_run_goes_on(storm: Terminal) -> None:
    (storm.folder / "answer.json").write_text('{"a": 3}')
    told = storm.here(
        "inbox", "settle", "r", "--succeeded", "--value", "@answer.json", "--reference", "post-9", "--by", "ann",
        "--reason", "the post office has it",
    )  # fmt: skip
    assert told.exit_code == 0, told.stderr
    assert told.stdout.startswith("told run r: succeeded; it happened: what you give is its result")
    assert "decided, and not read by a worker yet: settle --succeeded of 0/post#1 by ann" in storm.here(
        "inbox", "list"
    ).stdout.replace("\n    ", " ")
    assert storm.here("run", "app.py:writes", "a", "--id", "r").stdout == '{"a": 3}\n'
    assert len((storm.folder / "sent").read_text().split()) == 1
    (row,) = json.loads(storm.here("store", "effects", "--json").stdout)
    assert (row["status"], row["reference"], row["note"]) == (
        "succeeded", "post-9", "settled by ann: the post office has it",
    )  # fmt: skip
    shown = storm.here("runs", "show", "r").stdout
    for words in ("settled: succeeded by ann", "the post office has it", "succeeded, says a person"):
        assert words in shown, shown


REFUSED = {
    "nothing said": ("inbox settle r", 2, "say one thing: --succeeded (with --value, its result), --failed or --retry"),
    "two things said": ("inbox settle r --failed --retry", 2, "say one thing"),
    "a result of a failure": ("inbox settle r --failed --value 1", 2, "value= and reference= belong to what has succ"),
    "another result": ("inbox settle r --succeeded --value 5 --app app.py", 2, "5 was recorded where dict[str, int]"),
    "no result": ("inbox settle r --succeeded --app app.py", 2, "null was recorded where dict[str, int] is declared"),
    "no such run": ("inbox settle nobody --failed", 5, "there is no run 'nobody'"),
    "no such operation": ("inbox settle r --failed --operation 12", 5, "there is no operation of run r '12'; near: "),
    "no such call": ("inbox settle r --failed --call 0/x#1", 6, "0/x#1 of run r is no effect in doubt; in doubt is 0/"),
    "an unblock": ("inbox unblock r --retry", 6, "0/post#1 of run r is an effect that may have happened: find out, th"),
    "an end by force": ("runs cancel r --force", 6, "perdure inbox settle r"),
}


@pytest.mark.parametrize(("command", "code", "says"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused(storm: Terminal, command: str, code: int, says: str) -> None:
    result = storm.here(*command.split())
    assert (result.exit_code, says in one_line(result)) == (code, True), result.stderr


# ── the ledger ──────────────────────────────────────────────────────────────────────────────


def test_effects_are_listed_and_filtered(storm: Terminal) -> None:
    (storm.folder / "storm").unlink()
    for letter in "bc":
        assert storm.here("run", "app.py:writes", letter, "--id", letter).exit_code == 0
    lines = steady(storm.here("store", "effects").stdout).splitlines()
    assert lines[0].split() == ["OPERATION", "STATE", "EFFECT", "KEY", "RUN", "CALL", "ATTEMPTS", "CHANGED",
        "REFERENCE", "KNOWN",
    ]  # fmt: skip
    assert [line.split()[:5] for line in lines[1:]] == [
        ["ID", "succeeded", "post", "c", "c"],
        ["ID", "succeeded", "post", "b", "b"],
        ["ID", "unknown", "post", "a", "r"],
    ]  # fmt: skip
    for narrowed, runs in {
        "--run b": ["b"], "--status unknown": ["r"], "--status unknown --status succeeded": ["c", "b", "r"],
        "--key c": ["c"], "--action pay": [], "--limit 1": ["c"],
    }.items():  # fmt: skip
        rows = json.loads(storm.here("store", "effects", "--json", *narrowed.split()).stdout)
        assert [row["run_id"] for row in rows] == runs, narrowed
    assert storm.here("store", "effects", "--action", "pay").stderr == "no effects\n"
    assert storm.here("store", "effects", "--run", "nobody").exit_code == 5


def test_a_run_shows_the_phases_of_its_effects(office: Terminal) -> None:
    assert office.here("run", "app.py:pays", "--id", "p").stdout == "receipt\n"
    shown = office.here("runs", "show", "p").stdout
    head, first = [line.split("  ") for line in shown.splitlines()[-2:]]
    assert [cell for cell in map(str.strip, head) if cell] == [
        "EFFECT", "OPERATION", "STATE", "PREPARE", "EXECUTE", "COMMIT", "CHECKPOINT", "ATTEMPTS", "REFERENCE"
    ]  # fmt: skip
    cells = [cell.strip() for cell in first if cell.strip()]
    assert (cells[0], cells[2], cells[-2:]) == ("0/pay#1", "succeeded", ["1", "pay-1"])
    times = cells[3:7]
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}", time) for time in times), times
    assert times == sorted(times)
    doubt = "in doubt: ConnectionResetError: the connection went away"
    for told in (doubt, "looked up, found", "succeeded, found by look-up"):
        assert told in shown
    (effect,) = json.loads(office.here("runs", "show", "p", "--json").stdout)["effects"]
    assert (effect["status"], effect["checkpoint"] >= effect["prepare"]) == ("succeeded", True)


def test_effects_in_the_same_place_of_two_chapters_are_two(office: Terminal) -> None:
    assert office.here("run", "app.py:in_chapters", "1", "--id", "c").stdout == "receipt\n"
    later, earlier = json.loads(office.here("store", "effects", "--run", "c", "--json").stdout)
    first, second = json.loads(office.here("runs", "show", "c", "--json").stdout)["effects"]
    assert [first["operation"], second["operation"]] == [earlier["id"], later["id"]]
    assert first["checkpoint"] < second["prepare"] <= second["execute"]


def test_of_an_effect_in_doubt_the_last_phases_are_open(storm: Terminal) -> None:
    (effect,) = json.loads(storm.here("runs", "show", "r", "--json").stdout)["effects"]
    assert (effect["commit"], effect["checkpoint"]) == (None, None)
    assert effect["execute"] is not None




# ── stopping a worker ───────────────────────────────────────────────────────────────────────

SLOW = '''

    @effect(downstream=NoGuarantee())
    async def slow(letter: str) -> str:
        import asyncio
        open("begun", "w").close()
        while not pathlib.Path("go").exists():
            await asyncio.sleep(0.01)
        return letter

    @slow.key
    def _(letter: str) -> str:
        return letter

    @workflow
    async def slowly() -> str:
        return await slow("a")
'''


@contextmanager
def sending(office: Terminal) -> Generator[Begun, None, None]:
    """A worker in the middle of an effect, which was told to stop three seconds ago."""
    (office.folder / "app.py").write_text(textwrap.dedent(APP) + textwrap.dedent(SLOW))
    with office.begun("worker", "app.py") as worker:
        worker.says("worker serves")
        office.here("start", "app.py:slowly", "--id", "s")
        until((office.folder / "begun").exists, "the effect is sent")
        worker.send(signal.SIGTERM)
        worker.says("waits up to 30 s for what is being sent: 0/slow#1 of run s")
        time.sleep(3)  # longer than it takes to stop when nothing is being sent
        assert worker.process.poll() is None
        yield worker


def test_a_worker_that_is_stopped_sees_through_what_it_has_sent(office: Terminal) -> None:
    with sending(office) as worker:
        office.go()
        assert worker.ends() in {0, 143}
    (row,) = json.loads(office.here("store", "effects", "--json").stdout)
    assert row["status"] == "succeeded"  # whether the run, too, has ended by then nobody promises


def test_a_second_signal_ends_it_at_once(office: Terminal) -> None:
    with sending(office) as worker:
        worker.send(signal.SIGTERM)
        begin = time.monotonic()
        worker.ends()
        assert time.monotonic() - begin < 10  # the rest of the grace would be more than twenty seconds
    (row,) = json.loads(office.here("store", "effects", "--json").stdout)
    assert row["status"] == "started"

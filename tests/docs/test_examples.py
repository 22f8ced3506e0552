"""Every example does what it says."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from tests.docs.conftest import ROOT

EXAMPLES = ROOT / "examples"

PRINTS = {
    "agent_with_tools.py": """
          the model reads 1 message(s)
          tool: multiply(17, 3)
          tool: add(17, 3)
          the model reads 3 message(s)
        started: I have multiply: 51 and add: 20.
        finished earlier: I have multiply: 51 and add: 20.
    """,
    "approval.py ask": "asked; nothing runs now",
    "approval.py show": "publish('an essay about tea')? Ada may say",
    "approval.py yes": """
        published: an essay about tea
        published
    """,
    "policy.py 400": "refunded 400 EUR of order 42",
    "policy.py 4000": """
        make order 42 right: refund 4000? policy shop version 3, rule 'large refunds' wants to know
        refunded 4000 EUR of order 42
    """,
    "policy.py 40000": """
        denied by rule 'bounds of a refund': it must keep cents <= 5000, and has cents 40000
        in the inbox: denied, {'cents': 40000, 'order': '42'}
    """,
    "minted_credentials.py": """
          minted: may read customer 7, attempt 1 of customer, for 60 s
          minted: may read customer 7, attempt 2 of customer, for 60 s
        {'name': 'Ada', 'read with': '‹secret:crm›'}
        answer to 'what does she want?', asked with ‹secret:model_key›
        in the store: []
    """,
    "standing_decisions.py": """
          the model decides: tea gets 400
          the model decides: milk gets 400
          the model decides: cake gets 400
        nobody is there
          the model decides: tea gets 640
        tea: 640 are refunded
        milk: 400 are refunded
          the model decides: cake gets 0
        cake: it was settled by hand, and nothing is sent
    """,
    "budget.py": """
        ['TEA', 'MILK']
        over_budget
        0/summarise#2 wants cost 0.1, 0.24 of 0.3 used today
        ['CAKE', 'BREAD']
    """,
    "inbox_webhook.py": """
        inbox.new: approval of publish, {'text': 'an essay about tea'}
        published: an essay about tea
    """,
    "chat.py": """
        ['hello', 'answer 1', 'how are you', 'answer 2', 'what is new', 'answer 3']
        2 chapters
    """,
    "child_runs.py": """
        a.txt: 5
        b.png: b.png is a picture
        c.txt: 5
        archive: completed
        archive/a.txt: completed
        archive/b.png: failed
        archive/c.txt: completed
    """,
    "fork.py": """
          the model estimates claim-7
          300 are paid for claim-7
        the run: receipt for 300
        claim-7 anew waits: done_by_original
        the fork: receipt for 300
    """,
    "fan_out.py": """
        summary 0
        summary 1
        summary 2
        failed: page 3 cannot be read
        summary 4
        summary 5
        1 attempt failed and was made again
    """,
    "plain_threads.py": """
        tea in French, tea in Greek
        milk in French, milk in Greek
    """,
    "retry_storm.py": """
        4 layer(s): given up: HTTPStatusError, 81 requests
        1 layer(s): given up: HTTPStatusError, 3 requests
    """,
    "serverless.py new A-1": """
        sent: invoice A-1
        A-1: waiting
    """,
    "serverless.py": """
        sent: reminder 1 of A-1
        A-1: waiting
    """,
    "serverless.py paid A-1": "A-1: completed",
    "timeout_and_cancel.py": """
          reserved: room
          a price from a fast service
        cancel: requested
          released: room
        run booking was cancelled
        cancel again: cancelled
    """,
    "trip.py": """
          booked: flight
          booked: car
          cancelled: car
          cancelled: flight
        no hotel is left
        saga: undone: book 'car', book 'flight'
        still booked: []
    """,
}
"""What each command prints. Those of one file follow each other in one folder."""

NOT_RUN_HERE = {
    **dict.fromkeys(("claims_agent.py", "refund_desk.py", "returns_desk.py"), "by the demo's tests"),
    "web_app.py": "below",
}


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def test_every_example_is_run() -> None:
    files = {file.name for file in EXAMPLES.glob("*.py")}
    assert files == {command.split()[0] for command in PRINTS} | set(NOT_RUN_HERE)


@pytest.mark.parametrize("name", dict.fromkeys(command.split()[0] for command in PRINTS))
def test_prints(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    for command, expected in PRINTS.items():
        if command.split()[0] == name:
            if command == "serverless.py":
                time.sleep(0.6)  # cron comes round
            assert lines(_printed(command.split(), monkeypatch)) == lines(expected)


def _printed(command: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", command)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(os.fspath(EXAMPLES / command[0]), run_name="__main__")
    return said.getvalue()


# ── the web application ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def web_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of the application, served by uvicorn."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    app = runpy.run_path(os.fspath(EXAMPLES / "web_app.py"))["app"]
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # who comes early waits until the server is up
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_the_web_application_starts_and_answers(web_app: str) -> None:
    assert _post(f"{web_app}/claims/42") == {"run": "claim-42", "how": "started"}
    assert _post(f"{web_app}/claims/42") == {"run": "claim-42", "how": "attached"}
    assert _post(f"{web_app}/claims/42/approval?by=Ada") == {"result": "42 approved by Ada"}


def _post(url: str) -> object:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30) as answer:
        return json.load(answer)

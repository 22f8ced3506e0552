"""The demo's services, as real processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.demo.processes import DIRECT, Service, service
from perdure.cli.demo.services import PLANS

Answer = tuple[int, dict[str, Any]]


def send(method: str, url: str, body: object = None, **headers: str) -> Answer:
    text = body if isinstance(body, str) else json.dumps(body)
    request = urllib.request.Request(url, method=method, data=text.encode() if body is not None else None)
    for name, value in {"User-Agent": "test/1", **headers}.items():
        request.add_header(name.replace("_", "-"), value)
    try:
        with DIRECT.open(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def ask(service: Service, user: str, system: str = "", **changes: Any) -> Answer:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    body = {"model": "m-1", "messages": messages} | changes
    return send("POST", f"{service.url}/v1/chat/completions", body, Authorization="Bearer k")


def said(answer: Answer) -> str:
    status, body = answer
    assert status == 200, body
    return str(body["choices"][0]["message"]["content"])


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Service]:
    with service("model", tmp_path) as running:
        yield running


@pytest.fixture
def tickets(tmp_path: Path) -> Iterator[Service]:
    with service("tickets", tmp_path) as running:
        yield running


def test_a_completion_has_the_shape_that_clients_expect(model: Service) -> None:
    status, body = ask(model, "Task: plan. What now?")
    assert status == 200
    assert (body["object"], body["model"]) == ("chat.completion", "m-1")
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


def test_a_plan_asked_for_twice_is_another_plan(model: Service) -> None:
    assert [said(ask(model, "Task: plan. What now?")) for _ in range(2)] == PLANS[:2]


def test_what_is_decided_depends_on_the_plan(model: Service) -> None:
    question = "Task: decide. Begin with approve or refer.\nC-1, Ada, telephone, 320 EUR: broken"
    assert said(ask(model, question, PLANS[0])).startswith("approve")
    assert said(ask(model, question, PLANS[1])).startswith("refer")


@pytest.mark.parametrize(
    ("changes", "status", "where"),
    [
        ({"messages": []}, 200, None),
        ({"messages": "hello"}, 400, "messages"),
        ({"messages": [{"role": "user"}]}, 400, "messages"),
        ({"model": None}, 400, None),
        ({"stream": True}, 400, "stream"),
    ],
)
def test_bad_requests_are_refused_as_openai_does(
    model: Service, changes: dict[str, Any], status: int, where: str | None
) -> None:
    got, body = ask(model, "hello", **changes)
    assert got == status
    if status != 200:
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert (body["error"]["type"], body["error"]["param"]) == ("invalid_request_error", where)


def test_no_key_no_such_url_and_no_json(model: Service) -> None:
    assert send("POST", f"{model.url}/v1/chat/completions", {})[0] == 401
    assert send("POST", f"{model.url}/v1/embeddings", {})[1]["error"]["code"] == "unknown_url"
    assert send("POST", f"{model.url}/v1/chat/completions", "{not json", Authorization="Bearer k")[0] == 400


def test_every_request_is_written_down_and_the_same_one_keeps_its_ordinal(model: Service) -> None:
    for question in ("one", "two", "one"):
        ask(model, question)
    records = json.load(DIRECT.open(f"{model.url}/records"))["requests"]
    assert [(record["number"], record["ordinal"]) for record in records] == [(1, 1), (2, 2), (3, 1)]
    assert all(record["received_at"] <= record["answered_at"] and record["status"] == 200 for record in records)
    assert "Bearer" not in json.dumps(records)


def test_a_held_request_is_answered_only_when_it_is_sent_again(tmp_path: Path) -> None:
    body = json.dumps({"model": "m-1", "messages": [{"role": "user", "content": "two"}]})
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nUser-Agent: agent/7\r\n"
    with service("model", tmp_path, "--hold", "2") as model:
        said(send("POST", f"{model.url}/v1/chat/completions", body.replace("two", "one"), Authorization="Bearer k"))
        with socket.create_connection(("127.0.0.1", model.port)) as dying:
            dying.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            while not ((waiting := model.records(only_unanswered=True)) and waiting[0].held):
                pass
        assert [(sending.pid, sending.held) for sending in waiting] == [(7, 1)]
        said(send("POST", f"{model.url}/v1/chat/completions", body, Authorization="Bearer k"))
        assert [sending.answered_at is not None for sending in model.records()] == [True, False, True]


@contextmanager
def real_model(*answers: tuple[int, str]) -> Generator[tuple[str, list[tuple[str, str | None]]], None, None]:
    """A model that answers so, one after the other: its URL, and the paths and keys that it was asked with."""
    seen: list[tuple[str, str | None]] = []

    class Upstream(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, self.headers["Authorization"]))
            status, text = answers[len(seen) - 1]
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Upstream) as upstream:
        serving = threading.Thread(target=upstream.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{upstream.server_address[1]}/v2/", seen
        finally:
            upstream.shutdown()
            serving.join()


def completion(text: str | None) -> str:
    return json.dumps({"choices": [{"message": {"content": text}}]})


def test_a_real_model_is_asked_through_the_server_and_both_sides_are_written_down(tmp_path: Path) -> None:
    with real_model((200, completion("a real answer")), (429, '{"error": {"message": "slow"}}')) as (url, seen):
        with service("model", tmp_path, "--upstream", url) as model:
            assert said(ask(model, "hello")) == "a real answer"
            assert ask(model, "hello again") == (429, {"error": {"message": "slow"}})
            assert [sending.status for sending in model.records()] == [200, 429]
    assert seen == [("/v2/chat/completions", "Bearer k")] * 2


NO_TEXTS = {
    "another object": (200, '{"hello": 1}', (502, 'it said {"hello": 1}')),
    "a list": (200, "[1, 2]", (502, "it said [1, 2]")),
    "no text": (200, completion(None), (502, f"it said {completion(None)}")),
    "a page": (200, "<html>\n log in\n</html>", (502, "it said <html> log in </html>")),
    "nothing": (200, "", (502, "it said nothing")),
    "an error that is none of OpenAI's": (503, "come back later", (503, "it said come back later")),
}


@pytest.mark.parametrize(("status", "text", "told"), NO_TEXTS.values(), ids=NO_TEXTS)
def test_what_is_no_text_of_a_model_is_an_error_that_quotes_it(
    status: int, text: str, told: tuple[int, str], tmp_path: Path
) -> None:
    with real_model((status, text)) as (url, _), service("model", tmp_path, "--upstream", url) as model:
        answered, body = ask(model, "hello")
    assert (answered, body["error"]["message"]) == told


def test_an_upstream_that_is_not_there_is_a_bad_gateway(tmp_path: Path) -> None:
    with service("model", tmp_path, "--upstream", "http://127.0.0.1:9") as model:
        status, body = ask(model, "hello")
    assert (status, body["error"]["type"]) == (502, "server_error")


def test_tickets_are_created_listed_and_commented(tickets: Service) -> None:
    ticket = {"customer": "Ada", "claim": "C-1", "title": "telephone"}
    assert send("POST", f"{tickets.url}/tickets", ticket) == (201, {"id": 1, **ticket})
    assert send("POST", f"{tickets.url}/tickets", {**ticket, "customer": "Bo"})[0] == 201
    assert send("GET", f"{tickets.url}/tickets?customer=Ada") == (200, {"tickets": [{"id": 1, **ticket}]})
    assert send("POST", f"{tickets.url}/tickets/1/comments", {"text": "hm"})[0] == 201
    assert send("POST", f"{tickets.url}/tickets/9/comments", {"text": "hm"}) == (404, {"error": "there is no ticket 9"})
    assert send("POST", f"{tickets.url}/tickets", {"customer": 3}) == (400, {"error": "customer must be a text"})


def test_one_idempotency_key_makes_one_ticket(tickets: Service) -> None:
    ticket = {"customer": "Ada", "claim": "C-1", "title": "telephone"}
    first = send("POST", f"{tickets.url}/tickets", ticket, Idempotency_Key="C-1")
    again = send("POST", f"{tickets.url}/tickets", ticket, Idempotency_Key="C-1")
    assert (first[0], again[0]) == (201, 200)
    assert first[1] == again[1]
    assert send("POST", f"{tickets.url}/tickets", {**ticket, "title": "car"}, Idempotency_Key="C-1")[0] == 409
    assert len(send("GET", f"{tickets.url}/tickets")[1]["tickets"]) == 1


def test_a_service_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, pathlib\n"
        "from perdure.cli.demo.processes import service\n"
        f"with service('tickets', pathlib.Path({str(tmp_path)!r})) as running:\n"
        "    print(running.port, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    port = int(done.stdout)
    while True:  # it is told by the kernel, at its own time
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except ConnectionRefusedError:
            break
        except ConnectionResetError:
            continue


# ── the payments service ────────────────────────────────────────────────────────────────────


@pytest.fixture
def payments(tmp_path: Path) -> Iterator[Service]:
    with service("payments", tmp_path) as running:
        yield running


def pay(payments: Service, route: str, cents: object = 100, **headers: str) -> Answer:
    body = {"claim": "c-1", "cents": cents, "reference": "our-1"}
    return send("POST", f"{payments.url}/{route}", body, **headers)


def test_each_route_gives_what_it_says(payments: Service) -> None:
    first = {"id": 1, "route": "charges", "claim": "c-1", "cents": 100}
    assert pay(payments, "charges", Idempotency_Key="k") == (201, first)
    assert pay(payments, "charges", Idempotency_Key="k") == (200, first)
    assert pay(payments, "charges", 200, Idempotency_Key="k")[0] == 409
    for route in ("transfers", "transfers", "payouts", "payouts"):
        assert pay(payments, route)[0] == 201
    _, books = send("GET", f"{payments.url}/payments")
    assert [payment["route"] for payment in books["payments"]] == ["charges", *["transfers"] * 2, *["payouts"] * 2]
    _, found = send("GET", f"{payments.url}/transfers?reference=our-1")
    assert len(found["payments"]) == 2
    assert send("GET", f"{payments.url}/transfers?reference=other")[1] == {"payments": []}
    assert len(payments.books(who="test", claim="c-1")) == len(payments.books(who="test")) == 5
    assert payments.books(who="test", claim="c-2") == []
    assert [sending.key for sending in payments.records()][:4] == ["k", "k", "k", None]


def test_a_policy_is_told_as_it_was_set_last(tmp_path: Path) -> None:
    with service("policies", tmp_path) as policies:
        assert send("GET", f"{policies.url}/policies?order=O-1")[0] == 404
        first, later = ({"order": "O-1", "percent": percent, "limit": 1000} for percent in (50, 80))
        assert policies.post("/policies", first, who="test") == first
        assert policies.post("/policies", later, who="test") == later
        assert send("GET", f"{policies.url}/policies?order=O-1") == (200, later)
        assert send("POST", f"{policies.url}/policies", {**first, "percent": "all"})[0] == 400
        assert send("POST", f"{policies.url}/hold", {"reads": 0})[0] == 400
        assert send("GET", f"{policies.url}/policies?order=O-1") == (200, later)
        assert [sending.status for sending in policies.records()] == [404, 200, 200, 200, 400, 400, 200]


def test_looks_at_the_policy_are_held_as_often_as_it_is_told(tmp_path: Path) -> None:
    with service("policies", tmp_path) as policies:
        policies.post("/policies", {"order": "O-1", "percent": 50, "limit": 1000}, who="test")
        policies.post("/hold", {"reads": 1}, who="test")
        with socket.create_connection(("127.0.0.1", policies.port)) as dying:
            dying.sendall(b"GET /policies?order=O-1 HTTP/1.1\r\nHost: x\r\nUser-Agent: agent/7\r\n\r\n")
            while not ((waiting := policies.records(only_unanswered=True)) and waiting[0].held):
                pass
            assert send("GET", f"{policies.url}/policies?order=O-1")[0] == 200
        assert [(sending.pid, sending.answered_at) for sending in waiting] == [(7, None)]


@pytest.mark.parametrize("cents", [0, -1, 1.5, "100", True, None])
def test_what_is_no_amount_is_refused(payments: Service, cents: object) -> None:
    assert pay(payments, "payouts", cents)[0] == 400
    assert send("GET", f"{payments.url}/payments")[1] == {"payments": []}

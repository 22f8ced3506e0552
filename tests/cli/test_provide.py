"""`--provide`: a program's own clients for `perdure.use()`, from the command line."""

from __future__ import annotations

import signal

import pytest
from tests.cli.terminal import Terminal, one_line, until

PROGRAM = """
import contextlib
import pathlib
import time
import perdure
from perdure import step, workflow


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name


@step
async def name_of_shop() -> str:
    return perdure.use(Shop).name


@workflow
async def which() -> str:
    return await name_of_shop()


@workflow
async def reads_the_clock() -> float:
    print("now")
    return time.time()


def plain():
    return {Shop: Shop("plain")}


async def asynchronous():
    return {Shop: Shop("async")}


@contextlib.contextmanager
def managed():
    yield {Shop: Shop("managed")}
    pathlib.Path("closed").touch()


@contextlib.asynccontextmanager
async def async_managed():
    try:
        yield {Shop: Shop("async managed")}
    finally:
        pathlib.Path("closed").touch()


provide = plain


def breaks():
    return {Shop: 1 / 0}


def a_list():
    return [Shop("x")]
"""


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    (terminal.folder / "shop.py").write_text(PROGRAM)
    return terminal


@pytest.mark.parametrize(
    ("provide", "name", "closes"),
    [
        ("shop.py:plain", "plain", False),
        ("shop.py:asynchronous", "async", False),
        ("shop.py:managed", "managed", True),
        ("shop:async_managed", "async managed", True),
        ("shop.py", "plain", False),
    ],
)
def test_run_has_the_clients(provide: str, name: str, closes: bool, shop: Terminal) -> None:
    assert shop.here("run", "shop.py:which", "--provide", provide).stdout == f"{name}\n"
    assert (shop.folder / "closed").exists() == closes


def test_a_worker_has_them_and_closes_them_when_it_stops(shop: Terminal) -> None:
    shop.here("start", "shop.py:which", "--id", "w")
    with shop.begun("worker", "shop.py", "--provide", "shop.py:async_managed") as worker:
        until(lambda: shop.here("runs", "wait", "w", "--timeout", "9").stdout == "async managed\n", "it is executed")
        worker.send(signal.SIGTERM)
        assert worker.ends() == 0
        assert "worker stopped; no run was in its hands" in worker.said
    assert (shop.folder / "closed").exists()


@pytest.mark.parametrize(
    ("provide", "says"),
    [
        ("shop.py:nothing", "shop.py has no function nothing; --provide names one that returns {Type: client}"),
        ("shop.py:breaks", "shop.py:breaks cannot provide: ZeroDivisionError: division by zero at"),
        ("shop.py:a_list", "a dict of types and their clients, as in provide={Payments: client}"),
        ("shp.py:plain", "there is no file shp.py; near: shop.py"),
    ],
)
@pytest.mark.parametrize("command", ["run", "worker"])
def test_what_cannot_provide(command: str, provide: str, says: str, shop: Terminal) -> None:
    target = "shop.py:which"
    result = shop.here(command, target, "--provide", provide)
    assert (result.exit_code, says in one_line(result)) == (2, True), result.stderr


def test_a_worker_says_at_its_start_what_a_replay_cannot_repeat(shop: Terminal) -> None:
    with shop.begun("worker", "shop.py") as worker:
        worker.says("worker serves")
        assert "error clock (reads_the_clock): time.time() reads the clock" in worker.said
        assert "print()" not in worker.said
        worker.send(signal.SIGTERM)
        worker.ends()

"""`--secrets`: where secrets come from, on the command line."""

from __future__ import annotations

from tests.cli.terminal import Terminal

PROGRAM = """
import os
import perdure
from perdure import step, workflow

os.environ["SHOP_STRIPE"] = "value-of-stripe-1"


@step(secrets={"stripe"})
async def charge() -> list[str]:
    return [perdure.secret("stripe"), str(len(perdure.secret("stripe")))]


@workflow
async def shop() -> list[str]:
    return await charge()


def secrets():
    return [perdure.secrets.Environment(prefix="SHOP_")]


def fails():
    raise ValueError("value-of-stripe-1")
"""


def test_providers_of_a_program(terminal: Terminal) -> None:
    (terminal.folder / "shop.py").write_text(PROGRAM)
    result = terminal.here("run", "shop.py:shop", "--secrets", "shop.py", "--id", "r")
    assert result.exit_code == 0
    assert "‹secret:stripe›" in result.stdout
    assert "17" in result.stdout
    assert "value-of-stripe-1" not in result.stdout + result.stderr


def test_providers_that_cannot_be_had(terminal: Terminal) -> None:
    (terminal.folder / "shop.py").write_text(PROGRAM)
    result = terminal.here("run", "shop.py:shop", "--secrets", "shop.py:fails")
    assert result.exit_code != 0
    assert "shop.py:fails cannot name providers of secrets: ValueError" in result.stderr
    assert "value-of-stripe-1" not in result.stdout + result.stderr

"""What a workflow's code leads to, and when its digest is another one."""

from __future__ import annotations

import importlib.util
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.api.source import Source, source_of, values_named_in

APP = '''
import json
import perdure
import pricing
from perdure import NoGuarantee, effect, step, workflow

RATES = {"eur": 100}

class Money:
    def cents(self):
        return round_up(5)

def round_up(n):
    return n + 1

def unused():
    return 1

@step
async def look(order: str) -> int:
    return Money().cents() + pricing.price(order)

@effect(downstream=NoGuarantee(), timeout=5)
async def pay(order: str) -> str:
    return json.dumps(order)

@pay.key
def _(order: str) -> str:
    return order + "!"

@pay.undo
async def _(result: str, order: str) -> str:
    return "undone"

@step
async def by_table(order: str) -> str:
    return order

TABLE = {"a": by_table}

@workflow
async def child(order: str) -> str:
    return order

@workflow
async def agent(order: str) -> int:
    RATES.get("eur")
    async def inner():
        return await look(order)
    await pay(order)
    await TABLE["a"](order)
    await child(order)
    return await inner()
'''
PRICING = "def price(order):\n    return 7\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in ("app_of_source", "pricing"):
        sys.modules.pop(name, None)


def loaded(folder: Path, app: str = APP, pricing: str = PRICING) -> Any:
    """The module, as a process has it that begins now."""
    (folder / "pricing.py").write_text(pricing)
    (folder / "app_of_source.py").write_text(app)
    linecache.clearcache()
    for name in ("pricing", "app_of_source"):
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        exec(compile((folder / f"{name}.py").read_text(), folder / f"{name}.py", "exec"), module.__dict__)
    return sys.modules["app_of_source"]


def source(folder: Path, app: str = APP, pricing: str = PRICING) -> Source:
    return source_of(loaded(folder, app, pricing).agent)


def test_all_that_the_code_leads_to_is_part_of_it(folder: Path) -> None:
    found = source(folder)
    assert found.functions == (
        "app_of_source:Money", "app_of_source:_", "app_of_source:agent", "app_of_source:by_table",
        "app_of_source:child", "app_of_source:look", "app_of_source:pay", "app_of_source:round_up", "pricing:price",
    )  # fmt: skip
    assert found.unreadable == ()
    assert found == source(folder)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("return await inner()", "return 1 + await inner()"),
        ("timeout=5", "timeout=6"),
        ('order + "!"', 'order + "?"'),
        ('"undone"', '"taken back"'),
        ("return n + 1", "return n + 2"),
        ("round_up(5)", "round_up(6)"),
        ("by_table(order: str) -> str:\n    return order", "by_table(order: str) -> str:\n    return ''"),
        ("child(order: str) -> str:\n    return order", "child(order: str) -> str:\n    return ''"),
    ],
)
def test_an_edit_makes_it_another_one(folder: Path, text: str, instead: str) -> None:
    assert text in APP
    assert source(folder).digest != source(folder, APP.replace(text, instead)).digest


def test_an_edit_beside_it_makes_it_another_one(folder: Path) -> None:
    assert source(folder).digest != source(folder, pricing=PRICING.replace("7", "8")).digest


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("def unused():\n    return 1", "def unused():\n    return 2"),
        ("import json\n", "\n\n\nimport json\n"),
        ("+ 1", "+ 1  "),
    ],
)
def test_what_it_does_not_lead_to_changes_nothing(folder: Path, text: str, instead: str) -> None:
    assert source(folder).digest == source(folder, APP.replace(text, instead)).digest


def test_the_values_that_it_names_are_told_apart(folder: Path) -> None:
    assert values_named_in(loaded(folder).agent.spec.function)["app_of_source.RATES"] == {"eur": 100}

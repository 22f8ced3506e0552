"""Who may import whom: the table of docs/ARCHITECTURE.md, held against the code.

Every import counts, also the local ones and those under TYPE_CHECKING: a knot of types is a knot.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "perdure"

# ── the table ───────────────────────────────────────────────────────────────────────────────

EVERYONE = frozenset({"errors", "clock"})
"""Modules that all may import, and that import nothing else of ours."""

ROOT = "(root)"
"""`import perdure`: the public names."""

PURE_BELOW = {"codec", "specs", "history", "ledger", "decisions", "gates", "engine", "contract"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "transitions": set(),
    "codec": set(),
    "specs": {"codec"},
    "history": {"codec", "specs"},
    "ledger": {"codec", "specs", "history", "transitions"},
    "decisions": {"codec", "specs", "history", "transitions"},
    "gates": {"codec", "specs", "history", "ledger", "decisions"},
    "engine": {"codec", "specs", "history", "ledger", "decisions", "gates"},
    "contract": {"codec", "specs", "history"},
    "store": {"codec", "history", "ledger", "decisions", "gates"},
    "observe": {"codec", "history"},
    "http": set(),
    "runtime": PURE_BELOW | {"store", "observe", "http", "secrets"},
    "api": PURE_BELOW | {"store", "runtime", "observe", "http", "audit"},
    "audit": PURE_BELOW | {"store"},
    "adapters": {ROOT},
    "cli": {ROOT, "api", "audit", "store", "codec", "specs", "contract", "observe", "testing"},
    "web": {ROOT, "api", "audit"},
    "mcp": {ROOT, "api", "audit"},
    "proxy": {ROOT, "api", "audit"},
    "testing": {ROOT, "api", "audit", "runtime", "store", "observe", "http"} | PURE_BELOW,
    "sync": {"api", "codec", "specs"},
    "secrets": set(),
    ROOT: {"api", "sync", "secrets", "specs", "store", "runtime", "http"},
    "__main__": {"cli"},
}

PURE = {"transitions", "codec", "history", "ledger", "decisions", "gates", "engine", "contract"}

IMPURE_MODULES: dict[str, frozenset[str]] = {
    # module of the standard library: what of it has no effect on the world and may be imported all the same
    name: frozenset(harmless.split())
    for name, harmless in {
        "asyncio": "",
        "builtins": "",
        "concurrent": "",
        "fcntl": "",
        "ftplib": "",
        "getpass": "",
        "glob": "",
        "http": "HTTPStatus",
        "io": "",
        "locale": "",
        "logging": "",
        "mmap": "",
        "multiprocessing": "",
        "os": "PathLike fspath",
        "pathlib": "Path PurePath PurePosixPath PureWindowsPath",
        "pickle": "",
        "platform": "",
        "queue": "",
        "random": "Random",
        "resource": "",
        "sched": "",
        "secrets": "",
        "select": "",
        "selectors": "",
        "shelve": "",
        "shutil": "",
        "signal": "",
        "smtplib": "",
        "socket": "",
        "socketserver": "",
        "sqlite3": "",
        "ssl": "",
        "subprocess": "",
        "tempfile": "",
        "threading": "Lock current_thread get_ident local main_thread",
        "time": "",
        "urllib": "parse",
        "uuid": "UUID",
    }.items()
}

IMPURE_CALLS = {
    # attribute calls that read the world through a module that is harmless otherwise
    ("datetime", "now"),
    ("datetime", "today"),
    ("datetime", "utcnow"),
    ("date", "today"),
    ("sys", "stdin"),
    ("sys", "stdout"),
    ("sys", "stderr"),
    ("sys", "argv"),
}
IMPURE_BUILTINS = {"open", "print", "input", "breakpoint"}

PURE_BUT = {"engine": {"asyncio"}}
"""The engine is an asyncio event loop, so it may import asyncio; that loop has no sockets, no threads and no clock."""

CORE = {"msgspec"}
"""Third-party packages that may be imported anywhere."""

HOME: dict[str, str] = {
    # any other third-party package: the one place that imports it
    "anyio": "testing",
    "cryptography": "audit",
    "httpx": "http",
    "hypothesis": "testing",
    "jinja2": "web",
    "mcp": "mcp",
    "prometheus_client": "observe",
    "psutil": "testing",
    "pydantic": "codec",
    "pytest": "testing",
    "rich": "cli",
    "starlette": "web",
    "typer": "cli",
    "uvicorn": "web",
}
ADAPTERS_HAVE_THEIR_FRAMEWORK = "adapters"


# ── reading the code ────────────────────────────────────────────────────────────────────────


class Import(NamedTuple):
    """One imported name: `from perdure.codec import encode` is (file, 3, "perdure.codec", "encode")."""

    file: Path
    line: int
    module: str
    name: str

    def __str__(self) -> str:
        reached = f"{self.module}.{self.name}" if self.name else self.module
        return f"{self.file.relative_to(SOURCE)}:{self.line} imports {reached}"


def python_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(file: Path) -> str:
    """The row of the table that a file belongs to: its top folder, or its own name at the top level."""
    relative = file.relative_to(SOURCE)
    if len(relative.parts) > 1:
        return relative.parts[0]
    return ROOT if relative.stem == "__init__" else relative.stem


def package_of(file: Path) -> list[str]:
    return ["perdure", *file.relative_to(SOURCE).parts[:-1]]


def imports_of(file: Path, tree: ast.Module) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, "")
        elif isinstance(node, ast.ImportFrom):
            base = package_of(file)[: len(package_of(file)) - node.level + 1] if node.level else []
            module = ".".join([*base, node.module] if node.module else base)
            for alias in node.names:
                yield Import(file, node.lineno, module, alias.name)


def ours(item: Import) -> str | None:
    """The row of the table that an import reaches for, or None if it is not ours."""
    path = item.module.split(".")
    if path[0] != "perdure" or item.name == "__version__":  # who we are is no dependency
        return None
    if len(path) > 1:
        return path[1]
    is_part = bool(item.name) and ((SOURCE / item.name).is_dir() or (SOURCE / f"{item.name}.py").is_file())
    return item.name if is_part else ROOT


def uses_of(item: Import, tree: ast.Module) -> set[str]:
    """What a file takes from an imported module: the imported name, or every attribute of the module that it names."""
    if "." in item.module or item.name:
        return {item.module.split(".")[1] if "." in item.module else item.name}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == item.module}


TREES = {file: ast.parse(file.read_text(), filename=str(file)) for file in python_files()}
IMPORTS = [item for file, tree in TREES.items() for item in imports_of(file, tree)]


def in_pure(file: Path) -> bool:
    return part_of(file) in PURE


# ── the rules ───────────────────────────────────────────────────────────────────────────────


def test_every_part_has_its_row_in_the_table() -> None:
    parts = {part_of(file) for file in TREES}
    assert parts <= set(MAY_IMPORT), "say in MAY_IMPORT what the new part may import"


def test_the_table_has_no_cycle() -> None:
    order: list[str] = []
    remaining = dict(MAY_IMPORT)
    while remaining:
        ready = [part for part, needs in remaining.items() if needs <= set(order)]
        assert ready, f"these wait for each other: {sorted(remaining)}"
        order += ready
        for part in ready:
            del remaining[part]


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_a_part_imports_only_what_the_table_allows(part: str) -> None:
    allowed = {part} | MAY_IMPORT[part] | (EVERYONE if part not in EVERYONE else set[str]())
    wrong = [
        str(item) for item in IMPORTS if part_of(item.file) == part and (target := ours(item)) and target not in allowed
    ]
    assert not wrong


def test_engine_and_store_never_meet_but_in_the_turn() -> None:
    reaches: dict[Path, set[str]] = {}
    for item in IMPORTS:
        if part_of(item.file) in {"engine", "store"}:
            reaches.setdefault(item.file, set()).add(ours(item) or "")
    assert not [file for file, parts in reaches.items() if {"engine", "store"} - {part_of(file)} & parts]


DRILLS = SOURCE / "cli" / "drill.py"
"""The one exception: `perdure code drill` is a test instrument for whoever has no test runner. It imports it when the
command is called, so that nothing that executes runs in earnest can come to depend on it."""


def test_nothing_that_is_shipped_imports_the_test_instruments() -> None:
    users = {item.file for item in IMPORTS if ours(item) == "testing" and part_of(item.file) != "testing"}
    assert users == {DRILLS}


def test_the_drill_is_imported_when_it_is_called() -> None:
    code = "import sys, perdure.cli.code; print(*(name for name in sys.modules if name.startswith('perdure.testing')))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert not done.stdout.split()


def test_the_drill_needs_no_test_runner() -> None:
    code = "import sys, perdure.testing; perdure.testing.drill; print('pytest' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_adapters_use_public_names_only() -> None:
    private = [
        str(item)
        for item in IMPORTS
        if part_of(item.file) == "adapters"
        and item.module.startswith("perdure")
        and not item.module.startswith("perdure.adapters")
        and (item.module != "perdure" or item.name.startswith("_"))
    ]
    assert not private


def test_pure_code_has_no_world_to_look_at() -> None:
    wrong: list[str] = []
    for item in IMPORTS:
        top = item.module.split(".")[0]
        if not in_pure(item.file) or top not in IMPURE_MODULES or top in PURE_BUT.get(part_of(item.file), ()):
            continue
        if not uses_of(item, TREES[item.file]) <= IMPURE_MODULES[top]:
            wrong.append(str(item))
    assert not wrong


def test_pure_code_does_not_ask_for_time_or_files() -> None:
    wrong: list[str] = []
    for file, tree in TREES.items():
        if not in_pure(file):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
                wrong.append(f"{file.relative_to(SOURCE)}:{node.lineno} calls {node.func.id}()")
            if isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value).split(".")[-1]
                if (owner, node.attr) in IMPURE_CALLS:
                    wrong.append(f"{file.relative_to(SOURCE)}:{node.lineno} uses {owner}.{node.attr}")
    assert not wrong


def test_each_third_party_package_is_imported_in_one_place() -> None:
    wrong: list[str] = []
    for item in IMPORTS:
        top = item.module.split(".")[0]
        if top == "perdure" or top in sys.stdlib_module_names or top in CORE:
            continue
        if part_of(item.file) != HOME.get(top, ADAPTERS_HAVE_THEIR_FRAMEWORK):
            wrong.append(str(item))
    assert not wrong


def test_the_package_says_that_it_is_typed() -> None:
    assert (SOURCE / "py.typed").exists()


HEAVY = [
    "asyncio", "cryptography", "fractions", "http", "httpx", "json", "multiprocessing", "pathlib", "pydantic", "random",
    "rich", "socket", "sqlite3", "ssl", "typer", "unittest", "urllib.request", "zoneinfo", "perdure.api.client",
    "perdure.engine.execution", "perdure.engine.loop", "perdure.engine.sagas", "perdure.runtime.host",
    "perdure.runtime.performer", "perdure.runtime.turn", "perdure.store.protocol",
]  # fmt: skip


def test_import_perdure_is_light() -> None:
    """What takes long to import is imported by those who need it."""
    code = "import sys; before = set(sys.modules); import perdure; print(*(set(sys.modules) - before))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(done.stdout.split())


def test_to_declare_is_light_too() -> None:
    """Workflows, steps and effects can be declared, and called as plain functions, where nobody executes any."""
    code = """if True:
        import sys, perdure
        @perdure.step
        def add(one: int, two: int) -> int: return one + two
        @perdure.effect(downstream=perdure.Idempotent())
        async def pay(amount: int) -> str: ...
        @perdure.workflow
        def total(numbers: list[int]) -> int: return sum(add(number, 1) for number in numbers)
        print(total([1, 2]), "asyncio" in sys.modules, "perdure.engine.loop" in sys.modules)
    """
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5", "False", "False"]


def test_each_public_name_is_there_whichever_is_asked_for_first() -> None:
    code = """if True:
        import os, perdure
        later = [name for name in perdure.__all__ if name not in vars(perdure)]
        assert set(perdure.__all__) <= set(dir(perdure)), later
        for name in later:
            child = os.fork()
            if not child:
                assert getattr(perdure, name) is getattr(perdure, name)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, name
        print(len(later) > 10, hasattr(perdure, "nothing"))
    """
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]

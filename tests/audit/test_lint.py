"""The linter: each rule with what it finds and what it must leave alone."""

from __future__ import annotations

import asyncio
import importlib
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from perdure.audit import lint
from perdure.audit.lint import RULES, Severity, lint_function, lint_path, lint_source, module_around
from perdure.audit.lint.rules import CALLS

HERE = Path(__file__)
PAGE = HERE.parents[2] / "docs" / "lint.md"

PRELUDE = """\
import asyncio, os, random, time, uuid, datetime as dt
from datetime import datetime, timedelta
from pathlib import Path
import perdure
from perdure import effect, step, workflow

import anthropic, httpx, openai

CACHE: dict[str, str] = {}
LIMIT = 3
CLIENT = httpx.AsyncClient()
MODEL = openai.AsyncOpenAI()
OWNED = perdure.single_retry_owner(anthropic.AsyncAnthropic())

@step
async def fetch(url: str, *, limit: int = 3) -> str: ...

@perdure.step(retry=perdure.Retry(max_attempts=5))
def add(a: int, b: int = 0) -> int: ...

@effect(downstream=perdure.Idempotent())
async def pay(order: str, amount: int) -> str: ...

pay.key(lambda order, amount: order)

"""


def rules_in(text: str) -> list[str]:
    return [finding.rule for finding in lint_source(textwrap.dedent(text))]


def in_workflow(body: str, header: str = "@workflow\nasync def flow(q: str, words: set[str]) -> None:") -> list[str]:
    return rules_in(PRELUDE + header + "\n" + textwrap.indent(textwrap.dedent(body), "    "))


def in_step(body: str) -> list[str]:
    return in_workflow(body, "@step\nasync def work(q: str) -> None:")


# ── the examples of the rules, and the page made from them ──────────────────────────────────


@pytest.mark.parametrize("rule", RULES)
def test_the_examples(rule: str) -> None:
    assert [finding.rule for finding in lint_source(module_around(RULES[rule].bad))] == [rule]
    assert lint_source(module_around(RULES[rule].good)) == []


def test_the_page_is_made_from_the_table() -> None:
    assert PAGE.read_text() == lint.docs_page(), "write it anew: Path('docs/lint.md').write_text(docs_page())"


def test_every_listed_call_has_a_rule() -> None:
    assert set(CALLS.values()) <= set(RULES)


def exists(name: str) -> bool:
    found: Any = importlib.import_module(name.partition(".")[0])
    for part in name.split(".")[1:]:
        if not hasattr(found, part) and hasattr(found, "__path__"):
            importlib.import_module(f"{found.__name__}.{part}")
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def test_names_of_the_standard_library_exist() -> None:
    standard = [name for name in CALLS if name.partition(".")[0] in sys.stdlib_module_names]
    missing = {name for name in standard if "()" not in name and not exists(name)}
    assert missing <= {"uuid.uuid6", "uuid.uuid7"}, "those came with Python 3.14"


# ── what is found, and what is left alone ───────────────────────────────────────────────────

FOUND: list[tuple[str, str]] = [
    # rule, a line of a workflow
    ("clock", "time.time()"),
    ("clock", "time.perf_counter_ns()"),
    ("clock", "datetime.now()"),
    ("clock", "dt.datetime.now(dt.UTC)"),
    ("clock", "dt.date.today()"),
    ("clock", "now = time.time; now()"),
    ("clock", "from time import monotonic as tick; tick()"),
    ("clock", "time.localtime()"),
    ("clock", "time.strftime('%Y')"),
    ("clock", "x = [time.time() for _ in range(3)]"),
    ("clock", "key = lambda: time.time()"),
    ("clock", "await fetch(f'{time.time()}')"),
    ("randomness", "random.choice([1, 2])"),
    ("randomness", "random.Random()"),
    ("randomness", "random.SystemRandom()"),
    ("randomness", "import secrets; secrets.token_hex()"),
    ("randomness", "import numpy as np; np.random.rand(3)"),
    ("randomness", "import numpy as np; np.random.default_rng()"),
    ("randomness", "os.urandom(8)"),
    ("randomness", "uuid.uuid1()"),
    ("io", "open('x')"),
    ("io", "input()"),
    ("io", "import requests; requests.post('http://x')"),
    ("io", "import urllib.request; urllib.request.urlopen('http://x')"),
    ("io", "import subprocess; subprocess.run(['ls'])"),
    ("io", "import socket; socket.socket()"),
    ("io", "Path('x').read_text()"),
    ("io", "(Path('x') / 'y').exists()"),
    ("io", "p = Path('x'); p.write_text('y')"),
    ("io", "await asyncio.create_subprocess_exec('ls')"),
    ("io", "os.listdir('.')"),
    ("io", "os.path.exists('x')"),
    ("io", "import openai; openai.AsyncOpenAI()"),
    ("io", "import litellm; await litellm.acompletion(model='m')"),
    ("io", "from stripe import Refund; Refund.create(charge=q)"),
    ("io", "async with CLIENT as client: await client.get('http://x')"),
    ("io", "await MODEL.chat.completions.create(model='m')"),
    ("io", "await OWNED.messages.create(model='m')"),
    ("environment", "os.environ['X']"),
    ("environment", "os.environ.get('X')"),
    ("environment", "os.getenv('X')"),
    ("environment", "from os import environ; environ['X']"),
    ("print", "print(q)"),
    ("thread", "import threading; threading.Thread(target=f)"),
    ("thread", "await asyncio.to_thread(f)"),
    ("thread", "asyncio.get_running_loop().run_in_executor(None, f)"),
    ("thread", "loop = asyncio.get_running_loop(); await loop.run_in_executor(None, f)"),
    ("thread", "import anyio; await anyio.to_thread.run_sync(f)"),
    ("thread", "from concurrent.futures import ThreadPoolExecutor; ThreadPoolExecutor()"),
    ("blocking-sleep", "time.sleep(1)"),
    ("sync-step-call", "x = add(1, 2)"),
    ("sync-step-call", "add(1)"),
    ("not-awaited", "fetch(q)"),
    ("not-awaited", "pay(q, 1)"),
    ("not-awaited", "add.call(1)"),
    ("not-awaited", "perdure.sleep(1)"),
    ("not-awaited", "perdure.receive('reply')"),
    ("wrong-arguments", "await fetch()"),
    ("wrong-arguments", "await fetch(q, 3)"),
    ("wrong-arguments", "await fetch(q, limt=3)"),
    ("wrong-arguments", "await fetch(q, url=q)"),
    ("wrong-arguments", "await add.call()"),
    ("wrong-arguments", "await add.call(1, 2, 3)"),
    ("wrong-arguments", "await perdure.with_approval(pay.call(q))"),
    ("set-order", "for w in {q, 'x'}: await fetch(w)"),
    ("set-order", "for w in words: await fetch(w)"),
    ("set-order", "for w in set(q): await fetch(w)"),
    ("set-order", "names = {w for w in q}\nfor w in names: await fetch(w)"),
    ("set-order", "for w in set(q) | words: await fetch(w)"),
    ("set-order", "await asyncio.gather(*(fetch(w) for w in set(q)))"),
    ("set-order", "await asyncio.gather(*[elsewhere(w) for w in words])"),
    ("set-order", "x = [await fetch(w) for w in words]"),
    ("global-state", "CACHE['x'] = q"),
    ("global-state", "CACHE.update(x=q)"),
    ("global-state", "del CACHE['x']"),
    ("global-state", "def change():\n    global LIMIT\n    LIMIT = 4\nchange()"),
    ("swallowed-exit", "while True:\n    try:\n        await fetch(q)\n    except:\n        pass"),
    (
        "swallowed-exit",
        "for w in q:\n    try:\n        await fetch(w)\n    except (ValueError, BaseException) as e:\n        x = e",
    ),
    ("stock-wait", "from asyncio import as_completed\nfor x in as_completed([]): pass"),
    ("stock-wait", "from asyncio import wait_for as wait\nawait wait(fetch(q), 1)"),
    ("misplaced", "perdure.attempt()"),
    ("misplaced", "perdure.use(int)"),
    ("misplaced", "perdure.sync.sleep(1)"),
    ("misplaced", "note = perdure.sync.receive('note', str)"),
    ("misplaced", "perdure.sync.wait(fetch.call(q))"),
]


@pytest.mark.parametrize(("rule", "body"), FOUND)
def test_found(rule: str, body: str) -> None:
    assert in_workflow(body) == [rule]


NOT_RECORDED: dict[str, str] = {
    "as an argument": "await fetch(fetch(q))",
    "as a named argument": "await fetch(q, limit=add.call(1))",
    "by a name": "page = fetch(q)\nawait add.call(page)",
    "as the result": "return fetch(q)",
    "as the result, by a name": "nap = perdure.sleep(1)\nreturn nap",
}


@pytest.mark.parametrize("body", NOT_RECORDED.values(), ids=NOT_RECORDED)
def test_a_call_that_is_given_as_a_value(body: str) -> None:
    assert in_workflow(body) == ["not-awaited"]


def test_generators_and_lambdas() -> None:
    text = """
import perdure
from perdure import step

@perdure.workflow
async def items():
    yield 1

@step(timeout=3)
def parts():
    yield from [1]

ask = step(lambda q: q)
more = perdure.workflow(version=2)(lambda: 1)

@step
def fine():
    def inner():
        yield 1
    return list(inner())

fine_too = sorted([3], key=lambda x: x)
"""
    found = [(finding.line, finding.rule, finding.message) for finding in lint_source(text)]
    assert found == [
        (6, "undeclarable", "A generator cannot be a workflow: declaring it raises."),
        (10, "undeclarable", "A generator cannot be a step: declaring it raises."),
        (13, "undeclarable", "A lambda cannot be a step: declaring it raises."),
        (14, "undeclarable", "A lambda cannot be a workflow: declaring it raises."),
    ]


LEFT_ALONE: list[str] = [
    "def later(q):\n    return fetch(q)\nreturn await later(q)",
    "page = await fetch(q)\nawait fetch(page)",
    "return await asyncio.gather(*[fetch(w) for w in q])",
    "perdure.now(); perdure.random(); perdure.uuid4()",
    "time.localtime(3); time.strftime('%Y', t); time.gmtime(3)",
    "datetime.fromisoformat(q); dt.datetime(2026, 1, 1)",
    "asyncio.get_running_loop().time()",
    "r = random.Random(7); r.random(); r.choice([1])",
    "import numpy as np; np.random.default_rng(7).normal()",
    "import secrets; secrets.compare_digest('a', 'b')",
    "uuid.UUID(q); uuid.uuid5(uuid.NAMESPACE_DNS, q)",
    "time = await fetch(q); time.time()",
    "open = q.open; open('x')",
    "for random in range(3): random.random()",
    "def print(x: str) -> None: ...\nprint(q)",
    "Path('x').with_suffix('.y').name",
    "os.path.join('a', 'b')",
    "import httpx; httpx.Timeout(5)",
    "import openai; openai.types.chat.ChatCompletionMessage(role='assistant')",
    "import openai\ntry:\n    await fetch(q)\nexcept openai.APIError:\n    pass",
    "await fetch(str(MODEL is CLIENT))",
    "q.run_in_executor(None, f)",
    "task = asyncio.create_task(fetch(q)); await task",
    "await asyncio.gather(fetch(q), fetch(q, limit=3), add.call(1))",
    "await fetch(*q); await fetch(**q)",
    "await pay(q, amount=3)",
    "call = pay.call(q, 3); await perdure.with_approval(call)",
    "await perdure.sleep(1)",
    "x = perdure.patched('x')",
    "for w in sorted(set(q)): await fetch(w)",
    "for w in words: print_nothing(w)",
    "for w in {1, 2, 3}: await fetch(w)",
    "for w in list(q): await fetch(w)",
    "for w in dict.fromkeys(q): await fetch(w)",
    "tasks = {asyncio.create_task(fetch(w)) for w in q}\nfor task in tasks: await task",
    "done, pending = await asyncio.wait([])\nfor task in done: await task",
    "async with asyncio.TaskGroup() as group:\n    tasks = {group.create_task(fetch(q))}\nfor t in tasks: await t",
    "seen = set()\nfor w in q:\n    seen.add(w)\n    await fetch(w)",
    "names = set(q)\nnames = names | set(q)\nx = len(names)",
    "x = {w for w in words}",
    "CACHE.get(q); x = CACHE['x']",
    "CACHE = {}\nCACHE['x'] = q",
    "x = LIMIT",
    "n = 0\ndef up() -> None:\n    nonlocal n\n    n += 1\nup()",
    "while True:\n    try:\n        await fetch(q)\n    except BaseException:\n        raise",
    "while True:\n    try:\n        await fetch(q)\n    except BaseException:\n        break",
    "while True:\n    try:\n        await fetch(q)\n    except Exception:\n        pass",
    "try:\n    await fetch(q)\nexcept BaseException:\n    pass",
    "while True:\n    def inner() -> None:\n        try: ...\n        except BaseException: pass\n    inner()",
    "await asyncio.wait_for(fetch(q), 1)\nfor x in asyncio.as_completed([]): await x",
    "await q.wait_for(1)",
    "from asyncio import gather, timeout\nawait gather(fetch(q))",
    "log = perdure.logger(); log.info('x')",
    "from .steps import other\nother(1)\nawait other(2)",
    "def work() -> float:\n    return time.time()\nawait perdure.section('crew').run(work)",
    "class Deadline:\n    def __init__(self) -> None:\n        self.at = time.time()",
    "fields = {'made': time.time}",
]


@pytest.mark.parametrize("body", LEFT_ALONE)
def test_left_alone(body: str) -> None:
    assert in_workflow(body) == []


@pytest.mark.parametrize(("rule", "body"), [row for row in FOUND if row[0] != "misplaced"])
def test_a_step_may_do_all_this(rule: str, body: str) -> None:
    assert "misplaced" in in_step(body) or in_step(body) == []


@pytest.mark.parametrize(
    "body",
    [
        "await perdure.sleep(1)",
        "await perdure.receive('reply')",
        "await perdure.with_approval(q)",
        "perdure.sync.sleep(1)",
        "from perdure import sleep\nawait sleep(1)",
        "await pay(q, 1)",
        "await pay.call(q, 1)",
        "def inner() -> None:\n    perdure.patched('x')",
    ],
)
def test_misplaced_in_a_step(body: str) -> None:
    assert in_step(body) == ["misplaced"]


@pytest.mark.parametrize(
    "body", ["perdure.attempt()", "perdure.heartbeat(3)", "await fetch(q)", "await pay.plain(q, 1)"]
)
def test_well_placed_in_a_step(body: str) -> None:
    assert in_step(body) == []


# ── `def` workflows ─────────────────────────────────────────────────────────────────────────


def test_a_def_workflow_calls_def_steps_directly() -> None:
    header = "@workflow\ndef flow(q: str, words: set[str]) -> None:"
    assert in_workflow("x = add(1, 2)\nadd(1)", header) == []
    assert in_workflow("import threading; threading.Thread(target=f)", header) == []
    assert in_workflow("time.time()", header) == ["clock"]
    assert in_workflow("perdure.sleep(1)\nx = perdure.receive('word')", header) == ["async-call", "async-call"]
    assert in_workflow("fetch(q)\nperdure.sync.wait(fetch.call(q))\nperdure.sync.sleep(1)", header) == ["async-call"]
    inner = "async def inner() -> None:\n    await perdure.sleep(1)\n    await fetch(q)\nperdure.section('').run(inner)"
    assert in_workflow(inner, header) == []
    assert in_workflow("add()", header) == ["wrong-arguments"]


# ── where workflows are recognized ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("imports", "decorator"),
    [
        ("import perdure", "perdure.workflow"),
        ("import perdure", "perdure.workflow(version=7)"),
        ("import perdure as p", "p.workflow"),
        ("from perdure import workflow", "workflow"),
        ("from perdure import workflow as durable", "durable(name='x')"),
        ("from perdure.api.workflow import workflow", "workflow"),
        ("import perdure\nflow_v7 = perdure.workflow(version=7)", "flow_v7"),
        ("import perdure\ndurable = perdure.workflow", "durable"),
        ("try:\n    import perdure\nexcept ImportError:\n    perdure = None", "perdure.workflow"),
    ],
)
def test_decorators_are_followed(imports: str, decorator: str) -> None:
    assert rules_in(f"import time\n{imports}\n@{decorator}\nasync def f() -> None: time.time()\n") == ["clock"]


@pytest.mark.parametrize(
    ("imports", "decorator"),
    [
        ("import prefect # not perdure", "prefect.workflow"),
        ("from temporalio import workflow # not perdure", "workflow.defn"),
        ("import perdure\ndef workflow(f): ...", "workflow"),
        ("import perdure", "functools.cache"),
        ("from perdure import step", "step"),
    ],
)
def test_other_decorators_are_not(imports: str, decorator: str) -> None:
    assert rules_in(f"import time\n{imports}\n@{decorator}\nasync def f() -> None: time.time()\n") == []


def test_workflows_inside_of_functions() -> None:
    text = PRELUDE + textwrap.dedent("""
        def test_it():
            calls = []

            @step
            def inner(a: int) -> int: ...

            @workflow
            async def flow() -> None:
                inner(1)
                time.time()

            @workflow
            async def other() -> None:
                nonlocal calls
                calls = [1]
        """)
    assert rules_in(text) == ["sync-step-call", "clock", "global-state"]


def test_functions_that_a_workflow_calls() -> None:
    text = PRELUDE + textwrap.dedent("""
        def stamp() -> float:
            return deeper()

        def deeper() -> float:
            return time.time() + stamp()

        def unused() -> float:
            return time.time()

        @workflow
        async def flow() -> None:
            stamp()

        @workflow
        async def other() -> None:
            stamp()
        """)
    findings = lint_source(text)
    assert {(finding.rule, finding.function) for finding in findings} == {("clock", "flow"), ("clock", "other")}
    assert len({finding.line for finding in findings}) == 1


# ── what a finding says ─────────────────────────────────────────────────────────────────────


def test_where_and_what() -> None:
    text = "import perdure, time\n\n@perdure.workflow(version=2)\nasync def flow() -> None:\n    x = (1, time.time())\n"
    [finding] = lint_source(text, "app.py")
    message, fix = "time.time() reads the clock, so a replay takes another path.", "Use perdure.now()."
    assert str(finding) == f"app.py:5:13: error clock (flow): {message} {fix}"
    assert (finding.severity, finding.function_line) == (Severity.ERROR, 3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("await fetch()", "fetch() is called without 'url'."),
        ("await fetch(q, 3)", "fetch() takes 1 argument by position, 2 are given."),
        ("await add.call(1, 2, 3)", "add() takes 2 arguments by position, 3 are given."),
        ("await fetch(q, limt=3)", "fetch() has no parameter 'limt', but 'limit'."),
        ("await fetch(q, url=q)", "fetch() gets 'url' twice."),
        ("await pay()", "pay() is called without 'order', 'amount'."),
        ("perdure.attempt()", "perdure.attempt() raises in workflow code."),
        ("print(q)", "print() prints again whenever the run is replayed."),
    ],
)
def test_messages(body: str, message: str) -> None:
    text = PRELUDE + "@workflow\nasync def flow(q: str) -> None:\n    " + body
    assert [finding.message for finding in lint_source(text)] == [message]


@pytest.mark.parametrize("signature", ["*args: int", "**kwargs: int", "a: int, /, b: int = 1, *, c: int = 2"])
def test_arguments_that_fit(signature: str) -> None:
    declared = f"import perdure\n@perdure.step\nasync def s({signature}): ...\n"
    text = declared + "@perdure.workflow\nasync def f():\n    await s(CALL)\n"
    fitting = {"*args: int": "1, 2", "**kwargs: int": "a=1"}.get(signature, "1, b=2, c=3")
    assert rules_in(text.replace("CALL", fitting)) == []
    assert rules_in(text.replace("CALL", "1, z=3")) == ["wrong-arguments"]


# ── keeping it silent ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("time.time()  # perdure: ignore[clock]", []),
        ("time.time()  # perdure: ignore", []),
        ("time.time()  # perdure:ignore[io, clock]", []),
        ("time.time()  # perdure: ignore[io]", ["clock"]),
        ("time.time()  # noqa", ["clock"]),
        ("await fetch(\n    q, limt=3,\n)  # perdure: ignore[wrong-arguments]", []),
        ("# perdure: ignore[clock]\ntime.time()", ["clock"]),
    ],
)
def test_ignore(line: str, expected: list[str]) -> None:
    assert in_workflow(line) == expected


# ── files, functions ────────────────────────────────────────────────────────────────────────

BAD = "import perdure, time\n@perdure.workflow\nasync def f(): time.time()\n"


def test_a_folder(tmp_path: Path) -> None:
    for name in ("b.py", "a/x.py", ".venv/x.py", "node_modules/x.py", "a/__pycache__/x.py", "c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(BAD)
    (tmp_path / "broken.py").write_text("import perdure\ndef (")
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\n# \xe9\n" + BAD.encode())
    (tmp_path / "not_text.py").write_bytes(b"\xff\xfe\x00")
    found = [(Path(finding.filename).relative_to(tmp_path).as_posix(), finding.rule) for finding in lint_path(tmp_path)]
    assert found == [
        ("a/x.py", "clock"),
        ("b.py", "clock"),
        ("broken.py", "syntax"),
        ("latin.py", "clock"),
        ("not_text.py", "syntax"),
    ]
    assert [finding.rule for finding in lint_path(str(tmp_path / "b.py"))] == ["clock"]


def test_a_place_that_two_workflows_reach_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "import perdure, time\ndef t(): time.time()\n"
        "@perdure.workflow\nasync def f(): t()\n@perdure.workflow\nasync def g(): t()\n"
    )
    assert len(lint_path(tmp_path)) == 1


@pytest.mark.parametrize(
    "text", ["", "def (", "\0", "x = " + " + ".join(["1"] * 5_000), "import perdure\n" + "(" * 500]
)
def test_odd_texts(text: str) -> None:
    assert all(finding.rule == "syntax" for finding in lint_source(text))


def test_too_deep_to_read_is_no_finding() -> None:
    deep = " + ".join(["q"] * 3_000)
    assert all(finding.rule == "syntax" for finding in lint_source(module_around(f"x = {deep}")))


def test_what_the_project_s_own_folder_has() -> None:
    assert [finding for finding in lint_path(HERE.parents[2] / "src") if finding.severity is Severity.ERROR] == []


def test_a_function_at_its_declaration(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    source = (
        "import time\ndef workflow(function): return function\nif False:\n    from perdure import workflow\n\n"
        "@workflow\nasync def good(): ...\n\n@workflow\nasync def bad():\n    time.time()\n"
    )
    path.write_text(source)
    names: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), names)
    assert lint_function(names["good"]) == []
    [finding] = lint_function(names["bad"])
    assert (finding.filename, finding.line, finding.rule, finding.function) == (str(path), 11, "clock", "bad")


def test_no_source_no_findings() -> None:
    names: dict[str, Any] = {}
    exec(BAD.replace("@perdure.workflow\n", ""), {"perdure": None}, names)
    assert lint_function(names["f"]) == []
    assert lint_function(print) == []
    assert lint_function(asyncio.sleep) == []


# ── effects ─────────────────────────────────────────────────────────────────────────────────

AN_EFFECT = """
import time, uuid
import perdure
from perdure import NoGuarantee, effect

@effect(downstream=NoGuarantee())
async def post(letter: str) -> None: ...

"""

KEY = "@post.key\ndef _(letter: str) -> str: return letter\n"

KEYS: dict[str, tuple[str, list[str]]] = {
    "no key": ("", ["no-key"]),
    "a key": ("@post.key\ndef _(letter: str) -> str: return letter", []),
    "a key that is called for": ("post.key(lambda letter: letter)", []),
    "a key given by a loop": ("for each in [post]:\n    each.key(lambda letter: letter)", []),
    "a key under a loop": ("for each in [post]:\n    @each.key\n    def _(letter: str) -> str: return letter", []),
    "an async key": ("@post.key\nasync def _(letter: str) -> str: return letter", ["undeclarable"]),
    "a clock": ("@post.key\ndef _(letter: str) -> str: return f'{letter}{time.time()}'", ["unstable-key"]),
    "dice": ("@post.key\ndef _(letter: str) -> str:\n    return str(uuid.uuid4())", ["unstable-key"]),
    "another one's key": (
        "@effect(downstream=NoGuarantee())\ndef other() -> None: ...\n@other.key\ndef _() -> str: return ''", ["no-key"]
    ),
    "plain in a workflow": (
        KEY + "@perdure.workflow\nasync def flow() -> None: await post.plain('a')",
        ["plain-effect"],
    ),
    "in a step": (
        KEY + "@perdure.step\nasync def tool() -> None: await post('a')",
        ["misplaced"],
    ),
    "plain in a step": (
        KEY + "@perdure.step\nasync def tool() -> None: await post.plain('a')",
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("code", "rules"), KEYS.values(), ids=KEYS)
def test_what_is_said_of_effects(code: str, rules: list[str]) -> None:
    assert [finding.rule for finding in lint_source(AN_EFFECT + code)] == rules


# ── decisions ───────────────────────────────────────────────────────────────────────────────

DECIDES = """
import perdure

@perdure.step
async def read(claim): ...

@perdure.step(OPTIONS)
async def decide(claim): ...

@perdure.effect(downstream=perdure.Idempotent())
async def refund(claim, cents): ...

@refund.key
def _(claim, cents): return claim

@perdure.workflow
async def claims(claim):
    facts = await read(claim)
    verdict = await decide(facts)
    cents = verdict.cents + 1
    await perdure.with_approval(refund.call(claim, cents=cents), by="ann")
    return await read(facts)
"""


@pytest.mark.parametrize(
    ("options", "more", "steps"),
    [
        ("", "", ["decide"]),
        ("timeout=3", "", ["decide"]),
        ("valid_for=60", "", []),
        ('recovery="replay"', "", []),
        ("**options", "", []),
        ("", "@decide.premise('policy')\nasync def _(claim): ...", []),
    ],
)
def test_a_step_whose_result_reaches_an_effect_says_how_long_it_is_good(
    options: str, more: str, steps: list[str]
) -> None:
    found = lint_source(DECIDES.replace("OPTIONS", options) + more)
    assert [finding.rule for finding in found] == ["unchecked-decision"] * len(steps)
    assert [finding.message.partition("()")[0] for finding in found] == ["refund"] * len(steps)
    assert all(finding.function == "" for finding in found), "nobody is told of it when a worker starts"


@pytest.mark.parametrize(
    ("options", "on", "rules"),
    [
        ("valid_for=60", "[decide]", []),
        ("valid_for=60", '["decide", read]', []),
        ('valid_for=60, name="decided"', '["decided"]', []),
        ("valid_for=60", '("policy",)', []),
        ("valid_for=60", "ANY", []),
        ('recovery="replay"', "[]", []),
        ("valid_for=60", "[]", ["decision-left-out"]),
        ("valid_for=60", '["limit"]', ["decision-left-out"]),
    ],
)
def test_an_effect_names_what_it_goes_by(options: str, on: str, rules: list[str]) -> None:
    source = DECIDES.replace("OPTIONS", options).replace("Idempotent()", f"Idempotent(), relies_on={on}")
    found = lint_source(source + "@decide.premise('policy')\nasync def _(claim): ...")
    assert [finding.rule for finding in found] == rules

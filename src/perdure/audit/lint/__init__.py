"""Does the source of a workflow do what a replay cannot repeat? `perdure code lint`, and a look at each declaration.

Reads the syntax alone: nothing is imported, nothing is run. It knows what the file itself says, no more; what it finds
is nearly always wrong, what it does not find may be wrong all the same: checked mode sees more.

    # perdure: ignore[clock]        on a line of the finding keeps that rule silent there; without brackets, all of them
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.audit.lint.hits import Hit
from perdure.audit.lint.reader import read
from perdure.audit.lint.rules import RULES, Rule, Severity

__all__ = [
    "RULES", "Finding", "Rule", "Severity", "docs_page", "is_silenced", "lint_function", "lint_path", "lint_source",
]  # fmt: skip

SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist", "venv"})
"""And those whose name begins with a dot."""

_IGNORE = re.compile(r"#\s*perdure:\s*ignore(?:\[([\w\s,-]*)\])?")


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A place that is against a rule. `line` counts from 1, `column` from 1; `function` is the workflow or step."""

    filename: str
    line: int
    column: int
    rule: str
    message: str
    fix: str
    function: str = ""
    function_line: int = 0
    """Of its first decorator."""

    @property
    def severity(self) -> Severity:
        return RULES[self.rule].severity

    def __str__(self) -> str:
        where = f" ({self.function})" if self.function else ""
        return (
            f"{self.filename}:{self.line}:{self.column}: {self.severity} {self.rule}{where}: {self.message} {self.fix}"
        )


def lint_source(text: str, filename: str = "<text>") -> list[Finding]:
    """The findings in a module's text, in the order of its lines.

    >>> [finding] = lint_source("import perdure, time\\n@perdure.workflow\\nasync def f():\\n    return time.time()\\n")
    >>> print(finding.line, finding.rule, finding.message)
    4 clock time.time() reads the clock, so a replay takes another path.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        return [_unreadable(filename, getattr(error, "lineno", None) or 1)]
    if "perdure" not in text:
        return []
    lines = text.splitlines()
    try:
        return sorted({_finding(hit, filename) for hit in read(tree) if not _is_ignored(hit, lines)})
    except RecursionError:  # an expression of thousands of terms: nothing that a person wrote
        return []


def lint_path(path: Path | str) -> list[Finding]:
    """The findings in a file, or in all `*.py` below a folder. Hidden folders and installed packages are left out.

    A place in a function that several workflows call is told once.
    """
    path = Path(path)
    files = sorted(_files(path)) if path.is_dir() else [path]
    found = [finding for file in files for finding in _lint_file(file)]
    return list({(one.filename, one.line, one.column, one.rule): one for one in reversed(found)}.values())[::-1]


def lint_function(function: Callable[..., Any]) -> list[Finding]:
    """The findings about one workflow or step that is being declared; none if its source cannot be read.

    The file is parsed once, however many functions in it are asked about.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    lines = linecache.getlines(code.co_filename, getattr(function, "__globals__", None))
    findings = _lint_once("".join(lines), code.co_filename) if lines else ()
    return [finding for finding in findings if finding.function_line == code.co_firstlineno]


@functools.lru_cache(maxsize=8)
def _lint_once(text: str, filename: str) -> tuple[Finding, ...]:
    return tuple(lint_source(text, filename))


def _files(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.is_dir():
            if not entry.name.startswith(".") and entry.name not in SKIPPED_FOLDERS and not entry.is_symlink():
                yield from _files(entry)
        elif entry.suffix == ".py":
            yield entry


def _lint_file(path: Path) -> list[Finding]:
    try:
        with tokenize.open(path) as file:  # the encoding may stand in the first line
            text = file.read()
    except (SyntaxError, UnicodeDecodeError):
        return [_unreadable(str(path), 1)]
    return lint_source(text, str(path))


def _unreadable(filename: str, line: int) -> Finding:
    rule = RULES["syntax"]
    return Finding(filename, line, 1, rule.id, rule.says, rule.fix)


def _finding(hit: Hit, filename: str) -> Finding:
    rule, declared = RULES[hit.rule], hit.declared
    return Finding(
        filename,
        getattr(hit.node, "lineno", 1),
        getattr(hit.node, "col_offset", 0) + 1,
        rule.id,
        rule.says.format(**hit.found),
        rule.fix.format(**hit.found),
        "" if declared is None else declared.function.name,
        0 if declared is None else declared.first_line,
    )


def _is_ignored(hit: Hit, lines: Sequence[str]) -> bool:
    first = getattr(hit.node, "lineno", 1)
    last = first if isinstance(hit.node, ast.ExceptHandler) else getattr(hit.node, "end_lineno", None) or first
    return is_silenced(hit.rule, lines[first - 1 : last])


def is_silenced(rule: str, lines: Sequence[str]) -> bool:
    """Whether a comment on one of these lines says that the rule is to be silent there."""
    for line in lines:
        comment = _IGNORE.search(line)
        if comment is not None:
            names = comment[1]
            return names is None or rule in re.split(r"[\s,]+", names)
    return False


# ── the page about it ───────────────────────────────────────────────────────────────────────


def docs_page() -> str:
    """docs/lint.md, made from the table of rules."""
    rows = "\n".join(f"| [`{rule.id}`](#{rule.id}) | {rule.severity} | {rule.title} |" for rule in RULES.values())
    return _PAGE.format(rows=rows, sections="\n".join(map(_section, RULES.values())))


def _section(rule: Rule) -> str:
    found = next(finding for finding in lint_source(module_around(rule.bad)) if finding.rule == rule.id)
    return _SECTION.format(
        id=rule.id, title=rule.title, says=found.message, fix=found.fix, bad=rule.bad, good=rule.good
    )


def module_around(body: str) -> str:
    """A module whose one workflow has this body: what the examples of the rules stand in."""
    return EXAMPLE.format(body=textwrap.indent(body, "    "))


_PAGE = """\
# What `perdure code lint` finds

<!-- Made by perdure.audit.lint.docs_page(): change the table of rules, not this page. -->

    perdure code lint app.py src/

It reads the syntax of workflows, of the functions of the same file that they call, and of steps. Nothing is imported
and nothing is run, so it knows only what the file itself says. An *error* raises, hangs, or makes a run diverge; a
*warning* may; an *info* works, but perhaps not as meant. A comment on the line keeps a rule silent there:

    started = time.time()  # perdure: ignore[clock]

`perdure worker` logs errors and warnings about its workflows when it starts; so does a `Runtime` in checked mode
(`guard=True`). A plain `Runtime` does not take the time: reading a file costs some milliseconds.

The examples below are lines of an async workflow; `fetch` is an `async def` step, `judge` one that says for how long
its result is good, `add` a `def` step, `pay` an effect.

| rule | severity | about |
|---|---|---|
{rows}

{sections}"""

EXAMPLE = """\
import asyncio, os, random, time, uuid
from datetime import timedelta
import httpx
import perdure

@perdure.step
async def fetch(url: str) -> str: ...

@perdure.step(valid_for=3600)
async def judge(q: str) -> str: ...

@perdure.step
def add(a: int, b: int) -> int: ...

@perdure.effect(downstream=perdure.Idempotent())
async def pay(order: str) -> None: ...

@pay.key
def _(order: str) -> str: return order

@perdure.workflow
async def flow(q: str) -> None:
{body}
"""

_SECTION = """\
## {id}

{title}.

```python
{bad}
```

{says} {fix}

```python
{good}
```
"""

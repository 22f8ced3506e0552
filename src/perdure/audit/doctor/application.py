"""What the doctor looks at: what was declared, the source that it stands in, and what a store knows of it."""

from __future__ import annotations

import ast
import os
import tokenize
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any

from perdure.audit.lint import Finding, lint_source
from perdure.audit.lint.names import Declared, Function, Scope
from perdure.audit.lint.uses import Use, Uses
from perdure.specs import EffectSpec, StepSpec, WorkflowSpec
from perdure.store.protocol import Store

Key = tuple[str, int]
"""Name and version of a workflow."""


@dataclass(frozen=True)
class SourceFile:
    """A file that could be read."""

    path: str
    """Where it is, without links."""
    filename: str
    """As it is shown."""
    lines: Sequence[str]
    uses: Uses
    findings: Sequence[Finding]
    """The linter's."""


@dataclass(frozen=True)
class Body:
    """A function as it stands in a file."""

    file: SourceFile
    function: Function
    scope: Scope
    """The names inside."""

    def where(self, node: ast.AST | None = None) -> str:
        return f"{self.file.filename}:{getattr(node or self.function, 'lineno', 1)}"

    @property
    def uses(self) -> list[Use]:
        return [use for use in self.file.uses.calls if self.function in use.inside]


@dataclass(frozen=True)
class Replayed:
    """A run of the store, replayed on this code. `problem`: where code and history part; "" if they do not. `patch`:
    the line that would guard the change. `is_in_part`: hosted code was not replayed."""

    run_id: str
    problem: str
    patch: str
    is_in_part: bool


@dataclass(frozen=True)
class Application:
    """Workflows, and all that they lead to."""

    workflows: Sequence[WorkflowSpec]
    steps: Sequence[StepSpec]
    """Effects among them, and their undoings."""
    files: Sequence[SourceFile]
    unreadable: Sequence[str]
    """Files that should have been read and could not."""
    leads_to: Callable[[Any], Iterable[FunctionType]]
    """A function, and the plain ones beside it that it leads to."""
    values_of: Callable[[Any], Mapping[str, Any]]
    """What a function names besides code, by where it is found."""
    reached: Mapping[Key, Sequence[WorkflowSpec | StepSpec]]
    """What each workflow leads to, over its children too."""
    sources: Mapping[Key, str]
    """The digest of each workflow's source."""
    store: Store | None = None
    replayed: Sequence[Replayed] | None = None
    """None: there was no store to look in."""

    @property
    def effects(self) -> list[EffectSpec]:
        return [step for step in self.steps if isinstance(step, EffectSpec)]

    @property
    def plain_steps(self) -> list[StepSpec]:
        return [step for step in self.steps if not isinstance(step, EffectSpec)]

    def is_undoing(self, effect: EffectSpec) -> bool:
        return any(effect is each.undo for each in self.effects)

    @cached_property
    def uses(self) -> list[Use]:
        """Every call in all files."""
        return [use for file in self.files for use in file.uses.calls]

    def named(self, *names: str) -> list[Use]:
        """The calls of these functions."""
        return [use for use in self.uses if use.name in names]

    def findings(self, *rules: str) -> list[Finding]:
        return [finding for file in self.files for finding in file.findings if finding.rule in rules]

    # ── where things stand ──────────────────────────────────────────────────────────────────

    def body_of(self, function: Any) -> Body | None:
        """None if its source is not to be had."""
        code = getattr(function, "__code__", None)
        if code is None or (file := self._by_path.get(os.path.realpath(code.co_filename))) is None:
            return None
        found = file.uses.functions.get(code.co_firstlineno)
        return None if found is None else Body(file, *found)

    @cached_property
    def _by_path(self) -> dict[str, SourceFile]:
        return {file.path: file for file in self.files}

    def where(self, function: Any) -> str:
        """`app.py:12`, or the module if its source is not to be had."""
        body = self.body_of(function)
        return f"module {getattr(function, '__module__', '?')}" if body is None else body.where()

    def bodies_of(self, function: Any) -> list[Body]:
        """Of the function itself and of all that it leads to; those that can be read."""
        found = (self.body_of(each) for each in self.leads_to(function))
        return [body for body in found if body is not None]

    def uses_in(self, function: Any) -> list[Use]:
        """The calls in a function and in all that it leads to."""
        uses = {id(use.node): use for body in self.bodies_of(function) for use in body.uses}
        return list(uses.values())

    @cached_property
    def hosted(self) -> list[Body]:
        """Functions of the same file that are given to `perdure.section().run`."""
        found: list[Body] = []
        for file in self.files:
            for use in file.uses.calls:
                given = use.argument("", 0) if use.name == "perdure.section().run" else None
                meaning = None if given is None else use.scope.meaning(given)
                if isinstance(meaning, Declared):
                    found += [Body(file, *it) for it in file.uses.functions.values() if it[0] is meaning.function]
        return found


def read_files(paths: Iterable[str]) -> tuple[list[SourceFile], list[str]]:
    """The files that can be read, and the names of those that cannot."""
    files: list[SourceFile] = []
    unreadable: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths}):
        shown = _shown(path)
        try:
            files.append(_read(path, shown))
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            unreadable.append(f"{shown} ({type(error).__name__})")
    return files, unreadable


def _read(path: str, shown: str) -> SourceFile:
    with tokenize.open(path) as file:  # the encoding may stand in the first line
        text = file.read()
    return SourceFile(path, shown, text.splitlines(), Uses(ast.parse(text), shown), lint_source(text, shown))


def _shown(path: str) -> str:
    """As seen from here, if it is below."""
    here = os.path.relpath(path)
    return path if here.startswith("..") else here

"""Secrets: not in the source, not in what is recorded, and not for ever."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from perdure.audit.doctor.application import Application, SourceFile
from perdure.audit.doctor.checklist import Answer
from perdure.codec.scrubbing import WELL_KNOWN, Pattern
from perdure.specs import StepSpec, WorkflowSpec

ROTATE = "take it out, have it replaced by another one, and fetch that by perdure.secret(...)"
SECRET_NAME = re.compile(
    r"(?:^|_)(?:password|passwd|passphrase|secret|api_?key|private_key|access_key|credentials?|"
    r"(?:access|auth|api|bearer|refresh)_token)$|^token$",
    re.IGNORECASE,
)
"""Names of parameters and options that hold a secret; not `page_token`, not `business_key`."""
SECRET_VARIABLE = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
"""Names of variables of the environment."""


def secrets_stay_out(app: Application, answer: Answer) -> None:
    for file in app.files:
        for line, what in _literals(file):
            answer.fault(f"{file.filename}:{line}", f"it looks like {what}", ROTATE)
    specs: list[StepSpec | WorkflowSpec] = [*app.steps, *app.workflows]
    for spec in specs:
        for name in inspect.signature(spec.function).parameters:
            if SECRET_NAME.search(name):
                answer.fault(
                    app.where(spec.function), f"{spec.name} takes {name!r}: arguments are recorded",
                    "have the step fetch it: @step(secrets={...}) and perdure.secret(...)",
                )  # fmt: skip
    answer.seen.append(f"none in the source ({len(app.files)}), none in the arguments of steps ({len(app.steps)})")


def _literals(file: SourceFile) -> Iterator[tuple[int, str]]:
    """Lines with something that is a secret, as far as its shape or its name says. Never the thing itself."""
    for node in ast.walk(file.uses.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            yield from ((node.lineno, f"a {form.name}") for form in WELL_KNOWN if _is_in(form, text))
    for use in file.uses.calls:
        for keyword in use.node.keywords:
            if keyword.arg and SECRET_NAME.search(keyword.arg) and _is_text(keyword.value):
                yield keyword.value.lineno, f"the value of {keyword.arg}="


def _is_in(form: Pattern, text: str) -> bool:
    """And not as a template for one: `postgresql://{user}:{password}@{host}`."""
    found = form.regex.search(text) if not form.hints or any(hint in text for hint in form.hints) else None
    return found is not None and not set("{<$%") & set(found[0])


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and len(node.value) >= 8


# ── for how long ────────────────────────────────────────────────────────────────────────────


def credentials_expire(app: Application, answer: Answer) -> None:
    for file in app.files:
        for line, is_inside in _read_from_environment(file):
            where = f"{file.filename}:{line}"
            if is_inside:
                answer.seen.append(f"{where}: read where it is used")
            else:
                answer.fault(
                    where, "a credential is read when the module is loaded, and kept for ever",
                    "declare it, @step(secrets={...}), and take perdure.secret(...): it is fetched for each attempt",
                )  # fmt: skip
    for step in app.steps:
        if step.secrets:
            answer.seen.append(f"{step.name}: {', '.join(sorted(step.secrets))}, fetched for each attempt")
    if not answer.faults and not answer.seen:
        answer.unchecked.append("no credential is seen in the source; what clients fetch by themselves is not known")


def _read_from_environment(file: SourceFile) -> Iterator[tuple[int, bool]]:
    """Where something with the name of a secret is read, and whether that is in a function."""
    for use in file.uses.calls:
        if use.name in {"os.getenv", "os.environ.get"} and _is_secret(use.argument("key", 0)):
            yield use.line, bool(use.inside)
    for item in file.uses.items:
        if item.of == "os.environ" and _is_secret(item.node.slice):
            yield item.node.lineno, item.is_inside


def _is_secret(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(SECRET_VARIABLE.search(node.value))

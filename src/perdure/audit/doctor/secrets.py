"""Secrets: not in the source, not in what is recorded, and not for ever."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping

from perdure.audit.doctor.application import Application, SourceFile
from perdure.audit.doctor.checklist import Answer
from perdure.specs import StepSpec, WorkflowSpec

SHAPES: Mapping[str, str] = {
    "a key of a model's provider": r"\bsk-[A-Za-z0-9_-]{20,}",
    "a Stripe key": r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    "an AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,})",
    "a GitLab token": r"\bglpat-[A-Za-z0-9_-]{20}",
    "a Slack token": r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    "a Google key": r"\bAIza[0-9A-Za-z_-]{35}",
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "a signed token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.",
    "a password in a URL": r"\b[a-z][a-z0-9+]*://[^\s:/@]+:[^\s:/@{}]{3,}@",
}
"""What keys look like."""
_SHAPES = {what: re.compile(shape) for what, shape in SHAPES.items()}

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
            answer.fault(f"{file.filename}:{line}", f"it looks like {what}", "take it out, replace it, and fetch it")
    specs: list[StepSpec | WorkflowSpec] = [*app.steps, *app.workflows]
    for spec in specs:
        for name in inspect.signature(spec.function).parameters:
            if SECRET_NAME.search(name):
                answer.fault(
                    app.where(spec.function), f"{spec.name} takes {name!r}: arguments are recorded",
                    "have the step fetch it where it is used",
                )  # fmt: skip
    answer.seen += [f"{use.filename}:{use.line}: perdure.secret" for use in app.named("perdure.secret")]
    answer.seen.append(f"none in the source ({len(app.files)}), none in the arguments of steps ({len(app.steps)})")


def _literals(file: SourceFile) -> Iterator[tuple[int, str]]:
    """Lines with something that is a secret, as far as its shape or its name says. Never the thing itself."""
    for node in ast.walk(file.uses.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            yield from ((node.lineno, what) for what, shape in _SHAPES.items() if shape.search(text))
    for use in file.uses.calls:
        for keyword in use.node.keywords:
            if keyword.arg and SECRET_NAME.search(keyword.arg) and _is_text(keyword.value):
                yield keyword.value.lineno, f"the value of {keyword.arg}="


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
                    "read it where it is used, in a step: each attempt then has the one of that time",
                )  # fmt: skip
    answer.seen += [f"{use.filename}:{use.line}: perdure.secret" for use in app.named("perdure.secret")]
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

"""Effects: their ids, what the other side is told, what happens when an answer is lost."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from perdure.audit.doctor.application import Application, Body
from perdure.audit.doctor.checklist import Answer
from perdure.audit.lint.names import Scope, nodes_here
from perdure.audit.lint.uses import Use
from perdure.specs import CanLookUp, EffectSpec, Idempotent, NoGuarantee, SameDatabase

CHANGING = ("put", "patch", "delete", "send_message", "sendmail", "chat_postMessage")
"""What is called on a client to change something: last names that mean nothing else."""
POSTING = ("post",)
"""And one that is as often a question (a search, a model) as a change."""

HTTP_CLIENTS = ("httpx.Client()", "httpx.AsyncClient()", "perdure.http.client()", "perdure.http.sync_client()")
MAKES_HTTP_CLIENT = ("perdure.http.client", "perdure.http.sync_client")
OPERATION = "perdure.operation"


def stable_id(app: Application, answer: Answer) -> None:
    for effect in app.effects:
        if app.is_undoing(effect):
            continue  # it has the key of what it undoes
        if effect.key is None:
            answer.fault(
                app.where(effect.function), f"{effect.name} has no key, so it has no operation id",
                f"add @{effect.function.__name__}.key over a function of the same arguments",
            )  # fmt: skip
        else:
            answer.seen.append(f"{effect.name} has its key at {app.where(effect.key)}")
    for finding in app.findings("unstable-key"):
        answer.fault(f"{finding.filename}:{finding.line}", finding.message, finding.fix)
    for step in app.plain_steps:
        for use in app.uses_in(step.function):
            _look_at_step(step.name, use, answer)
    if not app.effects and not answer.faults:
        answer.seen.append("there are no effects")


def _look_at_step(step: str, use: Use, answer: Answer) -> None:
    """A plain step that changes something outside has no operation id."""
    client, _, method = use.name.rpartition(".")
    where = f"{use.filename}:{use.line}"
    if not client or client.startswith("perdure.operation"):
        return
    if method in CHANGING and ("()" in client or client in {"requests", "httpx"}):
        answer.fault(
            where, f"the step {step} calls {use.name}(), which changes something outside, and a step may run twice",
            f"declare {step} with @perdure.effect(downstream=...) and give it a key",
        )  # fmt: skip
    elif method in POSTING:
        answer.seen.append(f"{where}: the step {step} posts; if that changes something, it has to be an effect")


def idempotency_key(app: Application, answer: Answer) -> None:
    for effect in app.effects:
        match effect.downstream:
            case Idempotent():
                _look_at_idempotent(app, effect, answer)
            case SameDatabase():
                answer.seen.append(f"{effect.name} is in the store's own transaction: it needs none")
            case _:
                answer.seen.append(f"{effect.name} is not declared Idempotent(): see the next question")
    if not app.effects:
        answer.seen.append("there are no effects")


def _look_at_idempotent(app: Application, effect: EffectSpec, answer: Answer) -> None:
    bodies = app.bodies_of(effect.function)
    if app.body_of(effect.function) is None:
        answer.unchecked.append(f"{effect.name}: its source is not to be had")
        return
    evidence = next((found for body in bodies for found in _keys_sent(app, body)), None)
    if evidence is None:
        answer.fault(
            bodies[0].where(),
            f"{effect.name} is declared Idempotent(), and nothing in it gives the other side a key",
            "send perdure.operation().id as the idempotency key, or use perdure.http.client(), which does",
        )  # fmt: skip
    else:
        answer.seen.append(f"{effect.name} {evidence}")


def _keys_sent(app: Application, body: Body) -> Iterator[str]:
    """Where the operation's id is taken to be sent, or a client that sends it by itself is used."""
    scope = body.scope
    for node in ast.walk(body.function):
        if isinstance(node, ast.Attribute) and node.attr in {"id", "headers"} and _is_operation(scope, node.value):
            yield f"takes operation().{node.attr} at {body.where(node)}"
        elif isinstance(node, ast.Call) and any(_is_operation(scope, given) for given in _given(node)):
            yield f"hands on operation() at {body.where(node)}"
    if app.named(*MAKES_HTTP_CLIENT):
        for use in body.uses:
            if use.name.startswith(HTTP_CLIENTS):
                yield f"sends by perdure's HTTP client at {use.filename}:{use.line}"


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _is_operation(scope: Scope, node: ast.expr) -> bool:
    return scope.meaning(node) == f"{OPERATION}()"


def reconciliation(app: Application, answer: Answer) -> None:
    for effect in app.effects:
        back = "" if app.is_undoing(effect) else "; it can be undone" if effect.undo else "; it has no undo"
        match effect.downstream:
            case CanLookUp() if effect.lookup is None:
                answer.fault(
                    app.where(effect.function), f"{effect.name} is declared CanLookUp(), and has no look-up",
                    "add its look-up (`@....lookup`, for an undoing `undo(lookup=...)`), or declare NoGuarantee()",
                )  # fmt: skip
            case CanLookUp():
                _look_at_lookup(app, effect, answer, back)
            case NoGuarantee():
                answer.seen.append(f"{effect.name} is NoGuarantee(): a person decides{back}")
            case Idempotent():
                answer.seen.append(f"{effect.name} is sent again under its key{back}")
            case SameDatabase():
                answer.seen.append(f"{effect.name} happens with its record, or not at all{back}")
    if not app.effects:
        answer.seen.append("there are no effects")


def _look_at_lookup(app: Application, effect: EffectSpec, answer: Answer, back: str) -> None:
    """A failure to ask is no answer."""
    body = app.body_of(effect.lookup)
    for node in () if body is None else ast.walk(body.function):
        if body is not None and isinstance(node, ast.ExceptHandler) and _says_not_found(node, body.scope):
            answer.fault(
                body.where(node),
                f"the look-up of {effect.name} takes a failure for NotFound(): it would be sent twice",
                "let the failure out, or answer perdure.Unsure(...)",
            )  # fmt: skip
    answer.seen.append(f"{effect.name} is looked up at {app.where(effect.lookup)}{back}")


def _says_not_found(handler: ast.ExceptHandler, scope: Scope) -> bool:
    said = (node.value for node in nodes_here(handler.body) if isinstance(node, ast.Return))
    return _is_broad(handler, scope) and any(
        isinstance(one, ast.Call) and scope.meaning(one.func) == "perdure.NotFound" for one in said
    )


BROAD = frozenset({"builtins.Exception", "builtins.BaseException"})
VERDICTS = frozenset({"perdure.Retryable", "perdure.Final"})


def told_apart(app: Application, answer: Answer) -> None:
    for step in app.steps:
        body = app.body_of(step.function)
        if body is None:
            answer.unchecked.append(f"{step.name}: its source is not to be had")
            continue
        for each in app.bodies_of(step.function):
            _look_at_failures(step.name, each, answer)
        how = "its own Retry(on=...) and " if step.retry.on is not None else ""
        answer.seen.append(f"{step.name}: {how}perdure's table of failures")
    if not app.steps:
        answer.seen.append("there are no steps")


def _look_at_failures(step: str, body: Body, answer: Answer) -> None:
    for node in nodes_here(body.function.body):
        if isinstance(node, ast.ExceptHandler) and _is_broad(node, body.scope):
            if not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
                answer.fault(
                    body.where(node), f"{step} catches every failure and goes on: none is tried again",
                    "catch what you can name, and let the rest out",
                )  # fmt: skip
            elif verdict := _verdict_for_all(node, body.scope):
                answer.fault(
                    body.where(node), f"{step} makes every failure {verdict}",
                    "say it of the failures that are, and let the rest out: perdure knows HTTP and the network",
                )  # fmt: skip
        elif isinstance(node, ast.Raise) and _meaning_raised(node, body.scope) in BROAD:
            answer.fault(
                body.where(node), f"{step} raises a bare Exception: whether to try again cannot be told from it",
                "raise perdure.Final(...) or perdure.Retryable(...), or a class that says what happened",
            )  # fmt: skip


def _is_broad(handler: ast.ExceptHandler, scope: Scope) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
    return not caught or any(scope.meaning(one) in BROAD for one in caught)


def _verdict_for_all(handler: ast.ExceptHandler, scope: Scope) -> str:
    """`except Exception as e: raise Retryable(...) from e`, whatever it was."""
    meanings = (_meaning_raised(node, scope) for node in handler.body if isinstance(node, ast.Raise))
    return next((name.rpartition(".")[2] for name in meanings if name in VERDICTS), "")


def _meaning_raised(node: ast.Raise, scope: Scope) -> str:
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    meaning = None if raised is None else scope.meaning(raised)
    return meaning if isinstance(meaning, str) else ""

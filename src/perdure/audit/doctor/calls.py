"""What is called from where: what comes again on resume, what is recorded, who retries, what has a time limit."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from perdure.audit.doctor.application import Application, Body
from perdure.audit.doctor.checklist import Answer
from perdure.audit.lint.names import Value, nodes_here
from perdure.audit.lint.reader import rule_of
from perdure.audit.lint.rules import AWAITED, CLIENT_MODULES, CLIENTS
from perdure.audit.lint.uses import Use
from perdure.specs import EffectSpec, Idempotent, StepSpec

# ── entered again ───────────────────────────────────────────────────────────────────────────


def entered_again(app: Application, answer: Answer) -> None:
    for workflow in app.workflows:
        how = "replayed from its start" if workflow.is_async else "hosted: it runs again from its start"
        answer.seen.append(f"{workflow.name} ({app.where(workflow.function)}): {how}, answered from the record")
        for body in app.bodies_of(workflow.function):
            _look_at_finally(workflow.name, body, answer)
    for body in app.hosted:
        answer.seen.append(f"{body.function.name} ({body.where()}): a section, runs again from its start")
    for step in app.steps:
        answer.seen.append(f"{step.name} ({app.where(step.function)}): {_how_again(step)}")
    for finding in app.findings("global-state"):
        answer.fault(f"{finding.filename}:{finding.line}", finding.message, finding.fix)


def _how_again(step: StepSpec) -> str:
    if not isinstance(step, EffectSpec):
        return f"an attempt under way at a crash runs again, {step.retry.max_attempts} attempts in all"
    if isinstance(step.downstream, Idempotent):
        return "sent again under the same key"
    return "not entered again before it is known what became of it"


def _look_at_finally(workflow: str, body: Body, answer: Answer) -> None:
    for node in nodes_here(body.function.body):
        if isinstance(node, ast.Try | ast.TryStar) and node.finalbody:
            where = body.where(node.finalbody[0])
            answer.seen.append(f"{where}: a `finally` of {workflow}, run whenever the run leaves memory")
    for use in body.uses:
        if use.is_final and (use.durable is not None or use.name in AWAITED):
            answer.fault(
                f"{use.filename}:{use.line}",
                f"a durable call in a `finally` of {workflow}: refused when the run only leaves memory",
                "make it after the `try`, or in `except asyncio.CancelledError`",
            )  # fmt: skip


# ── recorded ────────────────────────────────────────────────────────────────────────────────

UNRECORDED = ("io", "thread", "blocking-sleep", "plain-effect")


def recorded(app: Application, answer: Answer) -> None:
    for finding in app.findings(*UNRECORDED):
        answer.fault(f"{finding.filename}:{finding.line}", f"{finding.function}: {finding.message}", finding.fix)
    told = {finding.function for finding in app.findings(*UNRECORDED)}
    for workflow in app.workflows:
        for place, client in _clients_named(app, workflow.function):
            if workflow.function.__name__ not in told:
                answer.fault(
                    app.where(workflow.function),
                    f"{workflow.name} uses {place}, a {client}: what it does there is not recorded",
                    "call it in a step, and the step from the workflow",
                )  # fmt: skip
    for body in app.hosted:
        for use in body.uses:
            if use.name and rule_of(use.node, use.name) == "io":
                answer.fault(
                    f"{use.filename}:{use.line}",
                    f"{use.name}() in hosted code ({body.function.name}) is not recorded, and is done again",
                    "call it in a step",
                )  # fmt: skip
    calls = sum(is_client(use.name) for step in app.steps for use in app.uses_in(step.function))
    answer.seen.append(f"steps and effects: {len(app.steps)}, calls of known clients in them: {calls}")


def is_client(name: str) -> bool:
    """Whether it makes a client, or calls one."""
    return name.partition("()")[0] in CLIENTS or name.startswith(CLIENT_MODULES)


CLIENT_CLASSES = frozenset((name.partition(".")[0], name.rpartition(".")[2]) for name in CLIENTS)


def _clients_named(app: Application, function: object) -> Iterator[tuple[str, str]]:
    """Values that code names and that are clients of known libraries, made elsewhere."""
    for place, value in app.values_of(function).items():
        for cls in type(value).__mro__:
            if (cls.__module__.partition(".")[0], cls.__name__) in CLIENT_CLASSES:
                yield place, f"{cls.__module__.partition('.')[0]}.{cls.__name__}"
                break


# ── who retries ─────────────────────────────────────────────────────────────────────────────

OWN_RETRIES: Mapping[str, str] = {
    **{name: "max_retries" for name in CLIENTS if name.startswith(("openai.", "anthropic.", "groq.", "together."))},
    "langchain_openai.ChatOpenAI": "max_retries",
    "langchain_openai.AzureChatOpenAI": "max_retries",
    "langchain_anthropic.ChatAnthropic": "max_retries",
    "google.genai.Client": "",
    "litellm.Router": "num_retries",
    "boto3.client": "",
    "boto3.resource": "",
    "urllib3.PoolManager": "retries",
    "urllib3.HTTPConnectionPool": "retries",
    "urllib3.HTTPSConnectionPool": "retries",
}
"""Clients that retry unless they are told not to, and the argument that tells them (0 or False)."""

RETRIERS = (
    "tenacity.retry",
    "tenacity.Retrying",
    "tenacity.AsyncRetrying",
    "backoff.on_",
    "stamina.",
    "retrying.retry",
)
TRANSPORTS = ("httpx_retries.", "requests.adapters.HTTPAdapter", "httpx.HTTPTransport", "httpx.AsyncHTTPTransport")
RETRY_ARGUMENTS = ("max_retries", "num_retries", "retries", "max_attempts")
OWNER = "perdure.single_retry_owner"
TELL = f"give it to {OWNER}(...), and let the step retry"


def retry_owner(app: Application, answer: Answer) -> None:
    owned = {node for use in app.named(OWNER) for node in _owned(use)}
    owned_names = {use.scope.meaning(use.node.args[0]) for use in app.named(OWNER) if use.node.args}
    for use in app.uses:
        where = f"{use.filename}:{use.line}"
        if use.name in OWN_RETRIES and use.node not in owned:
            if _is_off(use.argument(OWN_RETRIES[use.name] or "-")):
                answer.seen.append(f"{where}: {use.name} does not retry")
            else:
                answer.fault(where, f"{use.name} retries by itself, beside the step", TELL)
        elif use.name.startswith("litellm.") and "litellm" not in owned_names and is_client(use.name):
            answer.fault(where, f"{use.name} retries by itself, beside the step", TELL.replace("it", "litellm", 1))
        elif use.name.startswith(RETRIERS) or _retries_in_call(use):
            answer.fault(where, f"{use.name}() retries, beside the step", "let the step retry: @step(retry=...)")
    answer.seen += [f"{use.filename}:{use.line}: single_retry_owner" for use in app.named(OWNER)]
    answer.seen += [f"{step.name}: attempts {step.retry.max_attempts}" for step in app.steps]
    if not answer.seen:
        answer.seen.append("there are no steps")


def _owned(use: Use) -> Iterator[ast.AST]:
    """What a client was made by that is given to `single_retry_owner`."""
    for given in use.node.args:
        yield given
        _, binding = (use.scope.find(given.id) or (None, None)) if isinstance(given, ast.Name) else (None, None)
        if isinstance(binding, Value):
            yield binding.expression


def _is_off(argument: ast.expr | None) -> bool:
    return isinstance(argument, ast.Constant) and argument.value == 0  # False is, too


def _retries_in_call(use: Use) -> bool:
    """`with_options(max_retries=5)`, `litellm.completion(num_retries=3)`, a transport that retries."""
    if not is_client(use.name) and not use.name.startswith(TRANSPORTS):
        return False
    given = [use.argument(name) for name in RETRY_ARGUMENTS]
    return any(one is not None and not _is_off(one) for one in given)


# ── time limits ─────────────────────────────────────────────────────────────────────────────

LONG_SECONDS = 3_600.0
"""A step that may take longer has to say that it is alive."""

WAITS: Mapping[str, str] = {
    "perdure.receive": "within",
    "perdure.sync.receive": "within",
    "perdure.ask": "within",
    "perdure.sync.ask": "within",
}
_VERBS = "get post put patch delete head options request"
LIMITLESS: Mapping[str, int | None] = {
    **{f"requests.{verb}": None for verb in _VERBS.split()},
    **{f"{maker}().{verb}": None for maker in ("requests.Session", "requests.session") for verb in _VERBS.split()},
    "urllib.request.urlopen": 2,
    "smtplib.SMTP": 3,
    "smtplib.SMTP_SSL": 5,
    "socket.create_connection": 1,
}
"""Functions that wait for ever unless they get a `timeout`, and the place in which it may stand."""


def time_limits(app: Application, answer: Answer) -> None:
    for step in app.steps:
        _look_at_limit(app, step, answer)
    for use in app.uses:
        _look_at_wait(use, answer)
    if not answer.seen and not answer.faults:
        answer.seen.append("there are no steps")


def _look_at_limit(app: Application, step: StepSpec, answer: Answer) -> None:
    beat = step.heartbeat_timeout_seconds
    if step.timeout_seconds > LONG_SECONDS and beat is None:
        answer.fault(
            app.where(step.function), f"an attempt of {step.name} may take {step.timeout_seconds:g} s in silence",
            "give it a shorter timeout, or heartbeat_timeout= and perdure.heartbeat() in its body",
        )  # fmt: skip
    else:
        answer.seen.append(f"{step.name}: {step.timeout_seconds:g} s" + (f", heartbeat {beat:g} s" if beat else ""))


def _look_at_wait(use: Use, answer: Answer) -> None:
    where, shown = f"{use.filename}:{use.line}", use.name.removeprefix("perdure.")
    if use.is_limited or use.hides_arguments:
        return
    if use.name in WAITS and _is_missing(use.argument(WAITS[use.name])):
        answer.fault(where, f"{shown}() waits for ever", "say for how long: within=timedelta(days=3)")
    elif use.name in LIMITLESS and _is_missing(use.argument("timeout", LIMITLESS[use.name])):
        answer.fault(where, f"{shown}() has no timeout, and waits for ever", "give it one: timeout=10")
    elif is_client(use.name) and _is_none(use.argument("timeout")):
        answer.fault(where, f"{shown}(timeout=None) waits for ever", "give it a timeout")
    elif use.name in WAITS:
        answer.seen.append(f"{where}: {shown}() within a time")


def _is_none(argument: ast.expr | None) -> bool:
    return isinstance(argument, ast.Constant) and argument.value is None


def _is_missing(argument: ast.expr | None) -> bool:
    return argument is None or _is_none(argument)

"""perdure: durable execution for AI agents. An agent killed at step 47 goes on from step 47.

 what users type     what happens                                                         what is kept
 api ──────────────▶ runtime ─────▶ engine (pure: history in, commands out) ─▶ history ─▶ store

The public names are these and no others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure import sync
from perdure.api.approving import ask, with_approval
from perdure.api.effect import effect, operation, outbox, transaction
from perdure.api.inside import (
    Child,
    CurrentRun,
    attempt,
    continue_as_new,
    current_run,
    deprecate_patch,
    heartbeat,
    journal,
    lane,
    last_heartbeat,
    logger,
    now,
    patched,
    pivot,
    premise,
    random,
    receive,
    saga,
    secret,
    section,
    set_state,
    sleep,
    start,
    use,
    used,
    uuid4,
)
from perdure.api.workflow import step, workflow
from perdure.errors import (
    ApprovalExpired,
    DecisionRefused,
    DeclarationError,
    DecodeError,
    DuplicateOperation,
    EncodeError,
    Final,
    ForkPointError,
    InDoubt,
    NeedsPerson,
    NotDurableError,
    OperationConflict,
    OperationNotInDoubt,
    OperationOpen,
    OverBudget,
    PerdureError,
    PolicyDenied,
    Rejected,
    Retryable,
    RunBlockedError,
    RunCancelledError,
    RunConflictError,
    RunFinishedError,
    SecretNotAllowed,
    SecretUnavailable,
    StepError,
    StepTimeoutError,
    StoreError,
    UnknownNameError,
    UsageError,
)
from perdure.runtime.logs import hide_secrets
from perdure.runtime.operation import Operation
from perdure.runtime.outbox import OutboxMessage
from perdure.specs import Budget, CanLookUp, Found, Idempotent, NoGuarantee, NotFound, Retry, Unsure, Usage

if TYPE_CHECKING:  # as in _LATER
    from perdure import http, secrets
    from perdure.api.client import Authority, Client
    from perdure.api.notice import InboxNotice
    from perdure.api.policies import Policy, Rule
    from perdure.api.reading import HistoryEvent, RunSummary
    from perdure.api.run import Run
    from perdure.api.runtime import Runtime, Worker, lifespan
    from perdure.api.script import run
    from perdure.http.retries import single_retry_owner
    from perdure.http.webhook import Webhook
    from perdure.store.protocol import Status

__version__ = "0.1.0"

__all__ = [
    "ApprovalExpired",
    "Authority",
    "Budget",
    "CanLookUp",
    "Child",
    "Client",
    "CurrentRun",
    "DecisionRefused",
    "DeclarationError",
    "DecodeError",
    "DuplicateOperation",
    "EncodeError",
    "Final",
    "ForkPointError",
    "Found",
    "HistoryEvent",
    "Idempotent",
    "InDoubt",
    "InboxNotice",
    "NeedsPerson",
    "NoGuarantee",
    "NotDurableError",
    "NotFound",
    "Operation",
    "OperationConflict",
    "OperationNotInDoubt",
    "OperationOpen",
    "OutboxMessage",
    "OverBudget",
    "PerdureError",
    "Policy",
    "PolicyDenied",
    "Rejected",
    "Retry",
    "Retryable",
    "Rule",
    "Run",
    "RunBlockedError",
    "RunCancelledError",
    "RunConflictError",
    "RunFinishedError",
    "RunSummary",
    "Runtime",
    "SecretNotAllowed",
    "SecretUnavailable",
    "Status",
    "StepError",
    "StepTimeoutError",
    "StoreError",
    "UnknownNameError",
    "Unsure",
    "Usage",
    "UsageError",
    "Webhook",
    "Worker",
    "ask",
    "attempt",
    "continue_as_new",
    "current_run",
    "deprecate_patch",
    "effect",
    "heartbeat",
    "hide_secrets",
    "http",
    "journal",
    "lane",
    "last_heartbeat",
    "lifespan",
    "logger",
    "now",
    "operation",
    "outbox",
    "patched",
    "pivot",
    "premise",
    "random",
    "receive",
    "run",
    "saga",
    "secret",
    "secrets",
    "section",
    "set_state",
    "single_retry_owner",
    "sleep",
    "start",
    "step",
    "sync",
    "transaction",
    "use",
    "used",
    "uuid4",
    "with_approval",
    "workflow",
]

_LATER = {
    "perdure": ("http", "secrets"),
    "perdure.api.client": ("Authority", "Client"),
    "perdure.api.notice": ("InboxNotice",),
    "perdure.api.policies": ("Policy", "Rule"),
    "perdure.api.reading": ("HistoryEvent", "RunSummary"),
    "perdure.api.run": ("Run",),
    "perdure.api.runtime": ("Runtime", "Worker", "lifespan"),
    "perdure.api.script": ("run",),
    "perdure.http.retries": ("single_retry_owner",),
    "perdure.http.webhook": ("Webhook",),
    "perdure.store.protocol": ("Status",),
}
"""Where the names are that are read in when somebody uses them: what declares workflows and steps does without."""


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            found = import_module(f"perdure.{name}" if module == "perdure" else module)
            value = globals()[name] = found if module == "perdure" else getattr(found, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

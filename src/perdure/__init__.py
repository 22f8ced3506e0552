"""perdure: durable execution for AI agents. An agent killed at step 47 goes on from step 47.

 what users type     what happens                                                         what is kept
 api ──────────────▶ runtime ─────▶ engine (pure: history in, commands out) ─▶ history ─▶ store

The public names are these and no others.
"""

from typing import TYPE_CHECKING, Any

from perdure import http, secrets, sync
from perdure.api.approving import ask, with_approval
from perdure.api.client import Authority, Client, HistoryEvent, Run, RunSummary
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
from perdure.api.notice import InboxNotice
from perdure.api.runtime import Runtime, Worker, lifespan
from perdure.api.script import run
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
from perdure.http.retries import single_retry_owner
from perdure.http.webhook import Webhook
from perdure.runtime.logs import hide_secrets
from perdure.runtime.operation import Operation
from perdure.runtime.outbox import OutboxMessage
from perdure.specs import Budget, CanLookUp, Found, Idempotent, NoGuarantee, NotFound, Retry, Unsure, Usage
from perdure.store.protocol import Status

if TYPE_CHECKING:
    from perdure.api.policies import Policy, Rule

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


def __getattr__(name: str) -> Any:
    """Policies are read in when somebody has one."""
    if name in {"Policy", "Rule"}:
        from perdure.api import policies

        return getattr(policies, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""All defaults, as the docs show them, each read from the code that has it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import perdure
from perdure.api import announcing, checking, inbox, requests, settings, workflow
from perdure.clock import MICROSECONDS
from perdure.codec import scrubbing
from perdure.engine import claims, loop
from perdure.engine.calls import CHECK_AGE_MAX_MICROSECONDS
from perdure.http import TOLERANCE_SECONDS
from perdure.runtime import lease, relay, sections, silence, turn, vault
from perdure.runtime.options import Options
from perdure.runtime.outbox import WEBHOOK_TOPIC
from perdure.specs import DEFAULT_TIMEOUT_SECONDS, Retry
from perdure.store import BUSY_SECONDS


class Default(NamedTuple):
    """One row: what it is about, its value, and where one sets another."""

    what: str
    value: Any
    where: str
    unit: str = ""

    @property
    def shown(self) -> str:
        return duration(self.value) if self.unit == "s" else shown(self.value)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds >= 3600 and seconds % 3600 == 0:
        return f"{seconds / 3600:g} h"
    return f"{seconds / 60:g} min" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g} s"


def shown(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:g}"
        case timedelta():
            return duration(value.total_seconds())
        case _:
            return str(value)


def of(function: Callable[..., Any], parameter: str) -> Any:
    """The default of a parameter."""
    return inspect.signature(function).parameters[parameter].default


def _step(option: str) -> Any:
    return of(workflow._step_with, option)  # pyright: ignore[reportPrivateUsage]


def _workflow(option: str) -> Any:
    return of(workflow._workflow_with, option)  # pyright: ignore[reportPrivateUsage]


STORE = f"`PERDURE_STORE`, else `[tool.perdure] store` in `pyproject.toml`, else `{settings.DEFAULT_STORE}`"
KEPT_SECONDS = vault.KEPT_MICROSECONDS / MICROSECONDS
MARGIN_SECONDS = vault.MARGIN_MICROSECONDS / MICROSECONDS
AGAIN_ON = ", ".join(map(str, of(perdure.secrets.Provider, "again_on")))
WAITS = Options().retry_after_death_seconds

_retry, _runtime = Retry(), perdure.Runtime
_webhook = relay.RETRIES[WEBHOOK_TOPIC]

CHECK_SECONDS = CHECK_AGE_MAX_MICROSECONDS / MICROSECONDS

DEFAULTS = (
    Default("store", STORE, 'Runtime("shop.db")'),
    Default("attempts of a step, the first included", _retry.max_attempts, "Retry(max_attempts=)"),
    Default("wait before the second attempt", _retry.first_delay, "Retry(first_delay=)", "s"),
    Default("each further wait is longer by", _retry.factor, "Retry(factor=)"),
    Default("longest wait between attempts", _retry.max_delay, "Retry(max_delay=)", "s"),
    Default("waits vary by a share of", _retry.jitter, "Retry(jitter=)"),
    Default("no attempt begins later than this after the first", _retry.max_elapsed, "Retry(max_elapsed=)"),
    Default("longest attempt", DEFAULT_TIMEOUT_SECONDS, "@step(timeout=)", "s"),
    Default("longest silence between heartbeats", _step("heartbeat_timeout"), "@step(heartbeat_timeout=)"),
    Default("a result is written", _step("record"), "@step(record=)"),
    Default("arguments are kept with the history", _step("record_input"), "@step(record_input=)"),
    Default("other arguments under new code", _step("on_input_drift"), "@step(on_input_drift=)"),
    Default("a result is good for", _step("valid_for"), "@step(valid_for=)"),
    Default("a result that does not stand any more", _step("on_stale"), "@step(on_stale=)"),
    Default("whether a result stands is checked", "if it rests on something", "@step(recovery=)"),
    Default("version of a workflow", _workflow("version"), "@workflow(version=)"),
    Default("a cancelled child, or one whose parent ends", of(perdure.start, "on_cancel"), "perdure.start(on_cancel=)"),
    Default("persons who have to approve", of(perdure.with_approval, "quorum"), "with_approval(quorum=)"),
    Default("how long something can be approved", of(perdure.with_approval, "within"), "with_approval(within=)"),
    Default("an approval is checked again before use", of(perdure.with_approval, "recheck"), "with_approval(recheck=)"),
    Default("people are reminded after", of(perdure.with_approval, "remind_after"), "with_approval(remind_after=)"),
    Default("others may decide, too, after", of(perdure.ask, "escalate_after"), "with_approval(escalate_after=)"),
    Default("how long a question can be answered", of(perdure.ask, "within"), "ask(within=)"),
    Default("digits of a hash that a decision names, at least", requests.HASH_DIGITS_MIN, "fixed"),
    Default("which runs a runtime continues", of(_runtime, "adopt"), "Runtime(adopt=)"),
    Default("silence after which others take a worker's runs over", of(_runtime, "lease"), "Runtime(lease=)", "s"),
    Default("a run that only waits leaves memory after", of(_runtime, "evict_after"), "Runtime(evict_after=)", "s"),
    Default("leaving waits for effects that were sent, up to", of(_runtime, "grace"), "Runtime(grace=)", "s"),
    Default("runs in memory at the same time", of(_runtime, "concurrent_runs"), "Runtime(concurrent_runs=)"),
    Default("bodies of steps at the same time", of(_runtime, "concurrent_steps"), "Runtime(concurrent_steps=)"),
    Default("threads for `def` steps", of(_runtime, "threads"), "Runtime(threads=)"),
    Default("what many runs may spend together", "no limits", "Runtime(budgets=)"),
    Default("prices of tokens", "none: a cost is what steps say", "Runtime(prices=)"),
    Default("tools, for workflows that declare none", of(_runtime, "tools"), "Runtime(tools=)"),
    Default("prompt release, likewise", of(_runtime, "prompt_release"), "Runtime(prompt_release=)"),
    Default("model policy, likewise", of(_runtime, "model_policy_version"), "Runtime(model_policy_version=)"),
    Default("a run under another release, policy or tool set than it began under", "is parked",
            "@workflow(on_contract_drift=)"),
    Default("runs that have ended looked at by `perdure code check`", checking.FINISHED_SAMPLE, "--finished"),
    Default("patterns that are not recorded", of(_runtime, "scrub"), "Runtime(scrub=)"),
    Default("a secret without an expiry is asked for again after", KEPT_SECONDS, "fixed", "s"),
    Default("a secret is asked for again before it expires by", MARGIN_SECONDS, "fixed", "s"),
    Default("HTTP statuses that say so of a kept secret", AGAIN_ON, "Provider(again_on=)"),
    Default("characters of a secret, at least", scrubbing.CHARACTERS_MIN, "fixed"),
    Default("the same, if it is letters alone", scrubbing.LETTERS_MIN, "fixed"),
    Default("minted secrets that are hidden on when their attempts are over", scrubbing.PASSING_VALUES_MAX, "fixed"),
    Default("what a worker takes up is paused", of(_runtime, "paused"), "Runtime(paused=)"),
    Default("checked mode", of(_runtime, "guard"), "Runtime(guard=)"),
    Default("a runtime's policy", of(_runtime, "policy"), "Runtime(policy=)"),
    Default("a workflow's policy", _workflow("policy"), "@workflow(policy=)"),
    Default("a check by policies holds until what it lets pass begins, for", CHECK_SECONDS, "fixed", "s"),
    Default("runs in a list", of(perdure.Client.list, "limit"), "client.list(limit=)"),
    Default("longest wait for the turn to write", BUSY_SECONDS, "open_store(busy_seconds=)", "s"),
    Default("waits between tries after deaths without progress", ", ".join(map(duration, WAITS)), "fixed"),
    Default("deaths alone until `crash_loop`", len(WAITS), "fixed"),
    Default("a turn is logged with its stack after", lease.TURN_LOGGED_SECONDS, "fixed", "s"),
    Default("turns move to a thread of their own after one of", turn.SLOW_TURN_SECONDS, "fixed", "s"),
    Default("a loop blocked by no step costs the lease after", lease.LOOP_BLOCKED_SECONDS_MAX, "fixed", "s"),
    Default("callbacks without a durable call until `stuck_turn`", loop.CALLBACKS_WITHOUT_A_COMMAND_MAX, "fixed"),
    Default("a waiting `def` workflow gives its thread back after", sections.UNWIND_SECONDS, "fixed", "s"),
    Default("arguments compared on every replay, up to bytes", claims.INPUT_COMPARED_ON_REPLAY_BYTES_MAX, "fixed"),
    Default("a due run without a worker is in the inbox after", inbox.DUE_SECONDS_BEFORE_A_PERSON_HEARS, "fixed", "s"),
    Default("a due run that live workers leave is in the inbox after", inbox.DUE_SECONDS_ALTHOUGH_SERVED, "fixed", "s"),
    Default("a run is silent if it is later than its limits by", silence.GRACE_SECONDS, "fixed", "s"),
    Default("the inbox is looked at for `on_inbox=`, at least every", announcing.LOOK_SECONDS, "fixed", "s"),
    Default("deliveries of a webhook until it is dead", _webhook.max_attempts, "fixed"),
    Default("longest wait for a webhook's answer", of(perdure.Webhook, "timeout"), "Webhook(timeout=)", "s"),
    Default("a webhook is too old after", TOLERANCE_SECONDS, "verify_webhook(tolerance=)", "s"),
)  # fmt: skip
"""Every default that a user can meet, in the order of the docs."""

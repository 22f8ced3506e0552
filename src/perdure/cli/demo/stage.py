"""What the demo happens on: the services, the workers on one store, and what can be done to them.

Everything here is a process, a signal, an HTTP request or a command that is typed.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from perdure.cli.demo.figures import Kill, Sending
from perdure.cli.demo.processes import Service, Typed, Worker, service, type_command, worker

SECONDS_MAX = 30.0
SECONDS_MAX_WITH_A_REAL_MODEL = 900.0
POLL_SECONDS = 0.01
THINK_SECONDS = 0.03

T = TypeVar("T")


class DemoFailedError(Exception):
    """The story took another turn; the message says where, and what the processes said."""


@dataclass(frozen=True)
class Services:
    """The outside world."""

    model: Service
    tickets: Service
    payments: Service
    policies: Service

    def sendings(self) -> list[Sending]:
        """What those that an agent does something with wrote down so far."""
        return [sending for each in (self.model, self.tickets, self.payments) for sending in each.records()]


@dataclass
class Stage:
    """The processes of one demo. Workers are started, killed and waited for; `stack` ends whatever is left."""

    directory: Path
    environment: Mapping[str, str]
    agent: Path
    stack: ExitStack
    started_at: float = field(default_factory=time.monotonic)
    workers: list[Worker] = field(default_factory=list[Worker])
    kills: list[Kill] = field(default_factory=list[Kill])

    @property
    def upstream(self) -> str:
        """The real model, if there is one and a key for it."""
        return self.environment.get("OPENAI_BASE_URL", "") if self.environment.get("OPENAI_API_KEY") else ""

    @property
    def models_name(self) -> str:
        """Whom the agent asks. That a model was named, and no key for it, is said."""
        if self.upstream or not self.environment.get("OPENAI_BASE_URL"):
            return self.upstream or "scripted"
        return "scripted: OPENAI_BASE_URL is set, OPENAI_API_KEY is not; if it wants none, set it to any text"

    def say(self, what: str, about: str = "") -> None:
        print(f"{time.monotonic() - self.started_at:6.2f} s  {about:<10} {what}", flush=True)

    # ── services and workers ─────────────────────────────────────────────────────────────────

    def start_services(self, *, held_question: int, held_claims: Sequence[str]) -> None:
        """The model keeps back the answer to the n-th question, the payments service those for these claims."""
        model = ["--think-seconds", str(THINK_SECONDS), "--upstream", self.upstream, "--hold", str(held_question)]
        options = {"model": model, "tickets": [], "payments": ["--hold", *held_claims], "policies": []}
        self.services = Services(
            **{name: self.stack.enter_context(service(name, self.directory, *given)) for name, given in options.items()}
        )

    def start_worker(self) -> Worker:
        number = len(self.workers) + len(self.kills) + 1
        started = self.stack.enter_context(worker(number, self.agent, self.directory, self.settings()))
        self.workers.append(started)
        return started

    def settings(self) -> dict[str, str]:
        """All know services and store by the usual variables, and reach them by no proxy."""
        return {
            **self.environment,
            "OPENAI_BASE_URL": f"{self.services.model.url}/v1",
            "OPENAI_API_KEY": self.environment.get("OPENAI_API_KEY") or "scripted",
            "TICKETS_URL": self.services.tickets.url,
            "PAYMENTS_URL": self.services.payments.url,
            "POLICIES_URL": self.services.policies.url,
            "PERDURE_STORE": str(self.directory / "perdure.db"),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def kill_sender(self, held: Sending, in_step: int) -> Kill:
        """kill -9 for the worker that waits for this answer, once all others are ready."""
        self.wait_for(lambda: all(each.is_ready() for each in self.workers), "all workers")
        (victim,) = (each for each in self.workers if each.pid == held.pid)
        kill = Kill(victim.pid, time.time(), in_step)
        self.kill(victim)
        self.kills.append(kill)
        return kill

    def kill(self, victim: Worker) -> None:
        self.workers.remove(victim)
        os.kill(victim.pid, signal.SIGKILL)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────

    def held(self, by: Service) -> Sending:
        """The request whose answer is kept back, as soon as a worker that is alive waits for one."""

        def look() -> Sending | None:
            waiting = by.records(only_unanswered=True)
            alive = {each.pid for each in self.workers}
            return next((each for each in waiting if each.held and each.pid in alive), None)

        return self.wait_for(look, f"a request that the {by.name} service holds")

    def models_refusal(self) -> str | None:
        """What the real model answered last, if that was an error, and what to look at."""
        answered = [each for each in self.services.model.records() if each.status is not None] if self.upstream else []
        if not answered or (answered[-1].status or 0) < 400:
            return None
        said = " ".join(json.loads(answered[-1].answer or "")["error"]["message"].split())
        return (
            f"no text came from the model at {self.upstream} ({answered[-1].status}): {said.rstrip('.')}. Check "
            "OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL; without OPENAI_BASE_URL a scripted model answers"
        )

    def first_after(self, kill: Kill) -> Sending:
        """What the workers sent first after a kill."""

        def look() -> Sending | None:
            later = [each for each in self.services.sendings() if each.is_agents and each.received_at > kill.at]
            return min(later, key=lambda each: each.received_at, default=None)

        return self.wait_for(look, f"another worker to go on with step {kill.in_step}")

    def blocked(self) -> str:
        """What a worker says when the run waits for a person."""

        def look() -> str | None:
            said = [line for each in self.workers for line in each.said().splitlines()]
            return next((line for line in said if " is blocked (" in line), None)

        return self.wait_for(look, "the run to be blocked")

    def end(self) -> str:
        """Wait until all workers have ended; what they say in the end."""
        workers, self.workers = self.workers, []
        self.wait_for(lambda: all(each.has_ended() for each in workers), "the end of the run")
        for each in workers:
            if each.process.returncode:
                raise DemoFailedError(f"worker {each.pid} failed:\n{each.said()}")
        return workers[0].said().splitlines()[-1]

    def wait_for(self, look: Callable[[], T | None], what: str) -> T:
        """What `look` finds, as soon as it finds something. DemoFailedError if a worker ends, or time runs out."""
        seconds_max = SECONDS_MAX_WITH_A_REAL_MODEL if self.upstream else SECONDS_MAX
        end = time.monotonic() + seconds_max
        while time.monotonic() < end:
            if found := look():
                return found
            for each in self.workers:
                if each.has_ended():
                    raise DemoFailedError(f"worker {each.pid} ended before its time:\n{each.said()}")
            time.sleep(POLL_SECONDS)
        raise DemoFailedError(f"waited {seconds_max:.0f} s for {what}")

    # ── the person ───────────────────────────────────────────────────────────────────────────

    def type(self, *words: str) -> Typed:
        """A command as a person types it. DemoFailedError if it fails."""
        typed = type_command(words, self.settings(), seconds_max=SECONDS_MAX)
        if typed.status:
            raise DemoFailedError(f"a command ended with exit code {typed.status}:\n{typed}")
        return typed

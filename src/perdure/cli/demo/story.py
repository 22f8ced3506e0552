"""The demo as it happens: services up, two workers on one store, SIGKILL in four steps, and each time another goes on.

What comes of it is told by the services' records.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import tempfile
import textwrap
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from perdure.cli.demo.figures import PERSON, Figure, Kill, Sending, Story, figures, steps_of, table
from perdure.cli.demo.gates import gates
from perdure.cli.demo.processes import AGENT, CLAIMS, command_here, examples
from perdure.cli.demo.stage import DemoFailedError, Stage
from perdure.cli.demo.standing import standing
from perdure.cli.demo.timeline import draw
from perdure.cli.exits import Stopped
from perdure.cli.stopping import SIGNALS

STEPS = 50
STEPS_PER_CLAIM = 6
"""Earlier tickets, a new ticket, assess, decide, pay, comment. Step 1 is the plan, the last one a summary."""

HELD_CLAIMS = {2: "charges", 4: "transfers", 6: "payouts"}
"""Whose payments get no answer, one on each route: the n-th is step 6 n."""

HELD_QUESTION = 17
KILL_IN_STEP = 47
"""Step 47 is the 17th question to the model: a plan, two for each of seven claims, then assess and decide."""

RUN = "claims-1"


def demo(
    directory: Path | None = None, *, environment: Mapping[str, str] = os.environ, agent: Path | None = None
) -> int:
    """Run the demo and print what the services saw. 0 if every figure is as promised, 1 if one is not, 2 for bad use.

    `directory` keeps the store, the services' databases, the logs and the timeline: a new temporary one by default.
    `agent`: another program in place of examples/claims_agent.py. With OPENAI_BASE_URL and OPENAI_API_KEY in the
    environment that model answers instead of the scripted one.
    """
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    elif directory.exists() and any(directory.iterdir()):
        print(f"perdure demo: {directory} is not empty; name a new folder")
        return 2
    if wrong := wrong_url(environment.get("OPENAI_BASE_URL", "")):
        print(f"perdure demo: {wrong}")
        return 2
    directory.mkdir(parents=True, exist_ok=True)
    claims = ids_of_claims()
    try:
        with ended_by_signals(hint=f"logs and databases are in {directory}"), ExitStack() as stack:
            stage = Stage(directory, environment, agent or examples() / AGENT, stack)
            story = happen_with_model(stage, claims)
            later = [] if stage.upstream else [*gates(stage), *standing(stage)]
    except DemoFailedError as error:
        print(f"perdure demo: {error}\nlogs and databases are in {directory}")
        return 1
    rows = [*figures(story, steps_promised=STEPS, claims_promised=len(claims)), *later]
    tell(story, rows, directory)
    return 0 if all(row.kept for row in rows) else 1


def wrong_url(url: str) -> str | None:
    """What is wrong with OPENAI_BASE_URL, if one can tell without asking it."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # its port is no number that a port can have
        is_good = False
    if is_good or not url:
        return None
    return f"OPENAI_BASE_URL is {url!r}; it must be like https://api.openai.com/v1; without it a scripted model answers"


@contextmanager
def ended_by_signals(*, hint: str) -> Generator[None, None, None]:
    """SIGINT and SIGTERM raise Stopped, so that no process is left."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number, hint)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ids_of_claims() -> list[str]:
    claims: list[dict[str, str]] = json.loads((examples() / CLAIMS).read_text(encoding="utf-8"))
    return [claim["id"] for claim in claims]


def happen_with_model(stage: Stage, claims: Sequence[str]) -> Story:
    """What happens; where a real model is why it does not, what that model said."""
    try:
        return happen(stage, claims)
    except DemoFailedError:
        if refusal := stage.models_refusal():
            raise DemoFailedError(refusal) from None
        raise


def happen(stage: Stage, claims: Sequence[str]) -> Story:
    """Start everything, kill whoever works once in four steps, and wait for the end."""
    stage.say(f"of {STEPS} steps pays {len(claims)} claims; four times whoever works on it is killed", "an agent")
    stage.start_services(held_question=HELD_QUESTION, held_claims=[claims[n - 1] for n in HELD_CLAIMS])
    model, payments = stage.services.model, stage.services.payments
    ports = f"on ports {model.port}, {stage.services.tickets.port}, {payments.port} and {stage.services.policies.port}"
    stage.say(f"model ({stage.models_name}), tickets, payments and policies, {ports}", "services")
    stage.say(f"{stage.start_worker().pid} and {stage.start_worker().pid}, on one store", "workers")
    for number, route in HELD_CLAIMS.items():
        kill_after_payment(stage, STEPS_PER_CLAIM * number, route)
    kill_in_model_call(stage)
    stage.say(stage.end(), f"step {STEPS}")
    sendings, books = stage.services.sendings(), payments.books(who="demo")
    plan = steps_of(sendings)[0].first
    return Story(sendings, stage.kills, books, None if stage.upstream else model.answer_to(plan))


def kill_after_payment(stage: Stage, step: int, route: str) -> None:
    """The service has paid, and its answer never arrives: nothing here says that the money has moved."""
    held = stage.held(stage.services.payments)
    kill = stage.kill_sender(held, step)
    stage.start_worker()
    stage.say(f"{route[:-1]} for {held.claim}: paid, but not recorded here: kill -9 {held.pid}", f"step {step}")
    if route == "payouts":
        settle(stage, held)
    go_on(stage, kill, held)


def kill_in_model_call(stage: Stage) -> None:
    held = stage.held(stage.services.model)
    kill = stage.kill_sender(held, KILL_IN_STEP)
    stage.say(f"a question to the model is under way: kill -9 {held.pid}", f"step {KILL_IN_STEP}")
    go_on(stage, kill, held)


def go_on(stage: Stage, kill: Kill, held: Sending) -> None:
    """Another worker takes over: what does it do first?"""
    first = stage.first_after(kill)
    if first.is_look:
        did = "asks the service what became of it"
    elif first.digest != held.digest:
        did = "goes on with the next step"
    else:
        did = "sends it again" + (" under the same key" if first.key else "")
    stage.say(f"worker {first.pid} {did}, {first.received_at - kill.at:.2f} s after the kill")


def settle(stage: Stage, held: Sending) -> None:
    """Nobody but a person can tell. The person sees it in the inbox, looks into the service's books, and says it."""
    stage.say(f"worker says: {stage.blocked().partition(':')[0]}")
    show(f"$ export PERDURE_STORE={stage.settings()['PERDURE_STORE']}\n{stage.type('perdure', 'inbox', 'list')}")
    books = stage.services.payments.books(who=PERSON, claim=held.claim)
    if len(books) != 1:
        raise DemoFailedError(f"the service's books have {len(books)} payments for {held.claim}, and should have one")
    number, amount = books[0].id, f"{books[0].cents / 100:.2f} EUR"
    stage.say(f"looks into the service's books: payment {number}, {amount} for {held.claim}", "a person")
    said = ("--succeeded", "--value", str(number), "--reference", f"payment {number}", "--by", "ann")
    show(str(stage.type("perdure", "inbox", "settle", RUN, *said, "--reason", "it is in their books")))


def show(terminal: str) -> None:
    print(f"\n{textwrap.indent(terminal, ' ' * 10)}\n", flush=True)


def tell(story: Story, rows: Sequence[Figure], directory: Path) -> None:
    """The figures; those that are not kept once more, by name."""
    picture = directory / "timeline.svg"
    picture.write_text(draw(story.sendings, story.kills), encoding="utf-8")
    print(f"\nFrom the records of the services, and the inbox:\n\n{table(rows)}\n")
    print(f"first plan   {steps_of(story.sendings)[0].first.text}")
    if story.other_plan is not None:
        print(f"asked again  {story.other_plan}")
    print(f"timeline     {picture}")
    print(f"history      {command_here()} runs show {RUN} --store {shlex.quote(str(directory / 'perdure.db'))}")
    if broken := [row.what for row in rows if not row.kept]:
        print(f"\nperdure demo: not as promised: {'; '.join(broken)}")

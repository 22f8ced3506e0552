"""Where secrets come from, who may have them, and what happens when they cannot be had."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.hosting import run_async

import perdure
from perdure import (
    CanLookUp,
    DeclarationError,
    Found,
    Idempotent,
    Retry,
    RunBlockedError,
    SecretNotAllowed,
    SecretUnavailable,
    UsageError,
    effect,
    secrets,
    step,
    workflow,
)
from perdure.secrets import Environment, File, Minted, Provider, SecretRequest
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

SEEN: list[Any] = []
FAILURES: list[Exception] = []
ASKED: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()
    FAILURES.clear()
    ASKED.clear()


@step(secrets={"stripe"}, retry=Retry(max_attempts=3, first_delay=1))
async def charge(order: str) -> str:
    SEEN.append(perdure.secret("stripe"))
    if FAILURES:
        raise FAILURES.pop(0)
    return order


@step(secrets={"stripe": "refunds"})
def charge_in_a_thread(order: str) -> str:
    SEEN.append(perdure.secret("stripe"))
    return order


@workflow
async def shop(order: str) -> list[str]:
    return [await charge(order), await charge_in_a_thread.call(order)]


@workflow
async def charges(times: int) -> int:
    for number in range(times):
        await charge(str(number))
    return times


def outcome(call: Any, *providers: Any, clock: FakeClock | None = None) -> Any:
    """What comes of a run with these providers."""

    async def main() -> Any:
        async with RuntimeUnderTest(secrets=providers, clock=clock) as runtime:
            return await (await runtime.start(call, id="r")).result()

    return run_async(main())


# ── where they come from ────────────────────────────────────────────────────────────────────


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_STRIPE", "from-the-environment")
    assert outcome(shop.call("7"), Environment(prefix="SHOP_")) == ["7", "7"]
    assert set(SEEN) == {"from-the-environment"}


def test_environment_without_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIPE", "from-the-environment")
    outcome(shop.call("7"), Environment())
    assert set(SEEN) == {"from-the-environment"}


def test_a_folder_of_files(tmp_path: Path) -> None:
    (tmp_path / "stripe").write_text("from-a-file-1\n")
    (tmp_path / "folder").mkdir()
    outcome(shop.call("7"), File(tmp_path))
    assert set(SEEN) == {"from-a-file-1"}
    assert list(File(tmp_path).known()) == [("stripe", "from-a-file-1")]


def test_a_name_leads_out_of_no_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "stripe").write_text("outside the folder")
    request = SecretRequest("../stripe", "", "s", "w", "r", "", 1, 1.0)
    assert File(tmp_path / "in")(request) is None


def test_a_toml_file_that_only_its_owner_may_read(tmp_path: Path) -> None:
    file = tmp_path / "secrets.toml"
    file.write_text('stripe = "from-a-table-1"\nother = 5\n')
    file.chmod(0o600)
    outcome(shop.call("7"), File(file))
    assert set(SEEN) == {"from-a-table-1"}
    file.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        outcome(shop.call("7"), File(file))


def test_a_file_that_is_no_toml_is_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "secrets.toml"
    file.write_text("stripe = hunter2-hunter2")
    file.chmod(0o600)
    with pytest.raises(UsageError, match="is no TOML file") as no:
        outcome(shop.call("7"), File(file))
    assert "hunter2" not in str(no.value)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_function_is_asked_once_and_its_answer_kept(is_async: bool) -> None:
    def ask(name: str) -> str:
        ASKED.append(threading.current_thread())
        return f"value-of-{name}"

    async def ask_async(name: str) -> str:
        await asyncio.sleep(0)
        return ask(name)

    outcome(shop.call("7"), Provider(ask_async if is_async else ask))
    assert SEEN == ["value-of-stripe"] * 2
    assert len(ASKED) == 1
    assert (ASKED[0] is threading.main_thread()) is is_async


def test_many_that_want_one_value_ask_once() -> None:
    @workflow
    async def many() -> int:
        return len(await asyncio.gather(*(charge(str(number)) for number in range(20))))

    async def ask(name: str) -> str:
        ASKED.append(name)
        await asyncio.sleep(0)
        return f"value-of-{name}"

    assert outcome(many.call(), Provider(ask)) == 20
    assert ASKED == ["stripe"]


def notes_and_has_none(name: str) -> None:
    ASKED.append(name)


def test_providers_are_asked_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "stripe").write_text("from-the-file-2")
    outcome(shop.call("7"), Provider(notes_and_has_none), File(tmp_path))
    assert set(SEEN) == {"from-the-file-2"}
    assert ASKED == ["stripe", "stripe"]  # what it does not have is nothing to be kept


def moment(clock: FakeClock) -> datetime:
    return datetime.fromtimestamp(clock.now() / 1e6, UTC)


@pytest.mark.parametrize(
    ("life", "asked"), [(timedelta(seconds=59), 4), (timedelta(seconds=61), 4), (timedelta(minutes=8), 2), (None, 2)]
)
def test_a_value_is_asked_for_again_shortly_before_it_expires(life: timedelta | None, asked: int) -> None:
    clock = FakeClock()

    def ask(name: str) -> Any:
        ASKED.append(name)
        value = f"value-{len(ASKED)}-of-{name}"
        return value if life is None else (value, moment(clock) + life)

    @workflow
    async def now_and_then() -> None:
        for number in range(4):
            await charge(str(number))
            await perdure.sleep(minutes=2, seconds=30)

    outcome(now_and_then.call(), Provider(ask), clock=clock)
    assert len(ASKED) == asked
    assert len(set(SEEN)) == asked


# ── made for one step ───────────────────────────────────────────────────────────────────────


TWICE = Retry(max_attempts=2, first_delay=0.1)


@effect(downstream=Idempotent(), secrets={"stripe": "refunds"}, retry=TWICE, timeout=30)
async def refund(order: str) -> str:
    SEEN.append((perdure.operation().id, perdure.secret("stripe")))
    if FAILURES:
        raise FAILURES.pop(0)
    return order


@refund.key
def _(order: str) -> str:
    return order


@workflow
async def refunds(order: str) -> str:
    return await refund(order)


def test_a_credential_is_minted_for_each_attempt_and_told_what_it_is_for() -> None:
    def mint(request: SecretRequest) -> str:
        ASKED.append(request)
        return f"credential-{len(ASKED)}"

    FAILURES.append(ConnectionRefusedError())
    outcome(refunds.call("7"), Minted(["other"], mint), Minted(["stripe"], mint))
    assert [value for _, value in SEEN] == ["credential-1", "credential-2"]
    first, second = ASKED
    operation = SEEN[0][0]
    assert first == SecretRequest("stripe", "refunds", "refund", "refunds", "r", operation, 1, first.life_seconds)
    assert second.attempt == 2
    assert 0 < first.life_seconds <= 30


def test_no_minted_credential_is_kept_beyond_its_attempt() -> None:
    def mint(request: SecretRequest) -> str:
        ASKED.append(request)
        return f"credential-{len(ASKED)}"

    outcome(charges.call(3), Minted(["stripe"], mint))
    assert SEEN == ["credential-1", "credential-2", "credential-3"]


# ── not good any more ───────────────────────────────────────────────────────────────────────


class Refused(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status


def test_a_kept_value_that_is_refused_is_asked_for_anew_and_the_step_tried_again() -> None:
    def ask(name: str) -> str:
        ASKED.append(name)
        return f"value-{len(ASKED)}-of-{name}"

    async def main() -> None:
        async with RuntimeUnderTest(secrets=[Provider(ask)]) as runtime:
            await (await runtime.start(charges.call(1), id="keeps it")).result()
            FAILURES.append(Refused(401))
            assert await (await runtime.start(charges.call(1), id="refused")).result() == 1

    run_async(main())
    assert SEEN == ["value-1-of-stripe", "value-1-of-stripe", "value-2-of-stripe"]


@pytest.mark.parametrize("again_on", [(401,), (401, 403), ()])
@pytest.mark.parametrize("status", [401, 403])
def test_a_fresh_value_that_is_refused_is_refused_for_good(status: int, again_on: tuple[int, ...]) -> None:
    FAILURES.extend([Refused(status)] * 3)
    provider = Provider(lambda name: f"value-of-{name}", again_on=again_on)
    with pytest.raises(perdure.StepError, match=f"HTTP {status}"):
        outcome(charges.call(1), provider)
    assert len(SEEN) == 1


def test_a_status_that_the_provider_does_not_name_is_final_with_a_kept_value_too() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(secrets=[Provider(lambda name: f"value-of-{name}")]) as runtime:
            await (await runtime.start(charges.call(1), id="keeps it")).result()
            FAILURES.append(Refused(403))
            with pytest.raises(perdure.StepError):
                await (await runtime.start(charges.call(1), id="refused")).result()

    run_async(main())
    assert len(SEEN) == 2


# ── cannot be had ───────────────────────────────────────────────────────────────────────────

IN_THE_PAST = datetime(2001, 1, 1, tzinfo=UTC)


def fails(error: Exception) -> Callable[[Any], Any]:
    def ask(_: Any) -> Any:
        ASKED.append(1)
        raise error

    return ask


@pytest.mark.parametrize(
    ("provider", "told"),
    [
        (None, "names no provider"), (Environment(prefix="NOWHERE_"), "none of Environment(prefix='NOWHERE_') has it"),
        (Provider(lambda name: ""), "an empty text"), (Provider(lambda name: " \n"), "an empty text"),
        (Provider(lambda name: "hunter2"), "fewer than 8 characters"),
        (Provider(lambda name: 5), "gave a int, not a text"),  # type: ignore[arg-type,return-value]
        (Provider(lambda name: ("value-of-it", datetime(2900, 1, 1))), "no datetime with a time zone"),  # noqa: DTZ001
        (Minted(["stripe"], lambda request: "password"), "a word of fewer than 16 letters"),
    ],
)  # fmt: skip
def test_what_is_missing_or_unusable_waits_for_a_person(provider: Any, told: str) -> None:
    async def main() -> str:
        async with RuntimeUnderTest(secrets=() if provider is None else [provider]) as runtime:
            run = await runtime.start(charges.call(1), id="r")
            with pytest.raises(RunBlockedError, match="needs_person") as no:
                await run.result()
            return str(no.value)

    said = run_async(main())
    assert "secret 'stripe' for charge" in said
    assert told in said
    assert "hunter2" not in said
    assert "password" not in said
    assert SEEN == []


def test_once_it_is_there_the_step_goes_on(tmp_path: Path) -> None:
    async def main() -> int:
        async with RuntimeUnderTest(secrets=[File(tmp_path)]) as runtime:
            run = await runtime.start(charges.call(1), id="r")
            with pytest.raises(RunBlockedError):
                await run.result()
            (tmp_path / "stripe").write_text("here it is now")
            await run.unblock("retry", by="ann")
            return await run.result()

    assert run_async(main()) == 1
    assert SEEN == ["here it is now"]


def gives_what_expired(name: str) -> tuple[str, datetime]:
    ASKED.append(name)
    return "hunter2-hunter2", IN_THE_PAST


@pytest.mark.parametrize(
    ("provider", "kind", "attempts"),
    [
        (Provider(fails(ConnectionRefusedError("at hunter2-hunter2"))), "retryable", 3),
        (Provider(fails(Refused(403))), "final", 1),
        (Minted(["stripe"], fails(TimeoutError("hunter2-hunter2"))), "retryable", 3),
        (Provider(gives_what_expired), "retryable", 3),
    ],
)  # fmt: skip
def test_a_provider_that_fails_is_asked_again_if_that_may_help(provider: Any, kind: str, attempts: int) -> None:
    with pytest.raises(SecretUnavailable) as no:
        outcome(charges.call(1), provider)
    assert (no.value.secret, no.value.kind) == ("stripe", kind)
    assert repr(provider) in no.value.providers
    assert len(ASKED) == attempts
    assert "hunter2" not in str(no.value)
    assert no.value.__cause__ is None
    assert SEEN == []


def test_an_effect_whose_secret_cannot_be_had_was_not_sent() -> None:
    answers: list[Any] = [ConnectionRefusedError(), "value-of-stripe"]

    def ask(_: str) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    async def main() -> list[str]:
        async with RuntimeUnderTest(secrets=[Provider(ask)]) as runtime:
            run = await runtime.start(refunds.call("7"), id="r")
            assert await run.result() == "7"
            return [event.kind for event in await run.history()]

    kinds = run_async(main())
    assert "effect.not_done" in kinds
    assert "effect.in_doubt" not in kinds
    assert len(SEEN) == 1


# ── who may have them ───────────────────────────────────────────────────────────────────────


@step(secrets={"stripe"})
async def asks_for_another() -> str:
    return perdure.secret("openai")


@step
async def declares_none() -> str:
    return perdure.secret("stripe")


@workflow
async def greedy(which: str) -> str:
    return await (asks_for_another() if which == "another" else declares_none())


@pytest.mark.parametrize(("which", "told"), [("another", "declares 'stripe'"), ("none", "declares none")])
def test_what_a_step_does_not_declare_it_does_not_get(which: str, told: str) -> None:
    with pytest.raises(SecretNotAllowed, match=told) as no:
        outcome(greedy.call(which), Provider(lambda name: f"value-of-{name}"))
    assert no.value.secret == ("openai" if which == "another" else "stripe")


@workflow
async def asks_itself() -> str:
    return perdure.secret("stripe")


def test_outside_a_step_there_are_none() -> None:
    with pytest.raises(UsageError, match="inside the body of a step"):
        perdure.secret("stripe")
    with pytest.raises(UsageError, match="inside the body of a step"):
        outcome(asks_itself.call(), Provider(lambda name: f"value-of-{name}"))


def test_the_attempts_of_two_steps_do_not_share_them() -> None:
    @workflow
    async def both() -> str:
        await charge("7")
        try:
            return await declares_none()
        except SecretNotAllowed:
            return "refused"

    assert outcome(both.call(), Provider(lambda name: f"value-of-{name}")) == "refused"


@pytest.mark.parametrize("given", ["stripe", {"a b"}, {""}, {5}, {"stripe": 5}, None, 7, ["a›"]])
def test_declarations_that_cannot_be_meant(given: Any) -> None:
    with pytest.raises(DeclarationError, match="secrets="):
        step(secrets=given)(lambda_free)
    with pytest.raises(DeclarationError, match="secrets="):
        effect(downstream=Idempotent(), secrets=given)(lambda_free)


async def lambda_free(order: str) -> str:
    return order


def test_a_transactional_effect_has_none() -> None:
    def changes(order: str) -> str:
        return order

    with pytest.raises(DeclarationError, match="has no secrets"):
        effect(transactional=True, secrets={"stripe"})(changes)


@pytest.mark.parametrize("given", ["stripe", [print], [None], 5, {"a": Environment()}])
def test_providers_that_are_none(given: Any) -> None:
    with pytest.raises(UsageError, match="secrets="):
        perdure.Runtime(":memory:", secrets=given)


@pytest.mark.parametrize(
    ("kind", "arguments"), [(Environment, [5]), (Provider, ["x"]), (Minted, ["stripe", print]), (Minted, [["a"], 5])]
)
def test_providers_that_cannot_be_made(kind: Any, arguments: list[Any]) -> None:
    with pytest.raises(UsageError):
        kind(*arguments)


# ── look-ups and undoings have the effect's ─────────────────────────────────────────────────


@effect(downstream=CanLookUp(), secrets={"stripe"}, timeout=5)
async def pay(order: str) -> str:
    SEEN.append(("body", perdure.secret("stripe")))
    raise TimeoutError


@pay.key
def _(order: str) -> str:
    return order


@pay.lookup
async def _(op: perdure.Operation) -> perdure.Found[str]:
    SEEN.append(("look-up", perdure.secret("stripe")))
    return Found("paid")


@pay.undo
async def _(result: str, order: str) -> None:
    SEEN.append(("undoing", perdure.secret("stripe")))


@workflow
async def pays(order: str) -> str:
    async with perdure.saga():
        paid = await pay(order)
        if paid == "paid":
            raise ValueError("no more")
    return "never"


def test_a_look_up_and_an_undoing_may_have_what_the_effect_may() -> None:
    with pytest.raises(ValueError, match="no more"):
        outcome(pays.call("7"), Provider(lambda name: f"value-of-{name}"))
    assert [(who, "value-of-stripe") for who in ("body", "look-up", "undoing")] == SEEN


def test_the_public_names() -> None:
    assert secrets.__all__ == ["Environment", "File", "Minted", "Provider", "SecretRequest"]


# ── policies ────────────────────────────────────────────────────────────────────────────────


def policy_for(**secrets: list[str]) -> Any:
    return perdure.Policy(name="shop", version=3, secrets=secrets)


@pytest.mark.parametrize("of", ["runtime", "workflow"])
def test_a_policy_says_which_steps_may_have_a_secret(of: str) -> None:
    policy = policy_for(stripe=["charge_in_a_thread"])

    @workflow(policy=policy if of == "workflow" else None)
    async def held_to_it() -> list[str]:
        got = [await charge_in_a_thread.call("7")]
        try:
            await charge("7")
        except SecretNotAllowed as no:
            got += [no.policy, no.secret]
        return got

    async def main() -> list[str]:
        provider = Provider(lambda name: f"value-of-{name}")
        async with RuntimeUnderTest(secrets=[provider], policy=policy if of == "runtime" else None) as runtime:
            return await (await runtime.start(held_to_it.call(), id="r")).result()

    assert run_async(main()) == ["7", "shop", "stripe"]
    assert SEEN == ["value-of-stripe"]


def test_an_effect_that_a_policy_keeps_from_its_secret_was_not_sent() -> None:
    async def main() -> list[str]:
        provider, policy = Provider(lambda name: f"value-of-{name}"), policy_for(stripe=["charge"])
        async with RuntimeUnderTest(secrets=[provider], policy=policy) as runtime:
            run = await runtime.start(refunds.call("7"), id="r")
            with pytest.raises(SecretNotAllowed, match="policy shop version 3"):
                await run.result()
            return [event.kind for event in await run.history()]

    assert "effect.in_doubt" not in run_async(main())
    assert SEEN == []

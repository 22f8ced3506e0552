"""The table and the picture, made of records that were made up."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from perdure.cli.demo.figures import Figure, Kill, Payment, Sending, Story, figures, steps_of, table
from perdure.cli.demo.timeline import COLOURS, WIDTH, draw, lay_out

PLAN = "Approve up to 500 EUR."
PAYMENTS = {12: ("charges", "c-2"), 24: ("transfers", "c-4"), 36: ("payouts", "c-6"), 48: ("charges", "c-8")}
"""Which steps pay, by which route, for which claim."""
PACE = 0.05


def sending(
    step: int, at: float, *, pid: int = 1, seconds: float | None = 0.03, plan: str = PLAN, status: int = 200
) -> Sending:
    """Every third step is a ticket call, some are payments; step 1 is the plan."""
    body: dict[str, Any] = {"messages": [{"role": "system", "content": plan}] if step > 1 else []}
    answer = {"choices": [{"message": {"content": PLAN if step == 1 else "yes"}}]}
    service, path, key = "model" if step % 3 else "tickets", "/v1/chat/completions", None
    if step in PAYMENTS:
        route, claim = PAYMENTS[step]
        service, path, body, key = "payments", f"/{route}", {"claim": claim, "cents": 100}, f"key-{step}"
    return Sending(
        service=service,
        digest=f"digest-{step}",
        key=key,
        caller=f"claims-agent/{pid}",
        received_at=1000 + at,
        answered_at=None if seconds is None else 1000 + at + seconds,
        held=int(seconds is None),
        status=None if seconds is None else status,
        method="POST",
        path=path,
        body=json.dumps(body),
        answer=None if seconds is None else json.dumps(answer),
    )


def look(at: float, caller: str, *claims: str) -> Sending:
    """Somebody looks into the books and finds payments for these claims."""
    rows = [Payment(7, "transfers", claim, 100)._asdict() for claim in claims]
    asked = sending(36, at, seconds=0.001)
    return replace(
        asked, digest=f"look-{at}", caller=caller, method="GET", body="", answer=json.dumps({"payments": rows})
    )


def books(*claims: str) -> list[Payment]:
    return [Payment(number, "charges", claim, 100) for number, claim in enumerate(claims, 1)]


def told(pace: float = PACE, pause: float = 0.2, steps: int = 50, killed: Sequence[int] = (12, 24, 36, 47)) -> Story:
    """As it should be: the n-th worker dies in the n-th of these steps, and the next one goes on as it should."""
    sendings: list[Sending] = []
    kills: list[Kill] = []
    at = 0.0
    for step in range(1, steps + 1):
        at += pace
        pid = len(kills) + 1
        if step not in killed:
            sendings.append(sending(step, at, pid=pid))
            continue
        sendings.append(sending(step, at, pid=pid, seconds=None))
        kills.append(Kill(pid, 1000 + at + 0.01, step))
        at += pause
        match PAYMENTS.get(step, ("charges", "")):
            case "charges", _:
                sendings.append(sending(step, at, pid=pid + 1))
            case "transfers", claim:
                sendings.append(look(at, f"claims-agent/{pid + 1}", claim))
            case _, claim:
                sendings.append(look(at, "person/9", claim))
    return Story(sendings, kills, books("c-2", "c-4", "c-6", "c-8"), "another")


def figures_of(story: Story) -> list[Figure]:
    return figures(story, steps_promised=50, claims_promised=4)


def kept(story: Story) -> list[bool]:
    return [row.kept for row in figures_of(story)]


def test_all_figures_are_kept_when_the_story_went_as_promised() -> None:
    rows = figures_of(told())
    assert [row.found for row in rows] == [
        "50 of 50", "1 (step 47)", "0", "0.19", "33 of 33", "another",
        "4 of 4", "sent 2x, one key", "sent 1x, found by look-up", "sent 1x, found by a person", "1 of 1",
    ]  # fmt: skip
    assert all(row.kept for row in rows)
    assert table(rows).count(" ok") == len(rows)


def test_the_order_in_which_records_are_read_does_not_matter() -> None:
    sendings = list(told().sendings)
    random.Random(1).shuffle(sendings)
    assert all(kept(replace(told(), sendings=sendings)))


def without(is_gone: Callable[[Sending], bool]) -> Callable[[list[Sending]], list[Sending]]:
    return lambda sent: [each for each in sent if not is_gone(each)]


def with_one_more(*more: Sending) -> Callable[[list[Sending]], list[Sending]]:
    return lambda sent: [*sent, *more]


def with_another_key(sent: list[Sending]) -> list[Sending]:
    again = max(n for n, each in enumerate(sent) if each.digest == "digest-12")
    return [replace(each, key="key-x") if n == again else each for n, each in enumerate(sent)]


BROKEN: dict[str, tuple[Callable[[list[Sending]], list[Sending]], list[int]]] = {
    "a recorded step was called again": (with_one_more(sending(13, 8.0, pid=5)), [0, 1, 2]),
    "the last step is missing": (lambda sent: sent[:-1], [0]),
    "nobody took over": (without(lambda each: each.pid != 1), [0, 1, 3, 7, 8, 9, 10]),
    "a step rests on another plan": (lambda sent: [*sent[:-1], sending(50, 8.0, pid=5, plan="other")], [4]),
    "the plan was asked for twice": (with_one_more(sending(1, 0.2)), [0]),
    "the charge was sent under another key": (with_another_key, [7]),
    "the transfer was sent again": (with_one_more(sending(24, 2.0, pid=3)), [8]),
    "the transfer was looked up by nobody": (without(lambda each: each.is_look and each.is_agents), [8]),
    "the look-up found nothing": (
        lambda sent: [replace(each, answer="{}") if each.is_look and each.is_agents else each for each in sent],
        [8],
    ),
    "the payout was sent again": (with_one_more(sending(36, 2.5, pid=4)), [9]),
    "nobody looked after the payout": (without(lambda each: each.who == "person"), [9]),
    "another payment was sent twice": (with_one_more(sending(48, 8.0, pid=5)), [10]),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_promise_is_told(what: str) -> None:
    change, broken = BROKEN[what]
    found = kept(replace(told(), sendings=change(list(told().sendings))))
    assert [n for n, good in enumerate(found) if not good] == broken


@pytest.mark.parametrize("paid", [("c-2", "c-4", "c-4", "c-6", "c-8"), ("c-2", "c-6", "c-8")])
def test_a_claim_that_is_paid_twice_or_never_is_told(paid: tuple[str, ...]) -> None:
    found = kept(replace(told(), books=books(*paid)))
    assert [n for n, good in enumerate(found) if not good] == [0, 6]


def test_a_model_that_would_have_planned_the_same_proves_nothing() -> None:
    assert not all(kept(replace(told(), other_plan=PLAN)))
    assert all(kept(replace(told(), other_plan=None)))  # a real model is not asked


def test_too_late_is_not_kept() -> None:
    assert "NOT KEPT" in table(figures_of(told(pause=4.0)))


def test_a_request_that_was_refused_and_tried_again_is_one_step() -> None:
    story = told()
    refused = replace(story, sendings=[sending(13, 0.81, status=429), *story.sendings])
    assert len(steps_of(refused.sendings)) == 50
    assert all(kept(refused))


def test_figures_of_nothing() -> None:
    assert not any(row.kept for row in figures_of(Story([], told().kills, [], "")) if row.promised != "0")


STORIES = [
    (pace, pause, steps, killed)
    for pace, pause, (steps, killed) in itertools.product(
        [0.0005, 0.02, 0.05, 3.0],
        [0.02, 0.2, 2.5, 90.0],
        [(50, [12, 24, 36, 47]), (50, [47]), (50, [2]), (9, [9]), (200, [100]), (50, [1, 2, 3, 4]), (50, [47, 48, 49])],
    )
]


@pytest.mark.parametrize(("pace", "pause", "steps", "killed"), STORIES)
def test_no_text_of_the_timeline_touches_another(pace: float, pause: float, steps: int, killed: list[int]) -> None:
    story = told(pace, pause, steps, killed)
    picture = lay_out(story.sendings, story.kills)
    touching = [(a.words, b.words) for a, b in itertools.combinations(picture.texts, 2) if a.touches(b)]
    assert not touching
    assert all(text.x >= 0 and text.x + text.width <= WIDTH and 0 < text.y < picture.height for text in picture.texts)
    lines = [box for box in picture.boxes if box.width == 2 and box.colour == COLOURS["lost"]]
    assert len(lines) == len(killed)
    assert not [
        text.words
        for text, line in itertools.product(picture.texts, lines)
        if text.x < line.x + line.width and line.x < text.x + text.width and line.y < text.y < line.y + line.height
    ]
    assert all(box.x >= 0 and box.x + box.width <= WIDTH + 2 for box in picture.boxes)
    assert all(box.y + box.height <= picture.height for box in picture.boxes)


def test_the_timeline_is_well_formed_and_has_a_bar_for_each_request_of_the_agent() -> None:
    story = told()
    root = ET.fromstring(draw(story.sendings, story.kills))
    titles = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(title.startswith("step ") for title in titles) == 52
    assert sum(title.startswith("step 47:") for title in titles) == 2
    assert sum(title.startswith("look-up:") for title in titles) == 1
    assert sum(title == "nobody works" for title in titles) == 4

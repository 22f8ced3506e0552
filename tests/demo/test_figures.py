"""The table and the picture, made of records that were made up."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest

from perdure.cli.demo.figures import Kill, Sending, figures, steps_of, table
from perdure.cli.demo.timeline import WIDTH, Scale, draw, lay_out

PLAN = "Approve up to 500 EUR."


def sending(
    step: int, at: float, *, pid: int = 1, seconds: float | None = 0.03, plan: str = PLAN, status: int = 200
) -> Sending:
    """Every third step is a ticket call; step 1 is the plan."""
    body = {"messages": [{"role": "system", "content": plan}] if step > 1 else [{"role": "user", "content": "plan!"}]}
    answer = json.dumps({"choices": [{"message": {"content": PLAN if step == 1 else "yes"}}]})
    return Sending(
        service="model" if step % 3 else "tickets",
        digest=f"digest-{step}",
        caller=f"claims-agent/{pid}",
        received_at=1000 + at,
        answered_at=None if seconds is None else 1000 + at + seconds,
        status=None if seconds is None else status,
        method="POST",
        path="/v1/chat/completions",
        body=json.dumps(body),
        answer=None if seconds is None else answer,
    )


def story(pace: float = 0.05, pause: float = 0.2, steps: int = 50, killed: int = 47) -> tuple[list[Sending], Kill]:
    """As it should be: one step after another, step 47 in flight at the kill, sent again by the other worker."""
    before = [sending(n, n * pace) for n in range(1, killed)]
    lost = sending(killed, killed * pace, seconds=None)
    kill = Kill(pid=1, at=1000 + killed * pace + 0.01, in_step=killed)
    after = [sending(n, n * pace + pause, pid=2) for n in range(killed, steps + 1)]
    return [*before, lost, *after], kill


def kept(sendings: list[Sending], kill: Kill, *, other_plan: str | None = "another") -> list[bool]:
    return [row.kept for row in figures(sendings, kill, steps_promised=50, other_plan=other_plan)]


def test_all_figures_are_kept_when_the_story_went_as_promised() -> None:
    sendings, kill = story()
    rows = figures(sendings, kill, steps_promised=50, other_plan="another")
    assert [row.found for row in rows] == ["50 of 50", "1 (step 47)", "0", "0.19", "33 of 33", "another"]
    assert all(row.kept for row in rows)
    assert table(rows).count(" ok") == len(rows)


def test_the_order_in_which_records_are_read_does_not_matter() -> None:
    sendings, kill = story()
    random.Random(1).shuffle(sendings)
    assert all(kept(sendings, kill))


BROKEN: list[tuple[Callable[[list[Sending]], list[Sending]], list[int]]] = [
    (lambda sent: [*sent, sending(12, 4.0, pid=2)], [0, 1, 2]),  # a recorded step was called again
    (lambda sent: sent[:-1], [0]),  # the last step is missing
    (lambda sent: [each for each in sent if each.pid == 1], [0, 1, 3]),  # nobody took over
    (lambda sent: [*sent[:-1], sending(50, 3.0, pid=2, plan="other")], [4]),  # a step that rests on another plan
    (lambda sent: [sending(1, 0.01), *sent], [0, 1, 2]),  # the plan was asked for twice
]


@pytest.mark.parametrize(("change", "broken"), BROKEN)
def test_a_broken_promise_is_told(change: Callable[[list[Sending]], list[Sending]], broken: list[int]) -> None:
    sendings, kill = story()
    found = kept(change(sendings), kill)
    assert [n for n, good in enumerate(found) if not good] == broken


def test_a_model_that_would_have_planned_the_same_proves_nothing() -> None:
    sendings, kill = story()
    assert not all(kept(sendings, kill, other_plan=PLAN))
    assert all(kept(sendings, kill, other_plan=None))  # a real model is not asked


def test_too_late_is_not_kept() -> None:
    sendings, kill = story(pause=4.0)
    assert "NOT KEPT" in table(figures(sendings, kill, steps_promised=50, other_plan=None))


def test_a_request_that_was_refused_and_tried_again_is_one_step() -> None:
    sendings, kill = story()
    assert len(steps_of([sending(12, 0.59, status=429), *sendings])) == 50
    assert all(kept([sending(12, 0.59, status=429), *sendings], kill))


def test_figures_of_nothing() -> None:
    assert not any(kept([], Kill(1, 1.0, 47), other_plan="")[n] for n in (0, 1, 3, 4, 5))


STORIES = [
    (pace, pause, steps, killed)
    for pace, pause, (steps, killed) in itertools.product(
        [0.0005, 0.02, 0.05, 3.0], [0.02, 0.2, 2.5, 90.0], [(50, 47), (50, 2), (9, 9), (200, 100)]
    )
]


@pytest.mark.parametrize(("pace", "pause", "steps", "killed"), STORIES)
def test_no_text_of_the_timeline_touches_another(pace: float, pause: float, steps: int, killed: int) -> None:
    sendings, kill = story(pace, pause, steps, killed)
    picture = lay_out(steps_of(sendings), kill)
    touching = [(a.words, b.words) for a, b in itertools.combinations(picture.texts, 2) if a.touches(b)]
    assert not touching
    assert all(text.x >= 0 and text.x + text.width <= WIDTH and 0 < text.y < picture.height for text in picture.texts)
    line = Scale(
        min(each.received_at for each in sendings), max([kill.at, *(each.answered_at or 0 for each in sendings)])
    ).x(kill.at)
    assert not [
        text.words
        for text in picture.texts
        if text.x < line < text.x + text.width and 66 < text.y < picture.height - 60
    ]
    assert all(box.x >= 0 and box.x + box.width <= WIDTH + 2 for box in picture.boxes)
    assert all(box.y + box.height <= picture.height for box in picture.boxes)


def test_the_timeline_is_well_formed_and_has_a_bar_for_each_request() -> None:
    sendings, kill = story()
    root = ET.fromstring(draw(sendings, kill))
    titles = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(title.startswith("step ") for title in titles) == 51
    assert sum(title.startswith("step 47:") for title in titles) == 2

"""Workflows on which a drill finds nothing: one of each kind, with everything tried that belongs to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.drill import shop

from perdure.audit.drills import Covered
from perdure.testing import Aftermath, DrillReport, drill


def money_moves_once(after: Aftermath) -> None:
    bank = after.use(shop.Bank)
    assert sorted(bank.moved.values()) == sorted(EXPECTED[0]), after.point


EXPECTED: list[list[int]] = [[]]


def drilled(workflow: Any, *args: Any, moved: list[int] | None = None, **options: Any) -> DrillReport:
    EXPECTED[0] = moved or []
    check = None if moved is None else money_moves_once
    report = asyncio.run(drill(workflow, *args, provide=shop.bank, check=check, **options))
    assert report.has_passed, str(report)
    return report


def names(report: DrillReport) -> set[str]:
    return {result.name for result in report.results}


def test_an_effect_whose_other_side_honours_keys_is_sent_again() -> None:
    report = drilled(shop.charges, "ab", moved=[2])
    assert report.ended == '"moved 2"'
    assert report.effects == {"charge": "idempotent"}
    phases = ["Prepare of", "Execute of", "Commit of", "Checkpoint of"]
    expected = {f"{when} {phase} charge#1" for phase in phases for when in ("before", "after")}
    expected -= {"after Commit of charge#1", "before Checkpoint of charge#1"}
    assert expected <= names(report)
    assert {"before step price#1", "after step price#1", "before the record of price#1"} <= names(report)
    assert "attempt 1 died" in report["after Execute of charge#1"].evidence
    assert report["after Execute of charge#1"].evidence.endswith("sent; succeeded; the same result")
    assert report["after Checkpoint of charge#1"].evidence == "the same result"
    assert Covered.OUTSIDE_SUCCESS in report.covered
    assert Covered.ZOMBIE in report.covered
    assert Covered.CRASH_AGAIN in report.covered


def test_an_effect_that_can_be_looked_up_is_found() -> None:
    report = drilled(shop.transfers, "ab", moved=[2])
    assert "looked up, found" in report["after Execute of transfer#1"].evidence
    assert report["before Execute of transfer#1"].evidence.count("looked up, not found") == 2
    assert "after Execute of transfer#1, then before the look-up of transfer#1" in names(report)
    unsure = report["after Execute of transfer#1, its look-up never sure"]
    assert unsure.evidence.count("looked up, unsure") == 6
    assert "succeeded, says a person" in unsure.evidence
    once = report["after Execute of transfer#1, its look-up unsure 1 time"]
    assert "looked up, found" in once.evidence
    assert Covered.UNSURE in report.covered


@pytest.mark.parametrize("workflow", [shop.posts, shop.posts_in_thread])
def test_of_an_effect_without_guarantees_a_person_says_what_became(workflow: Any) -> None:
    report = drilled(workflow, "ab", moved=[5])
    call = f"{next(iter(report.effects))}#1"
    assert "blocked as unknown_effect; settled: succeeded" in report[f"after Execute of {call}"].evidence
    assert "unblocked: retry" in report[f"before Execute of {call}"].evidence
    off = report[f"before Execute of {call}, settled as failed"]
    assert "settled: failed" in off.evidence
    assert off.ended.startswith("failed (StepError")
    zombie = report[f"hung before Execute of {call}, thawed after the takeover"]
    assert "was taken for dead" in zombie.evidence
    assert "settled: succeeded" in zombie.evidence
    hung = [result for result in report.results if result.name.startswith("hung")]
    assert len(hung) == 2
    assert all("what the hung worker wrote after that was refused" in result.evidence for result in hung)


def test_what_lies_in_the_same_database_is_there_with_its_record() -> None:
    report = drilled(shop.books, "ab")
    assert report.ended == "15"
    assert {"before Execute of book#1", "after Execute of book#1", "before Commit of book#2"} <= names(report)
    assert not any("hung" in name and "book" in name for name in names(report))


def test_effects_at_the_same_time_each_have_points_of_their_own() -> None:
    report = drilled(shop.all_at_once, "ab", moved=[1, 2, 3])
    assert {f"after Execute of 0.{n}/{name}#1" for n, name in enumerate(report.effects, 1)} <= names(report)


def test_a_saga_is_undone_whatever_dies() -> None:
    report = drilled(shop.takes_back, "ab", moved=[5, 7, -5, -7])
    assert report.ended.startswith("failed (Final: sold out")
    assert "after Execute of charge.undo#1" in names(report)


def test_children_are_drilled_with_their_parent() -> None:
    report = drilled(shop.parent, "ab", moved=[2, 2])
    assert any("charge#1 in drill/" in name for name in names(report))


def test_messages_are_sent_when_they_are_waited_for() -> None:
    report = drilled(shop.asks, "ab", moved=[5], messages=[("comment", "fine"), ("approval", True)])
    assert report.ended == '"moved 5: fine"'
    assert {
        "message 'approval', delivered twice", "time jump during receive:comment", "time jump during sleep",
        "before the sending of message 'comment'", "the start of the run, delivered twice", "every write, sent twice",
    } <= names(report)  # fmt: skip
    assert {Covered.TWICE, Covered.TIME_JUMP} <= set(report.covered)


def test_people_answer_and_approve() -> None:
    report = drilled(shop.asks_people, "ab", moved=[5], answers=[5])
    assert report.ended == '"moved 5, 2"'
    assert {"after the sending of a decision", "before the asking of approve:charge#1"} <= names(report)


def test_a_message_that_nobody_sends_leaves_its_deadline() -> None:
    report = drilled(shop.asks_in_vain, "ab", moved=[5])
    assert any("message 'approval', which nobody sends" in note for note in report.notes)


def test_chapters_and_blocking_code_are_drilled_as_well() -> None:
    assert "after Execute of charge#1 (2)" in names(drilled(shop.chapters, 1, moved=[1, 2]))
    assert any("after Execute of 0:0/main/charge#" in name for name in names(drilled(shop.blocking, "ab", moved=[2])))


def test_a_result_that_depends_on_the_time_is_said_to() -> None:
    report = drilled(shop.tells_the_time, "ab", moved=[5])
    assert any("depends on the time" in note for note in report.notes)

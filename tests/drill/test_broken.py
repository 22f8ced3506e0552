"""What a drill finds, each by the name of the point at which it shows."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from tests.drill import broken, shop

from perdure.errors import EncodeError, UnknownNameError, UsageError
from perdure.testing import Aftermath, DrillFailed, DrillReport, UnfitForDrill, drill


def paid_once(after: Aftermath) -> None:
    moved = after.use(shop.Bank).moved
    assert sum(moved.values()) == 5, f"{dict(moved)} were moved"


def drilled(workflow: Any, *args: Any, **options: Any) -> DrillReport:
    given: dict[str, Any] = {"provide": shop.bank, **options}
    return asyncio.run(drill(workflow, *args, **given))


def test_a_key_that_is_not_honoured_moves_money_twice_and_the_check_sees_it() -> None:
    report = drilled(broken.has_no_key, "o", check=paid_once)
    assert not report
    found = report["after Execute of charge_without_key#1"]
    (said,) = found.problems
    assert said.startswith("your check: AssertionError: {'o 0': 5, 'o 1': 5} were moved")
    assert report["before Execute of charge_without_key#1"].has_passed
    assert "outside success, crash before our commit" not in report.covered
    with pytest.raises(DrillFailed, match=r"(?s)FAILED  after Execute of charge_without_key#1.*only='after Execute of"):
        report.check()


def test_a_new_receipt_for_the_same_request_is_another_result() -> None:
    report = drilled(broken.new_receipts, "o")
    (said,) = report["after Execute of numbered#1"].problems
    assert said == (
        'it ended with "receipt 2", not with "receipt 1"; the first call that gave something else is numbered#1 '
        '("receipt 1", then "receipt 2")'
    )


def test_a_look_up_that_says_not_found_of_what_happened_is_a_second_payment() -> None:
    report = drilled(broken.looks_up_wrongly, "o")
    failed = {result.name for result in report.failed}
    assert {"after Execute of transfer_looked_up_wrongly#1", "before Commit of transfer_looked_up_wrongly#1"} <= failed
    (said,) = report["after Execute of transfer_looked_up_wrongly#1"].problems
    assert "it was carried out 2 times: attempt 1 (done), attempt 2 (done)" in said
    assert report["before Execute of transfer_looked_up_wrongly#1"].has_passed


def test_an_effect_in_a_step_is_done_again() -> None:
    report = drilled(broken.pays_in_a_step, "o", check=paid_once)
    failed = {result.name for result in report.failed}
    assert failed >= {"after step pay_in_a_step#1", "before the record of pay_in_a_step#1"}


@pytest.mark.parametrize(
    ("workflow", "name"), [(broken.pays_in_its_code, "PAID"), (broken.pays_through_a_global, "BANK")]
)
def test_a_side_effect_in_the_workflows_own_code_is_named(workflow: Any, name: str) -> None:
    report = drilled(workflow, "o")
    (failed,) = report.results
    assert failed.name == "untouched"
    assert failed.problems[0].startswith(f"the workflow's code changes tests.drill.broken.{name}, outside of any step")


def test_a_failure_that_makes_no_difference_is_noted() -> None:
    report = drilled(broken.swallows, "o")
    assert report.has_passed
    assert 'it gives the same result ("posted") although post#1 was settled as failed' in "\n".join(report.notes)


def test_random_numbers_of_the_workflow_are_the_same_in_each_trial() -> None:
    assert drilled(broken.draws_a_number, "o", check=paid_once).has_passed


def test_one_point_is_tried_alone_and_fails_again() -> None:
    first = "after Execute of charge_without_key#1"
    for name in (first, f"{first}, then after the takeover"):
        report = drilled(broken.has_no_key, "o", check=paid_once, only=name)
        assert [result.name for result in report.failed] == [result.name for result in report.results] == [name]
    assert drilled(broken.has_no_key, "o", check=paid_once, only="untouched")
    alias = drilled(broken.has_no_key, "o", check=paid_once, only="after Commit of charge_without_key#1")
    assert [result.name for result in alias.results] == ["after Checkpoint of charge_without_key#1"]
    with pytest.raises(UnknownNameError, match=r"point of this drill.*near: .*after Execute of charge_without_key#1"):
        drilled(broken.has_no_key, "o", only="after Execute of charge#1")


# ── what cannot be drilled ──────────────────────────────────────────────────────────────────


def test_fakes_that_give_something_else_each_time_are_named() -> None:
    broken.COUNTER = itertools.count()
    said = r'counts is not repeatable: .*it gave "o 0", and then "o 1"; the first call .* is count#1 \(0, then 1\)'
    with pytest.raises(UnfitForDrill, match=said):
        drilled(broken.counts, "o")


def test_who_calls_nothing_has_nothing_to_drill() -> None:
    with pytest.raises(UnfitForDrill, match="asks_nobody calls nothing outside with this input"):
        drilled(broken.asks_nobody, "o")


def test_a_message_that_is_waited_for_for_ever_is_asked_for() -> None:
    with pytest.raises(UnfitForDrill, match=r"the run waits for message 'approval'.*--send approval=JSON"):
        drilled(broken.waits_for_ever, "o")


def test_a_question_that_nobody_answers_is_asked_for() -> None:
    with pytest.raises(UnfitForDrill, match=r"the run asks 'how much for o\?', and nobody answers: .*--answer JSON"):
        drilled(shop.asks_people, "o")


def test_a_run_that_is_blocked_although_nothing_went_wrong_is_not_drilled() -> None:
    said = r"is_blocked_anyway: left alone, it does not end: the run is blocked.*unclear#1"
    with pytest.raises(UnfitForDrill, match=said):
        drilled(broken.is_blocked_anyway, "o")


def test_a_client_that_is_missing_is_named() -> None:
    with pytest.raises(UnfitForDrill, match=r"pays_in_a_step: pay_in_a_step#1 needs a client: perdure.use\(Bank\)"):
        drilled(broken.pays_in_a_step, "o", provide=None)


def test_what_is_no_workflow_or_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"give it a workflow and its input"):
        drilled(len, "o")
    with pytest.raises(UsageError, match=r"give it a workflow"):
        drilled(shop.charge.call("o", 1))
    with pytest.raises(UsageError, match=r"drill\(charges\): missing a required argument: 'order'"):
        drilled(shop.charges)
    with pytest.raises(UsageError, match=r"the call has its arguments already"):
        drilled(shop.charges.call("o"), "o")
    with pytest.raises(EncodeError):
        drilled(shop.charges, 7)
    with pytest.raises(UsageError, match=r'a list of names and values, as in \[\("approval", True\)\]'):
        drilled(shop.asks, "o", messages=["approval"])
    with pytest.raises(UsageError, match=r"a dict of types and their clients"):
        drilled(shop.charges, "o", provide=lambda: [shop.Bank()])
    with pytest.raises(UnknownNameError, match="declared message"):
        drilled(shop.asks, "o", messages={"approval": True, "remark": "?"})

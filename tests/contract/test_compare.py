"""What may go on under which manifest: the table, field by field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure.contract.compare import RULES, Given, Verdict, compare
from perdure.contract.manifest import CHECKPOINT_SCHEMA_VERSION, Manifest, read

THEN = Manifest(
    "claims", 7, CHECKPOINT_SCHEMA_VERSION, "sha256:1", "May", "small", "0.1.0", "3.11", {"search": "a", "pay": "b"},
    {"some-framework": "1.0"}, "step plan",
)  # fmt: skip


def now(**fields: Any) -> Manifest:
    return msgspec.structs.replace(THEN, **fields)


SAME, EXPLAINED, CLAIMED, INCOMPATIBLE = Verdict

TABLE: list[tuple[str, dict[str, Any], dict[str, Any], Verdict, str]] = [
    ("nothing", {}, {}, SAME, ""),
    ("another workflow", {"workflow_name": "other"}, {}, INCOMPATIBLE, "it is a run of claims, this is other"),
    ("another version", {"workflow_version": 8}, {}, INCOMPATIBLE, "without replays={7}"),
    ("a claimed version", {"workflow_version": 8}, {"claims": {7}}, CLAIMED, "version 8 claims to replay version 7"),
    ("the version that it runs as", {"workflow_version": 6}, {"runs_as": 6}, EXPLAINED, "version 7 has gone on"),
    ("another release", {"prompt_release": "June"}, {}, INCOMPATIBLE, "the prompt release was May, and is June"),
    ("a release that is accepted", {"prompt_release": "June"}, {"accepts": {"prompt_release"}}, CLAIMED, "is June"),
    (
        "a release of a claimed version", {"prompt_release": "June", "workflow_version": 8}, {"claims": {7}}, CLAIMED,
        "the prompt release was May, and is June",
    ),
    (
        "a release of another version, which is not claimed", {"prompt_release": "June", "workflow_version": 8},
        {"claims": {6}}, INCOMPATIBLE, "the prompt release was May, and is June",
    ),
    ("no release any more", {"prompt_release": ""}, {}, EXPLAINED, "was May, and is not declared"),
    ("another model policy", {"model_policy_version": "large"}, {}, INCOMPATIBLE, "the model policy was small"),
    (
        "only another choice is accepted", {"model_policy_version": "large"}, {"accepts": {"prompt_release"}},
        INCOMPATIBLE, "is large",
    ),
    ("a new tool", {"tools": {**THEN.tools, "fax": "c"}, "tool_catalog_version": "sha256:2"}, {}, EXPLAINED, "fax new"),
    (
        "a tool less that was used", {"tools": {"pay": "b"}, "tool_catalog_version": "sha256:2"},
        {"used": {"search", "plan"}}, INCOMPATIBLE, "the run has used search, which is no tool any more",
    ),
    (
        "a tool less that was never used", {"tools": {"pay": "b"}, "tool_catalog_version": "sha256:2"},
        {"used": {"plan"}}, EXPLAINED, "search gone and never used",
    ),
    ("another schema of a tool", {"tools": {"search": "z", "pay": "b"}}, {}, EXPLAINED, "search with another schema"),
    ("no tools any more", {"tools": {}}, {"used": {"search"}}, EXPLAINED, "not declared any more"),
    ("another Python", {"python": "3.13"}, {}, EXPLAINED, "python 3.11 then, 3.13 now"),
    ("another perdure", {"perdure": "0.2.0"}, {}, EXPLAINED, "perdure 0.1.0 then, 0.2.0 now"),
    (
        "another framework", {"frameworks": {"some-framework": "2.0"}}, {}, EXPLAINED,
        "some-framework 1.0 then, 2.0 now",
    ),
    ("other calls", {"topology": "step look\nstep plan"}, {}, EXPLAINED, "step look appeared, first"),
]  # fmt: skip


@pytest.mark.parametrize(("which", "fields", "given", "verdict", "told"), TABLE, ids=[row[0] for row in TABLE])
def test_the_table(which: str, fields: dict[str, Any], given: dict[str, Any], verdict: Verdict, told: str) -> None:
    options: dict[str, Any] = {"runs_as": 7, **given}
    found = compare(Given([THEN], now(**fields), **options))
    assert found.verdict is verdict
    assert told in found.told(*Verdict)


def test_an_own_number_counts_instead_of_the_schemas() -> None:
    then = msgspec.structs.replace(THEN, tool_catalog_version="3")
    found = compare(Given([then], msgspec.structs.replace(then, tool_catalog_version="4"), 7))
    assert (found.verdict, found.told(INCOMPATIBLE)) == (INCOMPATIBLE, "the tool catalogue was 3, and is 4")


def test_every_field_of_a_manifest_has_its_rule() -> None:
    assert set(RULES) == {field.name for field in msgspec.structs.fields(Manifest)}


def test_a_history_of_a_later_schema_is_not_touched() -> None:
    later = msgspec.structs.replace(THEN, checkpoint_schema_version=CHECKPOINT_SCHEMA_VERSION + 1)
    assert compare(Given([later], THEN, 7)).verdict is INCOMPATIBLE


def test_what_has_been_claimed_is_not_claimed_again_and_the_older_code_may_have_it_back() -> None:
    newer = now(workflow_version=8, prompt_release="June")
    assert compare(Given([THEN, newer], newer, 7, {7})).verdict is SAME
    assert compare(Given([THEN, newer], THEN, 7)).verdict is SAME


def test_manifests_of_older_and_later_perdures_are_read() -> None:
    assert read({}) == Manifest()
    assert read({"workflow_name": "claims", "workflow_version": 7, "perdure": "0.0.1", "python": "3.11"}) == Manifest(
        "claims", 7, perdure="0.0.1", python="3.11"
    )
    assert read({"workflow_name": "claims", "tools": ["search"], "mood": 1}) == Manifest("claims")
    assert read(msgspec.to_builtins(THEN)) == THEN
    older = Manifest("claims", 7, perdure="0.1.0", python="3.11")
    assert compare(Given([older], THEN, 7)).verdict is EXPLAINED

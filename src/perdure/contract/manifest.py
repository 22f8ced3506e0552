"""What a run was started under: the first event of a history holds it, and every chapter's first one.

Histories of earlier versions hold less, those of later ones may hold more: what is missing is empty, what is not known
is left out, and nobody is stranded by either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.specs import WorkflowSpec

CHECKPOINT_SCHEMA_VERSION = 1
"""Of the events and of how calls are identified: what a history of this version means."""


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The versions of everything that a replay leans on.

    `tools`: the digest of each tool's schema, by its name; `tool_catalog_version`: the author's own number, or a digest
    of those. `frameworks`: versions of the packages that the author named. `topology`: the outline of the durable calls
    in the source. Empty: not declared, not readable, or written before there was such a field.
    """

    workflow_name: str = ""
    workflow_version: int = 0
    checkpoint_schema_version: int = 1
    tool_catalog_version: str = ""
    prompt_release: str = ""
    model_policy_version: str = ""
    perdure: str = ""
    python: str = ""
    tools: dict[str, str] = {}
    frameworks: dict[str, str] = {}
    topology: str = ""


_FIELDS = {field.name: field.type for field in msgspec.structs.fields(Manifest)}


def manifest_of(spec: WorkflowSpec, *, perdure: str, python: str, topology: str) -> dict[str, Any]:
    """What a run of this workflow is started under now, as it stands in an event."""
    declared = spec.surroundings
    manifest = Manifest(
        spec.name, spec.version, CHECKPOINT_SCHEMA_VERSION, declared.tool_catalog_version, declared.prompt_release,
        declared.model_policy_version, perdure, python, dict(declared.tools), dict(declared.frameworks), topology,
    )  # fmt: skip
    always = {"checkpoint_schema_version": CHECKPOINT_SCHEMA_VERSION}
    return {**msgspec.to_builtins(manifest), **always}


def read(recorded: Mapping[str, Any]) -> Manifest:
    """The manifest that an event holds. A field of another type than it should have counts as empty.

    >>> read({"workflow_name": "claims", "workflow_version": 3, "python": 3.11, "colour": "blue"}).workflow_version
    3
    """
    try:
        return msgspec.convert(recorded, Manifest)
    except msgspec.ValidationError:
        return msgspec.convert({name: each for name, each in recorded.items() if _fits(name, each)}, Manifest)


def _fits(name: str, value: Any) -> bool:
    try:
        msgspec.convert(value, _FIELDS.get(name, Any))
    except msgspec.ValidationError:
        return False
    return True

"""What a workflow leans on besides its code: `tools=`, `prompt_release=`, `model_policy_version=`, `frameworks=`.

Declared on a workflow, or on a runtime for all its workflows that declare none. It is part of what a run is started
under: the replay contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from perdure.api.calls import DurableFunction
from perdure.codec import digest
from perdure.errors import DeclarationError
from perdure.specs import NOTHING_DECLARED, Drift, Surroundings, WorkflowSpec, mapping, recordable, several

FIELDS = ("tools", "tool_catalog_version", "prompt_release", "model_policy_version")
"""In which a run under way may be let go on under another one (`on_contract_drift`)."""

Tools = Iterable[Callable[..., Any]] | Mapping[str, Any]
"""Steps, effects, workflows and plain functions; or names and JSON schemas."""


def surroundings(
    of: str,
    *,
    tools: Tools | None = None,
    tool_catalog_version: str | None = None,
    prompt_release: str | None = None,
    model_policy_version: str | None = None,
    frameworks: Iterable[str] = (),
    on_contract_drift: str | Mapping[str, str] = "block",
) -> Surroundings:
    """What was declared. `of`: where, for messages (`workflow`). DeclarationError for what cannot be meant."""
    if (tools, tool_catalog_version, prompt_release, model_policy_version) == (None,) * 4 and not frameworks:
        accepts = _accepts(of, on_contract_drift)
        return Surroundings(accepts=accepts) if accepts else NOTHING_DECLARED
    catalogue = _catalogue(of, tools)
    own = _text(of, "tool_catalog_version", tool_catalog_version)
    return Surroundings(
        tools=catalogue,
        tool_catalog_version=own or (_digest([list(each) for each in catalogue], 16) if catalogue else ""),
        prompt_release=_text(of, "prompt_release", prompt_release),
        model_policy_version=_text(of, "model_policy_version", model_policy_version),
        frameworks=tuple(_framework(of, name) for name in _names(of, frameworks)),
        accepts=_accepts(of, on_contract_drift),
    )


def within(spec: WorkflowSpec, around: Surroundings) -> WorkflowSpec:
    """The workflow with what its runtime declares, where it declares nothing itself."""
    own = spec.surroundings
    if around is NOTHING_DECLARED:
        return spec
    has_tools = own.tools or own.tool_catalog_version
    merged = Surroundings(
        own.tools if has_tools else around.tools,
        own.tool_catalog_version if has_tools else around.tool_catalog_version,
        own.prompt_release or around.prompt_release, own.model_policy_version or around.model_policy_version,
        own.frameworks, own.accepts,
    )  # fmt: skip
    return msgspec.structs.replace(spec, surroundings=merged)


def _text(of: str, option: str, given: Any) -> str:
    return "" if given is None else recordable(str(given), what=f"{of}({option}=)", length_max=200)


def _accepts(of: str, given: Any) -> frozenset[str]:
    choices = dict.fromkeys(FIELDS, given) if isinstance(given, str) else mapping(given)
    wrong = choices is None or set(choices) - set(FIELDS) or set(choices.values()) - set(Drift)
    if choices is None or wrong:
        raise DeclarationError(
            f"{of}(on_contract_drift={given!r}): 'block', 'accept', or a dict of {', '.join(FIELDS)} and these"
        )
    return frozenset(field for field, choice in choices.items() if choice == Drift.ACCEPT)


# ── tools ───────────────────────────────────────────────────────────────────────────────────


def _catalogue(of: str, given: Any) -> tuple[tuple[str, str], ...]:
    if given is None:
        return ()
    named = mapping(given) if isinstance(given, Mapping) else None
    if named is not None:
        return tuple(sorted((_name(of, name), _schema(of, name, schema)) for name, schema in named.items()))
    tools = several(given)
    if tools is None or not all(callable(tool) or isinstance(tool, DurableFunction) for tool in tools):
        raise DeclarationError(
            f"{of}(tools={given!r}): a list of functions, as in tools=[search, pay], or names and their JSON schemas"
        )
    found = {_name_of(tool): tool for tool in tools}
    if len(found) < len(tools):
        raise DeclarationError(f"{of}(tools=): two tools have one name, among {', '.join(map(_name_of, tools))}")
    return tuple(sorted((_name(of, name), _schema_of(tool)) for name, tool in found.items()))


def _name_of(tool: Any) -> str:
    return tool.name if isinstance(tool, DurableFunction) else str(getattr(tool, "__name__", type(tool).__name__))


def _name(of: str, name: Any) -> str:
    return recordable(name, what=f"{of}(tools=): the name of a tool")


def _schema_of(tool: Any) -> str:
    """The digest of its parameters and result."""
    from perdure.contract.source import schema_of

    return _digest(schema_of(tool.spec.function if isinstance(tool, DurableFunction) else tool), 8)


def _schema(of: str, name: Any, schema: Any) -> str:
    try:
        return _digest(schema, 8)
    except TypeError as error:
        raise DeclarationError(f"{of}(tools=): the schema of {name!r} is no JSON: {error}") from None


def _digest(value: Any, length: int) -> str:
    return f"sha256:{digest(msgspec.json.encode(value, order='sorted')).hex()[: 2 * length]}"


# ── frameworks ──────────────────────────────────────────────────────────────────────────────


def _names(of: str, given: Any) -> list[str]:
    names = several(given)
    if names is None or not all(isinstance(name, str) for name in names):
        raise DeclarationError(f"{of}(frameworks={given!r}): a list of packages, as in frameworks=['pydantic-ai']")
    return sorted(set(names))


def _framework(of: str, name: str) -> tuple[str, str]:
    from importlib import metadata

    try:
        return name, metadata.version(name)
    except metadata.PackageNotFoundError:
        raise DeclarationError(f"{of}(frameworks=): no package {name!r} is installed here") from None

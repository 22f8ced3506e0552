"""Arguments and values on the command line: JSON by the type hints, `@file.json`, or `-` for stdin.

A text that is no JSON of the wanted type is taken as it stands where a text is wanted: `perdure run app.py:greet you`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from inspect import Parameter
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from perdure.api.calls import Call
from perdure.api.workflow import AnyWorkflow
from perdure.cli.exits import CommandError
from perdure.cli.show import counted
from perdure.codec import ValueCodec, codec_for
from perdure.errors import DecodeError, EncodeError, UnknownNameError
from perdure.specs import WorkflowSpec

_PLAIN = codec_for(Any)
JSON_BEGINNINGS = ("{", "[", '"')


def call_of(workflow: AnyWorkflow, given: Sequence[str], named: Sequence[str] = ()) -> Call[Any]:
    """The call of a workflow with these arguments. CommandError when they do not fit."""
    if list(given).count("-") + sum(each.endswith("=-") for each in named) > 1:
        raise CommandError("only one argument can come from stdin")
    parameters = list(inspect.signature(workflow.spec.function).parameters.values())
    args = [_value(text, each) for text, each in zip(given, _for_positions(workflow, parameters, given), strict=True)]
    kwargs = dict(_named_value(workflow, parameters, each) for each in named)
    try:
        workflow.spec.arguments.dumps(tuple(args), kwargs)
    except TypeError as error:
        raise CommandError(f"{error}; it takes {_signature(workflow, parameters)}") from error
    except EncodeError as error:
        raise CommandError(str(error)) from error
    return workflow.call(*args, **kwargs)


def _for_positions(
    workflow: AnyWorkflow, parameters: Sequence[Parameter], given: Sequence[str]
) -> list[tuple[str, Any]]:
    """Name and hint for each argument that is given by position."""
    hints = get_type_hints(workflow.spec.function, include_extras=True)
    places = [p for p in parameters if p.kind in {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}]
    rest = next((p for p in parameters if p.kind is Parameter.VAR_POSITIONAL), None)
    if len(given) > len(places) and rest is None:
        takes = counted(len(places), "argument")
        raise CommandError(f"{workflow.name} takes {takes}, not {len(given)}: {_signature(workflow, parameters)}")
    chosen = [*places[: len(given)], *[rest] * (len(given) - len(places))]
    return [(each.name, _hint(each, hints)) for each in chosen if each is not None]


def _hint(parameter: Parameter, hints: dict[str, Any]) -> Any:
    hint = hints.get(parameter.name, Any)
    return hint | None if parameter.default is None and isinstance(hint, type) else hint


def _named_value(workflow: AnyWorkflow, parameters: Sequence[Parameter], given: str) -> tuple[str, Any]:
    name, equals, text = given.partition("=")
    if not equals:
        raise CommandError(f"--arg {given}: write it as NAME=VALUE")
    hints = get_type_hints(workflow.spec.function, include_extras=True)
    for each in parameters:
        if each.name == name:
            return name, _value(text, (name, _hint(each, hints)))
    raise CommandError(f"{workflow.name} has no parameter {name}; it takes {_signature(workflow, parameters)}")


def _signature(workflow: AnyWorkflow, parameters: Sequence[Parameter]) -> str:
    return f"{workflow.name}({', '.join(map(str, parameters))})"


def _value(text: str, wanted: tuple[str, Any]) -> Any:
    name, hint = wanted
    return parsed(text, codec_for(hint), at=name)


def plain_value(text: str, *, at: str) -> Any:
    """A value of which nobody here knows the type."""
    return parsed(text, _PLAIN, at=at)


def message_value(text: str, spec: WorkflowSpec | None, name: str, *, at: str) -> Any:
    """What a message says, of the type that the workflow declares for it, if the workflow is known. UnknownNameError
    for a name that it does not declare."""
    if spec is None or spec.receives is None:
        return plain_value(text, at=at)
    if name not in spec.receives:
        raise UnknownNameError("declared message", name, spec.receives)
    return parsed(text, spec.receives[name], at=at)


def fitting_value(text: str, codec: ValueCodec | None, *, at: str) -> Any:
    """A value as plain JSON, which fits if it is known what has to."""
    text, at = _read(text, at), _where(text, at)
    plain = _parsed(text, _PLAIN, at)
    if codec is not None:
        _parsed(text, codec, at)
        try:
            codec.loads(_PLAIN.dumps(plain))
        except DecodeError:
            return text  # a text is wanted, and this one happens to be JSON of another kind
    return plain


def parsed(text: str, codec: ValueCodec, *, at: str) -> Any:
    """A value from the command line. `at` is what messages call it."""
    return _parsed(_read(text, at), codec, _where(text, at))


def _parsed(text: str, codec: ValueCodec, at: str) -> Any:
    try:
        return codec.loads(text.encode(), at)
    except DecodeError as error:
        if codec.hint is Any and text.lstrip().startswith(JSON_BEGINNINGS):
            raise CommandError(f"{at}: {_json_error(text)}") from error
        try:
            return codec.loads(msgspec.json.encode(text), at)
        except DecodeError:
            raise CommandError(_misfit(text, error, codec, at)) from error


def _read(text: str, at: str) -> str:
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"{at}: {text} cannot be read ({error}); a text that begins with @ is written as JSON"
        ) from error


def _where(given: str, at: str) -> str:
    """What messages call a value that was not typed."""
    return f"{at} ({'stdin' if given == '-' else given})" if given == "-" or given.startswith("@") else at


def _misfit(text: str, error: DecodeError, codec: ValueCodec, at: str) -> str:
    what = _json_error(text)
    if what:
        return f"{at}: {what}, and {codec.words} is wanted"
    return str(error).replace("was recorded where", "was given where")  # the codec speaks of histories


def _json_error(text: str) -> str:
    """What is wrong with the text as JSON; "" if nothing is."""
    try:
        msgspec.json.decode(text.encode())
    except msgspec.DecodeError as error:
        shown = text if len(text) <= 60 else text[:59] + "…"
        place = "" if "(byte " in str(error) else f" (byte {len(text.encode())})"  # where it is cut off
        return f"{shown or 'an empty text'} is no JSON ({error}{place})"
    return ""

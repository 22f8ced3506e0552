"""How are the arguments of a call recorded?

As an object by parameter name, of what the caller passed: defaults are not filled in (changing a default must not
change old records), and `f(1)` and `f(x=1)` are the same call. `*args` is a list under its name, `**kwargs` an object
under its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

import msgspec
from msgspec.structs import astuple

from perdure.codec import hiding
from perdure.codec.canonical import SAFE_INTEGER_MAX, canonical_bytes, encode_sorted, parse
from perdure.codec.hints import shape_of
from perdure.codec.plain import INT, NONE, escaped, unescaped
from perdure.codec.resolving import Unresolved, annotated_part, is_no_type, resolved_hints, words_of
from perdure.codec.shape import Shape, Unfit, key_step, not_wire, too_deep, type_of
from perdure.codec.unions import union_shape
from perdure.codec.values import ValueCodec, codec_for, is_tagged, without_secrets
from perdure.errors import DeclarationError, DecodeError, EncodeError


class ArgumentsCodec:
    """The arguments and the result of one function ⇄ canonical JSON. Get one with `arguments_codec_for`."""

    __slots__ = (
        "_by_name",
        "_decode",
        "_is_native",
        "_only_positional",
        "_parameters",
        "_positional",
        "_table",
        "_var_keyword",
        "_var_positional",
        "name",
        "result",
    )

    def __init__(self, name: str, parameters: list[Parameter], shapes: dict[str, Shape], result: ValueCodec) -> None:
        self.name, self.result = name, result
        self._parameters = {each.name: each for each in parameters if each.kind not in _VARIADIC}
        self._positional = [each for each in parameters if each.kind in _POSITIONAL]
        self._table = [(each.name, _own(shapes[each.name]), shapes[each.name].to_wire) for each in self._positional]
        self._by_name = shapes
        self._only_positional = len(self._table) if len(self._table) == len(parameters) else -1
        self._var_positional = next((each.name for each in parameters if each.kind is Parameter.VAR_POSITIONAL), None)
        self._var_keyword = next((each.name for each in parameters if each.kind is Parameter.VAR_KEYWORD), None)
        natives = [shapes[each.name].native for each in parameters if each.kind in _POSITIONAL]
        self._is_native = len(natives) == len(parameters) and None not in natives
        self._decode: Callable[[bytes], Any] | None = None

    def dumps(self, args: tuple[Any, ...], kwargs: dict[str, Any], at: str = "$") -> bytes:
        """The canonical JSON of a call's arguments.

        Raises TypeError, in Python's words, when they do not fit the signature, and EncodeError naming parameter and
        path for a value that would not come back equal.
        """
        name = ""
        wire: dict[str, Any] = {}
        try:
            table = self._table
            rest: tuple[Any, ...] = ()
            if kwargs or len(args) != self._only_positional:  # else it is the usual call, and all is in the table
                self._check(args, kwargs)
                args, rest = args[: len(table)], args[len(table) :]
            for item in args:
                name, own, to_wire = table[len(wire)]  # zip() costs as much as all this
                is_own = type_of(item) is own and (own is not int or -SAFE_INTEGER_MAX <= item <= SAFE_INTEGER_MAX)
                wire[name] = item if is_own else to_wire(item, 1)
            if rest and self._var_positional is not None:
                name = self._var_positional
                wire[name] = self._rest_to_wire(rest)
            if kwargs:
                for name, item in kwargs.items():
                    if name in self._parameters and not self._is_positional_only(name):
                        wire[name] = self._by_name[name].to_wire(item, 1)
                if self._var_keyword is not None:
                    name = self._var_keyword
                    self._add_extras(wire, kwargs)
        except Unfit as no:
            raise EncodeError(at + key_step(name) + no.path(), no.what, no.hint, self._words) from None
        except RecursionError:
            raise EncodeError(at + key_step(name), too_deep().what, too_deep().hint, self._words) from None
        try:
            try:
                raw = encode_sorted(wire)
            except UnicodeEncodeError:
                raw = b""
            if not (raw and raw.isascii()):  # else it is canonical
                raw = canonical_bytes(wire)
            return raw if hiding.active is None else without_secrets(raw, self.loads)
        except Unfit as no:
            raise EncodeError(at + no.path(), no.what, no.hint, self._words) from None

    def loads(self, raw: bytes, at: str = "$") -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the function with: `fn(*args, **kwargs)`.

        Raises DecodeError when the record does not fit the signature.
        """
        tagged = is_tagged(raw)
        try:
            if self._is_native and not tagged:
                return astuple((self._decode or self._native_decoder())(raw)), {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # an argument is left to its default; or it is said again below, with path and words
        try:
            return self._from_wire(parse(raw), tagged)
        except Unfit as no:
            raise DecodeError(at + no.path(), no.what, no.hint) from None
        except RecursionError:
            raise DecodeError(at, "more levels of nesting than the stack has left") from None

    def _native_decoder(self) -> Callable[[bytes], Any]:
        """Reads all arguments at once, where msgspec knows the types of all. Made when it is first wanted: to make a
        class takes longer than to declare a step."""
        fields = [(f"argument{index}", self._by_name[each.name].native) for index, each in enumerate(self._positional)]
        names = {field: each.name for (field, _), each in zip(fields, self._positional, strict=True)}
        arguments = msgspec.defstruct("Arguments", fields, rename=names, forbid_unknown_fields=True)
        self._decode = msgspec.json.Decoder(arguments).decode
        return self._decode

    # ── writing ──

    @property
    def _words(self) -> str:
        return f"the arguments of {self.name}()"

    def _rest_to_wire(self, rest: tuple[Any, ...]) -> list[Any]:
        wire: list[Any] = []
        to_wire = self._by_name[self._var_positional or ""].to_wire
        try:
            for item in rest:
                wire.append(to_wire(item, 2))
        except Unfit as no:
            raise no.under(f"[{len(wire)}]") from None
        return wire

    def _add_extras(self, wire: dict[str, Any], kwargs: dict[str, Any]) -> None:
        name = self._var_keyword or ""
        extras: dict[str, Any] = {}
        for key, item in kwargs.items():
            if key in self._parameters and not self._is_positional_only(key):
                continue
            try:
                extras[key] = self._by_name[name].to_wire(item, 2)
            except Unfit as no:
                raise no.under(key_step(key)) from None
        if extras:
            wire[name] = escaped(extras)

    def _is_positional_only(self, name: str) -> bool:
        return self._parameters[name].kind is Parameter.POSITIONAL_ONLY

    # ── reading ──

    def _from_wire(self, wire: Any, tagged: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if type_of(wire) is not dict:
            raise not_wire(wire, f"the arguments of {self.name}()")
        self._check_names(wire)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        rest: Any = None if self._var_positional is None else wire.get(self._var_positional)
        for index, parameter in enumerate(self._positional):
            if parameter.name not in wire:
                later = [each.name for each in self._positional[index:] if each.name in wire]
                kwargs = {name: self._value(name, wire[name], tagged) for name in later}
                break
            args.append(self._value(parameter.name, wire[parameter.name], tagged))
        for name, parameter in self._parameters.items():
            if parameter.kind is Parameter.KEYWORD_ONLY and name in wire:
                kwargs[name] = self._value(name, wire[name], tagged)
        if rest is not None:
            args += self._rest_from_wire(rest, tagged)
        if self._var_keyword is not None and self._var_keyword in wire:
            kwargs.update(self._extras_from_wire(wire[self._var_keyword], tagged))
        return tuple(args), kwargs

    def _value(self, name: str, wire: Any, tagged: bool) -> Any:
        try:
            return self._by_name[name].from_wire(wire, tagged)
        except Unfit as no:
            raise no.under(key_step(name)) from None

    def _rest_from_wire(self, wire: Any, tagged: bool) -> list[Any]:
        name = self._var_positional or ""
        if type_of(wire) is not list:
            raise not_wire(wire, "a list of arguments").under(key_step(name))
        return [self._value(name, item, tagged) for item in wire]

    def _extras_from_wire(self, wire: Any, tagged: bool) -> dict[str, Any]:
        name = self._var_keyword or ""
        if type_of(wire) is not dict:
            raise not_wire(wire, "named arguments").under(key_step(name))
        return {key: self._value(name, item, tagged) for key, item in unescaped(wire).items()}

    def _check_names(self, wire: dict[str, Any]) -> None:
        """Parameters that are gone, and new ones that must be given."""
        for name in wire:
            if name not in self._by_name:
                raise Unfit(f"recorded, but {self.name}() has no such parameter any more").under(key_step(name))
        for name, parameter in self._parameters.items():
            if name not in wire and parameter.default is Parameter.empty:
                raise Unfit(
                    f"nothing was recorded for this parameter of {self.name}()",
                    "It is newer than the record: give it a default",
                ).under(key_step(name))

    # ── the signature ──

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise what Python would raise for this call."""
        given = {each.name for each in self._positional[: len(args)]}
        misplaced = [name for name in self._parameters if name in kwargs and self._is_positional_only(name)]
        for name in kwargs:
            if name in self._parameters and name not in misplaced:
                if name in given:
                    raise TypeError(f"{self.name}() got multiple values for argument {name!r}")
            elif self._var_keyword is None:
                raise TypeError(f"{self.name}() got {_unexpected(name, misplaced)}")
        if len(args) > len(self._positional) and self._var_positional is None:
            raise TypeError(self._too_many(len(args), kwargs))
        given |= kwargs.keys() - set(misplaced)
        missing = [
            each for each in self._parameters.values() if each.default is Parameter.empty and each.name not in given
        ]
        for kinds, word in ((_POSITIONAL, "positional"), ((Parameter.KEYWORD_ONLY,), "keyword-only")):
            names = [each.name for each in missing if each.kind in kinds]
            if names:
                plural = "" if len(names) == 1 else "s"
                raise TypeError(
                    f"{self.name}() missing {len(names)} required {word} argument{plural}: {_listed(names)}"
                )

    def _too_many(self, count: int, kwargs: dict[str, Any]) -> str:
        most = len(self._positional)
        least = sum(each.default is Parameter.empty for each in self._positional)
        takes = f"from {least} to {most}" if least != most else str(most)
        plural = "" if most == 1 and least == most else "s"
        keyword_only = Parameter.KEYWORD_ONLY
        named = [each for each in self._parameters.values() if each.kind is keyword_only and each.name in kwargs]
        also = ""
        if named:
            also = f" positional argument{_s(count)} (and {len(named)} keyword-only argument{_s(len(named))})"
        verb = "was" if count == 1 and not named else "were"
        return f"{self.name}() takes {takes} positional argument{plural} but {count}{also} {verb} given"


_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _unexpected(name: str, misplaced: list[str]) -> str:
    if misplaced:
        return f"some positional-only arguments passed as keyword arguments: {', '.join(misplaced)!r}"
    return f"an unexpected keyword argument {name!r}"


def _listed(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    if len(quoted) == 1:
        return quoted[0]
    if len(quoted) == 2:
        return f"{quoted[0]} and {quoted[1]}"
    return f"{', '.join(quoted[:-1])}, and {quoted[-1]}"


def arguments_codec_for(fn: Callable[..., Any]) -> ArgumentsCodec:
    """The codec of a function's arguments and result, from its signature and hints.

    A missing annotation means plain JSON. Raises DeclarationError, naming the parameter, when a hint cannot be
    resolved.
    """
    name = getattr(fn, "__qualname__", type_of(fn).__qualname__)
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (ValueError, TypeError) as no:
        raise DeclarationError(f"{name}() has no signature that can be read ({no})") from None
    hints = resolved_hints(annotated_part(fn))
    shapes = {each.name: _parameter_shape(name, each, hints.get(each.name, Any)) for each in parameters}
    result = hints.get("return", Any)
    if isinstance(result, Unresolved):
        raise DeclarationError(_unresolvable(f"the return annotation of {name}()", result))
    if is_no_type(result):
        raise DeclarationError(f"the return annotation of {name}() is {words_of(result)}{_NO_TYPE}")
    return ArgumentsCodec(name, parameters, shapes, codec_for(result))


def _own(shape: Shape) -> type:
    """Of which type values are their own wire; of integers those are that every JSON reader takes exactly."""
    return int if shape is INT else shape.own


def _parameter_shape(function: str, parameter: Parameter, hint: Any) -> Shape:
    if isinstance(hint, Unresolved):
        raise DeclarationError(_unresolvable(f"parameter {parameter.name!r} of {function}()", hint))
    if is_no_type(hint):
        where = f"parameter {parameter.name!r} of {function}()"
        raise DeclarationError(f"{where} is annotated with {words_of(hint)}{_NO_TYPE}")
    shape = shape_of(hint)
    if parameter.default is None and "null" not in shape.kinds:  # `x: int = None`
        return union_shape([shape, NONE])
    return shape


_NO_TYPE = ", which is not a type: write one, such as list[int]"


def _unresolvable(where: str, hint: Unresolved) -> str:
    advice = "define or import the name at module level, for real"
    return f"the hint {hint.hint!r} of {where} cannot be resolved ({hint.reason}): {advice}"

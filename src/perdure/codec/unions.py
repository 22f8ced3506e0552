"""Which member of a union does a value belong to, and how does the reader know?

The writer chooses by the value's exact type. The reader goes by the kind of JSON it finds; where two members share a
kind, those that are not plain JSON are written as `{"$u": [name, position, wire]}`. The name is only ever compared
with the names of the hint's own members: the position helps when a class was renamed, the name when members were
reordered.
"""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.codec.plain import BOOL, FLOAT, INT, NONE, PLAIN, STR, plain_from_wire, plain_to_wire
from perdure.codec.shape import NO_TYPE, Shape, Unfit, kind_of, not_this, not_wire, type_of, union_words

PLAIN_MEMBERS = (NONE, BOOL, INT, FLOAT, STR, PLAIN)
"""Members whose wire needs no mark: these come first when untagged text is read."""


class Member(msgspec.Struct, frozen=True, eq=False):
    """One member of a union, as the writer sees it."""

    shape: Shape
    position: int
    marked: bool
    """Whether its wires carry its name, because another member's look alike."""

    def to_wire(self, value: Any, depth: int) -> Any:
        if self.marked:
            return {"$u": [self.shape.words, self.position, self.shape.to_wire(value, depth + 2)]}
        return self.shape.to_wire(value, depth)


def union_shape(shapes: list[Shape]) -> Shape:
    """X | Y. Duplicates are dropped; a union of one is that one."""
    distinct = list({id(shape): shape for shape in shapes}.values())
    if PLAIN in distinct:  # it takes what the other plain members take
        distinct = [shape for shape in distinct if shape is PLAIN or shape not in PLAIN_MEMBERS]
    if len(distinct) == 1:
        return distinct[0]
    if len(distinct) == 2 and NONE in distinct:
        other = distinct[0] if distinct[1] is NONE else distinct[1]
        if "null" not in other.kinds:
            return _optional(other, union_words(shape.words for shape in distinct))
    return _Union(distinct).shape()


def _optional(other: Shape, words: str) -> Shape:
    """X | None: null says it all."""

    def to_wire(value: Any, depth: int) -> Any:
        return None if value is None else other.to_wire(value, depth)

    def from_wire(wire: Any, tagged: bool) -> Any:
        if wire is None:
            return None
        if tagged and type_of(wire) is dict and "$u" in wire and len(wire) == 1:
            return _marked_from_wire(wire["$u"], [other], words)
        return other.from_wire(wire, tagged)

    native = None if other.native is None or other.native is Any else other.native | None
    return Shape(
        words,
        to_wire,
        from_wire,
        other.types | NONE.types,
        other.kinds | NONE.kinds,
        own=other.own,
        own_wire=other.own_wire,
        native=native,
    )


class _Union:
    """The members of one union, and who claims what."""

    def __init__(self, shapes: list[Shape]) -> None:
        self.shapes = shapes
        self.words = union_words(shape.words for shape in shapes)
        shapes = _self_describing(shapes)
        self.writers: dict[type, list[Member]] = {}
        self.readers: dict[str, list[Shape]] = {}
        for position, shape in enumerate(shapes):
            member = Member(shape, position, not _is_plain(shape) and _looks_like_another(shape, shapes))
            for each in shape.types:
                self.writers.setdefault(each, []).append(member)
            for kind in shape.kinds:
                self.readers.setdefault(kind, []).append(shape)
        for each, members in self.writers.items():
            members.sort(key=lambda member: _also_takes(member.shape, each))
        self.readers = {
            kind: [shape for shape in rivals if _is_plain(shape)][:1] or rivals for kind, rivals in self.readers.items()
        }

    def shape(self) -> Shape:
        types = frozenset(self.writers)
        own = next((shape.own for shape in (STR, BOOL) if shape in self.shapes), NO_TYPE)
        kinds = frozenset(self.readers)
        return Shape(self.words, self.to_wire, self.from_wire, types, kinds, own=own, own_wire=own)

    def to_wire(self, value: Any, depth: int) -> Any:
        members = self.writers.get(type_of(value))
        if members is None:
            raise not_this(value, self.words)
        if len(members) == 1:
            return members[0].to_wire(value, depth)
        refusals: list[Unfit] = []
        for member in members:
            try:
                return member.to_wire(value, depth)
            except Unfit as no:
                refusals.append(no)
        raise refusals[0]

    def from_wire(self, wire: Any, tagged: bool) -> Any:
        if tagged and type_of(wire) is dict and len(wire) == 1 and "$u" in wire:
            return _marked_from_wire(wire["$u"], self.shapes, self.words)
        readers = self.readers.get(_kind_under_tag(wire) if tagged else kind_of(wire), [])
        if not readers:
            raise not_wire(wire, self.words)
        return readers[0].from_wire(wire, tagged) if len(readers) == 1 else _only_that_fits(wire, tagged, readers)


def _kind_under_tag(wire: Any) -> str:
    """The kind of JSON that a wire would be if JSON could carry it exactly."""
    if type_of(wire) is dict and len(wire) == 1:
        return _TAGGED_KINDS.get(next(iter(wire)), "object")
    return kind_of(wire)


_TAGGED_KINDS = {"$f": "number", "$i": "number", "$s": "string"}


def _self_describing(shapes: list[Shape]) -> list[Shape]:
    """Where int and float (or anything) meet, their wires alone must say which they are."""
    if PLAIN in shapes or (INT in shapes and FLOAT in shapes):
        return [_PLAINLY.get(id(shape), shape) for shape in shapes]
    return shapes


def _plainly(shape: Shape, *exact: type) -> Shape:
    return Shape(shape.words, plain_to_wire, plain_from_wire, frozenset(exact), shape.kinds)


_PLAINLY = {id(INT): _plainly(INT, int, bool), id(FLOAT): _plainly(FLOAT, float)}


def _is_plain(shape: Shape) -> bool:
    return shape in PLAIN_MEMBERS or shape.to_wire is plain_to_wire


def _also_takes(shape: Shape, found: type) -> bool:
    """Whether `found` is not what the shape is for: float takes an int too, int a bool."""
    return (shape is FLOAT and found is int) or (shape is INT and found is bool)


def _looks_like_another(shape: Shape, shapes: list[Shape]) -> bool:
    return any(other is not shape and other.kinds & shape.kinds for other in shapes)


def _marked_from_wire(mark: Any, shapes: list[Shape], words: str) -> Any:
    if type_of(mark) is not list or len(mark) != 3 or type_of(mark[1]) is not int:
        raise Unfit(f"a damaged union tag ({mark!r:.60})")
    name, wire = mark[0], mark[2]
    position: int = mark[1]
    named = [index for index, shape in enumerate(shapes) if shape.words == name]
    if named:
        return shapes[position if position in named else named[0]].from_wire(wire, True)
    if 0 <= position < len(shapes):  # the class was renamed
        return shapes[position].from_wire(wire, True)
    raise Unfit(f"a member {name!r} was recorded where {words} is declared")


def _only_that_fits(wire: Any, tagged: bool, readers: list[Shape]) -> Any:
    """Text written before the union had members that look alike: read only if exactly one of them can."""
    values: list[Any] = []
    refusals: list[Unfit] = []
    for shape in readers:
        try:
            values.append(shape.from_wire(wire, tagged))
        except Unfit as no:
            refusals.append(no)
    if len(values) == 1:
        return values[0]
    if not values:
        raise refusals[0]
    raise Unfit(
        f"a value that could be any of {union_words(shape.words for shape in readers)}, written without saying which"
    )

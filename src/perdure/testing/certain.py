"""What a program must give however its calls interleave: an account of its own, without loop, time or history.

Many programs race, and what they give is up to the race; of the others it is known beforehand. `certain` is None for
a node that races, fails, waits for somebody, or depends on what is cancelled when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from perdure.testing import programs as p
from perdure.testing.interpreter import fold
from perdure.testing.workflows import RETRY, value_of


def certain(program: p.Program, node: p.Node) -> int | None:
    """The number that the node evaluates to, in an undisturbed run as in every other one."""
    rule = _RULES.get(type(node))
    return None if rule is None else rule(lambda kid: certain(program, kid), program, node)


Value = Callable[[p.Node], "int | None"]


def _all(value: Value, kids: Iterable[p.Node]) -> list[int] | None:
    values = [value(kid) for kid in kids]
    known = [each for each in values if each is not None]
    return known if len(known) == len(values) else None


def _fold(value: Value, kids: Iterable[p.Node]) -> int | None:
    values = _all(value, kids)
    return None if values is None else fold(values)


def _step(value: Value, program: p.Program, node: p.Step) -> int | None:
    succeeds = node.ends == "value" and node.fails < RETRY.max_attempts and node.which in {"plain", "threaded", "lazy"}
    return value_of(program, node.number) if succeeds else None


def _child(value: Value, program: p.Program, node: p.Child) -> int | None:
    if node.how in {"abandon", "leave"}:
        return 0
    return value(node.kid) if node.how in {"await", "start"} else None


def _try(value: Value, program: p.Program, node: p.Try) -> int | None:
    return value(node.kid) if node.cleanup is None or value(node.cleanup) is not None else None


def _later(value: Value, program: p.Program, node: p.Later) -> int | None:
    return 0 if value(node.kid) is not None else None


def _wait(value: Value, program: p.Program, node: p.Wait) -> int | None:
    return len(node.kids) if node.until == "ALL_COMPLETED" and node.ms is None else None


def _queue(value: Value, program: p.Program, node: p.Queue) -> int | None:
    values = _all(value, node.kids)
    return None if values is None else fold([0, *values[1:]])


def _repeat(value: Value, program: p.Program, node: p.Repeat) -> int | None:
    one = value(node.kid)
    return None if one is None else fold([one] * node.times)


def _all_folded(value: Value, program: p.Program, node: p.Several) -> int | None:
    return _fold(value, node.kids)


def _generator(value: Value, program: p.Program, node: p.Generator) -> int | None:
    return _fold(value, node.kids[: node.leaves_after])


def _as_completed(value: Value, program: p.Program, node: p.AsCompleted) -> int | None:
    return 0 if node.ms is None and _all(value, node.kids) is not None else None


def _shield(value: Value, program: p.Program, node: p.Shield) -> int | None:
    return value(node.kid) if node.waits_on else None


def _cancel(value: Value, program: p.Program, node: p.Cancel) -> int | None:
    return 0 if value(node.other) is not None else None


def _kid(value: Value, program: p.Program, node: p.Stubborn) -> int | None:
    return value(node.kid)


def _zero(value: Value, program: p.Program, node: p.Node) -> int | None:
    return 0


_RULES: dict[type[p.Node], Callable[[Value, p.Program, Any], int | None]] = {
    p.Step: _step,
    p.Sleep: _zero,
    p.Look: _zero,
    p.Shield: _shield,
    p.Try: _try,
    p.Stubborn: _kid,
    p.Cancel: _cancel,
    p.Child: _child,
    p.Repeat: _repeat,
    p.Later: _later,
    p.Sequence: _all_folded,
    p.Gather: _all_folded,
    p.AsCompleted: _as_completed,
    p.Wait: _wait,
    p.Group: _all_folded,
    p.Locked: _all_folded,
    p.Signal: _all_folded,
    p.Queue: _queue,
    p.Generator: _generator,
    p.Foreign: _all_folded,
}

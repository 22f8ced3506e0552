"""Small random workflow programs: what the simulator runs.

A program is a tree of nodes; each is evaluated to a number. A node that stands under a `Child` is evaluated by a child
run. The tree is data, so that one registered workflow can run them all (`interpreter`), and so that it can be printed.
Times are in milliseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

STEP_MS = (0, 1, 5, 20, 20, 60, 150)
WAIT_MS = (0, 10, 20, 50, 50, 100, 200, 500)
PATIENCE_MS = (20, 100, 500, 3_000)
MESSAGES = ("a", "b")
NODES_MAX = 40


@dataclass(frozen=True, slots=True)
class Node:
    """Something to evaluate. `number` is its place in the program, and its name in traces."""

    number: int


# ── leaves ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Step(Node):
    """A step that takes so long, fails so many times first, and then ends as told.

    A `long` one adds to a conversation that the run carries along; a `person` has to decide about one that ends so."""

    which: Literal["plain", "threaded", "lazy", "short", "long"]
    ms: int
    fails: int
    ends: Literal["value", "error", "final", "odd", "person"]


@dataclass(frozen=True, slots=True)
class Effect(Node):
    """An effect on the world outside. `key`: its business key, which others may have too."""

    kind: Literal["idempotent", "can_look_up", "no_guarantee"]
    scope: Literal["run", "global"]
    key: int
    ms: int
    is_threaded: bool


@dataclass(frozen=True, slots=True)
class Ask(Node):
    """A question to people."""

    within_ms: int | None


@dataclass(frozen=True, slots=True)
class Sleep(Node):
    ms: int
    is_durable: bool


@dataclass(frozen=True, slots=True)
class Receive(Node):
    message: str
    within_ms: int | None


@dataclass(frozen=True, slots=True)
class Look(Node):
    """Ask perdure for something that has to be the same on replay."""

    at: Literal["now", "random", "uuid", "patch", "state", "run"]


@dataclass(frozen=True, slots=True)
class Raise(Node):
    what: Literal["value", "odd"]


# ── one kid ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Timeout(Node):
    """`asyncio.timeout` or `wait_for` around the kid."""

    ms: int
    kid: Node
    is_wait_for: bool


@dataclass(frozen=True, slots=True)
class Shield(Node):
    """Wait for the shielded kid for so long; then either leave it or wait on."""

    ms: int
    kid: Node
    waits_on: bool


@dataclass(frozen=True, slots=True)
class Try(Node):
    """The kid, with what is done about its exception and what is done in any case."""

    kid: Node
    handler: Node | None
    cleanup: Node | None


@dataclass(frozen=True, slots=True)
class Stubborn(Node):
    """Goes on through so many cancellations."""

    kid: Node
    times: int


@dataclass(frozen=True, slots=True)
class Cancel(Node):
    """The kid as a task that is cancelled once the other node is done."""

    kid: Node
    other: Node


@dataclass(frozen=True, slots=True)
class Child(Node):
    """The kid as a run of its own."""

    kid: Node
    how: Literal["await", "start", "cancel", "abandon", "leave"]
    ms: int


@dataclass(frozen=True, slots=True)
class Approve(Node):
    """The kid is one call, of a step, an effect or a child that is awaited: it is made if people approve it."""

    kid: Node
    quorum: int
    within_ms: int | None
    recheck: bool


@dataclass(frozen=True, slots=True)
class Repeat(Node):
    kid: Node
    times: int


@dataclass(frozen=True, slots=True)
class Later(Node):
    """The kid in a task that a timer's callback makes."""

    kid: Node
    ms: int


# ── several kids ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Several(Node):
    kids: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Sequence(Several):
    pass


@dataclass(frozen=True, slots=True)
class Gather(Several):
    keeps_errors: bool


@dataclass(frozen=True, slots=True)
class AsCompleted(Several):
    ms: int | None


@dataclass(frozen=True, slots=True)
class Wait(Several):
    """`asyncio.wait`, and what is done with those that lost."""

    until: Literal["FIRST_COMPLETED", "FIRST_EXCEPTION", "ALL_COMPLETED"]
    ms: int | None
    losers: Literal["cancel", "await", "leave"]


@dataclass(frozen=True, slots=True)
class Group(Several):
    """A TaskGroup."""


@dataclass(frozen=True, slots=True)
class Locked(Several):
    """All kids at once, but only so many at a time."""

    at_once: int


@dataclass(frozen=True, slots=True)
class Signal(Several):
    """The last kid sets the event that the others wait for."""


@dataclass(frozen=True, slots=True)
class Queue(Several):
    """The first kid's task puts what it gives, again and again; the others each take one and go on."""


@dataclass(frozen=True, slots=True)
class Foreign(Several):
    """A hosted section, outside the workflow's loop: the first kid by itself, then the others at once. They are steps,
    effects, calls of these under an approval, children that are awaited, durable waits, messages; and sequences of all
    that, or races for the first of them, each in a lane of its own."""


@dataclass(frozen=True, slots=True)
class Generator(Several):
    """An async generator that yields the kids one by one, left after so many."""

    leaves_after: int
    is_closed: bool


@dataclass(frozen=True, slots=True)
class Program:
    """`nodes` by number; the run begins with `root`, and begins anew so many times."""

    seed: int
    root: Node
    nodes: tuple[Node, ...]
    chapters: int

    def __str__(self) -> str:
        times = f", {self.chapters} chapters" if self.chapters > 1 else ""
        return "\n".join([f"program {self.seed}{times}:", *_lines(self.root, 1)])

    @property
    def has_lazy(self) -> bool:
        return any(isinstance(node, Step) and node.which == "lazy" for node in self.nodes)

    @property
    def has_effects(self) -> bool:
        return any(isinstance(node, Effect) for node in self.nodes)

    @property
    def has_requests(self) -> bool:
        """Whether people are asked for something."""
        return any(isinstance(node, Ask | Approve) for node in self.nodes)

    @property
    def has_global_effects(self) -> bool:
        """Whether a run may have to wait in memory for another one, which then has to find room there."""
        return any(isinstance(node, Effect) and node.scope == "global" for node in self.nodes)

    @property
    def hosts_children(self) -> bool:
        """Whether hosted code waits for children."""
        hosted = (node for node in self.nodes if isinstance(node, Foreign))
        return any(isinstance(kid, Child) for node in hosted for kid in node.kids)


def called(node: Node) -> int:
    """The number of the node that a call is about: of a child it is what that is to evaluate."""
    return node.kid.number if isinstance(node, Child) else node.number


def kids_of(node: Node) -> Iterator[tuple[str, Node]]:
    """The nodes right under a node, with what they are to it."""
    for field in dataclasses.fields(node):
        value: Any = getattr(node, field.name)
        if isinstance(value, Node):
            yield field.name, value
        elif field.name == "kids":
            yield from (("", kid) for kid in value)


def _lines(node: Node, depth: int, role: str = "") -> Iterator[str]:
    told = [
        f"{field.name}={value!r}"
        for field in dataclasses.fields(node)
        if field.name not in {"number", "kids"} and not isinstance(value := getattr(node, field.name), Node)
    ]
    label = f"{role}: " if role not in {"", "kid"} else ""
    yield f"{'  ' * depth}{node.number} {label}{type(node).__name__}({', '.join(told)})"
    for inner, kid in kids_of(node):
        yield from _lines(kid, depth + 1, inner)


def program_of(root: Node, *, seed: int = 0, chapters: int = 1) -> Program:
    """A program written by hand. Its nodes are numbered here, whatever numbers they have."""
    nodes: dict[int, Node] = {}
    return Program(seed, _numbered(root, nodes), tuple(nodes[number] for number in range(len(nodes))), chapters)


def _numbered(node: Node, nodes: dict[int, Node]) -> Node:
    number = len(nodes)
    nodes[number] = node
    changes: dict[str, Any] = {"number": number}
    for field in dataclasses.fields(node):
        value: Any = getattr(node, field.name)
        if isinstance(value, Node):
            changes[field.name] = _numbered(value, nodes)
        elif field.name == "kids":
            changes["kids"] = tuple(_numbered(kid, nodes) for kid in value)
    nodes[number] = dataclasses.replace(node, **changes)
    return nodes[number]


# ── generating ──────────────────────────────────────────────────────────────────────────────


class Author:
    """Writes a program from a seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = Random(seed)
        self._nodes: dict[int, Node] = {}
        self._left = self._rng.choice((4, 8, 12, 20, NODES_MAX))
        self._children = 0
        self._next = 0
        self._effects = Random(f"effects {seed}")
        self._has_effects = self._effects.random() < 0.3
        self._requests = Random(f"requests {seed}")
        self._has_requests = self._requests.random() < 0.2
        self._hosted = Random(f"hosted {seed}")
        self._has_branches = self._hosted.random() < 0.2

    def program(self) -> Program:
        root = self._node(0)
        if self._chance(0.8):
            root = self._keep(Try(self._number(), root, self._leaf(), self._leaf() if self._chance(0.3) else None))
        chapters = self._rng.choice((2, 3)) if self._chance(0.15) else 1
        nodes = tuple(self._nodes[number] for number in range(self._next))
        return Program(self._seed, root, nodes, chapters)

    def _chance(self, share: float) -> bool:
        return self._rng.random() < share

    def _number(self) -> int:
        self._next += 1
        self._left -= 1
        return self._next - 1

    def _keep(self, node: Node) -> Node:
        self._nodes[node.number] = node
        return node

    def _node(self, depth: int) -> Node:
        if self._left <= 1 or depth > 5 or (depth > 1 and self._chance(0.35)):
            return self._leaf()
        make = self._rng.choices(_MAKERS, _WEIGHTS)[0]
        if self._has_branches and self._hosted.random() < 0.15:
            make = Author.foreign
        return self._keep(make(self, self._number(), depth + 1))

    def _kids(self, depth: int, least: int = 2, most: int = 4) -> tuple[Node, ...]:
        return tuple(self._node(depth) for _ in range(self._rng.randint(least, most)))

    def _ms(self) -> int:
        return self._rng.choice(WAIT_MS)

    def _ms_or_none(self) -> int | None:
        return self._ms() if self._chance(0.3) else None

    def _leaf(self) -> Node:
        return self._keep(self._rng.choices(_LEAVES, _LEAF_WEIGHTS)[0](self, self._number()))

    def step(self, number: int) -> Node:
        step = self._step(number)
        call = self._effect(number, step.ms) if self._has_effects and self._effects.random() < 0.6 else step
        is_gated = self._has_requests and step.which != "long" and self._requests.random() < 0.5
        return self._gated(call) if is_gated else call

    def _gated(self, call: Node) -> Approve:
        """The call under an approval, which takes its place and its number."""
        rng = self._requests
        kid = self._keep(dataclasses.replace(call, number=self._number()))
        within = rng.choice(PATIENCE_MS) if rng.random() < 0.6 else None
        return Approve(call.number, kid, rng.choice((1, 1, 1, 2)), within, rng.random() < 0.7)

    def _effect(self, number: int, ms: int) -> Effect:
        """In place of a step. Its luck is its own, so that programs without effects are what they were."""
        rng = self._effects
        kind = rng.choice(("idempotent", "can_look_up", "no_guarantee"))
        scope = "global" if rng.random() < 0.3 else "run"
        key = rng.choice((1001, 1002)) if rng.random() < 0.3 else number
        return Effect(number, kind, scope, key, ms, rng.random() < 0.2)  # type: ignore[arg-type]

    def _step(self, number: int) -> Step:
        rng = self._rng
        which = rng.choices(("plain", "threaded", "lazy", "short", "long"), (60, 12, 12, 8, 6))[0]
        fails = rng.choice((1, 1, 2)) if self._chance(0.15) else 0
        ends = rng.choices(("value", "error", "final", "odd", "person"), (85, 4, 4, 4, 2))[0]
        return Step(number, which, rng.choice(STEP_MS), fails, ends)  # type: ignore[arg-type]

    def sleep(self, number: int) -> Node:
        return Sleep(number, self._ms(), self._chance(0.6))

    def receive(self, number: int) -> Node:
        receive = Receive(number, self._rng.choice(MESSAGES), self._ms() if self._chance(0.6) else None)
        rng = self._requests
        if not self._has_requests or rng.random() < 0.4:
            return receive
        return Ask(number, rng.choice(PATIENCE_MS) if rng.random() < 0.6 else None)

    def look(self, number: int) -> Node:
        return Look(number, self._rng.choice(("now", "random", "uuid", "patch", "state", "run")))

    def failure(self, number: int) -> Node:
        return Raise(number, self._rng.choice(("value", "odd")))

    def timeout(self, number: int, depth: int) -> Node:
        return Timeout(number, self._ms(), self._node(depth), self._chance(0.4))

    def shield(self, number: int, depth: int) -> Node:
        return Shield(number, self._ms(), self._node(depth), self._chance(0.6))

    def attempt(self, number: int, depth: int) -> Node:
        kid = self._node(depth)
        handler = self._node(depth) if self._chance(0.7) else None
        return Try(number, kid, handler, self._node(depth) if handler is None or self._chance(0.4) else None)

    def stubborn(self, number: int, depth: int) -> Node:
        return Stubborn(number, self._node(depth), self._rng.randint(1, 2))

    def cancel(self, number: int, depth: int) -> Node:
        return Cancel(number, self._node(depth), self._leaf())

    def child(self, number: int, depth: int) -> Node:
        self._children += 1
        if self._children > 4:
            return Sequence(number, self._kids(depth, 1, 2))
        how = self._rng.choices(("await", "start", "cancel", "abandon", "leave"), (50, 20, 10, 10, 10))[0]
        child = Child(number, self._node(depth), how, self._ms())  # type: ignore[arg-type]
        is_gated = self._has_requests and how == "await" and self._requests.random() < 0.5
        return self._gated(child) if is_gated else child

    def repeat(self, number: int, depth: int) -> Node:
        return Repeat(number, self._node(max(depth, 3)), self._rng.randint(2, 3))

    def later(self, number: int, depth: int) -> Node:
        return Later(number, self._node(depth), self._ms())

    def sequence(self, number: int, depth: int) -> Node:
        return Sequence(number, self._kids(depth))

    def gather(self, number: int, depth: int) -> Node:
        return Gather(number, self._kids(depth), self._chance(0.4))

    def as_completed(self, number: int, depth: int) -> Node:
        return AsCompleted(number, self._kids(depth), self._ms_or_none())

    def wait(self, number: int, depth: int) -> Node:
        until = self._rng.choices(("FIRST_COMPLETED", "FIRST_EXCEPTION", "ALL_COMPLETED"), (60, 20, 20))[0]
        losers = self._rng.choice(("cancel", "await", "leave"))
        return Wait(number, self._kids(depth), until, self._ms_or_none(), losers)  # type: ignore[arg-type]

    def group(self, number: int, depth: int) -> Node:
        return Group(number, self._kids(depth))

    def locked(self, number: int, depth: int) -> Node:
        return Locked(number, self._kids(depth), self._rng.randint(1, 2))

    def signal(self, number: int, depth: int) -> Node:
        return Signal(number, self._kids(depth))

    def queue(self, number: int, depth: int) -> Node:
        return Queue(number, self._kids(depth))

    def foreign(self, number: int, depth: int) -> Node:
        if self._has_branches:
            return Foreign(number, tuple(self._branch() for _ in range(self._hosted.randint(1, 4))))
        kids = [self._keep(self.step(self._number())) for _ in range(self._rng.randint(1, 3))]
        if self._chance(0.3):
            kids.append(self._keep(Child(self._number(), self._leaf(), "await", 0)))
        return Foreign(number, tuple(kids))

    def _branch(self) -> Node:
        rng = self._hosted
        if rng.random() < 0.5:
            return self._call(self._number())
        number = self._number()
        if rng.random() < 0.3:
            kids = tuple(self._call(self._number()) for _ in range(rng.randint(2, 3)))
            return self._keep(Wait(number, kids, "FIRST_COMPLETED", None, rng.choice(("cancel", "await"))))
        return self._keep(Sequence(number, tuple(self._call(self._number()) for _ in range(rng.randint(2, 4)))))

    def _call(self, number: int) -> Node:
        """What hosted code may ask for."""
        rng = self._hosted
        what = rng.choices(("step", "sleep", "receive", "child"), (55, 15, 20, 10))[0]
        if what == "step":
            return self._keep(self.step(number))
        if what == "sleep":
            return self._keep(Sleep(number, self._ms(), True))
        if what == "receive":
            return self._keep(Receive(number, rng.choice(MESSAGES), self._ms() if rng.random() < 0.6 else None))
        return self._keep(Child(number, self._leaf(), "await", 0))

    def generator(self, number: int, depth: int) -> Node:
        kids = self._kids(depth)
        return Generator(number, kids, self._rng.randint(1, len(kids)), self._chance(0.5))


_Leaf = Callable[[Author, int], Node]
_Inner = Callable[[Author, int, int], Node]

_LEAF_TABLE: dict[_Leaf, int] = {
    Author.step: 60,
    Author.sleep: 20,
    Author.receive: 10,
    Author.look: 15,
    Author.failure: 4,
}
_INNER_TABLE: dict[_Inner, int] = {
    Author.sequence: 25,
    Author.gather: 15,
    Author.as_completed: 6,
    Author.wait: 12,
    Author.group: 10,
    Author.timeout: 12,
    Author.shield: 6,
    Author.attempt: 14,
    Author.stubborn: 4,
    Author.cancel: 6,
    Author.child: 12,
    Author.repeat: 5,
    Author.later: 4,
    Author.locked: 4,
    Author.signal: 4,
    Author.queue: 4,
    Author.generator: 4,
    Author.foreign: 4,
}
_LEAVES, _LEAF_WEIGHTS = list(_LEAF_TABLE), list(_LEAF_TABLE.values())
_MAKERS, _WEIGHTS = list(_INNER_TABLE), list(_INNER_TABLE.values())


def write_program(seed: int) -> Program:
    """The program of this seed: always the same."""
    return Author(seed).program()

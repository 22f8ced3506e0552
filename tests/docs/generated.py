"""What of the docs is made from tables of the code: `python -m tests.docs.generated` writes it into the pages.

A page says where: between `<!-- generated: NAME -->` and `<!-- end -->`; and `<!-- file: PATH -->` shows a file of the
project. A test holds the pages against the code.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from tests.contract.changes import LATER, PLACES, rows_of_the_call
from tests.contract.changes import rows as rows_of_changes
from tests.docs.conftest import PAGES, ROOT
from tests.docs.defaults import DEFAULTS
from tests.test_layout import MAY_IMPORT, PURE
from tests.test_layout import ROOT as IMPORT_ROOT
from typer.main import get_command

import perdure
from perdure import errors
from perdure.api import inbox
from perdure.audit.doctor import CHECKLIST
from perdure.audit.foreign_logs import ROLES
from perdure.cli.app import app
from perdure.cli.exits import MEANINGS
from perdure.contract.compare import RULES
from perdure.decisions import urgency
from perdure.history import events
from perdure.http import classify
from perdure.ledger.states import TRANSITIONS, EffectState
from perdure.store.protocol import Status

_PLACE = re.compile(
    r"(?P<start><!-- (?P<kind>generated|file): (?P<name>[\w./-]+) -->\n)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL
)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), ["---" for _ in head], *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def sentence(docstring: str | None) -> str:
    """A docstring as one line of text."""
    return " ".join((docstring or "").split())


# ── the status of a run ─────────────────────────────────────────────────────────────────────

NEW = "[*]"

STATUS_CHANGES: Mapping[tuple[str, str], str] = {
    (NEW, Status.QUEUED): "started by a client, with a delay, or where nobody is free",
    (NEW, Status.RUNNING): "started by a runtime that executes it",
    (Status.QUEUED, Status.RUNNING): "a worker takes it",
    (Status.RUNNING, Status.WAITING): "it only waits, or is paused",
    (Status.WAITING, Status.RUNNING): "what it waited for is there",
    (Status.RUNNING, Status.BLOCKED): "only a person or new code gets it on",
    (Status.WAITING, Status.BLOCKED): "found when it is loaded again",
    (Status.BLOCKED, Status.RUNNING): "a person decided about the call",
    (Status.BLOCKED, Status.QUEUED): "a person wants it tried again",
    (Status.BLOCKED, Status.FAILED): "a person gave it up",
    (Status.BLOCKED, Status.CANCELLED): "cancelled",
    (Status.WAITING, Status.CANCELLED): "cancelled by force",
    (Status.RUNNING, Status.COMPLETED): "the workflow returned",
    (Status.RUNNING, Status.FAILED): "the workflow raised",
    (Status.RUNNING, Status.CANCELLED): "cancelled",
}
"""Every change of status that there is. `test_status.py` watches a store and sees all of these and no others."""


def status_picture() -> str:
    lines = [f"    {before} --> {after}: {why}" for (before, after), why in STATUS_CHANGES.items()]
    lines += [f"    {status} --> {NEW}" for status in Status if status.is_final]
    return "```mermaid\nstateDiagram-v2\n" + "\n".join(lines) + "\n```\n"


# ── the states of an effect ─────────────────────────────────────────────────────────────────


def effect_states() -> str:
    lines = [f"    {NEW} --> {EffectState.PENDING}: asked for"]
    for before, changes in TRANSITIONS.items():
        ways: dict[EffectState, list[str]] = {}
        for happening, after in changes.items():
            ways.setdefault(after, []).append(happening.replace("_", " "))
        lines += [f"    {before} --> {after}: {', '.join(names)}" for after, names in ways.items()]
    lines += [f"    {state} --> {NEW}" for state in EffectState if state.is_final]
    return "```mermaid\nstateDiagram-v2\n" + "\n".join(lines) + "\n```\n"


# ── why runs are parked ─────────────────────────────────────────────────────────────────────


class Parked(NamedTuple):
    """A reason, in words: what happened, and what gets the run on."""

    happened: str
    way_out: str


PARKED: Mapping[str, Parked] = {
    "needs_person": Parked(
        "a step raised `NeedsPerson`, with the question; or a saga is about to undo a promise",
        "answer: give the result as `value`, have the step tried again, or let it fail",
    ),
    "unknown_effect": Parked(
        "an effect may have happened, and no machine can tell",
        "find out what became of it, and settle it: `succeeded` with its result, `failed`, or `retry`",
    ),
    "over_budget": Parked(
        "a call wants more than is left of a [budget](budgets.md)",
        "raise the limit (`perdure inbox raise-budget`), or let the call fail; in the next period of a shared "
        "budget it goes on by itself",
    ),
    "failed_compensation": Parked(
        "a saga cannot undo something: its undoing failed, or it has none",
        "take it back by hand and say so with `value`, have the undoing tried again, or let it stand: `fail`",
    ),
    "done_by_original": Parked(
        "a [fork](forks.md) is about to do an effect that the run which it was forked from has done, or to undo one",
        "do it a second time (`retry`), take the original's result (`reuse`), or let the call fail",
    ),
    "stale_decision": Parked(
        "a recorded result does not stand any more: what it [rests on](premises.md) has changed, or its time is over",
        "let it stand (`keep`), have the facts read again (`retry`), or let the run fail",
    ),
    "premise_unreadable": Parked(
        "what a recorded result [rests on](premises.md) cannot be read, so nobody knows whether it stands",
        "mend whatever is read there, then `retry`; or let the result stand (`keep`)",
    ),
    "diverged": Parked(
        "code and history part: the code changed under the run, or is not deterministic",
        "deploy code that replays it ([changing code](changing-code.md)), then `retry`",
    ),
    "incompatible_version": Parked(
        "it began under another version, release, policy or tool set, which the code here does not claim",
        "register the old version too, or claim it ([deploying](deploying.md)), then `retry`",
    ),
    "no_worker_for_version": Parked(
        "it has been due for a minute, and no live worker has its workflow and version",
        "start a worker that has; the run goes on by itself",
    ),
    "silent": Parked(
        "nothing was recorded for longer than its own limits allow; its worker is dead; or it is due, and nobody "
        "takes it",
        "the message says which; a worker that lives, or has room, takes it over by itself",
    ),
    "undecodable": Parked(
        "a recorded value does not fit its type hint any more; or a message does not fit what it is received as",
        "mend the hint, then `retry`; or give what stands for the message",
    ),
    "crash_loop": Parked(
        "three processes died while they worked on it alone, without progress",
        "mend the cause, then `retry`",
    ),
    "stuck_turn": Parked(
        "its code ran 100,000 callbacks without a durable call, or blocked the loop for 30 s",
        "mend the code, then `retry`",
    ),
    "deadlocked": Parked(
        "its code waits for something that nothing can bring about: an `Event` nobody sets, a thread",
        "mend the code, then `retry`; the message shows what each task waits for",
    ),
}
"""In the order in which one meets them."""


def reasons() -> str:
    rows = [(f"`{reason}`", *parked, _choices(reason)) for reason, parked in PARKED.items()]
    return table(("reason", "what happened", "what gets it on", "choices"), rows)


def ranks() -> str:
    reasons = {rank: [reason for reason, at in urgency.RANKS.items() if at == rank] for rank in urgency.MEANS}
    named = {rank: ", ".join(f"`{reason}`" for reason in found) for rank, found in reasons.items()}
    named |= {urgency.HIGH_RISK: "whatever the reason", urgency.WAITS: "all others"}
    rows = [(f"{rank + 1}", means, named[rank]) for rank, means in urgency.MEANS.items()]
    return table(("", "it is about", "reasons"), rows)


def _choices(reason: str) -> str:
    offered = inbox.REASONS[reason]
    choices = dict.fromkeys([*offered.of_call, *offered.of_run])
    return ", ".join(f"`{choice}`" for choice in choices) or "none needed"


# ── the replay contract ─────────────────────────────────────────────────────────────────────


GOES_ON = {"replays": "goes on", "needs patch": "guard", "breaks": "parks", "not checked": "not checked"}


def changed() -> str:
    """Held against `perdure code check` and against workers, case by case, in tests/contract/test_changes.py."""
    rows = [(row[0], *(GOES_ON[each] for each in row[1:-1]), row[-1]) for row in rows_of_changes()]
    return table(("change", *(f"run {place}" for place in PLACES), "instead"), rows)


def changed_there() -> str:
    """Held against the same, of the very call at which the run stands."""
    rows = [(place, change, GOES_ON[becomes]) for place, change, becomes in rows_of_the_call()]
    return table(("run", "that call", "what becomes of it"), rows)


def later_places() -> str:
    return "\n".join(f"- {place}" for place in LATER) + "\n"


def contract() -> str:
    return table(("part of the manifest", "another one"), [(f"`{name}`", rule.means) for name, rule in RULES.items()])


# ── failures of steps ───────────────────────────────────────────────────────────────────────

_AGAIN = {classify.Kind.RETRYABLE: "again", classify.Kind.FINAL: "final", classify.Kind.PERSON: "a person"}


Group = tuple[classify.Rule, str]
"""A rule, and what it is about."""


def failures() -> str:
    statuses: dict[str, classify.Rule] = {str(status): rule for status, rule in classify.STATUSES.items()}
    statuses |= {f"other {digit}xx": rule for digit, rule in classify.STATUS_CLASSES.items()}
    classes = {**_by_name(classify.CLASSES), **classify.CLASS_NAMES}
    by_evidence: list[tuple[str, list[Group]]] = [
        ("1. the step's own word", _grouped(_by_name(classify.VERDICTS))),
        ("2. a model's refusal", [(classify.REFUSAL, _names(sorted(classify.REFUSAL_FINISH_REASONS)))]),
        ("3. an answer: HTTP status", _grouped(statuses)),
        ("3. an answer: 4xx or 503 that says when to come back", [(classify.COME_BACK, "`Retry-After`")]),
        ("3. an answer: error code", _grouped(classify.CODES)),
        ("4. the network", _grouped(_without_libraries(classify.NETWORK))),
        ("5. by class", [*_grouped(classes), (classify.UNKNOWN, "everything else")]),
    ]
    lines = [
        ("" if index else evidence, about, rule.means, _AGAIN[rule.kind])
        for evidence, groups in by_evidence
        for index, (rule, about) in enumerate(groups)
    ]
    return table(("evidence", "which", "means", "then"), lines)


def _by_name(rules: Mapping[Any, classify.Rule]) -> dict[str, classify.Rule]:
    return {cls.__name__: rule for cls, rule in rules.items()}


def _grouped(rules: Mapping[str, classify.Rule]) -> list[Group]:
    groups: dict[classify.Rule, list[str]] = {}
    for name, rule in rules.items():
        groups.setdefault(rule, []).append(name)
    return [(rule, _names(names)) for rule, names in groups.items()]


def _names(names: Iterable[str]) -> str:
    return ", ".join(name if name.startswith("other ") else f"`{name}`" for name in names)


def _without_libraries(rules: Mapping[str, classify.Rule]) -> dict[str, classify.Rule]:
    """Python's own classes; what the libraries have follows the same lines."""
    shown: dict[str, classify.Rule] = {}
    for name, rule in rules.items():
        package, _, cls = name.partition(".")
        if package in {"builtins", "ssl", "socket", "http"}:
            shown[cls if package == "builtins" else name] = rule
    return shown


# ── errors ──────────────────────────────────────────────────────────────────────────────────


def error_tree() -> str:
    """The tree that stands at the top of errors.py."""
    docstring = errors.__doc__ or ""
    tree = docstring[docstring.index("    PerdureError") : docstring.index("Errors carry their data")]
    return f"```text\n{textwrap.dedent(tree).rstrip()}\n```\n"


# ── events and tables ───────────────────────────────────────────────────────────────────────


def event_kinds() -> str:
    rows = [(f"`{kind}`", "yes" if cls.is_outcome else "", _fields(cls)) for cls, kind in events.KINDS.items()]
    return table(("kind", "delivered to the code", "holds"), rows)


def _fields(cls: type[msgspec.Struct]) -> str:
    return ", ".join(f"`{field.name}`" for field in msgspec.structs.fields(cls))


def store_tables() -> str:
    folder = ROOT / "src" / "perdure" / "store" / "sqlite" / "migrations"
    script = "".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.sql")))
    found = re.findall(r"((?:^--[^\n]*\n)*)^CREATE TABLE (\w+) \(\n((?:^ [^\n]*\n)*)", script, re.MULTILINE)
    rows = {  # a table that a later migration makes anew is what that one says
        name: (f"`{name}`", sentence(" ".join(row.removeprefix("--") for row in comment.splitlines())), _columns(body))
        for comment, name, body in found
    }
    return table(("table", "what is in it", "columns"), rows.values())


def _columns(body: str) -> str:
    lines = [line.split("--")[0].split() for line in body.splitlines()]
    return ", ".join(f"`{words[0]}`" for words in lines if words and words[0].islower())


# ── the map ─────────────────────────────────────────────────────────────────────────────────

SOURCE = ROOT / "src" / "perdure"


def layout() -> str:
    """The parts of the package, and who may import whom."""
    rows = [
        (f"`{part}`", _says(home), "pure" if part in PURE else "", _parts(needs))
        for part, needs in MAY_IMPORT.items()
        if (home := _home(part)) is not None
    ]
    return table(("part", "what it is", "", "may import"), rows)


def _home(part: str) -> Path | None:
    name = "" if part == IMPORT_ROOT else part
    candidates = (SOURCE / name / "__init__.py", SOURCE / f"{name}.py")
    return next((path for path in candidates if path.is_file()), None)


def _parts(needs: Iterable[str]) -> str:
    there = [part for part in MAY_IMPORT if part in needs and _home(part) is not None]
    return ", ".join(f"`{part}`" for part in there)


def modules() -> str:
    """The files of the parts that one reads first."""
    rows: list[tuple[str, str]] = []
    for folder in ("runtime", "runtime/hosted", "engine", "history", "store", "store/sqlite", "api"):
        files = sorted((SOURCE / folder).glob("*.py"))
        rows += [(f"`{folder}/{file.name}`", _says(file)) for file in files if file.stem != "__init__"]
    return table(("file", "what it is about"), rows)


def _says(file: Path) -> str:
    """The first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=[.?])\s", sentence(docstring.split("\n\n")[0]), maxsplit=1)[0].rstrip(".")


# ── the command line ────────────────────────────────────────────────────────────────────────

SAID_ONCE = {"--store", "--json", "--help"}


def exit_codes() -> str:
    return table(("code", "means"), [(f"{code.value}", meaning) for code, meaning in MEANINGS.items()])


def checklist() -> str:
    rows = [
        (str(number), f"**{each.text}.** {each.why}", each.fails, f"`{each.id}`")
        for number, each in enumerate(CHECKLIST, 1)
    ]
    return table(("", "question", "what fails it", "name"), rows)


def commands() -> str:
    return "\n".join(_commands(get_command(app), "perdure"))


def _commands(command: Any, path: str) -> Iterator[str]:
    for name, inner in getattr(command, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from _commands(inner, f"{path} {name}")
        else:
            yield _command(inner, f"{path} {name}")


def _command(command: Any, path: str) -> str:
    arguments = [each for each in command.params if not each.opts[0].startswith("-")]
    options = [each for each in command.params if each.opts[0].startswith("-") and each.opts[0] not in SAID_ONCE]
    usage = " ".join([path, *map(_usage, arguments)])
    text = "\n\n".join(sentence(paragraph) for paragraph in command.help.split("\n\n"))
    rows = [(f"`{_usage(each)}`", _help(each)) for each in arguments]
    rows += [(f"`{each.opts[0]}`", _help(each)) for each in options]
    return f"### `{usage}`\n\n{text}\n" + (f"\n{table(('', ''), rows)}" if rows else "")


def _usage(argument: Any) -> str:
    name: str = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _help(parameter: Any) -> str:
    default = parameter.default
    shown = f" (default: {default})" if default not in {None, False, "", "null"} and not parameter.required else ""
    return f"{parameter.help.rstrip('.')}{shown}"


# ── names and defaults ──────────────────────────────────────────────────────────────────────


def public_names() -> str:
    names = [name for name in perdure.__all__ if not name.startswith("_")]
    rows = [(f"`perdure.{name}`", _first_line(getattr(perdure, name))) for name in names]
    return table(("name", "what it is"), rows)


def _first_line(thing: object) -> str:
    text = (thing.__doc__ or "").strip().split("\n\n")[0]
    first = re.split(r"(?<=[.:])\s", sentence(text), maxsplit=1)[0]
    return first.rstrip(":").rstrip(".")


def defaults() -> str:
    return table(("what", "default", "set with"), [(each.what, each.shown, f"`{each.where}`") for each in DEFAULTS])


# ── the pages ───────────────────────────────────────────────────────────────────────────────

def log_roles() -> str:
    rows = ((f"`{role}`", WHAT_A_LOG_SAYS[role], ", ".join(map("`{}`".format, names))) for role, names in ROLES.items())
    return table(("role", "what", "names that are known"), rows)


WHAT_A_LOG_SAYS: Mapping[str, str] = {
    "run": "whose line it is; it has to say that",
    "time": "when it was; it has to say that",
    "event": "what happened, in words or as a name",
    "workflow": "what the run is a run of",
    "call": "the step, tool or activity that it is about",
    "state": "where the run's state is kept",
}


SECTIONS: Mapping[str, Callable[[], str]] = {
    "status": status_picture,
    "effect_states": effect_states,
    "reasons": reasons,
    "changes": changed,
    "changes_there": changed_there,
    "later_places": later_places,
    "contract": contract,
    "ranks": ranks,
    "failures": failures,
    "error_tree": error_tree,
    "event_kinds": event_kinds,
    "store_tables": store_tables,
    "exit_codes": exit_codes,
    "checklist": checklist,
    "commands": commands,
    "log_roles": log_roles,
    "layout": layout,
    "modules": modules,
    "public_names": public_names,
    "defaults": defaults,
}


def filled(text: str) -> str:
    """A page with all its generated parts as they should be."""
    return _PLACE.sub(lambda place: f"{place['start']}\n{_body(place['kind'], place['name'])}\n{place['end']}", text)


def _body(kind: str, name: str) -> str:
    if kind == "generated":
        return SECTIONS[name]()
    return f"```python\n{(ROOT / name).read_text(encoding='utf-8').strip()}\n```\n"


def places_in(page: Path) -> set[str]:
    """What the page shows that is made: sections by name, files by path."""
    return {match["name"] for match in _PLACE.finditer(page.read_text(encoding="utf-8"))}


def main() -> None:
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"{page.relative_to(ROOT)} is written anew", file=sys.stderr)


if __name__ == "__main__":
    main()

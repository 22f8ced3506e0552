"""`perdure code policy`: tries a policy, before it is in force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from perdure.cli.exits import CommandError, ExitCode, complain
from perdure.cli.options import JsonOption, ScopeOption, StoreOption, existing_store, scope_from, seconds_from
from perdure.cli.show import counted, print_json, say
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.api.policies import Policy
    from perdure.audit.policies import Said

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="A policy, in TOML.", show_default=False)]
CallOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME(JSON)", help="A call to be judged: 'refund({\"amount\": 50})'; may be repeated.",
        show_default=False,
    ),
]  # fmt: skip


def policy(
    file: FileArgument,
    call: CallOption = None,
    sequence: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Calls made one after the other, each on a line after its time, as in 10m refund({}): "
            "rates are counted.", show_default=False,
        ),
    ] = None,
    reversible: Annotated[
        bool, typer.Option("--reversible", help="What is called can be taken back; else it is taken as if not.")
    ] = False,
    scope: ScopeOption = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Judge all effects that the store has recorded, each for itself.")
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Read a policy, and say what it says about calls: those that are named, a sequence of them, or those recorded.

    The exit code is 1 if one of them is refused. An approval that is needed is no refusal.
    """
    from perdure.api.policies import Policy
    from perdure.audit.policies import said_of, said_of_recorded, written_call

    read, stated = Policy.load(file), scope_from(scope)
    said: list[Said] = []
    for text in call or ():
        name, arguments = written_call(text)
        said.append(said_of(read, name, arguments, scope=stated, is_reversible=reversible))
    said += _in_turn(read, sequence, stated, is_reversible=reversible)
    if recorded:
        with existing_store(store) as opened:
            said += said_of_recorded(read, opened)
    if json:
        told = {"policy": read.name, "version": read.version, "rules": [rule.name for rule in read.rules]}
        print_json({**told, "calls": [msgspec.structs.asdict(each) for each in said]})
    else:
        _print(said)
        complain(f"{read.label}: {counted(len(read.rules), 'rule')}{_count(said)}")
    return ExitCode.FAILED if any(each.verdict == "refuse" for each in said) else ExitCode.OK


def _in_turn(read: Policy, file: str | None, scope: Mapping[str, str], *, is_reversible: bool) -> Iterator[Said]:
    """What it says about the calls in a file: on each line a duration since the beginning, and a call."""
    from perdure.audit.policies import InTurn, written_call

    if file is None:
        return
    try:
        lines = Path(file).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--sequence {file}: it cannot be read: {error}") from None
    turn = InTurn(read, scope=scope, is_reversible=is_reversible)
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        time, _, call = line.strip().partition(" ")
        try:
            yield turn.said_of(seconds_from(time, option=f"{file}, line {number}:"), *written_call(call))
        except UsageError as error:
            raise CommandError(f"{file}, line {number}: {error}") from None


def _print(said: Sequence[Said]) -> None:
    for each in said:
        where = f" ({each.run})" if each.run else "" if each.at is None else f" at {each.at:g} s"
        rule = f", {each.rule}" if each.rule else ""
        why = f": {each.why}" if each.why else ""
        why += "".join(f"; counts against {rate}" for rate in each.rates)
        say(f"{each.call}{where}: {each.verdict}{rule}{why}")


def _count(said: Sequence[Said]) -> str:
    numbers = Counter(each.verdict for each in said)
    return "".join(f", {number} {verdict}" for verdict, number in numbers.items())

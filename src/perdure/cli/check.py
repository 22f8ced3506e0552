"""`perdure code check`: whether the runs under way replay on the code as it is; `perdure code diff`: how two differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from perdure.cli.exits import CommandError, ExitCode, complain
from perdure.cli.options import JsonOption, ModelPolicyOption, PromptReleaseOption, StoreOption, existing_store
from perdure.cli.parts import Code, OfFolder, OfStore, together
from perdure.cli.show import counted, print_json, say

if TYPE_CHECKING:
    from perdure.api.checking import Checked, Pending


def check(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="TARGET...", help="app.py, package.module, or app.py:workflow.", show_default=False),
    ],
    histories: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Files of `perdure store histories`, instead of a store."),
    ] = None,
    finished: Annotated[int, typer.Option(min=0, help="How many runs that have ended are looked at besides.")] = 100,
    all_runs: Annotated[bool, typer.Option("--all", help="Also those that replay, with what they wait for.")] = False,
    prompt_release: PromptReleaseOption = None,
    model_policy_version: ModelPolicyOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Say of every run under way what becomes of it under this code, before that is deployed. Performs nothing.

    A run replays; or needs a patch, and the line to add is shown; or breaks, with the first call in which history and
    code differ. The exit code is 1 if any run does not replay.
    """
    code = Code(tuple(targets), prompt_release, model_policy_version)
    found = _of_folder(Path(histories), code) if histories is not None else _of_store(store, code, finished)
    if json:
        print_json([msgspec.to_builtins(each) | {"pending": _pending_json(each)} for each in found])
    else:
        _tell(found, all_runs=all_runs)
    return ExitCode.FAILED if any(each.outlook in _BAD for each in found) else ExitCode.OK


_BAD = frozenset({"needs patch", "breaks"})


def _of_store(store: str | None, code: Code, finished: int) -> list[Checked]:
    from perdure.api.checking import runs_to_check

    with existing_store(store) as opened:
        infos = runs_to_check(opened, code.specs(), finished_max=finished)
        return together(OfStore(code, opened.url, infos), opened)


def _of_folder(folder: Path, code: Code) -> list[Checked]:
    if not folder.is_dir():
        raise CommandError(f"there is no folder {folder}: `perdure store histories {folder}` writes one")
    files = [str(path) for path in sorted(folder.glob("*.json"))]
    if not files:
        raise CommandError(f"there is no history in {folder}: `perdure store histories {folder}` writes them")
    return together(OfFolder(code, files))


def _pending_json(each: Checked) -> list[dict[str, Any]]:
    return [pending._asdict() for pending in each.pending]


def _tell(found: Sequence[Checked], *, all_runs: bool) -> None:
    for each in found:
        if all_runs or each.outlook in _BAD:
            _tell_run(each)
    numbers = Counter(each.outlook for each in found)
    told = ", ".join(f"{number} {_verb(str(outlook), number)}" for outlook, number in sorted(numbers.items()))
    complain(f"{counted(len(found), 'run')} checked" + (f": {told}" if told else ""))


def _verb(outlook: str, number: int) -> str:
    one, many = {"replays": ("replays", "replay"), "needs patch": ("needs a patch", "need a patch"),
                 "breaks": ("breaks", "break")}.get(outlook, (outlook, outlook))  # fmt: skip
    return one if number == 1 else many


def _tell_run(each: Checked) -> None:
    say(f"{each.run_id} ({each.workflow} version {each.version}, {each.status}): {each.outlook}")
    lines = [("", each.why), ("add: ", each.patch), *map(_told, each.pending)]
    for name, text in lines:
        if text:
            print("  ", end="")
            say(name + text)


def _told(pending: Pending) -> tuple[str, str]:
    return f"{pending.call or 'the run'}: {pending.does}: ", pending.then


# ── two versions side by side ───────────────────────────────────────────────────────────────


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="old.py:workflow.", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="new.py:workflow.", show_default=False)],
    json: JsonOption = False,
) -> ExitCode:
    """Show the durable calls of two versions of a workflow side by side, and what each difference means for runs.

    The outline of the source explains. Whether a run replays, `perdure code check` says.
    """
    from perdure.api.checking import topology
    from perdure.cli.target import workflow_at
    from perdure.contract.differences import differences

    texts = [topology(workflow_at(target)[0].spec) for target in (old, new)]
    for target, text in zip((old, new), texts, strict=True):
        if not text:
            raise CommandError(f"{target} makes no durable call that can be seen in its source")
    rows = differences(*texts)
    if json:
        print_json([row._asdict() for row in rows])
        return ExitCode.FAILED if any(row.what for row in rows) else ExitCode.OK
    width = max(len(row.old) for row in rows)
    marks = {"": " ", "appeared": "+", "vanished": "-", "moved": "~", "changed": "!"}
    for row in rows:
        print(f"{marks[row.what]} {row.old.ljust(width)}   {row.new}".rstrip())
    for row in rows:
        if row.told:
            say(f"{row.told}. {row.means}")
    return ExitCode.FAILED if any(row.what for row in rows) else ExitCode.OK

"""From what stands on the command line to workflows: `app.py:agent`, `app.py`, `package.module:agent`.

A file is loaded under the name that `import` would give it, with its folder (or that of its package) on the path; so it
finds its neighbours, and it is the same module as in a program that imports it.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import logging
import os
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from perdure.api.script import with_children
from perdure.api.settings import authority_target
from perdure.api.workflow import AnyWorkflow, Step, SyncStep, SyncWorkflow, Workflow
from perdure.cli.exits import CommandError
from perdure.errors import PerdureError, UnknownNameError
from perdure.specs import WorkflowSpec

log = logging.getLogger("perdure")


def workflow_at(target: str) -> tuple[AnyWorkflow, list[AnyWorkflow]]:
    """The workflow that is named, and all that its module has. Without a name it is the only one there."""
    where, _, name = target.rpartition(":") if _has_name(target) else (target, "", "")
    module = load(where)
    known = workflows_in(module)
    return (_named(module, name, known) if name else _only(where, module, known)), with_children(known)


def workflows_at(targets: Iterable[str]) -> list[AnyWorkflow]:
    """All workflows of these modules, and those that their code names. One at least per module."""
    found: dict[AnyWorkflow, None] = {}
    for target in targets:
        if _has_name(target):
            found[workflow_at(target)[0]] = None
            continue
        known = workflows_in(load(target))
        if not known:
            raise CommandError(f"{target} has no workflows: decorate a function with @perdure.workflow")
        found |= dict.fromkeys(known)
    return with_children(found)


def warn_of(workflows: Iterable[AnyWorkflow]) -> None:
    """Log what their source shows, before any of it runs: a call that is not awaited never happens, without a word."""
    from perdure.audit.lint import Severity, lint_function

    for workflow in workflows:
        for finding in lint_function(workflow.spec.function):
            if finding.severity is not Severity.INFO:
                log.warning("%s", finding)


def spec_among(known: Iterable[AnyWorkflow], name: str, version: int) -> WorkflowSpec | None:
    """The workflow of this name and version. None if no app was named, CommandError if it is not in the app."""
    specs = [workflow.spec for workflow in known]
    for spec in specs:
        if spec.key == (name, version):
            return spec
    if not specs:
        return None
    others = ", ".join(sorted(spec.label for spec in specs))
    raise CommandError(f"the run is of {name} version {version}, which --app does not have; it has {others}")


def workflows_in(module: ModuleType) -> list[AnyWorkflow]:
    """The workflows that a module has a name for, its own and imported ones."""
    found: list[AnyWorkflow] = [value for value in vars(module).values() if isinstance(value, Workflow | SyncWorkflow)]
    return list(dict.fromkeys(found))


def _version(workflow: AnyWorkflow) -> int:
    return workflow.spec.version


def _has_name(target: str) -> bool:
    return ":" in target and not target.endswith(".py")


def _only(where: str, module: ModuleType, known: list[AnyWorkflow]) -> AnyWorkflow:
    if len(known) == 1:
        return known[0]
    if not known:
        raise CommandError(f"{where} has no workflows: decorate a function with @perdure.workflow")
    names = ", ".join(f"{where}:{name}" for name, value in vars(module).items() if value in known)
    raise CommandError(f"{where} has several workflows; which of {names}?")


def _named(module: ModuleType, name: str, known: list[AnyWorkflow]) -> AnyWorkflow:
    """By the name in the module, else by the workflow's own, of which the newest version counts."""
    found = getattr(module, name, None)
    if isinstance(found, Step | SyncStep):
        raise CommandError(f"{name} is a step: only workflows can be started; call it from one")
    by_name: list[AnyWorkflow] = [workflow for workflow in known if workflow is found]
    same = by_name or [workflow for workflow in known if workflow.name == name]
    if same:
        return max(same, key=_version)
    raise UnknownNameError("workflow", name, [workflow.name for workflow in known])


# ── clients for perdure.use() ───────────────────────────────────────────────────────────────


_PROVIDE = "--provide names one that returns {Type: client}"

Providing = contextlib.AbstractAsyncContextManager[Mapping[type, Any]]


def provided(target: str | None) -> Providing:
    """What the function at `target` provides, for as long as the block takes. CommandError if it cannot be had.

    It returns a dict of types and their clients, or is a context manager around one; either may be async."""
    return provider(target)()


def provider(target: str | None) -> Callable[[], Providing]:
    """The same, to be had as often as it is called."""
    function = None if target is None else function_at(target, "provide", _PROVIDE)
    return lambda: _provided(target, function)


def providers(target: str | None) -> list[Any]:
    """The providers of secrets that the function at `target` returns. CommandError if they cannot be had."""
    if target is None:
        return []
    try:
        return list(function_at(target, "secrets", "--secrets names one that returns a list of providers")())
    except CommandError:
        raise
    except Exception as error:  # whose words may hold anything
        raise CommandError(f"{target} cannot name providers of secrets: {type(error).__name__}") from error


@contextlib.asynccontextmanager
async def _provided(target: str | None, function: Callable[[], Any] | None) -> AsyncGenerator[Mapping[type, Any]]:
    async with contextlib.AsyncExitStack() as stack:
        try:
            clients: Any = {} if function is None else await _entered(function(), stack)
        except CommandError:
            raise
        except Exception as error:
            raise CommandError(f"{target} cannot provide: {_told(error)}") from error
        yield clients


async def _entered(made: Any, stack: contextlib.AsyncExitStack) -> Any:
    if hasattr(made, "__aenter__"):
        return await stack.enter_async_context(made)
    if hasattr(made, "__enter__"):
        return stack.enter_context(made)
    return await made if inspect.isawaitable(made) else made


def function_at(target: str, usually: str, what_for: str) -> Callable[..., Any]:
    """The function at `app.py:name`, or in `app.py` under the name that it usually has. CommandError if none is."""
    where, _, name = target.rpartition(":") if _has_name(target) else (target, "", usually)
    function = getattr(load(where), name, None)
    if not callable(function):
        raise CommandError(f"{where} has no function {name}; {what_for}")
    return cast("Callable[..., Any]", function)


def authority_at(target: str | None) -> Any:
    """Who may decide what, as it stands at `app.py:NAME`; by default as it is configured. None: that is not known here.

    CommandError if nothing is there; what it is, is looked at by who is given it."""
    target = target or authority_target()
    if target is None:
        return None
    where, _, name = target.rpartition(":") if _has_name(target) else (target, "", "authority")
    found = getattr(load(where), name, None)
    if found is None:
        raise CommandError(f"{where} has no {name}; --authority names a perdure.Authority, or the roles of persons")
    return found


# ── loading ─────────────────────────────────────────────────────────────────────────────────


def load(where: str) -> ModuleType:
    """The module in a file, or of a dotted name. CommandError that says what went wrong, and at which line."""
    path = Path(where)
    if where.endswith(".py") or path.is_file():
        if not path.is_file():
            raise CommandError(f"there is no file {where}{_near(path)}")
        return _loaded(where, lambda: _import_file(path.resolve()))
    if (where and path.is_dir()) or not all(part.isidentifier() for part in where.split(".")):
        what = "is a folder" if where and path.is_dir() else "is neither a file nor the name of a module"
        raise CommandError(f"{where or 'an empty target'} {what}: name a file, as in app.py:workflow")
    _look_for_modules_in(Path.cwd())
    return _loaded(where, lambda: importlib.import_module(where))


def _near(path: Path) -> str:
    names = [other.name for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    return f"; near: {', '.join(str(path.with_name(name)) for name in near)}" if near else ""


def _loaded(where: str, action: Any) -> ModuleType:
    """What a module's own code raises is told in one line, with the place."""
    try:
        module: ModuleType = action()
    except SystemExit as error:
        raise CommandError(
            f"{where} ends the process while it is loaded: put what it does under `if __name__ == '__main__':`"
        ) from error
    except ModuleNotFoundError as error:
        if error.name is not None and f"{where}.".startswith(f"{error.name}."):
            raise CommandError(f"there is no module {error.name}; a file is named with its .py") from error
        raise CommandError(f"{where} cannot be loaded: {_told(error)}") from error
    except Exception as error:
        raise CommandError(f"{where} cannot be loaded: {_told(error)}") from error
    return module


def _told(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__} at {error.filename}:{error.lineno}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    if isinstance(error, PerdureError):  # says what to do, in sentences, and often where
        return str(error) if place in str(error) else f"{error} ({place})"
    return f"{type(error).__name__}: {error}" + (f" at {place}" if place else "")


def _is_users(filename: str) -> bool:
    ours, python = str(Path(__file__).resolve().parents[1]), os.path.dirname(os.__file__)
    if filename.startswith(python + os.sep):
        return "site-packages" in filename
    return not filename.startswith((ours, "<frozen"))


def _look_for_modules_in(folder: Path) -> None:
    """As Python does for a program of that folder; but what is called there like a module of the standard library does
    not take its place for us, who import some only when they are wanted."""
    for file in folder.glob("*.py"):
        if file.stem in sys.stdlib_module_names and file.stem != "__main__":
            with contextlib.suppress(ImportError):  # of another platform
                importlib.import_module(file.stem)
    sys.path.insert(0, str(folder))


def _import_file(path: Path) -> ModuleType:
    root, name = _home(path)
    _look_for_modules_in(root)
    known = sys.modules.get(name)
    if known is not None and _is_file_of(known, path):
        return known
    if known is not None:  # another module has that name: load it beside, under one of its own
        name = f"perdure_loaded_{name.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CommandError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _home(path: Path) -> tuple[Path, str]:
    """The folder from which `import` finds the file, and the name by which it does."""
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _is_file_of(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path

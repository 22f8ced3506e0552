"""Workflows as the doctor looks at them: all that they lead to, the files that it stands in, and what a store holds.

Nothing is performed. Replaying a history runs workflow code as a worker does that takes the run up, and no more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence

from perdure.api.checking import Outlook, check_store
from perdure.api.source import durable_in, functions_of, source_of, values_named_in
from perdure.api.workflow import AnyWorkflow
from perdure.audit.doctor import Application, Replayed, read_files
from perdure.specs import EffectSpec, StepSpec, WorkflowSpec
from perdure.store.protocol import Store

Spec = WorkflowSpec | StepSpec


def application_of(workflows: Sequence[AnyWorkflow], store: Store | None = None) -> Application:
    """These workflows, their steps and effects, the modules of the same package or folder that are loaded, and the runs
    in the store."""
    specs = [workflow.spec for workflow in workflows]
    reached = {spec.key: tuple(_reached(spec)) for spec in specs}
    every = dict.fromkeys([*specs, *(each for found in reached.values() for each in found)])
    files, unreadable = read_files(_files(workflows, every))
    return Application(
        workflows=[spec for spec in every if isinstance(spec, WorkflowSpec)],
        steps=[spec for spec in every if isinstance(spec, StepSpec)],
        files=files, unreadable=unreadable, leads_to=functions_of, values_of=values_named_in, reached=reached,
        sources={workflow.spec.key: source_of(workflow).digest for workflow in workflows},
        store=store, replayed=None if store is None else list(_replayed(specs, store)),
    )  # fmt: skip


def _reached(workflow: WorkflowSpec) -> Iterator[Spec]:
    """Everything durable that a workflow's code leads to, undoings too, each once."""
    seen: dict[Spec, None] = {}
    pending: list[Spec] = [workflow]
    while pending:
        spec = pending.pop(0)
        if spec in seen:
            continue
        seen[spec] = None
        if isinstance(spec, EffectSpec) and spec.undo is not None:
            pending.append(spec.undo)
        pending += [each.spec for each in durable_in(spec.function)]
    yield from list(seen)[1:]


def _files(workflows: Iterable[AnyWorkflow], declared: Iterable[Spec]) -> Iterator[str]:
    """Where functions are declared, and the loaded modules of the workflows' folders and packages. What was typed into
    a console has no file."""
    functions = [workflow.spec.function for workflow in workflows]
    folders = {os.path.dirname(os.path.realpath(function.__code__.co_filename)) for function in functions}
    packages = {function.__module__.partition(".")[0] for function in functions if "." in function.__module__}
    yield from (name for spec in declared if not (name := spec.function.__code__.co_filename).startswith("<"))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        is_beside = os.path.dirname(os.path.realpath(file)) in folders or name.partition(".")[0] in packages
        if file.endswith(".py") and is_beside:
            yield file


def _replayed(specs: Sequence[WorkflowSpec], store: Store) -> Iterator[Replayed]:
    """What becomes of the runs under way, as `perdure code check` tells it."""
    for run in check_store(store, specs, finished_max=0):
        is_good = run.outlook in {Outlook.REPLAYS, Outlook.NOT_CHECKED}
        problem = "" if is_good else run.why or run.reason
        yield Replayed(run.run_id, problem, run.patch, run.outlook is Outlook.NOT_CHECKED)

"""Workflows as the doctor looks at them: all that they lead to, the files that it stands in, and what a store holds.

Nothing is performed. Replaying a history runs workflow code as a worker does that takes the run up, and no more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence

from perdure.api.source import durable_in, functions_of, source_of, values_named_in
from perdure.api.workflow import AnyWorkflow
from perdure.audit.doctor import Application, Replayed, read_files
from perdure.engine import exact
from perdure.errors import StoreError
from perdure.runtime.host import UNFINISHED, every_run
from perdure.runtime.load import rebuild
from perdure.runtime.options import catalog_of
from perdure.specs import EffectSpec, StepSpec, WorkflowSpec
from perdure.store.protocol import Claim, Filter, RunInfo, Store

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


# ── old histories ───────────────────────────────────────────────────────────────────────────


def _replayed(specs: Sequence[WorkflowSpec], store: Store) -> Iterator[Replayed]:
    catalog = catalog_of({spec.key: spec for spec in specs})
    exact.install()
    try:
        for name in dict.fromkeys(spec.name for spec in specs):
            for info in every_run(store, Filter(workflow=name, status=UNFINISHED)):
                yield _replay(info, store, catalog)
    finally:
        exact.uninstall()


def _replay(info: RunInfo, store: Store, catalog: dict[tuple[str, int], WorkflowSpec]) -> Replayed:
    """What comes of a run's history on this code."""
    if (info.workflow, info.version) not in catalog:
        return Replayed(info.run_id, f"it is of version {info.version}, and nothing here has or replays that", False)
    claim = Claim(info, lost_owner=None, lost_how=None, deaths=0, lone=0)
    try:
        live, replay = rebuild(claim, store, catalog, log=lambda _: None, compare_all=True)
    except StoreError:
        raise
    except Exception as error:  # whatever is wrong with a history concerns this run alone
        return Replayed(info.run_id, f"its history cannot be loaded: {error}", False)
    try:
        replay()
        failure = live.execution.failure
        is_hosted = any(ask.kind == "section" for ask in live.execution.open.values())
        return Replayed(info.run_id, "" if failure is None else failure.hint, is_hosted)
    finally:
        live.execution.close()

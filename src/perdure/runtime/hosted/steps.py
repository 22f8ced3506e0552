"""Steps and effects that hosted code calls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.engine.calls import EffectAsk, Grant, StepAsk, linked
from perdure.engine.execution import view_of
from perdure.engine.sagas import Undoing, open_here
from perdure.ledger.operations import business_key_of
from perdure.runtime.attempt import LANE
from perdure.runtime.hosted.request import Request, load_with, unused_future
from perdure.runtime.hosted.undoing import HostedSaga
from perdure.specs import EffectSpec, StepSpec

if TYPE_CHECKING:
    from perdure.runtime.hosted.journal import Journal


class HostedSteps:
    """Makes the requests of one section's steps."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._live, self._turns = journal.live, journal.turns

    def undo(
        self, spec: EffectSpec, args: tuple[Any, ...], kwargs: dict[str, Any], business_key: str, undoing: Undoing
    ) -> Request:
        """An effect that takes another one back."""
        request = self.call(spec, args, kwargs, business_key, undoing)
        request.is_undoing = True
        return request

    def call(
        self, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any], business_key: str | None = None,
        undoing: Undoing | None = None, grant: Grant | None = None,
    ) -> Request:  # fmt: skip
        """A step or an effect, made under an approval if there is a `grant`; taking back another one if `undoing`."""
        raw = spec.arguments.dumps(args, kwargs)
        if business_key is None and isinstance(spec, EffectSpec):
            business_key = business_key_of(spec, args, kwargs)
        given = (spec, raw, business_key, undoing, grant)
        request = Request(LANE.get(), spec.name, raw, lambda request: self.perform(request, *given))
        request.view = view_of(spec, raw, args, kwargs)
        request.load = load_with(spec.result, spec.raises)
        request.rests = None if spec.rests is None else (spec, raw)
        if isinstance(spec, EffectSpec):
            request.as_ask = partial(self._as_ask, request, *given)
            saga = open_here(f"effect {spec.name}") if undoing is None else None
            if isinstance(saga, HostedSaga):
                request.hears = saga.join(request, spec, raw)
        return request

    def perform(
        self, request: Request, spec: StepSpec, raw: bytes, business_key: str | None = None,
        undoing: Undoing | None = None, grant: Grant | None = None,
    ) -> None:  # fmt: skip
        """Perform what is asked for, unless a person has to decide about it, or has."""
        if self._live.waits_for_person(request.key):
            return
        ask = self._as_ask(request, spec, raw, business_key, undoing, grant)
        if isinstance(ask, EffectAsk):
            self._turns.effects.start(self._live, ask)
        else:
            self._turns.performer.start(self._live, ask)

    def _as_ask(
        self, request: Request, spec: StepSpec, raw: bytes, business_key: str | None, undoing: Undoing | None,
        grant: Grant | None,
    ) -> StepAsk:  # fmt: skip
        key, use, future = request.key, request.key[1] + 1, unused_future(self._live)
        packed, is_recorded = request.packed, request.record is not None
        if business_key is None:
            return linked(StepAsk(key, spec.name, use, future, spec, raw, request.view, packed, is_recorded, grant))
        ask = EffectAsk(key, spec.name, use, future, spec, raw, request.view, packed, is_recorded, grant, business_key)
        if undoing is not None:
            ask.undoes, ask.revision = undoing
        return linked(ask)

    def lapse(self, approval: str, call: str) -> None:
        """What was approved is not done: said from wherever the code runs."""
        self._journal.at_once(lambda: self._turns.approvals.lapse(self._live, approval, call))

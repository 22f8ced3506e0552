"""Who may make which choice about what waits for a person? The one place where that is decided.

Every path asks here: a client before it sends a decision, the worker that takes it in, and once more right before what
was approved begins. Without an authority everybody may do everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

import msgspec

from perdure.errors import AuthorityUnreadableError, UsageError
from perdure.specs import mapping, several

REQUESTS = ("approval", "question")
BLOCKS = (
    "needs_person", "unknown_effect", "failed_compensation", "stale_decision", "premise_unreadable", "diverged",
    "incompatible_version", "no_worker_for_version", "over_budget", "undecodable", "crash_loop", "stuck_turn",
    "deadlocked", "store_rolled_back", "denied", "silent", "done_by_original",
)  # fmt: skip
"""Reasons for which something stands in the inbox."""

CHOICES = (
    "approve", "reject", "answer", "delegate", "succeeded", "failed", "retry", "value", "fail", "raise_budget",
    "acknowledge", "reuse", "keep", "recompute",
)  # fmt: skip

Roles = Mapping[str, Iterable[str]] | Callable[[str], Iterable[str] | None]
EVERYTHING = "*"


class Refusal(NamedTuple):
    """Why a decision changes nothing. `why` is a word for programs: wrong_hash, decided, expired, withdrawn, lapsed,
    wrong_kind, not_an_approver, decided_already, delegated; unknown_person, role_not_held, not_allowed."""

    why: str
    told: str


class Authority(msgspec.Struct, frozen=True):
    """Who has which role, and who may make which choice.

    `roles`: a mapping of persons to their roles, or a function that gives the roles of a person (None: such a person is
    not known, and may decide nothing). It is asked at every decision and must be quick. `may` narrows: by reason
    (`"unknown_effect"`), by reason and choice (`"unknown_effect.succeeded"`) or for all that has no rule of its own
    (`"*"`), the persons and roles who may. The most particular rule counts. What a workflow asks of people is decided
    by those whom it names; a rule for `"approval"` or `"question"` narrows that further.

    >>> finance = Authority({"ann": ["finance"], "bo": []}, may={"unknown_effect": {"finance"}})
    >>> refusal_of(finance, "unknown_effect", "failed", by="bo").why
    'not_allowed'
    """

    roles: Any
    may: Mapping[str, Iterable[str]] = {}

    def __post_init__(self) -> None:
        roles = mapping(self.roles)
        if not callable(self.roles) and (roles is None or None in map(_names, roles.values())):
            raise UsageError(
                f"authority={self.roles!r}: a dict of persons and their roles, or a function that gives the roles of a "
                "person, as in authority={'ann': ['supervisor']}"
            )
        if mapping(self.may) is None:
            raise UsageError(f"Authority(may={self.may!r}): a dict of reasons and of who may decide")
        for name, who in self.may.items():
            _check_rule(name, who)

    def roles_of(self, person: str) -> frozenset[str] | None:
        """The roles of a person; None if nobody of that name may decide anything. AuthorityUnreadableError if the
        function that knows them fails."""
        if not callable(self.roles):
            found = cast("Mapping[str, Iterable[str]]", self.roles).get(person)
        else:
            try:
                found = cast("Iterable[str] | None", self.roles(person))
            except Exception as error:
                raise AuthorityUnreadableError(
                    f"which roles {person} has cannot be read ({type(error).__name__}: {error}): nothing is decided "
                    "until it can"
                ) from error
        if found is None:
            return None
        names = _names(found)
        if names is None:
            raise AuthorityUnreadableError(f"the roles of {person} are {found!r}: a set or list of names is wanted")
        return frozenset(names)


def refusal_of(
    authority: Authority | None, reason: str, choice: str, *, by: str, role: str = ""
) -> Refusal | None:
    """Why this person, acting in this role, may not make this choice about something in the inbox; None if they may.

    Whether a request names them is not asked here but by `decide`."""
    if authority is None:
        return None
    held = authority.roles_of(by) if by else None
    if held is None:
        who = f"{by} is nobody who" if by else "say who decides: nobody without a name"
        return Refusal("unknown_person", f"{who} may decide anything here")
    if role and role not in held:
        return Refusal("role_not_held", f"{by} is no {role}" + (f", but {', '.join(sorted(held))}" if held else ""))
    allowed = _rule(authority.may, reason, choice)
    if allowed is None or not allowed.isdisjoint({by, *held}):
        return None
    who = ", ".join(sorted(allowed)) or "nobody"
    return Refusal("not_allowed", f"{by} may not {choice} what is here for {reason}; who may: {who}")


def _rule(may: Mapping[str, Iterable[str]], reason: str, choice: str) -> frozenset[str] | None:
    for name in (f"{reason}.{choice}", reason, EVERYTHING):
        if name in may:
            return frozenset(_names(may[name]) or ())
    return None


def _check_rule(name: Any, who: Any) -> None:
    """A rule for what there is not would protect nothing."""
    reason, dot, choice = str(name).partition(".")
    if name != EVERYTHING and (reason not in {*REQUESTS, *BLOCKS} or (dot and choice not in CHOICES)):
        raise UsageError(
            f"Authority(may={{{name!r}: ...}}): a reason ({', '.join((*REQUESTS, *BLOCKS))}), or a reason and a choice "
            f"(approval.reject; choices are {', '.join(CHOICES)}), or '*'"
        )
    if _names(who) is None:
        raise UsageError(f"Authority(may={{{name!r}: {who!r}}}): names of persons and roles, as in {{'finance'}}")


def _names(given: Any) -> list[str] | None:
    names = [given] if isinstance(given, str) else several(given)
    return names if names is not None and all(isinstance(name, str) for name in names) else None


def authority_of(given: Authority | Roles | None) -> Authority | None:
    """What a user may give as `authority=`."""
    return given if given is None or isinstance(given, Authority) else Authority(given)

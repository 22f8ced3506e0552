"""Policies as users write them: in Python, or in a file of TOML."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from perdure.errors import DeclarationError, UsageError
from perdure.gates import policy as gates
from perdure.gates.policy import Asked, Rule


class Policy(gates.Policy):
    __doc__ = gates.Policy.__doc__

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The policy in a file of TOML. DeclarationError names the file, and the rule and field that are wrong."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DeclarationError(f"{path}: the policy cannot be read: {error}") from None
        return cls.from_toml(text, str(path))


def checked_policy(given: Any, what: str) -> gates.Policy | None:
    """A policy, or none. UsageError for what is neither."""
    if given is None or isinstance(given, gates.Policy):
        return given
    raise UsageError(f"{what}(policy={given!r}): a perdure.Policy, as in policy=perdure.Policy.load('policy.toml')")


__all__ = ["Asked", "Policy", "Rule", "checked_policy"]

"""A place in the source that is against a rule."""

from __future__ import annotations

import ast
from typing import NamedTuple

from perdure.audit.lint.names import Declared


class Hit(NamedTuple):
    """A place that is against a rule. `found` fills the placeholders of the rule's text."""

    rule: str
    node: ast.AST
    declared: Declared | None
    found: dict[str, str]

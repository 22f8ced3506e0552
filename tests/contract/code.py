"""Workflows whose source stands in a file of its own: what a deploy changes is the file."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

_numbers = itertools.count()

HEAD = """\
import asyncio
import perdure
from perdure import effect, step, workflow

"""


def module_of(folder: Path, text: str) -> ModuleType:
    """The text as a module, from a file that no other module has."""
    name = f"contract_code_{next(_numbers)}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def workflow_of(folder: Path, text: str, name: str = "agent") -> Any:
    """A workflow of that text, which has what it needs imported."""
    return getattr(module_of(folder, HEAD + textwrap.dedent(text)), name)

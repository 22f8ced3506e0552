"""Whose workflow code executes in this thread right now?

Every durable call asks that, and so does what only declares workflows: the answer stands where no event loop has to be
imported to find it.
"""

from __future__ import annotations

from threading import local
from typing import Any


class Here(local):
    """`loop`: the workflow's loop (`loop.execution` is the run) while its code executes in this thread, else None."""

    loop: Any = None


HERE = Here()

"""Lines of the log have marks where a secret stood, also in tracebacks: those of perdure, and others that are told."""

from __future__ import annotations

import logging

from perdure.codec import hiding

OURS = ("perdure", "perdure.runs", "perdure.inbox", "perdure.workflow")


def hide_secrets(where: logging.Handler | logging.Logger) -> None:
    """Have marks written in place of secrets by a handler, whichever logger a line comes from; or in the lines of one
    logger (not of those below it). What is hidden is what this process' Runtimes and Clients know. Once is enough.

    >>> for handler in logging.getLogger().handlers:
    ...     hide_secrets(handler)
    """
    where.addFilter(_without_secrets)


def hide_in_ours() -> None:
    """Have nothing that is hidden written by perdure itself. A filter of a logger does not see what those below it
    write."""
    for name in OURS:
        hide_secrets(logging.getLogger(name))


def _without_secrets(record: logging.LogRecord) -> bool:
    active = hiding.active
    if active is None:
        return True
    try:
        message = record.getMessage()
    except Exception:  # arguments that do not fit, which whoever reports that would print
        message = record.msg = str(record.msg)
        record.args = None
    if (text := active.text(message)) != message:
        record.msg, record.args = text, None
    if record.exc_info and record.exc_info[0] is not None:
        import traceback

        told = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        if (text := active.text(told)) != told:  # whoever formats it would print the exception itself
            record.exc_text, record.exc_info = text, None
    for name, value in vars(record).items():  # the stack, and what came as extra=
        if isinstance(value, str) and name not in _OF_THE_CODE and active.text(value) != value:
            setattr(record, name, active.text(value))
    return True


_OF_THE_CODE = frozenset(
    {"name", "levelname", "pathname", "filename", "module", "funcName", "threadName", "processName"}
)

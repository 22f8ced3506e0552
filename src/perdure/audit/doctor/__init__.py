"""May this go live? The checklist, answered from declarations, source and store. Nothing is performed.

    application   what is looked at          checklist   what an answer is
    effects, calls, people, proof, secrets   the questions

An answer says what was looked at, what has to be mended and how, and what could not be looked at. What is not seen may
be wrong all the same: a reader of source sees names, not what happens.
"""

from __future__ import annotations

import re

from perdure.audit.doctor import calls, effects, people, proof, secrets
from perdure.audit.doctor.application import Application, Replayed, read_files
from perdure.audit.doctor.checklist import Answer, Answered, Fault, Question, Report, Verdict
from perdure.audit.lint import is_silenced

CHECKLIST = (
    Question(
        "stable-id", "Every irreversible effect has a stable operation id",
        "An effect is one and the same by its key. Without one a repeat cannot be told from something new.",
        "an effect without `.key`; a key from a clock or chance; a plain step that puts, patches, deletes or mails",
        effects.stable_id,
    ),
    Question(
        "idempotency-key", "The downstream honours an idempotency key",
        "Where it does, whatever was in doubt is simply sent again. The key has to reach it.",
        "`Idempotent()` where nothing hands on `operation()`, its `.id` or `.headers`, and no client of "
        "`perdure.http` is used",
        effects.idempotency_key,
    ),
    Question(
        "reconciliation", "Those that do not have a reconciliation path",
        "What may have happened has to be found out: by a look-up, or by a person.",
        "`CanLookUp()` without a look-up; a look-up that takes every failure for `NotFound()`",
        effects.reconciliation,
    ),
    Question(
        "entered-again", "It is known what may be entered again on resume",
        "Workflow code runs again from its start, so do steps under way; `finally` runs whenever a run leaves memory.",
        "a durable call in a `finally`; state of the module that workflow code changes",
        calls.entered_again,
    ),
    Question(
        "recorded", "Model, tool and API calls are in recorded steps",
        "What is called elsewhere is called again on every replay.",
        "files, network, processes, threads, clients of known libraries, `.plain(...)` of an effect, in "
        "workflow code or a section",
        calls.recorded,
    ),
    Question(
        "retry-owner", "The retry owner is unique",
        "Layers that each retry multiply, and hide what the first answer was.",
        "a client with retries of its own that is not given to `single_retry_owner`; `tenacity`, `backoff`, "
        "`stamina`; `max_retries=` in a call",
        calls.retry_owner,
    ),
    Question(
        "told-apart", "Retryable and final errors are told apart",
        "What is final must not be tried again, and what would pass must not end the run.",
        "a step that catches `Exception` and goes on, or makes a verdict of all of them, or raises a bare `Exception`",
        effects.told_apart,
    ),
    Question(
        "unknown-to-person", "UNKNOWN has a path to a person",
        "What no machine can find out waits in the inbox. Somebody has to look there.",
        "an effect that can be in doubt, where no program looks into the inbox or is told of it, and no "
        "`risk=` is said",
        people.unknown_to_person,
    ),
    Question(
        "replays", "Old histories replay on this code",
        "Runs that were begun by the old code are gone on with by the new one.",
        "the clock, chance, the environment, the order of a set in workflow code; an unfinished run that "
        "does not replay",
        proof.replays,
    ),
    Question(
        "approvals-recheck", "Approvals re-check their preconditions",
        "Between a decision and the call lies time.",
        "`recheck=False`",
        people.approvals_recheck,
    ),
    Question(
        "drill", "A drill has passed: outside success, crash before our commit",
        "What nobody has tried does not work.",
        "no pass of this very source, or one that did not get to an effect",
        proof.drilled,
    ),
    Question(
        "approvals-expire", "Approvals expire",
        "A request that is good for ever is granted by mistake one day.",
        "`with_approval` without `within=`",
        people.approvals_expire,
    ),
    Question(
        "secrets", "Secrets stay out",
        "A history is kept, copied and shown.",
        "what looks like a key in the source; a parameter of a step or workflow that is named like one",
        secrets.secrets_stay_out,
    ),
    Question(
        "credentials", "Credentials expire",
        "A run of weeks outlives what it was given at its start.",
        "a secret of the environment that is read when the module is loaded",
        secrets.credentials_expire,
    ),
    Question(
        "timeouts", "Nothing lacks a timeout",
        "What waits for ever is found by nobody.",
        "`receive` or `ask` without `within=`; an attempt over an hour without heartbeats; a request without a timeout",
        calls.time_limits,
    ),
)  # fmt: skip


def examine(app: Application) -> Report:
    """Answer every question of the checklist."""
    answers = [Answered(number, question, _answer(app, question)) for number, question in enumerate(CHECKLIST, 1)]
    return Report(answers, [file.filename for file in app.files])


def _answer(app: Application, question: Question) -> Answer:
    answer = Answer()
    question.check(app, answer)
    kept = list(dict.fromkeys(fault for fault in answer.faults if not _is_silenced(app, question, fault)))
    silenced = len(set(answer.faults)) - len(kept)
    if silenced:
        answer.seen.append(f"silenced by comments: {silenced}")
    answer.faults[:] = kept
    answer.unchecked += [f"{name} cannot be read" for name in app.unreadable]
    return answer


def _is_silenced(app: Application, question: Question, fault: Fault) -> bool:
    filename, _, line = fault.where.rpartition(":")
    if not re.fullmatch(r"\d+", line):
        return False
    file = next((file for file in app.files if file.filename == filename), None)
    return file is not None and is_silenced(question.id, file.lines[int(line) - 1 : int(line)])


__all__ = ["CHECKLIST", "Answer", "Application", "Fault", "Replayed", "Report", "Verdict", "examine", "read_files"]

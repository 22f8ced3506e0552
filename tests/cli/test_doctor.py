"""The go-live checklist: a healthy application passes it, and each way of breaking it fails the one question."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import Terminal, one_line

import perdure
from perdure.api.source import source_of
from perdure.audit.doctor import CHECKLIST
from perdure.audit.drills import Covered, DrillPass, keep_pass
from perdure.cli.target import workflows_at
from perdure.store import open_store
from perdure.store.protocol import Filter
from perdure.testing import drill

HEALTHY = Path(__file__).with_name("healthy.py").read_text()


def keep_passes(path: Path, covered: Covered = Covered.OUTSIDE_SUCCESS) -> None:
    """As if every workflow of `app.py` had been drilled, as it is now."""
    store = open_store(str(path))
    for workflow in workflows_at(["app.py"]):
        keep_pass(
            store,
            DrillPass(
                workflow=workflow.name, version=workflow.spec.version, source=source_of(workflow).digest,
                perdure="", python="", at=0, points=1, covered=(str(covered),), effects={},
            ),
        )  # fmt: skip
    store.close()


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAIMS_TOKEN", "for the tests")


def examined(terminal: Terminal, text: str, *, code: int, covered: Covered = Covered.OUTSIDE_SUCCESS) -> dict[str, Any]:
    """What the doctor says of such an `app.py`, by question."""
    (terminal.folder / "app.py").write_text(text)
    keep_passes(terminal.folder / "runs.db", covered)
    done = terminal.here("code", "doctor", "app.py", "--store", "runs.db", "--json")
    assert done.exit_code == code, done.output
    return {each["id"]: each for each in json.loads(done.stdout)["checklist"]}


def test_a_healthy_application_passes(terminal: Terminal) -> None:
    answers = examined(terminal, HEALTHY, code=0)
    assert [question.id for question in CHECKLIST] == list(answers)
    assert {each["verdict"] for each in answers.values()} == {"pass"}
    assert [what for each in answers.values() for what in each["not_checked"]] == []
    assert all(each["seen"] for each in answers.values())


def test_the_evidence_names_places(terminal: Terminal) -> None:
    answers = examined(terminal, HEALTHY, code=0)
    lines = HEALTHY.splitlines()
    evidence = [what for each in answers.values() for what in each["seen"]]
    (of_undo,) = (what for what in evidence if what.startswith("charge.undo takes operation().id at app.py:"))
    assert "perdure.operation().id" in lines[int(of_undo.rpartition(":")[2]) - 1]
    assert any(what.startswith("handle (app.py:") for what in answers["entered-again"]["seen"])
    assert any(what.startswith("transfer is looked up at app.py:") for what in answers["reconciliation"]["seen"])


# ── each question fails ─────────────────────────────────────────────────────────────────────

IN_READ = "    return answer.text\n\n\n@effect(downstream=Idempotent()"
SIGNED = '    await perdure.receive("signed", bool, within=timedelta(days=30))\n'
IMPORT = "import perdure\nfrom perdure"


def in_read(lines: str) -> tuple[str, str]:
    return IN_READ, f"{lines}{IN_READ}"


def in_handle(lines: str) -> tuple[str, str]:
    return SIGNED, f"{lines}{SIGNED}"


def before_all(lines: str) -> tuple[str, str]:
    return "class Post:", f"{lines}\n\n\nclass Post:"


KEY = "def _(claim: str) -> str:\n    return claim"
FINALLY = "    try:\n        pass\n    finally:\n        await read_claim(claim)\n"
WRONG = "Exception:\n        return NotFound()\n    except httpx.HTTPStatusError as error:\n"
SK = "sk-" + "a1" * 20

BROKEN: list[tuple[str, str, str, str]] = [
    # question, what is replaced, by what, and a part of what is said
    ("stable-id", "@write_to.key\n", "", "write_to has no key"),
    ("stable-id", KEY, KEY.replace("return claim", "return f'{claim}{uuid.uuid4()}'"), "uuid.uuid4()"),
    ("stable-id", *in_read('    await perdure.use(httpx.AsyncClient).put("/seen")\n'), "read_claim calls httpx"),
    ("idempotency-key", "perdure.http.client(", "httpx.AsyncClient(", "charge is declared Idempotent()"),
    ("idempotency-key", "NoGuarantee(), risk", "Idempotent(), risk", "write_to is declared Idempotent()"),
    ("reconciliation", "@transfer.lookup\n", "", "transfer is declared CanLookUp(), and has no look-up"),
    ("reconciliation", "httpx.HTTPStatusError as error:\n", WRONG, "takes a failure for NotFound"),
    ("entered-again", *in_handle(FINALLY), "a durable call in a `finally` of handle"),
    ("entered-again", "    text = await read_claim(claim)\n", "    global text\n    text = await read_claim(claim)\n",
     "outlives the run"),
    ("recorded", *in_handle('    httpx.get("http://127.0.0.1:9", timeout=5)\n'), "httpx.get()"),
    ("recorded", *in_handle("    await write_to.plain(claim)\n"), "write_to.plain"),
    ("recorded", *in_handle("    perdure.single_retry_owner(openai.OpenAI()).models.list()\n"), "openai.OpenAI()"),
    ("retry-owner", *before_all("model = openai.OpenAI()"), "openai.OpenAI retries by itself"),
    ("retry-owner", *before_all("model = openai.OpenAI(max_retries=2)"), "openai.OpenAI retries by itself"),
    ("retry-owner", "async def read_claim", "@stamina.retry(on=OSError)\nasync def read_claim", "stamina.retry()"),
    ("told-apart", *in_read("    try:\n        int(answer.text)\n    except Exception:\n        pass\n"), "goes on"),
    ("told-apart", *in_read("    try:\n        int(answer.text)\n    except Exception as error:\n"
                            "        raise perdure.Retryable('again') from error\n"), "every failure Retryable"),
    ("told-apart", *in_read("    if not answer.text:\n        raise Exception('odd')\n"), "a bare Exception"),
    ("unknown-to-person", "await client.inbox()", "await client.list()", "what became of charge may be unknown"),
    ("replays", *in_handle("    import time\n    time.time()\n"), "handle: time.time() reads the clock"),
    ("approvals-recheck", 'note="as usual"', "recheck=False", "recheck=False"),
    ("approvals-expire", 'within=timedelta(days=3),\n', "", "can be given for ever"),
    ("approvals-expire", "within=timedelta(days=3)", "within=None", "can be given for ever"),
    ("secrets", 'note="as usual"', f'note="{SK}"', "it looks like a model-key"),
    ("secrets", "async def read_claim(claim: str)", "async def read_claim(claim: str, api_key: str = '')", "'api_key'"),
    ("secrets", "timeout=10)", "timeout=10, auth_token='hunter2-and-more')", "the value of auth_token="),
    ("credentials", *before_all('TOKEN = os.environ["CLAIMS_TOKEN"]'), "kept for ever"),
    ("credentials", *before_all('TOKEN = os.getenv("CLAIMS_TOKEN")'), "kept for ever"),
    ("timeouts", "timeout=60", "timeout=2 * 86_400", "in silence"),
    ("timeouts", '"signed", bool, within=timedelta(days=30)', '"signed", bool', "receive() waits for ever"),
    ("timeouts", "timeout=10)", "timeout=None)", "waits for ever"),
    ("timeouts", *in_read("    urllib.request.urlopen('http://127.0.0.1:9')\n"), "urlopen() has no timeout"),
]  # fmt: skip

MORE_IMPORTS = "import asyncio\nimport os\nimport urllib.request\nimport uuid\n\nimport openai\nimport stamina\n"
STANDS_FOR = {
    # nothing of these libraries is called: the module is loaded and its source is read
    "openai": "class BaseClient:\n    _client = None\n    def __init__(self, **options: object) -> None: ...\n\n"
    "class OpenAI(BaseClient): ...\n",
    "stamina": "def retry(on: object) -> object:\n    return lambda function: function\n",
}


@pytest.fixture
def libraries(terminal: Terminal) -> None:
    """What the broken applications import."""
    folder = terminal.folder / "libraries"
    folder.mkdir()
    for name, text in STANDS_FOR.items():
        (folder / f"{name}.py").write_text(text)
    sys.path.insert(0, str(folder))


def broken(old: str, new: str) -> str:
    assert HEALTHY.count(old) == 1, old
    return HEALTHY.replace(old, new).replace(IMPORT, f"{MORE_IMPORTS}\n{IMPORT}")


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(("question", "old", "new", "said"), BROKEN)
def test_what_is_broken_fails_its_question_alone(
    terminal: Terminal, question: str, old: str, new: str, said: str
) -> None:
    answers = examined(terminal, broken(old, new), code=1)
    assert failed(answers) == [question]
    faults = answers[question]["faults"]
    assert any(said in fault["what"] for fault in faults), faults
    assert all(fault["fix"] for fault in faults)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        before_all("model = perdure.single_retry_owner(openai.OpenAI())"),
        before_all("model = openai.OpenAI()\nperdure.single_retry_owner(model)"),
        before_all("model = openai.OpenAI(max_retries=0)"),
        in_read("    try:\n        int(answer.text)\n    except ValueError:\n        pass\n"),
        in_read("    try:\n        int(answer.text)\n    except Exception:\n        print('odd')\n        raise\n"),
        in_read("    urllib.request.urlopen('http://127.0.0.1:9', None, 5)\n"),
        in_handle("    async with asyncio.timeout(5):\n        await perdure.receive('more')\n"),
        in_handle("    await asyncio.wait_for(perdure.receive('more'), 5)\n"),
        in_handle("    try:\n        pass\n    finally:\n        del claim\n"),
        ("timeout=60", "timeout=2 * 86_400, heartbeat_timeout=60"),
        ('note="as usual"', "recheck=True"),
        ("async def read_claim(claim: str)", "async def read_claim(claim: str, page_token: str = '')"),
        before_all("model = openai.OpenAI()  # perdure: ignore[retry-owner]"),
    ],
)
def test_what_is_well_is_left_alone(terminal: Terminal, old: str, new: str) -> None:
    assert failed(examined(terminal, broken(old, new), code=0)) == []


def failed(answers: dict[str, Any]) -> list[str]:
    return [name for name, each in answers.items() if each["verdict"] != "pass"]


def test_each_question_has_an_application_that_fails_it() -> None:
    tried_below = {"drill"}
    assert {question for question, *_ in BROKEN} == {question.id for question in CHECKLIST} - tried_below


# ── other files ─────────────────────────────────────────────────────────────────────────────


def test_modules_beside_are_read_too(terminal: Terminal) -> None:
    (terminal.folder / "clients.py").write_text("import httpx\n\nhttp = httpx.AsyncClient(timeout=None)\n")
    text = HEALTHY.replace(IMPORT, f"from clients import http\n{IMPORT}").replace(SIGNED, f"{SIGNED}    http.build\n")
    answers = examined(terminal, text, code=1)
    assert failed(answers) == ["recorded", "timeouts"]
    (unrecorded,), (endless,) = answers["recorded"]["faults"], answers["timeouts"]["faults"]
    assert unrecorded["what"] == "handle uses app.http, a httpx.AsyncClient: what it does there is not recorded"
    assert endless["where"] == "clients.py:3"


def test_hosted_code_is_looked_at(terminal: Terminal) -> None:
    hosted = (
        "\n\ndef hosted() -> None:\n    httpx.get('http://127.0.0.1:9', timeout=5)\n\n\n@workflow\nasync def handle"
    )
    text = HEALTHY.replace("\n\n@workflow\nasync def handle", hosted)
    text = text.replace(SIGNED, f"{SIGNED}    await perdure.section('tools').run(hosted)\n")
    answers = examined(terminal, text, code=1)
    assert failed(answers) == ["recorded"]
    assert "httpx.get() in hosted code (hosted)" in answers["recorded"]["faults"][0]["what"]
    assert any(what.startswith("hosted (app.py:") for what in answers["entered-again"]["seen"])


def test_what_cannot_be_read_is_said(terminal: Terminal) -> None:
    """A module that loads, and that no reader takes: an expression of thousands of terms."""
    (terminal.folder / "sums.py").write_text("TOTAL = 0" + " + 1" * 2_000 + "\n")
    made = "exec('async def unseen() -> int:\\n    return 1', globals())\nunseen_step = step(globals()['unseen'])\n\n\n"
    text = HEALTHY.replace(IMPORT, f"import sums\n{IMPORT}").replace("class Post:", f"{made}class Post:")
    text = text.replace(SIGNED, f"{SIGNED}    await unseen_step()\n")
    answers = examined(terminal, text, code=0)
    assert all(
        any(what == "sums.py (RecursionError) cannot be read" for what in each["not_checked"])
        for each in answers.values()
    )
    assert "unseen: its source is not to be had" in answers["told-apart"]["not_checked"]


def test_a_file_that_is_no_python_is_one_clear_error(terminal: Terminal) -> None:
    (terminal.folder / "app.py").write_text("def (\n")
    done = terminal.here("code", "doctor", "app.py")
    assert done.exit_code == 2
    assert "app.py cannot be loaded: SyntaxError" in one_line(done)


# ── the store ───────────────────────────────────────────────────────────────────────────────


def test_without_a_store_two_questions_are_not_checked(terminal: Terminal) -> None:
    (terminal.folder / "app.py").write_text(HEALTHY)
    done = terminal.here("code", "doctor", "app.py", "--json")
    unchecked = [each["id"] for each in json.loads(done.stdout)["checklist"] if each["verdict"] == "not checked"]
    assert (done.exit_code, unchecked) == (0, ["replays", "drill"])
    assert terminal.here("code", "doctor", "app.py", "--strict").exit_code == 1
    assert not list(terminal.folder.glob("*.db"))
    missing = terminal.here("code", "doctor", "app.py", "--store", "none.db")
    assert missing.exit_code == 4
    assert "there is no store at none.db" in one_line(missing)


def test_a_drill_has_to_be_of_this_source_and_to_cover_it(terminal: Terminal) -> None:
    (terminal.folder / "app.py").write_text(HEALTHY)
    open_store(str(terminal.folder / "runs.db")).close()
    doctor = ("code", "doctor", "app.py", "--store", "runs.db", "--json")

    def verdict() -> tuple[str, list[str]]:
        answers = {each["id"]: each for each in json.loads(terminal.run(*doctor, code=1).stdout)["checklist"]}
        return answers["drill"]["verdict"], [fault["what"] for fault in answers["drill"]["faults"]]

    assert verdict() == ("fail", ["handle version 1: no drill of it has passed"])
    keep_passes(terminal.folder / "runs.db", Covered.CRASH_AT_WRITE)
    assert verdict() == (
        "fail",
        ["handle version 1: its drill did not cover 'outside success, crash before our commit'"],
    )
    keep_passes(terminal.folder / "runs.db")
    assert terminal.run(*doctor).returncode == 0
    (terminal.folder / "app.py").write_text(HEALTHY.replace('"as usual"', '"as always"'))
    _, (what,) = verdict()
    assert "the last pass was of another source (handle version 1" in what


def test_a_drill_that_was_really_passed_counts_for_the_children(terminal: Terminal) -> None:
    parent = "\n\n@workflow\nasync def parent(n: int) -> int:\n    return await child(n)\n"
    small = (
        "import perdure\nfrom perdure import step, workflow, effect, Idempotent\n\n"
        "SENT: dict[str, int] = {}\n\n"
        "@effect(downstream=Idempotent(), risk='low')\nasync def send(n: int) -> int:\n"
        "    return SENT.setdefault(perdure.operation().id, n)\n\n"
        "@send.key\ndef _(n: int) -> int:\n    return n\n\n"
        "@workflow\nasync def child(n: int) -> int:\n    return await send(n)\n" + parent
    )
    (terminal.folder / "app.py").write_text(small)
    (found,) = [each for each in workflows_at(["app.py"]) if each.name == "parent"]
    report = asyncio.run(drill(found, 1, store=str(terminal.folder / "runs.db")))
    assert report.has_passed, report
    done = terminal.here("code", "doctor", "app.py", "--store", "runs.db", "--json")
    answers = {each["id"]: each for each in json.loads(done.stdout)["checklist"]}
    assert answers["drill"]["verdict"] == "pass"
    assert "child version 1: tried in the drill of parent version 1" in answers["drill"]["seen"]


def test_runs_of_the_store_are_replayed_on_this_code(terminal: Terminal) -> None:
    waiting = (
        "from datetime import timedelta\nimport perdure\nfrom perdure import step, workflow\n\n"
        "@step\nasync def first(n: int) -> int:\n    return n\n\n"
        "@step\nasync def second(n: int) -> int:\n    return n\n\n"
        "@workflow\nasync def flow(n: int) -> int:\n    await first(n)\n"
        "    return await perdure.receive('go', int, within=timedelta(days=1))\n\n"
        "@workflow\ndef hosted(n: int) -> int:\n"
        "    return perdure.sync.receive('go', int, within=timedelta(days=1))\n"
    )
    app, path = terminal.folder / "app.py", str(terminal.folder / "runs.db")
    app.write_text(waiting)

    async def begin() -> None:
        async with perdure.Runtime(path, workflows=(workflows := workflows_at(["app.py"]))) as runtime:
            for workflow in workflows:
                await runtime.start(workflow.call(1), id=f"{workflow.name}-7")
            await runtime.drain()

    def said() -> dict[str, Any]:
        done = terminal.run("code", "doctor", "app.py", "--store", "runs.db", "--json", code=1)  # nothing was drilled
        return next(each for each in json.loads(done.stdout)["checklist"] if each["id"] == "replays")

    asyncio.run(begin())
    before = standing(path)
    same = said()
    assert same["verdict"] == "pass"
    assert same["seen"] == ["replayed: flow-7"]
    assert same["not_checked"] == ["run hosted-7: its hosted code was not replayed"]
    app.write_text(waiting.replace("await first(n)", "await second(n)"))
    (fault,) = said()["faults"]
    assert fault["where"] == "run flow-7"
    assert "second" in fault["what"]
    assert "first" in fault["what"]
    app.write_text(waiting.replace("@workflow\nasync", "@workflow(version=2)\nasync"))
    (fault,) = said()["faults"]
    assert fault["what"].startswith("it runs under version 1 of flow, and here is 2")
    assert standing(path) == before, "nothing was written"


def standing(path: str) -> list[Any]:
    store = open_store(path)
    runs = store.runs(Filter())
    lengths = [(info, store.load(info.rid).length) for info in runs]
    store.close()
    return lengths


# ── as people see it ────────────────────────────────────────────────────────────────────────


def test_what_is_printed(terminal: Terminal) -> None:
    (terminal.folder / "app.py").write_text(HEALTHY.replace('note="as usual"', "recheck=False"))
    keep_passes(terminal.folder / "runs.db")
    done = terminal.run("code", "doctor", "app.py:handle", "--store", "runs.db", code=1)
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["NO", "VERDICT", "QUESTION", "EVIDENCE"]
    assert [line.split()[:2] for line in lines[:2]] == [["1", "pass"], ["2", "pass"]]
    assert lines[9].startswith("10  FAIL     Approvals re-check their preconditions")
    assert lines[15].startswith("10. Approvals re-check their preconditions: FAIL. Between")
    assert lines[16].endswith("recheck=False: the call may begin long after it was approved")
    assert done.stderr == "perdure: 14 of 15 questions passed, 1 question failed\n"
    line = HEALTHY.splitlines().index("async def read_claim(claim: str) -> str:") + 1
    everything = terminal.run("code", "doctor", "app.py", "--store", "runs.db", "--all", code=1).stdout
    assert (
        f"  read_claim (app.py:{line}): an attempt under way at a crash runs again, 5 attempts in all\n" in everything
    )


def test_an_approval_that_names_no_facts_passes_in_part(terminal: Terminal) -> None:
    named = 'premises={"text": read_claim.call(claim)}, '
    assert HEALTHY.count(named) == 1
    answers = examined(terminal, HEALTHY.replace(named, ""), code=0)
    assert failed(answers) == []
    (unchecked,) = answers["approvals-recheck"]["not_checked"]
    assert "it names none (premises=)" in unchecked


def test_an_approval_after_a_step_with_validity_rests_on_facts(terminal: Terminal) -> None:
    text = HEALTHY.replace('premises={"text": read_claim.call(claim)}, ', "").replace("timeout=60", "valid_for=3_600")
    answer = examined(terminal, text, code=0)["approvals-recheck"]
    assert answer["not_checked"] == []
    assert any("read_claim is good for 3600 s, looked at again before the call" in each for each in answer["seen"])


def test_no_secret_is_printed(terminal: Terminal) -> None:
    (terminal.folder / "app.py").write_text(HEALTHY.replace('note="as usual"', f'note="{SK}"'))
    for more in ((), ("--json",), ("--all",)):
        done = terminal.run("code", "doctor", "app.py", *more, code=1)
        assert SK not in done.stdout + done.stderr

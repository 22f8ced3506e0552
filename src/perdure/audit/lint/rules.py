"""What is linted: the rules, and the names of functions that are against one of them. Tables only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    """Raises, hangs, or makes the run diverge."""
    WARNING = "warning"
    """May make the run diverge: it depends on what the linter cannot see."""
    INFO = "info"
    """Works, but perhaps not as meant."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. `says` and `fix` may name what was found as `{it}`; `bad` and `good` are lines of a workflow's body."""

    id: str
    title: str
    severity: Severity
    says: str
    fix: str
    bad: str
    good: str


_ALL = (
    Rule(
        "clock",
        "Reading the clock",
        Severity.ERROR,
        "{it}() reads the clock, so a replay takes another path.",
        "Use perdure.now().",
        "deadline = time.time() + 60",
        "deadline = perdure.now() + timedelta(seconds=60)",
    ),
    Rule(
        "randomness",
        "Random numbers and ids",
        Severity.ERROR,
        "{it}() gives something else on every replay.",
        "Use perdure.random() or perdure.uuid4(), a random.Random(seed), or a step.",
        "key = str(uuid.uuid4())",
        "key = str(perdure.uuid4())\ndice = random.Random(7)",
    ),
    Rule(
        "io",
        "Files, network, processes",
        Severity.ERROR,
        "{it}() reaches out of the workflow: it is done again on every replay, and its answer is not recorded.",
        "Do it in a step.",
        'page = httpx.get("https://example.com")',
        'page = await fetch("https://example.com")',
    ),
    Rule(
        "environment",
        "The environment of the process",
        Severity.WARNING,
        "{it} may be different in the process that replays.",
        "Pass it to the workflow as an argument, or read it in a step.",
        'limit = os.environ["LIMIT"]',
        "limit = q",
    ),
    Rule(
        "unchecked-decision",
        "An effect that goes by an old result",
        Severity.INFO,
        "{effect}() goes by what {it}() gives, which comes back from the history however old it is: {it} says neither "
        "what it rests on nor for how long it is good.",
        "Declare @{it}.premise(...) or @step(valid_for=...); recovery=\"replay\" if it stands for ever.",
        "order = await fetch(q)\nawait pay(order)",
        "order = await judge(q)\nawait pay(order)",
    ),
    Rule(
        "decision-left-out",
        "An effect that leaves out what it goes by",
        Severity.WARNING,
        "{effect}() goes by what {it}() gives, and its relies_on= names neither that step nor one of its premises: "
        "it is sent without a look at them.",
        "Name {it} in relies_on=, or leave relies_on= out.",
        '@perdure.effect(downstream=perdure.Idempotent(), relies_on=["stock"])\nasync def book(order: str) -> None: ...'
        "\n\n@book.key\ndef _(order: str) -> str:\n    return order\n\nawait book(await judge(q))",
        "@perdure.effect(downstream=perdure.Idempotent(), relies_on=[judge])\nasync def book(order: str) -> None: ..."
        "\n\n@book.key\ndef _(order: str) -> str:\n    return order\n\nawait book(await judge(q))",
    ),
    Rule(
        "print",
        "Printing",
        Severity.INFO,
        "print() prints again whenever the run is replayed.",
        "Use perdure.logger(): each line once.",
        'print("begun")',
        'perdure.logger().info("begun")',
    ),
    Rule(
        "thread",
        "Threads",
        Severity.ERROR,
        "{it}() leaves the workflow's thread, where nothing can be recorded or replayed in order.",
        "Make it a `def` step, and `await work.call(...)`; foreign code with threads of its own goes into "
        "perdure.section().",
        "total = await asyncio.to_thread(sum, [1, 2])",
        "total = await add.call(1, 2)",
    ),
    Rule(
        "blocking-sleep",
        "Sleeping without letting others run",
        Severity.ERROR,
        "time.sleep() stops all that runs on this thread, and is slept again on every replay.",
        "Use `await perdure.sleep(...)`; in a `def` workflow perdure.sync.sleep(...).",
        "time.sleep(60)",
        "await perdure.sleep(60)",
    ),
    Rule(
        "sync-step-call",
        "A `def` step or workflow called in an async workflow",
        Severity.ERROR,
        "{it} is a plain `def`: called like this in an async workflow it raises.",
        "Write `await {it}.call(...)`: it runs in a thread.",
        "total = add(1, 2)",
        "total = await add.call(1, 2)",
    ),
    Rule(
        "async-call",
        "An `async def` called in a `def` workflow",
        Severity.ERROR,
        "{it} is to be awaited: called like this in a `def` workflow it raises.",
        "Write `{instead}`.",
        "@perdure.workflow\ndef rest() -> None:\n    perdure.sleep(60)",
        "@perdure.workflow\ndef rest() -> None:\n    perdure.sync.sleep(60)",
    ),
    Rule(
        "not-awaited",
        "A call that is not awaited",
        Severity.ERROR,
        "{it} is not awaited, so it never happens.",
        "Put `await` before it.",
        "fetch(q)",
        "await fetch(q)",
    ),
    Rule(
        "undeclarable",
        "What cannot be a workflow or a step",
        Severity.ERROR,
        "{it} cannot be a {kind}: declaring it raises.",
        "{instead}",
        "ask = perdure.step(lambda q: q)",
        "answer = await fetch(q)",
    ),
    Rule(
        "wrong-arguments",
        "Arguments that a step does not take",
        Severity.ERROR,
        "{it}.",
        "Call it as it is declared.",
        "page = await fetch()",
        'page = await fetch("https://example.com")',
    ),
    Rule(
        "set-order",
        "Calls in the order of a set",
        Severity.WARNING,
        "A set of text is in another order in every process, so the calls are too.",
        "Iterate over sorted(...), or keep a list.",
        "for word in set(q.split()):\n    await fetch(word)",
        "for word in sorted(set(q.split())):\n    await fetch(word)",
    ),
    Rule(
        "global-state",
        "State that outlives the run",
        Severity.ERROR,
        "{it} outlives the run: others see it, and a replay changes it again.",
        "Keep state in the workflow's own variables, and return it.",
        "global count\ncount = 1",
        "count = 1",
    ),
    Rule(
        "swallowed-exit",
        "A loop that cannot be left",
        Severity.WARNING,
        "Catching {it} in a loop also catches what ends the run: it cannot be cancelled or put aside.",
        "Catch Exception, or end the handler with `raise`.",
        "while True:\n    try:\n        await fetch(q)\n    except BaseException:\n        pass",
        "while True:\n    try:\n        await fetch(q)\n    except Exception:\n        pass",
    ),
    Rule(
        "stock-wait",
        "`wait_for` and `as_completed` imported by name",
        Severity.ERROR,
        "This {it} was imported by name, and is the one that does not replay exactly.",
        "Call {it}(...), by its module.",
        "from asyncio import wait_for\nawait wait_for(fetch(q), 5)",
        "await asyncio.wait_for(fetch(q), 5)",
    ),
    Rule(
        "misplaced",
        "A call that belongs in the other kind of function",
        Severity.ERROR,
        "{it} raises in {place}.",
        "Do it in a {other}.",
        "perdure.heartbeat(1)",
        "await perdure.sleep(1)",
    ),
    Rule(
        "no-key",
        "An effect without a key",
        Severity.ERROR,
        "{it} has no key, so a repeat cannot be told from a new one: calling it raises, before anything is sent.",
        "Add `@{it}.key` over a function of the same arguments.",
        "@perdure.effect(downstream=perdure.Idempotent())\nasync def book(order: str) -> None: ...",
        "@perdure.effect(downstream=perdure.Idempotent())\nasync def book(order: str) -> None: ...\n\n"
        "@book.key\ndef _(order: str) -> str:\n    return order",
    ),
    Rule(
        "unstable-key",
        "A key that is another one next time",
        Severity.ERROR,
        "{it} in the key of {effect}: the key has to be the same in every attempt, replay and process.",
        "Make the key of the effect's arguments alone.",
        "@perdure.effect(downstream=perdure.Idempotent())\nasync def book(order: str) -> None: ...\n\n"
        '@book.key\ndef _(order: str) -> str:\n    return f"{order}-{time.time()}"',
        "@perdure.effect(downstream=perdure.Idempotent())\nasync def book(order: str) -> None: ...\n\n"
        "@book.key\ndef _(order: str) -> str:\n    return order",
    ),
    Rule(
        "plain-effect",
        "An effect that nobody accounts for",
        Severity.ERROR,
        "{it}.plain(...) in a workflow is in no ledger, and every replay does it again.",
        "Call {it}(...) as it is.",
        "await pay.plain(q)",
        "await pay(q)",
    ),
    Rule(
        "syntax",
        "A file that cannot be read",
        Severity.ERROR,
        "This is no Python, or newer than the one that reads it.",
        "Let Python say what is wrong: python -m py_compile FILE",
        "def (",
        "pass",
    ),
)

RULES: Mapping[str, Rule] = {rule.id: rule for rule in _ALL}


def _under(module: str, names: str) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in names.split())


_VERBS = "get post put patch delete head options request"
_CALLS: Mapping[str, tuple[str, ...]] = {
    "clock": (
        *_under(
            "time", "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns"
        ),
        *_under("time", "thread_time thread_time_ns clock_gettime clock_gettime_ns"),
        *_under("datetime.datetime", "now utcnow today"),
        "datetime.date.today",
    ),
    "randomness": (
        *_under("uuid", "uuid1 uuid4 uuid6 uuid7"),
        *_under("os", "urandom getrandom"),
        "random.SystemRandom",
    ),
    "io": (
        *_under("builtins", "open input"),
        *_under("io", "open"),
        *_under("os", "open remove unlink rename replace listdir scandir walk mkdir makedirs rmdir stat system popen"),
        *_under("os.path", "exists isfile isdir getsize getmtime"),
        *_under("shutil", "copy copyfile copytree move rmtree which disk_usage"),
        *_under("tempfile", "mkstemp mkdtemp NamedTemporaryFile TemporaryFile TemporaryDirectory"),
        *_under("pathlib.Path()", "open read_text read_bytes write_text write_bytes exists is_file is_dir stat mkdir"),
        *_under("pathlib.Path()", "unlink rename iterdir glob rglob touch"),
        *_under("pathlib.Path", "cwd home"),
        *_under("requests", f"{_VERBS} Session session"),
        *_under("httpx", f"{_VERBS} stream Client AsyncClient"),
        *_under("aiohttp", "ClientSession request"),
        *_under("urllib.request", "urlopen urlretrieve"),
        *_under("urllib3", "request PoolManager"),
        *_under("http.client", "HTTPConnection HTTPSConnection"),
        *_under("socket", "socket create_connection getaddrinfo gethostbyname gethostname getfqdn"),
        *_under("subprocess", "run Popen call check_call check_output getoutput getstatusoutput"),
        *_under("asyncio", "create_subprocess_exec create_subprocess_shell open_connection open_unix_connection"),
        *_under("asyncio", "start_server start_unix_server"),
        *_under("sqlite3", "connect"),
        *_under("psycopg", "connect"),
        *_under("psycopg2", "connect"),
        *_under("asyncpg", "connect create_pool"),
        *_under("smtplib", "SMTP SMTP_SSL"),
        *_under("boto3", "client resource"),
    ),
    "environment": _under("os", "getenv getcwd getpid cpu_count uname getlogin"),
    "print": ("builtins.print",),
    "thread": (
        *_under("threading", "Thread Timer"),
        *_under("_thread", "start_new_thread"),
        *_under("asyncio", "to_thread"),
        *_under("asyncio.get_running_loop()", "run_in_executor"),
        *_under("asyncio.get_event_loop()", "run_in_executor"),
        *_under("anyio.to_thread", "run_sync"),
        *_under("concurrent.futures", "ThreadPoolExecutor ProcessPoolExecutor"),
        *_under("multiprocessing", "Process Pool"),
        *_under("starlette.concurrency", "run_in_threadpool"),
        *_under("fastapi.concurrency", "run_in_threadpool"),
        *_under("asgiref.sync", "sync_to_async"),
    ),
    "blocking-sleep": ("time.sleep",),
}
CALLS: Mapping[str, str] = {name: rule for rule, names in _CALLS.items() for name in names}
"""Functions by their full name, and the rule that a call of them is against. `f()` in a name is what f returns."""

CLIENTS = frozenset(
    (
        *_under("openai", "OpenAI AsyncOpenAI AzureOpenAI AsyncAzureOpenAI"),
        *_under("anthropic", "Anthropic AsyncAnthropic AnthropicBedrock AsyncAnthropicBedrock AnthropicVertex"),
        *_under("google.genai", "Client"),
        *_under("mistralai", "Mistral"),
        *_under("cohere", "Client ClientV2 AsyncClient AsyncClientV2"),
        *_under("groq", "Groq AsyncGroq"),
        *_under("together", "Together AsyncTogether"),
        *_under("ollama", "Client AsyncClient"),
        *_under("huggingface_hub", "InferenceClient AsyncInferenceClient"),
        *_under("litellm", "Router"),
        *_under("langchain_openai", "ChatOpenAI AzureChatOpenAI"),
        *_under("langchain_anthropic", "ChatAnthropic"),
        *_under("requests", "Session session"),
        *_under("httpx", "Client AsyncClient"),
        *_under("perdure.http", "client sync_client"),
        *_under("aiohttp", "ClientSession"),
        *_under("urllib3", "PoolManager HTTPSConnectionPool HTTPConnectionPool"),
        *_under("http.client", "HTTPConnection HTTPSConnection"),
        *_under("boto3", "client resource"),
        *_under("stripe", "StripeClient"),
        *_under("slack_sdk", "WebClient"),
        *_under("twilio.rest", "Client"),
        *_under("smtplib", "SMTP SMTP_SSL"),
        *_under("redis", "Redis from_url"),
        *_under("redis.asyncio", "Redis from_url"),
        *_under("pymongo", "MongoClient AsyncMongoClient"),
        *_under("sqlite3", "connect"),
        *_under("psycopg", "connect"),
        *_under("psycopg2", "connect"),
        *_under("asyncpg", "connect create_pool"),
        *_under("sqlalchemy", "create_engine"),
    )
)
"""What gives a client. Neither that nor anything that is called on it belongs in workflow code."""

CLIENT_MODULES = (
    *_under("litellm", "completion acompletion text_completion embedding aembedding responses aresponses"),
    *(f"{name}." for name in _under("openai", "chat responses completions embeddings images audio")),
    *_under("ollama", "chat generate embed"),
    *(f"{name}." for name in _under("stripe", "Charge Customer Invoice PaymentIntent Payout Refund Subscription")),
)
"""Modules that are a client themselves: what the names of such functions begin with."""

ASYNC_ONLY = frozenset({"thread"})
"""A `def` workflow is hosted in a thread, and may have more of them: what it calls is recorded wherever it runs."""

PACKAGES: tuple[tuple[str, str], ...] = (
    ("random.", "randomness"),
    ("secrets.", "randomness"),
    ("numpy.random.", "randomness"),
)
"""Packages all of whose functions are against a rule, but for:"""
HARMLESS = frozenset({"secrets.compare_digest", "random.setstate", "random.getstate"})
SEEDED = frozenset(
    {
        "random.Random",
        "numpy.random.default_rng",
        "numpy.random.RandomState",
        "numpy.random.Generator",
        "numpy.random.PCG64",
    }
)
"""Fine if it is given a seed."""

CLOCKS_UNLESS_GIVEN: Mapping[str, int] = {
    "time.localtime": 1, "time.gmtime": 1, "time.ctime": 1, "time.asctime": 1, "time.strftime": 2,
}  # fmt: skip
"""Functions that read the clock if they get fewer arguments than this."""

READS: Mapping[str, str] = {"os.environ": "environment"}
"""What is not to be read at all."""

SETS = frozenset({"builtins.set", "builtins.frozenset", "typing.AbstractSet", "collections.abc.Set"})
STOCK_WAITS = frozenset({"asyncio.wait_for", "asyncio.as_completed"})

WORKFLOW_ONLY = frozenset(
    _under(
        "perdure",
        "sleep receive ask with_approval saga start section continue_as_new patched deprecate_patch set_state "
        "current_run sync.wait sync.start sync.sleep sync.receive sync.ask sync.with_approval",
    )
)
STEP_ONLY = frozenset(_under("perdure", "operation attempt heartbeat last_heartbeat use secret premise"))
BLOCKING = "perdure.sync."
"""How the names of functions begin that stand for `await` where there is no loop."""
AWAITED = frozenset(_under("perdure", "sleep receive ask with_approval start"))
"""Functions of ours that do nothing until they are awaited."""

TASK_MAKERS = frozenset({"asyncio.create_task", "asyncio.ensure_future"})
"""Tasks of a workflow are in the order of their creation, also in a set."""
GATHERERS = frozenset({"asyncio.gather", "asyncio.wait", "asyncio.as_completed"})
MUTATORS = frozenset(
    "append extend insert remove pop clear sort reverse add discard update setdefault popitem appendleft".split()
)

"""What the pages say is what the code has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from tests.docs import generated
from tests.docs.conftest import PAGES, ROOT
from tests.docs.defaults import DEFAULTS

import perdure
from perdure.api import inbox, workflow
from perdure.engine.calls import DONE_BY_ORIGINAL
from perdure.specs import Retry

MADE_FROM_MEASUREMENTS = {"PERFORMANCE.md"}
"""Pages that need a machine to themselves; a checkout may not have them."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


MADE = [page for page in PAGES if generated.places_in(page)]


@pytest.mark.parametrize("page", MADE, ids=name_of)
def test_a_page_is_in_step_with_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert facts(text) == facts(generated.filled(text)), "write it anew: python -m tests.docs.generated"


def facts(text: str) -> str:
    """The page without the sentences that are taken from docstrings: which files and names there are must be right,
    but to word a docstring anew makes no page wrong."""
    return re.sub(r"^(\| `(?:[\w/]+\.py|perdure\.\w+)` \|).*$", r"\1", text, flags=re.MULTILINE)


def test_everything_that_is_generated_stands_in_some_page() -> None:
    assert set(generated.SECTIONS) <= set[str]().union(*map(generated.places_in, MADE))


# ── the table of defaults ───────────────────────────────────────────────────────────────────

NOT_IN_THE_TABLE = {
    "workflows": "which ones is up to the program",
    "provide": "likewise",
    "outbox": "likewise",
    "authority": "likewise",
    "on_inbox": "likewise",
    "inbox_webhook": "likewise",
    "secrets": "likewise",
    "receives": "likewise",
    "replays": "likewise",
    "raises": "likewise",
    "on": "likewise",
    "ignore": "likewise",
    "digest": "likewise",
    "name": "the function's own",
    "retry": "the values of Retry are in the table",
    "timeout": "in the table, under its name in specs",
    "store": "in the table, as a sentence",
    "clock": "the machine's, for tests to replace",
    "grace": "has nothing to wait for yet",
}


@pytest.mark.parametrize(
    ("place", "function"),
    [
        ("Retry(", Retry),
        ("@step(", workflow._make_step),  # pyright: ignore[reportPrivateUsage]
        ("@workflow(", workflow._make_workflow),  # pyright: ignore[reportPrivateUsage]
        ("Runtime(", perdure.Runtime),
    ],
)
def test_every_option_with_a_default_is_in_the_table(place: str, function: object) -> None:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    options = {each.name for each in parameters if each.default is not each.empty} - set(NOT_IN_THE_TABLE)
    shown = {each.where.removeprefix(place).partition("=")[0] for each in DEFAULTS if each.where.startswith(place)}
    assert options <= shown


# ── reasons, names, links ───────────────────────────────────────────────────────────────────


def test_every_reason_that_the_code_gives_is_explained() -> None:
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src/perdure").rglob("*.py"))
    given = set(re.findall(r"(?:\.fail|_block|RunBlocked|_ask)\((?:flight\.live, |[A-Z_]+, )?\s*\"([a-z_]+)\"", source))
    given |= {"crash_loop", DONE_BY_ORIGINAL}  # the first is parked by the store
    assert given == set(generated.PARKED)
    assert given <= set(inbox.REASONS)


def names_of_perdure(text: str) -> set[str]:
    """Names that a page uses as `perdure.name`."""
    return set(re.findall(r"(?<![\w./-])perdure\.([A-Za-z_]\w*)(?!\.\w*/)", text)) - {"db", "io"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_name_of_perdure_exists(page: Path) -> None:
    missing = [name for name in names_of_perdure(page.read_text(encoding="utf-8")) if not _exists(name)]
    assert not missing


def _exists(name: str) -> bool:
    package = ROOT / "src" / "perdure"
    return hasattr(perdure, name) or (package / name).is_dir() or (package / f"{name}.py").is_file()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = [link for link in _links(page) if not _leads_somewhere(page, link)]
    assert not broken


def _links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def _leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page if not path else (page.parent / path).resolve()
    if not target.exists():
        return target.name in MADE_FROM_MEASUREMENTS
    return not anchor or anchor in {_anchor(line) for line in target.read_text(encoding="utf-8").splitlines()}


def _anchor(line: str) -> str | None:
    """The anchor that a heading gets."""
    match = re.match(r"#+ (.*)", line)
    return re.sub(r"[^\w\- ]", "", match[1].lower()).replace(" ", "-") if match else None


FORBIDDEN = re.compile(r"exactly[ -]once|guaranteed delivery|seamless|blazing|powerful", re.IGNORECASE)
LINKS_TO_WHAT_IT_MEANS = re.compile(r"\[[^\]]*\]\((?:docs/)?exactly-once\.md\)")
SAYS_WHAT_IT_IS_NOT = {"misunderstandings.md", "exactly-once.md"}


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in SAYS_WHAT_IT_IS_NOT], ids=name_of)
def test_no_page_promises_too_much(page: Path) -> None:
    text = LINKS_TO_WHAT_IT_MEANS.sub("", page.read_text(encoding="utf-8"))
    assert not FORBIDDEN.findall(text)

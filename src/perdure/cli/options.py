"""What many commands have: which store, which output; and what follows from that."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.api.settings import store_url
from perdure.cli.exits import CommandError, ExitCode
from perdure.errors import StoreReadOnlyError
from perdure.specs import SECONDS_MAX
from perdure.store import Store, open_store

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", help="Path or URL of the store [default: PERDURE_STORE, \\[tool.perdure] store, ./perdure.db]."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TagOption = Annotated[list[str] | None, typer.Option("--tag", metavar="NAME=VALUE", help="A tag; may be repeated.")]
GoalOption = Annotated[str, typer.Option("--goal", help="What the run is for, in words.")]
ScopeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scope", metavar="NAME=VALUE", help="What the run is about, for policies; may be repeated.",
        show_default=False,
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar="FILE", help="What calls are held to, in TOML.", show_default=False),
]
ProvideOption = Annotated[
    str | None,
    typer.Option(
        metavar="app.py:FUNCTION",
        help="Clients for perdure.use(): what this function returns, {Type: client}, or is a context manager around.",
        show_default=False,
    ),
]
SecretsOption = Annotated[
    str | None,
    typer.Option(
        metavar="app.py:FUNCTION",
        help="Where secrets come from: the list of providers (perdure.secrets) that this function returns.",
        show_default=False,
    ),
]
AuthorityOption = Annotated[
    str | None,
    typer.Option(
        "--authority", metavar="app.py:NAME",
        help="Who may decide what: a perdure.Authority, or the roles "
        "[default: PERDURE_AUTHORITY, \\[tool.perdure] authority].", show_default=False,
    ),
]  # fmt: skip
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="app.py", help="Where the run's workflow is: then the value is checked here.",
        show_default=False,
    ),
]  # fmt: skip
PromptReleaseOption = Annotated[
    str | None,
    typer.Option("--prompt-release", help="For workflows that declare none.", show_default=False),
]
ModelPolicyOption = Annotated[
    str | None,
    typer.Option("--model-policy-version", help="For workflows that declare none.", show_default=False),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)]


@contextlib.contextmanager
def existing_store(url: str | None) -> Generator[Store, None, None]:
    """The store that is meant, open. One that is only looked at is not created."""
    url = url or store_url()
    path = url.removeprefix("sqlite:///")
    if "://" not in path and path != ":memory:" and not Path(path).exists():
        raise CommandError(
            f"there is no store at {path}: name one with --store or PERDURE_STORE, or start a run, which creates it",
            ExitCode.STORE,
        )
    with contextlib.closing(_opened(url)) as store:
        yield store


def _opened(url: str) -> Store:
    """What cannot be written can be looked at all the same; who writes there is told by the store."""
    try:
        return open_store(url)
    except StoreReadOnlyError:
        return open_store(url, read_only=True)


@contextlib.contextmanager
def any_store(url: str | None) -> Generator[Store, None, None]:
    """The store that is meant, open, and new if there is none."""
    with contextlib.closing(open_store(url or store_url())) as store:
        yield store


def tags_from(given: Sequence[str] | None) -> dict[str, str]:
    """`NAME=VALUE` as a dict."""
    return _pairs(given, "--tag")


def scope_from(given: Sequence[str] | None) -> dict[str, str]:
    """`NAME=VALUE` as a dict."""
    return _pairs(given, "--scope")


def _pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise CommandError(f"{option} {each}: write it as NAME=VALUE")
        pairs[name] = value
    return pairs


def policy_from(path: str | None) -> Any:
    """The policy in a file, if one is named."""
    if path is None:
        return None
    from perdure.api.policies import Policy  # only for those who have one

    return Policy.load(path)


SECONDS_PER_UNIT = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def seconds_from(text: str, *, option: str) -> float:
    """A duration in seconds.

    >>> seconds_from("1.5h", option="--delay")
    5400.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", text.strip())
    if match is None:
        raise CommandError(f"{option} {text}: a duration is a number of seconds, or as in 30s, 10m, 12h, 30d, 2w")
    seconds = float(match[1]) * SECONDS_PER_UNIT[match[2]]
    if seconds > SECONDS_MAX:
        raise CommandError(f"{option} {text}: at most 100 years")
    return seconds

"""What does a secret look like, in any text? Its value, in each of the usual encodings; or what a pattern matches.

A `Source` (one per open Runtime or Client) says what is hidden, see `hiding.py`. What cannot be found: a value that was
cut in pieces, transformed or hashed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

import msgspec

from perdure.codec import hiding
from perdure.codec.canonical import canonical_bytes, is_encodable, surrogate_text
from perdure.codec.hiding import MARK, mark
from perdure.codec.shape import Unfit, key_step, type_of

CHARACTERS_MIN = 8
"""A shorter value, hidden wherever it stands, would blank ordinary text."""

LETTERS_MIN = 16
"""The same, of a value that is letters alone: a word."""

PASSING_VALUES_MAX = 256
"""How many values that were made for one attempt each a source goes on hiding when their attempts are over; the
latest."""

LINE_MIN = 20

NOT_UNICODE = b'{"$s":'
"""How a text begins that holds half a surrogate pair. It is base64 of UTF-16, and looked into."""

LAYERS = 3
"""How often a text is written within another one: JSON in a text of JSON, shown by `repr`."""


def too_plain(value: str) -> str | None:
    """Why this cannot be hidden wherever it may stand; None if it can."""
    if not is_encodable(value):
        return "it holds a lone surrogate, which is no text"
    if len(value) < CHARACTERS_MIN:
        return f"it has fewer than {CHARACTERS_MIN} characters, which turn up in ordinary text"
    if len(value) < LETTERS_MIN and value.isalpha():
        return f"it is a word of fewer than {LETTERS_MIN} letters, which turns up in ordinary text"
    if MARK in value:
        return "it looks like a mark, which is what would stand in its place"
    return None


# ── patterns ────────────────────────────────────────────────────────────────────────────────


class Pattern(NamedTuple):
    """A form that secrets have. With a group called `secret` only that group is replaced. `hints`: one of these is in
    every text that it matches; without any, each text is tried."""

    name: str
    regex: re.Pattern[str]
    hints: tuple[str, ...] = ()

    def hidden_in(self, text: str) -> str:
        """The text with marks for what the pattern matches."""
        if self.hints and not any(hint in text for hint in self.hints):
            return text
        return self.regex.sub(self._marked, text)

    def _marked(self, found: re.Match[str]) -> str:
        if "secret" not in self.regex.groupindex:
            return mark(self.name)
        start, end = (place - found.start() for place in found.span("secret"))
        return found[0] if start < 0 else found[0][:start] + mark(self.name) + found[0][end:]


def _well_known(name: str, regex: str, *hints: str) -> Pattern:
    return Pattern(name, re.compile(regex), hints)


WELL_KNOWN = (
    _well_known("aws-key", r"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z2-7]{16}(?![A-Z0-9])", "AKIA", "ASIA"),
    _well_known("github-token", r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,})",
                "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    _well_known("gitlab-token", r"(?<![A-Za-z0-9])glpat-[A-Za-z0-9_-]{20,}", "glpat-"),
    _well_known("stripe-key", r"(?<![A-Za-z0-9])(?:[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{24,})",
                "k_live_", "k_test_", "whsec_"),
    _well_known("model-key", r"(?<![A-Za-z0-9])sk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{20,}", "sk-"),
    _well_known("slack-token", r"(?<![A-Za-z0-9])xox[a-z]-[A-Za-z0-9-]{10,}", "xox"),
    _well_known("google-key", r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{35}", "AIza"),
    _well_known("jwt", r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}", "eyJ"),
    _well_known("private-key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
                "PRIVATE KEY-----"),
    _well_known("url-password", r"://[^\s/:@‹›]*:(?P<secret>[^\s/@‹›]+)@", "://"),
)  # fmt: skip
"""Hidden wherever anything is: forms that are hardly ever anything else."""


# ── the encodings of a value ────────────────────────────────────────────────────────────────


def forms_of(value: str) -> frozenset[str]:
    """The value as it may turn up: itself; as JSON and Python write a text, also within one another; percent-encoded;
    in base64, wherever in a longer text it begins; in hexadecimal; and each line of a key that has several."""
    raw, quoted = value.encode(), {quote(value), quote(value, safe=""), quote_plus(value)}
    forms = {value, repr(raw)[2:-1], *quoted, *map(_lower_percent, quoted), raw.hex(), raw.hex().upper()}
    forms |= {*_in_base64(raw), *(line for line in value.splitlines() if _LINE.fullmatch(line))}
    for _ in range(LAYERS):
        forms |= {write(form) for form in forms if _SPECIAL.search(form) for write in _WRITERS}
    return frozenset(form for form in forms if len(form) >= CHARACTERS_MIN)


def _inside_json(text: str) -> str:
    return msgspec.json.encode(text)[1:-1].decode()


def _inside_ascii_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _in_python(text: str) -> str:
    """As `repr` shows it between quotes that it does not hold."""
    return _SPECIAL.sub(lambda found: found[0] if found[0] in "'\"" else repr(found[0])[1:-1], text)


def _in_ascii_python(text: str) -> str:
    """As `ascii` does."""
    return _SPECIAL.sub(lambda found: found[0] if found[0] in "'\"" else ascii(found[0])[1:-1], text)


def _in_quotes(text: str) -> str:
    """What either adds to a text that holds both kinds of quotes."""
    return text.replace("'", "\\'")


_WRITERS = (_inside_json, _inside_ascii_json, _in_python, _in_ascii_python, _in_quotes)
_SPECIAL = re.compile(r"""[^ !#-&(-\[\]-~]""")
"""Characters that JSON or Python may write in another way: quotes, the backslash, and what is not printable ASCII."""
_LINE = re.compile(rf"[A-Za-z0-9+/=_-]{{{LINE_MIN},}}")


def _lower_percent(quoted: str) -> str:
    return re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)


def _in_base64(raw: bytes) -> Iterator[str]:
    """What of its base64 does not depend on what stands before and after it: in each of the three places where it may
    begin within a group of three bytes."""
    for before, first in ((0, 0), (1, 2), (2, 3)):
        text = base64.b64encode(bytes(before) + raw).decode()[first : (before + len(raw)) * 8 // 6]
        yield text
        yield text.translate(_URL_SAFE)


_URL_SAFE = str.maketrans("+/", "-_")


# ── what is hidden ──────────────────────────────────────────────────────────────────────────


class Hiding:
    """What is to be hidden at one time; immutable. `forms`: each form of a value, and the mark for it."""

    __slots__ = ("_digits", "_forms", "_patterns", "_seeks_all", "_sought", "_unmistakable")

    def __init__(self, forms: Iterable[tuple[str, str]], patterns: Iterable[Pattern]) -> None:
        self._forms = tuple(sorted(forms, key=lambda each: -len(each[0])))  # what holds another one goes first
        self._patterns = tuple(patterns)
        self._digits = tuple(form for form, _ in self._forms if form.isdecimal())
        written = (write(form).encode() for form, _ in self._forms for write in (_inside_json, _inside_ascii_json))
        needles = tuple(dict.fromkeys(written))
        self._unmistakable = tuple(needle for needle in needles if not _MAY_BE_STRUCTURE.fullmatch(needle))
        hints = (hint.encode() for pattern in self._patterns for hint in pattern.hints)
        self._sought = tuple(dict.fromkeys((*needles, *hints)))
        self._seeks_all = not all(pattern.hints for pattern in self._patterns)

    def text(self, text: str) -> str:
        """The text with marks for what is hidden. Marks that it has stay as they are."""
        parts = _MARKS.split(text) if MARK in text else [text]
        text = "".join(part if part.startswith(MARK) else self._without_values(part) for part in parts)
        for pattern in self._patterns:
            text = pattern.hidden_in(text)
        return text

    def _without_values(self, text: str) -> str:
        for form, instead in self._forms:
            if form in text:
                return instead.join([self._without_values(part) for part in text.split(form)])
        return text

    def names_in(self, text: str) -> str:
        """The marks of what would be hidden in a text; empty if nothing would."""
        hidden = self.text(text)
        return "" if hidden == text else ", ".join(dict.fromkeys(_MARKS.findall(hidden)))

    def suspects(self, raw: bytes) -> bool:
        """Whether a JSON text may hold something that is to be hidden. Quick, as every text is asked."""
        if self._seeks_all or raw.find(NOT_UNICODE) >= 0:
            return True
        return any(raw.find(sought) >= 0 for sought in self._sought)  # `in` raises and swallows an error first

    def json(self, raw: bytes) -> bytes:
        """A JSON text with marks for what is hidden; the same bytes if nothing is. Unfit where no mark can stand."""
        if not self.suspects(raw):
            return raw
        wire = json.loads(raw, parse_int=_as_it_stands, parse_float=_as_it_stands)
        instead = self.wire(wire)
        return raw if instead == wire else canonical_bytes(instead)

    def is_in(self, raw: bytes) -> bool:
        """Whether a known value is in these bytes, whatever they are; not one that also numbers side by side may be."""
        return any(raw.find(needle) >= 0 for needle in self._unmistakable)

    def wire(self, wire: Any) -> Any:
        """The wire with marks for what is hidden. Unfit where no mark can stand."""
        kind = type_of(wire)
        if kind is str:
            return self.text(wire)
        if kind is list:
            return [self.wire(item) for item in wire]
        if kind is dict:
            return self._object(wire)
        if kind is msgspec.Raw and any(digits in bytes(wire).decode() for digits in self._digits):
            raise Unfit("a number that is the value of a secret", _NO_PLACE)
        return wire

    def _object(self, wire: dict[str, Any]) -> dict[str, Any]:
        if len(wire) == 1 and type_of(wire.get("$s")) is str:  # a text that is no Unicode
            text = surrogate_text(wire["$s"])
            hidden = self.text(text)
            return (
                wire
                if hidden == text
                else {"$s": base64.b64encode(hidden.encode("utf-16-be", "surrogatepass")).decode()}
            )
        hidden_wire: dict[str, Any] = {}
        for key, item in wire.items():
            hidden = self.text(key)
            if hidden in hidden_wire:
                raise Unfit("two keys that hold a secret", _NO_PLACE).under(key_step(hidden))
            try:
                hidden_wire[hidden] = self.wire(item)
            except Unfit as no:
                raise no.under(key_step(hidden)) from None
        return hidden_wire


_NO_PLACE = "A mark cannot stand in its place: return what may be recorded"
_MARKS = re.compile(f"({MARK}[^›]*›)")
_MAY_BE_STRUCTURE = re.compile(rb"[\d\s,.:+\-eE\[\]{}]*")


def _as_it_stands(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


# ── who registers what ──────────────────────────────────────────────────────────────────────

_lock = Lock()
_sources: dict[Source, None] = {}


class Source:
    """What one Runtime or Client has hidden, from when it is opened until it is closed."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._patterns = (*WELL_KNOWN, *patterns)
        self._lasting: dict[str, dict[str, None]] = {}
        self._passing: dict[tuple[str, str], int] = {}

    def open(self) -> None:
        """Hide it from now on."""
        with _lock:
            _sources[self] = None
            _renew()

    def close(self) -> None:
        """Hide it no longer."""
        with _lock:
            _sources.pop(self, None)
            _renew()

    def add(self, name: str, value: str, *, passes_at: int | None = None, now: int = 0) -> None:
        """Hide a value, too. One that `passes_at` a time was made for one attempt, which is over then: of those the
        latest are kept, and all whose time has not come."""
        with _lock:
            if value in self._lasting.get(name, ()):
                return
            if (name, value) in self._passing:
                self._passing[name, value] = max(self._passing[name, value], passes_at or 0)
                return
            if passes_at is not None:
                self._forget_passed(now)
                self._passing[name, value] = passes_at
            else:
                self._lasting.setdefault(name, {})[value] = None
            _renew()

    def _forget_passed(self, now: int) -> None:
        """Make room for one more."""
        too_many = len(self._passing) + 1 - PASSING_VALUES_MAX
        if too_many > 0:
            passed = [each for each, passes_at in self._passing.items() if passes_at <= now]
            for each in passed[:too_many]:
                del self._passing[each]

    def forms(self) -> Iterator[tuple[str, str]]:
        """Every form of every value, and its mark."""
        known = [(name, value) for name, values in self._lasting.items() for value in values]
        for name, value in (*known, *self._passing):
            for form in _forms(value):
                yield form, mark(name)

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        return self._patterns


_kept_forms: dict[str, frozenset[str]] = {}


def _forms(value: str) -> frozenset[str]:
    found = _kept_forms.get(value)
    if found is None:
        found = _kept_forms[value] = forms_of(value)
    return found


def _renew() -> None:
    """Take in what the sources have now."""
    if not _sources:
        hiding.active = None
        _kept_forms.clear()
        return
    forms = dict(each for source in _sources for each in source.forms())
    patterns = dict.fromkeys(pattern for source in _sources for pattern in source.patterns)
    hiding.active = Hiding(forms.items(), patterns)

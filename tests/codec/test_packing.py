"""What is stored of a text: once, whole, and findable; never marked as stored before it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec import Memo, Packed, codec_for, digest, pack, unpack
from perdure.codec.digests import SMALL_MAX
from perdure.codec.packing import QUOTABLE_MAX, QUOTED_MIN, position_of
from perdure.errors import HistoryCorruptError

dumps: Callable[[Any], bytes] = codec_for(Any).dumps


class Shelf:
    """A store of blobs and the run that writes to it."""

    def __init__(self) -> None:
        self.blobs: dict[bytes, bytes] = {}
        self.outputs: list[bytes] = []
        self.memo = Memo()
        self.fetched = 0

    def put(self, raw: bytes) -> Packed:
        packed = pack(raw, self.memo)
        self.blobs.update(packed.blobs)
        self.memo.committed(packed)
        return packed

    def say(self, raw: bytes) -> None:
        """A step returns this: it is stored beside an event if it is small."""
        self.memo.quotable(raw, len(self.outputs))
        self.outputs.append(raw)

    def fetch(self, address: bytes) -> bytes:
        self.fetched += 1
        position = position_of(address)
        return self.blobs[address] if position is None else self.outputs[position]

    def get(self, packed: Packed) -> bytes:
        return unpack(packed.digest, packed.inline, self.fetch)

    def size(self) -> int:
        return sum(len(address) + len(blob) for address, blob in self.blobs.items())


WORDS = [f"{random.Random(number).getrandbits(8 + number % 32):x}" for number in range(2000)]


def message(turn: int, length: int, rng: random.Random) -> dict[str, Any]:
    words = [WORDS[min(rng.randrange(len(WORDS)), rng.randrange(len(WORDS)))] for _ in range(length // 6)]
    return {"content": " ".join(words), "role": "assistant" if turn % 2 else "user"}


def test_small_texts_stay_inline() -> None:
    packed = Shelf().put(b'"x"')
    assert packed == Packed(digest(b'"x"'), b'"x"', (), ())
    assert pack(dumps("x" * (SMALL_MAX - 2)), Memo()).inline is not None
    assert pack(dumps("x" * SMALL_MAX), Memo()).inline is None


@pytest.mark.parametrize("length", [500, 1_600])
def test_a_conversation_of_a_thousand_turns_stores_at_most_twice_its_text(length: int) -> None:
    shelf, rng = Shelf(), random.Random(length)
    messages: list[Any] = []
    packed: list[tuple[Packed, int]] = []
    tools = [{"name": f"tool {number}", "schema": {"x": "y" * 300}} for number in range(10)]
    before, after = b'{"messages":[', b'],"model":"m","tools":' + dumps(tools) + b"}"
    text = b""
    for turn in range(1000):
        messages.append(message(turn, rng.randint(length // 2, length), rng))
        text += (b"," if text else b"") + dumps(messages[-1])
        packed.append((shelf.put(before + text + after), len(messages)))
    assert shelf.size() <= 2 * len(text)
    for each, count in [packed[0], packed[63], packed[64], packed[129], packed[500], packed[999]]:
        expected = dumps({"messages": messages[:count], "model": "m", "tools": tools})
        assert shelf.get(each) == expected
        assert each.digest == digest(expected)


def replies(turns: int, length: int) -> list[str]:
    rng = random.Random(turns)
    return [f"{turn}: {message(turn, length, rng)['content']}" for turn in range(turns)]


def the_reply(reply: str) -> Any:
    return reply


def inside_a_message(reply: str) -> Any:
    return {"role": "assistant", "parts": [{"type": "text", "text": reply}]}


@pytest.mark.parametrize("said", [the_reply, inside_a_message])
@pytest.mark.parametrize("is_object", [True, False])
def test_what_a_step_returned_is_not_stored_again_in_the_next_arguments(
    said: Callable[[str], Any], is_object: bool
) -> None:
    shelf = Shelf()
    messages: list[Any] = []
    for turn, reply in enumerate(replies(200, 700)):
        messages.append({"role": "user", "content": f"question {turn}"})
        packed = shelf.put(dumps({"messages": messages} if is_object else messages))
        expected = dumps({"messages": messages} if is_object else messages)
        assert packed.digest == digest(expected)
        assert shelf.get(packed) == expected
        shelf.say(dumps(reply))
        messages.append(said(reply))
    assert shelf.size() < 0.6 * sum(map(len, shelf.outputs))


def test_a_reply_among_other_arguments_is_quoted() -> None:
    shelf = Shelf()
    (reply,) = replies(1, 600)
    shelf.say(dumps(reply))
    packed = shelf.put(dumps({"draft": reply, "notes": "x" * 900}))
    assert shelf.size() < 1_100
    assert shelf.get(packed) == dumps({"draft": reply, "notes": "x" * 900})


def test_what_is_short_or_long_ago_is_not_quoted() -> None:
    shelf = Shelf()
    short, old = dumps("s" * (QUOTED_MIN - 3)), dumps("o" * 600)
    shelf.say(old)
    for number in range(QUOTABLE_MAX):
        shelf.say(dumps(f"{number} {short!r}"))
    shelf.say(short)
    packed = shelf.put(b"[" + old + b"," + short + b"," + dumps("x" * 900) + b"]")
    assert shelf.size() > 1_700
    assert shelf.fetched == 0
    shelf.get(packed)
    assert shelf.fetched == 1


def test_reading_a_conversation_of_short_messages_follows_few_bases() -> None:
    shelf, rng = Shelf(), random.Random(5)
    messages: list[Any] = []
    packed = shelf.put(b"[]")
    for turn in range(1000):
        messages.append(message(turn, 200, rng))
        packed = shelf.put(dumps(messages))
    assert shelf.get(packed) == dumps(messages)
    assert shelf.fetched < 100


def test_thousands_of_bases_are_no_recursion() -> None:
    shelf = Shelf()
    messages = [random.Random(1).randbytes(600).hex()]
    packed = shelf.put(dumps(messages))
    for turn in range(4_000):
        messages.append(random.Random(turn).randbytes(20).hex())
        if turn > 3_000 or turn % 7 == 0:
            packed = shelf.put(dumps(messages))
    assert shelf.get(packed) == dumps(messages)


def test_an_unchanged_value_is_not_stored_again() -> None:
    shelf = Shelf()
    raw = dumps({"a": "x" * 2000, "b": ["y" * 1500, "z" * 300]})
    assert len(shelf.put(raw).blobs) == 4
    assert shelf.put(raw).blobs == ()
    assert len(shelf.put(dumps({"a": "x" * 2000, "b": 1, "c": 1})).blobs) == 1


def test_a_message_edited_at_the_end_branches_from_the_stored_beginning() -> None:
    shelf, rng = Shelf(), random.Random(2)
    messages = [message(turn, 900, rng) for turn in range(50)]
    shelf.put(dumps(messages[:-1]))
    shelf.put(dumps(messages))
    edited = [*messages[:-1], {**messages[-1], "cached": True}, message(1, 100, rng)]
    packed = shelf.put(dumps(edited))
    assert sum(len(blob) for _, blob in packed.blobs) < 1500
    assert shelf.get(packed) == dumps(edited)


def test_nothing_counts_as_stored_before_the_commit_succeeded() -> None:
    shelf = Shelf()
    messages = ["x" * 700, "y" * 700]
    lost = pack(dumps(messages), shelf.memo)
    again = pack(dumps(messages), shelf.memo)
    assert lost.blobs == again.blobs != ()
    longer = shelf.put(dumps([*messages, "z" * 700]))
    assert shelf.get(longer) == dumps([*messages, "z" * 700])


@pytest.mark.parametrize("way", ["known", "packed again", "remembered"])
def test_after_a_restart_the_conversation_is_not_stored_again(way: str) -> None:
    shelf, rng = Shelf(), random.Random(3)
    messages = [message(turn, 600, rng) for turn in range(300)]
    for count in range(1, 301):
        shelf.put(dumps({"messages": messages[:count]}))
    if way == "known":
        shelf.memo = Memo(shelf.blobs.__contains__)
    else:
        shelf.memo = Memo()
        if way == "remembered":
            for address in shelf.blobs:
                shelf.memo.remember(address)
        else:
            shelf.memo.committed(pack(dumps({"messages": messages}), shelf.memo))
    messages.append(message(1, 600, rng))
    packed = shelf.put(dumps({"messages": messages}))
    assert sum(len(blob) for _, blob in packed.blobs) < 1000
    assert shelf.get(packed) == dumps({"messages": messages})


def test_a_memo_stays_small() -> None:
    memo = Memo(digests_max=10, arrays_max=2, bytes_max=10_000)
    for number in range(50):
        memo.committed(pack(dumps([str(number) * 700, "x" * 600]), memo))
    assert len(memo._digests) == 10  # pyright: ignore[reportPrivateUsage]
    assert len(memo._growths) <= 2  # pyright: ignore[reportPrivateUsage]
    memo.committed(pack(dumps(["x" * 600] * 100), memo))
    assert sum(len(each.text) for each in memo._growths) <= 10_000  # pyright: ignore[reportPrivateUsage]


# ── digests ─────────────────────────────────────────────────────────────────────────────────


def test_digests_do_not_depend_on_how_a_value_came_to_be_stored() -> None:
    values = [{"m": ["a" * 400] * count, "big": "b" * 3000} for count in range(1, 9)]
    shelf = Shelf()
    for value in values:
        assert shelf.put(dumps(value)).digest == digest(dumps(value)) == pack(dumps(value), Memo()).digest


def test_neighbouring_values_have_different_digests() -> None:
    big = "x" * 1200
    inner = digest(dumps(big))
    values: list[Any] = [
        big,
        [big],
        [[big]],
        {"0": big},
        [big, big],
        {"0": [big]},
        "\0" + big,
        [inner.hex() * 20],
        [big + "x"],
    ]
    assert len({digest(dumps(value)) for value in values}) == len(values)


# ── damage ──────────────────────────────────────────────────────────────────────────────────


def _stored() -> tuple[Shelf, Packed]:
    shelf, rng = Shelf(), random.Random(9)
    messages = [message(turn, 300, rng) for turn in range(20)]
    packed = shelf.put(b"[]")
    for count in range(5, 21):
        packed = shelf.put(dumps({"m": messages[:count], "doc": "d" * 2000}))
    return shelf, packed


def test_a_missing_blob_is_named() -> None:
    shelf, packed = _stored()
    del shelf.blobs[packed.digest]
    with pytest.raises(HistoryCorruptError, match=packed.digest.hex()):
        shelf.get(packed)


def test_any_damage_to_any_blob_is_noticed() -> None:
    shelf, packed = _stored()
    raw = shelf.get(packed)
    needed: list[bytes] = []

    def noting(address: bytes) -> bytes:
        needed.append(address)
        return shelf.blobs[address]

    unpack(packed.digest, None, noting)
    rng = random.Random(4)
    for address in dict.fromkeys(needed):
        good = shelf.blobs[address]
        for damaged in (
            b"",
            good[:-1],
            good + b" ",
            _flipped(good, rng),
            _flipped(good, rng),
            b"\0" + good,
            b"\1" + good,
            b"\0",
        ):
            shelf.blobs[address] = damaged
            with pytest.raises(HistoryCorruptError):
                shelf.get(packed)
        del shelf.blobs[address]
        with pytest.raises(HistoryCorruptError, match="missing"):
            shelf.get(packed)
        shelf.blobs[address] = good
    assert shelf.get(packed) == raw


def test_a_damaged_or_missing_output_is_noticed_where_it_is_quoted() -> None:
    shelf = Shelf()
    reply = dumps("r" * 600)
    shelf.say(reply)
    packed = shelf.put(b"[" + reply + b"," + dumps("x" * 900) + b"]")
    shelf.outputs[0] = reply.replace(b"rr", b"rq", 1)
    with pytest.raises(HistoryCorruptError, match="does not hold what its digest says"):
        shelf.get(packed)
    shelf.outputs.clear()
    with pytest.raises(HistoryCorruptError, match=r"output of event 0, which .* builds on, is missing"):
        shelf.get(packed)


def _flipped(blob: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(blob))
    return blob[:at] + bytes([blob[at] ^ 1 << rng.randrange(8)]) + blob[at + 1 :]


def test_bases_that_lead_in_a_circle_are_damage() -> None:
    one, other = b"1" * 32, b"2" * 32
    blobs = {one: b"\0" + other + b",1]", other: b"\0" + one + b",2]"}
    with pytest.raises(HistoryCorruptError):
        unpack(one, None, blobs.__getitem__)


# ── any history of packs ────────────────────────────────────────────────────────────────────

leaves = st.text(max_size=20) | st.integers() | st.text(min_size=1, max_size=3).map(lambda text: text * 500) | st.none()
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)
edits = st.tuples(
    st.sampled_from(["append", "append", "append", "say", "say", "drop", "replace", "wrap", "restart", "fail"]), values
)


@settings(max_examples=80, deadline=None)
@given(st.lists(edits, max_size=30), st.integers(0, 2))
def test_whatever_was_packed_comes_back(edits: list[tuple[str, Any]], wrapped: int) -> None:
    shelf = Shelf()
    conversation: list[Any] = ["x" * 900]
    written: list[tuple[Packed, bytes]] = []
    for edit, value in edits:
        if edit == "say":
            value = ["said", value, "y" * 300]
            if len(dumps(value)) <= SMALL_MAX:
                shelf.say(dumps(value))
        if edit in ("append", "say"):
            conversation.append(value)
        elif edit == "drop":
            conversation = conversation[:-1]
        elif edit == "replace":
            conversation = [*conversation[: len(conversation) // 2], value]
        elif edit == "restart":
            shelf.memo = Memo(shelf.blobs.__contains__)
        shape: Any = {"c": conversation, "v": value} if edit == "wrap" or wrapped else conversation
        raw = dumps(shape)
        if edit == "fail":
            pack(raw, shelf.memo)
            continue
        written.append((shelf.put(raw), raw))
    for packed, raw in written:
        assert packed.digest == digest(raw)
        assert shelf.get(packed) == raw


@settings(max_examples=100, deadline=None)
@given(
    st.binary(min_size=SMALL_MAX + 1, max_size=SMALL_MAX + 50)
    | st.text(max_size=9).map(lambda text: f"[ {text * 300}".encode())
)
def test_bytes_that_are_no_canonical_json_come_back_too_or_are_refused(raw: bytes) -> None:
    shelf = Shelf()
    marked = b"\0" in raw or b"\2" in raw or raw[:1] == b"\1"  # what marks references, quotes and tails
    if marked and len(raw) > SMALL_MAX:  # what is small is kept as it is
        with pytest.raises(ValueError, match="a byte 0 or 2"):
            shelf.put(raw)
    else:
        assert shelf.get(shelf.put(raw)) == raw


def test_white_space_and_repeated_keys_come_back() -> None:
    shelf = Shelf()
    big = dumps("x" * 2000).decode()
    for text in (f'{{"a": {big}}}', f'{{"a":{big},"a":1}}', f"[ {big}]", f"[{big},\n1]", f'{{"\\u0061":{big}}}'):
        raw = text.encode()
        assert shelf.get(shelf.put(raw)) == raw
        msgspec.json.decode(raw)

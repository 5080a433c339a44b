"""The lane for bursts against the ordinary way: the same frames, answers, bytes, digests and notes."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from broker.access.guard import AccessGuard
from broker.access.rules import AccessRules
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import Frame, FrameDecoder, encode_frame
from dledger_mq.remoting.header import encode_command, make_request
from dledger_mq.remoting.requests import SEND_LONG_NAMES
from tests.property.server.twin_leaders import BODY_BYTES_MAX, TwinLeader

LETTERS = "abcdefghijklm"
COMPACT = (",", ":")
"""As clients write JSON."""

KEYS = st.sampled_from([f"key-{number}" for number in range(80)] + ["k\x01x", "DELAY", "TIMER_x"])
ODD_EXTRAS = [
    "TAGS\x01red\x02",
    "TAGS\x01\x02TAGS\x01blue\x02",
    "KEYS\x01a b\x02TAGS\x01red",
    "WAIT\x01true\x02",
    "DELAY\x013\x02",
    "DELAY\x01none\x02",
    "TIMER_DELAY_MS\x01100\x02",
    "TRAN_MSG\x01true\x02",
    "TRAN_MSG\x01no\x02",
    "MSG_REGION\x01else\x02",
    "POP_CK\x011 2 3\x02",
    "UNIQ_KEY\x01key-2\x02",
    "UNIQ_KEY\x01\x02",
    "xUNIQ_KEY\x01a\x02",
    "p\x01" + "v" * 32_700 + "\x02",
    "\x02\x02",
]
EXTRAS = st.sampled_from([""] * 60 + ["TAGS\x01red\x02"] * 20 + ODD_EXTRAS)
USUAL = {"b": "T", "e": "0", "f": "0", "g": "1000", "h": "0", "j": "0", "c": "TBW102", "d": "2"}


@st.composite
def properties(draw: st.DrawFn) -> str:
    """Properties in any order, mostly with a key, the last pair mostly ended."""
    parts = [draw(EXTRAS), draw(EXTRAS)]
    if draw(st.integers(0, 19)):
        parts.insert(draw(st.integers(0, 2)), f"UNIQ_KEY\x01{draw(KEYS)}\x02")
    text = "".join(parts)
    return text[:-1] if text and not draw(st.integers(0, 19)) else text


ODD: list[dict[str, str | None]] = [
    {"b": "M"},
    {"b": "New"},
    {"b": "Newer"},
    {"b": "%RETRY%g"},
    {"b": "TBW102"},
    {"b": "bad topic"},
    {"e": "-1"},
    {"e": "3"},
    {"e": "4"},
    {"e": "x"},
    {"f": "1"},
    {"f": "4"},
    {"f": "16"},
    {"f": "-1"},
    {"g": "-5"},
    {"g": "2000"},
    {"h": "7"},
    {"j": "2"},
    {"j": None},
    {"i": None},
    {"dledgerSinkBatch": "1 sink"},
]
"""Fields that differ from the usual ones; None: the field is not there."""
ODD_FIELDS = st.sampled_from([{}] * 80 + [{"b": "M"}, {"e": "1"}] * 10 + ODD)


@st.composite
def frames(draw: st.DrawFn, opaque: int) -> bytes:
    """One frame: mostly a send, mostly a plain one."""
    kinds = ["send"] * 36 + ["long", "oneway", "batch", "slow", "other"] * 3 + ["broken"]
    kind = draw(st.sampled_from(kinds))
    if kind == "other":
        return encode_command(make_request(9999, opaque, {"a": "b"}))
    if kind == "broken":
        return encode_frame(
            b'{"code":310,"opaque":1,"extFields":{"i":"half a pair \\ud800"}}', b"one"
        )
    bodies = [b"one", b"two", b"x" * 300] * 8 + [b"", b"y" * BODY_BYTES_MAX, b"y" * 601]
    body = draw(st.sampled_from(bodies))
    ext: dict[str, Any] = {
        **USUAL,
        "a": "P",
        "c": "TBW102",
        "d": "2",
        "i": draw(properties()),
        "k": "false",
        **draw(ODD_FIELDS),
    }
    if kind == "batch":
        ext["m"] = "true"
        body = encode_batch(
            BatchItem(0, text, draw(properties()).encode(errors="replace")[:30_000])
            for text in draw(st.lists(st.sampled_from([b"one", b"two"]), min_size=1, max_size=3))
        )
    fields = {name: value for name, value in ext.items() if value is not None}
    if kind == "long":
        names = dict(zip(LETTERS, SEND_LONG_NAMES, strict=True))
        fields = {names.get(name, name): value for name, value in fields.items()}
    if kind == "slow":  # not as the typed decoder wants it
        fields["queueId"] = fields["e"]
        fields["e"] = f" {fields['e']} "
    header = {
        "code": {"long": 10, "batch": 320}.get(kind, 310),
        "flag": 2 if kind == "oneway" else 0,
        "opaque": opaque,
        "version": 409,
        "language": "JAVA",
        "extFields": fields,
    }
    separators = draw(st.sampled_from([COMPACT, COMPACT, (", ", ": ")]))
    return encode_frame(json.dumps(header, separators=separators).encode(), body)


@st.composite
def reads(draw: st.DrawFn) -> tuple[str, int, bytes]:
    """What one connection sends in one piece."""
    count = draw(st.sampled_from([1, 3, 9, 14]))
    pieces = [draw(frames(number)) for number in range(count)]
    return "read", draw(st.integers(0, 2)), b"".join(pieces)


def mostly(usual: Sequence[str], odd: Sequence[str]) -> st.SearchStrategy[str]:
    """One of the usual texts, once in twenty an odd one."""
    return st.integers(0, 19).flatmap(lambda at: st.sampled_from(usual if at else odd))


QUEUE_TEXTS = mostly(["0", "1", "2", "3"], ["4", "-1", "01", "x", "", "9999999999", "1.0"])
BORN_TEXTS = mostly(["1000", "2000"], ["0", "-5", "007", "1" * 18, "1" * 19, "9" * 19, "1e3"])
KEY_TEXTS = mostly(
    [f"key-{number}" for number in range(200)],
    [
        "",
        "k\\u0001x",
        "k\\u0002x",
        'k\\"x',
        "k\\\\x",
        "k\\ud800",
        "k\u00e9",
        "k\\u00e9",
        "k\x7f",
        "k x",
    ],
)
OPAQUE_TEXTS = mostly([""], ["-1", "007", "2147483648", "5.0", "1e1", " 5", "5 "])
"""In place of the number; empty: the number."""

FIRST_MOULD = (
    '{"code":310,"extFields":{"a":"P","b":"T","e":"QUEUE","f":"0","g":"BORN","h":"0","i":"PROPERTIES"},'
    '"flag":0,"opaque":OPAQUE}'
)
OTHER_MOULD = (
    '{"opaque":OPAQUE,"code":310,"extFields":{"i":"PROPERTIES","g":"BORN","b":"M","a":"\u00fc","h":"7",'
    '"f":"1","e":"QUEUE"},"version":1}'
)
MOULDS = [FIRST_MOULD, OTHER_MOULD]
ODD_MOULDS = [
    mould.replace(before, after)
    for mould in MOULDS
    for before, after in [
        ('"a":"P"', '"a":"e"'),
        ('"e":"QUEUE"', '"e":"0","e":"QUEUE"'),
        ('"e":"QUEUE"', '"e":"QUEUE","\\u0065":"0"'),
        ('"e":"QUEUE"', '"e":QUEUE'),
        ('"a":"P"', '"a":"UNIQ_KEY\\u0001other\\u0002"'),
        ('"flag":0', '"flag":2'),
        ('"b":"T"', '"b":"Newest"'),
        ('"extFields"', '"more":{"e":"1"},"extFields"'),
        ("310", "10"),
    ]
    if before in mould
]
ALIKE_PROPERTIES = mostly(
    [
        "UNIQ_KEY\\u0001KEY\\u0002TAGS\\u0001red\\u0002WAIT\\u0001true\\u0002",
        "UNIQ_KEY\\u0001KEY\\u0002",
    ],
    [
        "TAGS\\u0001red\\u0002UNIQ_KEY\\u0001KEY",
        "xUNIQ_KEY\\u0001KEY\\u0002",
        "UNIQ_KEY\\u0001KEY\\u0002DELAY\\u00013\\u0002",
        "UNIQ_KEY\\u0001KEY\\u0002UNIQ_KEY\\u0001b\\u0002",
        "UNIQ\\u005fKEY\\u0001KEY\\u0002",
        "\\u0055NIQ_KEY\\u0001a\\u0002UNIQ_KEY\\u0001KEY\\u0002",
        "p\\u0001LONG\\u0002UNIQ_KEY\\u0001KEY\\u0002",
    ],
)


@st.composite
def alike_reads(draw: st.DrawFn) -> tuple[str, int, bytes]:
    """Sends of one piece whose headers are alike but for their values, and now and then in one byte more."""
    is_odd = not draw(st.integers(0, 4))
    mould = draw(st.sampled_from(ODD_MOULDS if is_odd else MOULDS))
    mould = mould.replace("PROPERTIES", draw(ALIKE_PROPERTIES)).replace("LONG", "v" * 32_600)
    pieces = []
    for number in range(draw(st.integers(3, 12))):
        values = {
            "QUEUE": draw(QUEUE_TEXTS),
            "BORN": draw(BORN_TEXTS),
            "KEY\\": draw(KEY_TEXTS) + "\\",
            "OPAQUE": draw(OPAQUE_TEXTS) or str(number),
        }
        text = mould
        for name, value in values.items():
            before, found, after = text.rpartition(name)
            text = before + value + after if found else text
        header = bytearray(text.encode())
        if not draw(st.integers(0, 19)):
            header[draw(st.integers(0, len(header) - 1))] = draw(st.integers(32, 126))
        bodies = [b"one", b"two", b"x" * 300] * 4 + [b"", b"y" * BODY_BYTES_MAX, b"y" * 601]
        pieces.append(encode_frame(bytes(header), draw(st.sampled_from(bodies))))
    return "read", draw(st.integers(0, 2)), b"".join(pieces)


def cut(data: bytes) -> list[bytes]:
    """The frames of a read."""
    pieces, at = [], 0
    while at < len(data):
        end = at + 4 + struct.unpack_from(">i", data, at)[0]
        pieces.append(data[at:end])
        at = end
    return pieces


@st.composite
def reads_of_several(draw: st.DrawFn) -> tuple[str, int, bytes]:
    """One frame each of several connections, of one kind or of two in turn."""
    _, _, one = draw(st.one_of(reads(), alike_reads(), alike_reads()))
    _, _, other = draw(alike_reads())
    if draw(st.booleans()):
        return "together", 0, one
    pairs = zip_longest(cut(one), cut(other), fillvalue=b"")
    return "together", 0, b"".join(piece for pair in pairs for piece in pair)


STEPS = st.one_of(
    reads(),
    reads(),
    alike_reads(),
    alike_reads(),
    reads_of_several(),
    reads_of_several(),
    st.sampled_from(
        [
            ("flush", 0, b""),
            ("commit", 0, b""),
            ("commit", 0, b""),
            ("refuse", 0, b""),
            ("lose", 0, b""),
            ("depose", 0, b""),
            ("lead", 0, b""),
            ("route", 0, b""),
            ("close", 1, b""),
            ("go", 2, b""),
        ]
    ),
)


def plain(opaque: int, key: str, *, body: bytes = b"one", **odd: str | None) -> bytes:
    """One frame with a plain send, but for what is odd."""
    fields = {**USUAL, "a": "P", "i": f"UNIQ_KEY\x01{key}\x02TAGS\x01red\x02", **odd}
    ext = {name: value for name, value in fields.items() if value is not None}
    header = {"code": 310, "flag": 0, "opaque": opaque, "version": 409, "extFields": ext}
    return encode_frame(json.dumps(header, separators=COMPACT).encode(), body)


FIRST = (("read", 0, plain(99, "first") + plain(99, "second", b="M")), ("commit", 0, b""))
"""Topics pass once before sends to them are plain."""


def carry_out(leader: TwinLeader, what: str, number: int, data: bytes) -> None:
    """Do one step with one of the twins."""
    is_leading = leader.log.is_serving
    origin = leader.origins[number]
    match what:
        case "read" if not origin.is_closed:
            try:
                leader.read(number, data)
            except FrameError:
                origin.is_closed = origin.is_gone = True
        case "together":
            leader.read_together(data)
        case "flush" if is_leading:
            leader.commits.flush()
        case "commit" if is_leading:
            leader.commit()
        case "refuse" if is_leading:
            leader.log.refuses = True
            leader.commits.flush()
            leader.log.refuses = False
        case "lose" | "depose" if is_leading:
            leader.depose(is_unknown=what == "lose")
        case "lead" if not is_leading:
            leader.begin_term()
        case "route":
            leader.take_routes()
        case "close":
            origin.is_closed = origin.is_gone = True
        case "go":
            origin.is_gone = True


def twins() -> tuple[TwinLeader, TwinLeader]:
    """One with the lane, and one that does the same in the same order without it."""
    fast, ordinary = TwinLeader(has_lane=True), TwinLeader(has_lane=False)
    ordinary.ahead = fast
    return fast, ordinary


def run_both(steps: Sequence[tuple[str, int, bytes]]) -> TwinLeader:
    """Do all steps with both, and compare after each; return the one with the lane."""
    fast, ordinary = twins()
    for step in (*FIRST, *steps, ("lead", 0, b""), ("route", 0, b""), *[("commit", 0, b"")] * 9):
        carry_out(fast, *step)
        carry_out(ordinary, *step)
        assert fast.seen() == ordinary.seen(), step[0]
    assert fast.commits.is_idle
    assert not fast.seen()["in flight"]
    return fast


@pytest.mark.slow
@given(st.lists(STEPS, min_size=5, max_size=14))
@settings(max_examples=150, deadline=None, phases=[Phase.generate])
def test_both_ways_do_the_same(steps: list[tuple[str, int, bytes]]) -> None:
    run_both(steps)


@pytest.mark.parametrize(
    "odd", [*ODD, *({"i": f"UNIQ_KEY\x01odd\x02{each}"} for each in ODD_EXTRAS)]
)
def test_a_send_that_is_odd_among_plain_ones(odd: dict[str, str | None]) -> None:
    """Once, again while it is in flight, after its commit, and under the next leader."""
    pieces = [plain(0, "k0"), plain(1, "k1"), plain(2, "odd", **odd), plain(3, "k3")]
    read = ("read", 0, b"".join(pieces))
    steps = [read, ("flush", 0, b""), read, ("commit", 0, b""), read, ("lose", 0, b"")]
    steps += [("lead", 0, b""), read, ("commit", 0, b""), ("depose", 0, b""), ("lead", 0, b"")]
    fast = run_both([*steps, read])
    answered = opaques(fast.origins[0].sent)
    assert {answered.count(number) for number in (0, 1, 3)} == {5}


def test_sends_to_a_topic_that_is_new_are_answered_once_it_is_known() -> None:
    """The first creates it, the second passes its checks, the others are plain."""
    pieces = [plain(number, f"k{number}", b="New") for number in range(5)]
    steps = [("read", 0, b"".join(pieces)), ("flush", 0, b""), ("commit", 0, b"")]
    fast, ordinary = twins()
    for step in steps:
        carry_out(fast, *step)
        carry_out(ordinary, *step)
    assert fast.seen() == ordinary.seen()
    assert fast.origins[0].sent == b""
    run_both([*steps, ("route", 0, b"")])


def opaques(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        found.append(json.loads(data[at + 8 : at + 4 + length])["opaque"])
        at += 4 + length
    return found


def test_a_burst_that_one_entry_does_not_take_is_divided_as_its_sends_would_be() -> None:
    burst = b"".join(plain(number, f"k{number}", body=b"x" * 500) for number in range(1, 9))
    fast = run_both([("read", 0, burst)])
    assert opaques(fast.origins[0].sent) == [99, 99, *range(1, 9)]
    assert [entry.body.count(b"x" * 500) for entry in fast.log.entries][-4:] == [2, 2, 2, 2]


def test_a_send_in_flight_that_is_divided_off_is_joined_by_its_repeat() -> None:
    first = b"".join(plain(number, f"k{number}", body=b"x" * 500) for number in range(6))
    again = plain(9, "k4", body=b"x" * 500)
    fast = run_both(
        [
            ("read", 0, first),
            ("flush", 0, b""),
            ("read", 1, again),
            ("flush", 0, b""),
        ]
    )
    assert opaques(fast.origins[1].sent) == [9]
    assert sum(entry.body.count(b"x" * 500) for entry in fast.log.entries) == 6


def test_sends_of_several_connections_are_divided_and_joined_as_those_of_one() -> None:
    """An entry takes two, one client is gone, another sends again what is in flight, and the next leader goes on."""
    together = b"".join(plain(number, f"k{number}", body=b"x" * 500) for number in range(6))
    again = plain(9, "k4", body=b"x" * 500)
    steps = [("together", 0, together), ("flush", 0, b""), ("go", 2, b""), ("read", 1, again)]
    fast = run_both([*steps, ("commit", 0, b"")])
    assert opaques(fast.origins[0].sent) == [99, 99, 0]
    assert opaques(fast.origins[1].sent) == [1, 9]
    assert [opaques(fast.origins[number].sent) for number in range(2, 6)] == [[2], [3], [4], [5]]
    for lost in ("lose", "depose"):
        fast = run_both([*steps, (lost, 0, b""), ("lead", 0, b"")])
        assert opaques(fast.origins[5].sent) == [5]


def test_sends_of_several_kinds_are_taken_together() -> None:
    """Once a pattern of each is known: before, one that is new ends it."""
    pieces = [plain(number, f"k{number}", b="TM"[number % 2]) for number in range(8)]
    first, second = [b"".join(pieces[:4] * 2), b"".join(pieces)]
    steps = [("together", 0, first), ("commit", 0, b"")]
    fast, ordinary = twins()
    for step in (*FIRST, *steps, ("together", 0, second)):
        carry_out(fast, *step)
        carry_out(ordinary, *step)
    assert fast.seen() == ordinary.seen()
    run_both([*steps, ("together", 0, second)])


@pytest.mark.parametrize("what", ["read", "together"])
def test_a_key_that_comes_twice_at_once_is_a_repeat(what: str) -> None:
    pieces = [plain(number, f"k{number % 4}") for number in range(6)]
    fast = run_both([(what, 0, b"".join(pieces)), ("commit", 0, b"")])
    assert [
        sum(entry.body.count(b"k%d" % key) for entry in fast.log.entries) for key in range(4)
    ] == [1] * 4


@pytest.mark.parametrize("staged_count", [18, 20])
def test_no_more_sends_of_several_connections_are_taken_than_there_is_room_for(
    staged_count: int,
) -> None:
    """The others are refused, whatever their kind."""
    pieces = [plain(number, f"k{number}", b="TM"[number % 2]) for number in range(10)]
    known = [("together", 0, b"".join(pieces[at:])) for at in (0, 1)]
    staged = b"".join(plain(number, f"s{number}") for number in range(staged_count))
    again = [piece.replace(b"k", b"m") for piece in pieces]
    steps = [*known, *[("commit", 0, b"")] * 3, ("read", 12, staged)]
    fast, ordinary = twins()
    for step in (*FIRST, *steps):
        carry_out(fast, *step)
        carry_out(ordinary, *step)
    room = fast.commits.room[0]
    assert 0 < room < len(again)
    for leader in (fast, ordinary):
        leader.read_together(b"".join(again))
        assert leader.commits.room[0] <= 0
    assert fast.seen() == ordinary.seen()


def frames_in(*pieces: bytes) -> list[Frame]:
    decoder = FrameDecoder()
    decoder.feed(b"".join(pieces))
    return decoder.frames()


def test_what_may_ask_for_a_reply_or_has_to_be_admitted_goes_the_ordinary_way() -> None:
    """Somebody looks at each of these."""
    leader = TwinLeader(has_lane=True)
    for step in FIRST:
        carry_out(leader, *step)
    reply = "UNIQ_KEY\x01r{}\x02REPLY_TO_CLIENT\x01me\x02"
    asked = frames_in(*(plain(number, "", i=reply.format(number)) for number in range(5)))
    usual = frames_in(*(plain(number, f"k{number}") for number in range(5)))
    origins: list[Any] = leader.origins[:5]
    assert leader.dispatch.handle_together(origins, asked) == ()
    assert leader.dispatch.handle_together(origins, usual[:3]) == ()
    leader.dispatch.guard = AccessGuard(AccessRules())
    assert leader.dispatch.handle_together(origins, usual) == ()
    leader.dispatch.guard = None
    mixed = [usual[0], asked[1], *usual[2:]]
    assert leader.dispatch.handle_together(origins, mixed) == [0, 2, 3, 4]


def test_what_is_not_plain_keeps_its_turn() -> None:
    pieces = [plain(number, f"k{number}") for number in range(7)]
    pieces[3] = plain(3, "k3", i="TAGS\x01no key\x02")
    fast = run_both([("read", 0, b"".join(pieces))])
    assert opaques(fast.origins[0].sent) == [99, 99, *range(7)]


def test_a_burst_is_refused_where_its_sends_would_be() -> None:
    burst = b"".join(plain(number, f"k{number}") for number in range(30))
    fast = run_both([("read", 0, burst)])
    answered = opaques(fast.origins[0].sent)[2:]
    assert sorted(answered) == list(range(30))
    assert answered[0] > 1, "those for which there is no room are answered first"


def test_a_burst_without_a_leader_is_carried_out_by_the_next() -> None:
    burst = b"".join(plain(number, f"k{number}") for number in range(3))
    fast = run_both(
        [
            ("read", 0, burst),
            ("depose", 0, b""),
            ("lead", 0, b""),
        ]
    )
    assert opaques(fast.origins[0].sent) == [99, 99, 0, 1, 2]

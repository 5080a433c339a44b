"""The pattern of a send's header, and the sends that compiled code reads by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.store.entry_bodies import QueueEnd
from dledger_mq.message import compiled
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.requests import SendRequest, decode_request
from dledger_mq.remoting.send_patterns import SendPattern
from tests.stages import needs_compiled, stage
from tests.unit.store.lone_broker import BORN

HEADER = (
    b'{"code":310,"extFields":{"a":"P","b":"T","e":"3","f":"0","g":"1000","h":"0",'
    b'"i":"UNIQ_KEY\\u0001key\\u0002TAGS\\u0001red\\u0002"},"flag":0,"opaque":7}'
)
SHAPE = (b"UNIQ_KEY\x01", b"\x02end\x02", 5, None)
END = QueueEnd((b"T", 3), 0)  # type: ignore[arg-type]


def pattern_of(header: bytes) -> SendPattern | None:
    request = decode_request(Frame(0, header, b"body"))
    assert isinstance(request, SendRequest)
    return SendPattern.of(header, request)


def test_a_header_is_its_values_and_the_bytes_around_them() -> None:
    pattern = pattern_of(HEADER)
    assert pattern is not None
    assert pattern.order == b"qbko"
    assert b"|".join(pattern.segments) == HEADER.replace(b'"3"', b'"|"').replace(
        b"1000", b"|"
    ).replace(b"key", b"|").replace(b":7}", b":|}")
    assert (pattern.before, pattern.rest) == (b"", b"TAGS\x01red\x02")


def test_values_may_stand_in_any_order() -> None:
    header = (
        b'{"opaque":7,"code":310,"extFields":{"i":"a\\u00011\\u0002UNIQ_KEY\\u0001key\\u0002","h":"0","g":"1000",'
        b'"f":"0","e":"3","b":"T","a":"P"},"flag":0}'
    )
    pattern = pattern_of(header)
    assert pattern is not None
    assert pattern.order == b"okbq"
    assert (pattern.before, pattern.rest) == (b"a\x011\x02", b"")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"a":"P"', b'"a":"e"'),
        (b'"a":"P"', b'"a":"UNIQ_KEY"'),
        (b'"a":"P"', b'"a":"p\\u0041"'),
        (b'"e":"3"', b'"e":"3","\\u0065":"3"'),
        (b'"e":"3"', b'"e":3'),
        (b'"e":"3"', b'"e":"-3"'),
        (b'"flag":0', b'"flag":0,"e":"3"'),
        (b'"g":"1000"', b'"g" :"1000"'),
        (b":7}", b":7.0}"),
        (b":7}", b": 7}"),
        (b"key\\u0002", b""),
        (b"UNIQ_KEY\\u0001key\\u0002", b""),
        (b"UNIQ_KEY", b"UNIQ\\u005fKEY"),
        (b"UNIQ_KEY", b"xUNIQ_KEY"),
        (b"TAGS", b"UNIQ_KEY"),
        (b"310", b"10"),
        (b"310", b"320"),
    ],
    ids=bytes.decode,
)
def test_where_anything_could_be_taken_for_a_value_there_is_no_pattern(
    before: bytes, after: bytes
) -> None:
    assert HEADER.count(before) == 1
    header = HEADER.replace(before, after)
    if after == b"10":  # which has long names
        for letter, name in zip(b"abefghi", LONG_NAMES, strict=True):
            header = header.replace(b'"%c":' % letter, b'"%b":' % name)
    assert pattern_of(header) is None


LONG_NAMES = b"producerGroup topic queueId sysFlag bornTimestamp flag properties".split()


def kind_of(header: bytes = HEADER, *, sys_flag: int = 1) -> compiled.SentKind:
    pattern = pattern_of(header)
    assert pattern is not None
    return (pattern.segments, pattern.order, SHAPE, {3: END, 4: None}, sys_flag, 2, 50)


def read(frames: Any, first: int = 0, **changed: Any) -> compiled.SentColumns | None:
    arguments: dict[str, Any] = {
        "frames": frames,
        "first": first,
        "kinds": (kind_of(),),
        "born_hosts": BORN,
        "count_max": 100,
        "header_bytes_max": 1000,
        "body_bytes_max": 1000,
        "room_bytes": 10_000,
        "size_bytes": 0,
    }
    with stage(is_compiled=True):
        return compiled.read_sends(*(arguments | changed).values())


def frame(key: bytes = b"key", *, header: bytes = HEADER, body: bytes = b"body") -> Frame:
    return Frame(0, header.replace(b"key", key), body)


@needs_compiled
def test_sends_are_read_in_columns() -> None:
    found = read([frame(b"k0"), frame(b"k1"), frame(b"k-2")], 1)
    assert found is not None
    messages, ends, keys, opaques = found
    assert (keys, opaques, ends) == ([b"k1", b"k-2"], [7, 7], [70, 141])
    assert messages[1] == (
        END,
        b"body",
        b"UNIQ_KEY\x01k-2\x02end\x02",
        1,
        1000,
        BORN,
        2,
        0,
        0,
        (5, b"k-2", None),
    )


OTHER_HEADER = HEADER.replace(b'"flag":0', b'"flag":0,"version":9')


@needs_compiled
def test_sends_of_several_kinds_and_clients_are_read_in_their_order() -> None:
    """The bytes that were taken before count."""
    kinds = (kind_of(), kind_of(OTHER_HEADER, sys_flag=8))
    found = read(
        [frame(header=HEADER), frame(header=OTHER_HEADER), frame(header=HEADER)],
        kinds=kinds,
        born_hosts=[b"host-" + bytes([number]) * 3 for number in range(3)],
        size_bytes=1000,
    )
    assert found is not None
    assert [(message[3], message[5][5:]) for message in found[0]] == [
        (1, b"\0\0\0"),
        (8, b"\1\1\1"),
        (1, b"\2\2\2"),
    ]
    assert found[1] == [1071, 1142, 1213]
    full = read([frame(), frame()], size_bytes=10_000)
    assert full is not None
    assert full[2] == []


@needs_compiled
def test_no_kind_takes_nothing_and_too_many_are_declined() -> None:
    none = read([frame()], kinds=())
    assert none is not None
    assert none[0] == []
    assert read([frame()], kinds=(kind_of(OTHER_HEADER),) * 63 + (kind_of(),)) is not None
    assert read([frame()], kinds=(kind_of(),) * 65) is None


@needs_compiled
def test_a_missing_born_host_is_an_error() -> None:
    with pytest.raises(IndexError):
        read([frame(), frame()], born_hosts=[BORN])


ODD_FRAMES: list[tuple[Frame, dict[str, Any]]] = [
    (frame(b"k\\u00e9"), {}),
    (frame(b""), {}),
    (frame(b"\x7f"), {}),
    (frame("\u00e9".encode()), {}),
    (Frame(1, HEADER, b"body"), {}),
    (frame(body=b""), {}),
    (frame(body=b"x" * 1001), {}),
    (frame(header=HEADER[:-1]), {}),
    (frame(header=HEADER + b" "), {}),
    (frame(header=HEADER.replace(b":7}", b":07}")), {}),
    (frame(header=HEADER.replace(b":7}", b":2147483648}")), {}),
    (frame(header=HEADER.replace(b'"3"', b'"4"')), {}),
    (frame(header=HEADER.replace(b'"3"', b'"03"')), {}),
    (frame(header=HEADER.replace(b'"3"', b'"1234567890"')), {}),
    (frame(header=HEADER.replace(b"1000", b"1" * 19)), {}),
    (frame(), {"count_max": 1}),
    (frame(), {"room_bytes": 70}),
    (frame(b"k" * 32_800), {"header_bytes_max": 100_000}),
    (frame(b"k" * 1000), {}),
]


@needs_compiled
@pytest.mark.parametrize(("odd", "changed"), ODD_FRAMES)
def test_sends_are_read_up_to_the_first_that_is_odd(odd: Frame, changed: dict[str, Any]) -> None:
    found = read([frame(), odd, frame()], **changed)
    assert found is not None
    assert found[2] == [b"key"]


@needs_compiled
def test_the_least_and_the_most_are_read() -> None:
    header = HEADER.replace(b":7}", b":2147483647}").replace(b"1000", b"1" * 18)
    most = frame(b" ~", header=header, body=b"x" * 1000)
    least = frame(b"k", header=HEADER.replace(b":7}", b":0}").replace(b"1000", b"0"), body=b"x")
    found = read([most, least])
    assert found is not None
    assert [message[4] for message in found[0]] == [int("1" * 18), 0]
    assert found[3] == [2147483647, 0]


@needs_compiled
@pytest.mark.parametrize(
    "changed",
    [
        {"frames": ()},
        {"first": -1},
        {"born_hosts": None},
        *(
            {"kinds": ((*kind_of()[:at], part, *kind_of()[at + 1 :]),)}
            for at, part in (
                (0, ()),
                (0, (b"",) * 4 + (None,)),
                (1, b"oqb"),
                (1, b"oqbb"),
                (2, (b"",)),
                (2, ("", b"", 1, None)),
                (6, -1),
            )
        ),
        {"kinds": (kind_of()[:-1],)},
        {"kinds": (5,)},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_what_is_asked_wrongly_is_declined(changed: dict[str, Any]) -> None:
    assert read(**({"frames": [frame()]} | changed)) is None


def failing(_queue: int) -> Any:
    raise ZeroDivisionError


class Failing(dict[int, Any]):
    __missing__ = lambda _self, queue: failing(queue)  # noqa: E731  # as short as its answer


FAILURES: dict[str, Callable[[], dict[str, Any]]] = {
    "a queue fails": lambda: {
        "frames": [frame()],
        "kinds": ((*kind_of()[:3], Failing(), 1, 2, 50),),
    },
    "no frame": lambda: {"frames": [frame(), 5]},
}


@needs_compiled
@pytest.mark.parametrize("name", FAILURES)
def test_what_fails_in_between_is_raised(name: str) -> None:
    with pytest.raises((ZeroDivisionError, AttributeError)):
        read(**FAILURES[name]())

"""The connections of clients as the services see them: their addresses, whether they are there, what is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.server.requests.origin import ClientOrigin, Outputs, host_field


@pytest.mark.parametrize(
    ("address", "field"),
    [
        ("127.0.0.1:10911", bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))),
        ("[::1]:1", bytes(15) + b"\x01" + b"\x00\x00\x00\x01"),
        ("somewhere:1", bytes(8)),
        ("nonsense", bytes(8)),
    ],
)
def test_host_fields(address: str, field: bytes) -> None:
    assert host_field(address) == field


class Wire:
    """A connection; `asked` counts how often its end was asked for."""

    peer = "1.2.3.4:5"

    def __init__(self) -> None:
        self.is_closed = False
        self.asked = 0
        self.sent: list[bytes] = []

    @property
    def has_ended(self) -> bool:
        self.asked += 1
        return self.is_closed

    def send_many(self, pieces: list[bytes]) -> None:
        self.sent.append(b"".join(pieces))

    def send_pieces(self, pieces: list[bytes]) -> None:
        self.sent.append(b"in pieces: " + b"".join(pieces))


def origins(outputs: Outputs, count: int) -> tuple[list[Wire], list[ClientOrigin]]:
    wires = [Wire() for _ in range(count)]
    return wires, [ClientOrigin(cast("Any", wire), outputs) for wire in wires]


def test_whether_connections_are_there_is_asked_once_for_all_that_is_written_together() -> None:
    asked = SimpleNamespace(count=0, some_ended=False)

    def may_have_ended() -> bool:
        asked.count += 1
        return bool(asked.some_ended)

    outputs = Outputs()
    outputs.may_have_ended = may_have_ended
    wires, both = origins(outputs, 2)
    assert [origin.is_gone for origin in both] == [False, False]
    wires[0].is_closed = True
    assert [origin.is_gone for origin in both] == [True, False]
    assert (asked.count, wires[1].asked) == (1, 0)
    asked.some_ended = True
    outputs.flush()
    assert [origin.is_gone for origin in both] == [True, False]
    assert (asked.count, wires[1].asked) == (3, 1)


def test_several_connections_are_written_to_together_each_with_all_that_it_gets() -> None:
    written: list[tuple[list[Any], list[bytes]]] = []
    outputs = Outputs()
    outputs.send_each = lambda connections, texts: written.append((list(connections), texts))
    wires, five = origins(outputs, 5)
    for number, origin in enumerate(five):
        origin.send(b"%d" % number)
    five[1].send(b"more")
    five[2].send_pieces([b"in", b"two"])
    outputs.flush()
    assert written == [([wires[0], wires[1], wires[3], wires[4]], [b"0", b"1more", b"3", b"4"])]
    assert wires[2].sent == [b"in pieces: 2intwo"]
    five[0].send(b"alone")
    outputs.flush()
    assert wires[0].sent == [b"alone"]
    assert len(written) == 1
    outputs.flush()
    assert [wire.sent for wire in wires[3:]] == [[], []]

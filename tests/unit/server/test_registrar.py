"""What a node says to one name server: one request is outstanding at a time."""

from __future__ import annotations

from typing import cast

import trio
import trio.testing

from broker.server.registrar import _NameServer
from dledger_mq.net.address import Address
from dledger_mq.net.connection import Connection
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.header import encode_command, make_response


class Wire:
    """A connection whose other end is the test."""

    is_closed = False

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self._give, self._take = trio.open_memory_channel[list[Frame]](8)

    def send_nowait(self, frame: bytes) -> None:
        self.sent.append(frame)

    async def receive(self) -> list[Frame]:
        return await self._take.receive()

    def answer(self, opaque: int, remark: str) -> None:
        decoder = FrameDecoder()
        decoder.feed(encode_command(make_response(opaque, 0, remark)))
        self._give.send_nowait(list(decoder.frames()))

    def end(self) -> None:
        self._give.send_nowait([])

    def close(self, _reason: str) -> None:
        self.is_closed = True


async def test_leaving_waits_for_the_answer_to_a_registration(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def judge(_: object) -> None:
        raise AssertionError("nothing is to be judged")

    wire = Wire()
    server = _NameServer(Address("127.0.0.1", 1), lambda *_: b"", judge, lambda *_: None)
    server._connection = cast("Connection", wire)
    remarks: dict[bytes, str | None] = {}

    async def ask(what: bytes) -> None:
        answer = await server.ask(lambda opaque: b"%s %d" % (what, opaque))
        remarks[what] = None if answer is None else answer.remark

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server._receive, server._connection)
        nursery.start_soon(ask, b"register")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, b"leave")
        await trio.testing.wait_all_tasks_blocked()
        assert wire.sent == [b"register 1"]
        wire.answer(0, "to nothing that was asked")
        wire.answer(1, "registered")
        await trio.testing.wait_all_tasks_blocked()
        assert wire.sent == [b"register 1", b"leave 2"]
        wire.answer(1, "late")
        wire.answer(2, "left")
        await trio.testing.wait_all_tasks_blocked()
        wire.end()
    assert remarks == {b"register": "registered", b"leave": "left"}

"""What a node says to one name server: one request is outstanding at a time."""

from __future__ import annotations

from typing import cast

import pytest
import trio
import trio.testing

from broker.server import registrar
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
    server = _NameServer(
        Address("127.0.0.1", 1),
        lambda *_: b"",
        judge,
        lambda *_: None,
        is_leading=lambda: True,
        is_member=lambda: True,
        tried=lambda: None,
    )
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


async def judge_nothing(_: object) -> None:
    raise AssertionError("nothing is to be judged")


class Registered:
    """What one node registers with one name server."""

    def __init__(self) -> None:
        self.is_leading = self.is_member = True
        self.tries = 0
        self.wire = Wire()
        self.server = _NameServer(
            Address("127.0.0.1", 1),
            lambda opaque, *_: b"register %d" % opaque,
            judge_nothing,
            lambda *_: None,
            is_leading=lambda: self.is_leading,
            is_member=lambda: self.is_member,
            tried=self._tried,
        )
        self.server._connection = cast("Connection", self.wire)

    def _tried(self) -> None:
        self.tries += 1

    async def answer(self, opaque: int) -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert self.wire.sent[-1] == b"register %d" % opaque
        self.wire.answer(opaque, "registered")
        await trio.testing.wait_all_tasks_blocked()


async def test_only_what_a_leader_registers_after_the_call_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Registered()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.server._receive, cast("Connection", node.wire))
        nursery.start_soon(node.server.run, 30.0)
        await trio.testing.wait_all_tasks_blocked()
        wanted = node.server.next_number
        node.server.wake(urgent=True)
        await node.answer(1)
        assert (node.tries, node.server.has_taken(wanted)) == (1, False), "it began before"
        node.is_leading = False
        node.server.wake(urgent=True)
        await node.answer(2)
        node.is_leading = True
        node.server.wake(urgent=True)
        await node.answer(3)
        assert node.server.has_taken(wanted), "what was built while it led"
        nursery.cancel_scope.cancel()


async def test_who_is_no_member_registers_nowhere_until_it_is_one_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Registered()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.server._receive, cast("Connection", node.wire))
        nursery.start_soon(node.server.run, 30.0)
        await node.answer(1)
        node.is_member = False
        node.server.wake(urgent=True)
        await trio.testing.wait_all_tasks_blocked()
        assert node.wire.is_closed, "the name server takes it out of the routes"
        assert len(node.wire.sent) == 1
        node.wire = Wire()
        node.server._connection = cast("Connection", node.wire)
        nursery.start_soon(node.server._receive, cast("Connection", node.wire))
        node.is_member = True
        node.server.wake(urgent=True)
        await node.answer(2)
        nursery.cancel_scope.cancel()


async def test_who_leads_no_more_is_not_taken_for_a_route(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Registered()
    node.is_leading = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.server._receive, cast("Connection", node.wire))
        nursery.start_soon(node.server.run, 30.0)
        await node.answer(1)
        assert (node.tries, node.server.has_taken(1)) == (1, False)
        nursery.cancel_scope.cancel()


async def test_a_name_server_that_does_not_answer_is_not_waited_for_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Registered()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.server._receive, cast("Connection", node.wire))
        nursery.start_soon(node.server.run, 30.0)
        await trio.testing.wait_all_tasks_blocked()
        assert not node.server.has_taken(1)
        await trio.sleep(10)
        assert node.tries > 1
        assert node.server.has_taken(node.server.next_number)
        nursery.cancel_scope.cancel()


async def test_nothing_is_registered_after_leaving(autojump_clock: trio.testing.MockClock) -> None:
    node = Registered()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.server._receive, cast("Connection", node.wire))
        nursery.start_soon(node.server.run, 30.0)
        await node.answer(1)
        nursery.start_soon(node.server.leave, lambda opaque: b"leave %d" % opaque)
        await trio.testing.wait_all_tasks_blocked()
        node.server.wake(urgent=True)
        await trio.sleep(60)
        assert node.wire.sent == [b"register 1", b"leave 2"]
        nursery.cancel_scope.cancel()


async def test_a_stop_while_a_name_server_is_being_reached_registers_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Registered()
    node.server._connection = None

    async def reach(*_: object, **__: object) -> Wire:
        await trio.sleep(0.1)
        return node.wire

    monkeypatch.setattr(registrar, "connect", reach)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.server.run, 30.0)
        await trio.testing.wait_all_tasks_blocked()
        await node.server.leave(lambda opaque: b"leave %d" % opaque)
        await trio.sleep(60)
        assert not node.wire.sent
        nursery.cancel_scope.cancel()

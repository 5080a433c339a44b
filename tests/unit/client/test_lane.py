"""A lane by itself, over a connection that only notes what is sent on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import msgspec
import pytest

from dledger_mq import Message, MessageQueue
from dledger_mq.client import lane as lanes
from dledger_mq.client.errors import ConnectionLostError, SendRefusedError
from dledger_mq.client.lane import Lane, PendingSend
from dledger_mq.client.send_frames import decode_answer
from dledger_mq.client.send_notes import SendNote
from dledger_mq.net.loop import current_loop
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import FLAG_RESPONSE
from tests.unit.client.test_push_consumer import until

pytestmark = pytest.mark.anyio


class NotingWire:
    """Notes the bytes; frames come from the test."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.send_nowait = self.sent.append
        self.receive: Callable[[list[Frame]], None] | None = None

    async def serve(self, on_frames: Callable[[list[Frame]], None]) -> None:
        self.receive = on_frames
        await anyio.sleep_forever()

    def close(self) -> None:
        """There is nothing to close."""


class SlowFinder:
    """Knows one node, and does not hear of another one."""

    def __init__(self) -> None:
        self.is_asking = False

    async def find(self, broker_name: str, *, ask: bool) -> str | None:
        if ask:
            self.is_asking = True
            await anyio.sleep_forever()
        return "here:1"

    def report_failure(self, broker_name: str, address: str) -> None:
        """It stays the only one."""


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> NotingWire:
    one = NotingWire()

    async def open_it(*_: object, **_options: object) -> NotingWire:
        return one

    monkeypatch.setattr(lanes, "open_wire", open_it)
    return one


def pending(number: int) -> PendingSend:
    deadline = current_loop().now() + 30.0
    return PendingSend(MessageQueue("T", "b", 0), f"K{number}", b"%d" % number, number, deadline)


def frame(opaque: int, flag: int) -> Frame:
    header = {"code": 0, "opaque": opaque, "flag": flag, "extFields": {"queueOffset": "7"}}
    return Frame(0, msgspec.json.encode(header), b"")


def ignore(ended: Sequence[PendingSend]) -> None:
    """Nobody counts these sends."""


async def test_a_send_does_not_wait_for_name_servers_that_are_asked_about_a_silent_node(
    wire: NotingWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "QUIET_S", 0.001)
    finder = SlowFinder()
    lane = Lane("b", finder, ignore, current_loop())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lane.run)
        lane.submit(pending(1), at_once=True)
        await until(lambda: finder.is_asking)
        lane.submit(pending(2), at_once=True)
        await until(lambda: wire.sent == [b"1", b"2"])
        tasks.cancel_scope.cancel()


async def test_a_request_of_the_broker_is_no_answer_to_the_send_that_has_its_number(
    wire: NotingWire,
) -> None:
    lane = Lane("b", SlowFinder(), ignore, current_loop())
    send = pending(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lane.run)
        lane.submit(send, at_once=True)
        await until(lambda: wire.sent == [b"1"] and wire.receive)
        assert wire.receive is not None
        wire.receive([frame(1, flag=0)])
        wire.receive([frame(1, FLAG_RESPONSE)])
        assert send.result is not None
        assert send.result.queue_offset == 7
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":0,"opaque":1,"remark":"\xff"}',
        b'{"code":0,"opaque":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"no JSON",
    ],
    ids=["not UTF-8", "deep", "no JSON"],
)
def test_an_answer_that_cannot_be_read_is_a_lost_connection(header: bytes) -> None:
    with pytest.raises(ConnectionLostError, match="cannot be read"):
        decode_answer(Frame(0, header, b""))


@pytest.mark.parametrize("region", [b'"\xff"', b"5"], ids=["not UTF-8", "no text"])
async def test_a_traced_send_whose_answer_cannot_be_noted_is_in_flight_still(
    wire: NotingWire, region: bytes
) -> None:
    lane = Lane("b", SlowFinder(), ignore, current_loop())
    send = pending(1)
    send.note = SendNote((Message("T", b"x"),), 0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lane.run)
        lane.submit(send)
        await until(lambda: bool(wire.sent and wire.receive))
        header = b'{"code":0,"opaque":1,"flag":1,"extFields":{"MSG_REGION":%b}}' % region
        assert wire.receive is not None
        with pytest.raises(ConnectionLostError, match="cannot be read"):
            wire.receive([Frame(0, header, b"")])
        assert lane.pending_count == 1
        tasks.cancel_scope.cancel()
    assert send.is_done


async def test_a_lane_that_has_ended_refuses_what_comes_later(wire: NotingWire) -> None:
    lane = Lane("b", SlowFinder(), ignore, current_loop())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lane.run)
        lane.submit(pending(1))
        await until(lambda: wire.sent)
        tasks.cancel_scope.cancel()
    late = pending(2)
    lane.submit(late)
    with anyio.fail_after(30), pytest.raises(SendRefusedError, match="closed"):
        await late.wait()

"""What is on its way to the leader is bounded in bytes."""

from __future__ import annotations

from typing import Any

from broker.server.links.link import SMALL_BYTES, LeaderConnection, LeaderLink
from broker.server.links.private_codes import PrivateCode
from dledger_mq.net.frame_socket import UNSENT_BYTES_MAX
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import decode_command, encode_command, make_request, make_response


class FakeLog:
    leader_id = "n1"


class FakeConnection:
    unsent_bytes = 0

    def __init__(self) -> None:
        self.codes: list[int] = []

    def send_nowait(self, data: bytes) -> None:
        """It is gone; `codes` keeps what it asks."""
        decoder = FrameDecoder()
        decoder.feed(data)
        self.codes += [decode_command(frame).code for frame in decoder.frames()]


class Waiter:
    def answered(self, response: Any) -> None:
        """Nothing follows."""

    def broken(self, reason: str) -> None:
        """Nothing follows."""


def test_large_requests_wait_for_room_and_small_ones_have_more() -> None:
    link = LeaderLink(
        FakeLog(),  # type: ignore[arg-type]  # the part of a LogServer that is used here
        secret=None,
        asked_max=4,
        asked_bytes_max=100_000,
        now_ms=lambda: 0,
    )
    assert link.has_room(10**9), "there is nothing to fill yet"
    connection = FakeConnection()
    one = LeaderConnection("n1", connection)  # type: ignore[arg-type]  # the part of a connection that is used here
    link.opened(one)
    assert link.has_room(10**9), "one alone always has room"

    def ask(size_bytes: int) -> None:
        assert link.ask(7, Waiter(), ext={}, body=bytes(size_bytes), timeout_ms=1)

    ask(60_000)
    assert link.has_room(40_000)
    assert not link.has_room(40_001)
    ask(40_000)
    assert link.has_room(SMALL_BYTES)
    one.answered(make_response(1, 0))
    assert link.has_room(60_000)
    link.expire(10)
    assert link.has_room(10**9)

    connection.unsent_bytes = UNSENT_BYTES_MAX
    assert not link.has_room(1), "what wants no answer fills it, too"
    connection.unsent_bytes = 1
    for _ in range(4):
        ask(1)
    assert not link.has_room(1)


def test_who_wants_to_know_is_told() -> None:
    link = LeaderLink(
        FakeLog(),  # type: ignore[arg-type]  # the part of a LogServer that is used here
        secret=None,
        asked_max=4,
        asked_bytes_max=100_000,
        now_ms=lambda: 0,
    )
    heard: list[str] = []
    link.watch(opened=lambda: heard.append("opened"), settled=lambda: heard.append("settled"))
    link.watch(settled=lambda: heard.append("flushed"))
    link.register(PrivateCode.ASK_PRODUCER, lambda command: heard.append(command.ext["group"]))
    one = LeaderConnection("n1", FakeConnection())  # type: ignore[arg-type]  # the part of a connection that is used here
    link.opened(one)
    assert heard == ["opened", "settled", "flushed"]
    heard.clear()
    decoder = FrameDecoder()
    for code in (PrivateCode.ASK_PRODUCER, PrivateCode.UNION_CHANGED):
        decoder.feed(encode_command(make_request(code, 1, {"group": "P"}, is_oneway=True)))
    link.received(one, decoder.frames())
    assert heard == ["P", "settled", "flushed"], "nobody takes the other one"
    heard.clear()
    link.ended(one)
    assert heard == ["settled", "flushed"]


def test_what_begins_with_a_leader_stands_ahead_of_what_is_passed_on_whatever_link_leads_to_it() -> (
    None
):
    log = FakeLog()
    link = LeaderLink(
        log,  # type: ignore[arg-type]  # the part of a LogServer that is used here
        secret=None,
        asked_max=4,
        asked_bytes_max=100_000,
        now_ms=lambda: 0,
    )

    def report() -> None:
        assert link.ask(PrivateCode.SYNC_CLIENTS, Waiter(), ext={}, body=b"", timeout_ms=1)

    link.watch(opened=lambda: link.send(PrivateCode.FORWARD, ext={}, body=b""))
    link.watch(begun=report)
    first, second = FakeConnection(), FakeConnection()
    link.opened(LeaderConnection("n1", first))  # type: ignore[arg-type]  # the part of a connection that is used here
    assert first.codes == [PrivateCode.SYNC_CLIENTS, PrivateCode.FORWARD]
    log.leader_id = "n2"
    link.leader_changed()
    assert len(first.codes) == 2, "n1 leads no longer"
    link.opened(LeaderConnection("n2", second))  # type: ignore[arg-type]  # the part of a connection that is used here
    log.leader_id = "n1"
    link.leader_changed()
    assert link.send(PrivateCode.FORWARD, ext={}, body=b"")
    assert first.codes[2:] == [PrivateCode.SYNC_CLIENTS, PrivateCode.FORWARD]

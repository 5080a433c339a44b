"""Who is known as a requester, and for how long."""

from __future__ import annotations

import pytest

from broker.server.handlers import requesters
from broker.server.handlers.requesters import Requesters
from broker.server.requests.origin import ClientOrigin, Outputs
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.header import encode_command, make_request


class Connection:
    peer = "127.0.0.1:4000"
    is_closed = False


def origin() -> ClientOrigin:
    return ClientOrigin(Connection(), Outputs())  # type: ignore[arg-type]


def send(properties: str, code: int = 310) -> list[Frame]:
    ext = {"a": "P", "b": "T", "e": "0", "f": "0", "g": "0", "h": "0", "i": properties}
    decoder = FrameDecoder()
    decoder.feed(encode_command(make_request(code, 1, ext)))
    return decoder.frames()


def asking(client_id: str) -> list[Frame]:
    return send(f"CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01{client_id}\x02")


def test_a_heartbeat_goes_before_what_messages_say_and_the_newest_connection_first() -> None:
    known = Requesters()
    first, second, third = origin(), origin(), origin()
    known.beat(first, "me")
    known.seen(second, asking("me"))
    known.beat(third, "me")
    assert known.origins("me") == [third, first, second]
    known.connection_closed(third.number)
    assert known.origins("me") == [first, second]
    known.beat(second, "somebody else")
    assert known.origins("me") == [first]
    known.seen(second, asking("me"))
    assert known.origins("me") == [first]
    known.beat(second, "me")
    assert known.origins("me") == [second, first]
    for each in (first, second):
        known.connection_closed(each.number)
    assert known.count == 0


class NotLooked:
    """A frame at whose header nobody may look."""

    @property
    def header(self) -> bytes:
        raise AssertionError("it was looked at")


def test_where_a_heartbeat_has_told_who_is_there_no_frame_is_looked_at() -> None:
    known, one = Requesters(), origin()
    with pytest.raises(AssertionError):
        known.seen(one, [NotLooked()])  # type: ignore[list-item]  # the least that is looked at
    known.seen(one, asking("guessed"))
    with pytest.raises(AssertionError):
        known.seen(one, [NotLooked()])  # type: ignore[list-item]  # as above
    known.beat(one, "me")
    known.seen(one, [NotLooked()])  # type: ignore[list-item]  # as above
    assert known.origins("guessed") == []


def test_what_asks_for_no_reply_names_nobody() -> None:
    known = Requesters()
    for frames in (
        send("REPLY_TO_CLIENT\x01me\x02MSG_TYPE\x01reply\x02"),
        send("REPLY_TO_CLIENT\x01me\x02", code=325),
        send("X\x01REPLY_TO_CLIENT\x02"),
        send("REPLY_TO_CLIENT\x01a\nb\x02"),
        asking("x" * 256),
        [Frame(0, b'{"REPLY_TO_CLIENT"', b"")],
        [Frame(0, b'{"code":310,"extFields":{"i":"REPLY_TO_CLIENT"}}', b"")],
    ):
        known.seen(origin(), frames)
    known.beat(origin(), "x" * 256)
    known.beat(origin(), "")
    assert known.count == 0


def test_a_connection_names_so_many_clients_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requesters, "CLIENTS_MAX", 2)
    known, one = Requesters(), origin()
    for client_id in ("a", "b", "a", "c"):
        known.beat(one, client_id)
    assert [bool(known.origins(each)) for each in "abc"] == [True, False, True]
    known.connection_closed(one.number)
    assert known.count == 0

"""What a name server remembers of the logs of broker groups."""

from __future__ import annotations

import msgspec
import pytest

from broker.namesrv.furthest import INCARNATIONS_MAX, FurthestPoints
from broker.namesrv.handlers import Asker, RequestHandlers
from broker.namesrv.kv import LocalKv
from broker.namesrv.routes import RouteTable
from broker.remoting.header import RemotingCommand
from broker.remoting.log_point import (
    COMMITTED_FIELD,
    FURTHEST_FIELD,
    LogPoint,
    read_log_point,
    write_log_point,
)
from broker.remoting.registration import BrokerIdentity, encode_registration, identity_ext
from broker.remoting.topic_config import DataVersion

GROUP = "main", "broker-a"


def point(index: int, chain_crc: int = 7, restoration: str = "") -> LogPoint:
    return LogPoint(index, 3, chain_crc, restoration)


def test_the_furthest_is_told_until_it_was_passed() -> None:
    points = FurthestPoints()
    assert points.take(*GROUP, point(10)) is None
    assert points.take(*GROUP, point(10)) is None, "an idle group hears nothing"
    assert points.take(*GROUP, point(8)) == point(10), "a follower that lags, or a group that lost"
    assert points.take(*GROUP, point(10, 8)) == point(10), "another log does not replace it"
    assert points.take(*GROUP, point(12)) == point(10), "what it passes has to be in its log"
    assert points.take(*GROUP, point(11)) == point(12)


def test_groups_and_incarnations_have_their_own() -> None:
    points = FurthestPoints()
    points.take(*GROUP, point(10))
    assert points.take("main", "broker-b", point(1)) is None
    assert points.take("other", "broker-a", point(1)) is None
    assert points.take(*GROUP, point(5, restoration="x")) is None
    assert points.take(*GROUP, point(4)) == point(10), "a store from before changes nothing"
    assert points.take(*GROUP, point(4, restoration="x")) == point(5, restoration="x")
    assert points.known_restorations(*GROUP) == ("", "x")


def test_what_is_remembered_is_bounded() -> None:
    points = FurthestPoints(groups_max=2)
    for name in ("a", "b", "c"):
        points.take("main", name, point(9))
    assert [points.take("main", name, point(1)) is None for name in ("c", "b")] == [False, False]
    assert points.known_restorations("main", "a") == ()
    for number in range(INCARNATIONS_MAX + 1):
        points.take("main", "c", point(1, restoration=f"r{number}"))
    known = points.known_restorations("main", "c")
    assert len(known) == INCARNATIONS_MAX
    assert known[-1] == f"r{INCARNATIONS_MAX}"


def test_a_place_survives_its_way() -> None:
    there = LogPoint(2**62, 4, 2**32 - 1, "the évening")
    assert read_log_point(write_log_point(there)) == there
    newer = b'{"index":1,"term":2,"chain_crc":3,"more":[]}'
    assert read_log_point(newer.decode()) == LogPoint(1, 2, 3), "a later version may say more"


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "12", "[]", "{}", "null", "nonsense", '{"index":1,"term":2}', "[" * 1000),
        *('{"index":"1","term":2,"chain_crc":3}', '{"index":0,"term":2,"chain_crc":3}'),
        *('{"index":1,"term":-2,"chain_crc":3}', '{"index":1,"term":2,"chain_crc":4294967296}'),
        *('{"index":1.5,"term":2,"chain_crc":3}', '{"index":true,"term":2,"chain_crc":3}'),
        '{"index":9223372036854775808,"term":2,"chain_crc":3}',
        '{"index":1,"term":2,"chain_crc":3,"restoration":7}',
        '{"index":1,"term":2,"chain_crc":3,"restoration":"' + "x" * 65 + '"}',
        '{"index":1,"term":2,"chain_crc":3}' + " " * 2000,
    ],
)
def test_what_is_no_place_counts_as_absent(text: str | None) -> None:
    assert read_log_point(text) is None


class Server:
    """The handlers of a name server, and what a registration gets from them."""

    def __init__(self) -> None:
        self.routes = RouteTable()
        self._handlers = RequestHandlers(self.routes, LocalKv(None), lambda: 0)

    def register(self, told: str | None, *, term: int = 3, broker_id: int = 0) -> RemotingCommand:
        addr = f"10.0.0.{broker_id}:10911"
        identity = BrokerIdentity(*GROUP, addr, broker_id, term=term)
        ext = identity_ext(identity)
        if told is not None:
            ext[COMMITTED_FIELD] = told
        body = encode_registration(DataVersion(), [])
        request = RemotingCommand(code=103, opaque=1, ext=ext, body=body)
        return self._handlers.answer(request, Asker(addr, addr))


def test_a_registration_is_answered_with_what_is_remembered() -> None:
    server = Server()
    assert FURTHEST_FIELD not in server.register(write_log_point(point(10)), broker_id=1).ext
    answer = server.register(write_log_point(point(4)))
    assert answer.code == 0
    assert read_log_point(answer.ext[FURTHEST_FIELD]) == point(10)


def test_brokers_that_tell_nothing_are_told_nothing() -> None:
    server = Server()
    server.register(write_log_point(point(10)))
    for told in (None, "", "nonsense"):
        answer = server.register(told, broker_id=1)
        assert answer.code == 0, "the route counts more"
        assert FURTHEST_FIELD not in answer.ext


def test_a_refused_registration_is_not_remembered() -> None:
    server = Server()
    server.register(write_log_point(point(10)), term=5)
    assert server.register(write_log_point(point(99)), term=4).code != 0
    answer = server.register(write_log_point(point(9)), term=5)
    assert read_log_point(answer.ext[FURTHEST_FIELD]) == point(10)


def test_a_restored_group_is_a_line_and_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="broker.namesrv")
    server = Server()
    server.register(write_log_point(point(10)))
    for index in (3, 4):
        restored = write_log_point(msgspec.structs.replace(point(index), restoration="evening"))
        server.register(restored)
    lines = [line for line in caplog.messages if "restored from backups" in line]
    assert lines == ["group broker-a was restored from backups as 'evening': its log is at index 3"]

"""What a name server remembers of the logs of broker groups."""

from __future__ import annotations

import msgspec
import pytest

from broker.namesrv.committed_places import (
    ADDRESSES_MAX,
    INCARNATIONS_MAX,
    LINES_MAX,
    CommittedPlaces,
)
from broker.namesrv.handlers import RequestHandlers, RequestSender
from broker.namesrv.kv import LocalKv
from broker.namesrv.registrants import Answer, Registrants
from broker.namesrv.routes import RouteTable
from dledger import Index
from dledger_mq.net.address import Address
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.log_point import (
    COMMITTED_FIELD,
    FURTHEST_FIELD,
    LogPoint,
    read_log_point,
    write_log_point,
)
from dledger_mq.remoting.registrant import TOKEN_FIELD
from dledger_mq.remoting.registration import BrokerIdentity, encode_registration, identity_ext
from dledger_mq.remoting.topic_config import WireDataVersion

GROUP = "main", "broker-a"
A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


def point(index: int, chain_crc: int = 7, restoration: str = "") -> LogPoint:
    return LogPoint(index, 3, chain_crc, restoration)


def test_the_furthest_is_told_until_it_was_passed() -> None:
    line = CommittedPlaces().line(*GROUP, {A})
    assert line.take(point(10)) is None
    assert line.take(point(10)) is None, "an idle group hears nothing"
    assert line.take(point(8)) == point(10), "a follower that lags, or a group that lost"
    assert line.take(point(10, 8)) == point(10), "another log does not replace it"
    assert line.take(point(12)) == point(10), "what it passes has to be in its log"
    assert line.take(point(11)) == point(12)


def test_groups_and_incarnations_have_their_own() -> None:
    points = CommittedPlaces()
    line = points.line(*GROUP, {A})
    line.take(point(10))
    assert points.line("main", "broker-b", {A}).take(point(1)) is None
    assert points.line("other", "broker-a", {A}).take(point(1)) is None
    assert line.take(point(5, restoration="x")) is None
    assert line.take(point(4)) == point(10), "a store from before changes nothing"
    assert line.take(point(4, restoration="x")) == point(5, restoration="x")
    assert tuple(line.points) == ("", "x")


def test_another_group_that_had_the_name_meanwhile_is_not_remembered_as_this_one() -> None:
    points = CommittedPlaces()
    points.line(*GROUP, {A, B}).take(point(10))
    assert points.line(*GROUP, {C}).take(point(2**62, 9)) is None
    assert points.line(*GROUP, {B}).take(point(4)) == point(10)
    assert points.line(*GROUP, {B, "moved"}).take(point(4)) == point(10)
    assert points.line(*GROUP, {"moved"}).take(point(4)) == point(10)


def test_a_stranger_with_many_clusters_makes_nobody_else_forgotten() -> None:
    """It needs no proof anew to name another cluster with each registration."""
    points = CommittedPlaces(groups_max=3)
    points.line(*GROUP, {A}).take(point(10))
    for number in range(100):
        points.line(f"cluster-{number}", "of-a-stranger", {B}).take(point(1))
    for number in range(5):  # and one that is heard stays, however many come
        points.line("main", f"new-{number}", {B}).take(point(1))
        assert points.line(*GROUP, {A}).take(point(4)) == point(10)


def test_what_is_remembered_is_bounded() -> None:
    points = CommittedPlaces(groups_max=2)
    for name in ("a", "b", "c"):
        points.line("main", name, {A}).take(point(9))
    assert [points.line("main", name, {A}).take(point(1)) for name in ("c", "b")] == [point(9)] * 2
    assert not points.line("main", "a", {A}).points
    line = points.line("main", "c", {A})
    for number in range(INCARNATIONS_MAX + 1):
        line.take(point(1, restoration=f"r{number}"))
    assert len(line.points) == INCARNATIONS_MAX
    assert list(line.points)[-1] == f"r{INCARNATIONS_MAX}"
    for number in range(LINES_MAX):
        points.line("main", "c", {f"other{number}"})
    assert not points.line("main", "c", {A}).points
    for number in range(ADDRESSES_MAX):
        line = points.line("main", "d", {A, f"{number}"})
    assert line.addresses == {A, f"{ADDRESSES_MAX - 1}"}


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
    """The handlers of a name server, and what a registration gets from them. All logs are one."""

    def __init__(self) -> None:
        self.routes = RouteTable()

        async def ask(
            address: Address,
            *,
            token: str | None = None,
            index: Index | None = None,
            member: str | None = None,
        ) -> Answer:
            chain_crc = None if index is None else 7
            return Answer(
                is_own=True, chain_crc=chain_crc, is_member=None if member is None else True
            )

        self._registrants = Registrants(
            self.routes, ask, secrets=lambda _name: (), draw_nonce=lambda: "", now_ms=lambda: 0
        )
        self._handlers = RequestHandlers(self.routes, LocalKv(None), lambda: 0, self._registrants)

    async def register(
        self,
        told: str | None,
        *,
        term: int = 3,
        broker_id: int = 0,
        host: int = 0,
        is_ours: bool = True,
    ) -> RemotingCommand:
        addr = f"10.0.0.{host or broker_id}:10911"
        identity = BrokerIdentity(*GROUP, addr, broker_id, term=term)
        ext = identity_ext(identity)
        if is_ours:
            ext[TOKEN_FIELD] = "0" * 32
        if told is not None:
            ext[COMMITTED_FIELD] = told
        body = encode_registration(WireDataVersion(), [])
        request = RemotingCommand(code=103, opaque=1, ext=ext, body=body)
        asker = RequestSender(addr, addr)
        if self._handlers.is_slow(request, asker):
            return await self._handlers.answer_slow(request, asker)
        return self._handlers.answer(request, asker)


async def test_a_registration_is_answered_with_what_is_remembered() -> None:
    server = Server()
    first = await server.register(write_log_point(point(10)), broker_id=1)
    assert FURTHEST_FIELD not in first.ext
    answer = await server.register(write_log_point(point(4)))
    assert answer.code == 0
    assert read_log_point(answer.ext[FURTHEST_FIELD]) == point(10)


async def test_brokers_that_report_nothing_are_sent_nothing() -> None:
    server = Server()
    await server.register(write_log_point(point(10)), broker_id=1)
    for told in (None, "", "nonsense"):
        answer = await server.register(told, broker_id=1)
        assert answer.code == 0, "the route counts more"
        assert FURTHEST_FIELD not in answer.ext


async def test_what_a_stranger_tells_is_not_remembered() -> None:
    server = Server()
    told = write_log_point(point(2**62))
    assert (await server.register(told, broker_id=5, is_ours=False)).code == 0
    assert FURTHEST_FIELD not in (await server.register(write_log_point(point(10)))).ext
    assert (await server.register(told, broker_id=5, is_ours=False)).code != 0
    answer = await server.register(write_log_point(point(11)))
    assert read_log_point(answer.ext[FURTHEST_FIELD]) == point(10)


async def test_a_refused_registration_is_not_remembered() -> None:
    server = Server()
    await server.register(write_log_point(point(10)), term=5)
    deposed = await server.register(write_log_point(point(99)), term=4, host=9)
    assert deposed.code == 1
    answer = await server.register(write_log_point(point(9)), term=5)
    assert read_log_point(answer.ext[FURTHEST_FIELD]) == point(10)


async def test_a_restored_group_is_a_line_and_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="broker.namesrv")
    server = Server()
    await server.register(write_log_point(point(10)))
    for index in (3, 4):
        restored = write_log_point(msgspec.structs.replace(point(index), restoration="evening"))
        await server.register(restored)
    lines = [line for line in caplog.messages if "restored from backups" in line]
    assert lines == ["group broker-a was restored from backups as 'evening': its log is at index 3"]

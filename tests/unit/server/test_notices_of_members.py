"""Members are notified of each other once all broker groups can know of a change, and once for what comes together."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from broker.server.handlers.followers import Followers
from broker.server.handlers.members import NOTICE_MS, Members
from broker.server.requests.origin import ClientOrigin, Outputs
from broker.service.catalog import Catalog
from broker.service.clients import CONNECTION_BYTES_MAX
from broker.store.groups import SubscriptionGroupConfig
from broker.store.topics import TopicConfig
from dledger_mq.net.connection import Connection
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from tests.unit.server.pending import pending
from tests.unit.server.test_client_exchange import FakeLink, FakeLog


class FakeConnection:
    """Keeps what the broker sends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.peer = f"1.2.3.4:{number}"
        self.is_closed = self.has_ended = False
        self.sent: list[bytes] = []

    def send_many(self, frames: list[bytes]) -> None:
        self.sent += frames

    def commands(self) -> list[RemotingCommand]:
        """What its client got."""
        decoder = FrameDecoder()
        decoder.feed(b"".join(self.sent))
        return [decode_command(frame) for frame in decoder.frames()]

    def notices(self) -> list[str]:
        """The groups that its client was notified of."""
        return [
            command.ext["consumerGroup"]
            for command in self.commands()
            if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and not command.is_response
        ]


class Commits:
    is_full = False


class Bench:
    """A leader whose catalog has the group g, which is notified, and the group quiet, which is not."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.outputs = Outputs()
        groups = {
            "g": SubscriptionGroupConfig("g"),
            "quiet": SubscriptionGroupConfig("quiet", notify_consumer_ids_changed=False),
        }
        topics = {f"%RETRY%{name}": TopicConfig(f"%RETRY%{name}", 1, 1) for name in groups}
        fakes: tuple[Any, ...] = (FakeLog(), Commits(), Catalog(topics.get, groups.get), FakeLink())
        self.members = Members(
            *fakes,
            followers=Followers({}.get, lambda: self.now_ms),
            outputs=self.outputs,
            nursery=cast("Any", None),
            beaten=lambda _origin, _client_id: None,
            auto_create_groups=True,
            judge=lambda _wanted: None,
            tasks_max=1,
            now_ms=lambda: self.now_ms,
        )

    def joins(self, client_id: str, group: str = "g", condition: str = "*") -> FakeConnection:
        connection = FakeConnection(len(client_id))
        origin = ClientOrigin(cast("Connection", connection), self.outputs)
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [{"topic": "T", "subString": condition, "subVersion": 1}],
        }
        body = json.dumps({"clientID": client_id, "consumerDataSet": [consumer]}).encode()
        command = RemotingCommand(code=34, opaque=1, ext={}, body=body, version=409)
        self.members.heartbeat(pending(origin, 34, command=command), command)
        self.outputs.flush()
        connection.origin_number = origin.number  # type: ignore[attr-defined]
        return connection

    def leaves(self, connection: FakeConnection) -> None:
        self.members.connection_closed(connection.origin_number)  # type: ignore[attr-defined]

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.members.tick(now_ms)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_members_that_come_together_are_one_notice_a_little_later(bench: Bench) -> None:
    first = bench.joins("c")
    bench.now_ms = 100
    second = bench.joins("cc")
    bench.tick(NOTICE_MS - 1)
    assert first.notices() == second.notices() == []
    bench.tick(NOTICE_MS)
    assert first.notices() == second.notices() == ["g"]
    bench.tick(10 * NOTICE_MS)
    assert first.notices() == ["g"], "once"


def test_the_next_change_is_another_notice(bench: Bench) -> None:
    first, second = bench.joins("c"), bench.joins("cc")
    bench.tick(NOTICE_MS)
    bench.leaves(second)
    bench.tick(2 * NOTICE_MS - 1)
    assert first.notices() == ["g"]
    bench.tick(2 * NOTICE_MS)
    assert first.notices() == ["g", "g"]


def test_a_group_that_wants_no_notices_gets_none(bench: Bench) -> None:
    alone = bench.joins("c", "quiet")
    bench.tick(NOTICE_MS)
    assert alone.notices() == []


def test_a_heartbeat_of_a_client_that_keeps_too_much_is_refused(bench: Bench) -> None:
    (answer,) = bench.joins("c", condition="a" * CONNECTION_BYTES_MAX).commands()
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "the heartbeat is not taken in" in (answer.remark or "")
    assert bench.members.members("g") == {}
    (answer,) = bench.joins("c").commands()
    assert answer.code == ResponseCode.SUCCESS
    assert list(bench.members.members("g")) == ["c"]

"""The leader keeps one list of the clients of all nodes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from broker.server.handlers.client_exchange import ClientExchange, SyncReply, SyncRequest
from broker.server.handlers.followers import FRESH_MS, Followers
from broker.server.links.private_codes import NOT_CARRIED_OUT
from broker.service.catalog import NOTHING_NEW
from broker.service.clients import NODE_EXPIRY_MS, ConsumerClient, LocalClients
from dledger import Role
from dledger_mq.remoting.frame import FRAME_BYTES_MAX, FrameDecoder
from dledger_mq.remoting.header import decode_command, encode_command, make_request
from dledger_mq.remoting.heartbeat import Subscription


class FakeLog:
    node_id = "n0"
    is_serving = True
    role = Role.LEADER
    term = 1
    reader = SimpleNamespace(applied_index=1, commit_index=1, applied_position=1)


class FakeLink:
    def watch(self, *, begun: Callable[[], None]) -> None:
        self.begun = begun

    def ask(self, code: int, _waiter: object, *, body: bytes, **_: object) -> bool:
        self.asked = encode_command(make_request(code, 1, body=body))
        return True

    def register(self, *_: Any) -> None:
        """Nothing comes over it."""


class FakeOrigin:
    """The link of another node, which keeps the last reply."""

    number = 7
    is_closed = False

    def __init__(self) -> None:
        self.reply: SyncReply | None = None
        self.code: int | None = None

    def send(self, frame: bytes) -> None:
        decoder = FrameDecoder()
        decoder.feed(frame)
        (answer,) = map(decode_command, decoder.frames())
        self.code = answer.code
        if answer.is_response and answer.code == 0:
            self.reply = msgspec.msgpack.decode(answer.body, type=SyncReply)


class Bench:
    def __init__(self, local: LocalClients | None = None) -> None:
        self.now_ms = 0
        self.link = FakeLink()
        self.node = FakeOrigin()
        self.followers = Followers({"n0": 1, "n1": 2, "n2": 3}.get, lambda: self.now_ms)
        self.log = FakeLog()
        self.exchange = ClientExchange(
            self.log,  # type: ignore[arg-type]  # the part of a LogServer that is used here
            self.link,  # type: ignore[arg-type]  # the part of a link that is used here
            local or LocalClients(),
            followers=self.followers,
            outputs=None,  # type: ignore[arg-type]  # nothing is created, so nothing is flushed
            nursery=None,  # type: ignore[arg-type]  # no task is started
            push=lambda _groups: None,
            creation_for=lambda _clients: NOTHING_NEW,
            create=lambda _creation: None,  # type: ignore[arg-type, return-value]  # never called
            now_ms=lambda: self.now_ms,
        )

    def sync(
        self,
        clients: list[ConsumerClient] | None,
        position: int = 0,
        used_percent: float | None = None,
    ) -> bool:
        """Report the clients of n1; return True if the leader says that it knows them."""
        body = msgspec.msgpack.encode(
            SyncRequest("n1", 3, clients, ("", 0), position, used_percent)
        )
        self.exchange.sync_from(self.node, make_request(1, 1, body=body))  # type: ignore[arg-type]  # a fake
        assert self.node.reply is not None
        return self.node.reply.is_known


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_clients_are_reported_once_and_then_only_confirmed(bench: Bench) -> None:
    assert not bench.sync(None)
    assert bench.sync([ConsumerClient("g", "c1")])
    bench.now_ms += NODE_EXPIRY_MS
    assert bench.sync(None)
    bench.exchange.expire(bench.now_ms + NODE_EXPIRY_MS)
    assert list(bench.exchange.union.members("g")) == ["c1"]


@pytest.mark.parametrize(("role", "known"), [(Role.LEADER, ["c1"]), (Role.FOLLOWER, [])])
def test_who_was_elected_knows_the_clients_before_it_serves_what_they_ask(
    bench: Bench, role: Role, known: list[str]
) -> None:
    bench.log.is_serving, bench.log.role = False, role
    body = msgspec.msgpack.encode(SyncRequest("n1", 3, [ConsumerClient("g", "c1")], ("", 0)))
    bench.exchange.sync_from(bench.node, make_request(1, 1, body=body))  # type: ignore[arg-type]  # a fake
    assert bench.node.code == NOT_CARRIED_OUT, "it is to be told again"
    assert list(bench.exchange.union.members("g")) == known
    bench.log.is_serving, bench.log.role = True, Role.LEADER
    assert not bench.sync(None)


def test_a_node_that_was_silent_for_too_long_has_to_report_its_clients_again(bench: Bench) -> None:
    bench.sync([ConsumerClient("g", "c1")])
    bench.now_ms += NODE_EXPIRY_MS + 1
    bench.exchange.expire(bench.now_ms)
    assert bench.exchange.union.members("g") == {}
    assert not bench.sync(None), "its link lived on, but the union has forgotten it"
    bench.exchange.expire(bench.now_ms + NODE_EXPIRY_MS + 1)
    assert bench.sync([ConsumerClient("g", "c1")])
    assert list(bench.exchange.union.members("g")) == ["c1"]


def test_a_follower_is_named_while_it_reports_and_for_what_it_has(bench: Bench) -> None:
    bench.sync([], 1000)
    assert bench.followers.broker_ids(999) == [2]
    assert bench.followers.broker_ids(1000) == [], "it has nothing after that"
    bench.now_ms = FRESH_MS
    assert bench.followers.broker_ids(999) == [2]
    bench.now_ms += 1
    assert bench.followers.broker_ids(999) == [], "it is silent"
    bench.sync(None, 1000)
    assert bench.followers.broker_ids(999) == [2]
    bench.node.is_closed = True
    assert bench.followers.broker_ids(999) == []


def test_a_follower_says_how_full_its_disk_is_while_it_reports(bench: Bench) -> None:
    bench.sync([], used_percent=81.5)
    assert bench.followers.used_percents() == {"n1": 81.5}
    bench.now_ms = FRESH_MS + 1
    assert bench.followers.used_percents() == {}
    bench.sync(None, used_percent=82.0)
    assert bench.followers.used_percents() == {"n1": 82.0}
    bench.sync(None)
    assert bench.followers.used_percents() == {}, "its disk cannot say"


def test_an_older_node_that_does_not_say_how_far_it_is_is_not_named(bench: Bench) -> None:
    bench.sync([])
    assert bench.followers.broker_ids(0) == []


def test_a_node_says_how_far_it_has_applied_and_nothing_while_it_is_behind_or_stops(
    bench: Bench,
) -> None:
    reader = SimpleNamespace(applied_index=5, commit_index=9, applied_position=500)
    bench.exchange._log = SimpleNamespace(reader=reader)  # type: ignore[assignment]
    assert bench.exchange._readable_position() == 500, "it may be about to apply the rest"
    reader.applied_index = 8
    assert bench.exchange._readable_position() == 0, "it knew of entry 9 a report ago"
    reader.applied_index, reader.commit_index = 9, 12
    assert bench.exchange._readable_position() == 500
    reader.applied_index = 12
    bench.exchange.is_leaving = True
    assert bench.exchange._readable_position() == 0


def with_conditions() -> list[ConsumerClient]:
    """Two consumers that fit a frame each, and not together."""
    text = "a" * (FRAME_BYTES_MAX // 2)
    return [ConsumerClient("g", name, subscriptions=(Subscription("T", text),)) for name in "ab"]


def test_what_does_not_fit_a_frame_is_not_told_and_all_else_goes_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    assert bench.sync([ConsumerClient("g", "c1")])
    for node, client in zip(("n2", "n3"), with_conditions(), strict=True):
        bench.exchange.union.put(node, [client], bench.now_ms)
    assert bench.sync(None), "its own clients are known"
    assert bench.node.reply is not None
    assert (bench.node.reply.union, bench.node.reply.by_node) == (("", 0), None), "as it was"
    assert "n1 is not told of the clients of all nodes" in caplog.text
    bench.exchange.union.put("n3", [], bench.now_ms)
    bench.sync(None)
    assert bench.node.reply.by_node is not None


def test_a_report_that_does_not_fit_a_frame_is_not_made(caplog: pytest.LogCaptureFixture) -> None:
    local = LocalClients()
    bench = Bench(local)
    for number, client in enumerate(with_conditions()):
        local.heartbeat(number, [client], [], 0)
        bench.link.begun()
    assert len(bench.link.asked) < FRAME_BYTES_MAX, "it was that of the first one"
    assert "the leader is not told of the clients that are connected here" in caplog.text

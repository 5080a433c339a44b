"""The lane for pulls against the ordinary way: the same requests, and the same answers, counts and places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from broker.server.requests import dispatch
from broker.server.requests.request import PendingRequest
from broker.store.state import BrokerState
from broker.testing.broker_cluster import BrokerCluster
from broker.testing.settings import BrokerSimSettings
from broker.testing.sim_broker import SimBroker
from dledger.raft.entry import Entry
from dledger.testing.sim_node import SimNode
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.header import encode_command, make_request
from dledger_mq.remoting.heartbeat import (
    ConsumeFromWhere,
    ConsumerEntry,
    ConsumeType,
    Heartbeat,
    MessageModel,
    Subscription,
    encode_heartbeat,
)

pytestmark = pytest.mark.slow

TOPIC, QUEUES = "T", 3
BEATEN, FILTERED = "beaten", "by-heartbeat"
CALM_MS = 3_000
MEMORY: dict[str, Any] = {"cache_bytes_max": 64 << 20, "segment_size_bytes": 64 << 20}
SUBSCRIPTION, SUSPEND, COMMIT = 4, 2, 1

Fields = dict[str, str | None]
Request = tuple[int, Fields, bytes]

USUAL: Fields = {
    "consumerGroup": "g",
    "topic": TOPIC,
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "8",
    "sysFlag": str(SUBSCRIPTION),
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
    "expressionType": "TAG",
}
ODD: list[Fields] = [
    {"queueId": "2"},
    {"queueId": "3"},
    {"queueId": "-1"},
    {"queueOffset": "-1"},
    {"queueOffset": "24"},
    {"queueOffset": "7000"},
    {"queueOffset": "x"},
    {"maxMsgNums": "0"},
    {"maxMsgNums": "2000"},
    {"maxMsgBytes": "700"},
    {"maxMsgBytes": "0"},
    {"sysFlag": "0"},
    {"sysFlag": str(SUBSCRIPTION | COMMIT), "commitOffset": "3"},
    {"sysFlag": str(SUBSCRIPTION | COMMIT), "commitOffset": "-1"},
    {"sysFlag": str(SUBSCRIPTION | SUSPEND), "suspendTimeoutMillis": "500", "queueOffset": "60"},
    {"sysFlag": str(SUBSCRIPTION | 8)},
    {"subscription": "red"},
    {"subscription": "red || blue"},
    {"subscription": "nobody"},
    {"subscription": "||"},
    {"subscription": "n > 3", "expressionType": "SQL92"},
    {"subscription": "n >", "expressionType": "SQL92"},
    {"subscription": None, "expressionType": None},
    {"expressionType": "ODD"},
    {"consumerGroup": "new"},
    {"consumerGroup": "bad group"},
    {"consumerGroup": BEATEN, "sysFlag": "0"},
    {"consumerGroup": FILTERED, "sysFlag": "0"},
    {"consumerGroup": FILTERED, "sysFlag": "0", "subVersion": "9"},
    {"topic": "Missing"},
    {"topic": "TBW102"},
    {"topic": None},
]

pulls = st.builds(
    lambda offset, queue, odd, count: {
        **USUAL,
        "queueOffset": str(offset),
        "queueId": str(queue),
        "maxMsgNums": str(count),
        **odd,
    },
    st.integers(0, 40),
    st.integers(0, QUEUES - 1),
    st.sampled_from([{}] * 40 + ODD),
    st.sampled_from([1, 8, 32]),
).map(lambda fields: (RequestCode.PULL_MESSAGE, fields, b""))
lite = pulls.map(lambda pull: (RequestCode.LITE_PULL_MESSAGE, *pull[1:]))
sends = st.builds(
    lambda queue, tag, size: _send(queue, tag, size),
    st.integers(0, QUEUES - 1),
    st.sampled_from(["red", "blue", "", "green"]),
    st.sampled_from([1, 100, 3000]),
)
changes = st.sampled_from(
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {"perm": "2"}),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {"perm": "6"}),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {"readQueueNums": "1"}),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {}),
    ]
).map(lambda change: (change[0], {**_topic(), **change[1]}, b""))
groups = st.sampled_from([True, False]).map(lambda is_enabled: _group("g", is_enabled=is_enabled))
requests = st.one_of([pulls] * 12 + [lite] * 2 + [sends] * 4 + [changes, groups])


def _send(queue: int, tag: str, size: int) -> Request:
    ext: Fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue), "f": "0"}
    ext |= {"g": "1000", "h": "0", "i": f"TAGS\x01{tag}\x02n\x01{size}\x02", "j": "0"}
    return RequestCode.SEND_MESSAGE_V2, ext, b"x" * size


def _topic() -> Fields:
    counts: Fields = {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES)}
    return {"topic": TOPIC, "defaultTopic": "TBW102", "perm": "6", **counts}


def _group(name: str, *, is_enabled: bool = True) -> Request:
    body = b'{"groupName":"%b","consumeEnable":%b}' % (
        name.encode(),
        b"true" if is_enabled else b"false",
    )
    return RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body


def _beat() -> Request:
    consumers = tuple(
        ConsumerEntry(
            group,
            ConsumeType.CONSUME_PASSIVELY,
            MessageModel.CLUSTERING,
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            (Subscription(TOPIC, tags),),
        )
        for group, tags in ((BEATEN, "*"), (FILTERED, "red"))
    )
    return RequestCode.HEART_BEAT, {}, encode_heartbeat(Heartbeat("client", (), consumers))


class Alone(BrokerCluster):
    """A group of one member."""

    def applied(self, broker: SimBroker, node: SimNode, entry: Entry) -> None:
        """Nothing waits for the fold here."""


class Twin:
    """A leader, and a client of it that keeps all answers."""

    def __init__(self, *, has_lane: bool, has_memory: bool = True) -> None:
        simulated = BrokerSimSettings(1, node_count=1, snapshot_interval_ms=0, queue_count=QUEUES)
        if has_memory:
            simulated = replace(simulated, **MEMORY)
        self.cluster = Alone(simulated, state_type=BrokerState)
        node = self.cluster.nodes[self.cluster.voters[0]]
        self.cluster.start(node)
        broker = self.cluster.brokers[node.node_id]
        assert self.cluster.run_until(60_000, lambda: broker.log.is_serving)
        self.cluster.calm = frozenset(self.cluster.voters)
        self.services = broker.controller.services
        if not has_lane:
            self.services.dispatch.pull_lane = None
        end = self.cluster.connect("10.0.0.1:40000", node.node_id)
        assert end is not None
        self.answers: list[bytes | None] = []
        end.arrive = self.answers.append  # type: ignore[method-assign,assignment]
        self._end, self._count = end, 0
        self.ask([(RequestCode.UPDATE_AND_CREATE_TOPIC, _topic(), b"")])
        self.ask([_group(name) for name in ("g", BEATEN, FILTERED)])
        self.ask([_beat()])
        self.ask(
            [_send(queue, tag, 200) for queue in range(QUEUES) for tag in ("red", "blue") * 12]
        )

    def ask(self, together: Sequence[Request]) -> None:
        """Send requests in one piece, and let time pass."""
        frames = []
        for code, fields, body in together:
            self._count += 1
            ext = {name: value for name, value in fields.items() if value is not None}
            frames.append(encode_command(make_request(code, self._count, ext, body)))
        self._end.send_nowait(b"".join(frames))
        self.cluster.run_until(self.cluster.now_ms + CALM_MS, lambda: False)

    def seen(self) -> dict[str, Any]:
        """All that is to be the same with both."""
        pulls = self.services.pulls
        return {
            "answers": self.answers,
            "counts": pulls.counts,
            "places": pulls.places._places,
            "backlogs": pulls._answers.backlog_readers,
            "calls": {
                handler.code: {key: each.counts for key, each in handler.calls.by_outcome.items()}
                for handler in pulls.handlers()
            },
            "held": pulls.held_count,
            "digest": self.cluster.brokers[self.cluster.voters[0]].state.digests(),
        }


PLAIN: Request = (RequestCode.PULL_MESSAGE, USUAL, b"")


@settings(max_examples=60, phases=[Phase.explicit, Phase.reuse, Phase.generate], deadline=None)
@given(st.lists(st.lists(requests, min_size=1, max_size=10), min_size=1, max_size=5), st.booleans())
@example([[PLAIN, (RequestCode.PULL_MESSAGE, {**USUAL, **odd}, b""), PLAIN] for odd in ODD], True)
@example([[PLAIN], [_group("g", is_enabled=False)], [PLAIN], [_group("g")], [PLAIN]], True)
def test_both_ways_answer_the_same(reads: list[list[Request]], has_memory: bool) -> None:
    with_lane = Twin(has_lane=True, has_memory=has_memory)
    without = Twin(has_lane=False, has_memory=has_memory)
    for together in reads:
        with_lane.ask(together)
        without.ask(together)
        assert with_lane.seen() == without.seen()


def test_plain_pulls_take_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or this would compare the ordinary way with itself."""
    twin = Twin(has_lane=True)
    ordinary: list[PendingRequest] = []
    monkeypatch.setattr(dispatch, "_serve_here", ordinary.append)
    found = twin.services.pulls.counts.found
    by_heartbeat: Fields = {**USUAL, "consumerGroup": FILTERED, "sysFlag": "0"}
    twin.ask([PLAIN, PLAIN, (RequestCode.PULL_MESSAGE, by_heartbeat, b""), PLAIN])
    assert twin.services.pulls.counts.found == found + 4
    assert not ordinary

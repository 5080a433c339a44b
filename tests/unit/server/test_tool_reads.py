"""What tools ask of one topic or group: any node shows it, and only a confirmed leader says that there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from broker.server.handlers.tool_reads import ToolReads
from broker.server.requests.request import PendingRequest
from broker.store.groups import SubscriptionGroupConfig
from broker.store.topics import TopicConfig
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from tests.unit.server.lone_leader import Asker, LoneLeader
from tests.unit.server.pending import pending

ASKED = [
    (351, {"topic": "New"}, ResponseCode.TOPIC_NOT_EXIST),
    (352, {"group": "New"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
]


class FakeRouter:
    """Keeps what it is to bring to the leader, and what is to be confirmed."""

    def __init__(self, *, is_serving: bool) -> None:
        self.is_serving = is_serving
        self.routed: list[PendingRequest] = []
        self.unconfirmed: list[Callable[[], None]] = []

    def route(self, request: PendingRequest) -> None:
        self.routed.append(request)

    def when_confirmed(self, _request: PendingRequest, act: Callable[[], None]) -> None:
        self.unconfirmed.append(act)

    def carry_out(self, request: PendingRequest) -> None:
        request.handler.serve(request, request.command)


class Bench:
    def __init__(self, code: int, ext: dict[str, str], *, leads: bool) -> None:
        self.leader = LoneLeader()
        self.router = FakeRouter(is_serving=leads)
        reads = ToolReads(
            cast("Any", self.leader.log),
            self.leader.state,
            cast("Any", self.router),
            members=cast("Any", None),
            broker_name="broker-a",
            service_address="",
            consumed_per_second=lambda _group, _topic: 0.0,
            given=lambda _group, _topic: {},
            wall_ms=lambda: 0,
            monotonic_ms=lambda: 0,
        )
        (self.handler,) = [each for each in reads.handlers() if each.code == code]
        self.command = RemotingCommand(code=code, opaque=9, ext=ext, version=453)
        self.asker = Asker()

    def ask(self) -> None:
        request = pending(
            self.asker, self.handler.code, command=self.command, serve=self.handler.serve
        )
        self.router.carry_out(request)

    def create(self) -> None:
        self.leader.create(TopicConfig("New", 1, 1), SubscriptionGroupConfig("New"))

    @property
    def codes(self) -> list[int]:
        decoder = FrameDecoder()
        decoder.feed(b"".join(self.asker.frames))
        return [decode_command(frame).code for frame in decoder.frames()]


@pytest.mark.parametrize(("code", "ext", "denial"), ASKED)
def test_a_node_that_lacks_it_brings_the_question_to_the_leader(
    code: int, ext: dict[str, str], denial: int
) -> None:
    bench = Bench(code, ext, leads=False)
    bench.ask()
    assert (bench.codes, len(bench.router.routed)) == ([], 1)
    bench.create()
    bench.ask()
    assert bench.codes == [0]


@pytest.mark.parametrize(("code", "ext", "denial"), ASKED)
def test_a_leader_denies_it_once_it_is_confirmed(
    code: int, ext: dict[str, str], denial: int
) -> None:
    bench = Bench(code, ext, leads=True)
    bench.ask()
    bench.ask()
    first, second = bench.router.unconfirmed
    assert bench.codes == []
    first()
    assert bench.codes == [denial]
    bench.create()
    second()
    assert bench.codes == [denial, 0]

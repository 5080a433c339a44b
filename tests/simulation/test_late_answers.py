"""A leader of the past hears late answers: its commit is no proof that it leads, at the times as shipped.

An entry is on its way when the leader is not heard any more, and what was answered to it comes 885 ms late. Another
leader takes a higher offset meanwhile; then the old one is asked.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from broker.server.requests.request import PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.testing.broker_simulation import BrokerSimulation
from broker.testing.client import Prefers, SimClient
from broker.testing.forms import Form
from broker.testing.producers import send_request
from broker.testing.settings import BrokerSimSettings
from broker.testing.sim_broker import WALL_ZERO_MS
from dledger.raft.ids import NodeId
from dledger.testing.simulation import SimResult, SimVerdict
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

BEGIN_MS, LATE_MS = 1_500, 885
PLACE = ("K", "T0", 0)
SEEDS = range(1, 9)


class Directed(SimClient):
    """Asks one member, and no other."""

    target: NodeId

    def go_on(self) -> None:
        """It does what the story says."""

    def commit(self, group: str, offset: int, done: Any) -> None:
        ext = {"consumerGroup": group, "topic": "T0", "queueId": "0", "commitOffset": str(offset)}
        self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, done)

    def _look_around(self, _prefers: Prefers) -> None:
        if self._connection is None:
            self._connection = self.cluster.connect(self._address, self.target)
            assert self._connection is not None, "clients reach all members"
            self._connection.received, self._connection.ended = self._received, self._ended


class Story:
    """What happens in one run."""

    def __init__(self, seed: int) -> None:
        settings = BrokerSimSettings(
            seed, chaos_ms=4_000, producer_count=0, transaction_count=0, consumer_count=0,
            snapshot_interval_ms=0, fault_weights={"heal": 1}, fault_interval_ms=100_000, client_timeout_ms=3_500,
        )  # fmt: skip
        self.sim = BrokerSimulation(replace(settings))
        self.cluster = self.sim._brokers
        self.told: list[int] = []
        self._clients = [
            Directed(self.cluster, settings, name, Counter()) for name in ("x", "y", "z")
        ]

    def run(self) -> SimResult:
        self.cluster.at(BEGIN_MS, self._begin)
        return self.sim.run()

    def _begin(self) -> None:
        leader = self.cluster.leader()
        assert leader is not None, "nothing went wrong yet"
        self._old = leader
        for client in self._clients:
            client.target = leader.node_id
        # A commit beyond the queue's end would be refused.
        forms = [
            Form.of("T0", QueueId(0), b"x", {"UNIQ_KEY": f"filled-{number}"}) for number in range(3)
        ]
        for form in forms:
            self._clients[0].model.wanted(form)
        first = self._clients[0]
        born_ms, count = WALL_ZERO_MS + self.cluster.now_ms, first.settings.queue_count
        ext, body = send_request(forms, born_ms, queue_count=count)
        first.ask(RequestCode.SEND_MESSAGE, ext, self._filled, body=body)

    def _filled(self, answer: RemotingCommand | None) -> None:
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        self._clients[0].commit("K", 1, self._first_committed)

    def _first_committed(self, answer: RemotingCommand | None) -> None:
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
        self.cluster.answers.offset_committed(PLACE, 1)
        network, old = self.cluster.network, self._old.node_id
        for other in self.cluster.voters:
            if other != old:
                network.clog(other, old, self.cluster.now_ms + LATE_MS)
        assert self._old.engine is not None
        self._last_index = self._old.engine.node.log.last_index
        self._clients[0].commit("X", 1, lambda _answer: None)
        self._wait_sent()

    def _wait_sent(self) -> None:
        assert self._old.engine is not None
        if self._old.engine.node.log.last_index == self._last_index:
            self.cluster.at(self.cluster.now_ms + 1, self._wait_sent)
        else:
            self.cluster.at(self.cluster.now_ms + 10, self._silence)

    def _silence(self) -> None:
        old = self._old.node_id
        self.cluster.network.cut([old], [other for other in self.cluster.voters if other != old])
        self._wait_new_leader()

    def _wait_new_leader(self) -> None:
        leader = self.cluster.leader()
        assert leader is not None, "the old one at least"
        if leader.node_id == self._old.node_id:
            self.cluster.at(self.cluster.now_ms + 1, self._wait_new_leader)
        else:
            self._clients[1].target = leader.node_id
            self._clients[1].commit("K", 3, self._second_committed)

    def _second_committed(self, answer: RemotingCommand | None) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        self.cluster.answers.offset_committed(PLACE, 3)
        ext = {"consumerGroup": "K", "topic": "T0", "queueId": "0"}
        self._clients[2].ask(RequestCode.QUERY_CONSUMER_OFFSET, ext, self._answered)

    def _answered(self, answer: RemotingCommand | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            offset = int(answer.ext["offset"])
            self.told.append(offset)
            self.cluster.answers.offset_read(PLACE, offset, floor=3)


@pytest.mark.slow
def test_a_leader_of_the_past_tells_no_old_offset() -> None:
    for seed in SEEDS:
        story = Story(seed)
        result = story.run()
        assert result.verdict is SimVerdict.FINE, (seed, result.problem)
        assert story.told in ([], [3])


@pytest.mark.slow
def test_one_that_takes_the_commit_for_a_proof_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query waits for what is on its way, and is answered as soon as that is committed."""

    when_staged_committed = Router.when_staged_committed

    def act_at_once(self: Router, request: PendingRequest, act: Any) -> None:
        is_query = request.kind is RequestKind.QUESTION
        when_staged_committed(self, request, act.args[1] if is_query else act)

    monkeypatch.setattr(Router, "when_staged_committed", act_at_once)
    problems = (Story(seed).run().problem for seed in SEEDS)
    assert any("answered as 1; 3 was known before" in problem for problem in problems)

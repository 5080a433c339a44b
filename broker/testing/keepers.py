"""Clients that take a group's offset for a register: they write and read it at any node, and must never read back.

They mostly spare a leader that is not heard their writes: with fewer entries on its way it can be asked for more.

Nothing here judges an answer (broker/testing/answers.py).
"""

from __future__ import annotations

from typing import Final

from broker.store.locks import LockKey
from broker.testing.client import Prefers, SimClient
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

KEPT_GROUP: Final = "K"
TOPIC: Final = "T0"
STEP_MAX: Final = 3
WRITE_PERMILLE: Final = 50
SPARE_PERMILLE: Final = 950


class Keeper(SimClient):
    """Commits an offset a little above the highest that anybody knows of, or asks for it, wherever it is."""

    def go_on(self) -> None:
        """Commit an offset, or ask for it."""
        if self.is_stopped:
            return
        if self.chance(WRITE_PERMILLE):
            if self._is_leader_connected() or not self.chance(SPARE_PERMILLE):
                self._write(self.rng.choice((Prefers.NEWEST, Prefers.ANYBODY)))
            else:
                self.pause(self.go_on)
        else:
            prefers = self.rng.choice((Prefers.ANYBODY, Prefers.ANY_LEADER, Prefers.LEADER))
            self._floor = self.answers.known_offset(self._key)
            self.ask(
                RequestCode.QUERY_CONSUMER_OFFSET, self._place(), self._was_read, prefers=prefers
            )

    def _is_leader_connected(self) -> bool:
        leader = self.cluster.leader()
        return leader is not None and any(
            self.cluster.network.is_open(leader.node_id, other)
            for other in self.cluster.node_ids
            if other != leader.node_id
        )

    @property
    def _key(self) -> LockKey:
        return KEPT_GROUP, TOPIC, QueueId(0)

    def _place(self) -> dict[str, str]:
        group, topic, queue_id = self._key
        return {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}

    def _write(self, prefers: Prefers) -> None:
        wanted = max(0, self.answers.known_offset(self._key)) + self.rng.randint(0, STEP_MAX)
        # An offset beyond the queue's end is refused (docs/divergence.md).
        offset = min(wanted, len(self.model.queues.get((TOPIC, QueueId(0)), ())))

        def written(answer: RemotingCommand | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self.answers.offset_committed(self._key, offset)
            self.pause(self.go_on)

        ext = {**self._place(), "commitOffset": str(offset), "clientId": self.name}
        self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, written, prefers=prefers)

    def _was_read(self, answer: RemotingCommand | None) -> None:
        """Check the offset that was read, however late the answer comes."""
        offset_codes = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        if answer is not None and answer.code in offset_codes:
            offset = int(answer.ext.get("offset", "-1"))
            self.answers.offset_read(self._key, offset, floor=self._floor)
        self.pause(self.go_on)

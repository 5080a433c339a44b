"""Checks of the answers that those who pop read: each says what the log says, and success is for ever.

Nothing here knows how a question was asked, or of whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker.server.handlers.pop_acks import NOT_IN_FLIGHT
from broker.store.pops import PopKey
from broker.testing.pop_model import PopModel, StoredQueues
from dledger.testing.state_checker import Violation
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.message.record import StoredMessage
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.header import RemotingCommand


class PopHold(NamedTuple):
    """A message that a client has to itself: where it lies, and since when by the broker's time."""

    key: PopKey
    offset: QueueOffset
    popped_ms: int


class PopAnswers:
    """The answers about popped messages that the clients of one group of brokers read."""

    def __init__(self, model: PopModel, stored: StoredQueues) -> None:
        self._model = model
        self._stored = stored
        self._acknowledged: dict[tuple[PopKey, QueueOffset], int] = {}

    def popped(
        self,
        group: str,
        topic: str,
        answer: RemotingCommand,
        records: Sequence[StoredMessage],
        *,
        earliest_ms: int,
    ) -> list[PopHold]:
        """Check what a client was handed out; nobody else may get it before that true time."""
        popped_ms = int(answer.ext["popTime"])
        holds = []
        for record in records:
            key, offset = (group, topic, record.queue_id), record.queue_offset
            handing = self._model.handed_out((key, offset), popped_ms)
            if handing is None or handing.is_change:
                raise Violation(f"{key} at {offset} is answered, the log hands out no such thing")
            if self._acknowledged.get((key, offset), popped_ms) < popped_ms:
                raise Violation(f"{key} at {offset} was answered as acknowledged, and comes again")
            original = self._stored.record_at(topic, record.queue_id, offset)
            wanted = (original.body, original.reconsume_times + handing.times - 1)
            if (record.body, record.reconsume_times) != wanted:
                raise Violation(
                    f"{key} at {offset}, handed out {handing.times} times, is answered with "
                    f"{record.reconsume_times} and {record.body!r}"
                )
            self._model.not_before((key, offset), popped_ms, earliest_ms)
            holds.append(PopHold(key, offset, popped_ms))
        offsets = [hold.offset for hold in holds]
        if not offsets or offsets != sorted(set(offsets)):
            raise Violation(f"{group} is answered with {offsets} of {topic}")
        self._model.counts["pops_answered"] += 1
        return holds

    def changed(self, hold: PopHold, answer: RemotingCommand, *, earliest_ms: int) -> PopHold:
        """Check what a client reads: it has a message for another time, under another handle."""
        new = hold._replace(popped_ms=int(answer.ext["popTime"]))
        handing = self._model.handed_out((hold.key, hold.offset), new.popped_ms)
        if handing is None or not handing.is_change:
            raise Violation(
                f"the time of {hold} is answered as changed; the log says no such thing"
            )
        self._model.not_before((hold.key, hold.offset), new.popped_ms, earliest_ms)
        return new

    def acknowledged(self, holds: Sequence[PopHold]) -> None:
        """Check what a client reads: these messages never come again; of several, one at least."""
        ended = [
            hold
            for hold in holds
            if self._model.acknowledged.get((hold.key, hold.offset)) == hold.popped_ms
        ]
        if not ended:
            raise Violation(f"{holds} are answered as acknowledged; the log says no such thing")
        if len(holds) == 1:
            self._acknowledged[holds[0].key, holds[0].offset] = holds[0].popped_ms
        self._model.counts["pop_acks_answered"] += 1

    def not_held(self, holds: Sequence[PopHold], answer: RemotingCommand) -> None:
        """Check what a client reads: none of these messages is in flight under its handle."""
        if answer.code != ResponseCode.NO_MESSAGE or answer.remark != NOT_IN_FLIGHT:
            return
        held = [hold for hold in holds if self._model.holds(*hold)]
        if held:
            raise Violation(f"{held} are answered as not in flight, and are")
        self._model.counts["pop_acks_late"] += 1

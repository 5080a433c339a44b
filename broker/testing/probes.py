"""The probe of what must work once nothing fails any more: a send, the reading of it, and the commit of its offset."""

from __future__ import annotations

from collections.abc import Mapping

from broker.testing.client import Answered, Prefers
from broker.testing.producers import SimProducer
from dledger_mq.message.record import decode_records
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.requests import PULL_SUBSCRIPTION

PROBE_GROUP = "P"
TOPIC = "T0"


class Probe(SimProducer):
    """One message that must get through, and be read.

    Attributes:
        is_done: all of it has worked.
    """

    must_succeed = True
    is_done = False
    _was_refused = False

    def ask(
        self,
        code: int,
        ext: Mapping[str, str],
        answered: Answered,
        *,
        body: bytes = b"",
        prefers: Prefers = Prefers.LEADER,
    ) -> None:
        """Ask whom it likes, and after a refusal none but the leader.

        A node that is no member holds each pull for seconds before it refuses it; a probe that stays there
        would be out of time, though everybody else is served.
        """

        def noted(answer: RemotingCommand | None) -> None:
            if answer is None or answer.code != ResponseCode.SUCCESS:
                self._was_refused = True
            answered(answer)

        prefers = Prefers.NEWEST if self._was_refused else prefers
        super().ask(code, ext, noted, body=body, prefers=prefers)

    def go_on(self) -> None:
        """Send the probe's message."""
        self._begin(TOPIC)

    def _wish(self) -> dict[str, str]:
        return {}

    def _next(self) -> None:
        self.pause(self._pull)

    def _pull(self) -> None:
        """Pull the one message that the probe has sent, without waiting: it was acknowledged, so it must be there."""
        queue_id, offset = self.place
        ext = {
            "consumerGroup": PROBE_GROUP,
            "topic": TOPIC,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": "1",
            "sysFlag": str(PULL_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
        }
        self.ask(RequestCode.PULL_MESSAGE, ext, self._pulled)

    def _pulled(self, answer: RemotingCommand | None) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS:
            self.pause(self._pull)
            return
        queue_id, offset = self.place
        next_offset = int(answer.ext["nextBeginOffset"])
        records = decode_records(answer.body)
        self.answers.pulled(TOPIC, queue_id, records, offset=offset, next_offset=next_offset)
        self._commit()

    def _commit(self) -> None:
        queue_id, offset = self.place
        ext = {
            "consumerGroup": PROBE_GROUP,
            "topic": TOPIC,
            "queueId": str(queue_id),
            "commitOffset": str(offset + 1),
            "clientId": self.name,
        }
        self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, self._committed)

    def _committed(self, answer: RemotingCommand | None) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS:
            self.pause(self._commit)
            return
        queue_id, offset = self.place
        self.answers.offset_committed((PROBE_GROUP, TOPIC, queue_id), offset + 1)
        self.is_done = True

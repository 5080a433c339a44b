"""Clients that read: pull, give back, commit offsets, and lock a queue for a while."""

from __future__ import annotations

from broker.message.record import StoredMessage, decode_records
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.group_bodies import LockRequest, encode_lock_request
from broker.remoting.header import RemotingCommand
from broker.remoting.message_queue import MessageQueue
from broker.remoting.requests import PULL_SUBSCRIPTION, PULL_SUSPEND
from broker.testing.client import GROUP, SimClient

PULL_MAX = 8
SUSPEND_MS = 150


class Consumer(SimClient):
    """Works on one queue after another: locks it (sometimes), asks for the offset, pulls, commits."""

    def go_on(self) -> None:
        """Choose a queue."""
        if self.is_stopped:
            return
        self._queue = (self.topic(), self.queue_id())
        self._is_locked = False
        if self.chance(self.settings.lock_permille):
            self._ask_lock(RequestCode.LOCK_BATCH_MQ, self._lock_answered)
        else:
            self._ask_offset()

    def _next(self, _answer: RemotingCommand | None = None) -> None:
        self.pause(self.go_on)

    def _ask_lock(self, code: int, answered: object) -> None:
        topic, queue_id = self._queue
        request = LockRequest(GROUP, self.name, (MessageQueue("sim", queue_id, topic),), False)
        self.ask(code, {}, answered, body=encode_lock_request(request))  # type: ignore[arg-type]

    def _lock_answered(self, answer: RemotingCommand | None) -> None:
        self._is_locked = answer is not None and answer.code == ResponseCode.SUCCESS
        self.pause(self._ask_offset)

    def _place(self) -> dict[str, str]:
        topic, queue_id = self._queue
        return {"consumerGroup": GROUP, "topic": topic, "queueId": str(queue_id)}

    def _ask_offset(self) -> None:
        self.ask(RequestCode.QUERY_CONSUMER_OFFSET, self._place(), self._offset_answered)

    def _offset_answered(self, answer: RemotingCommand | None) -> None:
        if answer is None or answer.code not in {
            ResponseCode.SUCCESS,
            ResponseCode.QUERY_NOT_FOUND,
        }:
            self._next()
            return
        self._offset = int(answer.ext.get("offset", "0"))
        ext = {
            **self._place(),
            "queueOffset": str(self._offset),
            "maxMsgNums": str(PULL_MAX),
            "sysFlag": str(PULL_SUSPEND | PULL_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS),
            "subscription": "*",
            "subVersion": "0",
        }
        self.ask(RequestCode.PULL_MESSAGE, ext, self._pulled, prefers_leader=False)

    def _pulled(self, answer: RemotingCommand | None) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS:
            self._next()
            return
        records = decode_records(answer.body)
        self.model.pulled(*self._queue, self._offset, records)
        self._done_offset = int(answer.ext["nextBeginOffset"])
        if records and self.chance(self.settings.back_permille):
            self._give_back(self.rng.choice(records))
        else:
            self._commit()

    def _give_back(self, record: StoredMessage) -> None:
        ext = {
            "offset": str(record.physical_offset),
            "group": GROUP,
            "delayLevel": str(self.rng.randint(0, 3)),
            "originMsgId": "",
            "originTopic": record.topic,
        }
        self.counts["given_back"] += 1
        self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, lambda _answer: self._commit())

    def _commit(self) -> None:
        ext = {**self._place(), "commitOffset": str(self._done_offset), "clientId": self.name}
        self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, self._committed)

    def _committed(self, answer: RemotingCommand | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.model.offset_committed(GROUP, *self._queue, self._done_offset)
        if self._is_locked:
            self._ask_lock(RequestCode.UNLOCK_BATCH_MQ, self._next)
        else:
            self._next()

"""Clients that read: pull, give back, commit offsets, and lock a queue for a while.

Nothing here judges an answer (broker/testing/answers.py).
"""

from __future__ import annotations

from broker.store.locks import LockKey
from broker.testing.client import GROUP, Prefers, SimClient
from broker.testing.forms import key_of
from dledger_mq.message.record import StoredMessage, decode_records
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.group_bodies import LockRequest, decode_lock_reply, encode_lock_request
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.remoting.requests import PULL_SUBSCRIPTION, PULL_SUSPEND

PULL_MAX = 8
SUSPEND_MS = 150


class SimConsumer(SimClient):
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
        request = LockRequest(GROUP, self.name, (WireQueue("sim", queue_id, topic),), False)
        self._granted_before = self.model.grant_count(self._key, self.name)
        self.ask(code, {}, answered, body=encode_lock_request(request))  # type: ignore[arg-type]

    def _lock_answered(self, answer: RemotingCommand | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._is_locked = bool(decode_lock_reply(answer.body))
            if self._is_locked:
                granted_before = self._granted_before
                self.answers.locked(self._key, self.name, granted_before=granted_before)
        self.pause(self._ask_offset)

    @property
    def _key(self) -> LockKey:
        return GROUP, *self._queue

    def _place(self) -> dict[str, str]:
        topic, queue_id = self._queue
        return {"consumerGroup": GROUP, "topic": topic, "queueId": str(queue_id)}

    def _ask_offset(self) -> None:
        self._floor = self.answers.known_offset(self._key)
        self.ask(
            RequestCode.QUERY_CONSUMER_OFFSET,
            self._place(),
            self._offset_answered,
            prefers=Prefers.ANY_LEADER,
        )

    def _offset_answered(self, answer: RemotingCommand | None) -> None:
        """Judge the committed offset, then pull from it, or now and then only look."""
        if answer is None or answer.code not in {
            ResponseCode.SUCCESS,
            ResponseCode.QUERY_NOT_FOUND,
        }:
            self._next()
            return
        offset = int(answer.ext.get("offset", "-1"))
        self.answers.offset_read(self._key, offset, floor=self._floor)
        if self.chance(self.settings.look_permille):
            self._next()
            return
        self._offset = max(0, offset)
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
        permille = self.settings.pull_anywhere_permille
        is_anywhere = permille > 0 and self.chance(permille)
        prefers = Prefers.ANYBODY if is_anywhere else Prefers.ITS_OWN
        self.ask(RequestCode.PULL_MESSAGE, ext, self._pulled, prefers=prefers)

    def _pulled(self, answer: RemotingCommand | None) -> None:
        """Judge what was pulled, then give one message back or commit the rest."""
        if answer is not None and answer.code == ResponseCode.PULL_OFFSET_MOVED:
            next_offset = int(answer.ext["nextBeginOffset"])
            self.answers.moved(*self._queue, self._offset, next_offset)
            if next_offset > self._offset:  # what it has not read is forgotten
                self._done_offset = next_offset
                self._commit()
                return
        if answer is not None and answer.code == ResponseCode.PULL_NOT_FOUND:
            next_offset = int(answer.ext["nextBeginOffset"])
            self.answers.stayed(*self._queue, self._offset, next_offset)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            self._next()
            return
        records = decode_records(answer.body)
        self._done_offset = int(answer.ext["nextBeginOffset"])
        self.answers.pulled(
            *self._queue, records, offset=self._offset, next_offset=self._done_offset
        )
        if records and self.chance(self.settings.back_permille):
            self._give_back(self.rng.choice(records))
        else:
            self._commit()

    def _give_back(self, record: StoredMessage) -> None:
        """Give a message back; the wish is counted before the answer, since one without an answer may be stored too."""
        ext = {
            "offset": str(record.physical_offset),
            "group": GROUP,
            "delayLevel": str(self.rng.randint(0, 3)),
            "originMsgId": "",
            "originTopic": record.topic,
        }
        key = key_of(record)
        self.model.sent[key].asked_back_count += 1

        def given_back(answer: RemotingCommand | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self.answers.given_back(key)
            self._commit()

        self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, given_back)

    def _commit(self) -> None:
        ext = {**self._place(), "commitOffset": str(self._done_offset), "clientId": self.name}
        self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, self._committed)

    def _committed(self, answer: RemotingCommand | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.answers.offset_committed(self._key, self._done_offset)
        if self._is_locked:
            self._ask_lock(RequestCode.UNLOCK_BATCH_MQ, self._next)
        else:
            self._next()

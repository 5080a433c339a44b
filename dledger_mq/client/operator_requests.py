"""The requests of operators to a consumer, through its brokers: where it stands, and to go elsewhere.

| code | asks for |
|---|---|
| 220 | going on at other offsets; not answered |
| 221 | the offsets of a topic |
| 307 | what it is doing, as RocketMQ's tools show it |
| 309 | letting the handler consume one message now, and returning the result |
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.abc import TaskGroup

from dledger_mq.client.assignment import Assignment
from dledger_mq.client.consume_results import BatchHandler, ConsumeResult, Later
from dledger_mq.client.consumer_settings import ConsumerSettings
from dledger_mq.client.dispatch import Dispatcher
from dledger_mq.client.link import Link
from dledger_mq.client.local_offsets import decode_offsets
from dledger_mq.client.messages import received
from dledger_mq.client.queue_reader import QueueReader
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.rates import WINDOW_S, ConsumeRates
from dledger_mq.client.session import Session
from dledger_mq.client.subscriptions import TopicSubscription
from dledger_mq.message.errors import MessageFormatError
from dledger_mq.message.hashes import java_hash
from dledger_mq.message.record import decode_record
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.header import RemotingCommand, make_response
from dledger_mq.remoting.json_body import WritableJson, write_json
from dledger_mq.remoting.message_queue import WireQueue

CLIENT_VERSION: Final = "V4_9_8"  # whose protocol this is
_MIB: Final = 1 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OperatorRequests:
    """Answers for one consumer. `listen` registers; `serve` runs what takes time."""

    group: str
    session: Session
    assignment: Assignment
    dispatcher: Dispatcher
    handler: BatchHandler
    settings: ConsumerSettings
    subscriptions: Mapping[str, TopicSubscription]
    started_at_ms: int

    def listen(self, nursery: TaskGroup) -> None:
        """Take requests from now on; what takes time runs in `nursery`.

        While the consumer closes its links still serve, and no task can be started in what has been left: a reset
        comes too late then, and who asks for more is told so.
        """

        def answered(
            make: Callable[[RemotingCommand], bytes],
        ) -> Callable[[Link, RemotingCommand], None]:
            def handle(link: Link, request: RemotingCommand) -> None:
                if self._is_ours(link, request):
                    _answer(link, request, make(request))

            return handle

        def consume(link: Link, request: RemotingCommand) -> None:
            if not self._is_ours(link, request):
                return
            if nursery.cancel_scope.cancel_called:
                remark = f"the consumer of {self.group} is being closed"
                link.answer(make_response(request.opaque, ResponseCode.SYSTEM_ERROR, remark))
                return
            nursery.start_soon(self._consume_directly, link, request, name="consume directly")

        def reset(_link: Link, request: RemotingCommand) -> None:
            if request.ext.get("group") == self.group and not nursery.cancel_scope.cancel_called:
                nursery.start_soon(self._reset, request, name="reset")

        self.session.handle(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, reset)
        self.session.handle(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, answered(self._offsets))
        self.session.handle(RequestCode.GET_CONSUMER_RUNNING_INFO, answered(self._running_info))
        self.session.handle(RequestCode.CONSUME_MESSAGE_DIRECTLY, consume)

    def _is_ours(self, link: Link, request: RemotingCommand) -> bool:
        """Return whether the request is for our group; answer it with an error if not."""
        group = request.ext.get("consumerGroup", request.ext.get("group"))
        if group == self.group:
            return True
        remark = f"The Consumer Group <{group}> not exist in this consumer"
        link.answer(make_response(request.opaque, ResponseCode.SYSTEM_ERROR, remark))
        return False

    async def _reset(self, request: RemotingCommand) -> None:
        topic = request.ext.get("topic")
        try:
            offsets = decode_offsets(request.body)
        except BodyError as error:
            log.warning("a reset of %s with an unreadable body is ignored: %s", self.group, error)
            return
        await self.assignment.move({q: at for q, at in offsets.items() if q.topic == topic})

    def _offsets(self, request: RemotingCommand) -> bytes:
        topic = request.ext.get("topic")
        table: dict[WireQueue, WritableJson] = {
            _wire(queue): reader.held.committable
            for queue, reader in sorted(self.assignment.readers.items())
            if queue.topic == topic
        }
        return write_json({"messageQueueTable": table})

    def _running_info(self, request: RemotingCommand) -> bytes:
        """Encode the answer to 307, with the names that RocketMQ's ConsumerRunningInfo has."""
        readers = dict(sorted(self.assignment.readers.items()))
        info: dict[str, WritableJson] = {
            "mqTable": {
                _wire(queue): self._queue_info(reader) for queue, reader in readers.items()
            },
            "properties": {
                "PROP_CLIENT_VERSION": CLIENT_VERSION,
                "PROP_CONSUMEORDERLY": str(self.settings.ordered).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(self.started_at_ms),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_NAMESERVER_ADDR": ";".join(self.session.name_servers.addresses),
                "PROP_THREADPOOL_CORE_SIZE": str(self.settings.concurrency),
            },
            "statusTable": {
                topic: self._status(topic, list(readers.values())) for topic in self.subscriptions
            },
            "subscriptionSet": [_subscription(each) for each in self.subscriptions.values()],
        }
        if request.ext.get("jstackEnable") == "true":
            info["jstack"] = _stacks()
        return write_json(info)

    def _queue_info(self, reader: QueueReader) -> dict[str, WritableJson]:
        """Fill ProcessQueueInfo, RocketMQ's spelling included (`droped`); what we do not count is 0."""
        held, locks = reader.held, self.assignment.locks
        return {
            "cachedMsgCount": held.message_count,
            "cachedMsgMaxOffset": held.last_offset or 0,
            "cachedMsgMinOffset": held.committable if held.message_count else 0,
            "cachedMsgSizeInMiB": held.byte_count // _MIB,
            "commitOffset": held.committable,
            "droped": reader.is_released,
            "lastConsumeTimestamp": reader.consumed_at_ms,
            "lastLockTimestamp": 0,
            "lastPullTimestamp": reader.pulled_at_ms,
            "locked": locks is not None and locks.holds(held.queue),
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }

    def _status(self, topic: str, readers: list[QueueReader]) -> dict[str, WritableJson]:
        """Fill ConsumeStatus of one topic: rates in messages or pulls a second, times in ms."""
        now = anyio.current_time()
        rates = self.dispatcher.rates.get(topic, ConsumeRates())
        pulls = [reader.pulls for reader in readers if reader.held.queue.topic == topic]
        means = [mean for pull in pulls if (mean := pull.mean_ms(now))]
        return {
            "consumeFailedMsgs": rates.failed.count(now),
            "consumeFailedTPS": rates.failed.count(now) / WINDOW_S,
            "consumeOKTPS": rates.consumed.count(now) / WINDOW_S,
            "consumeRT": rates.consumed.mean_ms(now),
            "pullRT": sum(means) / len(means) if means else 0.0,
            "pullTPS": sum(pull.count(now) for pull in pulls) / WINDOW_S,
        }

    async def _consume_directly(self, link: Link, request: RemotingCommand) -> None:
        """Let the handler consume one message now and answer with the outcome; no offset moves, whatever it is."""
        try:
            record = decode_record(request.body)
        except MessageFormatError as error:
            problem = f"the message cannot be read: {error}"
            link.answer(make_response(request.opaque, ResponseCode.SYSTEM_ERROR, problem))
            return
        message = received(record, request.ext.get("brokerName", ""))
        started_at = anyio.current_time()
        remark: str | None = None
        try:
            result = await self.handler((message,))
        except Exception as error:  # the application's own; it goes into the answer
            log.exception("the handler failed on %s, asked for directly", message.unique_key)
            verdict, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
        else:
            is_later = result is ConsumeResult.LATER or (
                isinstance(result, Later) and not result.consumed
            )
            verdict = "CR_LATER" if is_later else "CR_SUCCESS"
        body = write_json(
            {
                "autoCommit": True,
                "consumeResult": verdict,
                "order": self.settings.ordered,
                "remark": remark,
                "spentTimeMills": int(1000 * (anyio.current_time() - started_at)),
            }
        )
        _answer(link, request, body)


def _answer(link: Link, request: RemotingCommand, body: bytes) -> None:
    link.answer(make_response(request.opaque, ResponseCode.SUCCESS, body=body))


def _wire(queue: MessageQueue) -> WireQueue:
    return WireQueue(queue.broker_name, queue.queue_id, queue.topic)


def _subscription(item: TopicSubscription) -> dict[str, WritableJson]:
    tags = sorted(item.tags)
    return {
        "classFilterMode": False,
        "codeSet": [java_hash(tag) for tag in tags],
        "expressionType": item.expression_type,
        "subString": item.expression,
        "subVersion": item.version,
        "tagsSet": list(tags),
        "topic": item.topic,
    }


def _stacks() -> str:
    """Return the stack of every thread of this process as text."""
    return "\n".join(
        f"thread {number}\n{''.join(traceback.format_stack(frame))}"
        for number, frame in sys._current_frames().items()  # noqa: SLF001 - documented, in spite of its name
    )

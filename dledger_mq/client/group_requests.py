"""The requests of a consumer group, typed: offsets, members, pulls, sending back.

Every request follows the leader of the queue's broker group; all of them may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from dledger_mq.client.errors import RequestFailedError
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.pulled_messages import pulled_messages
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.session import REQUEST_TIMEOUT_S, Session, raise_for
from dledger_mq.client.subscriptions import TopicSubscription
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import RemotingError
from dledger_mq.remoting.group_bodies import (
    LockRequest,
    decode_consumer_list,
    decode_lock_reply,
    encode_lock_request,
)
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.heartbeat import encode_client_config
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.remoting.requests import PULL_SUBSCRIPTION, PULL_SUSPEND

PULL_GRACE_S: Final = 5.0  # beyond the time that the broker may hold a pull
SEND_BACK_TIMEOUT_S: Final = 5.0
CHECK_TIMEOUT_S: Final = 3.0
_OFFSET_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


class PullAnswer(msgspec.Struct, frozen=True):
    """The result of a pull.

    Attributes:
        messages: in queue order, those that the subscription wants.
        next_offset: where the next pull starts.
        min_offset, max_offset: bounds of the queue; max is the next offset to be written.
        is_offset_wrong: the offset asked for lies outside the queue; `next_offset` is inside.
        is_empty: nothing lay at the offset (yet); False also when the filter dropped everything.
    """

    messages: tuple[ReceivedMessage, ...]
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    is_offset_wrong: bool
    is_empty: bool


class PulledRecords(msgspec.Struct, frozen=True):
    """The result of a pull, not decoded: for reading in bulk.

    Attributes:
        records: CommitLog records back to back, as the broker sent them. It compares hashes of tags, so
            there may be messages among them that the expression does not want.
        next_offset, min_offset, max_offset, is_offset_wrong, is_empty: as in `PullAnswer`.
    """

    records: bytes
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    is_offset_wrong: bool
    is_empty: bool


class GroupRequests:
    """Requests in the name of one consumer group.

    Args:
        session: to send them with.
        group: the consumer group.
        timeout_s: how long a question about offsets, or a commit, is tried.
    """

    def __init__(
        self, session: Session, group: str, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self.group = group

    async def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the group's stored offset, None when it has none.

        Raises:
            ClientError: it could not be found out.
        """
        # After a reset the broker takes commits of those who have asked since, by the name that they commit with.
        extra = {"clientId": self._session.client_id}
        answer = await self._ask(RequestCode.QUERY_CONSUMER_OFFSET, queue, extra, of_group=True)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        offset = _offset(raise_for(answer), "offset")
        return offset if offset >= 0 else None

    async def commit(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Store the group's offset: everything below it is finished.

        Raises:
            ClientError: it may not be stored.
        """
        # RocketMQ's request does not say who commits; ours does, since queues may be locked.
        extra = {"commitOffset": str(offset), "clientId": self._session.client_id}
        raise_for(await self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, queue, extra, of_group=True))

    async def max_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the next offset to be written. Raises ClientError."""
        return await self._bound(RequestCode.GET_MAX_OFFSET, queue)

    async def min_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the first offset that is kept. Raises ClientError."""
        return await self._bound(RequestCode.GET_MIN_OFFSET, queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> QueueOffset:
        """Return the first offset stored at or after a time. Raises ClientError."""
        extra = {"timestamp": str(timestamp_ms)}
        return await self._bound(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, extra)

    async def _bound(
        self, code: RequestCode, queue: MessageQueue, extra: dict[str, str] | None = None
    ) -> QueueOffset:
        return _offset(raise_for(await self._ask(code, queue, extra)), "offset")

    async def _ask(
        self,
        code: RequestCode,
        queue: MessageQueue,
        extra: dict[str, str] | None = None,
        *,
        of_group: bool = False,
    ) -> RemotingCommand:
        """Ask the leader about a queue, or change the group's place in it; tried for `timeout_s`."""
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), **(extra or {})}
        if of_group:
            ext["consumerGroup"] = self.group
        return await self._session.call_group(
            queue.broker_name, code, ext, timeout_s=self._timeout_s
        )

    async def lock(
        self, broker_name: str, queues: Iterable[MessageQueue]
    ) -> frozenset[MessageQueue]:
        """Ask for queues of one broker group, or for more time with them; return those that we have.

        Raises:
            ClientError: it could not be found out.
        """
        answer = await self._ask_locks(RequestCode.LOCK_BATCH_MQ, broker_name, queues)
        try:
            held = decode_lock_reply(answer.body)
        except RemotingError as error:
            raise RequestFailedError(answer.code, f"unreadable answer: {error}") from error
        return frozenset(MessageQueue(one.topic, one.broker_name, one.queue_id) for one in held)

    async def unlock(self, broker_name: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues for other members.

        Raises:
            ClientError: they may still be ours.
        """
        await self._ask_locks(RequestCode.UNLOCK_BATCH_MQ, broker_name, queues)

    async def _ask_locks(
        self, code: RequestCode, broker_name: str, queues: Iterable[MessageQueue]
    ) -> RemotingCommand:
        wanted = tuple(
            WireQueue(queue.broker_name, queue.queue_id, queue.topic) for queue in queues
        )
        body = encode_lock_request(LockRequest(self.group, self._session.client_id, wanted))
        return raise_for(await self._session.call_group(broker_name, code, {}, body))

    async def members(self, broker_name: str) -> list[str]:
        """Return the client ids of the group as one broker group knows them.

        Raises:
            ClientError: it could not be found out; a group without members is an error too.
        """
        answer = raise_for(
            await self._session.call_group(
                broker_name,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                {"consumerGroup": self.group},
            )
        )
        try:
            return decode_consumer_list(answer.body)
        except RemotingError as error:
            raise RequestFailedError(answer.code, f"unreadable member list: {error}") from error

    async def check(self, broker_name: str, subscription: TopicSubscription) -> None:
        """Ask one broker group whether it takes a subscription.

        Raises:
            ClientError: it does not, or that could not be found out.
        """
        body = encode_client_config(self._session.client_id, self.group, subscription.reported())
        raise_for(
            await self._session.call_group(
                broker_name, RequestCode.CHECK_CLIENT_CONFIG, {}, body, timeout_s=CHECK_TIMEOUT_S
            )
        )

    async def pull(
        self,
        address: str,
        queue: MessageQueue,
        offset: QueueOffset,
        subscription: TopicSubscription,
        *,
        max_messages: int,
        hold_s: float,
    ) -> PullAnswer:
        """Read from a queue at one node; it may hold the request while there is nothing.

        Raises:
            ConnectionLostError, RequestTimeoutError: no answer, or one that is damaged.
            RequestFailedError: another code.
        """
        pulled = await self.pull_records(
            address, queue, offset, subscription, max_messages=max_messages, hold_s=hold_s
        )
        return decode_pulled(pulled, queue, offset, subscription)

    async def pull_records(
        self,
        address: str,
        queue: MessageQueue,
        offset: QueueOffset,
        subscription: TopicSubscription,
        *,
        max_messages: int,
        hold_s: float,
        grace_s: float = PULL_GRACE_S,
    ) -> PulledRecords:
        """Pull as `pull` does, and return the records as they came; `grace_s` is the time beyond `hold_s`.

        Raises:
            ConnectionLostError, RequestTimeoutError: no answer.
            RequestFailedError: another code, or an answer without its numbers.
        """
        hold_ms = max(int(hold_s * 1000), 0)
        answer = await self._session.links.get(address).call(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": self.group,
                "topic": queue.topic,
                "queueId": str(queue.queue_id),
                "queueOffset": str(offset),
                "maxMsgNums": str(max_messages),
                "sysFlag": str(PULL_SUBSCRIPTION | (PULL_SUSPEND if hold_ms else 0)),
                "commitOffset": "0",
                "suspendTimeoutMillis": str(hold_ms),
                "subscription": subscription.expression,
                "subVersion": str(subscription.version),
                "expressionType": subscription.expression_type,
            },
            timeout_s=hold_s + grace_s,
        )
        if answer.code not in _OFFSET_CODES:
            raise RequestFailedError(answer.code, answer.remark or "")
        return PulledRecords(
            answer.body if answer.code == ResponseCode.SUCCESS else b"",
            _offset(answer, "nextBeginOffset"),
            _offset(answer, "minOffset"),
            _offset(answer, "maxOffset"),
            answer.code == ResponseCode.PULL_OFFSET_MOVED,
            answer.code == ResponseCode.PULL_NOT_FOUND,
        )

    async def send_back(
        self, message: ReceivedMessage, *, delay_level: int, max_reconsume_times: int
    ) -> None:
        """Give a message back; it comes again through the retry topic, later.

        Raises:
            ClientError: it may not have been taken.
        """
        raise_for(
            await self._session.call_group(
                message.queue.broker_name,
                RequestCode.CONSUMER_SEND_MSG_BACK,
                {
                    "group": self.group,
                    "offset": str(message.physical_offset),
                    "delayLevel": str(delay_level),
                    "originMsgId": message.message_id,
                    "originTopic": message.topic,
                    "unitMode": "false",
                    "maxReconsumeTimes": str(max_reconsume_times),
                },
                timeout_s=SEND_BACK_TIMEOUT_S,
            )
        )


def _offset(answer: RemotingCommand, name: str) -> QueueOffset:
    try:
        return QueueOffset(fields.int64(answer.ext, name))
    except RemotingError as error:
        raise RequestFailedError(answer.code, f"unreadable answer: {error}") from error


def decode_pulled(
    pulled: PulledRecords, queue: MessageQueue, offset: QueueOffset, subscription: TopicSubscription
) -> PullAnswer:
    """Read the records of a pull that began at `offset`.

    Raises:
        ConnectionLostError: they cannot be read, or their offsets do not rise towards the next one.
    """
    messages = pulled_messages(
        pulled.records, queue, subscription, offset=offset, next_offset=pulled.next_offset
    )
    return PullAnswer(
        messages,
        pulled.next_offset,
        pulled.min_offset,
        pulled.max_offset,
        pulled.is_offset_wrong,
        pulled.is_empty,
    )

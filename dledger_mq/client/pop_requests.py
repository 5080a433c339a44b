"""Pops and the question whether there is something to pop, as one node answers them. Whoever calls follows the leader.

In order, a pop whose answer was lost keeps its queue for nobody until the time is over; so the next one at the same
place says that it is the same attempt, and gets what the lost one was given.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple
from uuid import uuid4

from dledger_mq.client.errors import RequestFailedError
from dledger_mq.client.group_order import GroupOrder
from dledger_mq.client.popped_messages import PoppedMessage, popped_messages
from dledger_mq.client.session import Session
from dledger_mq.client.subscriptions import TopicSubscription
from dledger_mq.message.names import is_retry_topic
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

POP_MAX: Final = 32
"""Messages that brokers give at once."""

HOLD_S: Final = 15.0
"""So long brokers are asked to hold a notice; the Java client's time for a pop."""

NOTICE_GRACE_S: Final = 5.0
"""For the answer to a notice beyond its hold; a node keeps a request for 2.5 s while its group elects."""

_ANY_QUEUE: Final = "-1"
_FROM_START, _FROM_END = "0", "1"


class PopPlace(NamedTuple):
    """A place to pop: a topic at one broker group.

    Attributes:
        subscription: the topic, and what is wanted of it.
    """

    subscription: TopicSubscription
    broker_name: str

    @property
    def is_retry(self) -> bool:
        """True for a retry topic: it need not be there, and what lies in it was handed out before."""
        return is_retry_topic(self.subscription.topic)

    def __str__(self) -> str:
        return f"{self.subscription.topic}@{self.broker_name}"


class Notice(NamedTuple):
    """The answer to the question whether there is something to pop.

    Attributes:
        is_full: the broker did not hold the question; too many are held already.
    """

    has_messages: bool
    is_full: bool


class GroupPops:
    """Pops in the name of one consumer group.

    Args:
        session: carries them.
        group: in whose name.
        ordered: whether a queue's messages are handed out in order, one pop after the other; None: as the group is set
            at the broker.
        from_end: whether a group that has no offset begins with what comes from then on.
        timeout_s: for the answer to a pop. A node that is silent is noticed sooner (link.py); what a slow one hands out
            must not be given up, since nobody else gets it meanwhile.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        ordered: bool | None,
        from_end: bool,
        timeout_s: float,
    ) -> None:
        self._session = session
        self._group = group
        self._order = GroupOrder(session, group, told=ordered)
        self._from_end = from_end
        self._timeout_s = timeout_s
        self._lost_attempts: dict[PopPlace, str] = {}

    async def pop(
        self, address: str, place: PopPlace, *, max_messages: int, invisible_ms: int
    ) -> tuple[PoppedMessage, ...]:
        """Pop at one node, without waiting; none when there is nothing now.

        Raises:
            ConnectionLostError, RequestTimeoutError: no answer; messages may have been handed out.
            RequestFailedError: another code.
        """
        is_ordered = await self._order.at(address, place.broker_name)
        attempt_id = self._lost_attempts.pop(place, None) or uuid4().hex
        is_first = place.is_retry or not self._from_end
        ext = {
            "maxMsgNums": str(max_messages),
            "invisibleTime": str(invisible_ms),
            "pollTime": "0",
            "initMode": _FROM_START if is_first else _FROM_END,
            "order": str(is_ordered).lower(),
        }
        is_answered = False
        try:
            code, timeout_s = RequestCode.POP_MESSAGE, self._timeout_s
            answer = await self._ask(
                code, address, place, ext, attempt_id=attempt_id, timeout_s=timeout_s
            )
            messages = _popped(answer, place)
            is_answered = True
        except RequestFailedError as error:
            is_answered = error.definite
            raise
        finally:
            if is_ordered and not is_answered:  # also when the caller was cancelled
                self._lost_attempts[place] = attempt_id
        return messages

    async def notice(self, address: str, place: PopPlace) -> Notice:
        """Ask one node whether there is something to pop; it may hold the question for HOLD_S. Nothing is handed out.

        Raises:
            ConnectionLostError, RequestTimeoutError: no answer.
            RequestFailedError: another code.
        """
        is_ordered = await self._order.at(address, place.broker_name)
        ext = {"pollTime": str(int(HOLD_S * 1000)), "order": str(is_ordered).lower()}
        code, timeout_s = RequestCode.NOTIFICATION, HOLD_S + NOTICE_GRACE_S
        answer = await self._ask(
            code, address, place, ext, attempt_id=uuid4().hex, timeout_s=timeout_s
        )
        if place.is_retry and answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return Notice(has_messages=False, is_full=True)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestFailedError(answer.code, answer.remark or "")
        said = answer.ext.get
        return Notice(said("hasMsg") == "true", said("pollingFull") == "true")

    async def _ask(
        self,
        code: RequestCode,
        address: str,
        place: PopPlace,
        ext: dict[str, str],
        *,
        attempt_id: str,
        timeout_s: float,
    ) -> RemotingCommand:
        """Ask one node with the fields that pops and notices share, and those in `ext`."""
        wanted = place.subscription
        named = {
            "consumerGroup": self._group,
            "topic": wanted.topic,
            "queueId": _ANY_QUEUE,
            "bornTime": str(time.time_ns() // 1_000_000),
            "expType": wanted.expression_type,
            "exp": wanted.expression,
            "attemptId": attempt_id,
        }
        link = self._session.links.get(address)
        return await link.call(code, named | ext, timeout_s=timeout_s)


def _popped(answer: RemotingCommand, place: PopPlace) -> tuple[PoppedMessage, ...]:
    if answer.code == ResponseCode.SUCCESS:
        return popped_messages(answer.body, answer.ext, place.broker_name)
    is_absent = place.is_retry and answer.code == ResponseCode.TOPIC_NOT_EXIST
    if is_absent or answer.code == ResponseCode.POLLING_TIMEOUT:
        return ()
    raise RequestFailedError(answer.code, answer.remark or "")

"""Routes and assignments. All queues are reached through the proxy, at the endpoints by which its client has come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from broker.proxy import checks
from broker.proxy.facts import Facts
from broker.proxy.protocol import (
    Assignment,
    MessageQueue,
    QueryAssignmentResponse,
    QueryRouteResponse,
)
from broker.proxy.protocol.numbers import Code, MessageType, QueuePermission
from broker.proxy.refusals import CallRefusedError, status
from dledger_mq.client.routes import PERM_READ, PERM_WRITE
from dledger_mq.client.session import Session
from dledger_mq.remoting.route import QueueData, TopicRoute

ENDPOINTS_BYTES_MAX: Final = 2048


class Routing:
    """Answers questions for routes from those of the name servers."""

    def __init__(self, session: Session, facts: Facts) -> None:
        self._session = session
        self._facts = facts

    async def route(self, request: Any) -> Any:
        """Answer QueryRoute: every queue, with what it is for.

        Raises:
            CallRefusedError, ClientError: there is no such topic, or nobody could be asked.
        """
        topic = checks.topic_of(request.topic)
        _check_endpoints(request.endpoints)
        found = await self._route_of(topic)
        kinds = await self._facts.kinds(topic, _broker_names(found))
        answer = QueryRouteResponse(status=status(Code.OK))
        for queues in found.queues:
            answer.message_queues.extend(_message_queues(request, queues, kinds))
        return answer

    async def assignment(self, request: Any) -> Any:
        """Answer QueryAssignment: in order each queue by itself, else each broker group once. All consumers get all.

        Raises:
            CallRefusedError, ClientError: as `route`; nothing of the topic can be read.
        """
        topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
        _check_endpoints(request.endpoints)
        found = await self._route_of(topic)
        is_ordered = (await self._facts.group(group, _broker_names(found))).is_ordered
        answer = QueryAssignmentResponse(status=status(Code.OK))
        for queues in found.queues:
            if not queues.perm & PERM_READ or not queues.read_queue_nums:
                continue
            for queue_id in range(queues.read_queue_nums) if is_ordered else (-1,):
                queue = _message_queue(request, queues.broker_name, queue_id)
                queue.permission = _permission(queues.perm)
                answer.assignments.append(Assignment(message_queue=queue))
        if not answer.assignments:
            raise CallRefusedError(Code.FORBIDDEN, f"no queue of topic {topic} can be read")
        return answer

    async def _route_of(self, topic: str) -> TopicRoute:
        """Return a route that is asked for now: clients ask seldom, and a queue that is new is wanted at once."""
        return await self._session.routes.refresh(topic)


def _broker_names(route: TopicRoute) -> list[str]:
    return sorted({queues.broker_name for queues in route.queues})


def _check_endpoints(endpoints: Any) -> None:
    """Refuse endpoints that are no few addresses: each queue of the answer has them."""
    if endpoints.ByteSize() > ENDPOINTS_BYTES_MAX:
        text = f"the endpoints have {endpoints.ByteSize()} bytes, at most {ENDPOINTS_BYTES_MAX}"
        raise CallRefusedError(Code.BAD_REQUEST, text)


def _message_queues(
    request: Any, queues: QueueData, kinds: tuple[MessageType, ...]
) -> Iterator[Any]:
    """Yield the queues of a broker group; where it has more for one use than for the other, some have only that."""
    readable = queues.read_queue_nums if queues.perm & PERM_READ else 0
    writable = queues.write_queue_nums if queues.perm & PERM_WRITE else 0
    for queue_id in range(max(readable, writable)):
        queue = _message_queue(request, queues.broker_name, queue_id)
        queue.permission = _permission(
            (PERM_READ if queue_id < readable else 0) | (PERM_WRITE if queue_id < writable else 0)
        )
        queue.accept_message_types.extend(kinds)
        yield queue


def _message_queue(request: Any, broker_name: str, queue_id: int) -> Any:
    queue = MessageQueue(id=queue_id)
    queue.topic.resource_namespace = request.topic.resource_namespace
    queue.topic.name = request.topic.name
    queue.broker.name = broker_name
    queue.broker.endpoints.CopyFrom(request.endpoints)
    return queue


def _permission(perm: int) -> QueuePermission:
    match bool(perm & PERM_READ), bool(perm & PERM_WRITE):
        case True, True:
            return QueuePermission.READ_WRITE
        case True, False:
            return QueuePermission.READ
        case False, True:
            return QueuePermission.WRITE
        case _:
            return QueuePermission.NONE

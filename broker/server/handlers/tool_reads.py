"""Answers to tools that look at one topic or group: settings, who subscribes, how far they are, since when, units.

Whole tables, messages and connections are shown elsewhere (admin.py), and so are changes (table_changes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from broker.server.handlers.members import Members
from broker.server.requests.request import Handler, PendingRequest, Where
from broker.server.requests.router import Router
from broker.service import consumption, tables
from broker.service.conclusions import RequestKind
from broker.service.connections import all_producers, subscription_answer
from broker.service.consumption import TimeSpan
from broker.service.refusal import Refusal
from broker.store.lookups import earliest_store_time, store_time_at
from broker.store.state import BrokerState
from broker.store.topics import TopicConfig
from dledger import LogServer
from dledger_mq.message import names
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

UNITS_MAX: Final = 1024
"""Units of one answer to QUERY_CONSUME_QUEUE."""

QUEUES_MAX: Final = 8192
"""Queues of one answer to GET_BROKER_CONSUME_STATS: some 40 ms of the loop."""

GROUP_SEPARATOR: Final = ","


class ToolReads:
    """Reads for tools; `handlers` says what is read at the leader and what here."""

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        router: Router,
        *,
        members: Members,
        broker_name: str,
        service_address: str,
        consumed_per_second: Callable[[str, str], float],
        given: tables.GivenOffsets,
        wall_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        """Set up the answers.

        Args:
            log: from which store times are read.
            state: the fold that is asked.
            router: waits for the disk.
            members: the live clients of all nodes.
            broker_name: of the group in routes.
            service_address: of this node.
            consumed_per_second: returns the pace of a group in a topic.
            given: returns how far the members of a group were given messages of a topic.
            wall_ms: the time that a delay is counted to.
            monotonic_ms: the clock by which clients are heard of.
        """
        self._log = log
        self._state = state
        self._router = router
        self._members = members
        self._broker_name = broker_name
        self._service_address = service_address
        self._consumed_per_second = consumed_per_second
        self._given = given
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code, read, here = RequestCode, RequestKind.READ, Where.HERE
        return (
            Handler(code.GET_TOPIC_CONFIG, self.topic, read, Where.ANY),
            Handler(code.GET_SUBSCRIPTIONGROUP_CONFIG, self.group, read, Where.ANY),
            Handler(code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics, read, here),
            Handler(code.GET_ALL_PRODUCER_INFO, self.producers, read, here),
            Handler(code.QUERY_SUBSCRIPTION_BY_CONSUMER, self.subscription, read, here),
            Handler(
                code.QUERY_TOPICS_BY_CONSUMER,
                self.topics_of_group,
                read,
                is_confirmed=True,
                counts_offsets=True,
            ),
            Handler(
                code.QUERY_CONSUME_TIME_SPAN,
                self.time_spans,
                read,
                is_confirmed=True,
                counts_offsets=True,
            ),
            Handler(
                code.QUERY_CORRECTION_OFFSET,
                self.corrections,
                read,
                is_confirmed=True,
                counts_offsets=True,
            ),
            Handler(
                code.GET_BROKER_CONSUME_STATS,
                self.all_consume_stats,
                read,
                is_confirmed=True,
                counts_offsets=True,
            ),
            Handler(code.QUERY_CONSUME_QUEUE, self.units, read, is_confirmed=True),
        )

    # Settings.

    def topic(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_TOPIC_CONFIG.

        Raises:
            FieldError: the topic is missing.
        """
        name = fields.text(command.ext, "topic")
        topic = self._state.topics.get(name)
        if topic is not None:
            request.answer(ResponseCode.SUCCESS, body=tables.one_topic(topic))
        else:
            self._deny(request, lambda: name not in self._state.topics, _no_topic(name))

    def group(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_SUBSCRIPTIONGROUP_CONFIG.

        Raises:
            FieldError: the group is missing.
        """
        name = fields.text(command.ext, "group")
        group = self._state.groups.get(name)
        if group is not None:
            request.answer(ResponseCode.SUCCESS, body=tables.one_group(group))
        else:
            text = f"the consumer group[{name}] not exist"
            refusal = Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
            self._deny(request, lambda: self._state.groups.get(name) is None, refusal)

    def _deny(
        self, request: PendingRequest, is_missing: Callable[[], bool], refusal: Refusal
    ) -> None:
        """Let a confirmed leader say that something does not exist; here it may only be unknown yet."""
        if not self._router.is_serving:
            self._router.route(request)
            return

        def confirmed() -> None:
            if is_missing():
                request.answer(refusal.code, refusal.remark)
            else:
                self._router.carry_out(request)

        self._router.when_confirmed(request, confirmed)

    def system_topics(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
        found = [
            topic.name for topic in self._state.topics if names.system_topic_problem(topic.name)
        ]
        request.answer(ResponseCode.SUCCESS, body=tables.topic_list(found, self._service_address))

    # Who produces, who consumes what.

    def producers(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_ALL_PRODUCER_INFO; producers of this node only."""
        ahead_ms = self._wall_ms() - self._monotonic_ms()
        seen = [
            (client, seen_ms + ahead_ms) for client, seen_ms in self._members.local.producers_seen()
        ]
        request.answer(ResponseCode.SUCCESS, body=all_producers(seen))

    def subscription(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer QUERY_SUBSCRIPTION_BY_CONSUMER: the newest one among the live members of a group, or none.

        Raises:
            FieldError: a field is missing.
        """
        group, topic = fields.text(command.ext, "group"), fields.text(command.ext, "topic")
        found = self._members.exchange.union.subscription(group, topic)
        request.answer(ResponseCode.SUCCESS, body=subscription_answer(group, topic, found))

    def topics_of_group(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer QUERY_TOPICS_BY_CONSUMER: the topics in which a group has committed an offset.

        Raises:
            FieldError: the group is missing.
        """
        found = self._state.offsets.topics_of(fields.text(command.ext, "group"))
        request.answer(ResponseCode.SUCCESS, body=tables.topic_list(found, self._service_address))

    # How far.

    def time_spans(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer QUERY_CONSUME_TIME_SPAN: when each queue's first and last messages came, and those at a group's place.

        Raises:
            FieldError: a field is missing.
        """
        group, topic = fields.text(command.ext, "group"), self._topic(request, command.ext)
        if topic is None:
            return
        may_wait, now_ms = self._router.may_wait_for_disk(request), self._wall_ms()
        stored = partial(
            store_time_at, self._state, self._log.reader, topic.name, may_wait=may_wait
        )
        earliest = partial(
            earliest_store_time, self._state, self._log.reader, topic.name, may_wait=may_wait
        )
        spans = []
        for queue_id in map(QueueId, range(topic.write_queue_count)):
            _, end = self._state.queues.min_max(topic.name, queue_id)
            consumed = self._state.offsets.get(group, topic.name, queue_id) or QueueOffset(0)
            spans.append(
                TimeSpan(
                    queue_id,
                    first_ms=earliest(queue_id),
                    last_ms=stored(queue_id, offset=QueueOffset(end - 1)),
                    consumed_ms=stored(queue_id, offset=QueueOffset(consumed - 1)),
                    next_ms=stored(queue_id, offset=consumed),
                )
            )
        body = consumption.time_spans(topic.name, self._broker_name, spans, now_ms=now_ms)
        request.answer(ResponseCode.SUCCESS, body=body)

    def corrections(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer QUERY_CORRECTION_OFFSET: up to where all groups but some have consumed a topic.

        Raises:
            FieldError: a field is missing.
        """
        ext = command.ext
        topic, group = fields.text(ext, "topic"), fields.text(ext, "compareGroup")
        left_out = (ext.get("filterGroups") or "").split(GROUP_SEPARATOR)
        body = consumption.correction_offsets(
            self._state.offsets,
            self._state.queues,
            topic,
            compared_group=group,
            left_out=frozenset(left_out),
        )
        request.answer(ResponseCode.SUCCESS, body=body)

    def all_consume_stats(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_BROKER_CONSUME_STATS: how far all groups are, in all topics or in the ordered ones.

        Raises:
            FieldError: a field is missing, or no truth value.
        """
        is_order = fields.boolean(command.ext, "isOrder")
        state = self._state
        topics = [topic for topic in state.topics if topic.is_order or not is_order]
        consumed = consumption.consumed_topics(state.groups, topics, state.offsets)
        count = sum(topic.read_queue_count for found in consumed.values() for topic in found)
        if count > QUEUES_MAX:
            text = f"the groups consume {count} queues, more than {QUEUES_MAX}: ask for one group at a time (208)"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
            return
        body = consumption.all_consume_stats(
            consumed,
            broker_name=self._broker_name,
            broker_address=self._service_address,
            queues=state.queues,
            offsets=state.offsets,
            given=self._given,
            pops=state.pops,
            per_second=self._consumed_per_second,
        )
        request.answer(ResponseCode.SUCCESS, body=body)

    def units(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer QUERY_CONSUME_QUEUE: units of one queue, from an offset on.

        Raises:
            FieldError: a field is missing or impossible.
        """
        ext = command.ext
        topic, queue_id = fields.text(ext, "topic"), QueueId(fields.int32(ext, "queueId"))
        first, count = fields.int64(ext, "index"), fields.int32(ext, "count")
        may_wait = self._router.may_wait_for_disk(request)
        queue = self._state.queues.get(topic, queue_id, without_waiting=may_wait)
        if queue is None:
            text = f"{queue_id}@{topic} is not exist!"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
            return
        group = ext.get("consumerGroup")
        wanted = self._members.exchange.union.subscription(group, topic) if group else None
        begin = QueueOffset(min(max(first, queue.min_offset), queue.max_offset))
        units = queue.units(begin, max(0, min(count, UNITS_MAX)), without_waiting=may_wait)
        body = consumption.units(
            units, wanted, min_offset=queue.min_offset, max_offset=queue.max_offset
        )
        request.answer(ResponseCode.SUCCESS, body=body)

    def _topic(self, request: PendingRequest, ext: Mapping[str, str]) -> TopicConfig | None:
        """Return the topic that is asked for; None: there is none, and the request was answered.

        Raises:
            FieldError: the topic is missing.
        """
        name = fields.text(ext, "topic")
        topic = self._state.topics.get(name)
        if topic is None:
            refusal = _no_topic(name)
            request.answer(refusal.code, refusal.remark)
        return topic


def _no_topic(name: str) -> Refusal:
    """Return the refusal of a topic that does not exist."""
    text = f"topic[{name}] not exist{names.missing_because(name)}"
    return Refusal(ResponseCode.TOPIC_NOT_EXIST, text)

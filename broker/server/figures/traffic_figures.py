"""The figures of what clients do at this node: connections, requests and their answers, messages in and out.

Messages that came in are counted by the log, so that every replica has the same figure; the leader alone shows it, or
a sum over a group's members would count them three times. What went out is counted by who gave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from broker.metrics.families import Families, Row
from broker.server.figures.observed import Observed
from broker.service.topic_attributes import MESSAGE_TYPE
from dledger_mq.message.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.heartbeat import ConsumeType

_NORMAL: Final = "NORMAL"
_CONSUME_MODES: Final = {
    ConsumeType.CONSUME_ACTIVELY: "pull",
    ConsumeType.CONSUME_PASSIVELY: "push",
    ConsumeType.CONSUME_POP: "pop",
}


def flag(value: object) -> str:
    """Return a label's value as RocketMQ writes it."""
    return "true" if value else "false"


def is_retry(topic: str) -> str:
    """Return whether a topic holds messages that a group got back, as a label's value."""
    return flag(topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))


class TrafficFigures(Collector):
    """The collector of what clients do here."""

    def __init__(self, families: Families, observed: Observed) -> None:
        self._families = families
        self._observed = observed

    def describe(self) -> Iterator[Metric]:
        """Return nothing: names are not known before somebody asks."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the families; see `Families` for their parts."""
        yield from self._connections()
        yield from self._requests()
        yield from self._waiting()
        yield from self._messages_in()
        yield from self._messages_out()

    def _connections(self) -> Iterator[Metric]:
        """Yield who is connected to this node."""
        observed, families = self._observed, self._families
        yield families.gauge(
            "dledger_connections", "connections of clients", observed.connection_count()
        )
        yield families.counter(
            "dledger_connections_refused",
            "connections that were turned away, since there were too many",
            observed.turned_away_count(),
        )
        local = observed.services.members.local
        producers = Counter(
            (client.language, str(client.version)) for client, _ in local.producers_seen()
        )
        consumers = Counter(
            (
                client.group,
                client.language,
                str(client.version),
                _CONSUME_MODES[client.consume_type],
            )
            for client in local.consumers()
        )
        yield from families.gauges(
            "rocketmq_producer_connections",
            "producers that are connected to this node",
            ["language", "version"],
            producers.items(),
        )
        yield from families.gauges(
            "rocketmq_consumer_connections",
            "consumers that are connected to this node",
            ["consumer_group", "language", "version", "consume_mode"],
            consumers.items(),
        )

    def _requests(self) -> Iterator[Metric]:
        """Yield how long requests took that were carried out here, by their code and outcome."""
        dispatch = self._observed.services.dispatch
        rows = [
            (
                (
                    "remoting",
                    _request_name(handler.code),
                    _response_name(code),
                    flag(was_held),
                    "success",
                ),
                durations,
            )
            for handler in (*dispatch.handlers, dispatch.unknown)
            for (code, was_held), durations in tuple(handler.calls.by_outcome.items())
        ]
        yield from self._families.histograms(
            "rocketmq_rpc_latency",
            "milliseconds until a request was answered",
            ["protocol_type", "request_code", "response_code", "is_long_polling", "result"],
            rows,
            in_seconds=False,
        )

    def _waiting(self) -> Iterator[Metric]:
        """Yield what waits here, and for what."""
        services = self._observed.services
        count_room, bytes_room = services.commits.room
        limits = self._observed.config().limits
        yield from self._families.gauges(
            "rocketmq_processor_watermark",
            "requests that wait: sends for their commit, pulls for a message, others for a leader",
            ["processor"],
            [
                (["send"], limits.staged_messages_max - count_room),
                (["pull"], services.pulls.held_count),
                (["admin"], services.router.waiting_count),
            ],
        )
        yield self._families.gauge(
            "dledger_staged_bytes",
            "bytes of sends that wait for their commit",
            limits.staged_bytes_max - bytes_room,
        )
        yield self._families.gauge(
            "dledger_forwarded_requests",
            "requests that were passed on, and wait for the leader's answer",
            services.link.asked_count,
        )
        yield self._families.gauge(
            "rocketmq_broker_permission", "4 read, 2 write", self._observed.config().permission
        )

    def _messages_in(self) -> Iterator[Metric]:
        """Yield what topics were given, and where their queues end."""
        labels = ["topic", "message_type", "is_system"]
        yield from self._families.counters(
            "rocketmq_messages_in", "messages that a topic was ever given", labels, self._puts(0)
        )
        yield from self._families.counters(
            "rocketmq_throughput_in", "bytes that a topic was ever given", labels, self._puts(1)
        )
        yield from self._families.gauges(
            "dledger_queue_offset",
            "offset of the next message of a queue",
            ["topic", "queue_id"],
            self._queue_ends(),
        )

    def _puts(self, which: int) -> Iterable[Row]:
        """Yield the messages (0) or bytes (1) of each topic; none where this node does not lead."""
        state = self._observed.state
        if not self._observed.log.is_serving:
            return
        for topic in tuple(state.topics):
            kind = topic.attributes.get(MESSAGE_TYPE, _NORMAL).lower()
            figure = state.topic_put_totals(topic.name)[which]
            yield (topic.name, kind, flag(is_system_topic(topic.name))), figure

    def _queue_ends(self) -> Iterable[Row]:
        state = self._observed.state
        if self._observed.log.is_serving:
            for key, queue in tuple(state.queues.by_key.items()):
                topic, queue_id = key
                name = topic.decode()
                if not is_system_topic(name):
                    yield (name, str(queue_id)), queue.max_offset

    def _messages_out(self) -> Iterator[Metric]:
        """Yield what this node gave groups."""
        labels = ["topic", "consumer_group", "is_retry", "is_system"]
        given = tuple(self._observed.services.pulls.counts.by_reader.items())

        def rows(size: bool) -> Iterable[Row]:
            for (group, topic), each in given:
                names = (topic, group, is_retry(topic), flag(is_system_topic(topic)))
                yield names, each.size_bytes if size else each.messages

        yield from self._families.counters(
            "rocketmq_messages_out",
            "messages that this node gave a group since its start",
            labels,
            rows(False),
        )
        yield from self._families.counters(
            "rocketmq_throughput_out",
            "bytes of messages that this node gave a group since its start",
            labels,
            rows(True),
        )


def _request_name(code: int) -> str:
    """Return the name of a request code as RocketMQ labels it."""
    try:
        return RequestCode(code).name.lower()
    except ValueError:
        return "unknown"


def _response_name(code: int) -> str:
    """Return the name of a response code as RocketMQ labels it."""
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return str(code)

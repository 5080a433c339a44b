"""The figures of consumer groups, and of messages that wait: lag, retries, dead letters, timers, transactions.

They follow from the log, and the leader alone shows them: elsewhere they would be older, and counted once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from broker.metrics.families import Families, Row
from broker.server.figures.lag_times import LagTimes
from broker.server.figures.observed import Observed
from broker.server.figures.traffic_figures import flag, is_retry
from broker.server.figures.waiting_topics import WaitingTopics
from broker.service.tables import consume_lag
from broker.store.transactions import TransactionVerdict
from dledger_mq.message.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, is_system_topic


class GroupFigures(Collector):
    """The collector of what groups lack, and of what waits."""

    def __init__(
        self,
        families: Families,
        observed: Observed,
        lag_times: LagTimes,
        waiting_topics: WaitingTopics,
    ) -> None:
        self._families = families
        self._observed = observed
        self._lag_times = lag_times
        self._waiting_topics = waiting_topics

    def describe(self) -> Iterator[Metric]:
        """Return nothing: names are not known before somebody asks."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the families; see `Families` for their parts."""
        yield from self._lags()
        yield from self._popped()
        yield from self._sent_back()
        yield from self._pending()
        yield from self._pending_by_topic()
        yield from self._ended()

    def _lags(self) -> Iterator[Metric]:
        """Yield what groups lack, in messages and in time, and where they are."""
        families, labels = self._families, ["topic", "consumer_group", "is_retry", "is_system"]
        yield from families.gauges(
            "rocketmq_consumer_lag_messages",
            "messages that a group has not consumed",
            labels,
            self._lag_messages(),
        )
        yield from families.gauges(
            "rocketmq_consumer_lag_latency",
            "milliseconds since the oldest message was stored that a group has not consumed",
            labels,
            self._lag_ms(1.0),
        )
        yield from families.gauges(
            "dledger_consumer_lag_seconds",
            "seconds since the oldest message was stored that a group has not consumed",
            labels,
            self._lag_ms(0.001),
        )
        yield from families.gauges(
            "dledger_consumer_offset",
            "offset up to which a group has consumed a queue",
            ["topic", "consumer_group", "queue_id"],
            self._offsets(),
        )

    def _popped(self) -> Iterator[Metric]:
        """Yield what groups have popped and not acknowledged, and how much more they may."""
        yield from self._families.gauges(
            "rocketmq_consumer_inflight_messages",
            "messages that a group has popped and not acknowledged; none for a group without any",
            ["topic", "consumer_group", "is_retry", "is_system"],
            self._in_flight(),
        )
        yield from self._families.gauges(
            "dledger_pop_room_messages",
            "messages more that a group which has some in flight may pop, before it is refused with code 209",
            ["consumer_group"],
            self._pop_room(),
        )

    def _in_flight(self) -> Iterable[Row]:
        if self._observed.log.is_serving:
            for group, topic, count in tuple(self._observed.state.pops.groups()):
                yield _labels(topic, group), count

    def _pop_room(self) -> Iterable[Row]:
        if self._observed.log.is_serving:
            pops = self._observed.state.pops
            for group in dict.fromkeys(group for group, _, _ in pops.groups()):
                yield (group,), pops.room(group)

    def _lag_messages(self) -> Iterable[Row]:
        state = self._observed.state
        if not self._observed.log.is_serving:
            return
        for name, group, _ in tuple(state.offsets.items()):
            topic = state.topics.get(name)
            if topic is not None:
                lag = consume_lag(topic, group=group, queues=state.queues, offsets=state.offsets)
                yield _labels(name, group), lag

    def _lag_ms(self, scale: float) -> Iterable[Row]:
        """Yield for each group the age of what it lacks; 0 where it lacks nothing, nothing where nobody can say."""
        state, now_ms = self._observed.state, self._observed.wall_ms()
        if not self._observed.log.is_serving:
            return
        oldest_ms = self._lag_times.oldest_ms
        for name, group, _ in tuple(state.offsets.items()):
            topic = state.topics.get(name)
            if topic is None:
                continue
            stored_ms = oldest_ms.get((name, group))
            if not consume_lag(topic, group=group, queues=state.queues, offsets=state.offsets):
                yield _labels(name, group), 0
            elif stored_ms is not None:
                yield _labels(name, group), max(0, now_ms - stored_ms) * scale

    def _offsets(self) -> Iterable[Row]:
        if self._observed.log.is_serving:
            for topic, group, offsets in tuple(self._observed.state.offsets.items()):
                for queue_id, offset in tuple(offsets.items()):
                    yield (topic, group, str(queue_id)), offset

    def _sent_back(self) -> Iterator[Metric]:
        """Yield the messages that groups sent back, and those that were given up."""
        yield from self._families.counters(
            "rocketmq_send_to_dlq_messages",
            "messages of a group that were given up; the topic is the one that they are in",
            ["topic", "consumer_group", "is_system"],
            (((topic, group, "false"), count) for topic, group, count in self._totals(DLQ_PREFIX)),
        )
        yield from self._families.counters(
            "dledger_retried_messages",
            "messages that a group got again, since it could not consume them",
            ["consumer_group"],
            (((group,), count) for _, group, count in self._totals(RETRY_PREFIX)),
        )

    def _totals(self, prefix: str) -> Iterable[tuple[str, str, int]]:
        """Yield topic, group and messages ever put, of the topics that groups have under a prefix."""
        state = self._observed.state
        if self._observed.log.is_serving:
            for topic in tuple(state.topics):
                if topic.name.startswith(prefix):
                    group = topic.name.removeprefix(prefix)
                    yield topic.name, group, state.topic_put_totals(topic.name)[0]

    def _pending(self) -> Iterator[Metric]:
        """Yield how many messages wait for something, and how many names there are."""
        state, families = self._observed.state, self._families
        yield families.gauge(
            "dledger_pending_timers",
            "messages with a due time that are not delivered yet",
            state.timers.count,
        )
        yield families.gauge(
            "dledger_pending_delays",
            "messages with a delay level that are not delivered yet",
            state.schedule.waiting_count,
        )
        yield families.gauge(
            "dledger_open_transactions", "half messages without an end", len(state.transactions)
        )
        yield families.gauge("dledger_topics", "topics", len(state.topics))
        yield families.gauge("dledger_consumer_groups", "consumer groups", len(state.groups))

    def _pending_by_topic(self) -> Iterator[Metric]:
        """Yield what waits for each topic, and how late the first of what is due is."""
        families, observed = self._families, self._observed
        yield from families.gauges(
            "rocketmq_half_messages",
            "half messages for a topic that have no end yet",
            ["topic"],
            self._half_messages(),
        )
        timed = self._waiting_topics.timed if observed.log.is_serving else None
        yield from families.gauges(
            "rocketmq_timing_messages",
            "messages for a topic that wait for a due time of their own",
            ["topic"],
            (((topic,), count) for topic, count in (timed or {}).items()),
        )
        delayed = self._waiting_topics.delayed if observed.log.is_serving else None
        yield from families.gauges(
            "dledger_delayed_messages",
            "messages for a topic that wait for the delay of a level",
            ["topic", "level"],
            (((topic, str(level)), count) for (topic, level), count in (delayed or {}).items()),
        )
        yield from families.gauges(
            "rocketmq_timer_dequeue_latency",
            "milliseconds since the first message with a due time should have been delivered",
            [],
            self._timer_latency_ms(),
        )

    def _half_messages(self) -> Iterable[Row]:
        if self._observed.log.is_serving:
            for topic, count in tuple(self._observed.state.transactions.open_counts.items()):
                yield (topic.decode(errors="replace"),), count

    def _timer_latency_ms(self) -> Iterable[Row]:
        if self._observed.log.is_serving:
            due_ms = self._observed.state.timers.next_due_ms()
            yield (), 0 if due_ms is None else max(0, self._observed.wall_ms() - due_ms)

    def _ended(self) -> Iterator[Metric]:
        """Yield the transactions that producers have ended at this node."""
        counts = tuple(self._observed.services.ends.counts.by_topic.items())
        for name, meaning, verdict in (
            ("rocketmq_commit_messages", "committed", TransactionVerdict.COMMITTED),
            ("rocketmq_rollback_messages", "rolled back", TransactionVerdict.ROLLED_BACK),
        ):
            rows = [((topic,), count) for (ended, topic), count in counts if ended is verdict]
            yield from self._families.counters(
                name,
                f"transactions that were {meaning} at this node since its start",
                ["topic"],
                rows,
            )


def _labels(topic: str, group: str) -> tuple[str, str, str, str]:
    is_system = is_system_topic(topic) or group.startswith(SYSTEM_GROUP_PREFIX)
    return topic, group, is_retry(topic), flag(is_system)

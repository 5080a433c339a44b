"""Retention per topic, at the leader: what is older than a topic's `reserve.time` is hidden, and its units dropped.

The log is not rewritten: the bytes stay until the log's beginning has passed them. So this is for topics whose messages
are to be seen for a shorter time than the log's; a longer one has no effect (docs/retention.md).

What is hidden stands in the log, as a position per topic, so that all replicas show the same.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from broker.server.requests.commits import Commits
from broker.service.topic_attributes import reserve_hours
from broker.store.control import HIDDEN_TOPICS_MAX, HideBefore
from broker.store.lookups import position_by_time
from broker.store.state import BrokerState
from broker.store.topics import DataVersion
from dledger import LogServer
from dledger.raft.ids import Position

TOPIC_ROUND_MS: Final = 600_000
"""Between two looks: hours are the unit."""

_WITHIN_MIN_BYTES: Final = 4096
_PARTS: Final = 64
_HOUR_MS: Final = 3_600_000


class TopicRetention:
    """Writes, now and then, from where on topics are shown."""

    def __init__(self, log: LogServer, state: BrokerState, commits: Commits) -> None:
        self._log = log
        self._state = state
        self._commits = commits
        self._next_ms = 0
        self._shortest: tuple[DataVersion, int | None] | None = None

    def shortest_ms(self) -> int | None:
        """Return the shortest time for which a topic is shown; None: no topic has one of its own."""
        version = self._state.topics.version
        if self._shortest is None or self._shortest[0] != version:
            hours = [reserve_hours(topic.attributes) for topic in self._state.topics]
            shortest = min(filter(None, hours), default=None)
            self._shortest = (version, None if shortest is None else shortest * _HOUR_MS)
        return self._shortest[1]

    def ask(self) -> None:
        """Look at the next tick."""
        self._next_ms = 0

    def tick(self, steady_ms: int, now_ms: int) -> None:
        """Hide what is due, if it is time to look; this node leads.

        Args:
            steady_ms: monotonic.
            now_ms: the group's time.

        Raises:
            DLedgerError: an entry cannot be read now; the next look tries again.
        """
        if steady_ms < self._next_ms:
            return
        self._next_ms = steady_ms + TOPIC_ROUND_MS
        by_hours: defaultdict[int, list[str]] = defaultdict(list)
        for topic in self._state.topics:
            if hours := reserve_hours(topic.attributes):
                by_hours[hours].append(topic.name)
        due = [
            (name, position)
            for hours, names in sorted(by_hours.items())
            for position in [self._position(now_ms - hours * _HOUR_MS)]
            for name in names
            if position > self._state.retention.beginning_of(name)
        ]
        for start in range(0, len(due), HIDDEN_TOPICS_MAX):
            if not self._commits.is_full:
                self._commits.stage_control(HideBefore(due[start : start + HIDDEN_TOPICS_MAX]))

    def _position(self, time_ms: int) -> Position:
        """Return a place before which everything was stored before a time, to a part of the log."""
        reader, beginning = self._log.reader, self._state.retention.position
        end = reader.applied_position
        within = min(self._log.config.segment_size_bytes // 16, (end - beginning) // _PARTS)
        return position_by_time(
            reader,
            beginning,
            end=end,
            time_ms=time_ms,
            within_bytes=max(_WITHIN_MIN_BYTES, within),
        )

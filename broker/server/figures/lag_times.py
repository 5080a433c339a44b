"""The age of the oldest message that a group has not consumed, by group and topic.

The log says when a message was stored; what is not in memory is read beside the loop, for a bounded time, and what was
found once is kept while the group stands there. Where a message cannot be looked at, there is no figure, and not a
wrong one. It must not know how figures are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Final

import trio

from broker.server.figures.missing_parts import read_missing
from broker.store.lookups import store_time_at
from broker.store.not_in_memory import NotInMemoryError
from broker.store.state import BrokerState
from dledger import DLedgerError, LogReader
from dledger_mq.message.numbers import QueueId, QueueOffset, StoreTimeMs

WAIT_S: Final = 2.0
"""For all of them together: Prometheus gives a scrape 10 s."""

STEP_S: Final = 0.002
TRIES_MAX: Final = 4
"""A message whose unit lies in a file takes a read for that, and one for itself."""

Place = tuple[str, QueueId, QueueOffset]
"""Topic, queue and offset of a message."""


class LagTimes:
    """The store times of the oldest messages that groups lack.

    Attributes:
        oldest_ms: by topic and group, as they were at the last `refresh`; only groups that lack messages, all of
            whose oldest ones could be looked at.
    """

    def __init__(self, state: BrokerState, reader: LogReader) -> None:
        self.oldest_ms: dict[tuple[str, str], StoreTimeMs] = {}
        self._state = state
        self._reader = reader
        self._known: dict[Place, StoreTimeMs] = {}

    async def refresh(self) -> None:
        """Look again; what cannot be looked at within WAIT_S has no time until the next time."""
        known: dict[Place, StoreTimeMs] = {}
        oldest_ms: dict[tuple[str, str], StoreTimeMs] = {}
        begun_s = perf_counter()
        with trio.move_on_after(WAIT_S):
            for topic, group, offsets in tuple(self._state.offsets.items()):
                times = []
                for place in tuple(self._lacking(topic, offsets)):
                    found = self._known.get(place) or await self._look_at(place)
                    times.append(found)
                    if found is not None:
                        known[place] = found
                if times and None not in times:
                    oldest_ms[topic, group] = min(each for each in times if each is not None)
                if perf_counter() - begun_s >= STEP_S:
                    await trio.lowlevel.checkpoint()
                    begun_s = perf_counter()
        self._known, self.oldest_ms = known, oldest_ms

    def _lacking(self, topic: str, offsets: Mapping[QueueId, QueueOffset]) -> Iterator[Place]:
        """Yield the oldest message that a group lacks in each queue where it has committed an offset."""
        for queue_id, offset in offsets.items():
            queue = self._state.queues.by_key.get((topic.encode(), queue_id))
            if queue is not None and offset < queue.max_offset:
                yield topic, queue_id, max(offset, queue.min_offset)

    async def _look_at(self, place: Place) -> StoreTimeMs | None:
        """Return when a message was stored; None if it cannot be said."""
        topic, queue_id, offset = place
        try:
            for _ in range(TRIES_MAX):
                try:
                    return store_time_at(
                        self._state, self._reader, topic, queue_id, offset=offset, may_wait=True
                    )
                except NotInMemoryError as missing:
                    await read_missing(self._reader, missing)
        except DLedgerError:
            return None  # damaged, and asked for
        return None

"""The messages that topics and groups were given, and groups have consumed, lately, as tools read it (315, 208, 317).

The counters are those of the figures over HTTP; they are looked at every ten seconds, some in each tick. It must not
know who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Final, Protocol

from broker.server.watches.counter_windows import DAY_MS, CounterWindows, Growth, Totals
from broker.store.state import BrokerState

ROUND_MS: Final = 10_000
LOOKS: Final = 500
"""Counters looked at in one tick: a millisecond."""

ACTIVE_MAX: Final = 4096
"""Counters that have changed within a day and have samples: 6 KiB each at most."""

NO_TOTALS: Final = Totals(0, 0)


class Traffic(Enum):
    """The kinds of counters."""

    PUT = "messages that a topic was given; by topic"
    GIVEN = "messages that this node gave a group; by topic and group"
    CONSUMED = "messages that a group's commits moved over; by topic and group"


Key = tuple[Traffic, str, str]
"""Kind, topic and group; of `Traffic.PUT` the group is empty."""


class Counted(Protocol):
    """The messages that a group was given."""

    messages: int
    size_bytes: int


class TrafficStats:
    """The samples of all counters of one node.

    Invariant: a counter without samples has not changed since `_begun`, or there were too many that have.

    Attributes:
        put, given: of all topics, and to all groups.
    """

    def __init__(
        self,
        state: BrokerState,
        given: Mapping[tuple[str, str], Counted],
        *,
        all_given: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        """Begin to count.

        Args:
            state: the fold's counters.
            given: what this node gave, by group and topic.
            all_given: returns the messages that this node gave anybody.
            now_ms: a clock that never goes back.
        """
        self._state = state
        self._given = given
        self._all_given = all_given
        self._now_ms = now_ms
        self.restart()

    def restart(self) -> None:
        """Count from here on: what the counters say by now is older."""
        now_ms = self._now_ms()
        self._old: frozenset[Key] | None = None
        self._restored = self._state.restored_index
        self._begun: dict[Key, Totals] = {}
        self._windows: dict[Key, CounterWindows] = {}
        self._round: Iterator[None] | None = None
        self._begun_ms = self._next_ms = now_ms
        self.put = CounterWindows(now_ms, self._all_put())
        self.given = CounterWindows(now_ms, Totals(self._all_given(), 0))

    def begin(self) -> None:
        """Note which counters there are, unless that was done: those that come later begin with nothing."""
        if self._old is None:
            self._old = frozenset(self._keys())

    def _begun_with(self, key: Key, totals: Totals) -> Totals:
        """Return what a counter began with that nobody has looked at; an old one with what it says now."""
        self.begin()
        assert self._old is not None, "it was noted just now"
        return totals if key in self._old else NO_TOTALS

    def tick(self) -> None:
        """Go on with a round of looks, or begin one when it is due."""
        if self._state.restored_index != self._restored:
            self.restart()
        if self._round is None:
            now_ms = self._now_ms()
            if now_ms < self._next_ms:
                return
            self._next_ms = now_ms + ROUND_MS
            self.put.sample(now_ms, self._all_put())
            self.given.sample(now_ms, Totals(self._all_given(), 0))
            self._round = self._look_at_all(now_ms)
        if next(self._round, self) is self:
            self._round, self._old = None, frozenset()

    def _all_put(self) -> Totals:
        return Totals(self._state.put_count, self._state.put_bytes)

    def _look_at_all(self, now_ms: int) -> Iterator[None]:
        """Look at all counters; yields now and then."""
        keys = self._keys()
        for place, key in enumerate(keys, 1):
            self._look_at(key, now_ms)
            if not place % LOOKS:
                yield
        known = set(keys)
        for gone in self._begun.keys() - known:
            del self._begun[gone]
        for key, windows in tuple(self._windows.items()):
            if key not in known:
                del self._windows[key]
            elif now_ms - windows.last_ms > DAY_MS:
                del self._windows[key]
                self._begun[key] = self._totals(key)

    def _keys(self) -> list[Key]:
        """Return what is counted now."""
        return [
            *((Traffic.PUT, topic.name, "") for topic in self._state.topics),
            *((Traffic.GIVEN, topic, group) for group, topic in self._given),
            *((Traffic.CONSUMED, topic, group) for topic, group, _ in self._state.offsets.items()),
        ]

    def _look_at(self, key: Key, now_ms: int) -> None:
        """Sample one counter, if it moves."""
        totals = self._totals(key)
        windows = self._windows.get(key)
        if windows is None:
            # What is new since the last round began with nothing.
            begun = self._begun.get(key)
            if begun is None:
                begun = self._begun[key] = self._begun_with(key, totals)
            if totals == begun or len(self._windows) >= ACTIVE_MAX:
                return
            windows = self._windows[key] = CounterWindows(now_ms - ROUND_MS, begun)
        elif totals.messages < windows.latest.messages:  # deleted, and created again
            windows = self._windows[key] = CounterWindows(now_ms - ROUND_MS, NO_TOTALS)
        windows.sample(now_ms, totals)

    def _totals(self, key: Key) -> Totals:
        """Return what a counter says now."""
        kind, topic, group = key
        if kind is Traffic.PUT:
            return Totals(*self._state.topic_put_totals(topic))
        if kind is Traffic.CONSUMED:
            return Totals(self._state.offsets.consumed_count(group, topic), 0)
        given = self._given.get((group, topic))
        return NO_TOTALS if given is None else Totals(given.messages, given.size_bytes)

    # Questions.

    def growth(self, kind: Traffic, topic: str, group: str = "") -> tuple[Growth, Growth, Growth]:
        """Return how much a counter has grown within the last minute, hour and day."""
        key = (kind, topic, group)
        now_ms, totals = self._now_ms(), self._totals(key)
        windows = self._windows.get(key)
        if windows is None:
            begun = self._begun.get(key)
            if begun is None:
                begun = self._begun_with(key, totals)
            windows = CounterWindows(max(self._begun_ms, now_ms - ROUND_MS), begun)
        return windows.growth(now_ms, totals)

    def growth_of_all(self, *, is_put: bool) -> tuple[Growth, Growth, Growth]:
        """Return how much all topics were given (`is_put`), or this node gave all groups."""
        if is_put:
            return self.put.growth(self._now_ms(), self._all_put())
        return self.given.growth(self._now_ms(), Totals(self._all_given(), 0))

    def consumed_per_second(self, group: str, topic: str) -> float:
        """Return how many messages a group has consumed in a second of the last minute."""
        return self.growth(Traffic.CONSUMED, topic, group)[0].per_second

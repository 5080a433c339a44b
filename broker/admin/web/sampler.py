"""The one task that asks: it looks at the cluster again and again, however many people look at the console.

What it found stands in its attributes until the next round; what could not be asked anew stays as it was, and says
since when. Each round is bounded: so many topics, groups and delays of a broker group, in turn.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import trio

from broker.admin.answers import GroupPlace, QueueStats, WireGroupConfig
from broker.admin.ask import make_links
from broker.admin.broker_tables import BrokerRefusedError, BrokerTables, NoAnswerError
from broker.admin.health import UNKNOWN_GROUP, ClusterHealth, GroupHealth, MemberHealth, MemberState
from broker.admin.looks import Look, Looks
from broker.admin.survey import ANSWER_S
from broker.admin.web.history import Rates, SampleHistory
from broker.admin.web.timeline import Timeline
from dledger_mq.client.link import Links
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.remoting.topic_config import WireTopicConfig

_Name = TypeVar("_Name", str, tuple[str, str])

LOOK_S: Final = 2.0
"""Between two looks at all members."""

TABLES_S: Final = 5.0
"""Between two rounds of questions about topics and groups."""

TABLES_WITHIN_S: Final = 20.0

TOPICS_A_ROUND: Final = 64
DELAYS_A_ROUND: Final = 16

TABLE_ROWS_MAX: Final = 10_000
"""Topics or groups of one broker group that are looked at; the rest is not shown."""

BEHIND_SERIES_MAX: Final = 64
"""Consumer groups whose lag is kept as a series: those with the largest."""

FORGOTTEN_MS: Final = 600_000


@dataclass(slots=True)
class GroupTables:
    """The tables of one broker group, as they were last answered.

    Attributes:
        at_ms: when all of a round was answered last; 0: never.
        problem: why not all of the last round was; empty: it was.
        queues: bounds by topic and queue id.
        consumed: by consumer group.
        delays_ms: how long the next message of a consumer group has waited in a topic, the longest of all queues.
        lag_sums: messages that a consumer group is behind, by topic.
        groups_of: the consumer groups that have committed an offset in a topic.
    """

    at_ms: int = 0
    problem: str = ""
    topics: dict[str, WireTopicConfig] = field(default_factory=dict)
    groups: dict[str, WireGroupConfig] = field(default_factory=dict)
    queues: dict[str, dict[int, QueueStats]] = field(default_factory=dict)
    consumed: dict[str, dict[WireQueue, GroupPlace]] = field(default_factory=dict)
    delays_ms: dict[tuple[str, str], int] = field(default_factory=dict)
    lag_sums: dict[str, dict[str, int]] = field(default_factory=dict)
    groups_of: dict[str, set[str]] = field(default_factory=dict)
    last_topic: str = ""
    last_delay: tuple[str, str] = ("", "")

    def lag(self, group: str, queue: WireQueue) -> int | None:
        """Return how many messages of a queue a group has not consumed and still can; None: no offset is committed."""
        consumed = self.consumed.get(group, {}).get(queue)
        if consumed is None or consumed.consumer_offset < 0:
            return None
        end = self.end(queue, consumed)
        if end is None:
            return None
        bounds = self.queues.get(queue.topic, {}).get(queue.queue_id, QueueStats())
        return max(0, end - max(consumed.consumer_offset, bounds.min_offset))

    def end(self, queue: WireQueue, consumed: GroupPlace) -> int | None:
        """Return the next offset of a queue to be written; None: it was not asked for yet."""
        bounds = self.queues.get(queue.topic, {}).get(queue.queue_id)
        if bounds is None:
            return consumed.broker_offset or None
        return max(consumed.broker_offset, bounds.max_offset)

    def lags(self, group: str) -> Mapping[str, int]:
        """Return the lag of a group by topic."""
        return self.lag_sums.get(group, {})

    def sum_up(self) -> None:
        """Sum the lags by group and topic, once for all who look."""
        self.lag_sums, self.groups_of = {}, {}
        for group, queues in self.consumed.items():
            sums = self.lag_sums[group] = {}
            for queue in queues:
                lag = self.lag(group, queue)
                if lag is not None:
                    sums[queue.topic] = sums.get(queue.topic, 0) + lag
                    self.groups_of.setdefault(queue.topic, set()).add(group)


class Sampler:
    """Asks in rounds; `run` is its task.

    Attributes:
        look: the last look; None before the first one.
        tables: by broker group.
    """

    def __init__(
        self, looks: Looks, wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self.look: Look | None = None
        self.tables: dict[str, GroupTables] = {}
        self.history = SampleHistory()
        self.rates = Rates()
        self.timeline = Timeline()
        self._looks = looks
        self._wall_ms = wall_ms

    @property
    def health(self) -> ClusterHealth:
        """The health by the last look."""
        return ClusterHealth({}, ()) if self.look is None else self.look.health

    async def run(self) -> None:
        """Ask until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_repeat, LOOK_S, self.look_once)
            nursery.start_soon(_repeat, TABLES_S, self.ask_once)

    async def look_once(self) -> None:
        """Look at all members, and note what has a history."""
        self.look = await self._looks.look()
        at_ms = self._wall_ms()
        self.timeline.note(at_ms, self.look.health)
        values: dict[str, float | None] = {}
        for group in self.look.health.groups:
            values |= self._figures(at_ms, group)
        self.history.add(at_ms, values | self._behind())

    @property
    def has_heard(self) -> bool:
        """True once a broker group has told its topics; before that, what is not there is not known."""
        return any(tables.topics for tables in self.tables.values())

    async def ask_once(self) -> None:
        """Ask one member of each broker group for its tables, the leader where there is one."""
        if self.look is None:
            await self.look_once()
        with trio.move_on_after(TABLES_WITHIN_S):
            async with trio.open_nursery() as nursery:
                links = make_links(nursery)
                async with trio.open_nursery() as asking:
                    for group in self.health.groups:
                        asking.start_soon(self._ask_group, links, group)
                nursery.cancel_scope.cancel()
        self.rates.forget_before(self._wall_ms() - FORGOTTEN_MS)

    def _figures(self, at_ms: int, group: GroupHealth) -> dict[str, float | None]:
        """Return the figures of a group's members; each has stored the same, and what they gave out is summed."""
        name = group.name
        facts = [one.facts for one in group.members if one.facts is not None]
        stored = max(
            (one.stored_count for one in facts if one.stored_count is not None), default=None
        )
        values: dict[str, float | None] = {}
        if stored is not None:
            values[f"stored/{name}"] = self.rates.note(("stored", name), at_ms, stored)
        given: list[float] = []
        for one in facts:
            if one.given_count is not None:
                rate = self.rates.note(("given", name, one.node_id), at_ms, one.given_count)
                given += [] if rate is None else [rate]
            values[f"sync/{name}/{one.node_id}"] = one.sync_ms
            values[f"clients/{name}/{one.node_id}"] = one.clients
        values[f"given/{name}"] = sum(given) if given else None
        for member in group.members:
            if member.node_id and member.state is not MemberState.LEADER:
                values[f"lag/{name}/{member.node_id}"] = member.lag_entries
        return values

    def _behind(self) -> dict[str, float | None]:
        """Return the lags of the consumer groups that are furthest behind."""
        sums: dict[str, float] = {}
        for tables in self.tables.values():
            for group in tables.consumed:
                sums[group] = sums.get(group, 0) + sum(tables.lags(group).values())
        largest = sorted(sums, key=lambda group: (-sums[group], group))[:BEHIND_SERIES_MAX]
        return {f"behind/{group}": sums[group] for group in largest}

    async def _ask_group(self, links: Links, group: GroupHealth) -> None:
        """Ask about one broker group; without a leader only what each member knows by itself."""
        if group.name == UNKNOWN_GROUP:
            return
        tables = self.tables.setdefault(group.name, GroupTables())
        member = _asked_member(group)
        if member is None:
            tables.problem = "no member answers"
            return
        ask = BrokerTables(links, member.address, timeout_s=ANSWER_S)
        try:
            tables.topics = dict(sorted((await ask.topics()).items())[:TABLE_ROWS_MAX])
            tables.groups = dict(sorted((await ask.groups()).items())[:TABLE_ROWS_MAX])
            if group.leader is None:
                tables.problem = "nobody leads: offsets cannot be asked for"
                return
            await self._ask_consumed(ask, group.name, tables)
            await self._ask_queues(ask, group.name, tables)
            tables.sum_up()
            await self._ask_delays(ask, tables)
        except NoAnswerError as error:
            tables.problem = str(error)
        else:
            tables.problem, tables.at_ms = "", self._wall_ms()

    async def _ask_consumed(self, ask: BrokerTables, broker: str, tables: GroupTables) -> None:
        """Ask how far all groups are, those without settings, too. NoAnswerError."""
        consumed = await ask.offsets(broker)
        try:
            for group, queues in (await ask.all_consumed()).items():
                consumed.setdefault(group, {}).update(queues)
        except BrokerRefusedError:
            pass  # too many queues for one answer: the ends are those of the topics' queues
        tables.consumed = dict(sorted(consumed.items())[:TABLE_ROWS_MAX])
        at_ms = self._wall_ms()
        for group, queues in tables.consumed.items():
            sums: dict[str, int] = {}
            for queue, place in queues.items():
                sums[queue.topic] = sums.get(queue.topic, 0) + max(0, place.consumer_offset)
            for topic, count in sums.items():
                self.rates.note(("consumed", broker, group, topic), at_ms, count)

    async def _ask_queues(self, ask: BrokerTables, broker: str, tables: GroupTables) -> None:
        """Ask for the bounds of some topics' queues. NoAnswerError if nobody answers for any of them."""
        failures: list[NoAnswerError] = []
        wanted = _in_turn(tables.topics, tables.last_topic, TOPICS_A_ROUND)
        for topic in wanted:
            try:
                tables.queues[topic] = await ask.queues(topic)
            except (
                BrokerRefusedError
            ):  # deleted meanwhile, or not for us to see: the next one may be
                tables.last_topic = topic
                continue
            except NoAnswerError as error:  # nobody leads any more
                failures.append(error)
                if len(failures) > 1:
                    raise
                continue
            tables.last_topic = topic
            count = sum(queue.max_offset for queue in tables.queues[topic].values())
            self.rates.note(("written", broker, topic), self._wall_ms(), count)
        tables.queues = {
            topic: queues for topic, queues in tables.queues.items() if topic in tables.topics
        }

    async def _ask_delays(self, ask: BrokerTables, tables: GroupTables) -> None:
        """Ask how long messages have waited for some of the groups that are behind. NoAnswerError."""
        behind = {
            (group, topic)
            for group in tables.consumed
            for topic, lag in tables.lags(group).items()
            if lag
        }
        tables.delays_ms = {pair: each for pair, each in tables.delays_ms.items() if pair in behind}
        for group, topic in _in_turn(behind, tables.last_delay, DELAYS_A_ROUND):
            tables.last_delay = (group, topic)
            try:
                delays = await ask.delays_ms(group, topic)
            except BrokerRefusedError:  # as with topics
                continue
            tables.delays_ms[group, topic] = max(delays.values(), default=0)


async def _repeat(interval_s: float, ask: Callable[[], Awaitable[None]]) -> None:
    """Ask every so many seconds, or less often where answers take longer."""
    while True:
        next_s = trio.current_time() + interval_s
        await ask()
        await trio.sleep_until(next_s)


def _asked_member(group: GroupHealth) -> MemberHealth | None:
    """Return the member that is asked for its tables: the leader, else one that answers."""
    answering = (one for one in group.members if one.facts is not None and one.facts.node_id)
    return group.leader or next(answering, None)


def _in_turn(names: Iterable[_Name], after: _Name, count: int) -> list[_Name]:
    """Return so many names, those that follow one first, and from the beginning again."""
    ordered = sorted(names)
    place = bisect_right(ordered, after)
    return (ordered[place:] + ordered[:place])[:count]

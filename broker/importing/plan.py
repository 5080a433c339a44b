"""What an import takes over of a store, and why it leaves the rest, decided from a survey of it.

The rules (docs/migration.md): messages of topics that exist go over as they are, with their queue offsets. Of the
topics on which RocketMQ keeps what waits only that goes over. What would be lost or shown wrongly is a problem, and
with one problem nothing is imported, unless whoever imports has said that this topic is to be left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.importing.json_tables import DELAYS, GROUPS, OFFSETS, TIMERS, TOPICS
from broker.importing.queue_files import KnownQueue
from broker.importing.survey import SourceSurvey, Treatment, revive_pending, treatment_of
from broker.importing.tallies import QueueTally
from broker.store.groups import SubscriptionGroupConfig
from broker.store.schedule import DELAY_LEVELS_TEXT, parse_delay_levels
from broker.store.timers import TIMER_KEY
from broker.store.topics import QUEUE_COUNT_MAX, SYSTEM_TOPICS, TopicConfig
from broker.store.transactions import HALF_KEY
from broker.store.unit_stores import QueueKey
from dledger.storage.segmented_log import SEGMENT_SIZE_BYTES
from dledger_mq.message import names
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset

LIGHT_QUEUES: Final = "%LMQ%"
"""By this name light queues are left out; it is the prefix of theirs."""

POP: Final = "POP"
"""By this name what pop consumers have in flight is left out."""

POSITION_STEP: Final = 1024 * 1024
"""The new log begins at a multiple of it, so that people see where it begins."""

CONSUME_QUEUES: Final = "consumequeue"
"""With `/` and a topic: messages of it that lie in queues which RocketMQ no longer has."""

BLOCKING_TABLES: Final = frozenset({"topicQueueMapping.json"})
"""Files of `config` that are not left out without being asked for."""

DELAYS_MS_DEFAULT: Final = tuple(parse_delay_levels(DELAY_LEVELS_TEXT))

_DERIVED_BYTES: Final = 128
"""Of units and keys of a message, in files and in snapshots."""

_OURS: Final = frozenset(
    config.name for config in SYSTEM_TOPICS if not names.is_control_topic(config.name)
)
_DELETE: Final = "DELETE"


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason for which nothing is imported.

    Attributes:
        what: the topic, the file or the place.
        why: what would be lost or wrong.
        remedy: what to do about it.
    """

    what: str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class PlannedQueue:
    """One queue as it will be.

    Attributes:
        min_offset, max_offset: as in RocketMQ.
        begun_at: messages before this place of the old log are void.
        message_count, message_bytes: what is taken over.
    """

    min_offset: QueueOffset
    max_offset: QueueOffset
    begun_at: PhysicalOffset = PhysicalOffset(0)
    message_count: int = 0
    message_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that is not imported, and why nobody misses it, or who said so."""

    what: str
    why: str
    count: int


@dataclass(slots=True)
class ImportPlan:
    """Everything that an import does.

    Attributes:
        position: where the new log begins: behind every place of the old one.
        log_bytes: of the old one.
        queues: of topics that go over as they are, and delayed messages.
        topics: to create.
        groups, forbidden, offsets: as in RocketMQ.
        half_count, timer_count: messages that wait.
        left_out: what is not imported.
        problems: why nothing is; empty: all is well.
        warnings: what to know before.
    """

    position: int
    log_bytes: int = 0
    queues: dict[QueueKey, PlannedQueue] = field(default_factory=dict)
    topics: list[TopicConfig] = field(default_factory=list)
    groups: list[SubscriptionGroupConfig] = field(default_factory=list)
    forbidden: dict[tuple[str, str], int] = field(default_factory=dict)
    offsets: list[tuple[str, str, QueueId, QueueOffset]] = field(default_factory=list)
    half_count: int = 0
    timer_count: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def message_count(self) -> int:
        """Return how many messages are taken over."""
        queued = sum(queue.message_count for queue in self.queues.values())
        return queued + self.half_count + self.timer_count

    @property
    def room_bytes(self) -> int:
        """Return how many bytes an import may take on the disk: the log, its states, and a segment to spare."""
        return self.log_bytes + self.message_count * _DERIVED_BYTES + 2 * SEGMENT_SIZE_BYTES


def make_plan(
    found: SourceSurvey,
    *,
    leave_out: Collection[str],
    after_crash: bool,
    is_until: bool,
    delays_ms: Sequence[int] = DELAYS_MS_DEFAULT,
) -> ImportPlan:
    """Decide what becomes of a store.

    Args:
        found: what it holds.
        leave_out: topics that are not wanted, and LIGHT_QUEUES or POP.
        after_crash: it is known that the broker was not stopped in order.
        is_until: it is known where the log is taken for ended.
        delays_ms: of the delay levels, as the broker is said to have had them.
    """
    step = POSITION_STEP
    plan = ImportPlan(position=(found.files[-1].end_offset // step + 1) * step)
    plan.log_bytes = found.message_bytes
    _judge_log(plan, found, after_crash=after_crash, is_until=is_until)
    planner = _Planner(plan, found, frozenset(leave_out), delays_ms, is_until=is_until)
    planner.plan_queues()
    planner.plan_waiting()
    planner.plan_tables()
    return plan


def _judge_log(plan: ImportPlan, found: SourceSurvey, *, after_crash: bool, is_until: bool) -> None:
    """Judge the log's end, and how the broker ended."""
    end = found.end
    if end.problem:
        plan.problems.append(
            Problem(
                "commit log",
                str(end),
                "put a whole copy in place, or start RocketMQ once and stop it: it cuts what it cannot read. To import "
                f"what stands before that place, say --until {end.physical_offset}",
            )
        )
    beyond = _queued_to(found)
    if beyond > end.physical_offset and not is_until and not end.problem:
        plan.problems.append(
            Problem(
                "commit log",
                f"it ends at physical offset {end.physical_offset}, but consume queues name messages up to {beyond}",
                "the files are not of one moment, or the log's end was lost: put a whole copy in place, or say "
                f"--until {end.physical_offset}",
            )
        )
    if found.uncommitted_count and not after_crash:
        plan.problems.append(
            Problem(
                "commit log",
                f"DLedger knew the last {found.uncommitted_count} entries of it not to be committed yet",
                "take the store of the node that led last, stopped in order; or say --after-crash, if this is the "
                "longest log there is: messages that were never acknowledged may be among them",
            )
        )
    if found.was_stopped:
        return
    if after_crash:
        plan.warnings.append(
            "the broker was not stopped in order: consumer offsets may be 5 s old and progress of delayed messages "
            "10 s, so some messages may come again"
        )
    else:
        plan.problems.append(
            Problem(
                "abort",
                "the broker was not stopped in order, so offsets and progress may be older than the log",
                "start it once more and stop it (mqshutdown broker), or say --after-crash",
            )
        )


def _queued_to(found: SourceSurvey) -> PhysicalOffset:
    """Return up to where RocketMQ had made units of consume queues."""
    return max((queue.end_offset for queue in found.known.values()), default=PhysicalOffset(0))


class _Planner:
    """Goes through the parts of a survey, and fills a plan."""

    def __init__(
        self,
        plan: ImportPlan,
        found: SourceSurvey,
        leave_out: frozenset[str],
        delays_ms: Sequence[int],
        *,
        is_until: bool,
    ) -> None:
        self._plan = plan
        self._is_until = is_until
        self._delays_ms = delays_ms
        self._found = found
        self._leave_out = leave_out
        self._topics = found.tables.topics
        self._queued_to = _queued_to(found)

    def plan_queues(self) -> None:
        """Decide on each queue that holds messages, or held some."""
        void: dict[str, int] = defaultdict(int)
        deleted: dict[str, int] = defaultdict(int)
        unwanted: dict[str, int] = defaultdict(int)
        unshown: dict[str, dict[int, int]] = defaultdict(dict)
        for key in sorted(self._found.tallies.keys() | self._found.known.keys()):
            topic = key[0].decode(errors="replace")
            tally = self._found.tallies.get(key)
            count = tally.message_count if tally else 0
            treatment = treatment_of(key[0])
            if treatment is Treatment.DELAYED:
                self._plan_delayed(key)
            elif treatment is not Treatment.AS_IT_IS:
                continue
            elif topic in self._leave_out:
                unwanted[topic] += count
            elif topic not in self._topics:
                deleted[topic] += count + (tally.void_count if tally else 0)
            elif self._is_unshown(key):
                unshown[topic][key[1]] = count + (tally.void_count if tally else 0)
            else:
                void[topic] += tally.void_count if tally else 0
                self._plan_plain(key)
        for counts, why in (
            (unwanted, "left out as asked"),
            (deleted, "the topic was deleted: it is not in topics.json"),
            (void, "from before the topic was deleted and created again"),
        ):
            self._plan.left_out += [LeftOut(topic, why, n) for topic, n in counts.items() if n]
        for topic, queues in unshown.items():
            self._plan_unshown(topic, queues)

    def _is_unshown(self, key: QueueKey) -> bool:
        """Return whether RocketMQ has no consume queue for messages up to which it has made others."""
        tally = self._found.tallies.get(key)
        is_queued = tally is not None and tally.last_end <= self._queued_to
        return is_queued and key not in self._found.known

    def _plan_unshown(self, topic: str, queues: Mapping[int, int]) -> None:
        """Refuse messages that no queue of RocketMQ shows, unless they are to be left out: nobody can tell why."""
        named = ", ".join(map(str, queues))
        count = sum(queues.values())
        self._leave_or_refuse(
            f"{CONSUME_QUEUES}/{topic}",
            f"the log has {count} messages of queue {named}, of which there is no consume queue",
            "they are from before the topic was deleted and created again, or the folder is not whole: put a whole "
            "copy of it in place",
            count,
        )

    def _plan_plain(self, key: QueueKey) -> None:
        """Plan a queue that goes over as it is."""
        tally, known = self._found.tallies.get(key), self._found.known.get(key)
        topic = key[0].decode()
        known_max = known.max_offset if known else QueueOffset(0)
        if tally is None:
            if known_max:
                self._plan.queues[key] = PlannedQueue(known_max, known_max)
            return
        if tally.gap:
            self._refuse(topic, f"queue {key[1]}: {tally.gap}", "messages between would be lost")
        if known_max > tally.next_offset and not (self._plan.problems or self._is_until):
            self._plan.problems.append(
                Problem(
                    topic,
                    f"queue {key[1]}: the consume queue has messages up to {known_max}, the log up to "
                    f"{tally.next_offset}",
                    f"the files are not of one moment: put a whole copy in place, or say --leave-out {topic}",
                )
            )
        self._plan.queues[key] = PlannedQueue(
            tally.first_offset,
            tally.next_offset,
            tally.begun_at,
            tally.message_count,
            tally.message_bytes,
        )

    def _plan_delayed(self, key: QueueKey) -> None:
        """Plan a delay level: what is delivered is not taken over, and offsets go on."""
        tally, known = self._found.tallies.get(key), self._found.known.get(key)
        level = key[1] + 1
        progress = self._found.tables.delay_offsets.get(level, QueueOffset(0))
        if tally is None:
            end = known.max_offset if known else QueueOffset(0)
            if end:
                self._plan.queues[key] = PlannedQueue(end, end)
            return
        if tally.gap and names.SCHEDULE_TOPIC not in self._leave_out:
            self._refuse(
                names.SCHEDULE_TOPIC,
                f"level {level}: {tally.gap}",
                "delayed messages would be lost",
            )
        is_unwanted = names.SCHEDULE_TOPIC in self._leave_out
        first = min(max(progress, tally.first_offset), tally.next_offset)
        if is_unwanted:
            first = tally.next_offset
        self._plan.queues[key] = PlannedQueue(
            first,
            tally.next_offset,
            tally.begun_at,
            tally.next_offset - first,
            0 if is_unwanted else tally.message_bytes,
        )
        if first < tally.next_offset:
            self._check_delay(level, tally, known)
        delivered = first - tally.first_offset
        if delivered:
            self._plan.left_out.append(
                LeftOut(
                    f"{names.SCHEDULE_TOPIC}, level {level}",
                    "left out as asked" if is_unwanted else "delivered before",
                    delivered,
                )
            )

    def _check_delay(self, level: int, tally: QueueTally, known: KnownQueue | None) -> None:
        """Refuse delay levels other than those by which RocketMQ had a level's last message wait."""
        if known is None or known.max_offset != tally.next_offset or level < 1:
            return
        was_ms = known.last_tag - tally.last_ms
        is_ms = self._delays_ms[min(level, len(self._delays_ms)) - 1]
        if was_ms != is_ms:
            self._plan.problems.append(
                Problem(
                    f"{names.SCHEDULE_TOPIC}, level {level}",
                    f"messages waited {was_ms} ms in RocketMQ, and would wait {is_ms} ms",
                    "say --delay-levels with the messageDelayLevel of its broker.conf, and give the group the same",
                )
            )

    def plan_waiting(self) -> None:
        """Decide on half messages, timers, and what stands on RocketMQ's own topics besides."""
        found, plan = self._found, self._plan
        seen: dict[bytes, int] = defaultdict(int)
        for (topic, _), tally in found.tallies.items():
            seen[topic] += tally.message_count
        if names.HALF_TOPIC not in self._leave_out:
            plan.half_count = len(found.halves)
        if names.TIMER_TOPIC not in self._leave_out:
            plan.timer_count = len(found.timers)
        done = (
            (HALF_KEY, plan.half_count, "ended before, or left out as asked"),
            (TIMER_KEY, plan.timer_count, "delivered or recalled before, or left out as asked"),
        )
        for topic, waiting, why in done:
            if seen[topic] > waiting:
                plan.left_out.append(LeftOut(topic.decode(), why, seen[topic] - waiting))
        for topic, count in seen.items():
            if treatment_of(topic) is Treatment.INTERNAL:
                plan.left_out.append(
                    LeftOut(topic.decode(), "notes of RocketMQ on other messages", count)
                )
        if found.hidden_count:
            plan.left_out.append(
                LeftOut("half messages from before 4.3", "no queue shows them", found.hidden_count)
            )
        if found.halves.strange_queues and names.HALF_TOPIC not in self._leave_out:
            self._refuse(
                names.HALF_TOPIC,
                f"{found.halves.strange_queues} half messages lie in other queues than 0",
                "what becomes of them is not known",
            )
        self._plan_pop_and_light()

    def _plan_pop_and_light(self) -> None:
        """Refuse what pop consumers have in flight, and light queues, unless they are to be left out."""
        in_flight = revive_pending(self._found)
        if in_flight:
            text = f"{in_flight} notes of pop consumers about messages in flight"
            self._leave_or_refuse(
                POP,
                text,
                "stop these consumers, wait for their invisible time, and stop RocketMQ then",
                in_flight,
            )
        if self._found.light_count:
            text = f"{self._found.light_count} messages are shown by light queues (LMQ) too"
            self._leave_or_refuse(
                LIGHT_QUEUES,
                text,
                "they are not known here; their topics go over",
                self._found.light_count,
            )

    def plan_tables(self) -> None:
        """Decide on topics, groups, offsets, and tables that have no counterpart here."""
        self._judge_files()
        self._plan_topics()
        self._plan_groups()
        self._plan_offsets()
        for name, reason in self._found.tables.others.items():
            if name in BLOCKING_TABLES and name not in self._leave_out:
                self._refuse(name, reason, "consumers would miss messages")
            else:
                self._plan.left_out.append(LeftOut(name, reason, 1))

    def _judge_files(self) -> None:
        """Judge tables that are older than the rest, or are missing: what they do not say is lost."""
        tables = self._found.tables
        for name, why in tables.from_copies.items():
            text = f"its copy {name}.bak was read, which is older ({why})"
            if name == TOPICS:
                remedy = (
                    "messages of newer topics would count as deleted: put a whole copy in place"
                )
                self._leave_or_refuse(name, text, remedy, 1)
            else:
                self._plan.warnings.append(f"{name}: {text}")
        has_delayed = any(
            treatment_of(topic) is Treatment.DELAYED for topic, _ in self._found.tallies
        )
        for name, is_needed, loss in (
            (OFFSETS, bool(self._found.message_count), "all consumers would begin anew"),
            (DELAYS, has_delayed, "all delayed messages in the log would come again"),
            (TIMERS, bool(len(self._found.timers)), "all timers in the log would come again"),
        ):
            if is_needed and name in tables.missing:
                remedy = f"{loss}: put it in place"
                self._leave_or_refuse(name, "it is missing", remedy, 1)
        if GROUPS in tables.missing:
            self._plan.warnings.append(
                f"{GROUPS} is missing: no consumer group goes over with its settings"
            )

    def _plan_topics(self) -> None:
        for name, topic in self._topics.items():
            is_taken = treatment_of(name.encode()) is Treatment.AS_IT_IS and name not in _OURS
            if not is_taken or name in self._leave_out:
                continue
            problem = _topic_problem(topic)
            if name.encode() in self._found.batch_topics:
                problem = "its messages are batches in one record (queue.type=BatchCQ)"
            if problem is not None:
                self._refuse(name, problem, "it cannot be shown here")
            self._plan.topics.append(topic)

    def _plan_groups(self) -> None:
        """Decide on consumer groups, and on what is forbidden to them."""
        plan, tables = self._plan, self._found.tables
        for name, group in tables.groups.items():
            problem = names.group_problem(name)
            if problem is None:
                plan.groups.append(group)
            elif name in self._leave_out:
                plan.left_out.append(LeftOut(name, "left out as asked", 1))
            else:
                self._refuse(name, problem, "this consumer group cannot be here")
        known = {group.name for group in plan.groups}
        plan.forbidden = {
            key: bits for key, bits in tables.forbidden.items() if key[0] in known and bits > 0
        }

    def _plan_offsets(self) -> None:
        """Take over the offsets in topics that go over; those in topics of the broker's own mean nothing here.

        None stays beyond the end of its queue: whoever has it would miss the messages that are sent next.
        """
        lost: dict[str, int] = defaultdict(int)
        moved: dict[str, int] = defaultdict(int)
        for (topic, group), queues in self._found.tables.offsets.items():
            if treatment_of(topic.encode()) is not Treatment.AS_IT_IS:
                continue
            is_taken = topic in self._topics and topic not in self._leave_out
            for queue_id, offset in queues.items():
                if not is_taken or offset < 0 or not 0 <= queue_id < 2**31:
                    lost[topic] += 1
                    continue
                queue = self._plan.queues.get((topic.encode(), queue_id))
                end = queue.max_offset if queue else QueueOffset(0)
                moved[topic] += offset > end
                self._plan.offsets.append((topic, group, queue_id, min(offset, end)))
        self._plan.left_out += [
            LeftOut(
                f"offsets in {topic}",
                "the topic is not taken over, or there are no such ones",
                count,
            )
            for topic, count in lost.items()
        ]
        self._plan.warnings += [
            f"{count} consumer offsets in {topic} are beyond the end of their queues: they are taken over as the end"
            for topic, count in moved.items()
            if count
        ]

    def _leave_or_refuse(self, name: str, text: str, remedy: str, count: int) -> None:
        if name in self._leave_out:
            self._plan.left_out.append(LeftOut(name, f"left out as asked: {text}", count))
        else:
            remedy = f"{remedy}; or say --leave-out {name}"
            self._plan.problems.append(Problem(name, text, remedy))

    def _refuse(self, topic: str, why: str, consequence: str) -> None:
        remedy = f"{consequence}. To import the rest, say --leave-out {topic}"
        self._plan.problems.append(Problem(topic, why, remedy))


def _topic_problem(config: TopicConfig) -> str | None:
    """Return why a topic cannot be here, or None."""
    if names.is_control_topic(config.name):
        return "its name is that of a topic of ours"
    counts: Sequence[int] = (config.read_queue_count, config.write_queue_count)
    if not all(0 <= count <= QUEUE_COUNT_MAX for count in counts) or not 0 <= config.perm <= 15:
        return f"{counts[0]} queues to read, {counts[1]} to write, permissions {config.perm}: out of range"
    attributes = config.attributes
    if attributes.get("queue.type", "SimpleCQ") != "SimpleCQ":
        return f"its queues are of the type {attributes['queue.type']}"
    if attributes.get("cleanup.policy", _DELETE) != _DELETE:
        return f"cleanup.policy is {attributes['cleanup.policy']}: what was compacted is not in the commit log"
    return names.topic_problem(config.name)

"""The policy of retention: how much of the log is to be forgotten, by age, by size and by the room on disks.

Pure: times, sizes and the room come in as facts. As RocketMQ: in certain hours, or while a disk is fairly full, what is
older than the reserved time goes; while a disk is nearly full the oldest segment goes whatever its age, and when even
that has not helped, sends are refused. Unlike there, one member decides for all.

The unit is a segment of the log. It goes when its youngest message is due, and the newest one never goes.

Nothing here knows what must be kept in any case (broker/store/needs.py), or who writes the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from broker.store.retention import ForgetCause
from dledger.raft.ids import Index, Position
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs

RESERVED_HOURS: Final = 72
"""RocketMQ's fileReservedTime."""

ROUND_MS: Final = 10_000
"""RocketMQ's cleanResourceInterval."""

SEGMENTS_MAX: Final = 10
"""Segments that go in one round at most: RocketMQ's deleteFileBatchMax."""

FORCIBLY_PERCENTS: Final = (30, 85)
WARNING_PERCENTS: Final = (35, 90)
"""The bounds to which RocketMQ holds its ratios."""

ROOMIER_PERCENT: Final = 5
"""By which another disk must be below the level: equal disks fill up together, and leadership would go round."""

_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """The settings of retention.

    Attributes:
        reserved_ms: age at which messages are due.
        delete_hours: hours of the local day in which what is due goes.
        is_any_hour: what is due goes at once, whatever the hour.
        bytes_max: size to which the kept part of the log is held; 0: any.
        used_percent_max: share of a disk above which what is due goes at once.
        forcibly_percent: share of a disk above which the oldest goes, whatever its age; 0: never.
        warning_percent: share of a disk above which sends are refused.
        round_ms: pause between two rounds.
    """

    reserved_ms: int = RESERVED_HOURS * _HOUR_MS
    delete_hours: frozenset[int] = frozenset({4})
    is_any_hour: bool = False
    bytes_max: int = 0
    used_percent_max: int = 75
    forcibly_percent: int = FORCIBLY_PERCENTS[1]
    warning_percent: int = WARNING_PERCENTS[1]
    round_ms: int = ROUND_MS


def parse_delete_hours(text: str) -> frozenset[int]:
    """Read `deleteWhen`: hours of the day, with `;` between them.

    Raises:
        ValueError: one is no hour, or there is none.
    """
    hours = [part.strip() for part in text.split(";") if part.strip()]
    for hour in hours:
        if not (hour.isascii() and hour.isdigit() and len(hour) <= 2 and int(hour) < 24):
            raise ValueError(f"{hour!r} is not an hour from 00 to 23")
    if not hours:
        raise ValueError(
            f"{text!r} names no hour, so that nothing would ever go by its age; to keep everything, set a long "
            "fileReservedTime"
        )
    return frozenset(map(int, hours))


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The stand of the log when it is decided.

    Attributes:
        now_ms: the group's time.
        hour: of the local day.
        used_percent: share of the fullest disk of a voter that is in use; None: unknown.
        own_used_percent: the same of the leader's own disk: what gives back room there cannot help another one.
        beginning: where the kept part begins.
        given_back: up to where this member has given bytes back; before `beginning` while it is at it.
        end: where the log ends.
        segment_bytes: size of the log's segments.
        needed_from: the oldest place that something needs; None: nothing needs any.
        pinned_from: the oldest place that is to be kept while there is room on the disks; None: there is none.
        is_asked: an operator wants what is due to go now.
    """

    now_ms: int
    hour: int
    used_percent: float | None
    own_used_percent: float | None
    beginning: Position
    given_back: Position
    end: Position
    segment_bytes: int
    needed_from: PhysicalOffset | None = None
    pinned_from: PhysicalOffset | None = None
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class SegmentStart:
    """The first entry of a segment. `stored_ms`: of its first record; None: that is not known now."""

    index: Index
    position: Position
    stored_ms: StoreTimeMs | None


NextStart = Callable[[Position], SegmentStart | None]
"""Returns where the segment ends, and the next one begins, that begins at a position; None for the newest."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The entry with which the kept part is to begin.

    Attributes:
        start: the entry; None: nothing is to go.
        cause: the reason.
        held_up_at: the place for which more that is due is kept; None: there is none.
    """

    start: SegmentStart | None = None
    cause: ForgetCause = "time"
    held_up_at: PhysicalOffset | None = None

    @property
    def is_held_up(self) -> bool:
        """True if more is due, and something needs it."""
        return self.held_up_at is not None


def decide(rules: RetentionRules, facts: LogFacts, next_start: NextStart) -> Decision:
    """Decide what is to be forgotten now: segment after segment, up to the first that may stay."""
    decision, beginning = Decision(), facts.beginning
    for count in range(SEGMENTS_MAX):
        start = next_start(beginning)
        if start is None:
            break
        cause = _why(rules, facts, beginning, start, is_first=not count)
        if cause is None:
            break
        kept_for = (facts.needed_from, None if cause == "disk" else facts.pinned_from)
        in_the_way = [at for at in kept_for if at is not None and at < start.position]
        if in_the_way:
            return replace(decision, held_up_at=min(in_the_way))
        decision, beginning = Decision(start, cause), start.position
    return decision


def refuses_sends(rules: RetentionRules, used_percent: float | None) -> bool:
    """Return whether sends are to be refused, so that the log does not fill the disk to its end."""
    return _is_above(used_percent, rules.warning_percent)


def hands_over_for_room(
    rules: RetentionRules, own_percent: float | None, there_percent: float
) -> bool:
    """Return whether another member is to lead rather than that this one deletes for room, or refuses sends."""
    level = rules.forcibly_percent or rules.warning_percent
    return _is_above(own_percent, level) and there_percent <= level - ROOMIER_PERCENT


def _why(
    rules: RetentionRules,
    facts: LogFacts,
    beginning: Position,
    start: SegmentStart,
    *,
    is_first: bool,
) -> ForgetCause | None:
    """Return why the segment is to go that begins at `beginning` and ends at `start`; None: it stays.

    Its youngest message is as old as the first of the next segment, or older.
    """
    aged = _cause_of_age(rules, facts)
    if aged and start.stored_ms is not None and start.stored_ms <= facts.now_ms - rules.reserved_ms:
        return aged
    if rules.bytes_max and facts.end - beginning > rules.bytes_max:
        return "size"
    is_forcible = rules.forcibly_percent and _is_above(
        facts.own_used_percent, rules.forcibly_percent
    )
    # The disk shows what went before only when its bytes have been given back.
    if is_first and is_forcible and beginning - facts.given_back < facts.segment_bytes:
        return "disk"
    return None


def _cause_of_age(rules: RetentionRules, facts: LogFacts) -> ForgetCause | None:
    """Return why what is old is to go now; None: it is not to."""
    if _is_above(facts.used_percent, rules.used_percent_max):
        return "disk"
    if rules.is_any_hour or facts.hour in rules.delete_hours:
        return "time"
    return "operator" if facts.is_asked else None


def _is_above(used_percent: float | None, percent: int) -> bool:
    return used_percent is not None and used_percent > percent

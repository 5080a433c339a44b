"""Who led each group from when to when, as one look after the other shows it. Pure.

The time at which a leader began is its own statement (how long it has its role), as far as it lies between two looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from broker.admin.health import ClusterHealth, GroupHealth

SPANS_MAX: Final = 200
"""Of one group."""

GROUPS_MAX: Final = 256


@dataclass(slots=True)
class LeaderSpan:
    """A time in which one member led a group, or nobody was seen to.

    Attributes:
        leader: id of the member; empty: nobody.
        term: of the leadership; None: nobody leads, or it is not known.
        seen_ms: when it was last seen so.
    """

    group: str
    leader: str
    term: int | None
    begin_ms: int
    seen_ms: int


@dataclass(frozen=True, slots=True)
class Election:
    """The beginning of a leadership that was seen.

    Attributes:
        before: id of the member that led before; empty: none was seen.
        without_ms: how long nobody was seen to lead in between.
    """

    at_ms: int
    group: str
    leader: str
    term: int | None
    before: str
    without_ms: int


class Timeline:
    """The spans of all groups, bounded."""

    def __init__(self) -> None:
        self._spans: dict[str, deque[LeaderSpan]] = {}

    def note(self, at_ms: int, health: ClusterHealth) -> None:
        """Note who leads each group now."""
        for group in health.groups:
            if group.name in self._spans or len(self._spans) < GROUPS_MAX:
                self._note(at_ms, group)

    def spans(self, group: str) -> tuple[LeaderSpan, ...]:
        """Return the spans of a group, the oldest first."""
        return tuple(self._spans.get(group, ()))

    def elections(self, most: int) -> list[Election]:
        """Return the last elections of all groups, the newest first, without what was there before the first look."""
        found = [election for group in self._spans for election in self._elections_of(group)]
        return sorted(found, key=lambda one: (-one.at_ms, one.group))[:most]

    def _note(self, at_ms: int, group: GroupHealth) -> None:
        """Lengthen the last span of a group, or begin another one."""
        facts = group.leader.facts if group.leader is not None else None
        leader, term = (facts.node_id, facts.term) if facts is not None else ("", None)
        role_ms = facts.role_ms if facts is not None else None
        spans = self._spans.setdefault(group.name, deque(maxlen=SPANS_MAX))
        last = spans[-1] if spans else None
        if last is not None and (last.leader, last.term) == (leader, term):
            last.seen_ms = at_ms
            return
        begin_ms = at_ms - role_ms if role_ms is not None else at_ms
        if last is not None:
            begin_ms = min(max(begin_ms, last.seen_ms), at_ms)
            last.seen_ms = begin_ms
        spans.append(LeaderSpan(group.name, leader, term, begin_ms, at_ms))

    def _elections_of(self, group: str) -> Iterator[Election]:
        before, without_ms = "", 0
        for place, span in enumerate(self._spans[group]):
            if not span.leader:
                without_ms += span.seen_ms - span.begin_ms
                continue
            if place:
                yield Election(span.begin_ms, group, span.leader, span.term, before, without_ms)
            before, without_ms = span.leader, 0

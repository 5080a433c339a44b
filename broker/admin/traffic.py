"""What goes in and out of topics, and how far groups are behind, from two looks at their offsets. Pure.

Figures come from offsets alone, so they are what was stored and what was committed, whoever answered: a rate out is
what groups have committed, not what was sent to them. It must not know how anybody is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.admin.answers import QueueStats

Place = tuple[str, str, int]
"""Topic, broker name and queue id."""


@dataclass(frozen=True, slots=True)
class TrafficLook:
    """The offsets of one look.

    Attributes:
        at_s: when it was, by a clock that never goes back.
        queues: what each queue holds.
        committed: by consumer group, the next offset that it consumes.
        left_out: topics that were not asked about, since there are too many.
    """

    at_s: float
    queues: Mapping[Place, QueueStats] = field(default_factory=dict)
    committed: Mapping[str, Mapping[Place, int]] = field(default_factory=dict)
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """A topic; rates in messages a second, None where two looks do not say."""

    topic: str
    queues: int
    messages: int
    in_rate: float | None
    out_rate: float | None


@dataclass(frozen=True, slots=True)
class GroupTraffic:
    """A consumer group in all of its topics.

    Attributes:
        lag: messages that it has not consumed and still can.
        out_rate: messages a second that it has committed; None where two looks do not say.
        seconds: after so long it has caught up, as both rates are; None: never, or not known.
    """

    group: str
    topics: int
    lag: int
    out_rate: float | None
    seconds: float | None


def topic_traffic(now: TrafficLook, before: TrafficLook | None) -> list[TopicTraffic]:
    """Return all topics, those first that most goes into."""
    outs = [_steps(now, before, group) for group in now.committed]
    rows = []
    for topic in sorted({place[0] for place in now.queues}):
        places = [place for place in now.queues if place[0] == topic]
        stats = [now.queues[place] for place in places]
        rows.append(
            TopicTraffic(
                topic,
                len(places),
                sum(each.messages for each in stats),
                _rate(now, before, _grown(now, before, places)),
                _rate(
                    now,
                    before,
                    _sum([out[place] for out in outs for place in places if place in out]),
                ),
            )
        )
    return sorted(rows, key=lambda row: (-(row.in_rate or 0), -(row.out_rate or 0), row.topic))


def group_traffic(now: TrafficLook, before: TrafficLook | None) -> list[GroupTraffic]:
    """Return all consumer groups, those first that are most behind."""
    rows = []
    for group, committed in sorted(now.committed.items()):
        known = [place for place in committed if place in now.queues]
        lag = sum(_lag(now.queues[place], committed[place]) for place in known)
        out_rate = _rate(now, before, _sum(list(_steps(now, before, group).values())))
        in_rate = _rate(now, before, _grown(now, before, known))
        rows.append(
            GroupTraffic(
                group,
                len({place[0] for place in known}),
                lag,
                out_rate,
                _seconds(lag, in_rate, out_rate),
            )
        )
    return sorted(rows, key=lambda row: (-row.lag, row.group))


def _lag(stats: QueueStats, committed: int) -> int:
    return max(0, stats.max_offset - max(committed, stats.min_offset))


def _grown(now: TrafficLook, before: TrafficLook | None, places: list[Place]) -> int | None:
    """Return by how many messages queues have grown; None: they are new, or were made anew."""
    if before is None:
        return None
    known = [place for place in places if place in before.queues]
    return _sum([now.queues[place].max_offset - before.queues[place].max_offset for place in known])


def _steps(now: TrafficLook, before: TrafficLook | None, group: str) -> dict[Place, int]:
    """Return how far a group has gone on in each queue; below 0: it was set back, which is no consumption."""
    earlier = before.committed.get(group, {}) if before is not None else {}
    return {
        place: offset - earlier[place]
        for place, offset in now.committed.get(group, {}).items()
        if place in earlier
    }


def _sum(steps: list[int]) -> int | None:
    """Return the sum of steps; None: one of them went back."""
    return sum(steps) if all(step >= 0 for step in steps) else None


def _rate(now: TrafficLook, before: TrafficLook | None, step: int | None) -> float | None:
    if before is None or step is None or now.at_s <= before.at_s:
        return None
    return step / (now.at_s - before.at_s)


def _seconds(lag: int, in_rate: float | None, out_rate: float | None) -> float | None:
    """Return after how long a group has caught up; 0 if it is not behind."""
    if not lag:
        return 0.0
    if in_rate is None or out_rate is None or out_rate <= in_rate:
        return None
    return lag / (out_rate - in_rate)

"""From a history to a verdict. Pure: the same events give the same answer.

What must hold (the numbers name the checks in a verdict):

1. *lost*: every acknowledged message is received by every consumer group that drained.
2. *unexpected*: nothing is received that was never sent, or whose every send was refused.
3. *offsets*: at its first delivery of each offset a queue's offsets strictly increase per consumer
   group, and one queue offset carries one message, in every answer and every delivery.
4. *order*: per group, queue and producer the numbers of acknowledged sends rise at first delivery.
   (A send whose outcome stayed unknown may surface late; it promised nothing about its place.)
5. *rewind*: a group's committed offset, as asked over the run, never falls.
6. *twice*: a send that its client repeats under the same UNIQ_KEY is stored once.

Other duplicates are counted, not condemned: delivery is at least once. Each is put down to a cause where
the history shows it: *stored twice* (one message at two queue offsets; *rekeyed* of these were sent
again under another key, which no broker can recognise: the C++ client makes one for every retry) or
*delivered twice* (one queue offset, handed out again).

The verdict is true, false or unknown; a run in which nothing was acknowledged proves nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from jepsen.history import Event

Message = tuple[str, str, int]  # producer, queue, number


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken promise: which check, and the facts."""

    check: str
    text: str


@dataclass(slots=True)
class Tally:
    """Counts of one producer, over all groups of consumers."""

    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    received: int = 0  # distinct messages received by at least one group
    lost: int = 0  # acknowledged, missing in some drained group
    stored_twice: int = 0
    rekeyed: int = 0  # of those stored twice: sent again under another key
    delivered_twice: int = 0

    @property
    def duplicated(self) -> int:
        """Deliveries beyond the first, whatever their cause."""
        return self.stored_twice + self.delivered_twice


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a run. `valid` is None when the run proves nothing."""

    valid: bool | None
    anomalies: tuple[Anomaly, ...]
    tallies: dict[str, Tally]

    def total(self, name: str) -> int:
        """Sum one count over all producers."""
        return sum(getattr(tally, name) for tally in self.tallies.values())


@dataclass(slots=True)
class _Sends:
    """What the producers know."""

    sent: set[Message] = field(default_factory=set)
    acked: dict[Message, int] = field(default_factory=dict)  # queue offset, -1 when not told
    refused: set[Message] = field(default_factory=set)
    unknown: set[Message] = field(default_factory=set)


def check(events: Sequence[Event], *, drained: Iterable[str], stream: str = "") -> Verdict:
    """Judge a finished run.

    Args:
        events: the whole history.
        drained: names of the consumer groups that had the time to read everything; a group that
            had not is not asked for what it misses.
        stream: whose messages are judged; the others are not looked at.
    """
    events = [event for event in events if event.stream == stream]
    sends = _gather_sends(events)
    deliveries: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind == "receive":
            deliveries[event.consumer].append(event)
    keys = {(event.queue, event.offset): event.key for event in events if event.key}
    tallies: dict[str, Tally] = defaultdict(Tally)
    _count_sends(sends, tallies)
    anomalies: list[Anomaly] = []
    for group in sorted(set(drained)):
        anomalies += _lost(group, deliveries[group], sends, tallies)
    for group, received in sorted(deliveries.items()):
        anomalies += _unexpected(group, received, sends)
        anomalies += _order(group, received, sends)
        anomalies += _duplicates(received, keys, tallies)
    anomalies += _offsets(sends, deliveries)
    anomalies += _rewinds(events)
    _count_received(deliveries, tallies)
    valid: bool | None = not anomalies
    if valid and not sends.acked:
        valid = None
    return Verdict(valid, tuple(anomalies), dict(tallies))


def _message(event: Event) -> Message:
    return (event.producer, event.queue, event.number)


def _gather_sends(events: Iterable[Event]) -> _Sends:
    sends = _Sends()
    for event in events:
        match event.kind:
            case "send":
                sends.sent.add(_message(event))
            case "ack":
                sends.acked[_message(event)] = event.offset
            case "refused":
                sends.refused.add(_message(event))
            case "unknown":
                sends.unknown.add(_message(event))
            case _:
                pass
    return sends


def _count_sends(sends: _Sends, tallies: dict[str, Tally]) -> None:
    for message in sends.sent:
        tallies[message[0]].sent += 1
    for message in sends.acked:
        tallies[message[0]].acknowledged += 1
    for message in sends.refused:
        tallies[message[0]].refused += 1
    for message in sends.unknown:
        tallies[message[0]].unknown += 1


def _count_received(deliveries: dict[str, list[Event]], tallies: dict[str, Tally]) -> None:
    received = {_message(event) for events in deliveries.values() for event in events}
    for message in received:
        tallies[message[0]].received += 1


def _lost(
    group: str, received: Sequence[Event], sends: _Sends, tallies: dict[str, Tally]
) -> list[Anomaly]:
    seen = {_message(event) for event in received}
    missing = sorted(set(sends.acked) - seen)
    for message in missing:
        tallies[message[0]].lost += 1
    return [
        Anomaly(
            "lost", f"{group} never received {_name(m)}, acknowledged at offset {sends.acked[m]}"
        )
        for m in missing
    ]


def _unexpected(group: str, received: Sequence[Event], sends: _Sends) -> list[Anomaly]:
    found = []
    for message in dict.fromkeys(_message(event) for event in received):
        if message not in sends.sent:
            found.append(Anomaly("unexpected", f"{group} received {_name(message)}: never sent"))
        elif message in sends.refused:
            found.append(
                Anomaly("unexpected", f"{group} received {_name(message)}: it was refused")
            )
    return found


def _offsets(sends: _Sends, deliveries: dict[str, list[Event]]) -> list[Anomaly]:
    """One queue offset, one message; and per group the offsets rise at first delivery."""
    found = []
    holder: dict[tuple[str, int], Message] = {}
    for message, offset in sends.acked.items():
        if offset >= 0:
            other = holder.setdefault((message[1], offset), message)
            if other != message:
                found.append(Anomaly("offsets", _two_at_one(message[1], offset, other, message)))
    for group, received in sorted(deliveries.items()):
        highest: dict[str, int] = {}
        seen: set[tuple[str, int]] = set()
        for event in received:
            place = (event.queue, event.offset)
            other = holder.setdefault(place, _message(event))
            if other != _message(event):
                found.append(Anomaly("offsets", _two_at_one(*place, other, _message(event))))
            if place in seen:
                continue
            seen.add(place)
            last = highest.get(event.queue, -1)
            if event.offset < last:
                text = f"{group} received offset {event.offset} of {event.queue} first after {last}"
                found.append(Anomaly("offsets", text))
            highest[event.queue] = max(last, event.offset)
    return found


def _order(group: str, received: Sequence[Event], sends: _Sends) -> list[Anomaly]:
    first: dict[Message, Event] = {}
    for event in received:
        message = _message(event)
        if message in sends.acked:
            first.setdefault(message, event)
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for producer, queue, number in first:
        numbers[producer, queue].append(number)
    return [
        Anomaly("order", f"{group} received {producer} {queue} #{later} after #{earlier}")
        for (producer, queue), row in sorted(numbers.items())
        for earlier, later in pairwise(row)
        if later < earlier
    ]


def _rewinds(events: Iterable[Event]) -> list[Anomaly]:
    found = []
    highest: dict[tuple[str, str], int] = {}
    for event in events:
        if event.kind != "committed":
            continue
        place = (event.consumer, event.queue)
        last = highest.get(place, -1)
        if event.offset < last:
            text = f"{event.consumer}'s offset of {event.queue} went back from {last} to {event.offset}"
            found.append(Anomaly("rewind", text))
        highest[place] = max(last, event.offset)
    return found


def _duplicates(
    received: Sequence[Event], keys: Mapping[tuple[str, int], str], tallies: dict[str, Tally]
) -> list[Anomaly]:
    """Count what one group received more than once, and name what was stored twice under one key.

    Args:
        received: by the group.
        keys: UNIQ_KEY by queue and offset, as any client saw it.
        tallies: counted there.
    """
    found = []
    offsets: dict[Message, set[int]] = defaultdict(set)
    for event in received:
        message = _message(event)
        tally, known = tallies[event.producer], offsets[message]
        if event.offset in known:
            tally.delivered_twice += 1
        elif known:
            tally.stored_twice += 1
            key = keys.get((event.queue, event.offset), "")
            same = [offset for offset in known if key and keys.get((event.queue, offset)) == key]
            tally.rekeyed += bool(key) and not same
            found += [
                Anomaly("twice", f"{_name(message)} stands at {offset} and {event.offset}: {key}")
                for offset in same
            ]
        known.add(event.offset)
    return found


def _name(message: Message) -> str:
    producer, queue, number = message
    return f"{producer} {queue} #{number}"


def _two_at_one(queue: str, offset: int, one: Message, other: Message) -> str:
    return f"offset {offset} of {queue} carries {_name(one)} and {_name(other)}"

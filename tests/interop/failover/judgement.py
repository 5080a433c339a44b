"""What a stream of sends went through, and what became of its messages. Pure: values in, values out.

A *stream* is one producer that sends one message after the other. A *round* is one fault. It must not know how either
came about.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

TEXT_CHARACTERS_MAX: Final = 160

CAUGHT_S: Final = 1.0
"""A send that was in flight when a fault happened and took longer was waiting for an answer that could not come."""


@dataclass(frozen=True, slots=True)
class Send:
    """One send of a stream, as its application saw it. Times are seconds of one monotonic clock.

    Attributes:
        number: counts the sends of a stream.
        digest: of the body, which no other send has.
        error: None for an acknowledged one.
    """

    number: int
    begun_s: float
    ended_s: float
    digest: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Round:
    """One fault: when it was begun and done, and when the next one may begin."""

    machine: str
    begun_s: float
    done_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Standing:
    """A message that stands in a topic."""

    broker: str
    queue_id: int
    queue_offset: int
    digest: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that is said of one stream.

    Attributes:
        failed: sends that ended in an error, without those in flight.
        in_flight: sends that ended in an error and had begun before a fault was done.
        texts: how often each error came, numbers left out.
        gaps_s: for each round, the longest time without an acknowledged send.
        caught: for each round, whether the fault met a send that was in flight, so that a client which does not look
            at its connections while it waits has waited in vain.
        lost: acknowledged and not there.
        duplicated: acknowledged and there more than once.
        disorders: messages of a shard that stand, in one queue, after a later one of that shard; None if the stream
            has no order.
        moved_shards: shards that stand in more than one queue.
    """

    acknowledged: int
    failed: int
    in_flight: int
    texts: dict[str, int]
    gaps_s: tuple[float, ...]
    caught: tuple[bool, ...]
    lost: int
    duplicated: int
    disorders: int | None
    moved_shards: int

    @property
    def gaps_of_others_s(self) -> list[float]:
        """The gaps of the rounds that met no send in flight."""
        return [
            gap for gap, is_caught in zip(self.gaps_s, self.caught, strict=True) if not is_caught
        ]


def judge(
    sends: Sequence[Send],
    rounds: Sequence[Round],
    standing: Iterable[Standing],
    *,
    shards: int | None,
) -> Verdict:
    """Judge a stream whose message n belongs to shard n modulo `shards`, if it is ordered.

    What failed before the first round, while all clients were starting, is no fault's doing and does not count.
    """
    acknowledged = {send.digest for send in sends if send.error is None}
    first_s = min((each.begun_s for each in rounds), default=0.0)
    failed = [send for send in sends if send.error is not None and send.ended_s >= first_s]
    in_flight = [send for send in failed if any(is_in_flight(send, each) for each in rounds)]
    places = list(standing)
    counts = Counter(each.digest for each in places)
    numbers = {send.digest: send.number for send in sends}
    disorders, moved = disorder(places, numbers, shards) if shards else (None, 0)
    return Verdict(
        acknowledged=len(acknowledged),
        failed=len(failed) - len(in_flight),
        in_flight=len(in_flight),
        texts=dict(Counter(without_numbers(send.error or "") for send in failed).most_common()),
        gaps_s=tuple(longest_gap_s(sends, each) for each in rounds),
        caught=tuple(any(is_caught(send, each) for send in sends) for each in rounds),
        lost=sum(counts[digest] == 0 for digest in acknowledged),
        duplicated=sum(counts[digest] > 1 for digest in acknowledged),
        disorders=disorders,
        moved_shards=moved,
    )


def is_in_flight(send: Send, fault: Round) -> bool:
    """True for a send that was on its way while the fault happened."""
    return send.begun_s <= fault.done_s and send.ended_s >= fault.begun_s


def is_caught(send: Send, fault: Round) -> bool:
    """True for a send that was on its way when the fault happened, and has waited for an answer in vain."""
    is_long = send.error is not None or send.ended_s - send.begun_s > CAUGHT_S
    return is_in_flight(send, fault) and is_long


def longest_gap_s(sends: Sequence[Send], during: Round) -> float:
    """Return the longest time from one acknowledged send to the next that reaches into a round.

    What is before the first send and after the last acknowledged one counts up to the ends of the round.
    """
    good = [send.ended_s for send in sends if send.error is None]
    before = max((when for when in good if when <= during.begun_s), default=during.begun_s)
    inside = [when for when in good if during.begun_s < when < during.ended_s]
    after = min((when for when in good if when >= during.ended_s), default=during.ended_s)
    return max(later - earlier for earlier, later in pairwise([before, *inside, after]))


def disorder(standing: Iterable[Standing], numbers: dict[str, int], shards: int) -> tuple[int, int]:
    """Count messages that stand after a later one of their shard, and shards that stand in more than one queue.

    A repeat counts where it stands first: that is what a consumer that drops repeats sees.
    """
    queues: dict[tuple[str, int], list[Standing]] = defaultdict(list)
    for each in standing:
        queues[each.broker, each.queue_id].append(each)
    disorders, homes = 0, defaultdict(set)
    for queue, inside in queues.items():
        last: dict[int, int] = {}
        seen: set[str] = set()
        for each in sorted(inside, key=lambda one: one.queue_offset):
            if each.digest in seen or each.digest not in numbers:
                continue
            seen.add(each.digest)
            number = numbers[each.digest]
            shard = number % shards
            homes[shard].add(queue)
            disorders += number < last.get(shard, -1)
            last[shard] = max(number, last.get(shard, -1))
    return disorders, sum(len(home) > 1 for home in homes.values())


def without_numbers(text: str) -> str:
    """Return what is said in an error, so that two that differ in ids, times and addresses are one."""
    return re.sub(r"[0-9A-F]{12,}|\d+(\.\d+)*", "#", text)[:TEXT_CHARACTERS_MAX]

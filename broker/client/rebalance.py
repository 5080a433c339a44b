"""Which member of a consumer group reads which queues.

Pure. Every member computes the whole allocation for itself from the same two sorted lists, so all
members must sort and divide exactly as the Java client does: a mixed group would otherwise read some
queues twice and others not at all. Source: remoting.md 6.2, semantics.md Q5; Java
AllocateMessageQueueAveragely.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from broker.client.queues import MessageQueue


def java_order(text: str) -> bytes:
    """Return a sort key that orders strings as Java's String.compareTo: by UTF-16 code units."""
    return text.encode("utf-16-be")


def allocate_average(
    queues: Collection[MessageQueue], client_ids: Collection[str], client_id: str
) -> list[MessageQueue]:
    """Return the queues of `client_id`: contiguous ranges, the first members get one more.

    A client that is not (yet) in `client_ids` gets nothing: the others count without it.
    """
    members = sorted(set(client_ids), key=java_order)
    if client_id not in members or not queues:
        return []
    ordered = sorted(
        set(queues), key=lambda q: (java_order(q.topic), java_order(q.broker_name), q.queue_id)
    )
    index = members.index(client_id)
    share, left_over = divmod(len(ordered), len(members))
    start = index * share + min(index, left_over)
    return ordered[start : start + share + (1 if index < left_over else 0)]


@dataclass(frozen=True, slots=True)
class Changes:
    """What a rebalance asks of a member: give these up, take those on. Both sorted."""

    released: tuple[MessageQueue, ...]
    acquired: tuple[MessageQueue, ...]


def changes(owned: Collection[MessageQueue], wanted: Sequence[MessageQueue]) -> Changes:
    """Return what leads from `owned` to `wanted`."""
    have, want = set(owned), set(wanted)
    return Changes(tuple(sorted(have - want)), tuple(sorted(want - have)))

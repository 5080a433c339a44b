"""Queues as the broker shares them out among the clients of a group (400). Pure.

Clients that leave it to the broker ask any one broker of the topic, so it has to know the queues of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from broker.store.pops import RequestMode
from dledger_mq.remoting.message_queue import WireQueue

AVERAGE: Final = "AVG"
BY_CIRCLE: Final = "AVG_BY_CIRCLE"
STRATEGIES: Final = frozenset({AVERAGE, BY_CIRCLE})

ANY_QUEUE: Final = -1


def shared(
    queues: Iterable[WireQueue], clients: Iterable[str], client_id: str, strategy: str
) -> list[WireQueue]:
    """Return the queues that a client pulls (Q5); none for one that is no member."""
    ordered, ids = sorted(queues, key=_place), sorted(clients)
    if client_id not in ids:
        return []
    index, count = ids.index(client_id), len(ids)
    if strategy == BY_CIRCLE:
        return ordered[index::count]
    each, more = divmod(len(ordered), count)
    first = index * each + min(index, more)
    return ordered[first : first + each + (index < more)]


def popped(
    queues: Sequence[WireQueue],
    clients: Iterable[str],
    client_id: str,
    *,
    strategy: str,
    mode: RequestMode,
) -> list[WireQueue]:
    """Return the queues that a client pops: those of some clients after it as well, or any of each broker."""
    ids = sorted(clients)
    if not 0 < mode.share_count < len(ids) - 1:
        return [
            WireQueue(broker, ANY_QUEUE, queues[0].topic)
            for broker in sorted({queue.broker_name for queue in queues})
        ]
    own = shared(queues, ids, client_id, strategy)
    if client_id not in ids or len(ids) > len(queues):
        return own
    index = ids.index(client_id)
    for step in range(1, mode.share_count + 1):
        own += shared(queues, ids, ids[(index + step) % len(ids)], strategy)
    return own


def _place(queue: WireQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id

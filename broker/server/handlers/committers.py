"""Finds the client that commits an offset: RocketMQ's requests do not name it, and locks and resets ask who it is.

Our client says it (ext `clientId`). Others are known by the connection that their request came over,
at whatever node that ended: their heartbeats and lock requests came over the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker.service.clients import ConsumerClient
from broker.store.locks import QueueLockTable
from broker.store.resets import Resets
from dledger_mq.message.numbers import QueueId

LOCKERS_MAX: Final = 10_000
"""Clients that asked for locks and are remembered, one for each group and address; the oldest is forgotten first."""

ID_LENGTH_MAX: Final = 255
"""So much of a client id names its client in records: the fold refuses to admit a longer one to a reset."""


class Committers:
    """Finds the client that sent an offset commit, which locks and resets of queues are checked against."""

    def __init__(
        self,
        locks: Callable[[], QueueLockTable],
        members: Callable[[str], Mapping[str, ConsumerClient]],
        *,
        member_at: Callable[[str, str], str | None] = lambda _group, _address: None,
        resets: Callable[[], Resets] = Resets,
    ) -> None:
        """Set up the search.

        Args:
            locks: the locks of queues.
            members: returns the live members of a group by client id.
            member_at: returns the member of a group that any node has at an address; a look at all clients.
            resets: the resets of offsets that are not over.
        """
        self._locks = locks
        self._members = members
        self._member_at = member_at
        self._resets = resets
        self._lockers: dict[tuple[str, str], str] = {}

    def has_locked(self, group: str, *, address: str, client_id: str) -> None:
        """Note that a client asked for locks over the connection from `address`."""
        self._lockers.pop((group, address), None)
        self._lockers[group, address] = client_id[:ID_LENGTH_MAX]
        if len(self._lockers) > LOCKERS_MAX:
            del self._lockers[next(iter(self._lockers))]

    def who(self, group: str, topic: str, queue_id: QueueId, *, address: str, given_id: str) -> str:
        """Find the id of the client that commits for this queue.

        Returns:
            "" when nobody ever locked the queue or reset its offset, so that nobody is kept out, and when it is not
            known.
        """
        owner = self._locks().owner(group, topic, queue_id)
        is_reset = self._resets().get(group, topic, queue_id) is not None
        if owner is None and not is_reset:
            return ""
        if given_id:
            return given_id[:ID_LENGTH_MAX]
        names = [
            client.client_id[:ID_LENGTH_MAX]
            for client in self._members(group).values()
            if client.address == address
        ]
        locker = self._lockers.get((group, address))
        if locker is not None:
            names.append(locker)
        if owner in names:
            return owner
        if is_reset and not names:
            return (self._member_at(group, address) or "")[:ID_LENGTH_MAX]
        return names[0] if names else ""

"""The locks of an orderly consumer: which queues this member may work on, now.

A broker group grants a queue to one member at a time, for 60 s from the last request (rule P1). We
ask again every 20 s, and work on a queue only while the last granted request was sent less than 30 s ago
(P3), so this member has stopped long before another one can begin. A queue that the broker refuses, or
that was without renewal for so long that somebody else may have had it meanwhile, is lost: it is
dropped with what was read of it, and taken on anew from the committed offset.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

import anyio

from dledger_mq.client.errors import ClientError
from dledger_mq.client.group_requests import GroupRequests
from dledger_mq.client.queues import MessageQueue

RENEW_S: Final = 20.0
FIRST_RENEW_S: Final = 1.0
RENEW_AGAIN_S: Final = 1.0  # after a renewal that failed: a failover takes a second or three
HELD_S: Final = 30.0
SURE_S: Final = 50.0  # with room for clocks that differ, less than the broker's 60 s

assert RENEW_S < HELD_S < SURE_S, (
    "a lock is renewed before it is doubted, and doubted before it ends"
)

log = logging.getLogger(__name__)


class QueueLocks:
    """The locks of one member. `run` renews them.

    Args:
        requests: of the consumer group.
        on_lost: called with each queue that another member may work on now.
    """

    def __init__(self, requests: GroupRequests, on_lost: Callable[[MessageQueue], None]) -> None:
        self._requests = requests
        self._on_lost = on_lost
        self._asked_at: dict[MessageQueue, float] = {}
        self._changed = anyio.Event()

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether the queue may be worked on just now."""
        asked_at = self._asked_at.get(queue)
        return asked_at is not None and anyio.current_time() - asked_at < HELD_S

    async def wait_held(self, queue: MessageQueue) -> bool:
        """Wait until the lock of a queue is certain; return False when it was given up or lost."""
        while queue in self._asked_at:
            if self.holds(queue):
                return True
            await self._changed.wait()
        return False

    async def take(self, queue: MessageQueue) -> bool:
        """Ask for a queue; return whether we have it now.

        Raises:
            ClientError: nobody knows.
        """
        asked_at = anyio.current_time()
        granted = await self._requests.lock(queue.broker_name, [queue])
        if queue in granted:
            self._asked_at[queue] = asked_at
        return queue in granted

    def forget(self, queue: MessageQueue) -> None:
        """Renew no more; the broker keeps others out until the lock expires."""
        self._asked_at.pop(queue, None)
        self._wake_waiters()

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Unlock these queues for other members; a lock whose broker does not answer expires."""
        for name, some in self._by_broker(queue for queue in queues if queue in self._asked_at):
            for queue in some:
                self.forget(queue)
            try:
                await self._requests.unlock(name, some)
            except ClientError as error:
                log.info("locks of %s are left to expire: %s", name, error)

    async def release_all(self) -> None:
        """Release all locks, since the member leaves."""
        await self.release(tuple(self._asked_at))

    async def run(self) -> None:
        """Renew until cancelled."""
        pause_s = FIRST_RENEW_S
        while True:
            await anyio.sleep(pause_s)
            pause_s = RENEW_S if await self._renew() else RENEW_AGAIN_S

    async def _renew(self) -> bool:
        """Ask for everything that we have; return whether every broker group answered."""
        is_complete = True
        for name, queues in self._by_broker(self._asked_at):
            asked_at = anyio.current_time()
            try:
                granted = await self._requests.lock(name, queues)
            except ClientError as error:
                log.info("locks of %s are not renewed yet: %s", name, error)
                is_complete = False
                continue
            for queue in queues:
                self._renewed(queue, asked_at, is_granted=queue in granted)
        self._wake_waiters()
        return is_complete

    def _renewed(self, queue: MessageQueue, asked_at: float, *, is_granted: bool) -> None:
        before = self._asked_at.get(queue)
        if before is None or before > asked_at:
            return  # given up, or taken anew, while we asked
        if is_granted and asked_at - before < SURE_S:
            self._asked_at[queue] = asked_at
            return
        log.warning("the lock of %s is lost; another member may have worked on it", queue)
        del self._asked_at[queue]
        self._on_lost(queue)

    def _wake_waiters(self) -> None:
        """Let the tasks of all queues that wait look again: they wait for one event, so none may put another there."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    @staticmethod
    def _by_broker(queues: Iterable[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
        found: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            found[queue.broker_name].append(queue)
        return sorted(found.items())

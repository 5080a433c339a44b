"""Reading several queues in turn, of the caller's choice: what `PullConsumer.assign` and `poll` do.

A position is the next offset to be read of a queue. It moves when messages are handed out, and nothing else
does: what is committed is the caller's business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import anyio

from dledger_mq.client.arguments import check_queue
from dledger_mq.client.errors import ClientError, ClientUsageError
from dledger_mq.client.group_requests import PullAnswer
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.retry import QuickAnswers
from dledger_mq.message.numbers import QueueOffset

HOLD_S: Final = 15.0  # brokers hold a pull no longer

Pull = Callable[[MessageQueue, QueueOffset, int, float], Awaitable[PullAnswer]]
"""Pulls from a queue: offset, at most so many messages, held by the broker for so long (seconds)."""


class Poller:
    """Positions in assigned queues, and the next messages of any of them.

    Attributes:
        positions: of every assigned queue, the next offset to be read.
        paused: assigned queues that `poll` passes over.
    """

    def __init__(self, pull: Pull) -> None:
        self.positions: dict[MessageQueue, QueueOffset] = {}
        self.paused: set[MessageQueue] = set()
        self._pull = pull

    def assign(self, positions: Mapping[MessageQueue, QueueOffset]) -> None:
        """Read these queues and no others, from these offsets on."""
        self.positions = dict(positions)
        self.paused.intersection_update(positions)

    def check(self, queues: Iterable[MessageQueue]) -> None:
        """Raise ClientUsageError for a queue that is not assigned."""
        for queue in queues:
            if check_queue(queue) not in self.positions:
                raise ClientUsageError(f"{queue} is not assigned")

    async def poll(self, max_messages: int, timeout_s: float) -> tuple[ReceivedMessage, ...]:
        """Return the next messages of one queue; none when none came in time.

        Queues that have messages take turns. Cancelling loses nothing.

        Raises:
            ClientUsageError: no queue is assigned, or all are paused.
            ClientError: a queue could not be read; its position stays.
        """
        deadline = anyio.current_time() + timeout_s
        wanted = [queue for queue in self.positions if queue not in self.paused]
        if not wanted:
            raise ClientUsageError("no queue to poll: none is assigned, or all are paused")
        for queue in wanted:
            if not self._is_wanted(queue):
                continue  # since it was asked for the others
            place = self.positions[queue]
            answer = await self._pull(queue, place, max_messages, 0.0)
            if messages := self._take(queue, place, answer):
                return messages
        quick = QuickAnswers()
        while (left_s := deadline - anyio.current_time()) > 0:
            wanted = [queue for queue in wanted if self._is_wanted(queue)]
            if not wanted:
                return ()
            asked_at = anyio.current_time()
            found = await self._first(wanted, max_messages, min(left_s, HOLD_S))
            if found is None:
                now = anyio.current_time()
                await anyio.sleep(max(0.0, min(quick.pause_s(now - asked_at), deadline - now)))
                continue
            quick.forget()
            if messages := self._take(*found):
                return messages
        return ()

    def _is_wanted(self, queue: MessageQueue) -> bool:
        return queue in self.positions and queue not in self.paused

    async def _first(
        self, queues: list[MessageQueue], max_messages: int, hold_s: float
    ) -> tuple[MessageQueue, QueueOffset, PullAnswer] | None:
        """Ask all queues at once; return the first answer that moves a position, and that position, or None."""
        found: list[tuple[MessageQueue, QueueOffset, PullAnswer]] = []
        failures: list[ClientError] = []

        async def ask(queue: MessageQueue, place: QueueOffset) -> None:
            try:
                answer = await self._pull(queue, place, max_messages, hold_s)
            except ClientError as error:
                failures.append(error)
            else:
                if answer.next_offset == place:
                    return
                found.append((queue, place, answer))
            tasks.cancel_scope.cancel()

        with anyio.move_on_after(hold_s):
            async with anyio.create_task_group() as tasks:
                for queue in queues:
                    tasks.start_soon(ask, queue, self.positions[queue])
        if not found and failures:
            raise failures[0]
        return found[0] if found else None

    def _take(
        self, queue: MessageQueue, place: QueueOffset, answer: PullAnswer
    ) -> tuple[ReceivedMessage, ...]:
        """Move on with the answer of a pull from `place`, and return its messages."""
        if not self._is_wanted(queue) or self.positions[queue] != place:
            return ()  # assigned anew, paused, or sent elsewhere while it was asked
        if answer.messages:
            del self.positions[queue]  # put last: the others have their turn
        self.positions[queue] = answer.next_offset
        return answer.messages

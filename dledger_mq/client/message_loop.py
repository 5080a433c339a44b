"""Messages for `async for`: a handler that hands each message to a loop, and waits for the loop to go on.

One loop runs at a time, and one message is out at a time. Most messages the loop takes by itself, from a
`MessageSource`; only where something stands around the handler (hooks, a deserializer, the order of a queue) the
handler hands them over one by one, each in a turn of the event loop. A message counts as consumed when the loop asks
for the next one, or leaves the consumer's block without an error. A loop that ends in an error, or is cancelled, leaves
its message unfinished: nothing is sent to the broker, and the next owner of the queue gets it again.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import anyio

from dledger_mq.client.consume_results import Result, UnfinishedError
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.turns import TaskTurns
from dledger_mq.net.loop import current_loop


class _Offer:
    """One message on its way through the loop."""

    __slots__ = ("ended", "is_consumed", "message")

    def __init__(self, message: ReceivedMessage) -> None:
        self.message = message
        self.ended = anyio.Event()
        self.is_consumed = False

    def end(self, *, is_consumed: bool) -> None:
        self.is_consumed = is_consumed
        self.ended.set()


class MessageSource(Protocol):
    """Messages that a loop takes by itself (`dispatch.py`)."""

    def begin_next(self) -> ReceivedMessage | None:
        """Begin the next message; None when there is none now."""
        ...

    def end_taken(self, *, is_consumed: bool) -> None:
        """End what was begun last, if anything."""
        ...


class MessageLoop:
    """Between the dispatcher, for which it is the handler, and the application's loop.

    Attributes:
        source: of the messages that are taken without a handler; None: all come through it.
    """

    def __init__(self) -> None:
        self.source: MessageSource | None = None
        self._offers: deque[_Offer] = deque()
        self._out: _Offer | None = None
        self._changed = anyio.Event()
        self._has_ended = False
        self._is_waiting = False

    def begin(self) -> None:
        """Start anew: the consumer's block is entered."""
        self._has_ended = False
        self._turns = TaskTurns(current_loop().now)

    def notice(self) -> None:
        """Let the loop look for messages in the source again."""
        self._changed.set()

    async def __call__(self, messages: tuple[ReceivedMessage, ...]) -> Result:
        """Offer one message; return once it is consumed.

        Raises:
            UnfinishedError: the loop has ended without consuming it.
        """
        (message,) = messages
        offer = _Offer(message)
        if not self._has_ended:
            self._offers.append(offer)
            self._changed.set()
            await offer.ended.wait()
        if not offer.is_consumed:
            raise UnfinishedError
        return None

    async def take(self) -> ReceivedMessage:
        """Finish the message that is out, and return the next one.

        Raises:
            StopAsyncIteration: the consumer is being left.
            ClientUsageError: another task waits for the next one already.
        """
        if self._is_waiting:
            raise ClientUsageError("two loops at once over one consumer; give it a handler instead")
        self._finish(is_consumed=True)
        self._is_waiting = True
        try:
            await self._turns.share()
            while True:
                if self._offers:
                    self._out = self._offers.popleft()
                    return self._out.message
                if self._has_ended:
                    raise StopAsyncIteration
                if self.source is not None:
                    message = self.source.begin_next()
                    if message is not None:
                        return message
                self._changed = anyio.Event()
                await self._changed.wait()
        finally:
            self._is_waiting = False

    def end(self, *, is_consumed: bool) -> None:
        """Hand out no more messages; decide how the one that is out has ended."""
        self._has_ended = True
        self._finish(is_consumed=is_consumed)
        while self._offers:
            self._offers.popleft().end(is_consumed=False)
        self._changed.set()

    def _finish(self, *, is_consumed: bool) -> None:
        offer, self._out = self._out, None
        if offer is not None:
            offer.end(is_consumed=is_consumed)
        if self.source is not None:
            self.source.end_taken(is_consumed=is_consumed)

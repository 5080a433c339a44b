"""What clients do while figures are taken: some of everything that a board shows. It must not know who looks.

Orders are sent, consumed, failed now and then and retried; payments are consumed too slowly for a while; messages wait
for a time or a level; transactions are committed, rolled back or left open.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

import trio

from dledger_mq import (
    ClientError,
    ConsumeResult,
    Later,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)

ORDERS: Final = "Orders"
PAYMENTS: Final = "Payments"
SLOW_S: Final = 0.05
"""A payment takes so long in the first half of the run."""


class BoardTraffic:
    """Clients of a group, for a time.

    Attributes:
        failed: calls of clients that ended with an error: while nobody led, some may.
    """

    def __init__(self, namesrv: str, seconds: float) -> None:
        """Set up clients that stop by themselves after so many seconds."""
        self.failed = 0
        self._namesrv = namesrv
        self._seconds = seconds
        self._begun_s = 0.0

    async def run(self) -> None:
        """Send and consume until the time is over."""
        self._begun_s = time.monotonic()
        with trio.move_on_after(self._seconds):
            async with (
                Producer(self._namesrv, "shop") as producer,
                TransactionProducer(self._namesrv, "bank", checker=_open_still) as bank,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._often, 150.0, self._order(producer))
                nursery.start_soon(self._often, 40.0, self._payment(producer))
                nursery.start_soon(self._often, 4.0, self._later(producer))
                nursery.start_soon(self._often, 5.0, self._transaction(bank))
                nursery.start_soon(self._consume_orders)
                nursery.start_soon(self._consume_payments)

    async def _often(self, per_s: float, act: Callable[[], Awaitable[object]]) -> None:
        """Act so many times a second, each time whether the one before has ended well or not."""
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._try, act)
                await trio.sleep(1 / per_s)

    async def _try(self, act: Callable[[], Awaitable[object]]) -> None:
        try:
            await act()
        except ClientError:
            self.failed += 1

    def _order(self, producer: Producer) -> Callable[[], Awaitable[object]]:
        numbers = count()
        return lambda: producer.send(Message(ORDERS, b"o%d " % next(numbers) + b"x" * 200))

    def _payment(self, producer: Producer) -> Callable[[], Awaitable[object]]:
        numbers = count()
        return lambda: producer.send(Message(PAYMENTS, b"p%d " % next(numbers) + b"x" * 60))

    def _later(self, producer: Producer) -> Callable[[], Awaitable[object]]:
        """Return a send of a message that waits: for a time of its own, or a level's."""
        numbers = count()

        def send() -> Awaitable[object]:
            number = next(numbers)
            if number % 2:
                return producer.send(Message(ORDERS, b"reminder", delay_level=4))
            return producer.send(Message(PAYMENTS, b"due", delay_ms=5_000 + number * 97 % 40_000))

        return send

    def _transaction(self, bank: TransactionProducer) -> Callable[[], Awaitable[object]]:
        numbers = count()

        async def decide(_message: Message, _transaction_id: str) -> TransactionState:
            number = next(numbers)
            if number % 10 == 9:
                return TransactionState.UNKNOWN
            return TransactionState.ROLLBACK if number % 5 == 4 else TransactionState.COMMIT

        return lambda: bank.send_in_transaction(Message(PAYMENTS, b"transfer"), decide)

    async def _consume_orders(self) -> None:
        numbers = count()

        async def bill(_message: ReceivedMessage) -> Later | None:
            return Later(delay_level=2) if next(numbers) % 200 == 199 else None

        await self._consume("billing", ORDERS, bill)

    async def _consume_payments(self) -> None:
        async def book(_message: ReceivedMessage) -> ConsumeResult:
            if time.monotonic() - self._begun_s < self._seconds / 2:
                await trio.sleep(SLOW_S)
            return ConsumeResult.SUCCESS

        await self._consume("ledger", PAYMENTS, book)

    async def _consume(
        self,
        group: str,
        topic: str,
        handler: Callable[[ReceivedMessage], Awaitable[Later | ConsumeResult | None]],
    ) -> None:
        """Consume a topic from its first message on, payments one at a time, until it is cancelled."""
        async with PushConsumer(
            namesrv=self._namesrv,
            group=group,
            handler=handler,
            subscriptions={topic: "*"},
            start_from="first",
            concurrency=1 if topic == PAYMENTS else 20,
        ):
            await trio.sleep_forever()


async def _open_still(_message: ReceivedMessage) -> TransactionState:
    """Answer a check: nobody knows yet."""
    return TransactionState.UNKNOWN

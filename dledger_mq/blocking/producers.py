"""Producers for code without async."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Unpack

import trio

from dledger_mq.blocking.runner import Runner, blocking, in_loop
from dledger_mq.client import idempotent_producer, producer, transaction_producer
from dledger_mq.client.arguments import check_callable
from dledger_mq.client.errors import SendError
from dledger_mq.client.idempotent_producer import RowsResult
from dledger_mq.client.messages import Message, ReceivedMessage, SendResult
from dledger_mq.client.outbox import Outbox
from dledger_mq.client.producer_settings import ProducerOptions, SendChoices
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.send_maker import Row
from dledger_mq.client.transaction_producer import TransactionResult, TransactionState

log = logging.getLogger(__name__)


class Producer(Runner[producer.Producer]):
    """Sends messages; arguments as `dledger_mq.Producer`."""

    _outbox: Outbox | None = None

    def __init__(self, namesrv: str, group: str, **options: Unpack[ProducerOptions]) -> None:
        super().__init__(producer.Producer(namesrv, group, **options))

    async def _work(self, stop: trio.Event) -> None:
        """Run the outbox beside the producer.

        At the end it is flushed before its task is cancelled, so no future stays open.
        """
        token = trio.lowlevel.current_trio_token()

        def wake(function: Callable[[], None]) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(function, idempotent=True)

        self._outbox = Outbox(self.client, wake, self.client.pending_max)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._outbox.run)
            await super()._work(stop)
            await self._outbox.flush()
            nursery.cancel_scope.cancel()

    send = blocking(producer.Producer.send)
    send_batch = blocking(producer.Producer.send_batch)
    send_oneway = blocking(producer.Producer.send_oneway)
    request = blocking(producer.Producer.request)
    recall = blocking(producer.Producer.recall)
    queues = blocking(producer.Producer.queues)
    statistics = in_loop(producer.Producer.statistics)
    message = in_loop(producer.Producer.message)

    def send_async(self, message: Message, **choices: Unpack[SendChoices]) -> Future[SendResult]:
        """Hand one message over and return at once, or when there is room for it.

        Messages leave in the order of the calls. The future ends with the result, or with the error that
        `send` would have raised; its callbacks run in the client's thread and must not block. One may call this
        method: the future that ended has made room for one message. Where other threads took that, it raises.

        Raises:
            ClientClosedError: not open.
            ClientUsageError: no room, and called in a future's callback, which cannot wait.
        """
        self.check_open()
        assert self._outbox is not None, "an open producer has one"
        return self._outbox.put(message, choices)

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        key: str | bytes | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult | SendError]:
        """Send messages without waiting for each answer; return how each one ended, in order.

        Much faster than `send` in a loop. A message that fails does not stop the others.
        """

        async def send_all() -> list[SendResult | SendError]:
            pending = [
                await self.client.submit(message, key=key, timeout_s=timeout_s)
                for message in messages
            ]
            await self.client.flush()
            ended = [one.error or one.result for one in pending]
            return [end for end in ended if end is not None]

        return self.call(send_all)

    def flush(self) -> None:
        """Wait until everything that was handed over before has ended, one way or the other."""

        async def flush() -> None:
            if self._outbox is not None:
                await self._outbox.flush()
            await self.client.flush()

        self.call(flush)


class IdempotentProducer(Producer):
    """Sends rows that are stored once; arguments as `dledger_mq.IdempotentProducer`."""

    def __init__(self, namesrv: str, group: str, **options: Unpack[ProducerOptions]) -> None:
        self._rows = idempotent_producer.IdempotentProducer(namesrv, group, **options)
        Runner.__init__(self, self._rows)

    def send_rows(
        self,
        rows: Sequence[Row],
        *,
        sink_id: str,
        batch_id: int,
        queue: MessageQueue,
        timeout_s: float | None = None,
    ) -> RowsResult:
        """Send rows of one batch to one queue; those that are not stored yet are stored."""
        return self.call(
            self._rows.send_rows,
            rows,
            sink_id=sink_id,
            batch_id=batch_id,
            queue=queue,
            timeout_s=timeout_s,
        )


class TransactionProducer(Producer):
    """Sends in transactions; local transactions and the checker are ordinary functions.

    They run in worker threads, several at a time. Arguments as `dledger_mq.TransactionProducer`.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        *,
        checker: Callable[[ReceivedMessage], TransactionState | None],
        **options: Unpack[ProducerOptions],
    ) -> None:
        check_callable("checker", checker)

        async def check(message: ReceivedMessage) -> TransactionState | None:
            # Left behind when the producer is: its answer could not be sent, and the broker asks again.
            return await trio.to_thread.run_sync(checker, message, abandon_on_cancel=True)

        self._transactions = transaction_producer.TransactionProducer(
            namesrv, group, checker=check, **options
        )
        Runner.__init__(self, self._transactions)

    def send_in_transaction(
        self,
        message: Message,
        local: Callable[[Message, str], TransactionState | None],
        *,
        check_after_s: int | None = None,
        **choices: Unpack[SendChoices],
    ) -> TransactionResult:
        """Store a message, run the local transaction, and make the message visible if it committed.

        Another thread that closes the producer meanwhile does not wait for `local`, which goes on in its thread.
        """
        check_callable("local", local)

        async def run(message: Message, transaction_id: str) -> TransactionState | None:
            try:
                return await trio.to_thread.run_sync(
                    local, message, transaction_id, abandon_on_cancel=True
                )
            except trio.Cancelled:
                log.warning(
                    "the producer is closed before the local transaction %s of %s has returned: its thread goes on by "
                    "itself, and the checker decides",
                    getattr(local, "__qualname__", local),
                    transaction_id,
                )
                raise

        return self.call(
            self._transactions.send_in_transaction,
            message,
            run,
            check_after_s=check_after_s,
            **choices,
        )

"""Sending rows that are stored once, however often and by whomever they are sent.

    async with IdempotentProducer("127.0.0.1:9876", "jobs") as producer:
        rows = [Row(row_key("order-17"), Message("Totals", b"..."))]
        result = await producer.send_rows(rows, sink_id="totals", batch_id=4, queue=queue)
        result.stored  # (True,): stored now; (False,): was there already

For jobs that write numbered batches and repeat a whole batch after a crash. The broker group remembers in
its log which rows of the sink's current batch it has (broker/store/sinks.py), so a repeat by another process,
after a failover, or beside the first one stores nothing twice. Each group remembers for itself: a row must
meet the same broker name when it is sent again. A higher batch id ends the batches below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from dledger_mq.client.arguments import check_int, check_queue, check_text, wrong_type
from dledger_mq.client.errors import ClientUsageError, InvalidMessageError, RequestFailedError
from dledger_mq.client.lane import PendingSend
from dledger_mq.client.messages import Message, check_message
from dledger_mq.client.producer import Producer
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.send_maker import MessageColumns, Row
from dledger_mq.message.batch import BATCH_ITEMS_MAX
from dledger_mq.message.names import is_retry_topic
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.message.row_keys import KEY_BYTES, SINK_ID_BYTES_MAX
from dledger_mq.remoting.codes import ResponseCode

BATCH_ID_MAX: Final = 10**18 - 1


def row_key(*parts: str | bytes) -> bytes:
    """Return the key of the row that these parts name together: BLAKE2b, 8 bytes; the same in every process.

    Two rows of one batch have one key with a probability of about n²/2⁶⁵ for n rows: 3 in 10⁸ for a million.
    """
    pieces: list[bytes] = []
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        pieces += (len(data).to_bytes(4, "big"), data)
    return blake2b(b"".join(pieces), digest_size=KEY_BYTES).digest()


class RowsResult(msgspec.Struct, frozen=True):
    """The result of sending rows.

    Attributes:
        stored: for each row whether it was stored now; False: it was there already, or its batch is done.
        queue: where to.
        queue_offset: of the first row that was stored now, the others follow; -1 when none was.
        newer_batch: the batch that the sink has begun, if it is a higher one: whatever of these rows had not
            been stored before it never will be. Older brokers do not say so.
    """

    stored: tuple[bool, ...]
    queue: MessageQueue
    queue_offset: QueueOffset
    newer_batch: int | None = None

    @property
    def stored_count(self) -> int:
        """The number of rows that were stored now."""
        return sum(self.stored)


class PendingRows:
    """Rows that have been submitted. `wait` says what became of them."""

    def __init__(self, pending: PendingSend, count: int) -> None:
        self._pending = pending
        self._count = count

    async def wait(self) -> RowsResult:
        """Wait for the broker's answer.

        Raises:
            SendRefusedError: none of them was stored by this send.
            SendOutcomeUnknownError: send them again, as they are.
            RequestFailedError: the broker does not know rows of sinks, and stored ordinary messages.
        """
        result = await self._pending.wait()
        marks = result.rows_stored
        if marks is None or len(marks) != self._count:
            raise RequestFailedError(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"{result.queue} is on a broker that does not know rows of sinks (it answered {marks!r} "
                f"to {self._count} rows) and stored them as ordinary messages",
            )
        stored = tuple(mark == "1" for mark in marks)
        return RowsResult(stored, result.queue, result.queue_offset, result.newer_batch)


class IdempotentProducer(Producer):
    """A producer that can also send rows. Arguments as `Producer`."""

    async def send_rows(
        self,
        rows: Sequence[Row],
        *,
        sink_id: str,
        batch_id: int,
        queue: MessageQueue,
        timeout_s: float | None = None,
    ) -> RowsResult:
        """Send rows of one batch to one queue as one request; those that are not stored yet are stored.

        Rows with a delay or a due time go one by one. All bodies together are bounded as one body is.

        Raises:
            InvalidMessageError: a row breaks a limit; nothing was sent.
            Others as `PendingRows.wait`, and as `Producer.send`.
        """
        pending = await self.submit_rows(
            rows, sink_id=sink_id, batch_id=batch_id, queue=queue, timeout_s=timeout_s
        )
        return await pending.wait()

    async def submit_rows(
        self,
        rows: Sequence[Row],
        *,
        sink_id: str,
        batch_id: int,
        queue: MessageQueue,
        timeout_s: float | None = None,
    ) -> PendingRows:
        """Queue a send of rows and return at once, or when there is room for it. See `send_rows`."""
        session = self._live()
        self._check_rows(rows, sink_id, batch_id, queue)
        deadline = self._deadline(timeout_s)
        if not session.routes.knows(queue.broker_name):
            await self._publish_queues(queue.topic, deadline - self._now())
        await self.wait_for_room()
        sink_batch = f"{batch_id} {sink_id}"
        pending = self._maker.rows(rows, queue, sink_batch=sink_batch, deadline=deadline)
        self._enter(pending, at_once=False)
        return PendingRows(pending, len(rows))

    async def submit_columns(
        self,
        columns: MessageColumns,
        *,
        queue: MessageQueue,
        sink_id: str = "",
        batch_id: int = 0,
        timeout_s: float | None = None,
    ) -> PendingSend | PendingRows:
        """Queue one send of messages that are given by columns, as `submit_batch` and `submit_rows` do.

        What their columns say of each message is checked by whoever made them. With row keys they are rows of that
        sink's batch. A producer with hooks or a trace needs messages: it sends only rows so.

        Raises:
            ClientUsageError: there are hooks or a trace.
            InvalidMessageError: a limit is broken; nothing was sent.
            NoRouteError, NameServersUnreachableError: nothing was sent.
        """
        session = self._live()
        check_queue(queue)
        self._check_columns(columns, queue)
        is_rows = columns.row_keys is not None
        if is_rows:
            _check_sink(len(columns.bodies), sink_id, batch_id, queue)
        elif self._settings.hooks is not None or self._settings.trace:
            raise ClientUsageError("columns pass no hooks and leave no trace")
        deadline = self._deadline(timeout_s)
        if not session.routes.knows(queue.broker_name):
            await self._publish_queues(queue.topic, deadline - self._now())
        await self.wait_for_room()
        sink_batch = f"{batch_id} {sink_id}" if is_rows else None
        pending = self._maker.columns(columns, queue, sink_batch=sink_batch, deadline=deadline)
        self._enter(pending, at_once=False)
        return PendingRows(pending, len(columns.bodies)) if is_rows else pending

    def _check_columns(self, columns: MessageColumns, queue: MessageQueue) -> None:
        """Raise InvalidMessageError for columns that make no batch."""
        bodies, row_keys = columns.bodies, columns.row_keys
        keys = bodies if row_keys is None else row_keys
        if not 0 < len(bodies) == len(columns.labels) == len(keys) <= BATCH_ITEMS_MAX:
            raise InvalidMessageError(
                f"{len(bodies)} bodies, {len(columns.labels)} labels and {len(keys)} keys make no batch"
            )
        check_message(Message(queue.topic, min(bodies, key=len)), self._body_bytes_max)
        check_message(Message(queue.topic, max(bodies, key=len)), self._body_bytes_max)
        if row_keys is not None and set(map(len, row_keys)) != {KEY_BYTES}:
            raise InvalidMessageError(f"a row key must have {KEY_BYTES} bytes")
        if is_retry_topic(queue.topic):
            raise InvalidMessageError("columns cannot go to a retry topic")

    def _check_rows(
        self, rows: Sequence[Row], sink_id: str, batch_id: int, queue: MessageQueue
    ) -> None:
        """Raise InvalidMessageError for what the broker would refuse, before anything is sent."""
        check_queue(queue)
        _check_are_rows(rows)
        _check_sink(len(rows), sink_id, batch_id, queue)
        for row in rows:
            check_message(row.message, self._body_bytes_max)
            if row.message.topic != queue.topic or (row.message.is_delayed and len(rows) > 1):
                raise InvalidMessageError(
                    f"rows of one send have one topic, here {queue.topic}, and no delays"
                )
            if not isinstance(row.key, bytes):
                raise InvalidMessageError(wrong_type("a row key", row.key, "bytes"))
            if len(row.key) != KEY_BYTES:
                raise InvalidMessageError(
                    f"a row key has {len(row.key)} bytes, it must have {KEY_BYTES}"
                )


def _check_sink(count: int, sink_id: str, batch_id: int, queue: MessageQueue) -> None:
    """Raise InvalidMessageError for rows that no sink sends at once, or to there."""
    check_text("sink_id", sink_id)
    check_int("batch_id", batch_id)
    if not 0 < count <= BATCH_ITEMS_MAX:
        raise InvalidMessageError(f"{count} rows in one send, 1 to {BATCH_ITEMS_MAX} fit")
    if not sink_id.isprintable() or not 0 < len(sink_id.encode()) <= SINK_ID_BYTES_MAX:
        raise InvalidMessageError(
            f"sink id {sink_id!r} has not 1 to {SINK_ID_BYTES_MAX} bytes of printable text"
        )
    if not 0 <= batch_id <= BATCH_ID_MAX:
        raise InvalidMessageError(f"batch id {batch_id} is not in 0..{BATCH_ID_MAX}")
    if is_retry_topic(queue.topic):
        raise InvalidMessageError("rows cannot go to a retry topic")


def _check_are_rows(rows: object) -> None:
    if not isinstance(rows, Sequence) or not all(isinstance(row, Row) for row in rows):
        raise InvalidMessageError(wrong_type("rows", rows, "a list of Row"))

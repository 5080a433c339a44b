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

import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import anyio
import msgspec

from dledger_mq.client.errors import InvalidMessageError, RequestFailedError
from dledger_mq.client.lane import PendingSend
from dledger_mq.client.messages import (
    Message,
    check_message,
    check_not_too_far,
    message_properties,
    pack_body,
)
from dledger_mq.client.producer import Producer
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.batch import BATCH_ITEMS_MAX, BatchItem, encode_batch
from dledger_mq.message.names import is_retry_topic
from dledger_mq.message.properties import SINK_ROW, encode_property
from dledger_mq.message.row_keys import KEY_BYTES, SINK_ID_BYTES_MAX
from dledger_mq.remoting.codes import ResponseCode

BATCH_ID_MAX: Final = 10**18 - 1


def row_key(*parts: str | bytes) -> bytes:
    """The key of the row that these parts name together: BLAKE2b, 8 bytes; the same in every process.

    Two rows of one batch have one key with a probability of about n²/2⁶⁵ for n rows: 3 in 10⁸ for a million.
    """
    hashed = blake2b(digest_size=KEY_BYTES)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(4, "big"))
        hashed.update(data)
    return hashed.digest()


class Row(msgspec.Struct, frozen=True):
    """A message and the key of the row that it is; 8 bytes, see `row_key`."""

    key: bytes
    message: Message


class RowsResult(msgspec.Struct, frozen=True):
    """What became of rows that were sent.

    Attributes:
        stored: for each row whether it was stored now; False: it was there already, or its batch is done.
        queue: where to.
        queue_offset: of the first row that was stored now, the others follow; -1 when none was.
    """

    stored: tuple[bool, ...]
    queue: MessageQueue
    queue_offset: int

    @property
    def stored_count(self) -> int:
        """How many were stored now."""
        return sum(self.stored)


class PendingRows:
    """Rows that have been submitted. `wait` says what became of them."""

    def __init__(self, pending: PendingSend, count: int) -> None:
        self._pending = pending
        self._count = count

    async def wait(self) -> RowsResult:
        """Wait for the broker's word.

        Raises:
            SendRefusedError: none of them was stored by this send.
            SendOutcomeUnknownError: send them again, as they are.
            RequestFailedError: the broker does not know rows of sinks, and stored ordinary messages.
        """
        result = await self._pending.wait()
        told = result.rows_stored
        if told is None or len(told) != self._count:
            raise RequestFailedError(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"{result.queue} is on a broker that does not know rows of sinks (it answered {told!r} "
                f"to {self._count} rows) and stored them as ordinary messages",
            )
        stored = tuple(mark == "1" for mark in told)
        return RowsResult(stored, result.queue, result.queue_offset)


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
        """Send rows of one batch to one queue as one request; those that are not there yet are stored.

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
        if not session.routes.knows(queue.broker_name):
            await self.queues(queue.topic)
        await self._wait_for_room()
        now_ms = time.time_ns() // 1_000_000
        sink_batch = f"{batch_id} {sink_id}"
        items = []
        keys = []
        for row in rows:
            message = row.message
            check_not_too_far(message, now_ms)
            unique_key = message.unique_key or session.unique_keys.next_key(now_ms)
            mark = encode_property(SINK_ROW, f"{row.key.hex()} {sink_batch}".encode())
            properties = message_properties(message, unique_key) + mark
            items.append(BatchItem(message.flag, message.body, properties))
            keys.append(unique_key)
        settings = self._settings
        sys_flag = flag = 0
        if len(items) == 1:
            flag, properties = items[0].flag, items[0].properties
            body, sys_flag = pack_body(
                items[0].body, settings.compress_from_bytes, settings.compress_level
            )
        else:
            body, properties = encode_batch(items), b""
            if len(body) > settings.message_bytes_max:
                raise InvalidMessageError(
                    f"{len(rows)} rows have {len(body)} bytes, at most {settings.message_bytes_max}"
                )
        opaque = session.opaques.take()
        frame = self._templates.frame(
            queue,
            body,
            properties,
            opaque=opaque,
            born_timestamp_ms=now_ms,
            sys_flag=sys_flag,
            flag=flag,
            is_batch=len(items) > 1,
            sink_batch=sink_batch,
        )
        deadline = anyio.current_time() + (self.timeout_s if timeout_s is None else timeout_s)
        pending = PendingSend(
            queue,
            ",".join(keys),
            frame,
            opaque,
            deadline=deadline,
            is_oneway=False,
            attempts_max=settings.attempts_max,
        )
        self._enter(pending, at_once=False)
        return PendingRows(pending, len(rows))

    def _check_rows(
        self, rows: Sequence[Row], sink_id: str, batch_id: int, queue: MessageQueue
    ) -> None:
        if not 0 < len(rows) <= BATCH_ITEMS_MAX:
            raise InvalidMessageError(f"{len(rows)} rows in one send, 1 to {BATCH_ITEMS_MAX} fit")
        if not sink_id.isprintable() or not 0 < len(sink_id.encode()) <= SINK_ID_BYTES_MAX:
            raise InvalidMessageError(
                f"sink id {sink_id!r} has not 1 to {SINK_ID_BYTES_MAX} bytes of printable text"
            )
        if not 0 <= batch_id <= BATCH_ID_MAX:
            raise InvalidMessageError(f"batch id {batch_id} is not in 0..{BATCH_ID_MAX}")
        if is_retry_topic(queue.topic):
            raise InvalidMessageError("rows cannot go to a retry topic")
        for row in rows:
            check_message(row.message, self._settings.message_bytes_max)
            if row.message.topic != queue.topic or (row.message.is_delayed and len(rows) > 1):
                raise InvalidMessageError(
                    f"rows of one send have one topic, here {queue.topic}, and no delays"
                )
            if len(row.key) != KEY_BYTES:
                raise InvalidMessageError(
                    f"a row key has {len(row.key)} bytes, it must have {KEY_BYTES}"
                )

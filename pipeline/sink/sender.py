"""Sends the rows of one task: batch messages per queue, many under way, every acknowledgement awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Final
from zlib import crc32

import trio

from dledger_mq import (
    ClientError,
    IdempotentProducer,
    Message,
    MessageQueue,
    PendingSend,
    Row,
    SendResult,
)
from dledger_mq.client.idempotent_producer import PendingRows, RowsResult
from dledger_mq.client.queues import RoundRobin, queue_for_key
from dledger_mq.client.send_maker import MessageColumns
from pipeline.errors import BadRowError, PipelineError
from pipeline.sink.blocks import Block, read_block
from pipeline.sink.counts import BatchCounts
from pipeline.sink.options import COLUMN, PRODUCER_GROUP, ROUND_ROBIN, SinkOptions
from pipeline.sink.rows import OutRow, RowReader

if TYPE_CHECKING:
    import pyarrow as pa

ROW_OVERHEAD_BYTES: Final = 272
"""The bytes of a row in a request besides its body and its texts, with something to spare."""
BATCH_ROWS_MAX: Final = 4096
RATE_STEPS: Final = 10
"""In each second, with a rate: what may go at once is a tenth of it."""


@dataclass(frozen=True, slots=True)
class SinkTask:
    """The identity of a task, from which its rows' keys are made.

    Attributes:
        partition: number of the task's partition, for errors.
        sink_id, batch_id: of an exactly-once sink.
        queues: of the option's topic; empty when rows name their topics.
    """

    partition: int
    sink_id: str
    batch_id: int
    queues: tuple[MessageQueue, ...]


@dataclass(slots=True)
class _Gathered:
    rows: list[OutRow]
    size_bytes: int


@dataclass(slots=True)
class _Sent:
    """Rows under way; they may be fewer than the numbers from first to last, some of which went to other queues."""

    first: int
    last: int
    count: int
    queue: MessageQueue
    pending: PendingSend | PendingRows


class RowSender:
    """Sends rows in their order; rows of one queue keep it. Use as an async context manager."""

    def __init__(self, options: SinkOptions, task: SinkTask) -> None:
        self._options = options
        self._task = task
        self._producer = IdempotentProducer(
            options.name_server,
            PRODUCER_GROUP,
            timeout_s=options.send_s,
            retries=None,
            **options.access.arguments(),
        )
        self._turn = RoundRobin(task.partition)
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._gathered: dict[MessageQueue, _Gathered] = {}
        self._sent: list[_Sent] = []
        self._began = 0.0
        self._taken = 0
        self.counts = BatchCounts()

    async def __aenter__(self) -> RowSender:
        await self._producer.__aenter__()
        self._began = trio.current_time()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._producer.__aexit__(*error)  # type: ignore[arg-type]  # passed on as they came

    async def send(self, rows: Iterable[OutRow]) -> None:
        """Send rows and wait until all of them are stored.

        Raises:
            BadRowError: a row names a queue that is not there.
            PipelineError: rows are not known to be stored; says which, and why.
        """
        await self._all_stored(self._submit_all(rows))
        assert not self._gathered, f"rows for {list(self._gathered)} were not sent"
        await self._wait_for_turn()

    async def send_block(self, block: Block) -> None:
        """Send the rows of a block and wait until all of them are stored, as `send` does.

        Raises:
            PipelineError: rows are not known to be stored; says which, and why.
        """
        await self._all_stored(self._submit_block(block))

    async def _all_stored(self, submitting: Awaitable[None]) -> None:
        """Submit, and wait for the end of all that was submitted, also if more could not be."""
        try:
            await submitting
        finally:
            sent, self._sent = self._sent, []
            with trio.CancelScope(shield=True):  # bounded by the sends' own deadlines
                failures = [failure for one in sent if (failure := await self._outcome(one))]
        if failures:
            raise failures[0]

    async def _submit_all(self, rows: Iterable[OutRow]) -> None:
        for row in rows:
            await self._keep_to_rate()
            await self._add(row)
        for queue in list(self._gathered):
            await self._flush(queue)

    async def _submit_block(self, block: Block) -> None:
        """Submit the rows of a block, in batches as full as those of `_add`."""
        gathered: dict[MessageQueue, tuple[list[int], int]] = {}
        batch_bytes = self._options.batch_bytes
        for place, (queue, body, label) in enumerate(
            zip(self._queues_of(block), block.bodies, block.labels, strict=True)
        ):
            size = ROW_OVERHEAD_BYTES + len(body) + len(label)
            places, filled = gathered.get(queue, ([], 0))
            if places and (filled + size > batch_bytes or len(places) >= BATCH_ROWS_MAX):
                await self._submit_places(block, queue, places)
                places, filled = [], 0
            places.append(place)
            gathered[queue] = (places, filled + size)
        for queue, (places, _) in gathered.items():
            await self._submit_places(block, queue, places)

    async def _submit_places(self, block: Block, queue: MessageQueue, places: list[int]) -> None:
        """Submit the rows in some places of a block as one send."""
        columns = MessageColumns(
            [block.bodies[place] for place in places],
            [block.labels[place] for place in places],
            None if block.row_keys is None else [block.row_keys[place] for place in places],
        )
        first, last = block.first + places[0], block.first + places[-1]
        try:
            pending = await self._producer.submit_columns(
                columns, queue=queue, sink_id=self._task.sink_id, batch_id=self._task.batch_id
            )
        except ClientError as error:
            raise self._failed(first, last, queue, error) from error
        self._sent.append(_Sent(first, last, len(places), queue, pending))

    def _queues_of(self, block: Block) -> Iterator[MessageQueue]:
        """Choose the queue of each row of a block as `_queue_of` does."""
        queues = self._task.queues
        assert queues, "the option's topic has queues"
        by_keys = self._options.queue_selector != ROUND_ROBIN
        count = len(queues)
        for keys, row_key in zip(block.keys, block.row_keys or repeat(b""), strict=False):
            key = keys.encode() if keys and by_keys else row_key
            yield queues[crc32(key) % count] if key else self._turn(queues)

    async def _add(self, row: OutRow) -> None:
        """Put a row into its queue's batch, sending the batch when it is full; a delayed message is sent alone."""
        queue = await self._queue_of(row)
        message = row.message
        if message.is_delayed:  # never in a batch message
            await self._flush(queue)
            self._gathered[queue] = _Gathered([row], 0)
            await self._flush(queue)
            return
        size = ROW_OVERHEAD_BYTES + len(message.body) + _texts_bytes(message)
        gathered = self._gathered.get(queue)
        if gathered is not None and (
            gathered.size_bytes + size > self._options.batch_bytes
            or len(gathered.rows) >= BATCH_ROWS_MAX
        ):
            await self._flush(queue)
            gathered = None
        if gathered is None:
            gathered = self._gathered[queue] = _Gathered([], 0)
        gathered.rows.append(row)
        gathered.size_bytes += size
        count = len(gathered.rows)
        assert count <= BATCH_ROWS_MAX, f"{count} rows in a batch, at most {BATCH_ROWS_MAX} may be"

    async def _flush(self, queue: MessageQueue) -> None:
        gathered = self._gathered.pop(queue, None)
        if gathered is None:
            return
        rows = gathered.rows
        first, last = rows[0].number, rows[-1].number
        try:
            pending = await self._submit(queue, rows)
        except ClientError as error:
            raise self._failed(first, last, queue, error) from error
        self._sent.append(_Sent(first, last, len(rows), queue, pending))

    async def _submit(self, queue: MessageQueue, rows: list[OutRow]) -> PendingSend | PendingRows:
        producer = self._producer
        if self._options.is_exactly_once:
            return await producer.submit_rows(
                [Row(row.key, row.message) for row in rows],
                sink_id=self._task.sink_id,
                batch_id=self._task.batch_id,
                queue=queue,
            )
        if len(rows) == 1:
            return await producer.submit(rows[0].message, queue=queue)
        return await producer.submit_batch([row.message for row in rows], queue=queue)

    async def _outcome(self, sent: _Sent) -> PipelineError | None:
        """Await one batch and count its rows."""
        waiting: Awaitable[SendResult | RowsResult] = sent.pending.wait()
        count = sent.count
        try:
            result = await waiting
        except ClientError as error:
            return self._failed(sent.first, sent.last, sent.queue, error)
        if not isinstance(result, RowsResult):
            self.counts += BatchCounts(count, count)
        elif result.newer_batch is None:
            stored = result.stored_count
            self.counts += BatchCounts(count, stored, already=count - stored)
        elif self._options.skips_older_batch:
            self.counts += BatchCounts(count, older=count)
        else:
            return self._over(sent, result.newer_batch)
        return None

    def _over(self, sent: _Sent, newer_batch: int) -> PipelineError:
        """Return the error for rows of a batch that the sink is done with."""
        task = self._task
        return PipelineError(
            f"{_which(sent.first, sent.last)} of partition {task.partition} for {sent.queue} are not stored: batch "
            f"{task.batch_id} of sink {task.sink_id} is over, for it has begun batch {newer_batch}, and what was "
            "not stored of it before never will be. New rows need a higher batchId, a query with a new checkpoint a "
            "sinkId of its own; option olderBatch=skip goes on and only counts such rows"
        )

    def _failed(
        self, first: int, last: int, queue: MessageQueue, error: ClientError
    ) -> PipelineError:
        which = _which(first, last)
        stored = "not stored" if error.definite else "not known to be stored"
        return PipelineError(
            f"{which} of partition {self._task.partition} for {queue} are {stored}: {error}"
        )

    async def _queue_of(self, row: OutRow) -> MessageQueue:
        """Choose the queue: the row's own, else by its keys, else by its exactly-once key, else in turn."""
        topic = row.message.topic
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = self._task.queues or await self._ask(topic, row)
        if self._options.queue_selector == COLUMN:
            found = MessageQueue(
                topic, row.broker_name or "", -1 if row.queue_id is None else row.queue_id
            )
            if found not in queues:
                raise self._no_queue(row, found, queues)
            return found
        keys = row.message.keys
        if keys and self._options.queue_selector != ROUND_ROBIN:
            return queue_for_key(queues, keys if isinstance(keys, str) else " ".join(keys))
        if row.key:
            return queue_for_key(queues, row.key)
        return self._turn(queues)

    async def _ask(self, topic: str, row: OutRow) -> tuple[MessageQueue, ...]:
        """Ask for a topic's queues; raises PipelineError if exactly-once would need those of several groups."""
        try:
            queues = tuple(sorted(await self._producer.queues(topic)))
        except ClientError as error:
            raise BadRowError(
                f"row {row.number} of partition {self._task.partition} cannot be sent: {error}"
            ) from error
        groups = {queue.broker_name for queue in queues}
        if (
            self._options.is_exactly_once
            and len(groups) > 1
            and self._options.queue_selector != COLUMN
        ):
            raise PipelineError(
                f"topic {topic} is served by {len(groups)} broker groups: an exactly-once sink writes there "
                "only with option topic (its queue list is kept) or queueSelector column"
            )
        return queues

    def _no_queue(
        self, row: OutRow, wanted: MessageQueue, queues: tuple[MessageQueue, ...]
    ) -> BadRowError:
        known = sorted({queue.broker_name for queue in queues})
        return BadRowError(
            f"row {row.number} of partition {self._task.partition} names queue {wanted}, which does not "
            f"exist: {wanted.topic} has {len(queues)} queues on {', '.join(known)}"
        )

    async def _keep_to_rate(self) -> None:
        """Keep to the rate: pass a tenth of a second's rows, then wait until that time is over."""
        rate = self._options.rows_per_second
        if rate is not None and self._taken % max(rate // RATE_STEPS, 1) == 0:
            for queue in list(self._gathered):
                await self._flush(queue)
            await self._wait_for_turn()
        self._taken += 1

    async def _wait_for_turn(self) -> None:
        rate = self._options.rows_per_second
        if rate is not None:
            await trio.sleep_until(self._began + self._taken / rate)


def _which(first: int, last: int) -> str:
    return f"row {first}" if first == last else f"rows {first} to {last}"


def _texts_bytes(message: Message) -> int:
    """Estimate what tags, keys and properties take; in UTF-8 a character may take four."""
    texts = sum(len(name) + len(text) for name, text in message.properties.items())
    keys = message.keys
    texts += len(keys) if isinstance(keys, str) else sum(map(len, keys))
    return 4 * (texts + len(message.tags or "")) if texts or message.tags else 0


def send_all(
    options: SinkOptions, task: SinkTask, reader: RowReader, batches: Iterable[pa.RecordBatch]
) -> BatchCounts:
    """Send every row of some Arrow batches; returns when all of them are stored.

    Raises:
        BadRowError, PipelineError: some are not.
    """

    async def run() -> BatchCounts:
        async with RowSender(options, task) as sender:
            for batch in batches:
                block = read_block(reader, options, batch)
                if block is not None:
                    await sender.send_block(block)
                else:
                    await sender.send(reader.read(batch))
        return sender.counts

    return trio.run(run)

"""Pulls ranges of queues, whole and in order, as CommitLog records back to back.

Over the deaths of leaders, with a deadline: every offset of a range is accounted for before the range ends.
An answer without a wanted message is no loss as long as the queue still begins before it: a tag filter passes
messages over, and queues may have gaps. Lost is what lies below the queue's first offset, on every node; what the
leader has forgotten and another node has not is read there.
"""

from __future__ import annotations

import logging
import queue
import struct
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import trio

from dledger_mq import MessageQueue
from dledger_mq import PullConsumer as TrioPullConsumer
from dledger_mq.blocking import PullConsumer
from dledger_mq.client.errors import ClientError, RequestFailedError
from dledger_mq.client.group_requests import PulledRecords
from dledger_mq.client.subscriptions import EVERYTHING, BySql
from dledger_mq.remoting.codes import ResponseCode
from pipeline.errors import DataLossError, InconclusiveError, PipelineError
from pipeline.offsets import OFFSET_MAX
from pipeline.ranges import QueueRange
from pipeline.source_options import SourceOptions

AHEAD: Final = 8
"""Pulls that may be done before their records are asked for."""

PAUSE_S: Final = 0.02
NODES_ASKED_ABOUT_LOSS: Final = 5

_DOES_NOT_CHOOSE: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
"""Answers of a broker where SQL92 is switched off, or that knows less of it."""

_SIZE: Final = struct.Struct(">i")
_QUEUE_OFFSET: Final = struct.Struct(">q")
_QUEUE_OFFSET_AT: Final = 20

_T = TypeVar("_T")
log = logging.getLogger(__name__)


class Chunk(NamedTuple):
    """Records of a range.

    Attributes:
        broker_name: the group they come from.
        records: back to back, inside the range, in order; a filter may still have let too many through.
        rows_most: not more than so many.
    """

    broker_name: str
    records: bytes
    rows_most: int


@dataclass(slots=True)
class PullTotals:
    """Sums over pulls that were answered; `size` is that of their records as they came, in bytes."""

    pulls: int = 0
    size: int = 0

    def __add__(self, other: PullTotals) -> PullTotals:
        return PullTotals(self.pulls + other.pulls, self.size + other.size)


class RangePuller:
    """Reads ranges with one consumer.

    Args:
        consumer: open; its `timeout_s` is how long a leader is looked for.
        options: batch size, selection, time per request, and whether followers may answer.
        totals: has what is pulled added to it.
    """

    def __init__(
        self, consumer: PullConsumer, options: SourceOptions, totals: PullTotals | None = None
    ) -> None:
        self._consumer = consumer
        self._options = options
        self._totals = PullTotals() if totals is None else totals
        self._expression = options.selection.asked
        self._without_followers: set[str] = set()
        self._answers_alike = 0
        self._asked_ahead: dict[int, PulledRecords] = {}

    def chunks(self, ranges: Iterable[QueueRange]) -> Iterator[Chunk]:
        """Read ranges one after the other.

        Raises:
            DataLossError: messages are gone, and failOnDataLoss is set.
            InconclusiveError: nobody answers in time.
            PipelineError: a broker refuses.
        """
        for one in ranges:
            yield from self._range(one)

    def _range(self, one: QueueRange) -> Iterator[Chunk]:
        """Pull one range without gaps; raises when the queue has lost a part of it, or stays behind for too long."""
        at: int = one.start
        stuck_since: float | None = None
        self._answers_alike, self._asked_ahead = 0, {}
        may_ask_ahead = self._expression == EVERYTHING and not self._options.reads_followers
        while at < one.end:
            pulled = self._pulled_ahead(one, at) or self._pull(one, at)
            if pulled.min_offset > at:
                begins, kept = self._pull_forgotten(one, at, pulled.min_offset)
                if kept is None:
                    at = self._after_loss(one, at, begins)
                    continue
                pulled = kept
            if pulled.is_offset_wrong or pulled.next_offset <= at:
                # That node has not applied what is committed: a new leader soon will have.
                now = time.monotonic()
                stuck_since = now if stuck_since is None else stuck_since
                self._check_patience(one, at, pulled, now - stuck_since)
                time.sleep(PAUSE_S)
            else:
                stuck_since = None
                records = pulled.records
                if pulled.next_offset > one.end or _first_offset(records) < at:
                    records = trimmed(records, at, one.end)
                count = min(pulled.next_offset, one.end) - at
                # Where answers get shorter too many of those asked for together would be in vain.
                may_ask_ahead &= self._answers_alike <= count
                self._answers_alike = count if may_ask_ahead else 0
                at = pulled.next_offset
                if records:
                    yield Chunk(one.queue.broker_name, records, count)

    def _pulled_ahead(self, one: QueueRange, at: int) -> PulledRecords | None:
        """Return an answer that was asked for together with others, if answers are alike."""
        pulled = self._asked_ahead.pop(at, None)
        step = self._answers_alike
        if pulled is None and step:
            places = range(at, min(at + self._options.pull_batch_size, one.end - step + 1), step)
            self._asked_ahead = {}
            if len(places) > 1:
                self._ask_ahead(one, places)
                pulled = self._asked_ahead.pop(at, None)
        if pulled is not None:
            self._totals.pulls += 1
            self._totals.size += len(pulled.records)
        return pulled

    def _ask_ahead(self, one: QueueRange, places: range) -> None:
        """Ask the leader for records from some places at once, and keep the answers that leave no question open."""
        consumer = self._consumer
        within_s = self._options.pull_timeout_ms / 1000
        found = consumer.call(
            pull_together,
            consumer.client,
            one.queue,
            places,
            count=places.step,
            count_last=min(self._options.pull_batch_size, one.end - places[-1]),
            answer_within_s=within_s,
        )
        self._asked_ahead = {
            at: pulled
            for at, pulled in found.items()
            if pulled.min_offset <= at < pulled.next_offset and not pulled.is_offset_wrong
        }

    def _pull(self, one: QueueRange, at: int) -> PulledRecords:
        """Pull until an answer advances the range, from a follower if that is allowed and possible."""
        name = one.queue.broker_name
        if self._options.reads_followers and name not in self._without_followers:
            try:
                pulled = self._ask(one, at, node=1 + one.queue.queue_id)
            except ClientError as error:
                log.info("%s is read from its leader from now on: %s", name, error)
                self._without_followers.add(name)
            else:
                if pulled.next_offset > at and not pulled.is_offset_wrong:
                    return pulled
        try:
            return self._ask(one, at, node=None)
        except ClientError as error:
            text = f"{one} cannot be read from {at} on: {error}"
            raise InconclusiveError(text) if error.retriable else PipelineError(text) from error

    def _ask(self, one: QueueRange, at: int, node: int | None) -> PulledRecords:
        """Ask one node, or the leader, for as much of the selection as it takes; the rest is left out here, later."""
        try:
            return self._ask_for(self._expression, one, at, node)
        except RequestFailedError as error:
            plain = self._options.selection.asked_plainly
            if error.code not in _DOES_NOT_CHOOSE or self._expression == plain:
                raise
            log.info("%s does not choose by %s: %s", one.queue.broker_name, self._expression, error)
            self._expression = plain
        return self._ask_for(self._expression, one, at, node)

    def _ask_for(
        self, expression: str | BySql, one: QueueRange, at: int, node: int | None
    ) -> PulledRecords:
        """Ask one node, or the leader, and add what came to the totals."""
        pulled = self._consumer.pull_records(
            one.queue,
            at,
            max_messages=min(self._options.pull_batch_size, one.end - at),
            expression=expression,
            node=node,
            answer_within_s=self._options.pull_timeout_ms / 1000,
        )
        self._totals.pulls += 1
        self._totals.size += len(pulled.records)
        return pulled

    def _check_patience(
        self, one: QueueRange, at: int, pulled: PulledRecords, stuck_s: float
    ) -> None:
        if stuck_s < self._options.retry_timeout_ms / 1000:
            return
        text = f"{one} cannot be read from {at} on: the queue ends at {pulled.max_offset}"
        raise DataLossError(f"{text}, and has for {stuck_s:.0f} s: what was committed is not there")

    def _pull_forgotten(
        self, one: QueueRange, at: int, begins: int
    ) -> tuple[int, PulledRecords | None]:
        """Pull what the leader has no more from a node that still has it.

        What is forgotten the log says, but a node may be behind in it, or of an older version that keeps more.

        Args:
            one: the range.
            at: the offset that is wanted.
            begins: the queue's first offset at the leader.

        Returns:
            The first offset that any node has, and an answer that begins with the wanted one; None without one.
        """
        for node in range(NODES_ASKED_ABOUT_LOSS):
            with suppress(ClientError):
                pulled = self._ask(one, at, node=node)
                if pulled.min_offset > at:
                    begins = min(begins, pulled.min_offset)
                elif pulled.next_offset > at and not pulled.is_offset_wrong:
                    return at, pulled
        return begins, None

    def _after_loss(self, one: QueueRange, at: int, begins: int) -> int:
        """Return the offset to continue at when a queue begins after the wanted offset."""
        gone = min(begins, one.end)
        text = f"{one.queue} begins at {begins}: offsets {at} to {gone - 1} of {one} are gone"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text} (option failOnDataLoss=false goes on without them)")
        log.warning("%s", text)
        return gone


async def pull_together(
    consumer: TrioPullConsumer,
    queue: MessageQueue,
    places: Sequence[int],
    *,
    count: int,
    count_last: int,
    answer_within_s: float,
) -> dict[int, PulledRecords]:
    """Pull so many records from each of some places of a queue, all at once; without those that nobody answers about.

    From the last place as many are asked for as there may be: so it shows when brokers begin to give more in an answer.
    Only the node that the route says leads is asked, once: what else is to be done about a place is done for it alone.
    """
    found: dict[int, PulledRecords] = {}

    async def pull(at: int) -> None:
        most = count_last if at == places[-1] else count
        with suppress(ClientError):
            found[at] = await consumer.pull_records(
                queue, at, max_messages=most, node=0, answer_within_s=answer_within_s
            )

    async with trio.open_nursery() as nursery:
        for at in places:
            nursery.start_soon(pull, at)
    return found


def _first_offset(records: bytes) -> int:
    if len(records) < _QUEUE_OFFSET_AT + 8:
        return OFFSET_MAX
    offset: int = _QUEUE_OFFSET.unpack_from(records, _QUEUE_OFFSET_AT)[0]
    return offset


def trimmed(records: bytes, start: int, end: int) -> bytes:
    """Return the records with queue offsets from `start` to `end`, without `end`; they are in order.

    Nothing else about them is checked here: a damaged length ends the walk, and whoever decodes the
    records will meet it.
    """
    first, last, at = 0, len(records), 0
    while at + _QUEUE_OFFSET_AT + 8 <= len(records):
        (offset,) = _QUEUE_OFFSET.unpack_from(records, at + _QUEUE_OFFSET_AT)
        (size,) = _SIZE.unpack_from(records, at)
        if offset >= end:
            last = at
            break
        if size <= 0:
            break
        at += size
        if offset < start:
            first = at
    return records if (first, last) == (0, len(records)) else records[first:last]


def ahead(source: Iterator[_T], depth: int = AHEAD) -> Generator[_T, None, None]:
    """Run `source` in a thread of its own, at most `depth` items ahead, and yield its items."""
    ready: queue.Queue[tuple[bool, _T | BaseException | None]] = queue.Queue(depth)
    is_over = threading.Event()

    def put(item: tuple[bool, _T | BaseException | None]) -> bool:
        while not is_over.is_set():
            with suppress(queue.Full):
                ready.put(item, timeout=0.1)
                return True
        return False

    def run() -> None:
        try:
            for item in source:
                if not put((True, item)):
                    return
            put((False, None))
        except BaseException as error:  # noqa: BLE001 - the root of this thread; raised by the reader
            put((False, error))

    thread = threading.Thread(target=run, name="pulling", daemon=True)
    thread.start()
    try:
        while True:
            is_item, item = ready.get()
            if is_item:
                yield item  # type: ignore[misc]  # an item, then
            elif isinstance(item, BaseException):
                raise item
            else:
                return
    finally:
        is_over.set()

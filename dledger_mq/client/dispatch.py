"""Handing messages to the handler: many at a time, or those of a queue one after the other.

A concurrent consumer works on one queue in parallel; a message that fails goes back to the broker, so it
holds nothing up. An ordered consumer tries a message that failed again itself and lets nothing of its
queue pass (rules L12, L17). A broadcast consumer drops what fails, with a line in the log (L19).

A turn of the event loop costs more than a message, so a handler that waits for nothing is called again and
again in one turn, for TURN_S; then other tasks have theirs. A loop of the application that takes plain
messages gets them straight from here (`begin_next`), without a task in between.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from dledger_mq.client.consume_results import (
    DEAD_LETTER_LEVEL,
    BatchHandler,
    Later,
    UnfinishedError,
    wish_of,
)
from dledger_mq.client.consumer_settings import RECONSUME_MAX, ConsumerSettings
from dledger_mq.client.errors import ClientError
from dledger_mq.client.group_requests import GroupRequests
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.queue_reader import QueueReader
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.rates import ConsumeRates
from dledger_mq.client.turns import TaskTurns
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.net.loop import Event, current_loop

LOCAL_RETRY_S: Final = 5.0  # a message that could not be given back is tried again here
TIMED_OUT_LEVEL: Final = 3
TIMED_OUT_MAX: Final = 16  # of one queue in one round (L18)

log = logging.getLogger(__name__)

_Batch = tuple[ReceivedMessage, ...]


class Dispatcher:
    """Hands messages to the handler and sees to what failed. `run` is its task.

    Attributes:
        consumed, failed: messages by the handler's verdict; a repeated failure counts each time.
        rates: of the last minute, by topic.
        given_back: messages that go through the retry topic, or to the dead letters.
    """

    def __init__(
        self,
        handler: BatchHandler,
        settings: ConsumerSettings,
        requests: GroupRequests,
        *,
        readers: Callable[[], Iterable[QueueReader]],
        wait_held: Callable[[MessageQueue], Awaitable[object]] | None,
        on_work: Callable[[], None] | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Set up the dispatch.

        Args:
            handler: gets the messages.
            settings: of the consumer.
            requests: give back what failed.
            readers: those of the owned queues.
            wait_held: waits until the lock of a queue is good, for ordered consumers.
            on_work: called when there are messages for `begin_next`; then there are no tasks that call the handler.
            on_end: called when `run` is cancelled, before the calls of the handler have ended.
        """
        self.consumed = self.failed = self.given_back = 0
        self.rates: dict[str, ConsumeRates] = {}
        self._handler = handler
        self._settings = settings
        self._requests = requests
        self._readers = readers
        self._wait_held = wait_held
        self._nursery: TaskGroup | None = None
        loop = current_loop()
        self._now, self._new_event = loop.now, loop.new_event
        self._turns = TaskTurns(self._now)  # of all tasks: each with its own would add up
        # Unbounded on purpose: the flow limits bound what readers put in.
        self._work: deque[tuple[QueueReader, _Batch]] = deque()
        self._idle: list[Event] = []  # of the tasks that wait for work
        self._is_waking = False  # one of them, which has not gone on yet
        self._on_work, self._on_end = on_work, on_end
        self._taken: tuple[QueueReader, _Batch, float] | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Hand messages to the handler until cancelled."""
        async with anyio.create_task_group() as nursery:
            self._nursery = nursery
            if not self._settings.ordered:
                for number in range(0 if self._on_work else self._settings.concurrency):
                    nursery.start_soon(self._consume_forever, name=f"consumer {number}")
                if not self._settings.broadcast:
                    nursery.start_soon(self._time_out_forever, name="consume timeout")
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                self._nursery = None
                self._on_end()

    def take(self, reader: QueueReader, messages: _Batch) -> None:
        """Take the messages that a reader pulled; once the end has begun they are left for the next member."""
        if self._nursery is None:
            return
        if self._settings.ordered:
            reader.waiting.extend(messages)
            if not reader.is_worked_on:
                reader.is_worked_on = True
                name = f"consumer {reader.held.queue}"
                self._nursery.start_soon(self._consume_in_order, reader, name=name)
            return
        size = 1 if self._on_work else self._settings.consume_batch_max
        self._work.extend(
            [(reader, messages[start : start + size]) for start in range(0, len(messages), size)]
        )
        self._notify()

    def _notify(self) -> None:
        """Wake one task that waits for work; it wakes the next one if there is more than it takes."""
        if self._on_work is not None:
            self._on_work()
        elif self._idle and not self._is_waking:
            self._is_waking = True
            self._idle.pop().set()

    def begin_next(self) -> ReceivedMessage | None:
        """Begin the next message for a loop of the application; None when there is none."""
        assert self._taken is None, f"{self._taken} has not ended"
        work = self._work
        while work:
            reader, messages = work.popleft()
            if reader.begin(messages):
                self._taken = (reader, messages, self._now())
                return messages[0]
        return None

    def end_taken(self, *, is_consumed: bool) -> None:
        """End what was begun last, if anything: as consumed, or unfinished as if it had not been begun."""
        taken, self._taken = self._taken, None
        if taken is None:
            return
        reader, messages, began_at = taken
        if is_consumed:
            self._count(messages, None, began_at)
        reader.end(messages, [messages[0].queue_offset] if is_consumed else ())

    async def _call(self, messages: _Batch) -> Later | None:
        """Call the handler; return None if it consumed all, else its wish. What it raises counts as a failure."""
        try:
            result = await self._handler(messages)
        except UnfinishedError:
            raise
        except Exception:  # the application's own; the messages come again
            first = messages[0]
            log.exception(
                "the handler failed on %d messages from %s of %s",
                len(messages),
                first.unique_key,
                first.queue,
            )
            return Later()
        return wish_of(result, len(messages))

    async def _handle(self, messages: _Batch) -> Later | None:
        """Call the handler on a batch and count the outcome.

        After `Later` only those before its place were consumed.
        """
        started_at = self._now()
        later = await self._call(messages)
        self._count(messages, later, started_at)
        return later

    def _count(self, messages: _Batch, later: Later | None, started_at: float) -> None:
        now = self._now()
        rates = self.rates.get(messages[0].topic)
        if rates is None:
            rates = self.rates[messages[0].topic] = ConsumeRates()
        left = 0 if later is None else len(messages) - later.consumed
        self.consumed += len(messages) - left
        self.failed += left
        if left < len(messages):
            rates.consumed.add(now, len(messages) - left, now - started_at)
        if left:
            rates.failed.add(now, left, now - started_at)

    async def _consume_forever(self) -> None:
        """Take batches until cancelled; what failed is tried again by a task of its own, so this one goes on."""
        work, turns = self._work, self._turns
        while True:
            if not work:
                await self._wait_for_work()
                while (
                    turns.is_over
                ):  # the task whose turn it was goes on first, and wakes this one again
                    await self._wait_for_work()
            await turns.share()
            if not work:
                continue  # others took it meanwhile
            reader, messages = work.popleft()
            if work:
                self._notify()
            if not reader.begin(messages):
                continue
            finished: list[QueueOffset] = []
            try:
                left = await self._consume(reader, messages, finished)
            except UnfinishedError:
                left = ()
            finally:
                reader.end(messages, finished)
            if left:
                assert self._nursery is not None, f"{len(left)} messages are left, nothing runs"
                self._nursery.start_soon(self._again_later, reader, left)

    async def _consume(
        self, reader: QueueReader, messages: _Batch, finished: list[QueueOffset]
    ) -> _Batch:
        """Handle some messages; return those that neither the handler nor the broker took."""
        later = await self._handle(messages)
        if later is None:
            finished += [message.queue_offset for message in messages]
            return ()
        finished += [message.queue_offset for message in messages[: later.consumed]]
        level = later.delay_level
        if level is None:
            level = self._settings.retry_delay_level
        left: list[ReceivedMessage] = []
        for message in messages[later.consumed :]:
            # What took too long was given back while the handler had it.
            if not reader.held.holds(message.queue_offset) or await self._give_back(message, level):
                finished.append(message.queue_offset)
            else:
                left.append(message)
        return tuple(left)

    async def _wait_for_work(self) -> None:
        arrived = self._new_event()
        self._idle.append(arrived)
        await arrived.wait()
        self._is_waking = False

    async def _again_later(self, reader: QueueReader, messages: _Batch) -> None:
        await anyio.sleep(LOCAL_RETRY_S)
        self._work.append((reader, messages))
        self._notify()

    async def _time_out_forever(self) -> None:
        """Give back what a handler has had for too long.

        It may still finish, so such a message can be consumed twice.
        """
        timeout_s = self._settings.consume_timeout_s
        while True:
            await anyio.sleep(timeout_s / 4)
            for reader in list(self._readers()):
                for message in reader.overdue(timeout_s, TIMED_OUT_MAX):
                    log.warning(
                        "%s of %s is with the handler for more than %g s, given back",
                        message.unique_key,
                        message.queue,
                        timeout_s,
                    )
                    if not await self._give_back(message, TIMED_OUT_LEVEL):
                        break
                    reader.finish(message.queue_offset)

    async def _consume_in_order(self, reader: QueueReader) -> None:
        """Handle the waiting messages of one queue, in order; a failure holds the queue up (L17)."""
        waiting = reader.waiting
        while waiting:
            if self._wait_held is not None:
                await self._wait_held(reader.held.queue)
            batch = tuple(islice(waiting, self._settings.consume_batch_max))
            if not batch or not reader.begin(batch):
                break
            finished: list[QueueOffset] = []
            later: Later | None = None
            left: list[ReceivedMessage] = []
            try:
                later = await self._handle(batch)
                done = len(batch) if later is None else later.consumed
                finished += [message.queue_offset for message in batch[:done]]
                for message in batch[done:]:
                    if await self._bury(message):
                        finished.append(message.queue_offset)
                    else:
                        times = message.reconsume_times + 1
                        left.append(msgspec.structs.replace(message, reconsume_times=times))
            except UnfinishedError:
                break
            finally:
                reader.end(batch, finished)
            if waiting and waiting[0] is batch[0]:  # else the broker moved the offset
                for _ in batch:
                    waiting.popleft()
                waiting.extendleft(reversed(left))
            if later is not None and left:
                wanted = later.suspend_s
                await anyio.sleep(self._settings.suspend_s if wanted is None else wanted)
        reader.is_worked_on = False

    async def _bury(self, message: ReceivedMessage) -> bool:
        """Give up a message of an ordered queue that failed too often: straight to the dead letters."""
        limit = self._settings.reconsume_max
        if limit is None or message.reconsume_times < limit:
            return False
        return await self._give_back(message, DEAD_LETTER_LEVEL)

    async def _give_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Give a message to the broker; it comes again, or goes to the dead letter topic."""
        if self._settings.broadcast:
            log.warning("%s of %s is dropped", message.unique_key, message.queue)
            return True
        limit = self._settings.reconsume_max
        try:
            await self._requests.send_back(
                message,
                delay_level=delay_level,
                max_reconsume_times=RECONSUME_MAX if limit is None else limit,
            )
        except ClientError as error:
            log.warning("%s was not given back: %s", message.message_id, error)
            return False
        self.given_back += 1
        return True

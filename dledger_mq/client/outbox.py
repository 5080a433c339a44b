"""Messages on their way from other threads to a producer that runs in a loop of its own; one future each.

They are handed over in the order of the calls, and so leave in that order: one that has to wait for its
route holds up those after it. A caller that hands over more than the bound waits, unless it is in the producer's own
thread, as the callbacks of futures are: that one would wait for itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import anyio

from dledger_mq.client.arguments import check_seconds
from dledger_mq.client.errors import ClientClosedError, ClientUsageError
from dledger_mq.client.lane import PendingSend
from dledger_mq.client.messages import Message, SendResult
from dledger_mq.client.producer import Producer
from dledger_mq.client.producer_settings import SendChoices

Letter = tuple[Message, SendChoices, float]
"""A message, the keyword arguments with which `Producer.submit` gets it, and when it came, on the outbox's clock."""


class Outbox:
    """The messages that other threads want to be sent. `run` is its task, in the producer's loop.

    Args:
        producer: sends.
        wake: calls a function in the producer's loop; from any thread.
        pending_max: how many may be without an end before `put` waits.
    """

    def __init__(
        self, producer: Producer, wake: Callable[[Callable[[], None]], None], pending_max: int
    ) -> None:
        self._producer = producer
        self._wake = wake
        self._letters: deque[tuple[Letter, Future[SendResult]]] = deque()
        self._room = threading.BoundedSemaphore(pending_max)
        self._pending_max = pending_max
        self._thread_id: int | None = None  # of the producer's loop, once it runs
        self._arrived = anyio.Event()
        self._unended = 0
        self._full_s = 0.0  # so long the producer had no room
        self._all_ended = anyio.Event()
        self._is_closed = False

    def put(self, message: Message, choices: SendChoices) -> Future[SendResult]:
        """Hand over a message, from any thread; waits while too many have not ended.

        Raises:
            ClientClosedError: the producer is being left.
            ClientUsageError: in the producer's own thread, while too many have not ended.
        """
        is_own_thread = threading.get_ident() == self._thread_id
        if not self._room.acquire(blocking=not is_own_thread):
            raise ClientUsageError(
                f"{self._pending_max} messages have not ended, and in a future's callback send_async cannot wait: they "
                "end in the same thread. The message was not handed over; do it in another thread"
            )
        future: Future[SendResult] = Future()
        future.add_done_callback(lambda _: self._room.release())
        self._letters.append(((message, choices, self._time()), future))
        self._wake(self._notice)
        if self._is_closed:
            self._give_up()
        return future

    def _time(self) -> float:
        """Return seconds on a clock that stands while the producer has no room: a send is not tried then."""
        return time.monotonic() - self._full_s

    def _notice(self) -> None:
        self._arrived.set()

    async def run(self) -> None:
        """Submit letters as they come until cancelled; those left then were not sent."""
        self._thread_id = threading.get_ident()
        try:
            while True:
                while self._letters:
                    letter, future = self._letters.popleft()
                    if future.set_running_or_notify_cancel():
                        await self._submit(letter, future)
                if not self._unended:
                    self._all_ended.set()
                self._arrived = anyio.Event()
                if not self._letters:
                    await self._arrived.wait()
        finally:
            self._is_closed = True
            self._give_up()
            self._all_ended.set()

    async def flush(self) -> None:
        """Wait until everything that was handed over before has ended."""
        while self._letters or self._unended:
            if self._all_ended.is_set():  # else others may wait for it already
                self._all_ended = anyio.Event()
            await self._all_ended.wait()

    async def _submit(self, letter: Letter, future: Future[SendResult]) -> None:
        """Submit one letter; its future ends also if this task is cancelled: no caller may wait forever."""
        message, choices, put_at = letter
        self._unended += 1
        try:
            timeout_s = choices.get("timeout_s")
            if timeout_s is None:
                timeout_s = self._producer.timeout_s
            # Its time runs while those before it wait for their routes: each would add its own time else.
            full_since = time.monotonic()
            await self._producer.wait_for_room()
            self._full_s += time.monotonic() - full_since
            waited_s = max(0.0, self._time() - put_at)
            choices["timeout_s"] = check_seconds("timeout_s", timeout_s) - waited_s
            pending = await self._producer.submit(message, **choices)
        except Exception as error:  # noqa: BLE001 - also what the application's own hooks raise
            self._end(future, error)
        except BaseException:
            self._end(future, ClientClosedError("the producer was left; it was not sent"))
            raise
        else:
            pending.on_done = lambda pending: self._on_done(pending, future)
            if pending.is_done:
                self._on_done(pending, future)

    def _on_done(self, pending: PendingSend, future: Future[SendResult]) -> None:
        assert (pending.error is None) != (pending.result is None), (
            f"a send ended with result {pending.result} and error {pending.error!r}"
        )
        self._end(future, pending.error or pending.result)

    def _end(self, future: Future[SendResult], end: SendResult | Exception | None) -> None:
        self._unended -= 1
        assert self._unended >= 0, f"{self._unended} messages have not ended"
        if isinstance(end, Exception):
            future.set_exception(end)
        else:
            assert end is not None, "a message ended without result and error"
            future.set_result(end)
        if not self._unended and not self._letters:
            self._all_ended.set()

    def _give_up(self) -> None:
        """Refuse what was not submitted; also called by a thread that came too late."""
        with suppress(IndexError):  # two at a time
            while True:
                _, future = self._letters.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_exception(
                        ClientClosedError("the producer was left; it was not sent")
                    )

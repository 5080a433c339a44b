"""The thread that writes and syncs for one node, while the loop goes on.

A sync of 0.1 ms is waited for by whoever asked: to hand it over and wait costs 17 us (measured), a turn of the
loop more. But no sync is known to be short before it has ended: on a disk with other writers any of them may
take seconds. So nobody waits for one without a bound, and whoever does not wait can have himself told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from dledger.runtime.clock import now_s


class Work:
    """Something that the thread does.

    Attributes:
        took_ms: how long it took; meaningful once it is done.
        error: what it raised; None when nothing, or it is not done.
    """

    __slots__ = ("_busy", "_call", "_notify", "error", "took_ms")

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._notify: Callable[[], object] | None = None
        self._busy = threading.Lock()  # a third of the time of an `Event`
        self._busy.acquire()
        self.took_ms = 0.0
        self.error: BaseException | None = None

    def do(self) -> None:
        """Run the work once, in the calling thread."""
        started_s = now_s()
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001  # raised where it is waited for
            self.error = error
        self.took_ms = (now_s() - started_s) * 1000
        self._busy.release()
        # Only now: whoever leaves says so first, and looks afterwards whether it is done.
        if self._notify is not None:
            self._notify()

    @property
    def is_done(self) -> bool:
        """True once the work was done."""
        return not self._busy.locked()

    def leave(self, notify: Callable[[], object]) -> None:
        """Wait no longer: `notify` is called in the other thread when the work is done, unless `is_done` is true now.

        It may be called in that case, too.
        """
        self._notify = notify

    def wait(self, patience_s: float | None = None) -> bool:
        """Block until the work is done or the timeout is over; return whether it is done."""
        is_done = self._busy.acquire(timeout=-1 if patience_s is None else patience_s)
        if is_done:
            self._busy.release()
        return is_done


class StorageThread:
    """A thread that runs work in the order in which it was queued. It starts with the first work."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, work: Work) -> None:
        """Queue work for the thread."""
        if self._thread is None:
            # A disk that never answers must not keep the process from ending.
            self._thread = threading.Thread(target=self._run, name="storage", daemon=True)
            self._thread.start()
        self._queue.put(work)

    def close(self) -> None:
        """End the thread when it has done what there is; no more work may come."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread = None

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work.do()

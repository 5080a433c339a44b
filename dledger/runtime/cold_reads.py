"""Reads of old entries beside the loop: what is wanted is read and verified in a thread, and kept for all who read.

At most two reads run at a time, and none of them reads what another one reads; the others wait in their order. Where a
read stands may have to be looked up on the disk first, which is a read before it; and a caller's own files are read in
the same order. Damage is not dealt with here: what a thread could not read is not in memory afterwards, and is read as
any entry is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import trio

from dledger.errors import DiskFailedError
from dledger.raft.entry import BodySpan, Entry
from dledger.raft.ids import Index, Position
from dledger.runtime.task_group import TaskGroup
from dledger.storage.page_loads import PageLoad, page_load
from dledger.storage.part_cache import PartCache
from dledger.storage.part_reader import Load, LoadPlanner, Place
from dledger.storage.sealed_index import PageNotLoadedError
from dledger.storage.segmented_log import SegmentedLog

LOADS_MAX: Final = 2
"""Reads at a time: while one waits for the disk another one verifies."""

WAITING_MIN: Final = 64
"""So many may wait before it is looked whether they are still wanted: on a disk that hangs nobody's turn comes."""


def ever_wanted() -> bool:
    """Return True: it is wanted until it was read."""
    return True


LOOK_UPS_MAX: Final = 8
"""Reads of indexes for one read of entries. One does unless pages are pushed out at once, or are damaged."""


class _Waiting(NamedTuple):
    """Somebody who waits for a read; see `ColdReads.load` and `ColdReads.read_beside`."""

    places: Sequence[Place]
    done: Callable[[], None]
    is_wanted: Callable[[], bool]
    work: Callable[[], None] | None = None
    look_ups: int = 0


class Threads(Protocol):
    """Something that runs work beside the loop."""

    def begin(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """Run `work` in a thread, then `done` on the loop."""
        ...


class TaskThreads:
    """Threads that tasks wait for."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks

    def begin(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """See `Threads`."""
        self._tasks.start(self._run, work, done, name="read")

    async def _run(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        # A disk that never answers must not keep the process from ending.
        await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        done()


class ColdReads:
    """The reads that are under way or wait for their turn.

    Invariants: at most LOADS_MAX loads run, over different parts; whoever waits is called once, unless the
    member stops; of those that wait at most WAITING_MIN, or half, are not wanted any more.

    Attributes:
        cache: what was read.
        load_count, load_bytes: reads beside the loop since the start.
    """

    def __init__(
        self,
        log: SegmentedLog,
        cache: PartCache,
        threads: Threads,
        *,
        commit_index: Callable[[], Index],
    ) -> None:
        """Set up the reads of one member.

        Args:
            log: what is read.
            cache: takes what was read.
            threads: where it is read.
            commit_index: the last entry that may be read.
        """
        self.cache = cache
        self.load_count = 0
        self.load_bytes = 0
        self.planner = LoadPlanner(log, cache)
        self._log = log
        self._threads = threads
        self._commit_index = commit_index
        self._waiting: deque[_Waiting] = deque()
        self._running: set[int] = set()
        self._running_count = 0
        self._has_stopped = False
        self._look_at_count = WAITING_MIN

    async def run(self) -> None:
        """Wait until the member stops; from then on nothing is read beside the loop, and nobody waits for it."""
        try:
            await trio.sleep_forever()
        finally:
            self._has_stopped = True
            self._waiting.clear()

    def load(
        self,
        places: Sequence[Place],
        done: Callable[[], None],
        is_wanted: Callable[[], bool] = ever_wanted,
    ) -> None:
        """Read what of these places is not in memory, then call `done`; at once if there is nothing to read.

        At once, too, when the member stops; who waits then is not called any more.

        Args:
            places: wanted bytes of the log.
            done: called once.
            is_wanted: asked when its turn comes; if it is not wanted any more, nothing is read.
        """
        self._wait(_Waiting(places, done, is_wanted))

    def read_beside(
        self, work: Callable[[], None], done: Callable[[], None], is_wanted: Callable[[], bool]
    ) -> None:
        """Run a read of other files when its turn comes, then call `done`; as `load` otherwise.

        Args:
            work: reads, in a thread; it must not raise.
            done: called once.
            is_wanted: asked when its turn comes; if it is not wanted any more, nothing is read.
        """
        self._wait(_Waiting((), done, is_wanted, work))

    def _wait(self, waiting: _Waiting) -> None:
        if self._has_stopped:
            waiting.done()
            return
        self._waiting.append(waiting)
        if len(self._waiting) > self._look_at_count:
            self._let_unwanted_go()
            self._begin_waiting()
        elif len(self._waiting) == 1:
            self._begin_waiting()

    def read_now(self, index: Index, position: Position, size_bytes: int) -> BodySpan | None:
        """Read parts on the loop, if their checksums are known; None if not, or they are damaged."""
        load = self.planner.plan([(position, size_bytes)], self._commit_index(), ahead=False)
        if load.entries:
            return None
        load.run()
        self.planner.put(load)
        return self.planner.span(index, position, size_bytes)

    def keep(self, entry: Entry) -> None:
        """Keep an entry that was read and verified."""
        self.planner.keep(entry)

    def _let_unwanted_go(self) -> None:
        """Read nothing for those that wait and are not wanted any more; they are called as the others are."""
        waiting = [(each, each.is_wanted()) for each in self._waiting]
        self._waiting = deque(each for each, is_wanted in waiting if is_wanted)
        self._look_at_count = max(WAITING_MIN, 2 * len(self._waiting))
        for each, is_wanted in waiting:
            if not is_wanted:
                each.done()

    def _begin_waiting(self) -> None:
        """Begin what waits, in order, as long as there is room."""
        while self._waiting and self._running_count < LOADS_MAX:
            waiting = self._waiting[0]
            if waiting.work is not None and waiting.is_wanted():
                self._waiting.popleft()
                self._begin_work(waiting.work, waiting.done)
                continue
            load = self._plan(waiting)
            if isinstance(load, Load) and not load.numbers.isdisjoint(self._running):
                return  # when the other one is through, this may find everything
            self._waiting.popleft()
            if not isinstance(load, Load):
                self._look_up(load, waiting)
            elif load.numbers:
                self._begin(load, waiting.done)
            else:
                waiting.done()

    def _plan(self, waiting: _Waiting) -> Load | list[PageLoad]:
        """Plan a read; where what it reads has to be looked up on the disk, plan that."""
        places = waiting.places if waiting.is_wanted() else ()
        log, planner = self._log, self.planner
        try:
            if waiting.look_ups == LOOK_UPS_MAX:
                return planner.plan(places, self._commit_index())
            with log.without_waiting():
                return planner.missing_pages(places) or planner.plan(places, self._commit_index())
        except PageNotLoadedError as error:
            return [page_load(error.part, None if error.number is None else (error.number,))]
        except (OSError, DiskFailedError):
            return Load()  # whoever reads it now meets the same, and tells

    def _look_up(self, loads: list[PageLoad], waiting: _Waiting) -> None:
        """Read pages of the index, then go on with the read for which they are needed, before all others."""

        def run() -> None:
            for load in loads:
                load.run()

        def done() -> None:
            has_read = all(load.has_read for load in loads)
            with suppress(DiskFailedError):  # whoever looks it up now meets the same, and tells
                for load in loads:
                    self._log.put_pages(load)
            look_ups = waiting.look_ups + 1 if has_read else LOOK_UPS_MAX
            self._waiting.appendleft(waiting._replace(look_ups=look_ups))

        self._begin_work(run, done)

    def _begin_work(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        self._running_count += 1
        self._threads.begin(work, lambda: self._end_work(done))

    def _end_work(self, done: Callable[[], None]) -> None:
        self._running_count -= 1
        done()
        self._begin_waiting()

    def _begin(self, load: Load, done: Callable[[], None]) -> None:
        self._running |= load.numbers
        self.load_count += 1
        self.load_bytes += load.size_bytes
        self._begin_work(load.run, lambda: self._end(load, done))

    def _end(self, load: Load, done: Callable[[], None]) -> None:
        """Keep what was read, and call who waits for it before anything can push it out."""
        self._running -= load.numbers
        self.planner.put(load)
        done()

"""Pulls that wait until old messages were read from the disk beside the loop.

A pull waits for one such read only, and for one of its queue's units before, and not beyond its deadline: then it is
given what is there, its first message in any case, or, when it is late or this node ends, nothing but the word to ask
again. For a client that is gone nothing is read. It must not know how pulls are answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from broker.server.handlers.pull_request import Pull
from dledger.runtime.log_reader import LogReader
from dledger_mq.message.numbers import PhysicalOffset

AHEAD_MAX: Final = 16
"""Reads for nobody in particular, at a time: they are for whoever is expected to ask next."""


def _nothing() -> None:
    """Do nothing: nobody listens yet."""


class PullLoads:
    """The pulls that wait; at most so many.

    Attributes:
        is_ending: no pull may wait any more.
        answered: called after a pull went on; it has to send the answers that there are.
    """

    def __init__(
        self,
        reader: LogReader,
        go_on: Callable[[Pull], None],
        give_up: Callable[[Pull], None],
        *,
        most: int,
    ) -> None:
        """Start with no pull.

        Args:
            reader: the log.
            go_on: called when what a pull waits for was read, and its client is still there.
            give_up: called when it waits no longer, though that was not read yet.
            most: pulls that may wait.
        """
        self.is_ending = False
        self.answered: Callable[[], None] = _nothing
        self._reader = reader
        self._go_on = go_on
        self._give_up = give_up
        self._most = most
        self._waiting: set[Pull] = set()
        self._ahead_count = 0

    def may_wait(self, pull: Pull) -> bool:
        """Return whether a pull that reads now may wait for the disk; it may once."""
        if pull.is_loaded:
            pull.is_loaded = False
            return False
        return not self.is_ending and len(self._waiting) < self._most

    def wait(self, pull: Pull, places: Sequence[tuple[PhysicalOffset, int]]) -> None:
        """Let a pull wait until these records were read."""
        self._waiting.add(pull)
        self._reader.load(places, lambda: self._loaded(pull), lambda: self._is_wanted(pull))

    def wait_for_units(self, pull: Pull, warm: Callable[[], None]) -> None:
        """Let a pull wait until units of its queue were read; it may wait for their records after that."""
        self._waiting.add(pull)
        pull.has_units = True
        self._reader.read_beside(warm, lambda: self._resume(pull), lambda: self._is_wanted(pull))

    def read_ahead(self, pull: Pull, places: Sequence[tuple[PhysicalOffset, int]]) -> None:
        """Read records for which a pull's client is expected to ask next, unless enough is read ahead."""
        if self._ahead_count < AHEAD_MAX and not self.is_ending:
            self._ahead_count += 1
            self._reader.load(places, self._read_ahead, lambda: not pull.origin.is_closed)

    def expire(self, now_ms: int) -> None:
        """Give up waiting for those that are late, and forget those whose clients are gone."""
        late = [each for each in self._waiting if each.deadline_ms <= now_ms or each.is_closed]
        self._stop_waiting(late)

    def end(self) -> None:
        """Give up waiting for all pulls at once; none waits from now on."""
        self.is_ending = True
        self._stop_waiting(tuple(self._waiting))

    def _stop_waiting(self, pulls: Iterable[Pull]) -> None:
        for pull in pulls:
            self._waiting.remove(pull)
            if not pull.is_closed:
                self._give_up(pull)

    def _is_wanted(self, pull: Pull) -> bool:
        return pull in self._waiting and not pull.is_closed

    def _loaded(self, pull: Pull) -> None:
        pull.is_loaded = True
        self._resume(pull)

    def _resume(self, pull: Pull) -> None:
        if pull not in self._waiting:
            return  # it was given up
        self._waiting.remove(pull)
        if not pull.is_closed:
            self._go_on(pull)
            self.answered()

    def _read_ahead(self) -> None:
        self._ahead_count -= 1

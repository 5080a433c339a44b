"""Pulls that wait until old messages were read from the disk beside the loop.

A pull waits for one such read only: then it is given what is there, its first message in any case. It must not know
how pulls are answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def __init__(self, reader: LogReader, go_on: Callable[[Pull], None], most: int) -> None:
        """Start with no pull.

        Args:
            reader: the log.
            go_on: called when what a pull waits for was read, and its client is still there.
            most: pulls that may wait.
        """
        self.is_ending = False
        self.answered: Callable[[], None] = _nothing
        self._reader = reader
        self._go_on = go_on
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
        self._reader.load(places, lambda: self._loaded(pull))

    def read_ahead(self, places: Sequence[tuple[PhysicalOffset, int]]) -> None:
        """Read records for which a client is expected to ask next, unless enough is read ahead."""
        if self._ahead_count < AHEAD_MAX and not self.is_ending:
            self._ahead_count += 1
            self._reader.load(places, self._read_ahead)

    def end(self) -> None:
        """Go on with all pulls at once; none waits from now on."""
        self.is_ending = True
        for pull in tuple(self._waiting):
            self._loaded(pull)

    def _loaded(self, pull: Pull) -> None:
        if pull not in self._waiting:
            return  # this node ends, and it was answered
        self._waiting.remove(pull)
        if not pull.is_closed:
            pull.is_loaded = True
            self._go_on(pull)
            self.answered()

    def _read_ahead(self) -> None:
        self._ahead_count -= 1

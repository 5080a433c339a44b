"""Pulls that wait until old messages were read from the disk beside the loop.

A pull waits for one such read only, and before that for where its queue begins and for its units, and not beyond its
deadline: then it is given what is there, its first message in any case, or, when it is late or this node ends, nothing
but the word to ask again. It must not know how pulls are answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from broker.server.handlers.pull_request import Pull
from broker.server.requests.disk_waits import DiskWaits
from broker.store.not_in_memory import NotInMemoryError, NotLoadedError
from dledger.runtime.log_reader import LogReader
from dledger_mq.message.numbers import PhysicalOffset

UNIT_WAITS_MAX: Final = 2
"""Reads of a queue's units for one pull: where the queue begins, and the units that are wanted."""

AHEAD_MAX: Final = 16
"""Reads for nobody in particular, at a time: they are for whoever is expected to ask next."""


class PullLoads(DiskWaits[Pull]):
    """The pulls that wait, and what is read ahead."""

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
        super().__init__(reader, give_up, most=most)
        self._go_on = go_on
        self._ahead_count = 0

    def may_wait(self, pull: Pull) -> bool:
        """Return whether a pull that reads now may wait for the disk; it may once."""
        if pull.is_loaded:
            pull.is_loaded = False
            return False
        return self.has_room_for(pull)

    def wait(self, pull: Pull, missing: NotInMemoryError) -> None:
        """Let a pull wait until records, or units of its queue, were read; after units it may wait for the records."""
        if isinstance(missing, NotLoadedError):
            self.wait_for(pull, missing, lambda: self._loaded(pull))
        else:
            pull.unit_waits += 1
            self.wait_for(pull, missing, lambda: self._go_on(pull))

    def read_ahead(self, pull: Pull, places: Sequence[tuple[PhysicalOffset, int]]) -> None:
        """Read records for which a pull's client is expected to ask next, unless enough is read ahead."""
        if self._ahead_count < AHEAD_MAX and not self.is_ending:
            self._ahead_count += 1
            self._reader.load(places, self._read_ahead, lambda: not pull.origin.is_closed)

    def _loaded(self, pull: Pull) -> None:
        pull.is_loaded = True
        self._go_on(pull)

    def _read_ahead(self) -> None:
        self._ahead_count -= 1

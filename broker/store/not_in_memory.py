"""The errors of reads that need not wait for the disk: something is not in memory, and how it gets there.

Whoever asked for such a read can wait, and read again from the beginning: what it finds then is of one state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dledger_mq.message.numbers import PhysicalOffset


class NotInMemoryError(Exception):
    """Raised when something would have to be read from the disk, by whoever asked for what is in memory."""


class NotLoadedError(NotInMemoryError):
    """Raised for records.

    Attributes:
        places: where the wanted records begin, and their sizes.
    """

    def __init__(self, places: Sequence[tuple[PhysicalOffset, int]]) -> None:
        super().__init__(f"{len(places)} records are not in memory")
        self.places = places


class FilesNotLoadedError(NotInMemoryError):
    """Raised for what stands in files beside the log: units of queues, segments of the key index.

    Attributes:
        warm: brings it into memory; it may run in any thread and never fails.
    """

    def __init__(self, warm: Callable[[], None]) -> None:
        super().__init__("what the log is looked up by is not in memory")
        self.warm = warm

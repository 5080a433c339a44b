"""The interface of a log for its workloads: append a record, and read what stands in the log.

A record is a key and an element. Several systems offer this (`log.py`, `pysyncobj.py`), so that the same
workloads judge each of them.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from jepsen.history.outcomes import Outcome
from jepsen.history.values import shaped
from jepsen.systems.api import System


class Record(NamedTuple):
    """One element of a list: a pair in JSON."""

    key: str
    element: int


def records_of(outcome: Outcome) -> list[Record]:
    """Return the records of a whole read that succeeded."""
    return shaped(outcome.value, list[Record])


class Log(Protocol):
    """The log, as one client has it. Nothing is raised for faults: they are outcomes."""

    async def append(self, record: Record) -> Outcome:
        """Append a record; `ok` when the system has acknowledged it."""

    async def read_whole(self) -> Outcome:
        """Read every record from the first one on; the value is a list of records."""

    async def read(self, key: str) -> Outcome:
        """Read the elements of a key, in order; what this client has read before may be kept."""


@runtime_checkable
class LogSystem(System, Protocol):
    """A system with a log that clients can open."""

    def open_log(self, process: int) -> AbstractAsyncContextManager[Log]:
        """Open the log for a process."""


def logs(system: System) -> LogSystem:
    """Return the system as one with a log, which the log workloads need."""
    assert isinstance(system, LogSystem), f"{system} has no log"
    return system

"""A workload: a generator, a client per process, and the checkers of its model."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from jepsen.checkers.results import Checker
from jepsen.generators import Generator
from jepsen.history.ops import Notes, OpType
from jepsen.systems.api import System


class Completion(Protocol):
    """The completion of an operation; `jepsen.history.outcomes.Outcome` is one."""

    @property
    def type(self) -> OpType:
        """As in `Op`."""

    @property
    def value(self) -> object:
        """As in `Op`."""

    @property
    def error(self) -> str:
        """As in `Op`."""

    @property
    def node(self) -> str:
        """As in `Op`."""


class WorkloadClient(Protocol):
    """The client of one process. It may take as long as its own deadline, and raises nothing for faults."""

    async def invoke(self, f: str, value: object) -> Completion:
        """Run one operation, and return its outcome."""


class Workload(ABC):
    """One model of use.

    Attributes:
        name: as the command line has it.
        log: the history, for what happens without being asked (a message is handed to a listener) and
            for the clock of the run; the runner sets it before `setup`.
    """

    name: str
    log: Notes

    @abstractmethod
    def setup(self, system: System) -> AbstractAsyncContextManager[None]:
        """Make what all clients need, such as topics, once the system is ready."""

    @abstractmethod
    def client(self, system: System, process: int) -> AbstractAsyncContextManager[WorkloadClient]:
        """Open the client of a process."""

    @abstractmethod
    def generator(self, chance: random.Random, processes: int) -> Generator:
        """Return the generator for the time in which faults strike."""

    @abstractmethod
    def final(self, processes: int) -> Generator:
        """Return the generator for the time after the last cure, which reads everything."""

    @abstractmethod
    def checkers(self) -> Sequence[Checker]:
        """Return the checkers of this workload's history."""

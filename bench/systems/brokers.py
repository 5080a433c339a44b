"""One group of brokers as processes, ours or another's: they speak the remoting protocol, so one load drives them all.

It must not know whose they are; `ours.py` and `rocketmq.py` start them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.remoting import DEFAULT_TOPIC, address_of, create_topic, leader_address
from jepsen.processes import Process, check_alive, poll, wait_listening

START_PATIENCE_S: Final = 120.0
"""A Java broker on a busy machine needs half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The wishes for a group.

    Attributes:
        nodes: how many copies, where a system leaves the choice.
        is_flushed: acknowledged messages are on disk; None: as the system does by itself.
        heap_mb: of each Java broker.
        interop: the folder with what `make interop` and `make peers` have fetched.
    """

    nodes: int = 3
    is_flushed: bool | None = None
    heap_mb: int = 1024
    interop: Path = Path(".interop")


class MeasuredGroup:
    """A running group.

    Attributes:
        folder: with the stores and logs.
        name_server: that knows its route.
        brokers: its nodes.
    """

    def __init__(self, folder: Path, name_server: Process, brokers: Sequence[Process]) -> None:
        self.folder = folder
        self.name_server = name_server
        self.brokers = list(brokers)
        self._by_address = {broker.address: broker for broker in brokers}

    @property
    def namesrv(self) -> str:
        """The name server as clients take it."""
        return self.name_server.address

    def start(self) -> None:
        """Start the name server, then the brokers, so that each registers at once; wait until they listen.

        Raises:
            ProcessDiedError: one ended.
            NotReadyError: the time is over.
        """
        self.name_server.start()
        wait_listening([self.name_server], START_PATIENCE_S)
        for broker in self.brokers:
            broker.start()
        wait_listening(self.brokers, START_PATIENCE_S)

    def leader(self, topic: str = DEFAULT_TOPIC) -> Process:
        """Return the broker that the route names as brokerId 0.

        Raises:
            LookupError: the route has none.
            OSError: the name server does not answer.
        """
        return self._by_address[leader_address(address_of(self.namesrv), topic)]

    def wait_leader(
        self, topic: str = DEFAULT_TOPIC, *, other_than: Process | None = None
    ) -> Process:
        """Return the leader once the route names one, another one if asked.

        Raises:
            TimeoutError: it does not.
            ProcessDiedError: a broker ended.
        """
        found: list[Process] = []

        def has_leader() -> bool:
            check_alive(self.brokers)
            with contextlib.suppress(LookupError, OSError):
                found[:] = [self.leader(topic)]
            return bool(found) and found[0] is not other_than

        if not poll(has_leader, START_PATIENCE_S, 0.05):
            raise TimeoutError(f"no leader in the route after {START_PATIENCE_S:.0f} s")
        return found[0]

    def make_topic(self, topic: str, queues: int) -> Process:
        """Create a topic, wait for its route, and return the leader.

        Raises:
            TimeoutError: nobody takes it.
        """
        last: list[Exception] = []

        def is_made() -> bool:
            try:
                create_topic(("127.0.0.1", self.wait_leader().port), topic, queues)
            except (RuntimeError, OSError) as error:  # a leader that is new may refuse at first
                last[:] = [error]
                return False
            return True

        if not poll(is_made, START_PATIENCE_S, 0.2):
            raise TimeoutError(f"{topic}: {last[0]}")
        return self.wait_leader(topic)

    def in_order(self, leader: Process) -> list[Process]:
        """Return the leader, then its followers."""
        return [leader, *(broker for broker in self.brokers if broker is not leader)]

    def close(self) -> None:
        """End every process."""
        for process in (*self.brokers, self.name_server):
            process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemKind:
    """A system that can be measured.

    Attributes:
        name: as options have it.
        describe: says for a setup what an acknowledgement is worth.
        lacking: says what the machine lacks for it; None: nothing.
        make: a group in a folder, which is not started.
        fails_over: a follower takes over by itself.
    """

    name: str
    describe: Callable[[Setup], str]
    lacking: Callable[[Setup], str | None]
    make: Callable[[Path, Setup], MeasuredGroup]
    fails_over: bool = True


@contextlib.contextmanager
def running(kind: SystemKind, folder: Path, setup: Setup) -> Iterator[MeasuredGroup]:
    """Start a fresh group; all of its processes end with the block, however it is left.

    Raises:
        ProcessDiedError, NotReadyError: it does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    group = kind.make(folder, setup)
    with contextlib.closing(group):
        group.start()
        yield group

"""The stage of a scenario: a system under load, and what a director may do to it and expect of it.

A scenario is an async function that breaks a running system in one particular way and says what must hold
beside what the checkers of the workload judge in every run. Whatever it does is noted in the history.
Nothing waits for a time to pass where it can wait for a condition.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from dledger import Client, DLedgerError, NodeId, StatusAnswer
from dledger.runtime.client import TIMEOUT_S
from jepsen.guards import member_client
from jepsen.history.ops import NEMESIS, Op, OpLog
from jepsen.nemeses.api import Fault, NothingStruckError
from jepsen.systems.api import Network, Subject
from jepsen.systems.brokers import BrokerSystem, broker_group, brokers

UNMET: Final = "unmet"
"""The operation of the nemesis that notes an expectation that did not hold."""

POLL_S: Final = 0.02
STATUS_TIMEOUT_S: Final = 2.0
LEADER_WAIT_S: Final = 30.0
WHOLE_WAIT_S: Final = 60.0
MEET_S: Final = 30.0


class SkippedError(Exception):
    """The machine lacks what the scenario needs; the text says what."""


class Stage:
    """The tools with which the director of a scenario works.

    Attributes:
        system: the system under test.
        log: its history so far.
        chance: from the seed of the run.
        cured: what the last cure of a fault did.
    """

    def __init__(
        self, system: Subject, log: OpLog, chance: random.Random, faults: Mapping[str, Fault]
    ) -> None:
        self.system = system
        self.log = log
        self.chance = chance
        self.cured = ""
        self._faults = faults
        self._in_force: set[str] = set()

    # What is known.

    @property
    def broker(self) -> BrokerSystem:
        """The system, as a group of brokers."""
        return broker_group(self.system)

    @property
    def names(self) -> list[str]:
        """The members."""
        return [node.name for node in self.system.nodes]

    @property
    def groups(self) -> list[str]:
        """The broker groups that the members share."""
        return list(brokers(self.system).addresses)

    def others(self, *names: str) -> list[str]:
        """Return the members but these."""
        return [name for name in self.names if name not in names]

    def store(self, name: str) -> Path:
        """Return the folder of a member's store."""
        return self.system.store(name)

    def ends(self, f: str = "send", since_ns: int = 0) -> list[Op]:
        """Return the completions of an operation since a time."""
        return [
            op
            for op in self.log.ops
            if op.is_client and op.type != "invoke" and op.f == f and op.t_ns >= since_ns
        ]

    def acknowledged(self, since_ns: int = 0) -> int:
        """Count the sends that were acknowledged since a time."""
        return sum(op.type == "ok" for op in self.ends(since_ns=since_ns))

    def client(self, *, timeout_s: float = TIMEOUT_S) -> Client:
        """Return a client of the group's log."""
        group = self.broker.group
        return member_client(group.peers, group=group.group, timeout_s=timeout_s)

    async def statuses(self) -> dict[str, StatusAnswer]:
        """Ask each member for its status; those that do not answer are left out."""
        async with self.client(timeout_s=STATUS_TIMEOUT_S) as client:
            answers = await client.status()
        return {
            str(name): status
            for name, status in answers.items()
            if isinstance(status, StatusAnswer)
        }

    async def term(self) -> int:
        """Return the highest term that any member reports."""
        return max((status.term for status in (await self.statuses()).values()), default=0)

    async def leader(self, other_than: str | None = None) -> str:
        """Wait for a serving leader, another one than `other_than`.

        Raises:
            trio.TooSlowError: there is none in LEADER_WAIT_S.
        """
        with trio.fail_after(LEADER_WAIT_S):
            while True:
                name = self.system.leader
                if name is not None and name != other_than:
                    return name
                await trio.sleep(POLL_S)

    # What is done.

    async def make_lead(self, name: str) -> None:
        """Hand leadership to this member, and wait until it serves.

        Raises:
            trio.TooSlowError: it does not within LEADER_WAIT_S.
        """
        self.note("transfer", f"to {name}")
        with trio.fail_after(LEADER_WAIT_S):
            while not await self._serves(name):
                await self._hand_to(name)
                await self.until(lambda: self.system.leader == name, STATUS_TIMEOUT_S)

    async def _serves(self, name: str) -> bool:
        """Return whether a member serves as leader, asking it directly: an observation may be out of date."""
        status = (await self.statuses()).get(name)
        return status is not None and status.is_serving

    async def _hand_to(self, name: str) -> None:
        async with self.client() as client:
            # It may lag behind for the moment, or just be elected.
            with suppress(DLedgerError):
                await client.transfer(NodeId(name), timeout_s=STATUS_TIMEOUT_S)

    def note(self, what: str, text: str) -> None:
        """Note an action of the director in the history."""
        self.log.add(NEMESIS, "info", what, {"do": "inject", "done": text})

    def kill(self, *names: str) -> None:
        """Send SIGKILL to these members."""
        self.note("kill", ", ".join(names))
        for name in names:
            self.system.node(name).kill()

    def start(self, *names: str) -> None:
        """Start these members again."""
        self.note("start", ", ".join(names))
        for name in names:
            self.system.node(name).start()

    def pause(self, *names: str) -> None:
        """Send SIGSTOP to these members."""
        self.note("pause", ", ".join(names))
        for name in names:
            self.system.node(name).pause()

    def resume(self, *names: str) -> None:
        """Send SIGCONT to these members."""
        self.note("resume", ", ".join(names))
        for name in names:
            self.system.node(name).resume()

    @asynccontextmanager
    async def fault(self, spec: str) -> AsyncIterator[str]:
        """Inject one of the scenario's faults and cure it at the end of the block; yields what was done.

        Raises:
            NothingStruckError: nothing met the fault: the scenario shows nothing.
        """
        assert spec not in self._in_force, f"{spec} is in force already"
        fault = self._faults[spec]
        done = await fault.inject(self.system, self.chance)
        self.log.add(NEMESIS, "info", fault.name, {"do": "inject", "done": done})
        self._in_force.add(spec)
        try:
            yield done
            has_struck = fault.has_struck(self.system)
        finally:
            with trio.CancelScope(shield=True):
                cured = await fault.cure(self.system)
            self._in_force.discard(spec)
            self.cured = cured
            self.log.add(NEMESIS, "info", fault.name, {"do": "cure", "done": cured})
        if not has_struck:
            raise NothingStruckError(f"{spec}: nobody met it")

    async def until_met(self, spec: str, timeout_s: float = MEET_S) -> None:
        """Wait until something has met a fault that is in force; what is never met shows nothing."""
        assert spec in self._in_force, f"{spec} is waited for, in force are {self._in_force}"
        await self.until(lambda: self._faults[spec].has_struck(self.system), timeout_s)

    # What is waited for and expected.

    async def lets_run(self, seconds: float) -> None:
        """Sleep for a while, so that the fault lasts that long under load."""
        await trio.sleep(seconds)

    async def progress(self, count: int = 20, timeout_s: float = 30.0) -> float:
        """Wait until `count` more sends were acknowledged; returns the seconds that the first took.

        A timeout is an unmet expectation, not an error: the run goes on and is judged.
        """
        begun_ns = self.log.now_ns()
        if not await self.until(lambda: self.acknowledged(begun_ns) >= count, timeout_s):
            got = self.acknowledged(begun_ns)
            self.expect(
                False, f"{count} more sends acknowledged within {timeout_s:g} s (got {got})"
            )
            return timeout_s
        first = next(op for op in self.ends(since_ns=begun_ns) if op.type == "ok")
        return (first.t_ns - begun_ns) / 1e9

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition; return False when it did not hold in time."""
        with trio.move_on_after(timeout_s):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await trio.sleep(POLL_S)
        return condition()

    async def until_true(
        self, condition: Callable[[], Awaitable[bool]], timeout_s: float, interval_s: float = 0.1
    ) -> bool:
        """Wait for an asynchronous condition; return False when it did not hold in time."""
        with trio.move_on_after(timeout_s):
            while not await condition():  # noqa: ASYNC110 - somebody has to be asked
                await trio.sleep(interval_s)
            return True
        return False

    async def whole(self, timeout_s: float = WHOLE_WAIT_S) -> None:
        """Expect that all members come together again."""
        self.expect(
            await self.system.wait_whole(timeout_s), f"all members together within {timeout_s:g} s"
        )

    def expect(self, holds: bool, text: str) -> bool:
        """Note an expectation that did not hold; the run is then invalid."""
        if not holds:
            self.log.add(NEMESIS, "info", UNMET, None, error=text)
        return holds

    def memory_mib(self, name: str) -> float:
        """Return the resident memory of a member, in MiB; 0 when it does not run."""
        pid = self.system.node(name).pid
        if pid is None:
            return 0.0
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * 4096 / 2**20


Director = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A way to show one row on real processes.

    Attributes:
        row: number of the row that it shows.
        name: in words, from the function's name.
        direct: breaks things and says what it expects.
        nodes, network, groups: of the system.
        faults: specs of the faults that it uses, prepared before the system starts.
        rate: operations a second of the load.
    """

    row: int
    name: str
    direct: Director
    nodes: int = 3
    network: Network = "none"
    faults: Sequence[str] = ()
    rate: float = 100.0
    groups: int = 1


class Catalogue:
    """Gathers the scenarios of a module."""

    def __init__(self) -> None:
        self.scenarios: list[Scenario] = []

    def add(
        self,
        row: int,
        *,
        nodes: int = 3,
        network: Network = "none",
        faults: Sequence[str] = (),
        rate: float = 100.0,
        groups: int = 1,
    ) -> Callable[[Director], Director]:
        """Register the function below as a scenario of a row."""

        def register(direct: Director) -> Director:
            name = getattr(direct, "__name__", "scenario").replace("_", " ")
            self.scenarios.append(
                Scenario(row, name, direct, nodes, network, tuple(faults), rate, groups)
            )
            return direct

        return register

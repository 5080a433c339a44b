"""Faults of whole processes: killed, stopped, paused, stalled, restarted, doubled."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, runtime_checkable

import trio

from jepsen.nemeses.api import Fault, NothingStruckError, PromiseBrokenError, Scope, targets
from jepsen.processes import Process
from jepsen.systems.api import System

STALL_ROUNDS: Final = 8
STALL_S: Final = (0.3, 2.0)
STALL_QUIET_S: Final = (0.3, 1.0)  # between two stalls
LOOP_ROUNDS: Final = 10
LOOP_PERIOD_S: Final = 1.0
RECOVERY_ROUNDS: Final = 5
RECOVERY_S: Final = 2.0  # a kill in a node's recovery comes within this after its start
ELECTION_ROUNDS: Final = 3
ELECTION_WAIT_S: Final = 10.0
LISTEN_WAIT_S: Final = 60.0
REFUSAL_WAIT_S: Final = 60.0
POLL_S: Final = 0.005


def struck(
    system: System, scope: Scope, chance: random.Random, *, running: bool = True
) -> list[str]:
    """Choose the members that a fault strikes among those that run."""
    names = targets(scope, [node.name for node in system.nodes], system.leader, chance)
    return [name for name in names if not running or system.node(name).pid is not None]


def revive(nodes: Iterable[Process]) -> list[str]:
    """Start those that do not run; returns their names."""
    started: list[str] = []
    for node in nodes:
        if node.pid is None:
            node.start()
            started.append(node.name)
    return started


async def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition on processes; return False when it did not hold in time."""
    with trio.move_on_after(timeout_s):
        while not condition():  # noqa: ASYNC110 - other processes set no events
            await trio.sleep(POLL_S)
    return condition()


async def is_serving(node: Process, timeout_s: float = LISTEN_WAIT_S) -> bool:
    """Wait until a node listens; return False when it did not in time."""
    return await wait_until(node.is_listening, timeout_s)


def _described(what: str, names: Sequence[str]) -> str:
    return f"{what} {', '.join(names)}" if names else ""


class Down(Fault):
    """Base of faults that end processes; the cure starts them again, in a random order."""

    def __init__(self, name: str, scope: Scope = "one") -> None:
        self.name = name
        self.scope = scope
        self._order: list[str] = []

    async def cure(self, system: System) -> str:
        """Start every node that is down."""
        order, self._order = self._order, []
        rest = [node for node in system.nodes if node.name not in order]
        return _described("started", revive([*(system.node(name) for name in order), *rest]))


class Kill(Down):
    """SIGKILL: what was written stays with the kernel, synced or not; nothing is flushed or said."""

    async def inject(self, system: System, chance: random.Random) -> str:
        """Kill, all at once."""
        self._order = struck(system, self.scope, chance)
        for name in self._order:
            system.node(name).kill()
        chance.shuffle(self._order)
        return _described("killed", self._order)


class Terminate(Down):
    """SIGTERM: an orderly end, leadership is handed over first."""

    async def inject(self, system: System, chance: random.Random) -> str:
        """Stop, all at the same time; a node that does not end in time is killed."""
        self._order = struck(system, self.scope, chance)
        async with trio.open_nursery() as nursery:
            for name in self._order:
                nursery.start_soon(_stop, system.node(name))
        return _described("stopped", self._order)


async def _stop(node: Process) -> None:
    await trio.to_thread.run_sync(node.stop)


class Pause(Fault):
    """SIGSTOP: the process keeps its sockets and says nothing, as a virtual machine that is suspended."""

    def __init__(self, name: str, scope: Scope) -> None:
        self.name = name
        self.scope = scope

    async def inject(self, system: System, chance: random.Random) -> str:
        """Send SIGSTOP to the nodes."""
        names = struck(system, self.scope, chance)
        for name in names:
            system.node(name).pause()
        return _described("paused", names)

    async def cure(self, system: System) -> str:
        """Send SIGCONT to the nodes."""
        paused = [node for node in system.nodes if node.is_paused]
        for node in paused:
            node.resume()
        return _described("resumed", [node.name for node in paused])


class Stall(Pause):
    """Nodes stand still for a moment, again and again, as on a machine that has no time or memory for them."""

    async def inject(self, system: System, chance: random.Random) -> str:
        """Stop and continue the nodes together, again and again, for random times."""
        blows: list[str] = []
        for _ in range(STALL_ROUNDS):
            names = struck(system, self.scope, chance)
            length_s = chance.uniform(*STALL_S)
            for name in names:
                system.node(name).pause()
            await trio.sleep(length_s)
            for name in names:
                system.node(name).resume()
            blows.append(f"{'+'.join(names)} {length_s * 1000:.0f} ms")
            await trio.sleep(chance.uniform(*STALL_QUIET_S))
        return f"stalled {', '.join(blows)}"


class CrashLoop(Down):
    """One node is killed and started every second: it never gets far, and must not disturb the others."""

    async def inject(self, system: System, chance: random.Random) -> str:
        """Kill and start, again and again."""
        names = struck(system, self.scope, chance, running=False)
        for _ in range(LOOP_ROUNDS):
            for name in names:
                system.node(name).kill()
            revive(system.node(name) for name in names)
            await trio.sleep(LOOP_PERIOD_S)
        return _described(f"killed and started {LOOP_ROUNDS} times", names)


@runtime_checkable
class Supervised(Protocol):
    """A node whose processes are started again by a supervisor."""

    def crash(self) -> int:
        """Send SIGKILL to all of its processes but the supervisor; returns how many."""


class MachineCrash(Fault):
    """All processes of a machine die but their supervisor, which starts them again within a second."""

    def __init__(self, name: str, scope: Scope) -> None:
        self.name = name
        self.scope = scope
        self._struck: list[str] = []

    async def inject(self, system: System, chance: random.Random) -> str:
        """Kill them, all at once."""
        self._struck = struck(system, self.scope, chance)
        for name in self._struck:
            node = system.node(name)
            assert isinstance(node, Supervised), f"nothing would start {name} again"
            node.crash()
        return _described("killed all but the supervisor of", self._struck)

    async def cure(self, system: System) -> str:
        """Wait until the supervisors have started everything.

        Raises:
            PromiseBrokenError: one has not; the node does not serve.
        """
        names, self._struck = self._struck, []
        for name in names:
            node = system.node(name)
            if node.pid is not None and not await is_serving(node):
                raise PromiseBrokenError(f"the supervisor of {name} has not started everything")
        return _described("the supervisor has started all of", names)


class KillInElection(Down):
    """The leader is killed, and whoever wins the election is killed as soon as that is seen."""

    async def inject(self, system: System, chance: random.Random) -> str:
        """Kill each winner; the one before is started again, so that a majority is left."""
        killed: list[str] = []
        for _ in range(ELECTION_ROUNDS):
            last = killed[-1] if killed else None

            def is_won(last: str | None = last) -> bool:
                return system.leader is not None and system.leader != last

            if not await wait_until(is_won, ELECTION_WAIT_S) or system.leader is None:
                break
            winner = system.leader
            system.node(winner).kill()
            revive(node for node in system.nodes if node.name != winner)
            killed.append(winner)
        return _described("killed each winner of an election:", killed)


class KillInRecovery(Down):
    """A node is killed at random moments of its start: recovery must bear to be begun again."""

    async def inject(self, system: System, chance: random.Random) -> str:
        """Kill, start, and kill again within two seconds."""
        (name,) = struck(system, "one", chance, running=False)
        after_ms: list[int] = []
        for _ in range(RECOVERY_ROUNDS):
            system.node(name).kill()
            revive([system.node(name)])
            after_s = chance.uniform(0, RECOVERY_S)
            await trio.sleep(after_s)
            after_ms.append(round(after_s * 1000))
        system.node(name).kill()
        return f"killed {name} in its recovery after {after_ms} ms"


class RollingRestart(Down):
    """Every node in turn is stopped in order and started; the next follows when it serves again."""

    async def inject(self, system: System, chance: random.Random) -> str:
        """Restart every node once, in a random order."""
        order = [node.name for node in system.nodes]
        chance.shuffle(order)
        for name in order:
            node = system.node(name)
            await _stop(node)
            node.start()
            await is_serving(node)
            await wait_until(lambda: system.leader is not None, ELECTION_WAIT_S)
        return _described("restarted", order)


class SameIdTwice(Fault):
    """A second process with a node's id and store is started: it must refuse, and change nothing.

    The first one must hold the store by then: of two that start at the same time either may win, and where none
    runs (another fault has ended it) the second is the first.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    async def inject(self, system: System, chance: random.Random) -> str:
        """Start the second process, and check that it ends.

        Raises:
            NothingStruckError: the node does not serve.
            PromiseBrokenError: it runs, or ended as if all were well.
        """
        (name,) = struck(system, "one", chance, running=False)
        node = system.node(name)
        if node.pid is None or not await is_serving(node):
            raise NothingStruckError(f"{name} does not serve")
        twin = Process(
            f"{name}-twin", node.command, log=node.log.with_suffix(".twin.log"), port=node.port
        )
        twin.prefix, twin.environment = node.prefix, node.environment
        twin.start()
        try:
            await wait_until(lambda: twin.pid is None, REFUSAL_WAIT_S)
        finally:
            status = twin.exit_status
            twin.kill()
        words = twin.log_tail(1)
        if not status:
            raise PromiseBrokenError(f"a second process as {name} was not refused: {words}")
        return f"a second process as {name} was refused with status {status}: {words}"

    async def cure(self, system: System) -> str:
        """Return the text that nothing is left to undo."""
        return ""

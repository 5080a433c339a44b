"""What a soak does to its group, turn by turn: kills, stops, and members that others replace.

One member, the elder, is never ended and never replaced, so that a life of hours shows what grows. It leads now and
then like the others; when the leader is to be struck and the elder leads, it hands over first.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from dledger import DLedgerError
from dledger.raft.ids import Term
from jepsen.history.ops import NEMESIS, OpLog
from jepsen.nemeses.process import is_serving, wait_until
from jepsen.nemeses.transfer import hand_over
from jepsen.processes import Group, Process, program
from jepsen.systems.observer import Observer, note_leader

ELDER: Final = "n0"
DOWN_S: Final = 3.0
"""The time for which a member that was ended stays so."""

LEAD_S: Final = 30.0
WHOLE_S: Final = 120.0
CHANGE_S: Final = 180.0
"""The times that a new leader, a whole group, and a change of members may take."""


class TurnFailedError(Exception):
    """A turn did not come to its end: the group did not do what an operator may ask for, or not in time."""


class Onlooker:
    """An observer of a group whose members change.

    Attributes:
        group: whom it watches.
    """

    def __init__(self, group: Group, log: OpLog) -> None:
        self.group = group
        self._log = log
        self._observer = Observer(group, self._note)
        self._scope = trio.CancelScope()

    @property
    def leader(self) -> str | None:
        """The node that leads, as it was last seen."""
        return self._observer.leader

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            with trio.CancelScope() as self._scope:
                await self._observer.run()

    def begin_anew(self) -> None:
        """Watch the members that the group has now."""
        self._observer = Observer(self.group, self._note)
        self._scope.cancel()

    async def wait_whole(self, timeout_s: float) -> bool:
        """Wait until one node leads and all others follow it closely."""
        return await self._observer.wait_whole(timeout_s)

    def _note(self, node: str, term: Term) -> None:
        note_leader(self._log, node, term)


class Turns:
    """The turns, in a fixed order; who is struck is drawn.

    Attributes:
        done: names of the turns that were made.
        replaced: how many members were replaced.
    """

    def __init__(self, onlooker: Onlooker, log: OpLog, seed: int) -> None:
        self.done: list[str] = []
        self.replaced = 0
        self._onlooker = onlooker
        self._group = onlooker.group
        self._log = log
        self._chance = random.Random(f"{seed}/turns")
        self._born = len(self._group.nodes)
        self._turns: tuple[tuple[str, Callable[[], Awaitable[str]]], ...] = (
            ("kill-leader", self._kill_leader),
            ("stop-follower", self._stop_follower),
            ("replace-follower", self._replace_follower),
            ("kill-follower", self._kill_follower),
            ("stop-leader", self._stop_leader),
            ("replace-leader", self._replace_leader),
        )

    async def take(self) -> None:
        """Make the next turn, and wait until the group is whole again.

        Raises:
            TurnFailedError: it did not come to its end.
        """
        name, turn = self._turns[len(self.done) % len(self._turns)]
        text = await turn()
        self._log.add(NEMESIS, "info", name, {"do": "inject", "done": text})
        if not await self._onlooker.wait_whole(WHOLE_S):
            raise TurnFailedError(f"{name}: {text}; the group is not whole after {WHOLE_S:.0f} s")
        self.done.append(name)

    async def _kill_leader(self) -> str:
        return await self._down(await self._young_leader(), Process.kill)

    async def _kill_follower(self) -> str:
        return await self._down(self._young_follower(), Process.kill)

    async def _stop_leader(self) -> str:
        return await self._down(await self._young_leader(), Process.stop)

    async def _stop_follower(self) -> str:
        return await self._down(self._young_follower(), Process.stop)

    async def _replace_leader(self) -> str:
        return await self._replace(await self._young_leader())

    async def _replace_follower(self) -> str:
        return await self._replace(self._young_follower())

    async def _down(self, node: Process, end: Callable[[Process], object]) -> str:
        """End a member, and start it again."""
        await trio.to_thread.run_sync(end, node)
        await trio.sleep(DOWN_S)
        node.start()
        return f"{end.__name__} of {node.name}"

    async def _young_leader(self) -> Process:
        """Return the leader, which is not the elder: that one hands over."""
        for _ in range(3):
            if self._onlooker.leader == ELDER:
                await self._hand_over()
            led = await wait_until(lambda: self._onlooker.leader not in (None, ELDER), LEAD_S)
            leader = self._onlooker.leader
            if led and leader is not None:
                return self._group.node(leader)
        raise TurnFailedError(f"nobody but {ELDER} leads for {3 * LEAD_S:.0f} s")

    async def _hand_over(self) -> None:
        try:
            await hand_over(self._group.peers, self._group.group, LEAD_S)
        except DLedgerError as error:
            self._log.add(NEMESIS, "info", "hand-over", error=str(error))

    def _young_follower(self) -> Process:
        """Draw a follower, which is not the elder."""
        taken = {ELDER, self._onlooker.leader}
        return self._chance.choice([node for node in self._group.nodes if node.name not in taken])

    async def _replace(self, old: Process) -> str:
        """Replace a member by a new node, as an operator does; its store goes with it.

        Raises:
            TurnFailedError: the group did not change its members.
        """
        group = self._group
        node, member = group.joining(f"n{self._born}")
        self._born += 1
        node.start()
        if not await is_serving(node):
            raise TurnFailedError(f"{node.name} does not listen: {node.log_tail()}")
        ended = await trio.run_process(
            [
                *(program("dledger-admin"), "members", "replace", old.name, member),
                *("--namesrv", group.namesrv, "--timeout", f"{CHANGE_S:.0f}"),
            ],
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if ended.returncode:
            words = ended.stdout.decode(errors="replace").strip()
            raise TurnFailedError(f"{old.name} was not replaced by {member}: {words}")
        await trio.to_thread.run_sync(old.stop)
        group.nodes.remove(old)
        rest = [one for one in group.peers.split(";") if not one.startswith(f"{old.name}-")]
        group.peers = ";".join([*rest, member])
        await trio.to_thread.run_sync(shutil.rmtree, group.folder / old.name)
        self._onlooker.begin_anew()
        self.replaced += 1
        return f"{node.name} took the place of {old.name}"

"""Leadership is handed over on purpose, as before a restart: no client should notice more than a pause."""

from __future__ import annotations

import random
from typing import Final, Protocol, runtime_checkable

from dledger import DLedgerError
from jepsen.guards import member_client
from jepsen.nemeses.api import Fault, NothingStruckError
from jepsen.nemeses.process import wait_until
from jepsen.systems.api import System

WAIT_S: Final = 10.0


@runtime_checkable
class CanHandOver(Protocol):
    """A system whose leader can be asked to hand over."""

    async def hand_over(self, timeout_s: float) -> str:
        """Ask the leader to hand over to whoever is best placed, and return who that is.

        Raises:
            DLedgerError: it did not.
        """


async def hand_over(peers: str, group: str, timeout_s: float) -> str:
    """Ask the leader of a group to hand over, and return who is to lead. Raises DLedgerError."""
    async with member_client(peers, group=group, timeout_s=timeout_s) as client:
        return await client.transfer()


class Transfer(Fault):
    """The leader hands over; nothing is broken, so there is no cure."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scope = "leader"
        self._is_struck = False

    async def inject(self, system: System, chance: random.Random) -> str:
        """Ask the leader to hand over, and wait until another node is seen to lead.

        Raises:
            NothingStruckError: it did not hand over, so that clients had nothing to notice.
        """
        assert isinstance(system, CanHandOver), f"{system} cannot hand leadership over"
        before = system.leader
        try:
            target = await system.hand_over(WAIT_S)
        except DLedgerError as error:
            raise NothingStruckError(f"{before} did not hand over: {error}") from error
        if not await wait_until(lambda: system.leader not in (None, before), WAIT_S):
            raise NothingStruckError(f"{target} was to lead after {before}, and was not seen to")
        self._is_struck = True
        return f"{before} handed over to {target}"

    async def cure(self, system: System) -> str:
        """Return the text that the hand-over is done."""
        done = "nothing was broken" if self._is_struck else ""
        self._is_struck = False
        return done

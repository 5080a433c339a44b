"""The orders of an operator who changes a group's members: one or two single changes, and the wait for what follows.

Only the leader knows what is true, and each request is answered with what it knows; so an order that was cut off can be
given again. Knows no connection (`MembersService` asks), and prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import trio

from dledger.codec.client_rpc import MembersAnswer
from dledger.config import Peer
from dledger.errors import DLedgerError, MembersPendingError, UsageError
from dledger.raft.configuration import ChangeKind, MemberChange
from dledger.raft.ids import NodeId
from dledger.runtime.clock import now_s

WAIT_S: Final = 600.0
"""A new member may have hundreds of gigabytes to fetch; who cannot wait for that may go."""

POLL_S: Final = 0.25

Report = Callable[[str], None]


class MembersService(Protocol):
    """Asks whoever leads the group."""

    async def members(self) -> MembersAnswer:
        """Return who the members are."""
        ...

    async def change_members(self, change: MemberChange) -> MembersAnswer:
        """Change them by one, and return who they are then."""
        ...


class OperatorOrders:
    """The orders to one group."""

    def __init__(self, service: MembersService, *, wait_s: float, report: Report) -> None:
        """Give orders through a service.

        Args:
            service: asks the leader.
            wait_s: how long to wait for a new member to have caught up; 0: not at all.
            report: gets a line for each step that was taken, while the order is under way.
        """
        self._service = service
        self._wait_s = wait_s
        self._report = report

    async def add(self, peer: Peer, *, is_learner: bool = False) -> MembersAnswer:
        """Add a member, which becomes a voter once it has caught up, unless it is to stay a learner.

        Raises:
            MembersPendingError: it is added, and that it votes was not seen.
            DLedgerError: as the service: it is not added, or that is not known.
        """
        addresses = {peer.node_id: peer.address}
        change = MemberChange(ChangeKind.ADD, peer.node_id, not is_learner, addresses)
        seen = await self._service.change_members(change)
        if is_learner or peer.node_id not in seen.voters:
            self._report(
                f"{peer.node_id} is a {_standing_of(peer.node_id, seen)}, by entry {seen.index}"
            )
        if is_learner:
            return seen
        try:
            return await self._wait_voter(peer.node_id, seen)
        except MembersPendingError:
            raise
        except DLedgerError as error:
            raise MembersPendingError(
                f"{peer.node_id} is added, by entry {seen.index}; whether it is a voter by now is not known: {error}. "
                "Run the same command again to go on"
            ) from error

    async def promote(self, node_id: NodeId) -> MembersAnswer:
        """Make a voter of a learner that has caught up."""
        return await self._service.change_members(MemberChange(ChangeKind.PROMOTE, node_id))

    async def remove(self, node_id: NodeId) -> MembersAnswer:
        """Remove a member, whether it runs or not; a leader hands over.

        Who is none is as wanted, perhaps by an order that was cut off; it is said, since the name may be mistyped.
        """
        before = await self._service.members()
        members = (*before.voters, *before.learners)
        seen = await self._remove(node_id)
        if node_id not in members:
            known = ", ".join(members)
            self._report(f"nothing was changed: {node_id} is no member; members are {known}")
        return seen

    async def _remove(self, node_id: NodeId) -> MembersAnswer:
        return await self._service.change_members(MemberChange(ChangeKind.REMOVE, node_id))

    async def replace(self, old: NodeId, new: Peer) -> MembersAnswer:
        """Add a member, and remove another one once the new one is what that was.

        The group is larger meanwhile, never smaller, so a dead member can be replaced like any other.

        Raises:
            UsageError: there is neither the old nor the new one.
            MembersPendingError: the new one is added; the text says whether it is a voter, and that the old one may be
                there still.
            DLedgerError: as the service: nothing was changed, or that is not known.
        """
        seen = await self._service.members()
        if old == new.node_id:
            raise UsageError(
                f"a member takes the place of another one under a name of its own, not as {old}"
            )
        if old not in (*seen.voters, *seen.learners):
            if new.node_id in seen.joining:
                return await self._wait_voter(new.node_id, seen)
            if new.node_id in (*seen.voters, *seen.learners):
                return seen  # it was done before
            raise UsageError(f"{old} is no member: {', '.join((*seen.voters, *seen.learners))}")
        stays_learner = old in seen.learners and old not in seen.joining
        seen = await self.add(new, is_learner=stays_learner)
        try:
            seen = await self._remove(old)
        except DLedgerError as error:
            kept = "is a member still" if error.definite else "may be a member still"
            raise MembersPendingError(
                f"{new.node_id} is a {_standing_of(new.node_id, seen)}, and {old} {kept}: {error}. Run the same "
                f"command again to go on, or `members remove {old}`"
            ) from error
        self._report(f"{old} is removed, by entry {seen.index}")
        return seen

    async def _wait_voter(self, node_id: NodeId, seen: MembersAnswer) -> MembersAnswer:
        """Wait until a member is a voter, and that is committed."""
        until_s = now_s() + self._wait_s
        while node_id not in seen.voters or not seen.is_committed:
            if node_id not in (*seen.voters, *seen.learners):
                raise MembersPendingError(
                    f"{node_id} was added, and somebody has removed it meanwhile: it is no member now"
                )
            if now_s() >= until_s:
                lacking = seen.last_index - seen.match_indexes.get(node_id, 0)
                silent = " does not answer and" if node_id in seen.silent else ""
                raise MembersPendingError(
                    f"{node_id} is added and{silent} becomes a voter by itself once it has caught up; "
                    f"it lacks {lacking} entries. Run the same command again to wait for it"
                )
            await trio.sleep(min(POLL_S, max(0.0, until_s - now_s())))
            seen = await self._service.members()
        self._report(f"{node_id} is a voter, by entry {seen.index}")
        return seen


def _standing_of(node_id: NodeId, seen: MembersAnswer) -> str:
    return "voter" if node_id in seen.voters else "learner"

"""The members of the group as one node knows them now, where each of them listens, and to whom it connects.

What the log says goes before what the node was started with: `--peers` names the members of a group that begins, and
later no more than addresses (docs/adr/0185). A node whose log lags meets members that it does not know yet, and
members that are none any more have to learn it: so what members say of themselves when they connect counts, too.
Knows no sockets; who may come in is group_check.py's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import trio

from dledger.codec.members_attribute import StatedMembers
from dledger.config import Peer, peer_at
from dledger.raft.configuration import Configuration
from dledger.raft.ids import NO_INDEX, Index, NodeId

STRANGERS_MAX: Final = 16
"""Nodes outside the own configuration to which this one connects, since later ones name them."""

HISTORY_MAX: Final = 32
"""Committed configurations that are remembered, to recognise members that are behind."""


class Roster:
    """The members as one node knows them.

    Invariant: `committed_index` <= `index`.

    Attributes:
        node_id: this node.
        in_force: the configuration in force here.
        index: of the entry that put it in force; 0: the first one.
        committed: the last one that is known to be committed.
        committed_index: of its entry.
        joins: the node was started to join a group that exists.
        refusal: what was said at another member's address when this node was turned away as no member; empty: nobody
            did since one took it in. Whoever said it need not have shown that it belongs to the group.
        watchers: called after each change.
    """

    def __init__(self, node_id: NodeId, peers: tuple[Peer, ...], *, joins: bool) -> None:
        """Begin with what the node was started with.

        Args:
            node_id: this node, one of the peers.
            peers: `--peers`.
            joins: they are a group that exists, and this node, which may be none of its members yet.
        """
        self.node_id = node_id
        self.joins = joins
        self.refusal = ""
        self.watchers: list[Callable[[], None]] = []
        self._given = {peer.node_id: peer for peer in peers}
        first = [name for name in self._given if not joins or name != node_id]
        self.in_force = self.committed = Configuration(tuple(first))
        self.index = self.committed_index = NO_INDEX
        self._history: dict[Index, frozenset[NodeId]] = (
            {} if joins else {NO_INDEX: frozenset(first)}
        )
        self._strangers: dict[NodeId, tuple[Index, Peer]] = {}
        self._moved: dict[NodeId, Peer] = {}
        self._changed = trio.Event()

    # What the store and the log say.

    def found(self) -> None:
        """Go on as a member that the group began with: the store says so, whatever the node was started with."""
        self.joins = False
        self.in_force = self.committed = Configuration(tuple(self._given))

    def restore(
        self,
        founders: frozenset[NodeId] | None,
        committed: Configuration | None,
        index: Index,
    ) -> None:
        """Go on with what the member's store remembers, before anything of the log is known.

        Args:
            founders: the members that the group began with; None: not known.
            committed: the last configuration that was known to be committed; None: the first one.
            index: of its entry.
        """
        self._history = {} if founders is None else {NO_INDEX: founders}
        if committed is not None:
            self.change(committed, index, is_committed=True)

    def change(self, configuration: Configuration, index: Index, *, is_committed: bool) -> None:
        """Follow the configuration in force, or learn that it is committed.

        A log that lacks what the store remembers to be committed has yet to come so far: nothing of it counts.
        """
        if index < self.committed_index:
            return
        if index > self.committed_index:
            self._note_moved(configuration)
        self.in_force, self.index = configuration, index
        names = {*configuration.members, *self.committed.members}
        self._moved = {name: peer for name, peer in self._moved.items() if name in names}
        if is_committed:
            self.committed, self.committed_index = configuration, index
            if index:
                self._history[index] = frozenset(configuration.members)
            while len(self._history) > HISTORY_MAX:
                del self._history[min(self._history)]
        self._strangers = {
            name: found
            for name, found in self._strangers.items()
            if found[0] > self.committed_index and name not in configuration.members
        }
        self._notify()

    def _note_moved(self, configuration: Configuration) -> None:
        """Note who was added, or named with another address, since this node knows members: it listens there now.

        A log that lagged may bring several changes before any of them is known to be committed.
        """
        before = (self.committed, self.in_force)
        for name, address in configuration.addresses.items():
            is_new = any(
                name not in each.members or each.addresses.get(name, address) != address
                for each in before
            )
            peer = peer_at(name, address) if is_new else None
            if peer is not None and name != self.node_id:
                self._moved[name] = peer

    # What is known.

    @property
    def given(self) -> frozenset[NodeId]:
        """The members that the node was started with (`--peers`)."""
        return frozenset(self._given)

    @property
    def knows_members(self) -> bool:
        """True once this node knows whose member it is: not so of one that joins, before it was added."""
        return not self.joins or self.index > NO_INDEX

    @property
    def is_changed(self) -> bool:
        """True once the members were ever changed."""
        return self.index > NO_INDEX or self.committed_index > NO_INDEX

    @property
    def is_member(self) -> bool:
        """True if this node is a voter or a learner of the configuration in force."""
        return self.node_id in self.in_force.members

    @property
    def has_left(self) -> bool:
        """True once it is committed that this node is no member (any more), as far as its own log says."""
        names = {*self.in_force.members, *self.committed.members}
        return self.is_changed and self.node_id not in names

    @property
    def is_alone(self) -> bool:
        """True if there is no other member."""
        return all(name == self.node_id for name in self.in_force.members)

    def is_outrun(self, stated: StatedMembers) -> bool:
        """Return whether others have committed members that this node, its group's only voter, never wrote."""
        return (
            self.knows_members
            and self.in_force.voters == (self.node_id,)
            and stated.members is not None
            and stated.is_committed
            and stated.index > self.index
        )

    def is_known(self, node_id: str) -> bool:
        """Return whether a node is a member by the configuration in force, or by the committed one."""
        return node_id in self.in_force.members or node_id in self.committed.members

    def members_at(self, index: Index) -> frozenset[NodeId] | None:
        """Return the members that an entry named, as far as it is remembered to be committed."""
        return self._history.get(index)

    def stated(self) -> StatedMembers:
        """Return what this node states in handshakes."""
        own = self.peer(self.node_id)
        return StatedMembers(
            frozenset(self.in_force.members) if self.knows_members else None,
            self.index,
            self.committed_index,
            "" if own is None else own.address,
            is_joining=not self.knows_members,
        )

    # Where they are.

    def peer(self, node_id: str) -> Peer | None:
        """Return where a member listens; None: nobody knows.

        The own settings go before what the log says, but for what it has said since this node was started.
        """
        name = NodeId(node_id)
        given = self._moved.get(name) or self._given.get(name)
        if given is not None:
            return given
        for configuration in (self.in_force, self.committed):
            address = configuration.addresses.get(name)
            if address is not None:
                return peer_at(name, address)
        stranger = self._strangers.get(name)
        return None if stranger is None else stranger[1]

    def addresses(self) -> Mapping[NodeId, str]:
        """Return the addresses of all members that are known, to be written into the log."""
        found = {name: self.peer(name) for name in self.in_force.members}
        return {name: peer.address for name, peer in found.items() if peer is not None}

    def peers(self) -> tuple[Peer, ...]:
        """Return all members that can be reached, and this node."""
        names = dict.fromkeys((*self.in_force.members, self.node_id))
        found = (self.peer(name) for name in names)
        return tuple(peer for peer in found if peer is not None)

    def contacts(self) -> Mapping[NodeId, Peer]:
        """Return the nodes to which this one keeps a connection."""
        own = () if self.has_left else (*self.in_force.members, *self.committed.members)
        names = dict.fromkeys((*own, *self._strangers))
        names.pop(self.node_id, None)
        found = {name: self.peer(name) for name in names}
        return {name: peer for name, peer in found.items() if peer is not None}

    # What others say.

    def meet(self, node_id: NodeId, stated: StatedMembers) -> None:
        """Take in what a node says that has shown that it belongs to the group.

        A later configuration that names it makes it somebody to answer, though the own log has not come so far.
        """
        is_later = stated.index > self.committed_index or not self.knows_members
        if not is_later or stated.members is None or node_id not in stated.members:
            return
        if node_id in self.contacts():
            return
        peer = peer_at(node_id, stated.address) if stated.address else self.peer(node_id)
        if peer is None:
            return
        found = (stated.index, peer)
        if self._strangers.get(node_id) != found:
            self._strangers.pop(node_id, None)
            while len(self._strangers) >= STRANGERS_MAX:
                del self._strangers[next(iter(self._strangers))]
            self._strangers[node_id] = found
            self._notify()

    def accepts(self, node_id: NodeId, stated: StatedMembers) -> bool:
        """Return whether a node may be a member, or become one by what this node's log does not have yet."""
        if self.is_known(node_id) or not self.knows_members:
            return True
        is_named = stated.members is not None and node_id in stated.members
        return is_named and stated.index > self.committed_index

    def taken_in(self) -> None:
        """Note that a member takes this one for one of the group."""
        if self.refusal:
            self.refusal = ""
            self._notify()

    def turned_away(self, reason: str) -> bool:
        """Note that a member takes this one for none; return whether that is news."""
        is_news = not self.refusal
        self.refusal = reason
        if is_news:
            self._notify()
        return is_news

    # Following it.

    async def wait_changed(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        for changed in self.watchers:
            changed()

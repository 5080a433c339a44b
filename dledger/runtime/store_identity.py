"""The facts of its store that a member sends when it connects, and those that it remembers of others' stores.

A connection between members opens once both sides have taken what the other said, and have made durable
what is new in it: so whoever has confirmed anything to a member is remembered there. What follows for
the vote is the driver's to do; `on_missed` calls it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import trio

from dledger.codec.member_record import (
    MEMBER_ATTRIBUTE,
    decode_handshake_record,
    encode_handshake_record,
)
from dledger.errors import DiskFullError
from dledger.raft.ids import NodeId
from dledger.raft.member_record import MemberRecord, Start, learn
from dledger.runtime.events_log import log_event
from dledger.runtime.roster import Roster
from dledger.storage.api import Disk
from dledger.storage.member_file import MemberFile, check_members, check_owner


class StoreIdentity:
    """The owner of the member's record, in memory and on disk. Sends and learns nothing before `open`.

    Attributes:
        missed: how it is known that this store is an older copy of itself; None: it is not known. It is
            set until the record is ahead of what others remember (`overtake`).
        on_missed: called with it whenever it is set.
    """

    def __init__(self, group: str, process: int, roster: Roster) -> None:
        """Set up the identity; nothing is read yet.

        Args:
            group: of the member.
            process: the number of its process.
            roster: the members as it knows them.
        """
        self.missed: str | None = None
        self.on_missed: Callable[[str], None] = lambda _reason: None
        self._group = group
        self._node_id = roster.node_id
        self._process = process
        self._given = roster.given
        self._roster = roster
        self._record = self._found = MemberRecord()
        self._file: MemberFile | None = None
        self._saving = trio.Lock()

    def open(self, disk: Disk, store_path: str) -> None:
        """Read the record, and count this start. I/O only; before anything else is done.

        Raises:
            ConfigError: the store is another member's, or of a group of other members.
            DLedgerError, OSError: the disk failed.
        """
        file = MemberFile.open(disk)
        if file.problem is not None:
            log_event(logging.WARNING, "member-file-lost", node=self._node_id, reason=file.problem)
        found, is_new = file.record, file.record.restoration is None
        may_name_others = self._check_found(found, store_path)
        record = MemberRecord(
            group=self._group,
            node_id=self._node_id,
            restoration=file.record.restoration,
            start=file.record.start,
            seen=file.record.seen,
            # A store of an older version waits for what its log says.
            members=self._given if is_new or may_name_others else found.members,
            missed=file.record.missed,
            has_joined=self._roster.joins if is_new else file.record.has_joined,
            configuration=file.record.configuration,
            configuration_index=file.record.configuration_index,
        ).started(self._process)
        if record.missed.count:
            self.missed = _is_older(
                record, "before it was started again, this store heard of", record.missed
            )
        self._found = record
        try:
            file.save(record)
        except DiskFullError as error:
            # A start that nobody can count is as it was before starts were counted.
            log_event(logging.WARNING, "start-not-counted", node=self._node_id, reason=error)
            return
        if record.restoration:
            # Loud the first time, a fact afterwards.
            level = logging.WARNING if record.start.count == 1 else logging.INFO
            log_event(level, "new-incarnation", node=self._node_id, restoration=record.restoration)
        self._file = file
        self._record = record

    def _check_found(self, found: MemberRecord, store_path: str) -> bool:
        """Return whether the members that the record names mean nothing, since this node has yet to find its group.

        It is told that it joins one, and was told so before, or has met nobody yet: then it may have looked for it in
        the wrong place, and goes on in the right one with the store that it has (docs/adr/0185).

        Raises:
            ConfigError: the store is another member's, or of a group of other members.
        """
        has_met_nobody = found.restoration is None
        joins = self._roster.joins
        owned = replace(found, group=self._group) if joins and has_met_nobody else found
        check_owner(owned, group=self._group, node_id=self._node_id, store_path=store_path)
        if joins and (has_met_nobody or (found.has_joined and found.configuration is None)):
            return True
        check_members(found, self._given, store_path)
        return False

    def follow_record(self) -> None:
        """Let the roster go on with what the store remembers of the members, once the record is open."""
        record = self._found
        if record.has_joined:
            self._roster.joins = True
        elif self._roster.joins:
            self._roster.found()
        if record.members or record.configuration is not None:
            self._roster.restore(record.founders, record.configuration, record.configuration_index)

    def adopt_members(self) -> None:
        """Record the members that the log names: an older store, or one that lost its record, knows them from here.

        Raises:
            DiskFailedError: the disk failed; the node must stop.
        """
        if self._file is not None and not self._record.members:
            self._record = replace(self._record, members=self._given)
            self._save(self._record)

    async def keep_members(self) -> None:
        """Record each change of the members once it is committed, until cancelled.

        Raises:
            DiskFailedError: the disk failed; the node must stop.
        """
        roster = self._roster
        while True:
            while self._record.configuration_index < roster.committed_index:
                self._record = replace(
                    self._record,
                    configuration=roster.committed,
                    configuration_index=roster.committed_index,
                )
                await self._keep()
            await roster.wait_changed()

    @property
    def restoration(self) -> str:
        """The operator's name of the last restoring of all members; empty: never."""
        return self._record.restoration or ""

    def own_attributes(self, target: str) -> Mapping[str, str]:
        """Return the attribute for a handshake with a member."""
        if self._file is None:
            return {}
        return {MEMBER_ATTRIBUTE: encode_handshake_record(self._record, target)}

    def why_foreign(self, node_id: str, attributes: Mapping[str, str]) -> str | None:
        """Return why the two members must not talk to each other; None if they may.

        Raises:
            PeerProtocolError: what the other says of its store is no record.
        """
        said = self._decoded_record(node_id, attributes)
        if said is None or not self._record.is_foreign(said):
            return None
        return (
            f"{self._node_id} was restored as {self._record.restoration or 'never'!r}, {node_id} as "
            f"{said.restoration or 'never'!r}: stores from before and after a restoring do not mix. Run "
            "`dledger restored` on every store of the same backup, or begin with an empty one "
            "(docs/restoring.md)"
        )

    async def learn(self, node_id: NodeId, attributes: Mapping[str, str]) -> None:
        """Update the record from a member's handshake, before its connection is used.

        Raises:
            PeerProtocolError: it is no record.
            DiskFailedError: the disk failed; the node must stop.
        """
        said = self._decoded_record(node_id, attributes)
        if said is None or self._file is None:
            return
        roster = self._roster
        members = {*roster.in_force.members, *roster.committed.members, node_id}
        heard = learn(self._record, said, members)
        self._record = heard.record
        if heard.missed_by_source is not None:
            log_event(
                logging.WARNING,
                "peer-store-is-old",
                node=self._node_id,
                peer=node_id,
                start=said.start.count,
                remembered=heard.missed_by_source.count,
            )
        if heard.missed is not None:
            self.missed = _is_older(self._record, f"{node_id} remembers", heard.missed)
            self.on_missed(self.missed)
        await self._keep()

    def note_lost(self, reason: str) -> None:
        """Note that this store is not the one with which the group went on."""
        self.missed = reason
        self.on_missed(reason)

    async def _keep(self) -> None:
        """Save the record if it differs from what is saved.

        Raises:
            DiskFailedError: the disk failed; the node must stop.
        """
        if self._file is None:
            return
        async with self._saving:
            if self._record != self._file.record:
                # A write that was begun is finished, whatever becomes of the connection.
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(self._save, self._record)

    def overtake(self) -> bool:
        """Number this start after all others: the member has durably given up its vote.

        Returns:
            False: a record is being saved at this moment; call again.

        Raises:
            DiskFailedError: the disk failed; the node must stop.
        """
        if self._saving.locked():
            return False
        self.missed = None
        if self._file is None:
            return True  # nobody hears of this start; the next one finds what it had missed
        self._record = self._record.overtaking()
        self._save(self._record)
        return True

    def _save(self, record: MemberRecord) -> None:
        assert self._file is not None, "nothing is learned before the file is open"
        try:
            self._file.save(record)
        except DiskFullError as error:
            # It is saved with the next that comes; until then a crash forgets it.
            log_event(logging.WARNING, "not-remembered", node=self._node_id, reason=error)

    def _decoded_record(self, node_id: str, attributes: Mapping[str, str]) -> MemberRecord | None:
        """Decode what the other side said; None if its version is too old to say anything."""
        text = attributes.get(MEMBER_ATTRIBUTE)
        return None if text is None else decode_handshake_record(NodeId(node_id), text)


def _is_older(record: MemberRecord, who_knows: str, missed: Start) -> str:
    """Return the text for people about a store that has missed one of its own starts."""
    return (
        f"{who_knows} start {missed.count} of this store, which is at {record.start.count} and does not know of "
        "it: it is an older copy, and has no vote until a leader has admitted it"
    )

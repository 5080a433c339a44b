"""The member's record on disk: whose the store is, its starts, and what it remembers of other stores.

Unlike the vote (hard_state.py) a lost record costs only what it would have noticed: a store without one
counts its starts anew, and the other members, who remember more, take it for an older copy. Versions
that do not know the file leave it alone.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from dataclasses import replace

from dledger.codec.member_record import (
    MemberRecordFormatError,
    decode_member_record,
    encode_member_record,
)
from dledger.errors import ConfigError
from dledger.raft.ids import EntryId, NodeId
from dledger.raft.member_record import MemberRecord
from dledger.raft.membership import names_of
from dledger.storage.api import Disk
from dledger.storage.hard_state import HARD_STATE_NAME
from dledger.storage.whole_file import path_in, replace_whole, settle_whole
from dledger.storage.write_batch import FailureLatch

MEMBER_NAME = "member"
_FILE_BYTES_MAX = 64 * 1024

CHANGED_BY_COMMAND = (
    "A group's members are changed by `dledger members` or `dledger-admin members` "
    "(docs/members.md), not here"
)


class MemberFile:
    """Keeps one record. `save` does I/O only and may run in another thread, one at a time.

    Attributes:
        record: what was read, or saved last.
        problem: why the file was not to be believed; None: nothing was wrong.
    """

    def __init__(self, disk: Disk, folder: str, record: MemberRecord, problem: str | None) -> None:
        """Use `MemberFile.open`."""
        self.record = record
        self.problem = problem
        self._disk = disk
        self._folder = folder
        self._latch = FailureLatch()

    @classmethod
    def open(cls, disk: Disk, folder: str = "") -> MemberFile:
        """Read the record of a store. Comes before the hard state is opened.

        Raises:
            OSError: the disk failed.
        """
        if folder:
            disk.make_folder(folder)
        settle_whole(disk, folder, MEMBER_NAME)
        record, problem = _read(disk, path_in(folder, MEMBER_NAME))
        if record.restoration is None and disk.exists(path_in(folder, HARD_STATE_NAME)):
            # It has taken part already, without any notice of a restoring.
            record = replace(record, restoration="")
        return cls(disk, folder, record, problem)

    def save(self, record: MemberRecord) -> None:
        """Make a record durable.

        Raises:
            DiskFullError: there was no room; the old record stands and nothing else has changed.
            DiskFailedError: it failed, now or earlier; the node must stop.
        """
        self._latch.check()
        is_restored = record.restoration != self.record.restoration
        assert is_restored or record.start.count >= self.record.start.count, (
            f"start {record.start.count} after {self.record.start.count}"
        )
        try:
            replace_whole(self._disk, self._folder, MEMBER_NAME, encode_member_record(record))
        except OSError as error:
            raise self._latch.fail(error) from error
        self.record = record


def check_owner(record: MemberRecord, *, group: str, node_id: NodeId, store_path: str) -> None:
    """Refuse to run with the store of another member, or of another group.

    Raises:
        ConfigError: names both, and what to do.
    """
    if not record.node_id or (record.group, record.node_id) == (group, node_id):
        return
    raise ConfigError(
        f"the store in {store_path} belongs to member {record.node_id} of group {record.group}, this is "
        f"{node_id} of {group}. To bring {node_id} back, start it with an empty folder: it takes everything "
        "from the others. When all members are restored from one copy, run `dledger restored` on each "
        "store first (docs/restoring.md)"
    )


def check_members(record: MemberRecord, members: frozenset[NodeId], store_path: str) -> None:
    """Refuse to run a store that was started with other members than it, or its group, ever had.

    Once the members were changed it may be started as before, or with those of now; quorums are the log's to say
    (docs/adr/0185). A store of an older version names no members; it remembers those that it has met.

    Raises:
        ConfigError: names both, and what to do.
    """
    now = record.configuration
    if now is not None and record.members:
        present = frozenset(now.members)
        if members not in {record.members, present, present | {NodeId(record.node_id)}}:
            raise ConfigError(
                f"the store in {store_path} belongs to a group of {now}, by entry {record.configuration_index}; it was "
                f"first started with {names_of(record.members)}; --peers (dLegerPeers) names {names_of(members)}, "
                f"neither of them. {CHANGED_BY_COMMAND}"
            )
    elif record.members:
        if record.members != members:
            raise ConfigError(
                f"the store in {store_path} belongs to a group of {names_of(record.members)}; "
                + other_members(members, record.members)
            )
    elif now is None and (missing := record.seen.keys() - members):
        raise ConfigError(
            f"the store in {store_path} belongs to a group in which it has met {names_of(missing)}; "
            + other_members(members, members | missing)
        )


def check_log_members(
    writers: frozenset[NodeId], entry_id: EntryId, members: frozenset[NodeId], store_path: str
) -> None:
    """Refuse to go on with a log whose last term was led by other members.

    Args:
        writers: the members that the first entry of its last term names.
        entry_id: of that entry.
        members: as configured.
        store_path: for people.

    Raises:
        ConfigError: names both, and what to do.
    """
    if writers == members:
        return
    raise ConfigError(
        f"the log in {store_path} was continued, with entry {entry_id.index} of term {entry_id.term}, by a group of "
        f"{names_of(writers)}; "
        + other_members(members, writers)
        + ". If these nodes were run apart from their group by mistake, what they have taken since is not part of "
        "it: put the store aside, and start with an empty folder (docs/repair.md)"
    )


def other_members(given: Collection[str], wanted: Collection[str]) -> str:
    """Return the error text for a configuration with other members than the group's, and how to change them."""
    return (
        f"--peers (dLegerPeers) names {names_of(given)}. {CHANGED_BY_COMMAND}: start with "
        f"the members of the store, {names_of(wanted)} (their addresses may change). A store that was begun with "
        "mistyped members and never had a leader can be removed instead. Nothing was changed"
    )


def _read(disk: Disk, path: str) -> tuple[MemberRecord, str | None]:
    """Return the record, or an empty one and what was wrong with it.

    Raises:
        OSError: the disk failed.
    """
    if not disk.exists(path):
        return MemberRecord(), None
    file = disk.open(path)
    try:
        return decode_member_record(file.read_at(0, _FILE_BYTES_MAX)), None
    except MemberRecordFormatError as error:
        return MemberRecord(), f"{path}: {error}"
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return MemberRecord(), f"{path}: the device does not give it: {error}"
    finally:
        file.close()

"""The operator's mark that a whole group was restored from backups and is a new incarnation.

Only the operator can know that. What members remember of each other's starts is void then, and a store
from before the restoring must never mix with those from after it (docs/adr/0103, docs/restoring.md).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dledger.codec.hard_state import HardStateFormatError, decode_hard_state
from dledger.codec.member_record import RESTORATION_LENGTH_MAX
from dledger.errors import ConfigError
from dledger.raft.ids import NodeId
from dledger.raft.member_record import Start
from dledger.raft.membership import names_of
from dledger.storage.hard_state import HARD_STATE_NAME
from dledger.storage.lock import StoreLock
from dledger.storage.member_file import MemberFile
from dledger.storage.posix import PosixDisk


def mark_restored(store_path: str, *, group: str, node_id: NodeId, name: str) -> None:
    """Mark a store as that of `node_id`, in the incarnation `name` of its group.

    Raises:
        ConfigError: the name does not do, or there is no store that could be one of a whole group.
        StoreLockedError: the member runs.
        DLedgerError: the disk failed.
    """
    if not (0 < len(name) <= RESTORATION_LENGTH_MAX and name.isprintable()):
        raise ConfigError(
            f"NAME {name[:80]!r} has {len(name)} characters: it must have 1 to {RESTORATION_LENGTH_MAX}, all "
            "printable; nothing was changed"
        )
    hard_state = Path(store_path, HARD_STATE_NAME)
    try:
        is_voter = decode_hard_state(hard_state.read_bytes()).is_voter
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no store to go on with in {store_path}: it has no file {HARD_STATE_NAME}, which each member "
            "writes before it first votes; nothing was changed"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{hard_state} cannot be read: {error.strerror}; nothing was changed"
        ) from error
    except HardStateFormatError as error:
        raise ConfigError(f"{hard_state}: {error}: take another backup") from error
    with StoreLock(store_path):
        file = MemberFile.open(PosixDisk(store_path))
        was = file.record.node_id or node_id
        if was != node_id and not is_voter:
            raise ConfigError(
                f"{store_path} is a copy of {was}, which had no vote: a group of such copies would wait for "
                "ever. Take a copy of a member that had one"
            )
        changed = file.record.configuration
        members = file.record.members if changed is None else frozenset(changed.members)
        if members and node_id not in members:
            raise ConfigError(
                f"{store_path} is a store of a group of {names_of(members)}; {node_id} is none of them"
            )
        if name == file.record.restoration:
            raise ConfigError(
                f"{store_path} was restored as {name} already: give this restoring a new name"
            )
        begun = replace(file.record, group=group, node_id=node_id, restoration=name)
        file.save(replace(begun, start=Start(), seen={}, missed=Start()))

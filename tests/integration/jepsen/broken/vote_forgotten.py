"""Term and vote are never written: a member that starts again knows only the terms of its log."""

from dledger.raft.hard_state import HardState
from dledger.raft.ids import EntryId
from dledger.storage.api import Disk
from dledger.storage.hard_state import HardStateStore


def save(self: HardStateStore, state: HardState) -> None:
    self._state = state


def opened(
    cls: type[HardStateStore],
    /,
    disk: Disk,
    folder: str = "",
    *,
    last_id: EntryId,
    **_more: object,
) -> HardStateStore:
    if folder:
        disk.make_folder(folder)
    return cls(disk, folder, HardState(last_id.term, None), is_new=not last_id.index)


HardStateStore.save = save  # type: ignore[method-assign]
HardStateStore.open = classmethod(opened)  # type: ignore[method-assign, assignment]

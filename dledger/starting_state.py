"""The state that a member starts with: from the newest snapshot that is whole and of its log.

Without tasks; the runtime and the simulators start members alike. Taking and fetching snapshots is theirs.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dledger.engine import Engine
from dledger.errors import CorruptionError, EntryDamagedError
from dledger.raft.ids import Index
from dledger.state_machine import (
    SealingMachine,
    SnapshotMachine,
    SnapshotRefusedError,
    SwappingMachine,
)
from dledger.storage.segmented_log import SegmentedLog
from dledger.storage.snapshots import SNAPSHOTS_FOLDER, SnapshotFile, SnapshotStore

BRING_BACK: Final = (
    "put a copy of this store's folder `snapshots` back, or that of another member (docs/repair.md)"
)
"""The way out for who has nobody to fetch a state from."""


@dataclass(frozen=True, slots=True)
class StartingState:
    """The snapshots that a member starts with.

    Attributes:
        newest: the one that the state machine was brought to; None: to none.
        older: one before it from which this log could go on as well, so far as its head says.
        refused: a sentence per snapshot that was not used, with its place.
        lacks: what this member has to get from another one, in a sentence; empty: nothing.
    """

    newest: SnapshotFile | None
    older: SnapshotFile | None
    refused: tuple[str, ...]
    lacks: str = ""

    def let_go_on(self, engine: Engine, applied_index: Index) -> None:
        """Let an engine that has just opened its log go on after this state."""
        engine.start_after(applied_index)
        if self.newest is None:
            return
        meta = self.newest.meta
        if meta.index <= engine.log.last_id.index:
            engine.start_committed(meta.index)
        else:
            engine.state_replaced(meta.index, meta.chain_crc)


def restore_newest(
    store: SnapshotStore, machine: SnapshotMachine, log: SegmentedLog, *, may_fetch: bool = False
) -> StartingState:
    """Bring the machine to the newest snapshot that is whole and of this log.

    A log that was begun anew may end before the snapshot for which that was done: if there is no other one, the state
    is ahead of the log.

    Args:
        store: the snapshots.
        machine: it is empty if there is none that will do.
        log: of this member.
        may_fetch: whether another member may give it a state, where no snapshot reaches a log without its beginning.

    Raises:
        CorruptionError: the log does not start with the first entry, no snapshot reaches it, and none may be fetched.
        OSError: the disk failed.
    """
    found, damaged = store.newest_first()
    refused = [str(error) for error in damaged]
    for error in damaged:
        store.refuse(error.path)
    fitting: list[SnapshotFile] = []
    for snapshot in sorted(found, key=lambda each: _is_ahead(each, log)):
        try:
            _check_belongs(snapshot, log)
            if not fitting:
                restore_from(store, snapshot, machine)
                check_restored(snapshot, machine)
        except (CorruptionError, SnapshotRefusedError) as error:
            refused.append(f"{snapshot.path}: {error}")
            store.refuse(snapshot.path)
            if not fitting:
                # A damaged part of it would stop the node, which is not served from it.
                store.in_use.give_up_all()
            continue
        fitting.append(snapshot)
    if not fitting:
        lacks = _lacking(log, machine.applied_index)
        if not may_fetch:
            check_reaches(log, machine.applied_index)
        return StartingState(None, None, tuple(refused), lacks)
    newest = fitting[0]
    store.kept_index = newest.meta.index
    older = next((each for each in fitting[1:] if each.meta.index < newest.meta.index), None)
    return StartingState(newest, older, tuple(refused))


def restore_from(store: SnapshotStore, snapshot: SnapshotFile, machine: SnapshotMachine) -> None:
    """Replace the machine's state by that of a snapshot.

    Raises:
        CorruptionError: it is damaged; the machine is empty.
        SnapshotRefusedError: its bytes are no state; the machine is empty.
        OSError: the disk failed.
    """
    with made_to_stay(), _parts_judged_as_the_rest():
        if isinstance(machine, SealingMachine):
            machine.restore_sealed(store.sealed_chunks(snapshot))
        else:
            machine.restore(store.chunks(snapshot))


def load_steps(
    store: SnapshotStore, snapshot: SnapshotFile, machine: SwappingMachine
) -> Iterator[None]:
    """Fill an empty machine with the state of a snapshot, in short steps; then it is that of the snapshot.

    Raises:
        CorruptionError: it is damaged.
        SnapshotRefusedError: its bytes are no state, or another one than was written down.
        OSError: the disk failed.
    """
    is_sealing = isinstance(machine, SealingMachine)
    with _parts_judged_as_the_rest():
        yield from machine.load_steps(
            store.sealed_chunks(snapshot) if is_sealing else store.chunks(snapshot)
        )
    _check_same(snapshot, machine)


@contextlib.contextmanager
def _parts_judged_as_the_rest() -> Iterator[None]:
    """Have a part that is read within the block fail as the other bytes of its snapshot do.

    To whoever is served from it, it is an entry that is awaited; here it decides whether the snapshot will do.

    Raises:
        CorruptionError: the part is damaged.
        OSError: it cannot be read now.
    """
    try:
        yield
    except EntryDamagedError as error:
        if isinstance(error.__cause__, CorruptionError | OSError):
            raise error.__cause__ from None
        raise


@contextlib.contextmanager
def made_to_stay() -> Iterator[None]:
    """Have Python look for no garbage among what is made within the block: all of it stays.

    With 80 000 queues that took a quarter of the time. A process that has frozen what it began with freezes this, too:
    else the first collection after it would go through all of it at once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count():
            gc.freeze()
        if was_enabled:
            gc.enable()


def check_reaches(log: SegmentedLog, applied_index: Index) -> None:
    """Refuse a log without its beginning, where no snapshot gave the state what the beginning led to.

    Raises:
        CorruptionError: with what to do.
    """
    lacks = _lacking(log, applied_index)
    if lacks:
        raise CorruptionError(SNAPSHOTS_FOLDER, 0, f"{lacks}: {BRING_BACK}")


def _lacking(log: SegmentedLog, applied_index: Index) -> str:
    """Return a sentence if a state is not even where the log begins; else nothing."""
    first_index = log.layout.first_index
    if first_index <= applied_index + 1:
        return ""
    return f"the log begins with entry {first_index}, and no whole snapshot reaches it"


def _is_ahead(snapshot: SnapshotFile, log: SegmentedLog) -> bool:
    """Return whether a snapshot is one for which this log was begun anew, and which it has not reached yet."""
    layout = log.layout
    return layout.first_index > 1 and snapshot.meta.index > layout.last_index


def _check_belongs(snapshot: SnapshotFile, log: SegmentedLog) -> None:
    """Refuse the snapshot of another log.

    Raises:
        SnapshotRefusedError: with the reason.
    """
    meta, layout = snapshot.meta, log.layout
    if _is_ahead(snapshot, log):
        return  # whether it is of this log shows when the log reaches it
    if not layout.first_index - 1 <= meta.index <= layout.last_index:
        raise SnapshotRefusedError(
            f"it ends with entry {meta.index}, the log has {layout.first_index}..{layout.last_index}"
        )
    if layout.term_of(meta.index) != meta.term or log.chain_crc_of(meta.index) != meta.chain_crc:
        raise SnapshotRefusedError(f"entry {meta.index} of the log is another one")


def check_restored(snapshot: SnapshotFile, machine: SnapshotMachine) -> None:
    """Refuse a state that is not what was written down.

    Raises:
        SnapshotRefusedError: with the reason; the machine is empty.
    """
    try:
        _check_same(snapshot, machine)
    except SnapshotRefusedError:
        with contextlib.suppress(SnapshotRefusedError):
            machine.restore(iter(()))  # no bytes are no state: it is empty now, as it should be
        raise


def _check_same(snapshot: SnapshotFile, machine: SnapshotMachine) -> None:
    meta = snapshot.meta
    found = (machine.applied_index, machine.digest())
    if found != (meta.index, meta.digest):
        raise SnapshotRefusedError(
            f"restored index {found[0]}, digest {found[1]:#010x}; "
            f"written were {meta.index}, {meta.digest:#010x}"
        )

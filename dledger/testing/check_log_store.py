"""The contract of a disk and of the log on it, as callable checks (like trio's `check_two_way_stream`).

`check_disk` tries the promises of `dledger.storage.api`; `check_log_store` runs a whole log on the
disk: appending, reading, truncating, rolling, opening again. Both raise AssertionError with the
promise that was broken. They make no crashes; those are the business of `SimDisk`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dledger.codec.entry import chain_crc, check_entry, seal
from dledger.errors import (
    CompactedError,
    CorruptionError,
    OutOfRangeError,
    PeerProtocolError,
    UsageError,
)
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.hard_state import HardState
from dledger.raft.ids import NO_INDEX, NO_TERM, EntryId, Index, NodeId, Position, Term
from dledger.storage.api import Disk
from dledger.storage.hard_state import HARD_STATE_NAME, HardStateStore
from dledger.storage.scan import ChainEnd
from dledger.storage.segmented_log import SegmentedLog

MakeDisk = Callable[[], Disk]
"""Makes an empty disk."""

_SEGMENT_BYTES = 2000


def check_disk(make_disk: MakeDisk) -> None:
    """Check that a disk keeps the contract of `Disk` and `File`."""
    disk = make_disk()
    assert disk.list("folder") == [], "a missing folder lists as empty"
    disk.make_folder("folder/inner")
    disk.make_folder("folder/inner")
    assert (names := disk.list("folder")) == ["inner"], f"{names} in a folder with one folder"
    _check_missing(disk)
    file = disk.open("folder/b", create=True)
    assert file.size() == 0, f"a new file has {file.size()} bytes"
    assert (found := file.read_at(0, 10)) == b"", f"a new file holds {found!r}"
    file.write_at(3, (b"one", b"", b"two"))
    assert file.read_at(0, 100) == b"\0\0\0onetwo", "a gap reads as zeros"
    assert (found := file.read_at(4, 3)) == b"net", f"3 bytes from byte 4 on are {found!r}"
    file.write_at(0, [bytes((number % 256,)) for number in range(3000)])
    assert file.size() == 3000, "more parts than one system call takes"
    found = file.read_at(2999, 2)
    assert found == bytes((2999 % 256,)), f"the last byte of 3000 is {found!r}"
    file.truncate(4)
    file.preallocate(100)
    assert file.read_at(0, 200) == bytes((0, 1, 2, 3)) + bytes(96), "what was cut never comes back"
    file.preallocate(10)
    assert file.size() == 100, "preallocation never shrinks"
    file.truncate(120)
    assert file.size() == 120, f"{file.size()} bytes after a truncation that makes it longer"
    file.sync()
    file.close()
    _check_names(disk)
    assert disk.free_bytes() > 0, f"{disk.free_bytes()} bytes are free"


def _check_missing(disk: Disk) -> None:
    for path in ("folder/none", "nowhere/none"):
        assert not disk.exists(path), f"{path} exists, nobody made it"
        try:
            disk.open(path)
        except FileNotFoundError:
            continue
        raise AssertionError("a missing file was opened")


def _check_names(disk: Disk) -> None:
    """Check that folders list names in order, and that a rename replaces its target while open files stay readable."""
    other = disk.open("folder/a", create=True)
    other.write_at(0, (b"new",))
    other.sync()
    assert disk.list("folder") == ["a", "b", "inner"], "names are sorted"
    disk.rename("folder/a", "folder/b")
    disk.sync_folder("folder")
    names = disk.list("folder")
    assert names == ["b", "inner"], f"{names}: a rename takes the old name away"
    assert other.read_at(0, 3) == b"new", "an open file outlives its name"
    again = disk.open("folder/b")
    assert again.read_at(0, 10) == b"new", "a rename replaces its target"
    again.close()
    other.close()
    disk.remove("folder/b")
    disk.sync_folder("folder")
    assert not disk.exists("folder/b"), "folder/b was removed, and exists"


def check_log_store(make_disk: MakeDisk) -> None:
    """Check that a log and a hard state keep their contracts on this disk."""
    disk = make_disk()
    log = _open(disk)
    assert log.last_id == EntryId(NO_TERM, NO_INDEX), f"a new log ends at {log.last_id}"
    assert log.take_writes() is None, "an empty log has nothing to write"
    _check_appending(log)
    _check_refusals(log)
    _check_truncating(log)
    expected = log.entries(Index(1), Index(log.last_id.index + 1))
    log.flush_index()
    log.close()
    log = _open(disk)
    assert log.recovery_notes == (), "an orderly close leaves nothing to mend"
    found = log.entries(Index(1), Index(len(expected) + 1))
    assert found == expected, f"opened again it has {len(found)} entries, or others than {expected}"
    assert log.durable_id == expected[-1].id, f"durable to {log.durable_id}, not {expected[-1].id}"
    log.append(new_entries(log, 9, [10]))
    log.close()
    log = _open(disk)
    assert log.last_id == expected[-1].id, "what no batch wrote is not there"
    _check_followers_copy(log, make_disk())
    log.close()
    _check_front(make_disk())
    _check_hard_state(disk, expected[-1].id)


def new_entries(log: SegmentedLog, term: int, sizes: Sequence[int]) -> list[Entry]:
    """Make unsealed entries after the end of a log, with bodies of these sizes."""
    index, position = log.last_id.index + 1, log.end_position
    made: list[Entry] = []
    for size in sizes:
        body = bytes((index + at) % 251 for at in range(size))
        made.append(Entry(Index(index), Term(term), position, EntryKind.NORMAL, body))
        index, position = index + 1, made[-1].end_position
    return made


def flush(log: SegmentedLog) -> None:
    """Carry out all writes."""
    while (batch := log.take_writes()) is not None:
        batch.run()
        log.written(batch)


def _open(disk: Disk) -> SegmentedLog:
    return SegmentedLog.open(disk, "log", segment_size_bytes=_SEGMENT_BYTES, cache_bytes_max=1000)


def _check_appending(log: SegmentedLog) -> None:
    """Check that entries are readable at once, durable only after a write, and chained from 0."""
    made = new_entries(log, 1, [0, 1, 500, 3 * _SEGMENT_BYTES, 700, 700, 700])
    sealed = log.append(made)
    assert [each.body for each in sealed] == [each.body for each in made], (
        f"{len(made)} entries were appended, {len(sealed)} came back, or other bodies"
    )
    chain = 0
    for each in sealed:
        check_entry(each, chain)
        chain = chain_crc(each)
    assert log.durable_index == 0, "nothing is durable before it was written"
    assert log.entries(Index(1), Index(8)) == list(sealed), "readable at once"
    flush(log)
    assert log.durable_id == sealed[-1].id, f"durable to {log.durable_id}, not {sealed[-1].id}"
    assert log.entries(Index(1), Index(8)) == list(sealed), "and from disk"
    assert (none := log.entries(Index(3), Index(3))) == [], f"an empty range gave {none}"
    bounded = [each.index for each in log.entries(Index(2), Index(8), bytes_max=1)]
    assert bounded == [2], f"entries {bounded} were read where one alone passes the bound"
    for each in sealed:
        for position in (each.position, each.end_position - 1):
            found = log.entry_at(Position(position))
            assert found == each, f"entry {found.index} is at byte {position}, not {each.index}"
    assert log.end_position == sealed[-1].end_position, (
        f"the log ends at {log.end_position}, its last entry at {sealed[-1].end_position}"
    )


def _check_refusals(log: SegmentedLog) -> None:
    """Check that a refused append leaves the log as it was, and that reads outside the log raise."""
    last = log.last_id
    made = new_entries(log, 2, [5, 5])
    stranger = _strange_entry(log)
    for error, refused in (
        (UsageError, [made[1]]),
        (UsageError, [made[0], made[0]]),
        (UsageError, new_entries(log, 0, [5])),
        (PeerProtocolError, [stranger]),
    ):
        try:
            log.append(refused)
        except error:
            assert log.last_id == last, "a refused append changes nothing"
            continue
        raise AssertionError(f"{refused} was appended")
    for first, end in ((last.index, last.index + 2), (0, 1)):
        try:
            log.entries(Index(first), Index(end))
        except (OutOfRangeError, CompactedError):
            continue
        raise AssertionError("an entry outside the log was read")


def _strange_entry(log: SegmentedLog) -> Entry:
    """Return a sealed entry that fits the log's end in all but its chain."""
    (made,) = new_entries(log, 5, [7])
    return seal(made, 12345)


def _check_truncating(log: SegmentedLog) -> None:
    """Check that a truncated tail can be replaced, also by entries that were not yet written when they were removed."""
    kept = log.entries(Index(1), Index(3))
    log.truncate_from(Index(3))
    assert log.last_id == kept[-1].id, f"{log.last_id} is last after a truncation from 3 on"
    assert log.durable_index == 2, f"durable to {log.durable_index}, entry 2 is the last"
    assert log.end_position == kept[-1].end_position, (
        f"the log ends at {log.end_position}, its last entry at {kept[-1].end_position}"
    )
    other = log.append(new_entries(log, 3, [20, 1500, 1500, 30]))
    flush(log)
    found = log.entries(Index(1), Index(7))
    assert found == [*kept, *other], f"{found} stands in place of {kept} and {other}"
    log.truncate_from(Index(6))
    log.append(new_entries(log, 4, [1]))
    log.truncate_from(Index(6))
    flush(log)
    assert log.durable_id == other[2].id, f"durable to {log.durable_id}, not {other[2].id}"


def _check_followers_copy(leader: SegmentedLog, disk: Disk) -> None:
    """Check that a follower keeps the leader's bytes."""
    follower = _open(disk)
    entries = leader.entries(Index(1), Index(leader.last_id.index + 1))
    appended = follower.append(entries)
    assert appended == tuple(entries), f"{appended} was appended in place of {entries}"
    flush(follower)
    found = follower.entries(Index(1), Index(len(entries) + 1))
    assert found == entries, f"{found} was read in place of {entries}"
    follower.close()


def _check_front(disk: Disk) -> None:
    """Check that a log may lose its beginning, and may be begun anew behind an entry that it does not have."""
    log = _open(disk)
    entries = log.append(new_entries(log, 1, [900] * 8))
    flush(log)
    drop = log.drop_before(Index(4))
    assert drop is not None, "segments of two entries each, and none is dropped"
    drop.run()
    first = log.layout.first_index
    assert first == 3, (
        f"entries before {first} are gone, those of the segment from 3 on are not to go"
    )
    log.close()
    log = _open(disk)
    found = log.entries(first, Index(9))
    assert found == list(entries[2:]), f"opened again it has {found}"
    last = entries[-1]
    chain, place = chain_crc(last), Position(last.end_position + 5000)
    log.begin_after(ChainEnd(Index(20), Term(2), place, chain))
    flush(log)
    assert log.durable_index == 20, f"durable to {log.durable_index}, the log follows entry 20"
    log.close()
    log = _open(disk)
    assert log.last_id == EntryId(Term(2), Index(20)), f"opened again it ends with {log.last_id}"
    assert log.end_position == place, f"the next entry is to stand at {log.end_position}"
    log.close()


def _check_hard_state(disk: Disk, last_id: EntryId) -> None:
    """Check that the saved term and vote survive, and that a missing file beside a log with entries is corruption."""
    try:
        HardStateStore.open(disk, "log", last_id=last_id)
    except CorruptionError:
        pass
    else:
        raise AssertionError("a lost vote beside a log with entries must be noticed")
    store = HardStateStore.open(disk, "vote", last_id=EntryId(NO_TERM, NO_INDEX))
    assert store.state == HardState(NO_TERM, None), f"a new one has {store.state}"
    for state in (HardState(Term(3), NodeId("n1")), HardState(Term(12), None)):
        store.save(state)
        assert store.state == state, f"{store.state} after {state} was saved"
        store = HardStateStore.open(disk, "vote", last_id=last_id)
        assert store.state == state, f"{store.state} was read after {state} was saved"
    assert (names := disk.list("vote")) == [HARD_STATE_NAME], f"{names} beside the hard state"

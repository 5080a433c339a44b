"""A start reads no part of its snapshot: units and segments are served where they stand, whatever is folded then."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.control import CommitOffsets, DeleteTopic, OffsetCommit, ResetOffsets
from broker.store.far_timers import MemoryFarTimers
from broker.store.key_index import Walks
from broker.store.not_in_memory import FilesNotLoadedError
from broker.store.state import BrokerState, StateLimits
from broker.store.unit_files import SegmentFiles, UnitFiles
from dledger.codec.snapshot import SnapshotMeta
from dledger.errors import EntryDamagedError
from dledger.raft.ids import Index, Position, Term
from dledger.state_machine import SnapshotOvertakenError
from dledger.storage.posix import PosixDisk
from dledger.storage.snapshots import SnapshotStore
from dledger_mq.message.numbers import QueueId, QueueOffset
from tests.property.store.test_fold_laws import answers
from tests.unit.store.lone_broker import LoneBroker
from tests.unit.store.test_retention import forget, later

LIMITS = StateLimits(
    resident_units_max=4, keep_units_max=2, spill_interval=1, sealed_units=4, index_segment_units=8
)


class Replica:
    """Follows a broker; its state is written down and taken in again on a disk."""

    def __init__(self, folder: Path, broker: LoneBroker) -> None:
        self.broker = broker
        self.folder = folder
        self.disk = PosixDisk(folder)
        self.start()

    def start(self) -> None:
        derived = self.folder / "derived"
        self.store = SnapshotStore(self.disk)
        units = UnitFiles(derived, file_bytes=100)
        self.state = BrokerState(units, SegmentFiles(derived), LIMITS, MemoryFarTimers())
        for snapshot in self.store.newest_first()[0][:1]:
            self.state.restore_sealed(self.store.sealed_chunks(snapshot))
            assert self.state.digest() == snapshot.meta.digest
        self.follow()

    def follow(self) -> None:
        self.state.apply(self.broker.log.entries[self.state.applied_index :])

    def take(self) -> None:
        self.follow()
        index = self.state.applied_index
        meta = SnapshotMeta(Index(index), Term(1), Position(index), 0, self.state.digest())
        writer = self.store.begin(meta, has_parts=True)
        for item in self.store.with_parts(self.state.sealed_snapshot()):
            writer.add([item])
        writer.finish()

    def check(self) -> None:
        self.follow()
        assert answers(self.state) == answers(self.broker.state)
        beginning = self.state.retention.position
        for number in range(40):
            own, wanted = (
                list(state.key_index.candidates("T", f"key{number}", 0, 2**62))
                for state in (self.state, self.broker.state)
            )
            assert [at for at in own if at >= beginning] == [at for at in wanted if at >= beginning]

    def sweep(self) -> None:
        """Forget units, as the broker does: what has to be looked for on the disk beside the loop."""
        queues = self.state.queues
        queues.sweep()
        while (looks := queues.looks()) is not None:
            for work in looks:
                work()
            queues.sweep()

    def parts(self) -> list[Path]:
        return sorted(self.folder.glob("snapshots/*.part"))


@pytest.fixture
def broker() -> LoneBroker:
    made = LoneBroker()
    send(made, 30)
    return made


def send(broker: LoneBroker, count: int) -> None:
    for _ in range(count):
        broker.send(KEYS=f"key{broker.state.put_count % 40}")


@pytest.fixture
def replica(tmp_path: Path, broker: LoneBroker) -> Replica:
    return Replica(tmp_path, broker)


def test_a_start_reads_no_part_and_every_answer_is_the_same(replica: Replica) -> None:
    replica.take()
    assert len(replica.parts()) == 7 + 3
    contents = {path: path.read_bytes() for path in replica.parts()}
    for path in contents:
        path.write_bytes(b"nobody reads this")
    replica.start()
    for path, content in contents.items():
        path.write_bytes(content)
    replica.check()
    assert not list(replica.folder.glob("derived/keyindex/*"))


def test_what_is_folded_after_a_start_stands_beside_the_parts(replica: Replica) -> None:
    for count in (1, 2, 9, 20):
        replica.take()
        replica.start()
        send(replica.broker, count)
        replica.check()


def test_a_queue_that_begins_within_a_part_is_served_when_no_snapshot_names_it(
    replica: Replica,
) -> None:
    replica.take()
    replica.start()
    assert forget(replica.broker, 15) is None  # the queue begins with offset 13, in the fourth part
    send(replica.broker, 2)
    replica.follow()
    replica.sweep()
    for _ in range(3):
        send(replica.broker, 1)
        replica.take()
    queue = replica.state.queues.by_key[b"T", QueueId(0)]
    assert queue.min_offset == 13
    replica.check()
    replica.start()
    replica.check()
    send(replica.broker, 9)
    replica.check()


def test_a_topic_that_is_deleted_gives_its_parts_back(replica: Replica) -> None:
    replica.take()
    of_queue = replica.parts()[:7]
    replica.start()
    replica.broker.staging.stage_control(DeleteTopic("T"), replica.broker.now_ms)
    replica.broker.commit()
    replica.check()
    send(replica.broker, 9)
    replica.check()
    for _ in range(2):
        assert set(of_queue) <= set(replica.parts())
        replica.take()
        send(replica.broker, 1)
    assert not set(of_queue) & set(replica.parts())
    replica.start()
    replica.check()


def test_what_is_not_verified_is_brought_beside_the_loop(replica: Replica) -> None:
    replica.take()
    replica.start()
    queue = replica.state.queues.by_key[b"T", QueueId(0)]
    wanted = bytes(replica.broker.state.queues.by_key[b"T", QueueId(0)].units(QueueOffset(3), 9))
    with pytest.raises(FilesNotLoadedError) as missing:
        queue.units(QueueOffset(3), 9, without_waiting=True)
    missing.value.warm()
    assert bytes(queue.units(QueueOffset(3), 9, without_waiting=True)) == wanted
    walks = Walks()
    with pytest.raises(FilesNotLoadedError) as missing:
        list(replica.state.key_index.candidates("T", "key2", 0, 2**62, walks=walks))
    missing.value.warm()
    found = list(replica.state.key_index.candidates("T", "key2", 0, 2**62, walks=walks))
    assert found == list(replica.broker.state.key_index.candidates("T", "key2", 0, 2**62))


def test_the_fold_reads_no_part_to_learn_where_a_queue_ends(replica: Replica) -> None:
    """It would wait for the disk, and stop the node where the part is damaged: here with a late commit, and a reset."""
    commit(replica.broker, 20)
    later(replica.broker)
    assert forget(replica.broker, 3) is None
    replica.take()
    commit(replica.broker, 5)
    replica.broker.command(ResetOffsets("g", "T", [(QueueId(0), QueueOffset(7))]))
    for path in replica.parts():
        for each in (path, path.with_suffix(".twin")):
            each.write_bytes(b"nobody reads this")
    replica.start()
    assert replica.state.offsets.ignored_count == 1
    assert replica.state.offsets.digest == replica.broker.state.offsets.digest


def commit(broker: LoneBroker, offset: int) -> None:
    broker.command(CommitOffsets([OffsetCommit("g", "T", QueueId(0), QueueOffset(offset))]))


def test_a_damaged_part_is_never_believed(replica: Replica) -> None:
    replica.take()
    replica.start()
    one, twin = replica.parts()[0], replica.parts()[0].with_suffix(".twin")
    whole = one.read_bytes()
    one.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    replica.check()
    twin.write_bytes(one.read_bytes())
    replica.start()
    queue = replica.state.queues.by_key[b"T", QueueId(0)]
    with pytest.raises(EntryDamagedError, match="twin"):
        queue.units(QueueOffset(0), 4)
    assert replica.store.in_use.set_lost_aside() is not None


def test_units_that_were_damaged_on_the_disk_become_no_part(replica: Replica) -> None:
    """The files of `derived/` are verified by nobody: what they give is compared with what they got."""
    replica.follow()
    path = replica.folder / "derived/consumequeue/T/0" / f"{100:020}"
    content = path.read_bytes()
    path.write_bytes(content[:50] + bytes([content[50] ^ 4]) + content[51:])
    with pytest.raises(SnapshotOvertakenError, match="not what was written"):
        replica.take()
    path.write_bytes(content)
    replica.take()
    replica.start()
    replica.check()

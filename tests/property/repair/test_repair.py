"""Damaged logs of a group heal from each other: nothing committed is lost, no wrong byte accepted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

import pytest

from dledger.codec.entry import chain_crc
from dledger.codec.index_unit import INDEX_UNIT_BYTES, has_seal_mark
from dledger.config import LogConfig, RaftConfig, parse_peers
from dledger.engine import Engine
from dledger.errors import CorruptionError
from dledger.raft.entry import Entry
from dledger.raft.hard_state import HardState
from dledger.raft.ids import EntryId, Index, NodeId, Term
from dledger.raft.messages import PeerMessage, RepairAnswer, RepairRequest
from dledger.repair.store_repair import FULL_PAUSE_MS, StoreRepair, is_repairable
from dledger.storage.hard_state import HardStateStore
from dledger.storage.segment import StorePaths
from dledger.storage.segmented_log import SegmentedLog
from dledger.storage.survey import survey
from dledger.testing.check_log_store import flush, new_entries
from dledger.testing.sim_disk import SimDisk
from dledger.testing.sim_network import through_wire

NAMES = tuple(NodeId(name) for name in ("n0", "n1", "n2"))
PEERS = parse_peers("n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3")
SEGMENT_BYTES = 2000


def config_of(name: NodeId) -> LogConfig:
    return LogConfig("g", PEERS, "", RaftConfig(name, NAMES), segment_size_bytes=SEGMENT_BYTES)


def entries_of(random: Random, count: int) -> list[Entry]:
    """A log's entries, of several terms and sizes."""
    log = SegmentedLog.open(SimDisk(Random(0)), segment_size_bytes=SEGMENT_BYTES)
    term = 1
    for _ in range(count):
        term += random.random() < 0.1
        log.append(new_entries(log, term, [random.choice((0, 10, 100, 700))]))
        flush(log)
    return log.entries(Index(1), Index(count + 1))


def store(disk: SimDisk, entries: Sequence[Entry], *, durably: bool = True) -> None:
    """Write a log as a member that was killed leaves it."""
    log = SegmentedLog.open(disk, segment_size_bytes=SEGMENT_BYTES)
    for entry in entries:
        log.append([entry])
        if durably:
            flush(log)
    HardStateStore.open(disk, last_id=EntryId(Term(0), Index(0)), may_forget=True).save(
        HardState(Term(99), None)
    )
    disk.restart()


class Member:
    """A member of the group: its engine, or its repair."""

    def __init__(self, name: NodeId, disk: SimDisk) -> None:
        self.name = name
        self.disk = disk
        self.engine: Engine | None = None
        self.repair: StoreRepair | None = None
        self.start()

    def start(self) -> None:
        try:
            self.engine = Engine(
                config_of(self.name), self.disk, draw=lambda low, high: low, now_ms=0
            )
            self.repair = None
        except (CorruptionError, OSError) as error:
            problem = is_repairable(config_of(self.name), error)
            assert problem is not None
            self.repair = StoreRepair(config_of(self.name), self.disk, problem)

    def step(self, message: PeerMessage | None, now_ms: int) -> list[tuple[NodeId, PeerMessage]]:
        out: list[tuple[NodeId, PeerMessage]] = []
        if self.repair is not None:
            if message is not None:
                assert isinstance(message, RepairRequest | RepairAnswer)
                self.repair.receive(message, now_ms)
            self.repair.tick(now_ms)
            out += self.repair.take_outbox()
            if self.repair.is_done:
                self.start()
        elif self.engine is not None and message is not None:
            assert isinstance(message, RepairRequest | RepairAnswer)
            self.engine.repair(message, now_ms)
            out += self.engine.take_outbox()
        return out

    def entries(self) -> list[Entry]:
        assert self.engine is not None, "still being repaired"
        log = self.engine.log
        return log.entries(Index(1), Index(log.last_id.index + 1))


def heal(members: list[Member], rounds: int = 400) -> None:
    """Carry messages until everybody is whole, or nothing moves any more."""
    now_ms = 0
    for _ in range(rounds):
        waiting = [each for member in members for each in member.step(None, now_ms)]
        while waiting:
            to, message = waiting.pop(0)
            for member in members:
                if member.name == to:
                    waiting += member.step(through_wire(message), now_ms)
        if all(member.repair is None for member in members):
            return
        now_ms += 300


def group(entries: Sequence[Entry], seed: int) -> list[SimDisk]:
    disks = [SimDisk(Random(f"{seed}/{name}")) for name in NAMES]
    for disk in disks:
        store(disk, entries)
    return disks


def assert_healed(disks: list[SimDisk], entries: Sequence[Entry], *, voters: bool = True) -> None:
    members = [Member(name, disk) for name, disk in zip(NAMES, disks, strict=True)]
    heal(members)
    for member in members:
        where = member.repair.describe() if member.repair else ""
        assert member.repair is None, f"{member.name}: {where}"
        assert member.entries() == list(entries)
        assert member.engine is not None
        assert member.engine.node.is_voter or not voters


def log_files(disk: SimDisk) -> list[str]:
    return [f"data/{name}" for name in disk.list("data")]


@pytest.mark.parametrize("seed", range(8))
def test_bit_flips_on_a_minority_are_repaired(seed: int) -> None:
    random = Random(seed)
    entries = entries_of(random, 40)
    disks = group(entries, seed)
    for _ in range(random.randint(1, 6)):
        entry = random.choice(entries)
        flip(disks[0], entry, random)
    assert_healed(disks, entries)


def flip(disk: SimDisk, entry: Entry, random: Random) -> None:
    """Turn a bit of an entry over; its segment's seal is taken off, so that a start reads it."""
    names = [int(name) for name in disk.list("data") if int(name) <= entry.position]
    name = max(names)
    byte = entry.position - name + random.randrange(entry.size_bytes)
    disk.flip_bit(f"data/{name:020}", byte, random.randrange(8))
    unseal(disk, name)


def unseal(disk: SimDisk, name: int) -> None:
    content = disk.content(f"index/{name:020}")
    if has_seal_mark(content, len(content) - INDEX_UNIT_BYTES):
        disk.overwrite(f"index/{name:020}", content[:-INDEX_UNIT_BYTES])


@pytest.mark.parametrize("seed", range(12))
def test_damage_on_all_over_all_members_heals(seed: int) -> None:
    """Every third part of the log is damaged on another member."""
    random = Random(f"damage-all/{seed}")
    entries = entries_of(random, 60)
    disks = group(entries, seed)
    slices = random.choice((1, 2, 5))
    for place, entry in enumerate(entries):
        if random.random() < 0.7:
            flip(disks[place // slices % 3], entry, random)
    assert_healed(disks, entries)


@pytest.mark.parametrize("seed", range(6))
def test_lost_segments_come_back(seed: int) -> None:
    random = Random(f"segments/{seed}")
    entries = entries_of(random, 40)
    disks = group(entries, seed)
    files = log_files(disks[1])
    lost = random.choice(files)
    disks[1].lose(lost)
    keeps_index = random.random() < 0.5
    if not keeps_index and lost.replace("data", "index") in [
        f"index/{n}" for n in disks[1].list("index")
    ]:
        disks[1].lose(lost.replace("data", "index"))
    members = [Member(name, disk) for name, disk in zip(NAMES, disks, strict=True)]
    heal(members)
    healed = members[1]
    assert healed.repair is None
    if lost == files[-1] and not keeps_index:
        # Nobody here knows what stood there: the leader will tell, and until then it may not vote.
        assert healed.engine is not None
        assert not healed.engine.node.is_voter
        assert healed.entries() == list(entries[: len(healed.entries())])
    else:
        assert healed.entries() == list(entries)


@pytest.mark.parametrize("seed", range(6))
def test_an_older_copy_of_a_segment_is_found_and_replaced(seed: int) -> None:
    random = Random(f"older/{seed}")
    entries = entries_of(random, 40)
    disks = group(entries[:-5], seed)
    older = {path: disks[2].content(path) for path in log_files(disks[2])}
    for disk in disks:
        log = SegmentedLog.open(disk, segment_size_bytes=SEGMENT_BYTES)
        for entry in entries[-5:]:
            log.append([entry])
            flush(log)
        disk.restart()
    path = sorted(older)[-1]
    disks[2].overwrite(path, older[path])
    assert_healed(disks, entries)


@pytest.mark.parametrize("seed", range(8))
def test_a_misdirected_write_is_found_and_mended(seed: int) -> None:
    random = Random(f"misdirected/{seed}")
    entries = entries_of(random, 40)
    disks = group(entries, seed)
    source, target = random.sample(entries, 2)
    names = [int(path[5:]) for path in log_files(disks[0])]
    name = max(each for each in names if each <= target.position)
    content = bytearray(disks[0].content(f"data/{name:020}"))
    data = (source.header + source.body)[: len(content) - (target.position - name)]
    content[target.position - name : target.position - name + len(data)] = data
    disks[0].overwrite(f"data/{name:020}", bytes(content))
    unseal(disks[0], name)
    assert_healed(disks, entries)


def test_a_log_whose_only_segment_is_gone_does_not_pass_for_a_new_one() -> None:
    """Its member has confirmed entries: it may not vote until a leader has admitted it."""
    entries = entries_of(Random(1), 4)
    disks = group(entries, 1)
    for path in [*log_files(disks[0]), "index/00000000000000000000"]:
        disks[0].lose(path)
    members = [Member(name, disk) for name, disk in zip(NAMES, disks, strict=True)]
    heal(members)
    bare = members[0].engine
    assert bare is not None
    assert not bare.node.is_voter
    assert bare.log.last_id.index == 0


def test_a_vote_is_given_up_once_there_is_room() -> None:
    """The disk is full when the repair has nothing else to do: it waits, and its member stays up."""
    disk = SimDisk(Random(1))
    store(disk, entries_of(Random(1), 4))
    for path in [*log_files(disk), "index/00000000000000000000"]:
        disk.lose(path)
    disk.capacity_bytes = 0
    repair = Member(NAMES[0], disk).repair
    assert repair is not None
    repair.tick(0)
    assert not repair.is_done
    assert repair.next_deadline_ms() == FULL_PAUSE_MS
    assert "no room" in repair.notes[-1]
    disk.capacity_bytes = None
    repair.tick(FULL_PAUSE_MS)
    assert repair.is_done
    assert repair.has_cut


def test_a_repair_answers_the_newest_request_of_a_read_and_no_other() -> None:
    entries = entries_of(Random(1), 20)
    disk = group(entries, 1)[0]
    flip(disk, entries[-1], Random(1))
    repair = Member(NAMES[0], disk).repair
    assert repair is not None
    wanted = entries[5]
    for number in (1, 2, 3):
        asked = RepairRequest(NAMES[1], number, wanted.index, wanted.index, chain_crc(wanted))
        repair.receive(asked, 0)
    [(to, answer)] = repair.take_outbox()
    assert to == NAMES[1]
    assert isinstance(answer, RepairAnswer)
    assert (answer.number, answer.entries) == (3, (wanted,))
    assert repair.take_outbox() == []


def test_a_damaged_first_entry_under_a_good_seal_comes_back() -> None:
    """Magic and term of the very first header are in no unit and in no other header."""
    entries = entries_of(Random(2), 40)
    for byte in (3, 23):
        disks = group(entries, byte)
        disks[0].flip_bit("data/00000000000000000000", byte, 1)
        assert_healed(disks, entries)


@pytest.mark.parametrize("byte", [3, 40, 43, 48], ids=["kind", "crc", "crc-end", "body"])
def test_a_damaged_first_entry_of_a_sealed_segment_costs_nothing_before_it(byte: int) -> None:
    """What its header says of the entry before it is wrong, and the index has neither kind nor checksum."""
    entries = entries_of(Random(3), 40)
    disk = group(entries, 3)[0]
    second = sorted(int(name) for name in disk.list("data"))[1]
    first = next(entry for entry in entries if entry.position == second)
    bit = 1 if first.kind == 1 else 0  # another kind that there is
    disk.flip_bit(f"data/{second:020}", byte, bit)
    found = survey(disk, StorePaths(""))
    assert [(gap.first_index, gap.last_index) for gap in found.missing()] == [
        (first.index, first.index)
    ]
    assert found.missing()[0].last_chain_crc == chain_crc(first)
    assert found.run_of(first.index - 1) is not None


def test_a_lone_whole_entry_is_believed_when_its_index_names_another_place_or_size() -> None:
    """An index unit has no checksum; where the entry stands and how long it is the entry itself proves."""
    disk = SimDisk(Random(0))
    store(disk, entries_of(Random(1), 1))
    for byte_offset, bit in product(range(16, 28), range(8)):
        disk.flip_bit("index/00000000000000000000", byte_offset, bit)
        assert survey(disk, StorePaths("")).missing() == [], (byte_offset, bit)
        disk.flip_bit("index/00000000000000000000", byte_offset, bit)


def test_whole_copies_round_the_members_heal_all_of_them() -> None:
    """Of each entry one member alone has a whole copy, and segments stay sealed."""
    for seed in range(20):
        random = Random(f"keepers/{seed}")
        entries = entries_of(random, 60)
        disks = group(entries, seed)
        for number, entry in enumerate(entries):
            for place, disk in enumerate(disks):
                if place != number % 3:
                    name = max(int(n) for n in disk.list("data") if int(n) <= entry.position)
                    byte = entry.position - name + random.randrange(entry.size_bytes)
                    disk.flip_bit(f"data/{name:020}", byte, random.randrange(8))
        members = [Member(name, disk) for name, disk in zip(NAMES, disks, strict=True)]
        heal(members)
        stuck = [member.repair.describe() for member in members if member.repair is not None]
        assert not stuck, f"{seed}: {stuck}"


@pytest.mark.parametrize("at", [0, 40, -1], ids=["magic", "crc", "end"])
def test_the_last_entry_of_a_sealed_segment_is_remembered_when_the_next_one_is_empty(
    at: int,
) -> None:
    """A segment was begun and nothing stands in it: the name of what is lost is in the index before."""
    entries = entries_of(Random(4), 40)
    disks = group(entries, 4)
    begun = max(int(name) for name in disks[0].list("data"))
    kept = [entry for entry in entries if entry.position < begun]
    for disk in disks:
        for path in (f"data/{begun:020}", f"index/{begun:020}"):
            disk.overwrite(path, bytes(len(disk.content(path))))
    lost = kept[-1]
    name = max(int(each) for each in disks[0].list("data") if int(each) <= lost.position)
    byte = lost.position - name + (at if at >= 0 else lost.size_bytes - 1)
    disks[0].flip_bit(f"data/{name:020}", byte, 2)
    unseal(disks[0], name)
    (gap,) = survey(disks[0], StorePaths("")).missing()
    assert (gap.first_index, gap.last_index, gap.is_tail) == (lost.index, lost.index, True)
    assert_healed(disks, kept)


def forget(disk: SimDisk, index: int) -> int:
    """Drop the segments before an entry, as a member does; return the first entry that is left."""
    log = SegmentedLog.open(disk, segment_size_bytes=SEGMENT_BYTES)
    drop = log.drop_before(Index(index))
    assert drop is not None
    drop.run()
    disk.restart()
    return log.layout.first_index


@pytest.mark.parametrize("seed", range(8))
def test_logs_without_their_beginning_are_repaired_all_the_same(seed: int) -> None:
    """Flips, lost segments, a lost tail; members that have forgotten different parts."""
    random = Random(f"forgotten/{seed}")
    entries = entries_of(random, 60)
    disks = group(entries, seed)
    firsts = [forget(disk, random.choice((20, 25, 30))) for disk in disks]
    kept = entries[max(firsts) - 1 :]
    for place, entry in enumerate(kept):
        if random.random() < 0.5:
            flip(disks[place % 3], entry, random)
    if random.random() < 0.5:
        disks[0].lose(random.choice(log_files(disks[0])[-2:]))
    members = [Member(name, disk) for name, disk in zip(NAMES, disks, strict=True)]
    heal(members)
    for member, first in zip(members, firsts, strict=True):
        assert member.repair is None
        assert member.engine is not None
        log = member.engine.log
        assert log.layout.first_index == first
        assert log.entries(Index(first), Index(61)) == entries[first - 1 :]


def test_what_all_others_have_forgotten_ends_the_repair_with_what_to_do() -> None:
    random = Random("gone")
    entries = entries_of(random, 60)
    disks = group(entries, 1)
    flip(disks[0], entries[4], random)
    for disk in disks[1:]:
        forget(disk, 30)
    members = [Member(name, disk) for name, disk in zip(NAMES, disks, strict=True)]
    heal(members, rounds=20)
    repair = members[0].repair
    assert repair is not None
    assert repair.hopeless is not None
    assert "the other members have forgotten entry 5" in str(repair.hopeless)
    assert "start it with an empty folder" in str(repair.hopeless)


def test_a_damaged_start_comes_back_as_a_whole_log_if_anybody_has_one() -> None:
    random = Random("start")
    entries = entries_of(random, 60)
    disks = group(entries, 1)
    forget(disks[0], 30)
    disks[0].flip_bit("log_start", 30, 3)
    assert_healed(disks, entries)
    assert not disks[0].exists("log_start")

"""Stores whose log has lost its beginning, read and archived from there on: nothing twice, nothing missing."""

from __future__ import annotations

import shutil
from argparse import Namespace
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

from broker.admin.pins import PinBounds, PinRefusedError
from broker.store.control import ForgetBefore, PutPin
from broker.store.recent_sends import AGE_MAX_MS
from broker.store.state import BrokerState, StateLimits
from broker.store.unit_files import DERIVED, UnitFiles
from dledger.codec.entry import chain_crc
from dledger.codec.log_start import LogStart, encode_log_start
from dledger.raft.entry import Entry
from dledger.raft.ids import Index, Position
from dledger_mq.message.numbers import PhysicalOffset, QueueId
from pipeline.archive.manifests import (
    ArchiveError,
    Manifest,
    load_manifests,
    may_delete,
    note_beginning,
    write_manifest,
)
from pipeline.archive.pinning import ArchivePin, pin_at_group
from pipeline.archive.writing import Archive, expired_index
from pipeline.audit import chain_difference, last_lost_index
from pipeline.cli import main
from pipeline.derived.fold import fold
from pipeline.derived.kept import queue_file_differences
from pipeline.errors import InconclusiveError, PipelineUsageError
from pipeline.jobs import archive as archive_job
from pipeline.scan.errors import DamagedLogError
from pipeline.scan.plan import CommittedBound, plan_scan
from pipeline.scan.ranges import RangeScan
from pipeline.scan.stores import Store
from tests.unit.pipeline.stores import orders, write_store
from tests.unit.store.lone_broker import LoneBroker

ALL = CommittedBound(None, "as asked")


def whole(folder: Path) -> list[Entry]:
    return write_store(folder, orders(60).log.entries, segment_bytes=2048)


def drop_before(
    folder: Path, sealed: list[Entry], segment: int, *, leaves_files: bool = False
) -> Entry:
    """Let a store lose the segments before one of its segments; return the entry with which it begins."""
    files = Store(folder).segments
    first = next(each for each in sealed if each.position == files[segment].first_position)
    before = sealed[first.index - 2]
    start = LogStart(before.index, before.term, before.end_position, chain_crc(before))
    (folder / "log_start").write_bytes(encode_log_start(start))
    if not leaves_files:
        for each in files[:segment]:
            Path(each.path).unlink()
            Path(each.index_path).unlink(missing_ok=True)
    return first


@pytest.mark.parametrize("leaves_files", [False, True])
def test_a_late_log_is_read_from_its_first_entry_on(tmp_path: Path, *, leaves_files: bool) -> None:
    sealed = whole(tmp_path)
    first = drop_before(tmp_path, sealed, 2, leaves_files=leaves_files)
    store = Store(tmp_path)
    assert (store.start.index, store.start.position) == (first.index - 1, first.position)
    plan = plan_scan(store, ALL)
    assert (plan.start.index, plan.end.index) == (first.index - 1, sealed[-1].index)
    read = [entry.index for each in plan.ranges for entry in RangeScan(each).entries()]
    assert read == list(range(first.index, sealed[-1].index + 1))
    later = plan_scan(store, ALL, first_index=Index(first.index + 3))
    assert later.start.index == first.index + 2


def test_what_is_deleted_cannot_be_asked_for(tmp_path: Path) -> None:
    first = drop_before(tmp_path, whole(tmp_path), 2)
    with pytest.raises(PipelineUsageError, match=f"begins with entry {first.index}, what stood"):
        plan_scan(Store(tmp_path), ALL, first_index=Index(first.index - 1))
    with pytest.raises(InconclusiveError, match=f"begins with entry {first.index}"):
        list(fold(plan_scan(Store(tmp_path), ALL), BrokerState()))


def test_a_segment_that_is_missing_at_the_start_is_damage(tmp_path: Path) -> None:
    first = drop_before(tmp_path, whole(tmp_path), 2)
    Path(Store(tmp_path).segments[0].path).unlink()
    with pytest.raises(DamagedLogError, match="missing; the first segment is"):
        Store(tmp_path)
    (tmp_path / "log_start").write_bytes(b"DLLS" + bytes(36))
    with pytest.raises(DamagedLogError):
        Store(tmp_path)
    assert first.index > 1


def test_expired_segments_are_counted_from_the_start(tmp_path: Path) -> None:
    first = drop_before(tmp_path, whole(tmp_path), 2)
    assert expired_index(Store(tmp_path), 2**60) > first.index


def test_replicas_that_begin_at_different_entries_are_compared_where_both_have_them(
    tmp_path: Path,
) -> None:
    sealed = whole(tmp_path / "n0")
    whole(tmp_path / "n1")
    first = drop_before(tmp_path / "n1", sealed, 2)
    stores = {each: Store(tmp_path / each) for each in ("n0", "n1")}
    assert last_lost_index(stores) == first.index - 1
    assert chain_difference(stores, sealed[-1].index) is None


def manifest(begin: Entry, end: Entry) -> Manifest:
    return Manifest(
        "b",
        begin.index,
        end.index,
        begin.position,
        end.end_position,
        0,
        chain_crc(end),
        "test",
        0,
        (),
        (),
    )


def test_an_archive_takes_over_where_the_log_begins_and_not_behind(tmp_path: Path) -> None:
    store_folder, archive_folder = tmp_path / "store", tmp_path / "archive"
    sealed = whole(store_folder)
    first = drop_before(store_folder, sealed, 2)
    last = sealed[first.index + 4]
    with Archive(archive_folder) as archive:
        (stretch,) = archive.stretches(Store(store_folder), ALL)
        assert stretch.before.index == first.index - 1
    write_manifest(archive_folder, manifest(first, last))
    with pytest.raises(ArchiveError, match="where entry 1 should come next"):
        load_manifests(archive_folder)
    note_beginning(archive_folder, Index(3))
    note_beginning(archive_folder, first.index)
    assert [each.first_index for each in load_manifests(archive_folder)] == [first.index]
    assert may_delete(archive_folder, store_folder, last.end_position)
    assert not may_delete(archive_folder, store_folder, Position(last.end_position + 1))
    with Archive(archive_folder) as archive:
        (stretch,) = archive.stretches(Store(store_folder), ALL)
        assert stretch.before.index == last.index


def test_an_archive_that_came_too_late_says_what_is_in_neither(tmp_path: Path) -> None:
    store_folder, archive_folder = tmp_path / "store", tmp_path / "archive"
    sealed = whole(store_folder)
    write_manifest(archive_folder, manifest(sealed[0], sealed[1]))
    first = drop_before(store_folder, sealed, 2)
    with (
        Archive(archive_folder) as archive,
        pytest.raises(
            ArchiveError,
            match=f"begins with entry {first.index}, and the archive ends with entry 2:",
        ),
    ):
        archive.stretches(Store(store_folder), ALL)


def test_a_late_log_of_which_nothing_is_expired_is_archived_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Retention has deleted what was archived, and what is left is young: the next run has nothing to do."""
    store_folder, archive_folder = tmp_path / "store", tmp_path / "archive"
    sealed = whole(store_folder)
    first = drop_before(store_folder, sealed, 2)
    write_manifest(archive_folder, manifest(sealed[0], sealed[first.index - 2]))
    # The records were stored in the time of the test's broker, long ago: nothing of a thousand years' age.
    arguments = ["--up-to", "end", "--older-than", "365000d", "--json"]
    assert main(["archive", str(store_folder), str(archive_folder), *arguments]) == 0
    assert f'"lastIndex": {first.index - 1}' in capsys.readouterr().out


def test_files_that_still_have_what_the_queue_has_forgotten_are_equal(tmp_path: Path) -> None:
    """A node gives the bytes of its log back later, and a unit file goes when all of it is forgotten."""
    limits = StateLimits(resident_units_max=8, keep_units_max=1, spill_interval=1)
    units = UnitFiles(tmp_path / DERIVED, file_bytes=200)
    broker = LoneBroker(BrokerState(units, limits=limits))
    for _ in range(40):
        broker.send()
    broker.now_ms += AGE_MAX_MS + 1
    entry = broker.log.entries[16]  # offset 15 of a queue whose files have 10 units each
    broker.command(ForgetBefore(entry.index, entry.position, "time"))
    write_store(tmp_path, broker.log.entries, segment_bytes=2048)
    folder = tmp_path / DERIVED / "consumequeue" / "T" / "0"
    assert sorted(int(each.name) for each in folder.iterdir())[0] == 10 * 20
    folded = BrokerState()
    folded.apply(broker.log.entries)
    folded.queues.sweep()
    assert folded.queues.min_max("T", QueueId(0)) == (15, 40)
    found, equal_bytes = queue_file_differences(tmp_path, folded, broker.log.end_position)
    assert (found, equal_bytes >= 15 * 20) == ([], True)
    with_hole = folder / f"{400:020}"  # units 3 to 5 of it stand in a part of a snapshot
    content = with_hole.read_bytes()
    with_hole.write_bytes(content[:60] + bytes(60) + content[120:])
    assert queue_file_differences(tmp_path, folded, broker.log.end_position) == (
        [],
        equal_bytes - 60,
    )
    victim = folder / f"{200:020}"
    data = bytearray(victim.read_bytes())
    data[7 * 20 + 3] ^= 1  # offset 17
    victim.write_bytes(data)
    (difference,), _ = queue_file_differences(tmp_path, folded, broker.log.end_position)
    assert difference.where == f"{victim}, byte 143 (queue offset 17)"
    units.close()


# Pins.

KEEP_MS = 7 * 86_400_000
BOUNDS = PinBounds(KEEP_MS, 1 << 30)


class PinnedGroup:
    """A broker whose log is pinned and forgotten, and a store that loses what is forgotten at once."""

    def __init__(self, folder: Path) -> None:
        self.broker = orders(60)
        self.folder = folder
        self.pin = ArchivePin(self.put)
        self.sealed: list[Entry] = []

    def put(self, position: Position | None) -> int:
        state = self.broker.state
        where = state.retention.position if position is None else position
        command = PutPin("a", where, KEEP_MS, 1 << 30, "test")
        refusal = state.refusals.at(PhysicalOffset(self.broker.command(command)))
        if refusal is not None:
            raise PinRefusedError(refusal.kind.name)
        return where

    def forget_all(self) -> Index:
        """Forget entry after entry as far as the group lets it; return the first one that is kept."""
        self.broker.now_ms += AGE_MAX_MS + 1
        for entry in self.broker.log.entries[self.broker.state.keep_from - 1 :]:
            self.broker.command(ForgetBefore(entry.index, entry.position, "time"))
        return self.broker.state.keep_from

    def store(self) -> Store:
        """The store of a member, with segments that begin where the log begins."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.sealed = sealed = write_store(self.folder, self.broker.log.entries, segment_bytes=600)
        kept = next(each for each in sealed if each.index >= self.broker.state.keep_from)
        files = Store(self.folder).segments
        segment = max(
            number for number, each in enumerate(files) if each.first_position <= kept.position
        )
        if segment:
            drop_before(self.folder, sealed, segment)
        return Store(self.folder)


def archive_some(group: PinnedGroup, folder: Path, up_to: int) -> list[Manifest]:
    """A run of the archive, without Spark: what its manifests would list."""
    with Archive(folder) as archive:
        group.pin.begin(archive.manifests[-1].end_position if archive.manifests else None)
        store = group.store()
        for stretch in archive.stretches(store, CommittedBound(Index(up_to), "test"), 2000):
            first, last = group.sealed[stretch.before.index], group.sealed[stretch.end.index - 1]
            crc = stretch.before.crc or 0
            write_manifest(folder, replace(manifest(first, last), first_chain_crc=crc))
            group.pin.move(stretch.end.position)
    return load_manifests(folder)


def test_a_pinned_log_loses_what_is_archived_and_nothing_else(tmp_path: Path) -> None:
    group = PinnedGroup(tmp_path / "store")
    found: list[Manifest] = []
    for _ in range(4):
        end = len(group.broker.log.entries)
        found = archive_some(group, tmp_path / "archive", end)
        for _ in range(20):
            group.broker.send()
        kept = group.forget_all()
        assert kept == found[-1].last_index + 1, "the log begins exactly where the archive ends"
    assert found[0].first_index == 1
    assert all(b.first_index == a.last_index + 1 for a, b in pairwise(found))
    assert len(found) > 4


def test_a_pin_that_was_overrun_is_put_where_the_log_begins_now(tmp_path: Path) -> None:
    group = PinnedGroup(tmp_path / "store")
    archive_some(group, tmp_path / "archive", 20)
    group.broker.now_ms += KEEP_MS + 1
    assert group.forget_all() > 21
    ((_, pin),) = group.broker.state.retention.pins.items()
    assert pin.is_overrun
    with pytest.raises(ArchiveError, match="what stood between is deleted, and in neither"):
        archive_some(group, tmp_path / "archive", 60)
    assert group.pin.position == group.broker.state.retention.position


def test_a_pin_that_is_not_taken_is_told() -> None:
    def refuse(position: Position | None) -> int:
        raise PinRefusedError("there are 16 pins already")

    with pytest.raises(InconclusiveError, match="does not take the pin: there are 16"):
        ArchivePin(refuse).begin(None)
    with pytest.raises(PipelineUsageError):
        pin_at_group("no address", None, "a", BOUNDS)
    with pytest.raises(InconclusiveError, match="the pin 'a' could not be put: no name server"):
        pin_at_group("127.0.0.1:1", None, "a", BOUNDS)(None)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "--pin needs --namesrv"),
        ({"namesrv": "127.0.0.1:1", "pin_gib": 0}, "--pin-gib 0 must be above 0"),
        ({"namesrv": "127.0.0.1:1", "pin_for": "a week"}, "not a duration"),
    ],
)
def test_a_pin_that_cannot_be_is_a_wrong_usage(given: dict[str, Any], text: str) -> None:
    plain = {"pin": "a", "namesrv": None, "group": None, "pin_gib": 1, "pin_for": None}
    with pytest.raises(PipelineUsageError, match=text):
        archive_job._pin(Namespace(**plain | {"check": False} | given))


def test_a_run_that_asks_for_no_pin_or_archives_nothing_puts_none() -> None:
    none = Namespace(pin=None, check=False)
    only_looks = Namespace(pin="a", check=True)
    assert archive_job._pin(none) is archive_job._pin(only_looks) is None


def test_no_archive_is_made_for_a_store_that_is_none(tmp_path: Path) -> None:
    assert main(["archive", str(tmp_path / "none"), str(tmp_path / "archive")]) != 0
    assert not (tmp_path / "archive").exists()

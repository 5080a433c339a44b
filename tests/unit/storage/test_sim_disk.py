"""The simulated disk keeps what was synced, and may lose, tear or reorder everything else."""

from __future__ import annotations

from random import Random

import pytest

from dledger.testing.sim_disk import SECTOR_BYTES, SimDisk


def after_crash(seed: int, keep: float | None) -> bytes:
    """Four sectors of a, synced; then the middle of them overwritten with b, not synced."""
    disk = SimDisk(Random(seed))
    file = disk.open("x", create=True)
    file.write_at(0, (b"a" * 4 * SECTOR_BYTES,))
    file.sync()
    disk.sync_folder("")
    file.write_at(SECTOR_BYTES // 2, (b"b" * 3 * SECTOR_BYTES,))
    disk.crash(keep=keep)
    return disk.content("x")


def test_unsynced_writes_are_lost_kept_or_torn_at_sectors() -> None:
    untouched, half = b"a" * 4 * SECTOR_BYTES, SECTOR_BYTES // 2
    assert after_crash(0, 0.0) == untouched
    assert after_crash(0, 1.0) == b"a" * half + b"b" * 3 * SECTOR_BYTES + b"a" * half
    seen = set()
    for seed in range(200):
        content = after_crash(seed, 0.5)
        seen.add(content)
        pieces = [content[half:SECTOR_BYTES]]
        pieces += [content[at * SECTOR_BYTES :][:SECTOR_BYTES] for at in (1, 2)]
        pieces.append(content[3 * SECTOR_BYTES : 3 * SECTOR_BYTES + half])
        assert all(len(set(piece)) == 1 for piece in pieces), "torn within a sector"
    assert len(seen) == 16, "every combination of four sectors"


def test_the_same_seed_makes_the_same_crash() -> None:
    assert [after_crash(seed, None) for seed in range(30)] == [
        after_crash(seed, None) for seed in range(30)
    ]


def test_a_new_file_is_durable_only_with_its_folder() -> None:
    disk = SimDisk(Random(0))
    disk.make_folder("a")
    for name, sync in (("a/kept", True), ("a/lost", False)):
        file = disk.open(name, create=True)
        file.write_at(0, (b"data",))
        file.sync()
        if sync:
            disk.sync_folder("a")
    disk.crash(keep=0.0)
    assert disk.paths() == ["a/kept"]
    assert disk.content("a/kept") == b"data"


def test_renames_and_removals_are_durable_only_with_their_folder() -> None:
    disk = SimDisk(Random(0))
    for name in ("old", "aside", "gone"):
        disk.open(name, create=True).write_at(0, (name.encode(),))
        disk.open(name).sync()
    disk.sync_folder("")
    disk.rename("aside", "old")
    disk.remove("gone")
    assert disk.list("") == ["old"]
    disk.crash(keep=0.0)
    assert disk.list("") == ["aside", "gone", "old"]
    disk.rename("aside", "old")
    disk.remove("gone")
    disk.sync_folder("")
    disk.crash(keep=0.0)
    assert disk.list("") == ["old"]
    assert disk.content("old") == b"aside"


def test_a_failed_sync_forgets_what_it_should_have_written() -> None:
    disk = SimDisk(Random(0))
    file = disk.open("x", create=True)
    disk.sync_folder("")
    file.write_at(0, (b"first",))
    disk.fail_sync()
    with pytest.raises(OSError, match="simulated sync failure"):
        file.sync()
    assert file.read_at(0, 5) == b"first", "every reader sees it"
    file.sync()
    disk.crash(keep=1.0)
    assert disk.content("x") == b"", "and it was never written"


def test_a_restart_keeps_everything_but_open_files() -> None:
    disk = SimDisk(Random(0))
    file = disk.open("x", create=True)
    file.write_at(0, (b"data",))
    disk.restart()
    with pytest.raises(OSError, match="crashed"):
        file.size()
    assert disk.open("x").read_at(0, 9) == b"data"


def test_faults_come_at_the_counted_call() -> None:
    disk = SimDisk(Random(0))
    file = disk.open("x", create=True)
    disk.fail_write(2)
    file.write_at(0, (b"one",))
    with pytest.raises(OSError, match="write failure"):
        file.write_at(0, (b"two",))
    file.write_at(0, (b"six",))
    disk.fail_read()
    with pytest.raises(OSError, match="read failure"):
        file.read_at(0, 1)
    assert file.read_at(0, 3) == b"six"
    disk.fail_sync(5)
    disk.forget_faults()
    for _ in range(5):
        file.sync()


def test_a_device_has_an_end() -> None:
    disk = SimDisk(Random(0), capacity_bytes=10)
    file = disk.open("x", create=True)
    file.preallocate(8)
    assert disk.free_bytes() == 2
    with pytest.raises(OSError, match="No space left"):
        file.write_at(7, (b"1234",))
    assert file.read_at(0, 20) == bytes(8), "nothing of it was written"
    file.write_at(0, (b"12345678",))
    file.truncate(0)
    assert disk.free_bytes() == 10


def test_a_flipped_bit_is_seen_before_and_after_a_crash() -> None:
    disk = SimDisk(Random(0))
    file = disk.open("x", create=True)
    file.write_at(0, (b"\0\0",))
    file.sync()
    disk.sync_folder("")
    disk.flip_bit("x", 1, 7)
    assert file.read_at(0, 2) == b"\0\x80"
    disk.crash()
    assert disk.content("x") == b"\0\x80"


def test_a_misdirected_write_lands_elsewhere_in_its_file_and_nobody_is_told() -> None:
    disk = SimDisk(Random(3))
    file = disk.open("a", create=True)
    file.preallocate(8 * 512)
    disk.misdirect_write(2)
    file.write_at(512, [b"here"])
    file.write_at(1024, [b"astray"])
    file.write_at(2048, [b"there"])
    file.sync()
    content = disk.content("a")
    assert (content[512:516], content[2048:2053]) == (b"here", b"there")
    assert content.index(b"astray") % 512 == 0
    assert content[1024:1030] == bytes(6)
    assert disk.fired["misdirect-write"] == 1


def test_a_machine_that_stands_still_does_nothing_more_and_a_crash_decides_what_is_there() -> None:
    disk = SimDisk(Random(0))
    file = disk.open("x", create=True)
    disk.stop_at(2)
    file.write_at(0, (b"12",))
    for step in (file.sync, lambda: file.write_at(2, (b"34",)), lambda: disk.sync_folder("")):
        with pytest.raises(OSError, match="stands still"):
            step()
    assert disk.content("x") == b"12"
    disk.crash(keep=1.0)
    assert disk.content("x") == b"12", "a sync that did not begin forgets nothing"
    disk.open("x").write_at(2, (b"34",))


def test_a_checker_s_reads_do_not_fail() -> None:
    disk = SimDisk(Random(0))
    file = disk.open("x", create=True)
    file.write_at(0, (b"12",))
    disk.fail_read(1)
    with disk.only_looked_at():
        assert file.read_at(0, 2) == b"12"
    with pytest.raises(OSError, match="simulated read failure"):
        file.read_at(0, 2)


def test_a_crash_tells_what_it_lost_and_tore() -> None:
    disk = SimDisk(Random(1))
    file = disk.open("x", create=True)
    disk.sync_folder("")
    file.write_at(0, (bytes(64 * 512),))
    disk.crash(keep=0.5)
    assert (disk.fired["lost-unsynced"], disk.fired["torn"]) == (1, 1)
    disk.crash()
    assert disk.fired["lost-unsynced"] == 1, "everything was durable"

"""A power cut, from the journal of what was not synced."""

from __future__ import annotations

import io
import random
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen.nemeses.journal import (
    SECTOR_BYTES,
    NameChange,
    Undo,
    lose_unsynced,
    read_names,
    read_undos,
    take_back,
    unsynced,
)

STORE = Path("/store")


def write(content: bytearray, offset: int, data: bytes) -> Undo:
    """Write as the process did, and tell what the library notes of it."""
    undo = Undo(offset, bytes(content[offset : offset + len(data)]), len(content), len(data))
    content.extend(bytes(max(0, offset + len(data) - len(content))))
    content[offset : offset + len(data)] = data
    return undo


def cut(content: bytearray, size: int) -> Undo:
    undo = Undo(size, bytes(content[size:]), len(content), 0)
    del content[size:]
    content.extend(bytes(size - len(content)))
    return undo


def after_power_cut(content: bytes, undos: list[Undo], chance: random.Random | None) -> bytes:
    file = io.BytesIO(content)
    take_back(file, undos, chance)
    return file.getvalue()


Change = tuple[int, int, bool]


def changed(synced: bytes, changes: list[Change]) -> tuple[bytes, list[Undo]]:
    content = bytearray(synced)
    undos = [
        cut(content, offset) if is_cut else write(content, offset, b"N" * size)
        for offset, size, is_cut in changes
    ]
    return bytes(content), undos


CHANGES = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 1500), st.booleans()), max_size=8)


@given(st.integers(0, 2500), CHANGES)
def test_without_luck_exactly_what_was_synced_is_left(size: int, changes: list[Change]) -> None:
    synced = b"s" * size
    content, undos = changed(synced, changes)
    assert after_power_cut(content, undos, None) == synced


@given(st.integers(0, 2500), CHANGES, st.integers(0, 1000))
def test_with_luck_every_byte_is_an_old_or_a_new_one(
    size: int, changes: list[Change], seed: int
) -> None:
    content, undos = changed(b"s" * size, changes)
    left = after_power_cut(content, undos, random.Random(seed))
    assert len(left) in {size, len(content)}
    assert set(left) <= set(b"sN\0")


def test_a_large_write_is_torn_at_sectors() -> None:
    content, undos = changed(b"s" * 8192, [(0, 8192, False)])
    left = [after_power_cut(content, undos, random.Random(seed)) for seed in range(20)]
    torn = [each for each in left if set(each) == set(b"sN")]
    assert torn
    for each in torn:
        sectors = [each[at : at + SECTOR_BYTES] for at in range(0, len(each), SECTOR_BYTES)]
        assert all(len(set(sector)) == 1 for sector in sectors)


def test_a_record_that_a_kill_cut_short_does_not_count() -> None:
    whole = pack("=IIqqq", 1, 3, 10, 20, 5) + b"old"
    assert read_undos(whole + whole[:-1]) == [Undo(10, b"old", 20, 5)]
    assert read_undos(whole[:5]) == []


def test_a_sync_of_a_folder_makes_the_names_in_it_durable() -> None:
    text = (
        "made\t0\t/store/a\t\n"
        "made\t0\t/store/data/1\t\n"
        "moved\t4\t/store/a\t/store/b\n"
        "synced\t0\t/store\t\n"
        "removed\t5\t/store/b\t\n"
        "made\t0\t/store/half"
    )
    changes = list(read_names(text))
    assert unsynced(changes) == [
        NameChange("removed", 5, STORE / "b", None),
        NameChange("made", 0, STORE / "data/1", None),
    ]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    store, journal = tmp_path / "store", tmp_path / "journal"
    store.mkdir()
    journal.mkdir()
    return store, journal


def test_an_unsynced_replacement_gives_both_files_back(folders: tuple[Path, Path]) -> None:
    store, journal = folders
    aside, target = store / "vote.aside", store / "vote"
    target.write_bytes(b"old")
    (journal / "kept-1").hardlink_to(target)
    aside.write_bytes(b"new")
    aside.replace(target)
    (journal / "names").write_text(f"moved\t1\t{aside}\t{target}\n")
    assert lose_unsynced(store, journal, None) == "0 bytes and 1 names"
    assert (aside.read_bytes(), target.read_bytes()) == (b"new", b"old")
    assert not list(journal.iterdir())


def test_a_removal_is_taken_back_with_the_bytes_of_the_file(folders: tuple[Path, Path]) -> None:
    store, journal = folders
    segment = store / "segment"
    segment.write_bytes(b"synced and more")
    inode = segment.stat().st_ino
    (journal / "kept-1").hardlink_to(segment)
    segment.unlink()
    (journal / "names").write_text(f"removed\t1\t{segment}\t\n")
    (journal / str(inode)).write_bytes(pack("=IIqqq", 1, 0, 6, 6, 9))
    assert lose_unsynced(store, journal, None) == "9 bytes and 1 names"
    assert segment.read_bytes() == b"synced"


def test_changes_that_a_kill_prevented_are_not_taken_back(folders: tuple[Path, Path]) -> None:
    store, journal = folders
    (store / "vote").write_bytes(b"old")
    (store / "vote.aside").write_bytes(b"new")
    (journal / "kept-1").hardlink_to(store / "vote")
    (journal / "names").write_text(
        f"moved\t1\t{store}/vote.aside\t{store}/vote\nmade\t0\t{store}/never\t\n"
    )
    lose_unsynced(store, journal, None)
    assert (store / "vote").read_bytes() == b"old"
    assert (store / "vote.aside").read_bytes() == b"new"

"""A journal that the library has written is right; damage is told of, also where the library would go on."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from pysyncobj.journal import FileJournal

from broker.namesrv.journal_check import journal_problem

RECORDS_AT = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with the entries 3 to 22, of which 21 and 22 were taken back, and 21 was written anew."""
    path = tmp_path / "kv.journal"
    journal = FileJournal(str(path))
    for index in range(1, 23):
        journal.add(b"x" * 100 * index, index, 1)
    journal.deleteEntriesTo(2)
    journal.deleteEntriesFrom(18)
    journal.add(b"y", 21, 2)
    journal._destroy()
    return path


def test_what_the_library_writes_is_right(path: Path, tmp_path: Path) -> None:
    assert journal_problem(path) is None
    again = FileJournal(str(path))
    assert [index for _, index, _ in again] == list(range(3, 22))
    again.clear()
    again._destroy()
    assert journal_problem(path) is None
    FileJournal(str(tmp_path / "new"))._destroy()
    assert journal_problem(tmp_path / "new") is None
    assert journal_problem(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("at", "data", "problem"),
    [
        (0, b"garbage", "which is no journal"),
        (32, struct.pack("<I", 7), "it is of format 7"),
        (36, struct.pack("<I", 0), "said to end at 0"),
        (36, struct.pack("<I", 1 << 30), "said to end at 1073741824"),
        (36, struct.pack("<I", RECORDS_AT + 2), "the record at byte 40 is cut off at 42"),
        (RECORDS_AT, struct.pack("<I", 0), "has a size of 0 bytes"),
        (RECORDS_AT, struct.pack("<I", 1 << 30), "has a size of 1073741824 bytes"),
        (RECORDS_AT + 4 + 16 + 300, struct.pack("<I", 5), "has another size at its end"),
        (RECORDS_AT + 4, struct.pack("<Q", 9), "has index 4, after 9"),
    ],
)
def test_damage_is_named(path: Path, at: int, data: bytes, problem: str) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + data + whole[at + len(data) :])
    assert problem in (journal_problem(path) or "it is right")


def test_what_is_cut_off_is_damaged(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:39])
    assert "it has 39 bytes" in (journal_problem(path) or "")
    path.write_bytes(whole[:2000])
    assert "of 2000 bytes" in (journal_problem(path) or "")

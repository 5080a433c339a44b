"""Damage hits what it names, in a store that a real log has written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dledger.codec.entry import chain_crc, index_unit_of, seal
from dledger.codec.hard_state import encode_hard_state
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.hard_state import HardState
from dledger.raft.ids import Index, NodeId, Position, Term
from jepsen.nemeses import damage
from jepsen.nemeses.store_files import data_files, entries, hard_state, settled

COUNT = 60


def make_store(folder: Path) -> Path:
    """A store as docs/formats says: one segment with preallocated room, its index, a hard state."""
    for each in ("data", "index", "snapshots", "derived/consumequeue/t/0"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    data, units, chain, position = b"", b"", 0, 0
    for number in range(1, COUNT + 1):
        entry = seal(
            Entry(
                Index(number), Term(1), Position(position), EntryKind.NORMAL, b"body %03d" % number
            ),
            chain,
        )
        chain = chain_crc(entry)
        data += entry.header + entry.body
        units += index_unit_of(entry.header)
        position = len(data)
    (folder / "data" / f"{0:020}").write_bytes(data + bytes(100_000))
    (folder / "index" / f"{0:020}").write_bytes(units + bytes(1000))
    (folder / "snapshots" / f"{9:020}").write_bytes(b"a snapshot")
    (folder / "derived/consumequeue/t/0" / f"{0:020}").write_bytes(b"units")
    (folder / "derived" / "lock").write_bytes(b"12\n")
    (folder / "hard_state").write_bytes(encode_hard_state(HardState(Term(3), NodeId("n1"))))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "n0")


def contents(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file()
    }


def changed_bytes(before: dict[str, bytes], after: dict[str, bytes]) -> dict[str, list[int]]:
    """Return which bytes of which files differ."""
    return {
        name: [
            at for at, pair in enumerate(zip(old, after[name], strict=True)) if len(set(pair)) > 1
        ]
        for name, old in before.items()
        if old != after[name]
    }


def test_entries_are_found_and_the_last_ones_spared(store: Path) -> None:
    places = entries(store)
    assert [place.index for place in places] == list(range(1, COUNT + 1))
    assert [place.index for place in settled(places)] == list(range(2, COUNT - 5))
    assert entries(store.parent / "nowhere") == []


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("flip", "folder"),
    [
        (damage.flip_log, "data"),
        (damage.flip_index, "index"),
        (damage.flip_vote, "hard_state"),
        (damage.flip_snapshot, "snapshots"),
        (damage.flip_derived, "derived/consumequeue"),
    ],
)
def test_one_bit_is_flipped_where_it_is_told(
    store: Path, flip: damage.Damage, folder: str, seed: int
) -> None:
    before = contents(store)
    told = flip(store, random.Random(seed))
    ((name, (at,)),) = changed_bytes(before, contents(store)).items()
    assert name.startswith(folder)
    assert f"byte {at}" in told
    assert (before[name][at] ^ contents(store)[name][at]).bit_count() == 1
    if folder == "data":
        place = next(each for each in entries_before(before) if each[0] <= at < each[1])
        assert f"entry {place[2]} " in told
    if folder == "index":
        assert at < 32 * COUNT


def test_parts_of_snapshots_are_struck_as_well_as_the_newest_snapshot(store: Path) -> None:
    names = {f"snapshots/{9:020}", *(f"snapshots/{3:020}{end}" for end in (".part", ".twin"))}
    struck: set[str] = set()
    for seed in range(20):
        for name in names:
            (store / name).write_bytes(b"what snapshots say")
        before = contents(store)
        told = damage.flip_snapshot(store, random.Random(seed))
        ((name, (at,)),) = changed_bytes(before, contents(store)).items()
        assert f"{Path(name).name}, byte {at}" in told
        struck.add(name)
    assert struck == names


def entries_before(before: dict[str, bytes]) -> list[tuple[int, int, int]]:
    """First and end byte of each entry, and its index; all bodies have eight bytes."""
    del before
    return [(56 * number, 56 * number + 56, number + 1) for number in range(COUNT)]


@pytest.mark.parametrize(
    "what",
    [
        *(damage.flip_log, damage.flip_index, damage.flip_vote, damage.flip_snapshot),
        *(damage.flip_derived, damage.misdirect, damage.tear_tail, damage.lose_segment),
    ],
)
def test_an_empty_store_has_nothing_to_damage(tmp_path: Path, what: damage.Damage) -> None:
    assert what(tmp_path, random.Random(1)).startswith(damage.NOTHING)


def test_a_misdirected_write_leaves_a_whole_entry_in_the_wrong_place(store: Path) -> None:
    told = damage.misdirect(store, random.Random(1))
    one, other = (int(word) for word in told.split() if word.isdigit())
    data = data_files(store)[0].read_bytes()
    assert data[56 * (other - 1) : 56 * other] == data[56 * (one - 1) : 56 * one]


@pytest.mark.parametrize("seed", range(8))
def test_a_torn_tail_is_the_beginning_of_the_next_entry(store: Path, seed: int) -> None:
    before = data_files(store)[0].read_bytes()
    told = damage.tear_tail(store, random.Random(seed))
    after = data_files(store)[0].read_bytes()
    count = int(told.split()[0])
    end = 56 * COUNT
    assert after[:end] == before[:end]
    assert not any(after[end + count :])
    if count >= 48:
        assert int.from_bytes(after[end + 8 : end + 16], "big") == COUNT + 1


def test_a_finished_segment_is_lost_where_there_is_one(store: Path) -> None:
    second = store / "data" / f"{56 * COUNT:020}"
    second.write_bytes(b"")
    damage.lose_segment(store, random.Random(1))
    assert data_files(store) == [second]
    assert not list((store / "index").iterdir())


def test_damage_on_all_leaves_every_entry_whole_somewhere(tmp_path: Path) -> None:
    stores = [make_store(tmp_path / f"n{at}") for at in range(3)]
    whole = data_files(stores[0])[0].read_bytes()
    damage.damage_all(stores, random.Random(1))
    copies = [data_files(each)[0].read_bytes() for each in stores]
    assert all(copy != whole for copy in copies)
    for first, end, index in entries_before({}):
        damaged = [copy for copy in copies if copy[first:end] != whole[first:end]]
        assert len(damaged) <= 1, index


def test_a_copy_of_a_store_is_equal_but_for_what_is_made_again(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    damage.copy_store(store, copy)
    kept = {name: data for name, data in contents(store).items() if not name.startswith("derived")}
    assert contents(copy) == kept
    assert hard_state(copy).read_bytes() == hard_state(store).read_bytes()
    damage.wipe(copy)
    assert not copy.exists()


def test_garbage_stands_where_a_small_store_would_have_a_derived_file(tmp_path: Path) -> None:
    (tmp_path / "derived").mkdir()
    assert "garbage" in damage.flip_derived(tmp_path, random.Random(1))
    assert len((tmp_path / "derived" / damage.GARBAGE).read_bytes()) == damage.GARBAGE_BYTES
    assert "flipped a bit" in damage.flip_derived(tmp_path, random.Random(1))

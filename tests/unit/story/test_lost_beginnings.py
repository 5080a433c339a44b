"""Stories of a log whose beginning is deleted, which grows or is cut meanwhile, or is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.control import CommitOffsets, MarkDigests, OffsetCommit, ResetOffsets
from broker.story.places import StorePlaces
from broker.story.tell import tell
from dledger.errors import CorruptionError, UsageError
from dledger.raft.entry import Entry
from dledger.raft.ids import Index
from dledger_mq.message.numbers import QueueId, QueueOffset
from tests.unit.pipeline.stores import write_snapshot, write_store
from tests.unit.store.lone_broker import LoneBroker
from tests.unit.story.story_stores import (
    KEY,
    SEGMENT_BYTES,
    cut_beginning,
    events_of,
    new_broker,
    nothing,
)


def commit(broker: LoneBroker, group: str, offset: int) -> None:
    commits = [OffsetCommit(group, "T", QueueId(0), QueueOffset(offset), "c1")]
    broker.command(CommitOffsets(commits))


def busy_broker() -> LoneBroker:
    """A broker with a message in the middle, and a group that passes it, is set back, and passes it again."""
    broker = new_broker("T")
    for number in range(20):
        broker.send(UNIQ_KEY=f"before {number}")
    commit(broker, "g", 20)
    broker.send(UNIQ_KEY=KEY)
    commit(broker, "g", 21)
    commit(broker, "g", 3)
    broker.command(ResetOffsets("g", "T", [(QueueId(0), QueueOffset(1))]))
    broker.command(CommitOffsets([OffsetCommit("h", "T", QueueId(0), QueueOffset(21))], True))
    for number in range(20):
        broker.send(UNIQ_KEY=f"after {number}")
    return broker


def entry_of(sealed: list[Entry], key: str) -> int:
    return next(each.index for each in sealed if key.encode() in each.body)


def test_before_the_oldest_snapshot_a_story_tells_what_was_asked_for(tmp_path: Path) -> None:
    broker = busy_broker()
    sealed = write_store(tmp_path, broker.log.entries, SEGMENT_BYTES)
    whole = tell(StorePlaces(tmp_path), KEY, nothing, nothing)
    index = entry_of(sealed, KEY)
    cut_beginning(tmp_path, sealed, index)
    write_snapshot(tmp_path, sealed, len(sealed) - 10)
    story = tell(StorePlaces(tmp_path), KEY, nothing, nothing)
    assert story.found.begin.index > 0
    assert story.state_from == len(sealed) - 10
    assert events_of(story) == events_of(whole) == ["stored", "passed", "moved_back", "passed"]
    assert [each.is_sure for each in story.steps] == [False] * 4
    assert story.standings == whole.standings
    assert story.verdict == whole.verdict == "visible in queue 0 of T at offset 20"


def test_a_snapshot_at_the_end_of_the_log_tells_how_it_ended(tmp_path: Path) -> None:
    broker = busy_broker()
    sealed = write_store(tmp_path, broker.log.entries, SEGMENT_BYTES)
    cut_beginning(tmp_path, sealed, entry_of(sealed, KEY))
    write_snapshot(tmp_path, sealed, len(sealed))
    story = tell(StorePlaces(tmp_path), KEY, nothing, nothing)
    assert story.is_visible
    assert story.found.proven_index == len(sealed)


def test_what_happened_between_is_told_with_the_snapshot_that_shows_it(tmp_path: Path) -> None:
    broker = new_broker("T")
    for number in range(20):
        broker.send(UNIQ_KEY=f"before {number}")
    broker.command(CommitOffsets([OffsetCommit("g", "T", QueueId(0), QueueOffset(25))]))
    broker.send(UNIQ_KEY=KEY)
    sealed = write_store(tmp_path, broker.log.entries, SEGMENT_BYTES)
    cut_beginning(tmp_path, sealed, entry_of(sealed, KEY))
    write_snapshot(tmp_path, sealed, len(sealed))
    story = tell(StorePlaces(tmp_path), KEY, nothing, nothing)
    assert events_of(story) == ["stored", "passed"]
    assert story.steps[1].index == len(sealed)
    assert "before that entry" in story.steps[1].text


def test_without_any_state_there_is_no_verdict(tmp_path: Path) -> None:
    broker = busy_broker()
    sealed = write_store(tmp_path, broker.log.entries, SEGMENT_BYTES)
    cut_beginning(tmp_path, sealed, entry_of(sealed, KEY))
    story = tell(StorePlaces(tmp_path), KEY, nothing, nothing)
    assert story.is_visible is None
    assert story.verdict.startswith("not known: the log has lost what stood before entry ")
    assert events_of(story)[0] == "stored"
    lost = tell(StorePlaces(tmp_path), "before 0", nothing, nothing)
    assert "is deleted" in lost.verdict


def test_a_log_ends_at_its_last_whole_entry_and_marks_prove_what_is_committed(
    tmp_path: Path,
) -> None:
    broker = new_broker("T")
    broker.send(UNIQ_KEY=KEY)
    commit(broker, "g", 1)
    broker.command(MarkDigests(Index(3), {}))
    sealed = write_store(tmp_path, broker.log.entries)
    story = tell(StorePlaces(tmp_path), KEY, nothing, nothing)
    assert story.found.proven_index == 3
    assert [each.as_json(3)["is_proven"] for each in story.steps] == [True, False]
    (data,) = (tmp_path / "data").iterdir()
    half = bytearray(data.read_bytes())
    place = sealed[-1].position + 60
    half[place : place + 40] = bytes(40)
    data.write_bytes(half)
    torn = tell(StorePlaces(tmp_path), KEY, nothing, nothing)
    assert torn.found.end.index == len(sealed) - 1
    assert "does not match its crc" in torn.found.problem
    assert torn.found.proven_index == 0
    assert events_of(torn) == ["stored", "passed"]


def test_damage_in_the_middle_is_no_end(tmp_path: Path) -> None:
    broker = busy_broker()
    write_store(tmp_path, broker.log.entries, SEGMENT_BYTES)
    second = sorted((tmp_path / "data").iterdir())[1]
    data = bytearray(second.read_bytes())
    data[100] ^= 1
    second.write_bytes(data)
    with pytest.raises(CorruptionError, match=f"{second.name}, byte 0: no whole entry"):
        tell(StorePlaces(tmp_path), KEY, nothing, nothing)


def test_a_log_that_grows_while_it_is_read_is_read_to_its_new_end(tmp_path: Path) -> None:
    broker = busy_broker()
    write_store(tmp_path, broker.log.entries, SEGMENT_BYTES)
    places = StorePlaces(tmp_path)
    last = sorted((tmp_path / "data").iterdir())[-1]
    count, before = 0, len(broker.log.entries)
    for some in places.log.entries():
        count += len(some)
        if some[-1].position >= int(last.name) and len(broker.log.entries) == before:
            for number in range(30):
                broker.send(UNIQ_KEY=f"later {number}")
            write_store(tmp_path, broker.log.entries, SEGMENT_BYTES)
    assert count == len(broker.log.entries) == before + 30
    assert len(list((tmp_path / "data").iterdir())) > int(last.name) // SEGMENT_BYTES


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no store"):
        StorePlaces(tmp_path)
    with pytest.raises(UsageError, match="is no store"):
        StorePlaces(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []

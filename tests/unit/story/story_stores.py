"""Stories of a store that a lone broker's entries make, for tests."""

from __future__ import annotations

from pathlib import Path

from broker.store.control import PutTopic
from broker.store.topics import TopicConfig
from broker.story.places import StorePlaces
from broker.story.tell import MessageStory, tell
from dledger.codec.entry import chain_crc
from dledger.codec.log_start import LogStart, encode_log_start
from dledger.raft.entry import Entry
from tests.unit.pipeline.stores import write_store
from tests.unit.store.lone_broker import LoneBroker

KEY = "7F0000010B9A18B4AAC216A7A8A60000"

SEGMENT_BYTES = 1024
"""So short that each segment has few entries."""


def nothing(_done: int, _total: int) -> None:
    """Show no progress."""


def new_broker(*topics: str) -> LoneBroker:
    """Return a broker with topics."""
    broker = LoneBroker()
    for topic in topics:
        broker.command(PutTopic(TopicConfig(topic, 4, 4)))
    return broker


def story_of(broker: LoneBroker, folder: Path, message_id: str = KEY) -> MessageStory:
    """Write a broker's log into a store, and tell of a message."""
    write_store(folder, broker.log.entries)
    return tell(StorePlaces(folder), message_id, nothing, nothing)


def events_of(story: MessageStory) -> list[str]:
    """Return the kinds of steps, in order."""
    return [step.event.value for step in story.steps]


def cut_beginning(folder: Path, sealed: list[Entry], index: int) -> None:
    """Delete the segments before the one that holds an entry, as a node does."""
    data = folder / "data"
    place = sealed[index - 1].position
    kept = max(int(path.name) for path in data.iterdir() if int(path.name) <= place)
    (before,) = [each for each in sealed if each.end_position == kept]
    start = LogStart(before.index, before.term, before.end_position, chain_crc(before))
    (folder / "log_start").write_bytes(encode_log_start(start))
    for path in data.iterdir():
        if int(path.name) < kept:
            path.unlink()
            (folder / "index" / path.name).unlink()

"""Stories of messages in the stores of simulated brokers, after kills, elections and what clients do beside them.

What is told must be the same whichever snapshot the fold begins with, and must agree with a replay of the whole log.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from broker.story.copies import WAITING, CopyRole, records_of
from broker.story.places import StorePlaces, fold, scratch_state
from broker.story.steps import StepKind
from broker.story.tell import MessageStory, tell
from broker.testing.broker_simulation import BrokerSimulation, silence
from broker.testing.settings import draw_broker_settings
from dledger.raft.entry import Entry, EntryKind
from dledger.testing.sim_disk import SimDisk
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.message.properties import UNIQ_KEY

KEYS_MAX = 25


def nothing(_done: int, _total: int) -> None:
    """Show no progress."""


def copied(disk: SimDisk, folder: Path) -> None:
    for path in disk.paths():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(disk.content(path))


def keys_in(entries: list[Entry]) -> list[str]:
    """Return the unique keys in a log, in order."""
    normal = (each for each in entries if each.kind is EntryKind.NORMAL)
    found = (message.find(UNIQ_KEY) for entry in normal for message in records_of(entry))
    return list(dict.fromkeys(key.decode() for key in found if key))


def check_steps(story: MessageStory) -> None:
    """Demand what holds for every story."""
    kinds = {copy.place: copy.role for copy in story.found.copies}
    arrived: set[int] = set()
    for place, step in enumerate(story.steps):
        assert step.is_sure
        assert place == 0 or story.steps[place - 1].index <= step.index
        if step.facts.get("message_id"):
            arrived.add(step.place)
        assert step.place in arrived, "nothing happens to a record before it is there"
        if step.event is StepKind.COMMITTED:
            assert kinds[step.place] is CopyRole.HALF
            beside = {each.place for each in story.steps if each.index == step.index}
            assert beside - {step.place}, "the real message is in the entry that says so"
        assert step.event not in {StepKind.LEFT_OUT, StepKind.REFUSED}
    assert arrived == kinds.keys()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4])
def test_stories_agree_with_a_replay_and_from_every_snapshot(seed: int, tmp_path: Path) -> None:
    simulation = BrokerSimulation(draw_broker_settings(seed))
    with silence():
        assert not simulation.run().problem
    node = max(simulation._brokers.running(), key=lambda each: len(each.disk.paths()))
    folder, bare = tmp_path / "with", tmp_path / "without"
    copied(node.disk, folder)
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("snapshots"))
    assert StorePlaces(folder).snapshots
    entries = [each for some in StorePlaces(bare).log.entries() for each in some]
    keys = keys_in(entries)
    events: set[StepKind] = set()
    with scratch_state() as state:
        fold(state, entries)
        for key in Random(seed).sample(keys, min(KEYS_MAX, len(keys))):
            story = tell(StorePlaces(folder), key, nothing, nothing)
            plain = tell(StorePlaces(bare), key, nothing, nothing)
            assert story.steps == plain.steps
            assert story.standings == plain.standings
            check_steps(story)
            events |= {each.event for each in story.steps}
            for standing in story.standings:
                message = standing.copy.message
                queue = state.queues.get(message.topic, QueueId(message.queue_id))
                assert queue is not None
                unit = queue.unit(QueueOffset(message.queue_offset))
                stands = unit.physical_offset == message.physical_offset
                assert standing.is_visible == (stands and standing.copy.role not in WAITING)
    assert StepKind.STORED in events
    assert len(events) >= 4, f"the run has shown {events} only"

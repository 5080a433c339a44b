"""The parts of a snapshot: full ranges of queues and full segments, the same objects each time."""

from __future__ import annotations

from broker.store.control import DeleteTopic
from broker.store.state import BrokerState, StateLimits
from dledger.state_machine import SealedPart
from dledger_mq.message.numbers import QueueId, QueueOffset
from tests.unit.store.lone_broker import LoneBroker
from tests.unit.store.test_retention import forget, sent

LIMITS = StateLimits(sealed_units=4, index_segment_units=8)


def parts_of(state: BrokerState) -> list[SealedPart]:
    return [chunk for chunk in state.sealed_snapshot() if isinstance(chunk, SealedPart)]


def replica_of(broker: LoneBroker) -> BrokerState:
    state = BrokerState(limits=LIMITS)
    state.apply(broker.log.entries)
    return state


def follow(state: BrokerState, broker: LoneBroker) -> None:
    state.apply(broker.log.entries[state.applied_index :])


def sizes(parts: list[SealedPart]) -> list[int]:
    return [sum(map(len, part.chunks())) for part in parts]


def test_a_part_stays_the_same_while_the_state_grows() -> None:
    broker = sent(9)
    state = replica_of(broker)
    before = parts_of(state)
    assert sizes(before) == [80, 80]
    contents = [b"".join(part.chunks()) for part in before]
    for _ in range(4):
        broker.send()
    follow(state, broker)
    after = parts_of(state)
    assert sizes(after) == [80, 80, 80]
    assert after[:2] == before
    assert [b"".join(part.chunks()) for part in after[:2]] == contents


def test_what_is_forgotten_is_no_longer_a_part() -> None:
    broker = sent(13)
    state = replica_of(broker)
    before = parts_of(state)
    assert len(before) == 3
    assert forget(broker, 8) is None  # the queue begins with offset 6, within the second part
    follow(state, broker)
    state.queues.sweep()
    after = parts_of(state)
    assert after == before[2:]
    again = BrokerState(limits=LIMITS)
    again.restore(state.snapshot())
    assert again.digest() == state.digest()
    assert bytes(again.queues.by_key[b"T", QueueId(0)].units(QueueOffset(6), 7)) == bytes(
        state.queues.by_key[b"T", QueueId(0)].units(QueueOffset(6), 7)
    )


def test_a_topic_that_is_made_again_has_other_parts() -> None:
    broker = sent(4)
    state = replica_of(broker)
    (before,) = parts_of(state)
    broker.staging.stage_control(DeleteTopic("T"), broker.now_ms)
    broker.commit()
    for _ in range(4):
        broker.send(TAGS="other")
    follow(state, broker)
    (after,) = parts_of(state)
    assert after is not before
    assert b"".join(after.chunks()) == bytes(
        state.queues.by_key[b"T", QueueId(0)].units(QueueOffset(0), 4)
    )


def test_full_segments_of_the_key_index_are_parts() -> None:
    broker = LoneBroker()
    for number in range(20):
        broker.send(KEYS=f"key{number}")
    state = BrokerState(limits=StateLimits(index_segment_units=8))
    state.apply(broker.log.entries)
    parts = parts_of(state)
    assert sizes(parts) == [8 * 28] * (len(parts))
    assert len(parts) == 2
    assert parts_of(state) == parts

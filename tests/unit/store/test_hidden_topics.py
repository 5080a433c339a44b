"""Topics that show less than the log has: min offsets, queries, snapshots, and what ends it."""

from __future__ import annotations

from broker.store.control import DeleteTopic, HideBefore, PutTopic
from broker.store.lookups import earliest_store_time, offset_by_time, query_by_key
from broker.store.reading import GetStatus, get_messages
from broker.store.refusals import RefusalKind
from broker.store.state import BrokerState
from broker.store.topics import TopicConfig
from dledger.raft.ids import Position
from dledger_mq.message import names
from dledger_mq.message.numbers import QueueId, QueueOffset
from tests.unit.store.lone_broker import LoneBroker
from tests.unit.store.test_retention import bounds, forget, later


def hide(broker: LoneBroker, position: int, *topics: str) -> RefusalKind | None:
    """Hide what stands before a position; return the reason if it was refused."""
    at = broker.command(HideBefore([(topic, Position(position)) for topic in topics or ("T",)]))
    refusal = broker.state.refusals.at(at)  # type: ignore[arg-type] # a physical offset
    return None if refusal is None else refusal.kind


def two_topics() -> LoneBroker:
    """A broker with T and U, in turn, in the entries from 4 on."""
    broker = LoneBroker()
    for topic in ("T", "U"):
        broker.command(PutTopic(TopicConfig(topic, 4, 4)))
    for _ in range(6):
        broker.send("T", KEYS="k")
        broker.send("U", KEYS="k")
        broker.now_ms += 1000
    return broker


def keys(broker: LoneBroker, topic: str) -> int:
    found = query_by_key(
        broker.state, broker.log, topic, "k", count_max=64, begin_ms=0, end_ms=2**62
    )
    return len(found)


def test_one_topic_shows_less_and_the_log_and_others_stay() -> None:
    broker = two_topics()
    place = broker.log.entries[9].position  # after three of each
    assert hide(broker, place) is None
    assert (bounds(broker, "T"), bounds(broker, "U")) == ((3, 6), (0, 6))
    assert broker.state.keep_from == 1
    assert (keys(broker, "T"), keys(broker, "U")) == (3, 6)
    low = get_messages(
        broker.state,
        broker.log,
        "T",
        QueueId(0),
        offset=QueueOffset(1),
        count_max=32,
        log_end=broker.log.end_position,
    )
    assert (low.status, low.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 3)
    state, log = broker.state, broker.log
    first_ms = earliest_store_time(state, log, "T", QueueId(0))
    assert first_ms == (earliest_store_time(state, log, "U", QueueId(0)) or 0) + 3000
    assert offset_by_time(state, log, "T", QueueId(0), time_ms=0) == 3


def test_it_never_moves_back_and_the_logs_beginning_passes_it() -> None:
    broker = two_topics()
    later(broker)
    place = broker.log.entries[9].position
    hide(broker, place)
    assert hide(broker, place - 1) is None
    assert bounds(broker, "T") == (3, 6)
    assert forget(broker, 8) is None
    assert (bounds(broker, "T"), bounds(broker, "U")) == ((3, 6), (2, 6))
    assert broker.state.retention.topics == {"T": place}
    assert forget(broker, 12) is None
    assert (bounds(broker, "T"), bounds(broker, "U")) == ((4, 6), (4, 6))
    assert broker.state.retention.topics == broker.state.queues.hidden == {}
    assert hide(broker, place) is None, "it is passed"
    assert bounds(broker, "T") == (4, 6)


def test_a_deleted_topic_is_shown_from_its_start_again() -> None:
    broker = two_topics()
    hide(broker, broker.log.entries[9].position)
    broker.command(DeleteTopic("T"))
    assert broker.state.retention.topics == broker.state.queues.hidden == {}
    broker.command(PutTopic(TopicConfig("T", 4, 4)))
    broker.send("T")
    assert bounds(broker, "T") == (0, 1)


def test_what_the_system_needs_and_what_is_not_there_yet_cannot_be_hidden() -> None:
    broker = two_topics()
    end = broker.log.end_position
    assert hide(broker, 100, "T", names.SCHEDULE_TOPIC) is RefusalKind.SYSTEM_NAME
    assert hide(broker, end + 10_000) is RefusalKind.OUT_OF_RANGE
    assert hide(broker, 100, "nobody") is None
    assert broker.state.retention.topics == {}


def test_a_replica_from_a_snapshot_shows_the_same() -> None:
    broker = two_topics()
    hide(broker, broker.log.entries[9].position)
    twin = BrokerState()
    twin.restore(broker.state.snapshot())
    whole = BrokerState()
    whole.apply(broker.log.entries)
    for state in (twin, whole):
        assert state.digests() == broker.state.digests()
        assert state.queues.min_max("T", QueueId(0)) == (3, 6)
        assert state.queues.min_max("U", QueueId(0)) == (0, 6)
        assert state.retention.topics == broker.state.retention.topics
        assert state.queues.hidden == broker.state.queues.hidden
    broker.send("T")
    for state in (twin, whole):
        state.apply(broker.log.entries[-1:])
        assert state.queues.min_max("T", QueueId(0)) == (3, 7)
        assert state.digests() == broker.state.digests()


def test_units_of_hidden_messages_are_dropped() -> None:
    broker = two_topics()
    queue = broker.state.queues.by_key[b"T", QueueId(0)]
    hide(broker, broker.log.entries[9].position)
    broker.state.queues.sweep()
    assert queue.held_first == 3
    assert len(queue.tail) == 3 * 20

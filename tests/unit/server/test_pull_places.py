"""How far groups were given messages, of not more queues than there is room for."""

from __future__ import annotations

from broker.server.handlers.pull_places import PLACES_MAX, PullPlaces
from dledger_mq.message.numbers import QueueId, QueueOffset


def test_the_last_place_counts_also_when_it_is_before_another() -> None:
    places = PullPlaces()
    for offset in (5, 9, 2):
        places.note("g", "T", QueueId(1), QueueOffset(offset))
    assert places.of("g", "T") == {1: 2}
    assert places.of("g", "other") == {}


def test_what_was_pulled_first_makes_room() -> None:
    places = PullPlaces()
    queues = PLACES_MAX // 2
    for topic in ("A", "B", "C"):
        for queue_id in range(queues):
            places.note("g", topic, QueueId(queue_id), QueueOffset(1))
    assert [len(places.of("g", topic)) for topic in ("A", "B", "C")] == [0, queues, queues]

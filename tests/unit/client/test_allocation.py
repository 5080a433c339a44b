"""The five other allocation strategies (rule Q5): worked examples after Java's source, and laws."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.rebalance import (
    Strategy,
    allocate_average,
    allocate_circle,
    by_config,
    by_consistent_hash,
    by_machine_room,
    java_order,
    machine_room_nearby,
)


def queues(count: int, broker: str = "hz@a", topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, i) for i in range(count)]


def shares(
    strategy: Strategy, all_queues: list[MessageQueue], members: list[str]
) -> list[list[int]]:
    return [
        [q.queue_id for q in strategy(all_queues, members, member)] for member in sorted(members)
    ]


def test_circle_deals_queues_out_one_by_one() -> None:
    assert shares(allocate_circle, queues(8), ["c", "a", "b"]) == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert shares(allocate_circle, queues(2), ["a", "b", "c"]) == [[0], [1], []]


def test_configured_queues_are_taken_when_they_exist() -> None:
    mine = by_config([MessageQueue("T", "hz@a", 1), MessageQueue("T", "hz@a", 9)])
    assert shares(mine, queues(3), ["a", "b"]) == [[1], [1]]


def test_machine_room_divides_evenly_and_deals_the_rest_from_the_end() -> None:
    """Java: mod * index .. mod * (index + 1), then element index + mod * members while there is one."""
    inside = by_machine_room(["hz"])
    assert shares(inside, queues(8), ["a", "b", "c"]) == [[0, 1, 6], [2, 3, 7], [4, 5]]
    assert shares(inside, queues(8) + queues(8, "sh@b"), ["a", "b", "c"])[2] == [4, 5]
    assert shares(inside, queues(8, "broker-a") + queues(8, "hz@b@c"), ["a"]) == [[]]


def test_nearby_reads_at_home_and_shares_the_rooms_without_members() -> None:
    both = queues(4, "hz@a") + queues(4, "sh@b") + queues(4, "bj@c")
    nearby = machine_room_nearby(
        lambda queue: queue.broker_name.partition("@")[0], lambda member: member.partition("-")[0]
    )
    members = ["hz-1", "hz-2", "sh-1"]
    got = {member: [str(q) for q in nearby(both, members, member)] for member in members}
    assert got == {
        "hz-1": ["T@hz@a/0", "T@hz@a/1", "T@bj@c/0", "T@bj@c/1"],
        "hz-2": ["T@hz@a/2", "T@hz@a/3", "T@bj@c/2"],
        "sh-1": ["T@sh@b/0", "T@sh@b/1", "T@sh@b/2", "T@sh@b/3", "T@bj@c/3"],
    }
    with pytest.raises(ClientUsageError, match="machine room"):
        machine_room_nearby(lambda _queue: "", lambda _member: "x")(both, ["a"], "a")


def test_consistent_hash_follows_the_ring_of_java() -> None:
    """Worked out anew: MD5's first four bytes; a queue goes to the next place clockwise."""

    def ring_hash(text: str) -> int:
        digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
        return digest[0] << 24 | digest[1] << 16 | digest[2] << 8 | digest[3]

    members = ["10.0.0.1@1", "10.0.0.2@1", "10.0.0.3@1"]
    places = sorted((ring_hash(f"{m}-{i}"), m) for m in members for i in range(10))
    strategy = by_consistent_hash()
    for queue in queues(32, "broker-a"):
        text = f"MessageQueue [topic=T, brokerName=broker-a, queueId={queue.queue_id}]"
        owner = next((m for place, m in places if place >= ring_hash(text)), places[0][1])
        for member in members:
            assert (queue in strategy([queue], members, member)) == (member == owner)
    with pytest.raises(ClientUsageError):
        by_consistent_hash(0)


def test_consistent_hash_moves_only_the_queues_of_who_left() -> None:
    strategy, all_queues = by_consistent_hash(), queues(64)
    before = {m: set(strategy(all_queues, ["a", "b", "c"], m)) for m in "abc"}
    after = {m: set(strategy(all_queues, ["a", "b"], m)) for m in "ab"}
    assert before["a"] <= after["a"]
    assert before["b"] <= after["b"]


ROOMS = ("hz", "sh", "bj")
STRATEGIES: dict[str, Strategy] = {
    "average": allocate_average,
    "circle": allocate_circle,
    "consistent hash": by_consistent_hash(),
    "machine room": by_machine_room(ROOMS),
    "nearby": machine_room_nearby(
        lambda queue: queue.broker_name.partition("@")[0],
        lambda member: ROOMS[len(member) % len(ROOMS)],
    ),
    "nearby in a circle": machine_room_nearby(
        lambda queue: queue.broker_name.partition("@")[0],
        lambda member: ROOMS[len(member) % 2],
        within=allocate_circle,
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=20)
@given(
    counts=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    members=st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=9),
    random=st.randoms(use_true_random=False),
)
def test_every_queue_has_exactly_one_owner_in_whatever_order_they_are_told(
    name: str, counts: list[int], members: set[str], random: object
) -> None:
    strategy = STRATEGIES[name]
    all_queues = [
        queue
        for room, count in zip(ROOMS, counts, strict=True)
        for queue in queues(count, f"{room}@b")
    ]
    parts = {member: strategy(all_queues, members, member) for member in members}
    assert sorted(q for part in parts.values() for q in part) == sorted(all_queues)
    shuffled_queues, shuffled = list(all_queues), list(members)
    random.shuffle(shuffled_queues)  # type: ignore[attr-defined]  # a random.Random
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert {m: strategy(shuffled_queues, shuffled, m) for m in members} == parts
    assert strategy(all_queues, members - {"x"}, "x") == []


@given(st.integers(0, 40), st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=9))
def test_average_is_javas_arithmetic(count: int, names: set[str]) -> None:
    """AllocateMessageQueueAveragely line by line."""
    members, all_queues = sorted(names, key=java_order), queues(count)
    wanted = {}
    for index, member in enumerate(members):
        mod = count % len(members)
        if count <= len(members):
            average = 1
        elif mod > 0 and index < mod:
            average = count // len(members) + 1
        else:
            average = count // len(members)
        start = index * average if mod > 0 and index < mod else index * average + mod
        reach = min(average, count - start)
        wanted[member] = [all_queues[(start + i) % count] for i in range(reach)]
    assert {name: allocate_average(all_queues, names, name) for name in names} == wanted

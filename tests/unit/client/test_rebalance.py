"""The allocation against tables worked out by hand from the Java source, and its laws."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.client.queues import MessageQueue, RoundRobin, queue_for_key
from dledger_mq.client.rebalance import allocate_average, changes


def queues(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("T", broker, i) for i in range(count)]


def shares(queue_count: int, members: list[str]) -> list[list[int]]:
    return [
        [q.queue_id for q in allocate_average(queues(queue_count), members, member)]
        for member in sorted(members)
    ]


def test_ranges_are_contiguous_and_the_first_members_get_more() -> None:
    assert shares(8, ["c", "a", "b"]) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert shares(4, ["a", "b"]) == [[0, 1], [2, 3]]
    assert shares(1, ["a"]) == [[0]]


def test_more_members_than_queues_leaves_the_last_without() -> None:
    assert shares(2, ["a", "b", "c"]) == [[0], [1], []]


def test_a_client_that_the_broker_does_not_list_gets_nothing() -> None:
    assert allocate_average(queues(4), ["a", "b"], "me") == []


def test_members_sort_as_java_strings_do() -> None:
    """UTF-16: a character beyond the first plane sorts before U+FFFF, unlike in UTF-8 or Python."""
    last, first = "￮", "\U0001f600"
    assert [q.queue_id for q in allocate_average(queues(2), [last, first], first)] == [0]


def test_brokers_sort_before_queue_ids() -> None:
    both = queues(2, "b") + queues(2, "a")
    names = [(q.broker_name, q.queue_id) for q in allocate_average(both, ["x", "y"], "x")]
    assert names == [("a", 0), ("a", 1)]


@given(st.integers(0, 40), st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=9))
def test_every_queue_has_exactly_one_owner_and_shares_differ_by_at_most_one(
    count: int, members: set[str]
) -> None:
    parts = [allocate_average(queues(count), members, member) for member in members]
    assert sorted(q for part in parts for q in part) == queues(count)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_changes_name_what_goes_and_what_comes() -> None:
    a, b, c = queues(3)
    found = changes({a, b}, [b, c])
    assert (found.released, found.acquired) == ((a,), (c,))


def test_a_key_meets_the_same_queue_in_every_process() -> None:
    assert queue_for_key(queues(8), "order-17") == queue_for_key(queues(8), b"order-17")
    assert {queue_for_key(queues(4), str(n)).queue_id for n in range(100)} == {0, 1, 2, 3}
    assert queue_for_key(queues(4), "a").queue_id == 3  # CRC-32 of "a" is 0xE8B7BE43


def test_round_robin_takes_turns_and_passes_over_brokers_in_trouble() -> None:
    deal = RoundRobin()
    both = sorted(queues(2, "a") + queues(2, "b"))
    assert [str(deal(both)) for _ in range(5)] == ["T@a/0", "T@a/1", "T@b/0", "T@b/1", "T@a/0"]
    assert [deal(both, frozenset({"a"})).broker_name for _ in range(4)] == ["b"] * 4
    assert deal(both, frozenset({"a", "b"})) in both

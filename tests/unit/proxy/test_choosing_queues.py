"""The queue that a message goes to."""

from __future__ import annotations

from itertools import pairwise

import pytest

pytest.importorskip("google.protobuf")

from dledger_mq.message.hashes import consistent_hash, java_hash

GUAVA_OF_100 = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
"""What Guava's own test (HashingTest) expects for 0 to 19 and 100 buckets."""

GUAVA_31 = {
    (10863919174838991, 11): 6,
    (2016238256797177309, 11): 3,
    (1673758223894951030, 100001): 75305,
    (2, 100001): 80343,
    (2201, 100001): 22152,
    (2202, 100001): 15018,
    (-1, 16): 10,
    (-(2**31), 100001): 87731,
    (2**31 - 1, 16): 9,
}
"""What Guava 31.0.1 answered."""


def test_a_group_goes_to_the_queue_that_apaches_proxy_chooses() -> None:
    assert [consistent_hash(value, 100) for value in range(20)] == GUAVA_OF_100
    assert {asked: consistent_hash(*asked) for asked in GUAVA_31} == GUAVA_31
    assert consistent_hash(java_hash("group-7"), 8) == 7


@pytest.mark.parametrize("value", [-(2**31), -1, 0, 2**31 - 1])
def test_a_queue_more_takes_groups_only_to_itself(value: int) -> None:
    places = [consistent_hash(value, count) for count in range(1, 50)]
    assert places[0] == 0
    for count, (before, after) in enumerate(pairwise(places), start=1):
        assert after in (before, count)

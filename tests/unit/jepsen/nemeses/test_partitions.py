"""The links that each partition cuts, for groups of three and five."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from jepsen.nemeses.partitions import PARTITIONS, Partition, cut_links
from jepsen.systems.api import CLIENTS, Link

THREE = ["n0", "n1", "n2"]
FIVE = ["n0", "n1", "n2", "n3", "n4"]


def cut(
    partition: Partition, nodes: list[str], seed: int = 1, leader: str | None = "n1"
) -> set[Link]:
    return cut_links(partition, nodes, leader, random.Random(seed))


def reached_by_both(links: set[Link], nodes: list[str], one: str) -> set[str]:
    """Return those whom a node hears and is heard by, itself included."""
    return {other for other in nodes if other == one or not {(one, other), (other, one)} & links}


@pytest.mark.parametrize("nodes", [THREE, FIVE])
@pytest.mark.parametrize("seed", range(8))
def test_halves_leave_a_majority_with_its_clients(nodes: list[str], seed: int) -> None:
    links = cut("halves", nodes, seed)
    sides = {frozenset(reached_by_both(links, nodes, each)) for each in nodes}
    small, large = sorted(sides, key=len)
    assert len(small) + len(large) == len(nodes)
    assert len(large) > len(nodes) / 2
    assert all((CLIENTS, each) in links for each in small)
    assert not any((CLIENTS, each) in links for each in large)


@pytest.mark.parametrize("nodes", [THREE, FIVE])
def test_the_leader_is_alone(nodes: list[str]) -> None:
    links = cut("leader", nodes)
    assert reached_by_both(links, nodes, "n1") == {"n1"}
    assert (CLIENTS, "n1") in links
    assert ("n1", CLIENTS) in links
    assert all("n1" in link for link in links)


@pytest.mark.parametrize("seed", range(8))
def test_a_bridge_of_five_joins_two_sides_that_do_not_reach_each_other(seed: int) -> None:
    links = cut("bridge", FIVE, seed)
    reach = sorted(len(reached_by_both(links, FIVE, each)) for each in FIVE)
    assert reach == [3, 3, 3, 3, 5]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("nodes", [FIVE, [f"n{i}" for i in range(7)]])
def test_in_a_ring_each_hears_a_majority_and_no_two_the_same(nodes: list[str], seed: int) -> None:
    links = cut("ring", nodes, seed)
    sets = {frozenset(reached_by_both(links, nodes, each)) for each in nodes}
    assert len(sets) == len(nodes)
    assert all(len(each) == len(nodes) // 2 + 1 + (len(nodes) // 2 % 2) for each in sets)


def test_a_ring_of_three_has_one_link_cut() -> None:
    links = cut("ring", THREE)
    assert sorted(len(reached_by_both(links, THREE, each)) for each in THREE) == [2, 2, 3]


def test_a_leader_without_peers_keeps_its_clients() -> None:
    links = cut("leader-peers", THREE)
    assert reached_by_both(links, THREE, "n1") == {"n1"}
    assert not any(CLIENTS in link for link in links)


def test_a_deaf_leader_is_heard() -> None:
    assert cut("leader-deaf", THREE) == {("n0", "n1"), ("n2", "n1")}


def test_one_way_is_one_way() -> None:
    ((source, target),) = cut("one-way", THREE)
    assert source == "n1"
    assert target in {"n0", "n2"}


def test_clients_reach_a_stale_leader_only() -> None:
    links = cut("clients-minority", FIVE)
    reached = [each for each in FIVE if (CLIENTS, each) not in links]
    assert len(reached) == 2
    assert "n1" in reached
    assert reached_by_both(links, FIVE, "n1") == set(reached)


def test_peers_only_leaves_the_clients() -> None:
    assert cut("peers-only", THREE) == set(permutations(THREE, 2))


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_group_without_a_leader_can_be_struck(partition: Partition) -> None:
    assert cut(partition, THREE, leader=None)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_seed_gives_the_same_cut(partition: Partition) -> None:
    assert cut(partition, FIVE, 7) == cut(partition, FIVE, 7)

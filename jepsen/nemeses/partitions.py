"""Partitions, and the links that each cuts. Pure: names in, directed links out."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Literal, get_args

from jepsen.systems.api import CLIENTS, Link

Partition = Literal[
    "halves",
    "one",
    "leader",
    "leader-peers",
    "leader-deaf",
    "bridge",
    "ring",
    "one-way",
    "clients-minority",
    "peers-only",
]
PARTITIONS: tuple[Partition, ...] = get_args(Partition)


def between(some: Iterable[str], others: Iterable[str]) -> set[Link]:
    """Return both directions of every link from one side to the other."""
    others = list(others)
    return {link for one in some for two in others for link in ((one, two), (two, one))}


def cut_links(
    partition: Partition, nodes: Sequence[str], leader: str | None, chance: random.Random
) -> set[Link]:
    """Choose the links that a partition cuts.

        halves            a majority with its clients on one side, the rest on the other
        one               a random node hears nobody, clients included, and nobody hears it
        leader            the same with the leader
        leader-peers      the leader and its followers do not hear each other, clients reach all of them
        leader-deaf       what the leader says reaches its followers, what they answer does not reach it
        bridge            two sides that do not hear each other; one node hears both
        ring              each node hears a majority, no two the same one (with three: its two neighbours,
                          so one link between two nodes is cut)
        one-way           what the leader says does not reach one follower; the other way is open
        clients-minority  clients reach only a minority that hears nobody else
        peers-only        no node hears another, all hear the clients

    While nobody leads a random node stands for the leader.
    """
    order = list(nodes)
    chance.shuffle(order)
    first = leader if leader is not None and leader in order else order[0]
    followers = [name for name in order if name != first]
    minority_size = (len(order) - 1) // 2
    match partition:
        case "halves":
            lost = order[: max(1, minority_size)] if len(order) > 1 else order
            return between(lost, [name for name in order if name not in lost] + [CLIENTS])
        case "one":
            return _isolate(order[0], order)
        case "leader":
            return _isolate(first, order)
        case "leader-peers":
            return between([first], followers)
        case "leader-deaf":
            return {(follower, first) for follower in followers}
        case "bridge":
            return _bridge(order)
        case "ring":
            return _majorities_ring(order)
        case "one-way":
            return {(first, followers[0])} if followers else set()
        case "clients-minority":
            # The leader is in it when there is one: a stale leader is the harder case.
            seen = [first, *followers][: max(1, minority_size)]
            unseen = [name for name in order if name not in seen]
            return between(seen, unseen) | between([CLIENTS], unseen)
        case "peers-only":
            return set(permutations(order, 2))


def _isolate(name: str, nodes: Sequence[str]) -> set[Link]:
    return between([name], [*(each for each in nodes if each != name), CLIENTS])


def _bridge(order: Sequence[str]) -> set[Link]:
    half = len(order) // 2
    return between(order[:half], order[half + 1 :])


def _majorities_ring(order: Sequence[str]) -> set[Link]:
    """Return what leaves each node its nearest neighbours on the ring only, just enough for a majority with itself.

    Three nodes are all neighbours of each other; there one link is cut, so that only one node
    still hears everybody.
    """
    count = len(order)
    if count == 3:
        return between([order[0]], [order[1]])
    reach = (count // 2 + 1) // 2  # a majority without oneself, half of it on each side
    cut: set[Link] = set()
    for at, one in enumerate(order):
        for distance in range(reach + 1, count - reach):
            cut |= between([one], [order[(at + distance) % count]])
    return cut

"""Our group as real processes with one topic: what measurements begin with that know whose brokers they have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.remoting import DEFAULT_TOPIC, address_of, create_topic, leader_address
from jepsen.processes import Group, Process, poll

BODY_BYTES: Final = 1024
QUEUE_COUNT: Final = 8
BATCH_COUNT: Final = 100
PULL_COUNT: Final = 32
LEADER_PATIENCE_S: Final = 120.0


def find_leader(group: Group, topic: str) -> Process:
    """Return the node that the route names as brokerId 0.

    Raises:
        LookupError: there is none.
        OSError: the name server does not answer.
    """
    return group.by_address[leader_address(address_of(group.name_servers[0].address), topic)]


def made_topic(group: Group, topic: str) -> Process:
    """Create a topic in a group that was just started; return the node that leads.

    Raises:
        TimeoutError: nobody leads, or whoever does takes no topic.
    """
    found: list[Process] = []
    last: list[Exception] = []

    def is_created() -> bool:
        """Order it again where another one began to lead meanwhile."""
        try:
            leader = find_leader(group, DEFAULT_TOPIC)
            create_topic(address_of(leader.address), topic, QUEUE_COUNT)
            found[:] = [leader]
        except (LookupError, OSError, RuntimeError) as error:
            last[:] = [error]
        return bool(found)

    if not poll(is_created, LEADER_PATIENCE_S):
        why = f" ({last[0]})" if last else ""
        raise TimeoutError(
            f"no leader that takes a topic after {LEADER_PATIENCE_S:.0f} s{why}; logs are in {group.folder}"
        )
    return found[0]


@contextlib.contextmanager
def broker_group(folder: Path, topic: str) -> Iterator[tuple[Group, Process, list[Process]]]:
    """Start a fresh group with one topic; yields the group, its leader, its followers."""
    with Group(folder, settings="") as group:
        group.start()
        group.wait_listening()
        leader = made_topic(group, topic)
        yield group, leader, [node for node in group.nodes if node is not leader]

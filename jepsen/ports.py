"""Free loopback ports for processes that will be killed and started again.

A port from `bind(0)` lies in the range from which the kernel takes the local ends of outgoing
connections, so while a node is down somebody else may get its port. Ports from below that range stay free.

Whether a port is free says nothing of who else has just chosen it, and starts to listen a moment later. So
each process that asks has a block of ports for itself. The claim is an abstract Unix socket: the kernel lets
go of it when the process ends, however it ends.
"""

from __future__ import annotations

import atexit
import itertools
import random
import socket
from collections.abc import Iterator
from functools import cache

LOWEST, HIGHEST = 20_000, 31_999  # Linux hands out 32768-60999 (ip_local_port_range)
VIP_DISTANCE = 2  # RocketMQ's old clients send to a broker's port - 2
BLOCK_PORTS = (
    240  # a process that wants more at a time than half of them gets none; 50 processes get some
)


class PortBlock:
    """A range of ports that no other process is given while this one lives.

    Raises:
        OSError: another process has it.
    """

    def __init__(self, number: int) -> None:
        self._claim = socket.socket(socket.AF_UNIX)
        try:
            self._claim.bind(f"\0jepsen-ports-{number}")
        except OSError:
            self._claim.close()
            raise
        first = LOWEST + number * BLOCK_PORTS
        fours = range(first, first + BLOCK_PORTS, 2 * VIP_DISTANCE)
        # Of four numbers two are neighbours of the other two.
        ports = [four + place for four in fours for place in (VIP_DISTANCE, VIP_DISTANCE + 1)]
        self.port_count = len(ports)
        # In turn: who was killed has its port until all others were given away.
        self.ports: Iterator[int] = itertools.cycle(ports)

    def close(self) -> None:
        """Give the block back to other processes."""
        self._claim.close()


@cache
def own_block() -> PortBlock:
    """Return the block of this process.

    Raises:
        OSError: as many processes as there are blocks have claimed one.
    """
    count = (HIGHEST + 1 - LOWEST) // BLOCK_PORTS
    for number in random.sample(range(count), count):
        try:
            block = PortBlock(number)
        except OSError:
            continue
        atexit.register(block.close)
        return block
    raise OSError(f"{count} other processes have all ports between {LOWEST} and {HIGHEST}")


def is_free(port: int) -> bool:
    """Return whether a server could listen on 127.0.0.1:port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` ports that are free now, each with its neighbour two below.

    Raises:
        OSError: too few are free.
    """
    block = own_block()
    found: list[int] = []
    for port in itertools.islice(block.ports, block.port_count):
        if all(is_free(one) for one in (port, port - VIP_DISTANCE)):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"found {len(found)} of {count} free ports between {LOWEST} and {HIGHEST}")


def free_port_rows(count: int, *, length: int, step: int) -> list[int]:
    """Return the first ports of `count` rows, each of `length` ports that are `step` apart and free now.

    All of them are of this process's block: behind its end another process's begins.

    Raises:
        OSError: too few are free.
    """
    chosen: list[int] = []
    ours: set[int] = set()
    for _ in range(2):  # half of the block, mostly
        half = free_ports(own_block().port_count // 2)
        ours.update(half, (port - VIP_DISTANCE for port in half))
        for first in half:
            row = range(first, first + length * step, step)
            is_apart = all(abs(first - one) > length * step for one in chosen)
            if is_apart and ours.issuperset(row) and all(map(is_free, row)):
                chosen.append(first)
                if len(chosen) == count:
                    return chosen
    raise OSError(f"found {len(chosen)} of {count} rows of {length} free ports")

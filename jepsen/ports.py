"""Free loopback ports for processes that will be killed and started again.

A port from `bind(0)` lies in the range from which the kernel takes the local ends of outgoing
connections, so while a node is down somebody else may get its port. Ports from below that range stay free.
"""

from __future__ import annotations

import random
import socket

LOWEST, HIGHEST = 20_000, 31_999  # Linux hands out 32768-60999 (ip_local_port_range)
VIP_DISTANCE = 2  # a broker also listens on its port - 2 (remoting.md 6.6)


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:port now."""
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
        OSError: the range is exhausted.
    """
    chance = random.Random()  # other runs on this machine must not pick the same ports
    found: list[int] = []
    taken: set[int] = set()
    for _ in range(10_000):
        port = chance.randint(LOWEST + VIP_DISTANCE, HIGHEST)
        pair = {port, port - VIP_DISTANCE}
        if not pair & taken and all(is_free(one) for one in pair):
            found.append(port)
            taken |= pair
            if len(found) == count:
                return found
    raise OSError(f"found {len(found)} of {count} free ports between {LOWEST} and {HIGHEST}")

"""One direction of a proxied connection, under a clock of its own."""

from __future__ import annotations

import random
from typing import cast

import trio
import trio.testing

from jepsen.nemeses.proxy_process import LinkState, ProxyLane
from jepsen.systems.api import CUT, Shape


class Target:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.data = b""

    async def send_all(self, data: bytes) -> None:
        self.data += data


async def test_a_cut_in_the_very_moment_of_a_release_swallows_the_bytes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Which of the two tasks runs first is anybody's guess: both must be right."""
    for _ in range(30):
        link, target = LinkState(), Target()
        stream = cast("trio.SocketStream", target)
        lane = ProxyLane(link, stream, stream, is_dialer=True, chance=random.Random(1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lane._write)
            lane._enqueue(b"late", Shape(delay_ms=10))
            await trio.sleep(0.01)
            link.shape = CUT
            lane.change()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert (target.data, link.swallowed_bytes) in {(b"late", 0), (b"", 4)}

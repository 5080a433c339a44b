"""Waits for the first route, and kills leaders: what tests of clients do to a real group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from dledger_mq import NameServersUnreachableError, NoRouteError, Producer
from jepsen.history.ops import OpLog
from jepsen.nemeses.registry import named
from jepsen.nemeses.schedule import FaultSchedule, Pace
from jepsen.processes import Group
from jepsen.systems.brokers import BrokerSystem

ROUTE_WAIT_S = 0.05
LOOK_S = 0.02
KILL_LEADER = "kill:leader"


async def a_moment() -> None:
    """Let a little time pass: what is waited for has no event of its own, and looking all the time costs a core."""
    await trio.sleep(LOOK_S)


async def wait_for_queues(producer: Producer, topic: str, timeout_s: float = 240) -> None:
    """Wait until somebody serves the topic, or would create it."""
    with trio.fail_after(timeout_s):
        while True:
            try:
                await producer.queues(topic)
            except (NoRouteError, NameServersUnreachableError):
                await trio.sleep(ROUTE_WAIT_S)
            else:
                return


class LeaderKiller:
    """Kills whoever leads with SIGKILL, so many times, and starts it again; the next kill waits for all nodes."""

    def __init__(self, system: BrokerSystem, kills: int, period_s: float, down_s: float) -> None:
        quiet_s = period_s - down_s
        self._schedule = FaultSchedule(
            [named(KILL_LEADER)],
            system,
            OpLog(),
            seed=0,
            pace=Pace((down_s, down_s), (quiet_s, quiet_s)),
            rounds=kills,
        )

    @property
    def done(self) -> int:
        return self._schedule.injected[KILL_LEADER]

    async def run(self) -> None:
        await self._schedule.run()
        assert self._schedule.crashes == []


@asynccontextmanager
async def killer_of(
    group: Group, *, kills: int, period_s: float, down_s: float
) -> AsyncIterator[LeaderKiller]:
    """Watch a group, so that somebody knows who leads."""
    system = BrokerSystem(group)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(system.watch, OpLog())
        yield LeaderKiller(system, kills, period_s, down_s)
        nursery.cancel_scope.cancel()

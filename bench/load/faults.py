"""Faults of a group that serves: how long nothing is acknowledged when its leader dies, or when all of it did.

A client that asks for the route all the time is what waits: what another client feels beyond that is its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from bench.load.results import Measured, round_of
from bench.load.running import LoadError
from bench.loadgen import send_template
from bench.remoting import address_of, call, leader_address
from bench.systems.brokers import MeasuredGroup
from jepsen.processes import poll, wait_listening

PATIENCE_S: Final = 120.0
TRY_S: Final = 5.0
"""Of one send; a leader that does not answer for longer is asked for again."""


def measure_failover(group: MeasuredGroup, topic: str, *, rounds: int) -> Measured:
    """Kill the leader with kill -9 and start it again once another one acknowledges, so many times.

    Raises:
        LoadError: nothing is acknowledged any more.
    """

    def kill_leader() -> Callable[[], None]:
        leader = group.wait_leader(topic)
        leader.kill()
        return leader.start

    return _measure(group, topic, kill_leader, rounds)


def measure_recovery(group: MeasuredGroup, topic: str, *, rounds: int) -> Measured:
    """Kill all brokers with kill -9 and start them at once, so many times.

    Raises:
        LoadError: nothing is acknowledged any more.
    """

    def kill_all() -> Callable[[], None]:
        for broker in group.brokers:
            broker.kill()
        for broker in group.brokers:
            broker.start()
        return lambda: None

    return _measure(group, topic, kill_all, rounds)


def _measure(
    group: MeasuredGroup, topic: str, strike: Callable[[], Callable[[], None]], rounds: int
) -> Measured:
    """Strike, wait for the next acknowledgement, mend, and wait until all listen; a round is one strike."""
    found = []
    for _ in range(rounds):
        began = time.monotonic()
        mend = strike()
        if not poll(lambda: is_acknowledged(group, topic), PATIENCE_S, 0.005):
            raise LoadError(f"nothing was acknowledged within {PATIENCE_S:.0f} s")
        taken_s = time.monotonic() - began
        found.append(round_of([taken_s], taken_s))
        mend()
        wait_listening(group.brokers, PATIENCE_S)
    return Measured(rounds=found)


def is_acknowledged(group: MeasuredGroup, topic: str) -> bool:
    """Return whether the leader that the route names acknowledges a send now."""
    send = send_template(topic, 0, b"after")
    with contextlib.suppress(LookupError, OSError):
        leader = address_of(leader_address(address_of(group.namesrv), topic))
        return bool(call(leader, send, TRY_S)[0]["code"] == 0)
    return False

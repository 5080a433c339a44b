"""How many calls does a leader make for a send, and for a pull? Counted, not timed: the same on every machine.

    python -m bench.calls [--top 40]

One broker, alone in its group, with a simulated clock, disk and client; the code that it runs is the shipped one, from
the bytes of a connection to the bytes of its answers. Calls are those of our functions and of the built-in functions
that these call; what the simulator itself does is left out. Counts are exact and repeat. They say whether a change
makes the path longer, not how long a call takes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.loadgen import FrameTemplate, pull_template, send_template
from broker.store.state import BrokerState
from broker.testing.broker_cluster import BrokerCluster
from broker.testing.settings import BrokerSimSettings
from broker.testing.sim_broker import SimBroker
from broker.testing.wires import SimConnection
from dledger.raft.entry import Entry
from dledger.testing.sim_node import SimNode

BODY_BYTES: Final = 1024
IN_FLIGHT: Final = 64
ROUNDS: Final = 40
PULL_COUNT: Final = 32
TOPIC: Final = "bench"
QUEUE_COUNT: Final = 8

_ROOT: Final = Path(__file__).resolve().parents[1]
_OURS: Final = tuple(f"{_ROOT / package}/" for package in ("dledger", "dledger_mq", "broker"))
_LENGTH: Final = struct.Struct(">i")

Function = tuple[str, int, str]
"""File, line and name, as `pstats` has them; built-in functions have the file "~"."""


class Alone(BrokerCluster):
    """A group of one member, without other brokers."""

    def applied(self, broker: SimBroker, node: SimNode, entry: Entry) -> None:
        """Return at once, as nothing waits for the fold here."""


class BenchClient:
    """A connection that counts answers by their length and does not decode them."""

    def __init__(self, cluster: Alone, end: SimConnection) -> None:
        self._cluster = cluster
        self._end = end
        self._buffer = b""
        self._frame_count = 0
        self._number = 0
        on_bytes(end, self._arrive)

    def ask(self, templates: list[FrameTemplate]) -> None:
        """Send requests in one piece and wait for all answers."""
        frames = []
        for template in templates:
            frames.append(template.frame(self._number))
            self._number += 1
        awaited = self._frame_count + len(frames)
        self._end.send_nowait(b"".join(frames))
        end_ms = self._cluster.now_ms + 10_000
        if not self._cluster.run_until(end_ms, lambda: self._frame_count >= awaited):
            raise TimeoutError(
                f"{awaited - self._frame_count} of {len(frames)} answers are missing"
            )

    def _arrive(self, data: bytes | None) -> None:
        self._buffer += data or b""
        while len(self._buffer) >= _LENGTH.size:
            size_bytes = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < size_bytes:
                break
            assert b'"code":0,' in self._buffer[:size_bytes], self._buffer[:size_bytes]
            self._frame_count += 1
            self._buffer = self._buffer[size_bytes:]


def on_bytes(end: SimConnection, arrive: Callable[[bytes | None], None]) -> None:
    """Give the bytes that come to an end to `arrive`: nothing is decoded on that side."""
    end.arrive = arrive  # type: ignore[method-assign, assignment]


def make_group(state_type: type[BrokerState] = BrokerState) -> tuple[Alone, BenchClient]:
    """Start a leader with a topic, and a client of it."""
    settings = BrokerSimSettings(
        1,
        node_count=1,
        snapshot_interval_ms=0,
        segment_size_bytes=64 * 1024 * 1024,
        cache_bytes_max=64 * 1024 * 1024,
        queue_count=QUEUE_COUNT,
        entries_bytes_max=1 << 20,
    )
    cluster = Alone(settings, state_type=state_type)
    node = cluster.nodes[cluster.voters[0]]
    cluster.start(node)
    broker = cluster.brokers[node.node_id]
    if not cluster.run_until(60_000, lambda: broker.log.is_serving):
        raise TimeoutError("nobody leads")
    end = cluster.connect("10.0.0.1:40000", node.node_id)
    assert end is not None, "it is up"
    client = BenchClient(cluster, end)
    create = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": str(QUEUE_COUNT),
        "writeQueueNums": str(QUEUE_COUNT),
        "perm": "6",
    }
    client.ask([FrameTemplate(17, create)])
    return cluster, client


def count_sends(client: BenchClient, in_flight: int) -> Counter[Function]:
    """Count the calls of `ROUNDS` rounds of single sends, each of `in_flight` in one piece."""
    templates = [send_template(TOPIC, queue, b"x" * BODY_BYTES) for queue in range(QUEUE_COUNT)]
    rounds = [templates[number % QUEUE_COUNT] for number in range(in_flight)]
    client.ask(rounds)
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(ROUNDS):
        client.ask(rounds)
    profile.disable()
    return our_calls(profile)


def count_pulls(client: BenchClient) -> Counter[Function]:
    """Count the calls of `ROUNDS` pulls, one after another, each of `PULL_COUNT` messages."""
    pull = pull_template(TOPIC, 1, 0, PULL_COUNT)  # queue 1 has been sent to in large rounds only
    client.ask([pull])
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(ROUNDS):
        client.ask([pull])
    profile.disable()
    return our_calls(profile)


def our_calls(profile: cProfile.Profile) -> Counter[Function]:
    """Return the calls by function."""
    counts: Counter[Function] = Counter()
    stats: dict[Function, tuple[Any, ...]] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for function, (_, calls, _, _, callers) in stats.items():
        if _is_ours(function):
            counts[function] += calls
        elif function[0] == "~":
            counts[function] += sum(each[1] for caller, each in callers.items() if _is_ours(caller))
    return +counts


def _is_ours(function: Function) -> bool:
    return function[0].startswith(_OURS) and "/testing/" not in function[0]


def show(what: str, counts: Counter[Function], per: int, top: int) -> None:
    """Print the sum, what the broker's layers have of it, and the most frequent functions."""
    ours = sum(count for function, count in counts.items() if function[0] != "~")
    print(
        f"{what}: {sum(counts.values()) / per:.1f} calls, {ours / per:.1f} of them of our functions"
    )
    for function, count in counts.most_common(top):
        place = function[0].removeprefix(f"{_ROOT}/")
        print(f"  {count / per:7.2f}  {place}:{function[1]} {function[2]}")


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else ""
    )
    parser.add_argument("--top", type=int, default=0, help="show so many functions of each case")
    top: int = parser.parse_args().top
    _, client = make_group()
    for in_flight in (1, IN_FLIGHT):
        counts = count_sends(client, in_flight)
        show(f"a send, {in_flight} in flight", counts, ROUNDS * in_flight, top)
    show(f"a pull of {PULL_COUNT}", count_pulls(client), ROUNDS, top)


if __name__ == "__main__":
    main()

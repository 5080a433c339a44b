"""What do a million messages in flight cost: memory, sends and pops beside them, a snapshot, a start?

    python -m bench.in_flight [--mib 940] [--groups 6] [--seconds 15] [--per-second 100] [--json]

One group of three, and a topic of messages of 1 KiB. Consumer groups pop it one after the other, for three hours, and
acknowledge every second message, so that each of the others lies on its own, which is the dearest way; each group goes
on until the broker says that it has all that it may have (docs/pop.md, "Limits"), or has had every message. Then sends
at a steady rate are held against those before the first pop, as are pops with their acknowledgements in a group of its
own, which has room kept for it; and a follower is ended with SIGKILL and opened. All of one run, on one machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import trio
from rich.console import Console
from rich.table import Table

from bench.filling import fill
from bench.hot_sends import Felt
from bench.hot_traffic import sends_beside
from bench.log_size import last_snapshot, own_mib, reopened
from bench.progress import StageBar, Stages
from bench.real_group import made_topic
from dledger_mq import RequestFailedError, SimpleConsumer
from dledger_mq.remoting.codes import ResponseCode
from jepsen.processes import Group, Process

TOPIC: Final = "InFlight"
INVISIBLE_S: Final = 3 * 3600.0
POPS_AT_ONCE: Final = 16
LIMIT_PATIENCE_S: Final = 3.0
"""The time in which a pop that is refused for the limit is tried."""
POPS_MEASURED: Final = 200
TAKEN_PER_S: Final = 8000
"""For the bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightFigures:
    """The figures with nothing in flight, or with all of it.

    Attributes:
        leader_mib: memory without pages of files.
        follower_mib: as much of one follower.
        sends: what a producer at a steady rate felt.
        pops: a pop of one message, with its acknowledgement.
        opened_s: from the start of a follower that was killed until it is level.
        snapshot: what the leader's log says of its last one.
    """

    in_flight: int
    leader_mib: float
    follower_mib: float
    sends: Felt
    pops: Felt
    opened_s: float
    snapshot: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run: both looks, and how fast the messages were taken, acknowledgements among them."""

    taken_per_s: float
    without: InFlightFigures
    with_it: InFlightFigures


class HoldingGroup:
    """A consumer group that pops, acknowledges every second message, and holds the others."""

    def __init__(self, namesrv: str, name: str) -> None:
        self._consumer = SimpleConsumer(
            namesrv,
            name,
            subscriptions={TOPIC: "*"},
            start_from="first",
            timeout_s=LIMIT_PATIENCE_S,
        )
        self.held = 0
        self._is_full = False

    async def take_all(self) -> None:
        """Pop until nothing more is to be had.

        Raises:
            ExceptionGroup: a pop was refused for another reason than the limit, or an acknowledgement.
        """
        async with self._consumer, trio.open_nursery() as nursery:
            for _ in range(POPS_AT_ONCE):
                nursery.start_soon(self._take)

    async def _take(self) -> None:
        """Pop, acknowledge and hold, until one of the tasks finds that nothing more is to be had."""
        while not self._is_full:
            try:
                messages = await self._consumer.receive(32, INVISIBLE_S, wait_s=0)
            except RequestFailedError as error:
                if error.code != ResponseCode.POLLING_FULL:
                    raise
                messages = ()
            if not messages:
                self._is_full = True
                return
            await self._consumer.ack(messages[1::2])
            self.held += len(messages[::2])


async def pops_felt(namesrv: str, name: str) -> Felt:
    """Return what pops of one message took, each with its acknowledgement, one after the other."""
    latencies_s = []
    consumer = SimpleConsumer(namesrv, name, subscriptions={TOPIC: "*"}, start_from="first")
    async with consumer:
        await consumer.ack(await consumer.receive(1))  # finds its way
        for _ in range(POPS_MEASURED):
            began_s = time.perf_counter()
            messages = await consumer.receive(1)
            await consumer.ack(messages)
            assert len(messages) == 1, "the topic has more"
            latencies_s.append(time.perf_counter() - began_s)
    return Felt.of(latencies_s)


@dataclass(frozen=True, slots=True)
class _Bench:
    """A running group, and how it is looked at."""

    group: Group
    leader: Process
    follower: Process
    seconds: float
    per_s: float

    @property
    def namesrv(self) -> str:
        """The address that clients ask."""
        return self.group.name_servers[0].address

    def look(self, in_flight: int, stages: Stages) -> InFlightFigures:
        """Measure what a `InFlightFigures` has.

        Raises:
            TimeoutError: the follower does not open.
            RuntimeError: another node leads by now, or a send was refused.
        """
        stages.stage(f"sends beside {in_flight:,} in flight", self.seconds)
        sending = sends_beside(
            self.group, self.leader, TOPIC, per_s=self.per_s, seconds=self.seconds
        )
        with sending as (_, sends):
            pass
        stages.stage("pops", 5)
        pops = trio.run(pops_felt, self.namesrv, f"Looking-{in_flight}")
        leader_mib = own_mib(self.leader)
        stages.stage("a follower opens", 5)
        opened_s = reopened(self.follower, self.leader)
        found = InFlightFigures(
            in_flight=in_flight,
            leader_mib=leader_mib,
            follower_mib=own_mib(self.follower),
            sends=sends,
            pops=pops,
            opened_s=opened_s,
            snapshot=last_snapshot(self.leader),
        )
        stages.line(json.dumps(asdict(found)))
        return found

    def take(self, groups: int, stages: Stages) -> tuple[int, float]:
        """Let so many groups take what they may have; return how much that is, and the seconds it took."""
        held, began_s = 0, time.monotonic()
        for number in range(groups):
            stages.stage(f"{held:,} in flight", 400_000 / 2**number / TAKEN_PER_S)
            holder = HoldingGroup(self.namesrv, f"Holding-{number}")
            trio.run(holder.take_all)
            held += holder.held
        return held, time.monotonic() - began_s


def measure(options: argparse.Namespace, folder: Path, stages: Stages) -> Result:
    """Run one group through it.

    Raises:
        TimeoutError: nobody leads, or a member does not open.
        RuntimeError: a request was refused, or another node leads by now.
    """
    with Group(folder, settings="") as group:
        group.start()
        group.wait_listening()
        leader = made_topic(group, TOPIC)
        follower = next(node for node in group.nodes if node is not leader)
        stages.stage("messages", options.mib / 40)
        fill(leader, TOPIC, options.mib)
        bench = _Bench(group, leader, follower, options.seconds, options.per_second)
        without = bench.look(0, stages)
        held, took_s = bench.take(options.groups, stages)
        with_it = bench.look(held, stages)
    return Result(taken_per_s=2 * held / took_s, without=without, with_it=with_it)


def table_of(result: Result) -> Table:
    """Return the two looks as rows."""
    table = Table(
        title=f"messages in flight; taken at {result.taken_per_s:,.0f}/s (times: p50, p99)"
    )
    columns: dict[str, Callable[[InFlightFigures], str]] = {
        "in flight": lambda look: f"{look.in_flight:,}",
        "leader MiB": lambda look: f"{look.leader_mib:.0f}",
        "opened MiB": lambda look: f"{look.follower_mib:.0f}",
        "sends ms": lambda look: _ms(look.sends),
        "pops ms": lambda look: _ms(look.pops),
        "opened s": lambda look: f"{look.opened_s:.1f}",
        "snapshot MB": lambda look: f"{look.snapshot.get('bytes', 0) / 1e6:.1f}",
        "held ms": lambda look: f"{look.snapshot.get('held_ms', 0):.0f}",
    }
    for name in columns:
        table.add_column(name, justify="right")
    for look in (result.without, result.with_it):
        table.add_row(*(text(look) for text in columns.values()))
    return table


def _ms(felt: Felt) -> str:
    return f"{felt.p50_us / 1e3:.1f}, {felt.p99_us / 1e3:.1f}"


def main() -> int:
    """Measure once, and print it."""
    parser = argparse.ArgumentParser(
        "bench.in_flight", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--mib", type=int, default=940, help="size of the log before the pops (default 940)")
    add("--groups", type=int, default=6, help="that take what they may have (default 6)")
    add("--seconds", type=float, default=15, help="of each part with sends (default 15)")
    add("--per-second", type=float, default=100, help="sends of the producer (default 100)")
    add("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    total_s = options.mib / 40 + 2 * options.seconds + 20 + 800_000 / TAKEN_PER_S
    try:
        with (
            tempfile.TemporaryDirectory(prefix="dledger-in-flight-") as folder,
            StageBar(console, total_s) as stages,
        ):
            result = measure(options, Path(folder), stages)
    except (OSError, RuntimeError, TimeoutError) as error:
        console.print(f"bench.in_flight: {error}", highlight=False, markup=False)
        return 1
    console.print(table_of(result))
    if options.json:
        sys.stdout.write(json.dumps(asdict(result)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

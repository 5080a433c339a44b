"""How exactly do due messages come, and what do a million pending ones cost?

    python -m bench.timers [--seconds 5] [--rates 10,10000] [--pending 1000000] [--json]

Accuracy: a three-node group of real processes; messages that fall due at the given rate are sent ahead, and
for each delivered one the store time of its delivery (when the leader wrote it) is held against its due
time. The fold: puts, memory, a snapshot's pause, deliveries and recalls of so many pending ones in this process.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import trio
from rich.console import Console
from rich.table import Table

from broker.store.timer_files import TimerFiles
from broker.store.timers import PendingTimer, Timers
from dledger_mq import Message, MessageQueue, NoRouteError, Producer, PullConsumer
from dledger_mq.message.numbers import PhysicalOffset
from jepsen.processes import Group

TOPIC = "Timers"
LEAD_MS = 1500
SEND_PER_S = 4000  # how fast messages are sent ahead; the rest of their time they wait
BATCH = 512


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Milliseconds between due time and store time of the delivery; none may be below 0."""

    per_second: int
    count: int
    delivered_per_second: float
    min_ms: int
    p50_ms: int
    p99_ms: int
    max_ms: int


@dataclass(frozen=True, slots=True)
class FoldCost:
    """The cost of so many pending timers to one replica; times in microseconds each, unless named otherwise."""

    pending: int
    put_us: float
    memory_mb: float
    file_mb: float
    snapshot_pause_ms: float
    deliver_us: float
    recall_us: float


async def measure_accuracy(namesrv: str, per_second: int, seconds: float) -> Accuracy:
    """Send messages that fall due at a rate, wait for them, compare."""
    count = int(per_second * seconds)
    async with Producer(namesrv, "bench", timeout_s=60) as producer:
        await _first_send(producer)
        queue = (await producer.queues(TOPIC))[0]
        async with PullConsumer(namesrv, "bench") as consumer:
            start = await consumer.max_offset(queue)
            first_ms = time.time_ns() // 1_000_000 + LEAD_MS + count * 1000 // SEND_PER_S
            for number in range(count):
                due_ms = first_ms + number * 1000 // per_second
                await producer.submit(Message(TOPIC, b"x" * 64, deliver_at_ms=due_ms), queue=queue)
            await producer.flush()
            if time.time_ns() // 1_000_000 > first_ms:
                sys.stderr.write(
                    "sending ahead took too long: the first came late for that reason\n"
                )
            return await _delivered(
                consumer, queue, offset=start, count=count, per_second=per_second
            )


async def _first_send(producer: Producer) -> None:
    """Wait until the group has a leader that the name server knows, and create the topic."""
    with trio.fail_after(30):
        while True:
            try:
                await producer.send(Message(TOPIC, b"first"))
            except NoRouteError:
                await trio.sleep(0.1)
            else:
                return


async def _delivered(
    consumer: PullConsumer, queue: MessageQueue, *, offset: int, count: int, per_second: int
) -> Accuracy:
    """Read delivered timers and compare store times with due times, in ms; `late` is sorted for the percentiles."""
    late: list[int] = []
    stored: list[int] = []
    while len(late) < count:
        pulled = await consumer.pull(queue, offset, hold_s=5)
        for message in pulled.messages:
            late.append(message.store_timestamp_ms - int(message.properties["TIMER_OUT_MS"]))
            stored.append(message.store_timestamp_ms)
        offset = pulled.next_offset
    late.sort()
    span_s = max(1, stored[-1] - stored[0]) / 1000
    return Accuracy(
        per_second,
        count,
        round(count / span_s, 1),
        late[0],
        late[len(late) // 2],
        late[len(late) * 99 // 100],
        late[-1],
    )


def measure_fold(pending: int) -> FoldCost:
    """Put, copy, recall and deliver so many in this process."""
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        files = TimerFiles(Path(folder))
        timers = Timers(files)
        before_mb = _memory_mb()
        units = [
            PendingTimer(draw.randrange(10**12, 10**12 + 259_200_000), PhysicalOffset(n))
            for n in range(1000)
        ]
        put_s = 0.0
        for start in range(0, pending, len(units)):
            due = [
                PendingTimer(
                    unit.due_ms + start, PhysicalOffset(start * 1000 + unit.physical_offset)
                )
                for unit in units
            ]
            begun = time.perf_counter()
            for timer in due:
                timers.add(timer)
            put_s += time.perf_counter() - begun
        memory_mb = _memory_mb() - before_mb
        file_mb = sum(path.stat().st_size for path in Path(folder).rglob("*.sqlite")) / 1e6
        begun = time.perf_counter()
        frozen = timers.saved_units()
        pause_ms = (time.perf_counter() - begun) * 1000
        saved_bytes = sum(map(len, frozen))
        assert saved_bytes == 16 * timers.count, f"{saved_bytes} bytes of {timers.count} units"
        deliver_us = _deliver_us(timers, pending // 5)
        recall_us = _recall_us(timers)
        files.close()
    return FoldCost(
        pending, put_s / pending * 1e6, memory_mb, file_mb, pause_ms, deliver_us, recall_us
    )


def _deliver_us(timers: Timers, count: int) -> float:
    left, begun = count, time.perf_counter()
    while left > 0 and (due := timers.due(2 * 10**12, BATCH)):
        timers.deliver(due)
        left -= len(due)
    return (time.perf_counter() - begun) / max(1, count) * 1e6


def _recall_us(timers: Timers) -> float:
    units = list(timers.units())
    places = [_place(unit) for unit in units[:: max(1, len(units) // 1000)]]
    begun = time.perf_counter()
    for number, place in enumerate(places):
        offsets = [place.physical_offset]
        timers.recall(place.due_ms, b"12345678", offsets, physical_offset=PhysicalOffset(number))
    return (time.perf_counter() - begun) / len(places) * 1e6


def _place(unit: bytes) -> PendingTimer:
    due_ms, physical_offset = int.from_bytes(unit[:8], "big"), int.from_bytes(unit[8:], "big")
    return PendingTimer(due_ms, PhysicalOffset(physical_offset))


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def measure_group(rates: list[int], seconds: float) -> Iterator[Accuracy]:
    """Measure one group of real processes at all rates."""
    with tempfile.TemporaryDirectory() as folder, Group(Path(folder), settings="") as group:
        group.start()
        group.wait_listening()
        for rate in rates:
            yield trio.run(measure_accuracy, group.name_servers[0].address, rate, seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rates", default="10,10000", help="messages that fall due per second")
    parser.add_argument("--pending", type=int, default=1_000_000, help="0: leave the fold out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    costs = [measure_fold(options.pending)] if options.pending else []
    rates = [int(rate) for rate in options.rates.split(",") if rate]
    accuracies = list(measure_group(rates, options.seconds)) if rates else []
    if options.json:
        everything: list[FoldCost | Accuracy] = [*costs, *accuracies]
        json.dump([asdict(row) for row in everything], sys.stdout, indent=2)
        return
    console = Console()
    for rows in ([asdict(row) for row in costs], [asdict(row) for row in accuracies]):
        if rows:
            table = Table(*rows[0])
            for row in rows:
                texts = (f"{v:.1f}" if isinstance(v, float) else str(v) for v in row.values())
                table.add_row(*texts)
            console.print(table)


if __name__ == "__main__":
    main()

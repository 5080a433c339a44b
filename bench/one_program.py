"""How much does one program with `dledger_mq` consume from a group, and send to it?

    python -m bench.one_program [--messages 600000] [--per-pull 256] [--folder DIR] [--json]

Three nodes on this machine, sends synced on a majority, messages of 1 KiB in 16 queues. A generator in C fills the
topic; then this process, with one event loop, consumes all of it by a handler of batches, `--per-pull` messages at a
time, which brokers are set up to give (they give 32 unless told otherwise), and sends as many itself, without waiting
for each answer, one by one and in batches of 100. Each with its processor time in this process. The brokers share the
machine: a rate says what all of them together reach, the processor time what this program would alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import anyio
from rich.console import Console
from rich.table import Table

from bench.loadgen import run_load, send_template
from bench.real_group import BODY_BYTES, QUEUE_COUNT, made_topic
from dledger_mq import Message, Producer, PushConsumer, ReceivedMessage
from jepsen.processes import Group

TOPIC: Final = "Bench"
BODY: Final = b"x" * BODY_BYTES
BATCH_COUNT: Final = 100
SECONDS_MAX: Final = 600.0

Mark = Callable[[], None]
"""Called where the measured part begins, and where it ends."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The figures of one way to use the client."""

    way: str
    messages: int
    per_second: float
    cpu_us: float


async def consume(namesrv: str, count: int, per_pull: int, mark: Mark) -> None:
    """Take so many messages, from the first of each queue on."""
    got, done = 0, anyio.Event()

    async def handle(messages: tuple[ReceivedMessage, ...]) -> None:
        nonlocal got
        if not got:
            mark()
        got += len(messages)
        if got >= count > got - len(messages):
            mark()
            done.set()

    async with PushConsumer(
        namesrv,
        "bench",
        subscriptions={TOPIC: "*"},
        start_from="first",
        batch_handler=handle,
        consume_batch_max=per_pull,
        pull_batch=per_pull,
    ):
        await done.wait()


async def submit(producer: Producer, count: int) -> None:
    """Send one by one."""
    for _ in range(count):
        await producer.submit(Message(TOPIC, BODY))


async def submit_batches(producer: Producer, count: int) -> None:
    """Send in batches."""
    for _ in range(count // BATCH_COUNT):
        await producer.submit_batch([Message(TOPIC, BODY) for _ in range(BATCH_COUNT)])


async def produce(
    namesrv: str, count: int, send: Callable[[Producer, int], Awaitable[None]], mark: Mark
) -> None:
    """Send so many messages, and wait until the last one is stored."""
    async with Producer(namesrv, "bench") as producer:
        await producer.send(Message(TOPIC, BODY))
        mark()
        await send(producer, count)
        await producer.flush()
        mark()


def figure(way: str, count: int, use: Callable[[Mark], Awaitable[None]]) -> Figure:
    """Run one way.

    Raises:
        TimeoutError: it was not through in ten minutes.
    """
    marks: list[tuple[float, float]] = []

    async def run() -> None:
        with anyio.fail_after(SECONDS_MAX):
            await use(lambda: marks.append((time.monotonic(), time.process_time())))

    anyio.run(run)
    (began, cpu_began), (ended, cpu_ended) = marks
    return Figure(way, count, count / (ended - began), 1e6 * (cpu_ended - cpu_began) / count)


def measure(folder: Path, *, messages: int, per_pull: int) -> list[Figure]:
    """Measure all ways with a new group.

    Raises:
        RuntimeError: a send was refused.
    """
    settings = "".join(
        f"maxTransfer{what}OnMessage{where}={value}\n"
        for where in ("InMemory", "InDisk")
        for what, value in (("Count", per_pull), ("Bytes", per_pull * 2 * BODY_BYTES))
    )
    templates = [send_template(TOPIC, queue, BODY) for queue in range(QUEUE_COUNT)]
    with Group(folder, settings=settings) as group:
        group.start()
        group.wait_listening()
        leader = made_topic(group, TOPIC)
        filled = run_load(
            ("127.0.0.1", leader.port),
            lambda number: templates[number % QUEUE_COUNT].frame(number),
            in_flight=1024,
            seconds=SECONDS_MAX,
            count=messages,
        )
        if filled.refused:
            raise RuntimeError(f"{filled.refused} sends were refused")
        names = group.namesrv
        whole = messages // BATCH_COUNT * BATCH_COUNT
        return [
            figure(
                f"handler of batches, {per_pull} a pull",
                messages,
                lambda mark: consume(names, messages, per_pull, mark),
            ),
            figure("submit", messages, lambda mark: produce(names, messages, submit, mark)),
            figure(
                f"submit_batch of {BATCH_COUNT}",
                whole,
                lambda mark: produce(names, whole, submit_batches, mark),
            ),
        ]


def show(found: list[Figure], console: Console) -> None:
    """Print one row for each way."""
    table = Table("way", "messages", "messages/s", "us of this process")
    for each in found:
        table.add_row(
            each.way, f"{each.messages:,}", f"{each.per_second:,.0f}", f"{each.cpu_us:.2f}"
        )
    console.print(table)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="bench.one_program", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--messages", type=int, default=600_000)
    parser.add_argument("--per-pull", type=int, default=256)
    parser.add_argument("--folder", type=Path, help="make the stores here, and remove them")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dledger-bench-", dir=options.folder))
    try:
        found = measure(folder / "g", messages=options.messages, per_pull=options.per_pull)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        sys.stdout.write(json.dumps([asdict(each) for each in found]) + "\n")
        return 0
    show(found, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What does hot traffic feel while ten readers go through old messages?

    python -m bench.cold_readers [--mib 4096] [--readers 10] [--seconds 20] [--per-second 200] [--json]

A group of three gets a log of so many MiB, most of which no memory has. A producer sends at a steady rate to the
leader; then the readers begin, each somewhere in the older half of a queue, and pull from the leader as fast as it
answers. The first part of the run says what the sends take without them. Both are of one run, on one machine: trust the
ratio. The kernel may have the files in its cache; with a log larger than the machine's memory it has not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console

from bench.broker import PULL_COUNT, QUEUE_COUNT, broker_group, find_leader
from bench.filling import fill, mib_of
from bench.hot_sends import Felt, HotSends
from bench.loadgen import FrameTemplate, pull_template, run_load

TOPIC: Final = "ColdReaders"
RATIO_GOAL: Final = 2.0
SPAN_PULLS: Final = 200
"""Pulls of a reader in order before it begins elsewhere."""

JOIN_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ColdReading:
    """The work of some readers.

    Attributes:
        address: of the node from which they pull.
        readers: their number.
        per_queue: messages in each queue.
        seconds: that they have.
    """

    address: tuple[str, int]
    readers: int
    per_queue: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ColdReadersResult:
    """The outcome of one run; `read_mib_per_s` is what all readers got together."""

    log_mib: float
    readers: int
    read_mib_per_s: float
    without: Felt
    with_them: Felt

    @property
    def p99_ratio(self) -> float:
        """The p99 of the sends with them, in parts of that without."""
        return self.with_them.p99_us / self.without.p99_us


def read(reading: ColdReading, number: int) -> int:
    """Pull like one reader; return how many bytes came.

    Raises:
        OSError: the node cannot be reached.
        RuntimeError: pulls were refused.
    """
    chance = Random(number)
    queue_id, per_queue = number % QUEUE_COUNT, reading.per_queue
    end_s = time.monotonic() + reading.seconds
    read_bytes = 0
    while (left_s := end_s - time.monotonic()) > 0:
        start = chance.randrange(per_queue // 2)
        templates = [
            pull_template(TOPIC, queue_id, start + each * PULL_COUNT % (per_queue // 4), PULL_COUNT)
            for each in range(SPAN_PULLS)
        ]
        result = run_load(
            reading.address,
            partial(_frame_of, templates),
            in_flight=1,
            seconds=min(left_s, 2.0),
        )
        if result.refused:
            raise RuntimeError(f"{result.refused} of {result.requests} pulls were refused")
        read_bytes += result.reply_bytes
    return read_bytes


def _frame_of(templates: list[FrameTemplate], place: int) -> bytes:
    return templates[place % len(templates)].frame(place)


def read_together(reading: ColdReading, answer: Connection) -> None:
    """Run all readers, each in a thread of this process; send how many bytes came, or what went wrong."""
    found: list[int] = []
    problems: list[str] = []

    def run(number: int) -> None:
        try:
            found.append(read(reading, number))
        except (OSError, RuntimeError) as error:
            problems.append(str(error))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(reading.readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answer.send((sum(found), problems[0] if problems else ""))


def measure(
    folder: Path, *, mib: int, readers: int, seconds: float, per_s: float
) -> ColdReadersResult:
    """Run a group through it.

    Raises:
        TimeoutError: the group did not get there.
        RuntimeError: a request was refused.
    """
    with broker_group(folder, TOPIC) as (group, leader, _):
        written = fill(leader, TOPIC, mib)
        if find_leader(group, TOPIC) is not leader:
            raise RuntimeError("another node leads by now: run it again")
        address = ("127.0.0.1", leader.port)
        hot = HotSends(address, TOPIC, per_s)
        try:
            time.sleep(seconds)
            without = hot.take()
            reading = ColdReading(address, readers, written // QUEUE_COUNT, seconds)
            read_bytes, with_them = _felt_with_readers(hot, reading)
        finally:
            hot.close()
    return ColdReadersResult(
        mib_of(written), readers, read_bytes / (1 << 20) / seconds, without, with_them
    )


def _felt_with_readers(hot: HotSends, reading: ColdReading) -> tuple[int, Felt]:
    """Let the readers run in a process of their own; return what they got, and what the sends took."""
    context = multiprocessing.get_context("spawn")
    answer, end = context.Pipe(duplex=False)
    child = context.Process(target=read_together, args=(reading, end), daemon=True)
    child.start()
    try:
        if not answer.poll(reading.seconds + JOIN_PATIENCE_S):
            raise TimeoutError("the readers do not end")
        read_bytes, problem = answer.recv()
        felt = hot.take()
    finally:
        child.kill()
        child.join()
    if problem:
        raise RuntimeError(f"a reader failed: {problem}")
    return read_bytes, felt


def show(result: ColdReadersResult, console: Console) -> None:
    """Print what came out."""
    console.print(
        f"log of {result.log_mib:,.0f} MiB: {result.readers} readers got {result.read_mib_per_s:.1f} MiB/s"
    )
    for name, felt in (("without", result.without), ("with", result.with_them)):
        console.print(
            f"sends {name}: p50 {felt.p50_us:,.0f} us, p99 {felt.p99_us:,.0f} us ({felt.count})"
        )
    console.print(f"p99 with / without: {result.p99_ratio:.2f} (goal: at most {RATIO_GOAL})")


def main() -> int:
    """Measure once, and print it."""
    parser = argparse.ArgumentParser(
        prog="bench.cold_readers",
        description="what hot traffic feels beside readers of old messages",
    )
    parser.add_argument("--mib", type=int, default=4096, help="size of the log (default 4096)")
    parser.add_argument("--readers", type=int, default=10, help="how many read (default 10)")
    parser.add_argument(
        "--seconds", type=float, default=20, help="of each part of the run (default 20)"
    )
    parser.add_argument(
        "--per-second", type=float, default=200, help="sends of the producer (default 200)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dledger-cold-readers-"))
    try:
        result = measure(
            folder / "group",
            mib=options.mib,
            readers=options.readers,
            seconds=options.seconds,
            per_s=options.per_second,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(result, Console(stderr=options.json))
    if options.json:
        sys.stdout.write(json.dumps(asdict(result) | {"p99_ratio": result.p99_ratio}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What does hot traffic feel while ten readers go through old messages?

    python -m bench.cold_readers [--mib 4096] [--readers 10] [--seconds 20] [--per-second 200] [--json]

A group of three gets a log of so many MiB, most of which no memory has. A producer sends at a steady rate to the
leader; then the readers begin, each somewhere in the older half of a queue, and pull from the leader as fast as it
answers, each time from where the answer before ended. The first part of the run says what the sends take without them.
Both are of one run, on one machine: trust the ratio. The kernel may have the files in its cache; with a log larger than
the machine's memory it has not.
"""

from __future__ import annotations

import multiprocessing
import re
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Final

from bench.filling import fill, mib_of
from bench.hot_sends import Felt, HotSends
from bench.hot_traffic import HotResult, make_parser, run_once, sends_beside
from bench.loadgen import pull_template, run_load
from bench.real_group import PULL_COUNT, QUEUE_COUNT, broker_group

TOPIC: Final = "ColdReaders"
RATIO_GOAL: Final = 2.0
SPAN_PULLS: Final = 200
"""Pulls of a reader in order before it begins elsewhere; fewer if it might come to the end of its queue."""

_NEXT_OFFSET: Final = re.compile(rb'"nextBeginOffset" *: *"([0-9]+)"')

JOIN_PATIENCE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class ColdReading:
    """The work of some readers.

    Attributes:
        address: of the node from which they pull.
        topic: with the queues of bench.real_group.
        readers: their number.
        per_queue: messages in each queue.
        seconds: that they have.
    """

    address: tuple[str, int]
    topic: str
    readers: int
    per_queue: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdReadersResult(HotResult):
    """The outcome of one run; `read_mib_per_s` is what all readers got together."""

    readers: int
    read_mib_per_s: float

    def headline(self) -> str:
        """See `HotResult`."""
        return f"log of {self.log_mib:,.0f} MiB: {self.readers} readers got {self.read_mib_per_s:.1f} MiB/s"


def read(reading: ColdReading, number: int) -> int:
    """Pull like one reader; return how many bytes came.

    Raises:
        OSError: the node cannot be reached.
        RuntimeError: pulls were refused.
    """
    chance, reader = Random(number), BacklogReader(reading.topic, number % QUEUE_COUNT)
    newer_half = max(1, reading.per_queue // 2 // PULL_COUNT)
    end_s = time.monotonic() + reading.seconds
    read_bytes = 0
    while (left_s := end_s - time.monotonic()) > 0:
        reader.offset = chance.randrange(reading.per_queue // 2)
        result = run_load(
            reading.address,
            reader.next_frame,
            in_flight=1,
            seconds=min(left_s, 2.0),
            count=min(SPAN_PULLS, newer_half),
            answered=reader.answered,
        )
        if result.refused:
            raise RuntimeError(f"{result.refused} of {result.requests} pulls were refused")
        read_bytes += result.reply_bytes
    return read_bytes


class BacklogReader:
    """One that goes on where the last answer has ended: far behind the log's end that is sooner than it asked for.

    Attributes:
        offset: from which it pulls next.
    """

    def __init__(self, topic: str, queue_id: int) -> None:
        self.offset = 0
        self._topic = topic
        self._queue_id = queue_id

    def next_frame(self, number: int) -> bytes:
        """Return the next pull."""
        return pull_template(self._topic, self._queue_id, self.offset, PULL_COUNT).frame(number)

    def answered(self, header: bytes) -> None:
        """Go on where an answer says."""
        found = _NEXT_OFFSET.search(header)
        if found is not None:
            self.offset = int(found[1])


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
        with sends_beside(group, leader, TOPIC, per_s=per_s, seconds=seconds) as (hot, without):
            address = ("127.0.0.1", leader.port)
            reading = ColdReading(address, TOPIC, readers, written // QUEUE_COUNT, seconds)
            read_bytes, with_them = felt_with_readers(hot, reading)
    return ColdReadersResult(
        log_mib=mib_of(written),
        readers=readers,
        read_mib_per_s=read_bytes / (1 << 20) / seconds,
        without=without,
        with_it=with_them,
    )


def felt_with_readers(hot: HotSends, reading: ColdReading) -> tuple[int, Felt]:
    """Let the readers run in a process of their own; return what they got, and what the sends took.

    Raises:
        TimeoutError: they do not end.
        RuntimeError: a pull or a send was refused.
    """
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


def main() -> int:
    """Measure once, and print it."""
    parser = make_parser(
        "bench.cold_readers", "what hot traffic feels beside readers of old messages", mib=4096
    )
    parser.add_argument("--readers", type=int, default=10, help="how many read (default 10)")
    options = parser.parse_args()
    return run_once(options, partial(measure, readers=options.readers), ratio_goal=RATIO_GOAL)


if __name__ == "__main__":
    sys.exit(main())

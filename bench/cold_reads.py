"""What does a pull cost that reads old messages? Processor time and bytes read from the disk, for each pull.

    python -m bench.cold_reads [--mib 64]

One member with a log on a real disk, its fold, and the reads of the pull handler on them; no network and no clients.
The messages have 1 KiB and lie in eight queues in turn; a pull takes 32 of one queue. *Tail* are the newest messages,
*sequential* readers go through all queues from their beginning, *random* ones begin anywhere. The pages are in the
kernel's cache, so the time is the processor's. `loop` is the part of it that the loop spends, while nothing else runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import trio

from bench.lone_log import lone_log
from broker.store.not_in_memory import NotLoadedError
from broker.store.reading import GetResult, get_messages
from broker.store.staging import Staging
from broker.store.state import BrokerState
from dledger import LogConfig, LogServer
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.message.properties import encode_properties

HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
START_MS: Final = 1_700_000_000_000
MESSAGE_BYTES: Final = 1024
QUEUE_COUNT: Final = 8
TOPIC: Final = "bench"
PULL_COUNT: Final = 32
CACHE_BYTES: Final = 16 * 1024 * 1024
"""Of the log's newest entries: what lies before is cold."""

PART_CACHE_BYTES: Final = 8 * 1024 * 1024
"""A quarter of the usual, and a sixth of what is cold: random readers do not find everything in memory."""


def read_bytes() -> int:
    """Return how many bytes this process has read from files."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one pull, on average."""

    cpu_us: float
    loop_us: float
    read_bytes: float


class PullBench:
    """Pulls from a log that was filled."""

    def __init__(self, server: LogServer, state: BrokerState) -> None:
        self._server = server
        self._state = state

    async def measure(self, places: Sequence[tuple[int, int]]) -> Cost:
        """Pull from each queue and offset."""
        read = read_bytes()
        cpu, loop = time.process_time(), time.thread_time()
        for queue_id, offset in places:
            await self._pull(QueueId(queue_id), QueueOffset(offset))
        count = len(places)
        return Cost(
            (time.process_time() - cpu) * 1e6 / count,
            (time.thread_time() - loop) * 1e6 / count,
            (read_bytes() - read) / count,
        )

    async def _pull(self, queue_id: QueueId, offset: QueueOffset) -> None:
        """Read 32 messages of a queue, as often as it takes."""
        end = QueueOffset(offset + PULL_COUNT)
        while offset < end:
            try:
                offset = self._read(queue_id, offset, end, may_wait=True).next_offset
            except NotLoadedError as error:
                loaded = trio.Event()
                self._server.reader.load(error.places, loaded.set)
                await loaded.wait()
                offset = self._read(queue_id, offset, end, may_wait=False).next_offset

    def _read(
        self, queue_id: QueueId, offset: QueueOffset, end: QueueOffset, *, may_wait: bool
    ) -> GetResult:
        """Read once, as the pull handler does."""
        return get_messages(
            self._state,
            self._server.reader,
            TOPIC,
            queue_id,
            offset=offset,
            count_max=end - offset,
            log_end=self._server.reader.committed_position,
            may_wait=may_wait,
        )


def _set(done: trio.Event, _outcome: object) -> None:
    done.set()


async def fill(server: LogServer, state: BrokerState, *, log_bytes: int, entry_bytes: int) -> int:
    """Fill the log with messages; return how many each queue has."""
    staging = Staging(state, HOST)
    properties = encode_properties({"UNIQ_KEY": "0" * 32})
    per_entry = max(1, entry_bytes // MESSAGE_BYTES)
    count = log_bytes // MESSAGE_BYTES // QUEUE_COUNT * QUEUE_COUNT
    made = 0
    body = bytes(range(256)) * 4
    body = body[: MESSAGE_BYTES - 91 - len(TOPIC) - len(properties)]
    while made < count:
        done = trio.Event()
        for _ in range(min(per_entry, count - made)):
            staging.stage(
                TOPIC.encode(),
                QueueId(made % QUEUE_COUNT),
                body,
                properties,
                born_timestamp_ms=START_MS,
                born_host=HOST,
            )
            made += 1
        staged = staging.build_entry(server.appender.end_position, START_MS)
        entry_id = server.appender.propose(staged.body, partial(_set, done))
        staging.proposed(staged, entry_id)
        await done.wait()
    return count // QUEUE_COUNT


def places_of(kind: str, per_queue: int) -> list[tuple[int, int]]:
    """Return where the pulls of one kind of reader begin, in order."""
    if kind == "tail":
        return [(queue, per_queue - PULL_COUNT) for _ in range(100) for queue in range(QUEUE_COUNT)]
    cold = range(0, per_queue - 2 * CACHE_BYTES // MESSAGE_BYTES // QUEUE_COUNT, PULL_COUNT)
    if kind == "sequential":
        return [(queue, offset) for offset in cold for queue in range(QUEUE_COUNT)]
    chance = Random(1)
    return [(chance.randrange(QUEUE_COUNT), chance.choice(cold)) for _ in range(400)]


async def measure(
    folder: Path, *, log_bytes: int, entry_bytes: int, say: Callable[[str], object]
) -> None:
    """Measure all kinds of readers on a log with entries of one size."""
    state = BrokerState()
    config = replace(
        LogConfig.for_member("n0", "n0-127.0.0.1:20999", str(folder)),
        fsync=False,
        cache_bytes_max=CACHE_BYTES,
        part_cache_bytes_max=PART_CACHE_BYTES,
        snapshot_log_bytes=0,
    )
    async with lone_log(config, state) as (server, _):
        per_queue = await fill(server, state, log_bytes=log_bytes, entry_bytes=entry_bytes)
        reader = PullBench(server, state)
        for kind in ("tail", "sequential", "random"):
            cost = await reader.measure(places_of(kind, per_queue))
            say(
                f"{entry_bytes // 1024:6d} {kind:12s} {cost.cpu_us:10.0f} {cost.loop_us:10.0f} "
                f"{cost.read_bytes / 1024:10.0f}\n"
            )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="cost of pulls from old entries")
    parser.add_argument("--mib", type=int, default=64, help="size of each log")
    arguments = parser.parse_args()
    if arguments.mib << 20 <= 3 * CACHE_BYTES:
        parser.error(f"--mib must be above {3 * CACHE_BYTES >> 20}: the newest are in memory")
    say = sys.stdout.write
    say(f"{'KiB':>6s} {'readers':12s} {'cpu us':>10s} {'loop us':>10s} {'read KiB':>10s}\n")
    for entry_bytes in (4096, 1 << 20, 4 << 20):
        with tempfile.TemporaryDirectory() as folder:
            trio.run(
                partial(
                    measure,
                    Path(folder),
                    log_bytes=arguments.mib << 20,
                    entry_bytes=entry_bytes,
                    say=say,
                )
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

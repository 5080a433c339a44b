"""What does a pull of old messages cost the node that answers it? Processor time for each message.

    python -m bench.pulls [--mib 160] [--entries 1,16,1024] [--only process,broker] [--seconds 4] [--json]

A log with entries of so many messages of 1 KiB, in sixteen queues in turn; a pull takes 32 of one queue, and the pulls
of one reader go through all queues, step by step. All pages are in the kernel's cache. *process*: the requests of a
broker's dispatch in this process, from the decoded frame to the gathered answer, without sockets; `newest` are in the
memory of the log's newest entries, `older` are not. *broker*: a broker alone in its group, started on the same store,
so that no entry is in memory; its clients are on one connection with one or eight pulls in flight, or on eight. The
whole log is pulled once before anything is measured (`first`: what that takes).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, cast

import trio
from rich.console import Console
from rich.table import Table

from bench.cpu import process_cpu_seconds
from bench.loadgen import FrameTemplate, LoadResult, pull_template, run_load
from bench.lone_log import lone_log
from broker.server.config import BrokerConfig
from broker.server.environment import Environment
from broker.server.requests.origin import ClientOrigin, Outputs
from broker.server.services import Services
from broker.store.control import PutGroup, PutTopic
from broker.store.groups import SubscriptionGroupConfig
from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.topics import TopicConfig
from dledger import LogConfig, LogServer, parse_peers
from dledger_mq.message.numbers import QueueId
from dledger_mq.message.properties import encode_properties
from dledger_mq.net.address import Address
from dledger_mq.net.connection import Connection
from dledger_mq.remoting.frame import Frame, FrameDecoder
from jepsen.processes import Group

HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
START_MS: Final = 1_700_000_000_000
BODY: Final = b"x" * 1024
QUEUE_COUNT: Final = 16
TOPIC: Final = "Pulls"
PROPERTIES: Final = encode_properties({"UNIQ_KEY": "0" * 32, "TAGS": "bench"})
RECORD_BYTES: Final = 91 + len(BODY) + len(TOPIC) + len(PROPERTIES)
"""Of one message in the log."""

GROUP: Final = "bench"
"""As in `loadgen.pull_template`."""

PULL_COUNT: Final = 32
IN_FLIGHT_ENTRIES: Final = 32
"""Entries that are proposed before one waits for them, while the log is filled."""

CACHE_BYTES: Final = 16 * 1024 * 1024
"""Of the newest entries, in this process: what lies twice as far from the end is `older`."""


@dataclass(frozen=True, slots=True)
class PullCost:
    """The cost of the pulls of one kind.

    Attributes:
        cpu_us: processor time of each message that came.
        per_s: messages of a second.
        per_pull: messages of a pull; fewer than it asked for where only its beginning was in memory.
    """

    where: str
    entry_messages: int
    readers: str
    cpu_us: float
    per_s: float
    per_pull: float


class Sink:
    """The connection of a client that reads everything at once."""

    peer = "127.0.0.1:1"
    is_closed = has_ended = False

    def __init__(self) -> None:
        self.answers = 0
        self.answer_bytes = 0
        self.came = trio.Event()

    def send_many(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Count what comes; one call has one answer here."""
        self.send_pieces(pieces)

    def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Count what comes."""
        self.answers += 1
        self.answer_bytes += sum(map(len, pieces))
        self.came.set()


def _set(done: trio.Event, _outcome: object) -> None:
    done.set()


async def _propose(server: LogServer, staging: Staging) -> trio.Event:
    """Propose what is staged; return what is set once it is applied."""
    done = trio.Event()
    staged = staging.build_entry(server.appender.end_position, START_MS)
    entry_id = server.appender.propose(staged.body, partial(_set, done))
    staging.proposed(staged, entry_id)
    return done


async def fill(server: LogServer, state: BrokerState, *, mib: int, entry_messages: int) -> int:
    """Fill the log; return how many messages each queue has."""
    staging = Staging(state, HOST)
    staging.stage_control(PutTopic(TopicConfig(TOPIC, QUEUE_COUNT, QUEUE_COUNT)), START_MS)
    staging.stage_control(PutGroup(SubscriptionGroupConfig(GROUP)), START_MS)
    await (await _propose(server, staging)).wait()
    per_step = PULL_COUNT * QUEUE_COUNT
    count = (mib << 20) // RECORD_BYTES // per_step * per_step
    waiting: list[trio.Event] = []
    for made in range(count):
        staging.stage(
            TOPIC.encode(),
            QueueId(made % QUEUE_COUNT),
            BODY,
            PROPERTIES,
            born_timestamp_ms=START_MS,
            born_host=HOST,
        )
        if staging.staged_count == entry_messages or made == count - 1:
            waiting.append(await _propose(server, staging))
        if len(waiting) * max(1, entry_messages // 64) >= IN_FLIGHT_ENTRIES or made == count - 1:
            for each in waiting:
                await each.wait()
            waiting.clear()
    return count // QUEUE_COUNT


def templates_of(first: int, end: int) -> list[FrameTemplate]:
    """Return the pulls of all queues from one queue offset to another, step by step."""
    return [
        pull_template(TOPIC, queue, offset, PULL_COUNT)
        for offset in range(first, end, PULL_COUNT)
        for queue in range(QUEUE_COUNT)
    ]


def frame_of(template: FrameTemplate) -> Frame:
    """Return a request as a connection gives it."""
    decoder = FrameDecoder()
    decoder.feed(template.frame(1))
    (frame,) = decoder.frames()
    return frame


class ProcessBench:
    """Pulls through the dispatch of a broker in this process."""

    def __init__(self, services: Services, outputs: Outputs) -> None:
        self._services = services
        self._outputs = outputs

    async def _read(self, frames: Sequence[Frame]) -> None:
        """Be one reader."""
        sink = Sink()
        origin = ClientOrigin(cast("Connection", sink), self._outputs)
        for frame in frames:
            sink.came = trio.Event()
            self._services.dispatch.handle(origin, (frame,))
            self._outputs.flush()
            if not sink.came.is_set():
                await sink.came.wait()

    async def measure(
        self, templates: Sequence[FrameTemplate], readers: int
    ) -> tuple[float, float, float]:
        """Return the processor time of each message in us, the messages of a second, and those of a pull."""
        frames = [frame_of(each) for each in templates]
        share = len(frames) // readers
        before = self._services.pulls.counts.messages
        cpu, began = time.process_time(), time.perf_counter()
        async with trio.open_nursery() as nursery:
            for number in range(readers):
                nursery.start_soon(self._read, frames[number * share : (number + 1) * share])
        took, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        messages = self._services.pulls.counts.messages - before
        return cpu_s * 1e6 / messages, messages / took, messages / (share * readers)

    async def rows(
        self, entry_messages: int, per_queue: int, profile: cProfile.Profile | None
    ) -> list[PullCost]:
        """Measure all kinds of pulls; those of one reader are profiled, if that is wanted."""
        newest = CACHE_BYTES * 3 // 4 // RECORD_BYTES // QUEUE_COUNT // PULL_COUNT * PULL_COUNT
        older = per_queue - newest * 8 // 3
        hot = templates_of(per_queue - newest, per_queue) * 4
        cold = templates_of(0, older // PULL_COUNT * PULL_COUNT)
        rows: list[PullCost] = []
        for readers, name, templates in (
            (1, "newest", hot),
            (1, "older, first", cold),
            (1, "older", cold),
            (8, "older", cold),
        ):
            if profile is not None and readers == 1:
                profile.enable()
            figures = await self.measure(templates, readers)
            if profile is not None:
                profile.disable()
            rows.append(PullCost("process", entry_messages, f"{name}, {readers} readers", *figures))
        return rows


def broker_config(group: Group, folder: Path) -> BrokerConfig:
    """Return the settings of the broker of the only member of a group."""
    return replace(
        BrokerConfig.stand_in(),
        group=group.group,
        broker_name=group.group,
        peers=parse_peers(group.peers),
        store_path=str(folder),
    )


def log_config(group: Group, folder: Path) -> LogConfig:
    """Return the settings of the only member of a group."""
    peers = parse_peers(group.peers)
    config = LogConfig.for_member("n0", peers, str(folder), group=group.group)
    return replace(config, fsync=False, cache_bytes_max=CACHE_BYTES, snapshot_log_bytes=0)


def lone_environment(nursery: trio.Nursery) -> Environment:
    """Return what the services of a broker in this process have around them: nobody else, and one wall time."""
    return Environment(
        Address("127.0.0.1", 10911),
        "",
        wall_ms=lambda: START_MS,
        monotonic_ms=lambda: time.monotonic_ns() // 1_000_000,
        pick=lambda bound: 0,
        key_numbers=(1, 1),
        nursery=nursery,
    )


async def in_process(
    group: Group, folder: Path, *, mib: int, entry_messages: int, profile: cProfile.Profile | None
) -> tuple[list[PullCost], int]:
    """Fill a log and measure pulls from it; return the messages of each queue, too."""
    state, outputs = BrokerState(), Outputs()
    async with lone_log(log_config(group, folder), state) as (server, nursery):
        per_queue = await fill(server, state, mib=mib, entry_messages=entry_messages)
        environment = lone_environment(nursery)
        config = broker_config(group, folder)
        services = Services(config, server, state, outputs=outputs, environment=environment)
        bench = ProcessBench(services, outputs)
        rows = await bench.rows(entry_messages, per_queue, profile)
    return rows, per_queue


Pulled = tuple[int, int]
"""Pulls, and messages."""


def pulled_of(result: LoadResult) -> Pulled:
    """Return how many pulls were answered, and how many messages came.

    Raises:
        RuntimeError: more than one in a hundred was refused, or told to ask again, which is what a busy machine does.
    """
    if result.refused > result.requests // 100:
        raise RuntimeError(f"{result.refused} of {result.requests} pulls were refused")
    return result.requests, result.reply_bytes // RECORD_BYTES


def pull_together(
    address: tuple[str, int], per_queue: int, *, connections: int, in_flight: int, seconds: float
) -> Pulled:
    """Let clients pull, each from its own part of the log, and return what came."""
    share = per_queue // connections // PULL_COUNT * PULL_COUNT
    came: list[Pulled] = []

    def pull(number: int) -> None:
        templates = templates_of(number * share, (number + 1) * share)
        result = run_load(
            address,
            lambda request: templates[request % len(templates)].frame(request),
            in_flight=in_flight,
            seconds=seconds,
        )
        came.append(pulled_of(result))

    threads = [threading.Thread(target=pull, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(came) < connections:
        raise RuntimeError(f"{connections - len(came)} of {connections} clients failed")
    pulls, messages = zip(*came, strict=True)
    return sum(pulls), sum(messages)


def with_broker(
    group: Group, per_queue: int, *, entry_messages: int, seconds: float
) -> list[PullCost]:
    """Measure pulls from a broker that is started on the store."""
    group.start()
    group.wait_listening()
    node = group.nodes[0]
    address = ("127.0.0.1", node.port)
    templates = templates_of(0, per_queue)
    rows: list[PullCost] = []

    def measure(name: str, pull: Callable[[], Pulled]) -> None:
        cpu, began = process_cpu_seconds(node.pid or 0), time.perf_counter()
        pulls, messages = pull()
        took = time.perf_counter() - began
        cpu_us = (process_cpu_seconds(node.pid or 0) - cpu) * 1e6 / messages
        rows.append(
            PullCost("broker", entry_messages, name, cpu_us, messages / took, messages / pulls)
        )

    def all_once() -> Pulled:
        result = run_load(
            address,
            lambda number: templates[min(number, len(templates) - 1)].frame(number),
            in_flight=1,
            seconds=1e9,
            count=len(templates),
        )
        return pulled_of(result)

    measure("first, 1 connections x 1", all_once)
    for connections, in_flight in ((1, 1), (1, 8), (8, 1)):
        measure(
            f"{connections} connections x {in_flight}",
            partial(
                pull_together,
                address,
                per_queue,
                connections=connections,
                in_flight=in_flight,
                seconds=seconds,
            ),
        )
    return rows


def measure(
    folder: Path, parts: set[str], *, mib: int, entry_messages: int, seconds: float, top: int
) -> list[PullCost]:
    """Measure with entries of one size."""
    profile = cProfile.Profile() if top else None
    with Group(
        folder, nodes=1, settings="flushDiskType=ASYNC_FLUSH\nscrubBytesPerSecond=0\n"
    ) as group:
        store = folder / "n0"
        rows, per_queue = trio.run(
            partial(
                in_process,
                group,
                store,
                mib=mib,
                entry_messages=entry_messages,
                profile=profile,
            )
        )
        if "process" not in parts:
            rows = []
        if "broker" in parts:
            rows += with_broker(group, per_queue, entry_messages=entry_messages, seconds=seconds)
    if profile is not None:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(top)
    return rows


def show(rows: Sequence[PullCost], console: Console) -> None:
    """Print a table."""
    table = Table(title=f"Pulls of {PULL_COUNT} messages of 1 KiB", title_justify="left")
    for name in ("where", "messages an entry", "readers", "us a message", "messages/s", "a pull"):
        table.add_column(name, justify="left" if name in ("where", "readers") else "right")
    for row in rows:
        table.add_row(
            row.where,
            str(row.entry_messages),
            row.readers,
            f"{row.cpu_us:.2f}",
            f"{row.per_s:,.0f}",
            f"{row.per_pull:.1f}",
        )
    console.print(table)


def main() -> int:
    """Measure, and print it."""
    parser = argparse.ArgumentParser(prog="bench.pulls", description="cost of pulls")
    parser.add_argument("--mib", type=int, default=160, help="size of the log (default 160)")
    parser.add_argument("--entries", default="1,16,1024", help="messages of an entry")
    parser.add_argument("--only", default="process,broker", help="parts to run")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run with a broker")
    parser.add_argument("--top", type=int, default=0, help="profile one reader in this process")
    parser.add_argument("--json", action="store_true", help="rows as JSON on standard output")
    options = parser.parse_args()
    if options.mib << 20 <= 4 * CACHE_BYTES:
        parser.error(f"--mib must be above {4 * CACHE_BYTES >> 20}: the newest are in memory")
    console = Console(stderr=options.json)
    rows: list[PullCost] = []
    for entry_messages in map(int, options.entries.split(",")):
        folder = Path(tempfile.mkdtemp(prefix="dledger-pulls-"))
        try:
            rows += measure(
                folder,
                set(options.only.split(",")),
                mib=options.mib,
                entry_messages=entry_messages,
                seconds=options.seconds,
                top=options.top,
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    show(rows, console)
    if options.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What does it cost to choose messages, by tags and by properties? Processor time for each that is looked at.

    python -m bench.filters [--mib 72] [--rounds 5] [--json]

A log with entries of 16 messages of 1 KiB, in sixteen queues in turn; each message has a tag, one of a hundred, and
two properties. One reader pulls 32 at a time through all queues, with a filter that wants 1, 50 or 99 of a hundred: by
tags, by one property, by two. The requests go through a broker's dispatch in this process, from the decoded frame to
the gathered answer, without sockets; all messages are read from the memory of the log's newest entries, where most
pulls are. The kinds take turns in each round; the median is shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, cast

import trio
from rich.console import Console
from rich.table import Table

from bench.loadgen import pull_template
from bench.lone_log import lone_log
from bench.pulls import HOST, START_MS, broker_config, frame_of, log_config, lone_environment
from broker.server.requests.origin import ClientOrigin, Outputs
from broker.server.services import Services
from broker.store.control import PutGroup, PutTopic
from broker.store.groups import SubscriptionGroupConfig
from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.topics import TopicConfig
from dledger import LogServer
from dledger_mq.message.numbers import QueueId
from dledger_mq.message.properties import encode_properties
from dledger_mq.net.connection import Connection
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from jepsen.processes import Group

BODY: Final = b"x" * 1024
QUEUE_COUNT: Final = 16
TOPIC: Final = "Filters"
PULL_COUNT: Final = 32
ENTRY_MESSAGES: Final = 16
PERCENTS: Final = (1, 50, 99)


@dataclass(frozen=True, slots=True)
class FilterCost:
    """The cost of one kind of filter.

    Attributes:
        percent: of the messages that it wants.
        cpu_us: processor time of each message that was looked at.
        per_s: messages that were looked at in a second.
        per_pull: of these in one pull.
    """

    kind: str
    percent: int
    cpu_us: float
    per_s: float
    per_pull: float


def filters_of(percent: int) -> dict[str, tuple[str, str]]:
    """Return the filters that want so many of a hundred: tags, or a condition."""
    return {
        "tags": ("||".join(f"t{n}" for n in range(percent)), ""),
        "one property": ("*", f"n < {percent}"),
        "two properties": ("*", f"n < {percent} AND colour IN ('red', 'green')"),
    }


class QueueWalk:
    """A client in this process that reads every queue once."""

    def __init__(self, services: Services, outputs: Outputs) -> None:
        self._dispatch = services.dispatch
        self._outputs = outputs
        self._decoder = FrameDecoder()
        self._answers: list[RemotingCommand] = []
        self._origin = ClientOrigin(cast("Connection", self), outputs)

    peer = "127.0.0.1:1"
    is_closed = has_ended = False

    def send_many(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Take an answer."""
        self.send_pieces(pieces)

    def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Take an answer: its head stands in the first piece."""
        head = bytes(pieces[0])
        size = int.from_bytes(head[4:8]) & 0xFFFFFF
        self._answers.append(decode_command(frame_of_head(head[: 8 + size])))

    def read_all(self, wanted: tuple[str, str], per_queue: int) -> tuple[int, int, float, float]:
        """Pull through all queues; return pulls, messages looked at, processor time and time in seconds."""
        tags, sql = wanted
        pulls = looked_at = 0
        cpu_s = took_s = 0.0
        for queue in range(QUEUE_COUNT):
            offset = 0
            while offset < per_queue:
                pull = pull_template(TOPIC, queue, offset, PULL_COUNT, tags=tags, sql=sql)
                frame = frame_of(pull)
                cpu, began = time.process_time(), time.perf_counter()
                self._dispatch.handle(self._origin, (frame,))
                self._outputs.flush()
                cpu_s += time.process_time() - cpu
                took_s += time.perf_counter() - began
                (answer,) = self._answers
                self._answers.clear()
                if answer.code not in (0, 20):
                    raise RuntimeError(f"a pull was refused: {answer.code} {answer.remark}")
                pulls, offset = pulls + 1, int(answer.ext["nextBeginOffset"])
            looked_at += offset
        return pulls, looked_at, cpu_s, took_s


def frame_of_head(head: bytes) -> Frame:
    """Return a frame without a body that has this head."""
    decoder = FrameDecoder()
    decoder.feed((len(head) - 4).to_bytes(4) + head[4:])
    (frame,) = decoder.frames()
    return frame


def _ended(done: trio.Event, _outcome: object) -> None:
    """Wake who waits for a proposal, however it ended."""
    done.set()


async def fill(server: LogServer, state: BrokerState, count: int) -> None:
    """Fill the log."""
    staging = Staging(state, HOST)
    staging.stage_control(PutTopic(TopicConfig(TOPIC, QUEUE_COUNT, QUEUE_COUNT)), START_MS)
    staging.stage_control(PutGroup(SubscriptionGroupConfig("bench")), START_MS)
    for made in range(count + 1):
        if staging.staged_count >= ENTRY_MESSAGES or made == count or made == 0:
            done = trio.Event()
            staged = staging.build_entry(server.appender.end_position, START_MS)
            entry_id = server.appender.propose(staged.body, partial(_ended, done))
            staging.proposed(staged, entry_id)
            await done.wait()
        number = made // QUEUE_COUNT % 100
        properties = {
            "UNIQ_KEY": f"{made:032d}",
            "TAGS": f"t{number}",
            "WAIT": "true",
            "n": str(number),
            "colour": ("red", "green")[number % 2],
        }
        if made < count:
            staging.stage(
                TOPIC.encode(),
                QueueId(made % QUEUE_COUNT),
                BODY,
                encode_properties(properties),
                born_timestamp_ms=START_MS,
                born_host=HOST,
            )


async def measure(group: Group, folder: Path, *, mib: int, rounds: int) -> list[FilterCost]:
    """Fill a log and read it with each filter, in turn."""
    state, outputs = BrokerState(), Outputs()
    per_queue = (mib << 20) // 1250 // QUEUE_COUNT // 100 * 100
    config = replace(log_config(group, folder), cache_bytes_max=2 * (mib << 20))
    async with lone_log(config, state) as (server, nursery):
        await fill(server, state, per_queue * QUEUE_COUNT)
        environment = lone_environment(nursery)
        services = Services(
            broker_config(group, folder), server, state, outputs=outputs, environment=environment
        )
        reader = QueueWalk(services, outputs)
        found: dict[tuple[str, int], list[tuple[int, int, float, float]]] = {}
        for _ in range(rounds):
            for percent in PERCENTS:
                for kind, wanted in filters_of(percent).items():
                    read = reader.read_all(wanted, per_queue)
                    found.setdefault((kind, percent), []).append(read)
    return [
        FilterCost(
            kind,
            percent,
            statistics.median(cpu * 1e6 / looked_at for _, looked_at, cpu, _ in reads),
            statistics.median(looked_at / took for _, looked_at, _, took in reads),
            reads[0][1] / reads[0][0],
        )
        for (kind, percent), reads in found.items()
    ]


def show(rows: Sequence[FilterCost], console: Console) -> None:
    """Print a table."""
    table = Table(title="Filters: messages of 1 KiB that are looked at", title_justify="left")
    for name in ("filter", "wanted", "us a message", "messages/s", "a pull"):
        table.add_column(name, justify="left" if name == "filter" else "right")
    for row in sorted(rows, key=lambda each: each.percent):
        cells = (
            f"{row.percent} %",
            f"{row.cpu_us:.2f}",
            f"{row.per_s:,.0f}",
            f"{row.per_pull:.0f}",
        )
        table.add_row(row.kind, *cells)
    console.print(table)


def main() -> int:
    """Measure, and print it."""
    parser = argparse.ArgumentParser(prog="bench.filters", description="cost of filters")
    parser.add_argument("--mib", type=int, default=72, help="size of the log (default 72)")
    parser.add_argument("--rounds", type=int, default=5, help="times that each filter reads it")
    parser.add_argument("--json", action="store_true", help="rows as JSON on standard output")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dledger-filters-") as name:
        folder = Path(name)
        with Group(folder, nodes=1) as group:
            rows = trio.run(
                partial(measure, group, folder / "n0", mib=options.mib, rounds=options.rounds)
            )
    show(rows, Console(stderr=options.json))
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

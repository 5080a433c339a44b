"""Orders flow through a streaming job while leaders and the job are killed: every order comes out once.

    python -m bench.pipeline exactly-once [--kills 2] [--kinds leader,job] [--rate 400] [--seed N] [--keep DIR] [--json]

Starts a name server and three brokers, sends numbered orders, runs `examples/enrich_orders.py` (source, join,
exactly-once sink) as a process of its own, and in turn kills the broker's leader and the job with SIGKILL, and of the
job, where `--kinds` says so, a Python worker or an executor alone; each `--kills` times, while the job is at work. In
the end both topics are read whole and compared.

Exit code 0: nothing lost, nothing twice, nothing wrong. 1: something was. 2: nothing can be concluded, because the
group or the job did not start or did not get through in time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.pipeline.machine_clock import MachineClock
from bench.pipeline.spark_process import SparkProcess
from dledger import Client, StatusAnswer
from dledger_mq import ClientError, Message, MessageQueue, SendResult
from dledger_mq.blocking import Producer, PullConsumer
from jepsen.processes import Group, NotReadyError, Process, ProcessDiedError, poll

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "enrich_orders.py"
ORDERS: Final = "Orders"
ENRICHED: Final = "Enriched"
START_S: Final = 120.0
"""For a JVM and the first batch, in seconds of `MachineClock`: a machine that does other things has longer."""
THROUGH_S: Final = 300.0
LOOK_S: Final = 0.5
ORDERS_PER_SEND: Final = 40
PATIENCE_S: Final = 60.0
SOON_S: Final = 1.5
RESTART_AFTER_S: Final = 0.5
STATUS_S: Final = 1.0
KINDS: Final = {
    "leader": "the broker's leader",
    "job": "the job",
    "worker": "a Python worker",
    "executor": "an executor",
}
"""The kinds of processes that a run kills, as people call them."""

USUAL_KINDS: Final = "leader,job"
ALONE: Final = "local[2]"
WITH_EXECUTORS: Final = "local-cluster[2,1,1024]"
"""Two executors of one core and 1 GiB, each a JVM of its own on this machine."""


class NoProofError(Exception):
    """The run proves nothing; says why."""


@dataclass
class Proof:
    """The result of a run.

    Attributes:
        kills: how often each kind of process was killed.
        acknowledged: orders whose storing was acknowledged to the producer.
        orders: orders in the topic.
        enriched: rows in the other topic.
        lost: orders that are not there.
        duplicated: orders that are there more than once, in either topic.
        wrong: rows that are not what becomes of their order.
    """

    kills: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    orders: int = 0
    enriched: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    seconds: float = 0.0
    details: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True when every order came out exactly once."""
        return not (self.lost or self.duplicated or self.wrong)


class OrderStream:
    """A sender of numbered orders in a thread of its own, until it is stopped."""

    def __init__(self, namesrv: str, rate: int) -> None:
        self.acknowledged: set[int] = set()
        self.failure: Exception | None = None
        self._namesrv = namesrv
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)

    def start(self) -> None:
        """Start the sending thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, and wait until everything that was sent is acknowledged."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        """Send numbered orders until stopped; only acknowledged ones must come out, others may or may not."""
        number = 0
        try:
            with Producer(self._namesrv, "orders", timeout_s=PATIENCE_S) as producer:
                while not self._stop.wait(ORDERS_PER_SEND / self._rate):
                    numbers = range(number, number + ORDERS_PER_SEND)
                    ended = producer.send_many([Message(ORDERS, order(n)) for n in numbers])
                    self.acknowledged.update(
                        n
                        for n, end in zip(numbers, ended, strict=True)
                        if isinstance(end, SendResult)
                    )
                    number += ORDERS_PER_SEND
        except ClientError as error:
            self.failure = error


def order(number: int) -> bytes:
    """Return the body of an order."""
    return json.dumps(
        {
            "id": number,
            "customer": number % 5,
            "quantity": 1 + number % 3,
            "price_cents": 100 + number,
        }
    ).encode()


def total_of(number: int) -> int:
    """Return what the job has to compute."""
    return (1 + number % 3) * (100 + number)


class OrderReader:
    """Reads topics whole, and counts what they hold."""

    def __init__(self, namesrv: str) -> None:
        self._consumer = PullConsumer(namesrv, "proof", timeout_s=PATIENCE_S)

    def __enter__(self) -> OrderReader:
        self._consumer.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def count(self, topic: str) -> int:
        """Count the messages in a topic now."""
        return sum(map(self._consumer.max_offset, self._consumer.queues(topic)))

    def ends(self, topic: str) -> dict[MessageQueue, int]:
        """Return the end of each queue of a topic now."""
        return {queue: self._consumer.max_offset(queue) for queue in self._consumer.queues(topic)}

    def bodies(self, topic: str) -> list[bytes]:
        """Return every body of a topic."""
        return [body for queue in self._consumer.queues(topic) for body in self._queue(queue)]

    def _queue(self, queue: MessageQueue) -> list[bytes]:
        bodies: list[bytes] = []
        offset, end = 0, self._consumer.max_offset(queue)
        while offset < end:
            answer = self._consumer.pull(queue, offset, max_messages=1024)
            bodies.extend(message.body for message in answer.messages)
            offset = answer.next_offset
        return bodies


async def serving_nodes(group: Group) -> list[str]:
    """Return the nodes that lead, as they say; two only while an old one has not noticed yet."""
    async with Client(group.peers, group=group.group, timeout_s=STATUS_S) as client:
        answers = await client.status()
    serving = [a for a in answers.values() if isinstance(a, StatusAnswer) and a.is_serving]
    serving.sort(key=lambda answer: answer.term, reverse=True)
    return [str(answer.node_id) for answer in serving]


def offsets_done(checkpoint: Path, topic: str) -> dict[tuple[str, int], int]:
    """Return the offsets of a topic's queues before which a query's batches are done, as its checkpoint says."""
    done = [int(file.name) for file in checkpoint.glob("commits/[0-9]*")]
    if not done:
        return {}
    for line in (checkpoint / "offsets" / str(max(done))).read_text().splitlines():
        if f'"{topic}"' in line:
            brokers = json.loads(line)[topic]
            return {
                (name, int(number)): offset
                for name, queues in brokers.items()
                for number, offset in queues.items()
            }
    return {}


class ProofRun:
    """One proof, from empty folders to the comparison."""

    def __init__(
        self,
        group: Group,
        folder: Path,
        *,
        kills: int,
        kinds: Sequence[str],
        rate: int,
        chance: random.Random,
    ) -> None:
        self.proof = Proof(dict.fromkeys(kinds, 0))
        self._group = group
        self._kills = kills
        self._chance = chance
        self._checkpoint = folder / "checkpoint"
        self._orders = OrderStream(group.namesrv, rate)
        self._job = SparkProcess(
            [
                str(EXAMPLE),
                *("--name-server", group.namesrv),
                *("--checkpoint", str(self._checkpoint)),
                *("--master", WITH_EXECUTORS if "executor" in kinds else ALONE),
            ],
            folder / "spark.log",
            {"PYTHONUNBUFFERED": "1"},
        )

    def carry_out(self, announce: Callable[[str], None]) -> Proof:
        """Run the whole proof; `announce` is called with each phase."""
        began = time.monotonic()
        self._create_topics()
        with OrderReader(self._group.namesrv) as reader, self._job:
            self._orders.start()
            try:
                self._job.start()
                announce("the job starts")
                self._wait_at_work(reader)
                for number in range(1, self._kills + 1):
                    for kind in self.proof.kills:
                        announce(f"kill {number} of {self._kills}: {KINDS[kind]}")
                        self._kill(kind)
                        self.proof.kills[kind] += 1
                        self._wait_at_work(reader)
            finally:
                self._orders.stop()
            if self._orders.failure is not None:
                raise NoProofError(f"orders cannot be sent: {self._orders.failure}")
            announce("the job works off the rest")
            self._wait_through(reader)
            announce("both topics are read")
            self._compare(reader)
        self.proof.seconds = round(time.monotonic() - began, 1)
        return self.proof

    def _create_topics(self) -> None:
        """Send one message to each topic, which creates it; they are numbered -1 and left out of the comparison."""
        with Producer(self._group.namesrv, "setup", timeout_s=START_S) as producer:

            def are_made() -> bool:
                try:
                    for topic, number in ((ORDERS, -1), (ENRICHED, -1)):
                        producer.send(Message(topic, order(number), tags="setup"))
                except ClientError:
                    return False
                return True

            clock = MachineClock()
            if not _within(are_made, START_S, clock):
                raise NoProofError(f"no broker takes messages after {_waited(clock)}")

    def _wait_at_work(self, reader: OrderReader) -> None:
        """Wait until rows come out, and then a moment that differs each time."""
        before = reader.count(ENRICHED)
        clock = MachineClock()
        if not self._poll(lambda: reader.count(ENRICHED) > before, START_S, clock):
            raise NoProofError(f"no row came out after {_waited(clock)}: {self._standing()}")
        time.sleep(self._chance.uniform(0, SOON_S))  # a fault's moment, not a wait for something

    def _kill(self, kind: str) -> None:
        """Kill one process of a kind; start it again where nobody else does."""
        match kind:
            case "leader":
                self._kill_leader()
            case "job":
                self._job.kill()
                self._job.start()
            case "worker":
                self._kill_part(kind, self._job.workers)
            case "executor":
                self._kill_part(kind, self._job.executors)
            case _:
                raise AssertionError(f"{kind} is none of {', '.join(KINDS)}")

    def _kill_leader(self) -> None:
        leader = self._leader()
        leader.kill()
        time.sleep(RESTART_AFTER_S)  # how long a broker is away
        leader.start()
        clock = MachineClock()
        if not _within(leader.is_listening, START_S, clock):
            raise NoProofError(
                f"{leader.name} does not come back after {_waited(clock)}\n{leader.log_tail()}"
            )

    def _kill_part(self, kind: str, parts: Callable[[], list[int]]) -> None:
        """Kill a part of the job, any of its kind; Spark starts another one, or the job its query."""

        def is_killed() -> bool:
            pids = parts()
            if not pids:
                return False
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(pids), signal.SIGKILL)
                return True
            return False  # it had just ended by itself

        clock = MachineClock()
        if not self._poll(is_killed, START_S, clock):
            raise NoProofError(f"the job has not {KINDS[kind]} after {_waited(clock)}")

    def _leader(self) -> Process:
        names: list[str] = []

        def is_known() -> bool:
            names[:] = trio.run(serving_nodes, self._group)
            return bool(names)

        clock = MachineClock()
        if not self._poll(is_known, START_S, clock):
            raise NoProofError(f"nobody leads after {_waited(clock)}")
        return self._group.node(names[0])

    def _wait_through(self, reader: OrderReader) -> None:
        """Wait until the job is done with every order, and then until nothing more comes: duplicates may come late.

        Raises:
            NoProofError: it is not in time, so what is missing is not lost.
        """
        clock = MachineClock()
        if not self._poll(lambda: not self._backlog(reader), THROUGH_S, clock):
            raise NoProofError(
                f"the job has {self._backlog(reader)} of {reader.count(ORDERS)} orders before it after "
                f"{_waited(clock)}: {self._standing()}"
            )
        # What comes twice may come late: everything that the job still has under way.
        settled = [reader.count(ENRICHED), 0]

        def is_quiet() -> bool:
            now = reader.count(ENRICHED)
            settled[1] = settled[1] + 1 if now == settled[0] else 0
            settled[0] = now
            return settled[1] >= 4

        poll(is_quiet, THROUGH_S, interval_s=0.5)

    def _backlog(self, reader: OrderReader) -> int:
        """Count the orders that are in no batch that is done."""
        done = offsets_done(self._checkpoint, ORDERS)
        ends = reader.ends(ORDERS)
        return sum(end - done.get((q.broker_name, q.queue_id), 0) for q, end in ends.items())

    def _standing(self) -> str:
        """Say how far the job has come, and its last words."""
        offsets = {int(file.name) for file in self._checkpoint.glob("offsets/[0-9]*")}
        done = {int(file.name) for file in self._checkpoint.glob("commits/[0-9]*")}
        if not self._checkpoint.exists():
            where = "Spark has not started the query"
        elif not offsets:
            where = "the query runs, and has not planned a batch"
        elif offsets - done:
            where = f"batch {max(offsets - done)} is planned, and not done"
        else:
            where = f"batch {max(done)} is done, and no other is planned"
        return f"{where}; the job's last lines:\n{self._job.log_tail() or '(it printed nothing)'}"

    def _poll(self, condition: Callable[[], bool], timeout_s: float, clock: MachineClock) -> bool:
        def holds() -> bool:
            if not self._job.is_running:
                raise NoProofError(f"the job ended by itself\n{self._job.log_tail()}")
            try:
                return condition()
            except ClientError:
                return False  # no leader just now

        return _within(holds, timeout_s, clock)

    def _compare(self, reader: OrderReader) -> None:
        """Compare orders sent, stored and enriched; both topics must hold each order exactly once."""
        proof = self.proof
        orders = Counter(json.loads(body)["id"] for body in reader.bodies(ORDERS))
        rows = [json.loads(body) for body in reader.bodies(ENRICHED)]
        rows.remove(json.loads(order(-1)))
        enriched = Counter(row["id"] for row in rows)
        for topic, counts in ((ORDERS, orders), (ENRICHED, enriched)):
            twice = sorted(number for number, times in counts.items() if times > 1)
            proof.duplicated += len(twice)
            proof.details.extend(f"order {n} is {counts[n]} times in {topic}" for n in twice[:5])
        missing = sorted(self._orders.acknowledged - orders.keys())
        missing += sorted(orders.keys() - enriched.keys())
        strange = [
            r for r in rows if r["id"] not in orders or r["total_cents"] != total_of(r["id"])
        ]
        proof.acknowledged = len(self._orders.acknowledged)
        proof.orders, proof.enriched = sum(orders.values()) - 1, len(rows) - 1
        proof.lost, proof.wrong = len(missing), len(strange)
        proof.details.extend(f"order {number} is missing" for number in missing[:5])
        proof.details.extend(f"row {row} is wrong" for row in strange[:5])


def _within(condition: Callable[[], bool], limit_s: float, clock: MachineClock) -> bool:
    """Wait for a condition, as long as the machine needs; False if it did not come true."""
    while not condition():
        if clock.look() > limit_s:
            return False
        time.sleep(LOOK_S)  # between looks
    return True


def _waited(clock: MachineClock) -> str:
    """Return how long was waited, for people."""
    return (
        f"{clock.wall_s:.0f} s (the machine was {clock.slowness:.1f} times slower than a quiet one)"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof and print it."""
    options = _parser().parse_args(arguments)
    seed = random.randrange(2**31) if options.seed is None else options.seed
    folder = options.keep or Path(tempfile.mkdtemp(prefix="pipeline-"))
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    try:
        with Group(folder) as group:
            group.start()
            group.wait_listening()
            run = ProofRun(
                group,
                folder,
                kills=options.kills,
                kinds=options.kinds,
                rate=options.rate,
                chance=random.Random(seed),
            )
            proof = _watched(run, console, quiet=options.json)
    except (NoProofError, NotReadyError, ProcessDiedError, ClientError) as error:
        sys.stderr.write(f"nothing is proved (seed {seed}): {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        sys.stdout.write(json.dumps(asdict(proof) | {"seed": seed}) + "\n")
    else:
        Console().print(_table(proof))
    if not proof.holds:
        kinds = ",".join(options.kinds)
        sys.stderr.write(
            f"replay: python -m bench.pipeline exactly-once --kinds {kinds} --seed {seed}\n"
        )
    return 0 if proof.holds and proof.enriched else (1 if not proof.holds else 2)


def _parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.pipeline exactly-once", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=2, help="of each kind; default 2")
    parser.add_argument(
        "--kinds",
        type=_kinds,
        default=USUAL_KINDS,
        help=f"what is killed, of {', '.join(KINDS)}; default {USUAL_KINDS}",
    )
    parser.add_argument("--rate", type=int, default=400, help="orders per second; default 400")
    parser.add_argument("--seed", type=int, help="for the moments of the kills")
    parser.add_argument("--keep", type=Path, help="keep stores, checkpoint and logs in this folder")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


def _kinds(text: str) -> list[str]:
    """Read a list of what is killed; raises what the parser of the command line reports."""
    kinds = text.split(",")
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind!r} is none of {', '.join(KINDS)}")
    return kinds


def _watched(run: ProofRun, console: Console, *, quiet: bool) -> Proof:
    """Run the proof behind a progress bar, or with one line per phase where no terminal is watched."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=quiet,
    ) as progress:
        task = progress.add_task("the group starts", total=None)

        def announce(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal and not quiet:
                console.print(text)

        return run.carry_out(announce)


def _table(proof: Proof) -> Table:
    """Build the table of counts; the three that must be 0 are coloured by whether they are."""
    table = Table(title="Exactly once, through kills", show_header=False)
    table.add_column("what")
    table.add_column("count", justify="right")
    for kind, count in proof.kills.items():
        table.add_row(f"kills of {KINDS[kind]} (SIGKILL)", f"{count}")
    table.add_row("orders acknowledged", f"{proof.acknowledged}")
    table.add_row("orders in the topic", f"{proof.orders}")
    table.add_row("enriched orders", f"{proof.enriched}")
    for name, count in (
        ("lost", proof.lost),
        ("duplicated", proof.duplicated),
        ("wrong", proof.wrong),
    ):
        table.add_row(name, f"[{'red' if count else 'green'}]{count}[/]")
    table.add_row("seconds", f"{proof.seconds:.0f}")
    for line in proof.details:
        table.add_row("", line)
    return table

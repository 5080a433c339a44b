"""What does a message cost the processor of a program that uses `dledger_mq`?

    python -m bench.client [--count 20000] [--rounds 5] [--only submit] [--loop asyncio] [--beside FOLDER] [--json]
                           [--profile 0]

The client is in a process of its own for each figure, and what it talks to (`bench.client_peer`) in another one. A
figure is processor time of the client's process per message of 1 KiB: kernel work, the making of the message and the
application's loop are in it. With `--beside` another checkout of this project takes turns with this one, so that both
meet the same machine. Medians, and the least, over the rounds.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
from rich.console import Console
from rich.table import Table

from bench.client_peer import BODY_BYTES, BROKER_NAME, TOPIC
from dledger_mq import (
    Credentials,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from dledger_mq import blocking as sync

BODY: Final = b"x" * BODY_BYTES
GROUP: Final = "bench"
STEP: Final = 1000
BATCH_COUNT: Final = 100
LOOPS: Final = ("asyncio", "trio")

Mark = Callable[[], None]
"""Called where the measured part begins, and where it ends."""


async def send_in_tasks(producer: Producer, count: int, tasks: int) -> None:
    """Send from so many tasks, each of which waits for its own answers."""

    async def some() -> None:
        for _ in range(count // tasks):
            await producer.send(Message(TOPIC, BODY))

    async with anyio.create_task_group() as group:
        for _ in range(tasks):
            group.start_soon(some)


async def submit(producer: Producer, count: int) -> None:
    """Send without waiting for each answer."""
    for _ in range(count):
        await producer.submit(Message(TOPIC, BODY))
    await producer.flush()


async def submit_labelled(producer: Producer, count: int) -> None:
    """Do the same with messages that have a tag and a key."""
    for number in range(count):
        message = Message(TOPIC, BODY, tags="paid", keys=f"order-{number}")
        await producer.submit(message, key=f"customer-{number}")
    await producer.flush()


async def send_nowait(producer: Producer, count: int) -> None:
    """Send without any wait between messages."""
    for _ in range(count // STEP):
        for _ in range(STEP):
            producer.send_nowait(Message(TOPIC, BODY))
        await producer.flush()


async def submit_batches(producer: Producer, count: int) -> None:
    """Send batches without waiting for each answer."""
    for _ in range(count // BATCH_COUNT):
        await producer.submit_batch([Message(TOPIC, BODY) for _ in range(BATCH_COUNT)])
    await producer.flush()


def producing(
    send: Callable[[Producer, int], Awaitable[None]], credentials: Credentials | None = None
) -> Callable[..., Awaitable[None]]:
    """Return a case that sends with an open producer, signed if there are credentials."""

    async def run(namesrv: str, count: int, mark: Mark) -> None:
        async with Producer(namesrv, GROUP, credentials=credentials) as producer:
            await producer.send(Message(TOPIC, BODY))
            mark()
            await send(producer, count)
            mark()

    return run


def blocking_many(namesrv: str, count: int, mark: Mark) -> None:
    """Send lists of messages without async."""
    with sync.Producer(namesrv, GROUP) as producer:
        producer.send(Message(TOPIC, BODY))
        mark()
        for _ in range(count // STEP):
            producer.send_many(Message(TOPIC, BODY) for _ in range(STEP))
        mark()


def blocking_async(namesrv: str, count: int, mark: Mark) -> None:
    """Hand messages over one by one without async."""
    with sync.Producer(namesrv, GROUP) as producer:
        producer.send(Message(TOPIC, BODY))
        mark()
        for _ in range(count):
            producer.send_async(Message(TOPIC, BODY))
        producer.flush()
        mark()


def pulling(max_messages: int) -> Callable[..., Awaitable[None]]:
    """Return a case that pulls one queue."""

    async def run(namesrv: str, count: int, mark: Mark) -> None:
        queue, offset = MessageQueue(TOPIC, BROKER_NAME, 0), 0
        async with PullConsumer(namesrv, GROUP) as consumer:
            await consumer.queues(TOPIC)
            mark()
            while offset < count:
                pulled = await consumer.pull(queue, offset, max_messages=max_messages)
                assert len(pulled.messages) == max_messages, f"{len(pulled.messages)} came"
                offset = pulled.next_offset
            mark()

    return run


def pushing(*, is_batch: bool = False, **settings: Any) -> Callable[..., Awaitable[None]]:
    """Return a case of a push consumer, with a handler of messages or of batches."""

    async def run(namesrv: str, count: int, mark: Mark) -> None:
        got, done = 0, anyio.Event()

        def take(number: int) -> None:
            nonlocal got
            if not got:
                mark()
            if got < count <= got + number:
                mark()
                done.set()
            got += number

        async def handle(_: ReceivedMessage) -> None:
            take(1)

        async def handle_batch(messages: tuple[ReceivedMessage, ...]) -> None:
            take(len(messages))

        options = {"batch_handler": handle_batch} if is_batch else {"handler": handle}
        async with PushConsumer(
            namesrv,
            GROUP,
            subscriptions={TOPIC: "*"},
            start_from="first",
            **options,
            **settings,
        ):
            await done.wait()

    return run


async def loop(namesrv: str, count: int, mark: Mark) -> None:
    """Take messages by `async for`."""
    got = 0
    async with PushConsumer(
        namesrv, GROUP, subscriptions={TOPIC: "*"}, start_from="first"
    ) as consumer:
        async for _ in consumer:
            if not got:
                mark()
            got += 1
            if got == count:
                mark()
                break


@dataclass(frozen=True, slots=True)
class Case:
    """A way to use the client.

    Attributes:
        run: does so many messages; called with the name server's address, the count and the mark.
        share: of the count that the bench was asked for; cheap ways do more.
        is_blocking: it is code without async.
    """

    run: Callable[[str, int, Mark], Awaitable[None] | None]
    share: float = 1.0
    is_blocking: bool = False


CASES: Final[dict[str, Case]] = {
    "send, one task": Case(producing(lambda p, n: send_in_tasks(p, n, 1)), 0.1),
    "send, 64 tasks": Case(producing(lambda p, n: send_in_tasks(p, n, 64)), 0.5),
    "submit": Case(producing(submit)),
    "submit, signed": Case(producing(submit, Credentials("bench-client", "a secret key"))),
    "submit, tag and key": Case(producing(submit_labelled)),
    "send_nowait": Case(producing(send_nowait)),
    "submit_batch": Case(producing(submit_batches), 4),
    "blocking send_many": Case(blocking_many, is_blocking=True),
    "blocking send_async": Case(blocking_async, 0.5, is_blocking=True),
    "pull": Case(pulling(32), 4),
    "pull of 256": Case(pulling(256), 4),
    "handler": Case(pushing(), 2),
    "handler, ordered": Case(pushing(ordered=True), 1),
    "batch_handler": Case(pushing(is_batch=True, consume_batch_max=32), 4),
    "batch_handler, pull_batch 256": Case(
        pushing(is_batch=True, consume_batch_max=256, pull_batch=256), 4
    ),
    "async for": Case(loop, 2),
}


def measure(name: str, backend: str, namesrv: str, wanted: int) -> float:
    """Return the processor time of one message, in microseconds; what opening and closing take is not in it."""
    case = CASES[name]
    marks: list[float] = []
    count = max(STEP, int(wanted * case.share) // STEP * STEP)

    async def run() -> None:
        done = case.run(namesrv, count, mark)
        assert done is not None, f"{name} is a case without async"
        await done

    def mark() -> None:
        marks.append(time.process_time())

    if case.is_blocking:
        case.run(namesrv, count, mark)
    else:
        anyio.run(run, backend=backend)
    began, ended = marks
    return 1e6 * (ended - began) / count


def measure_in_process(folder: Path, name: str, backend: str, *, namesrv: str, count: int) -> float:
    """Return what `measure` does with the client of a checkout, in a process of its own, after a round that warms up.

    Raises:
        RuntimeError: it failed.
    """
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import dledger_mq; del sys.path[0]\n"
        "from bench.client import measure\n"
        "name, backend, namesrv, count = sys.argv[1:]\n"
        "measure(name, backend, namesrv, int(count) // 10)\n"
        "print(measure(name, backend, namesrv, int(count)))"
    )
    arguments = [str(folder), name, backend, namesrv, str(count)]
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"{name} on {backend} failed: {ended.stderr[-2000:]}")
    return float(ended.stdout.split()[-1])


def asked_for() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="bench.client", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--count", type=int, default=20_000, help="messages (default 20000)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", help="a case by its name; may come again")
    parser.add_argument("--loop", choices=LOOPS, help="one of the two event loops alone")
    parser.add_argument("--beside", type=Path, help="another checkout of this project")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--profile", type=int, default=0, help="show so many functions of each")
    return parser.parse_args()


def main() -> int:
    """Measure the chosen cases by turns and print them."""
    options = asked_for()
    folders = [folder for folder in (options.beside, Path.cwd()) if folder is not None]
    figures: dict[str, list[list[float]]] = {}
    peer = subprocess.Popen(
        [sys.executable, "-m", "bench.client_peer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert peer.stdin is not None, "the peer has no pipe for stdin"
    assert peer.stdout is not None, "the peer has no pipe for stdout"
    try:
        namesrv = peer.stdout.readline().strip()
        for name, case in CASES.items():
            loops = ("trio",) if case.is_blocking else LOOPS
            for backend in loops:
                if (options.only and name not in options.only) or options.loop not in (
                    None,
                    backend,
                ):
                    continue
                key = name if case.is_blocking else f"{name} ({backend})"
                figures[key] = [[] for _ in folders]
                for _ in range(options.rounds):
                    for folder, values in zip(folders, figures[key], strict=True):
                        values.append(
                            measure_in_process(
                                folder, name, backend, namesrv=namesrv, count=options.count
                            )
                        )
                if options.profile:
                    show_profile(
                        name, backend, namesrv=namesrv, count=options.count, lines=options.profile
                    )
    finally:
        peer.stdin.close()
        peer.wait()
    if options.json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        show(figures)
    return 0


def show_profile(name: str, backend: str, *, namesrv: str, count: int, lines: int) -> None:
    """Print the functions in which a case spends its processor time."""
    profile = cProfile.Profile(time.process_time)
    profile.runcall(measure, name, backend, namesrv, count)
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(lines)


def show(figures: dict[str, list[list[float]]]) -> None:
    """Print a table; the other checkout comes first."""
    is_beside = any(len(each) > 1 for each in figures.values())
    table = Table(
        "way", *(["beside: us a message", "least"] if is_beside else []), "us a message", "least"
    )
    for name, columns in figures.items():
        cells = [
            f"{number:.2f}"
            for values in columns
            for number in (statistics.median(values), min(values))
        ]
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())

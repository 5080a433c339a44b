"""Three nodes, real clients, and the leader killed again and again: is anything lost?

    python -m jepsen.demo [--kills 5] [--seconds 22] [--no-cpp] [--plain] [--seed N] [--keep DIR] [--json]

Starts a name server and a three-node group as processes of their own, lets our client and (where its
wheel installs) Apache's C++ client produce and consume, kills the leader with SIGKILL every few seconds,
starts it again, lets the consumers finish, and judges the recorded history (see `checker.py`). Beside them
run transactions, messages with due times and an ordered stream (`promises.py`); --plain leaves them out.

Exit status: 0 nothing acknowledged was lost, every queue was consumed in order and every other promise was
kept, 1 something was broken, 2 unknown: nothing was acknowledged, or the group did not start.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import trio
from rich.console import Console
from rich.live import Live

from broker.client import Producer, PullConsumer
from jepsen import cpp_client, workload
from jepsen.checker import Verdict, check
from jepsen.cpp_client import CppWorker
from jepsen.history import Event, Recorder
from jepsen.nemesis import LeaderKiller
from jepsen.observer import Observer
from jepsen.processes import (
    SMALL_SEGMENTS,
    Group,
    NotReadyError,
    ProcessDiedError,
    sigterm_as_interrupt,
)
from jepsen.progress import Progress, failover_gaps_ms, percentile
from jepsen.promises import STREAMS, Promises, judge
from jepsen.report import live_line, print_report
from jepsen.run import first_of
from jepsen.stream_workload import BROKER_CONF, ORDERED_GROUP, StreamWorkload, all_streams

VALID, INVALID, UNKNOWN, INTERRUPTED = 0, 1, 2, 130
STARTUP_ERRORS: Final = (NotReadyError, ProcessDiedError, trio.TooSlowError)
TOPIC: Final = "Demo"
SECONDS_PER_KILL: Final = 4.0
QUIET_END_S: Final = 2.0  # after the last kill, so that its gap can be measured
RESTART_AFTER_S: Final = 1.0
WRITE_PAUSE_S: Final = 0.003
START_TIMEOUT_S: Final = 20.0
CPP_START_TIMEOUT_S: Final = 15.0
DRAIN_S: Final = 20.0
STREAM_QUIET_S: Final = 1.5  # several intervals of checks: what must not be seen would be by then
CPP_DRAIN_S: Final = 60.0  # it gives up a pull on a broken connection after 30 s only
REFRESH_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    kills: int
    seconds: float
    with_cpp: bool
    seed: int
    keep: Path | None
    as_json: bool
    write_pause_s: float = WRITE_PAUSE_S
    with_streams: bool = True


class Demo:
    """One run. `run` does it; the history holds what happened."""

    def __init__(
        self, settings: Settings, group: Group, history: Recorder, console: Console
    ) -> None:
        self.drained: set[str] = set()
        self._settings = settings
        self._group = group
        self._history = history
        self._console = console
        self._progress = Progress(history.events)
        self._phase = "starting"
        self._observer = Observer(group, history.note_leader)
        self._cpp: dict[str, CppWorker] = {}
        self._streams: list[StreamWorkload] = []
        if settings.with_streams:
            self._streams = all_streams(group.namesrv, history, settings.seed)

    async def run(self, cpp_python: Path | None) -> None:
        """Start the clients, break things, let everything come to rest."""
        namesrv, history = self._group.namesrv, self._history
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._observer.run)
            nursery.start_soon(self._show)
            async with (
                Producer(namesrv, "demo-producer") as producer,
                PullConsumer(namesrv, workload.GROUP, timeout_s=1.0) as reader,
                AsyncExitStack() as streams,
            ):
                await workload.wait_for_queues(producer, TOPIC, START_TIMEOUT_S)
                self._phase = "starting clients"
                stop = trio.Event()
                queues = await producer.queues(TOPIC)
                for stream in self._streams:
                    await streams.enter_async_context(stream.opened())
                async with workload.recording_consumer(namesrv, TOPIC, history):
                    async with trio.open_nursery() as sending:
                        writers = [
                            workload.Writer(
                                producer, queue, history, pause_s=self._settings.write_pause_s
                            )
                            for queue in queues
                        ]
                        for writer in writers:
                            sending.start_soon(writer.run, stop)
                        for writer in writers:
                            await writer.has_begun.wait()
                        for stream in self._streams:
                            sending.start_soon(stream.run, stop)
                        nursery.start_soon(workload.watch_offsets, reader, queues, history)
                        if cpp_python is not None:
                            await self._start_cpp(cpp_python, len(queues), nursery)
                        await self._break_things()
                        stop.set()
                        if "produce" in self._cpp:
                            self._phase = "stopping producers"
                            await self._cpp["produce"].stop()
                    await self._drain()
            nursery.cancel_scope.cancel()

    async def _start_cpp(self, python: Path, queues: int, nursery: trio.Nursery) -> None:
        for what in ("consume", "produce"):
            worker = CppWorker(
                python,
                "consume" if what == "consume" else "produce",
                self._group.namesrv,
                TOPIC,
                queues=queues,
                broker_name=self._group.group,
                history=self._history,
            )
            self._cpp[what] = worker
            nursery.start_soon(worker.run, self._group.folder / f"cpp-{what}.log")
        with trio.move_on_after(CPP_START_TIMEOUT_S):
            for worker in self._cpp.values():
                await worker.has_started.wait()

    async def _break_things(self) -> None:
        settings, chance = self._settings, random.Random(self._settings.seed)
        self._phase = "killing leaders"
        began = trio.current_time()
        period_s = (settings.seconds - QUIET_END_S) / max(settings.kills, 1)
        killer = LeaderKiller(
            self._group,
            self._observer,
            self._history,
            kills=settings.kills,
            period_s=max(period_s, 1.0) * chance.uniform(0.9, 1.0),
            restart_after_s=min(RESTART_AFTER_S, period_s / 2),
        )
        await killer.run()
        await trio.sleep_until(max(began + settings.seconds, trio.current_time() + QUIET_END_S / 2))

    async def _drain(self) -> None:
        self._phase = "draining"
        groups = {workload.GROUP: DRAIN_S}
        consumer = self._cpp.get("consume")
        if consumer is not None:
            groups[cpp_client.GROUP] = CPP_DRAIN_S
        for name, seconds in groups.items():
            with trio.move_on_after(seconds):
                self._phase = f"draining {name}"
                while self._is_missing(name):
                    if name == cpp_client.GROUP and consumer and consumer.has_ended.is_set():
                        self._history.add("note", text="the C++ consumer ended by itself")
                        break
                    await trio.sleep(REFRESH_S)
            if name == workload.GROUP or not (consumer and consumer.has_ended.is_set()):
                self.drained.add(name)

        await self._drain_streams()

    async def _drain_streams(self) -> None:
        with trio.move_on_after(DRAIN_S):
            while late := [stream.name for stream in self._streams if stream.missing]:
                self._phase = f"draining {late[0]}"
                await trio.sleep(REFRESH_S)
        if self._streams:
            await trio.sleep(STREAM_QUIET_S)

    def _is_missing(self, group: str) -> bool:
        self._progress.update()
        return self._progress.missing(group) > 0

    async def _show(self) -> None:
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                self._progress.update()
                line = live_line(self._progress, self._phase, self._history.now_ms() / 1000)
                live.update(line, refresh=self._console.is_terminal)
                await trio.sleep(REFRESH_S)


@dataclass(frozen=True, slots=True)
class Run:
    """What is left of a finished run."""

    folder: Path
    events: list[Event]
    verdict: Verdict
    promises: Promises


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status."""
    settings = read_arguments(sys.argv[1:] if arguments is None else arguments)
    sigterm_as_interrupt()
    console = Console(stderr=True) if settings.as_json else Console()
    cpp_python = None
    if settings.with_cpp:
        cpp_python = cpp_client.installed_python(lambda text: console.print(text, highlight=False))
    try:
        run = execute(settings, cpp_python, console)
    except STARTUP_ERRORS as error:
        console.print(f"[bold yellow]UNKNOWN[/bold yellow]: the group did not start: {error}")
        return UNKNOWN
    except KeyboardInterrupt:
        console.print("interrupted; every process was ended")
        return INTERRUPTED
    if settings.as_json:
        gaps = failover_gaps_ms(run.events, workload.PRODUCER)
        sys.stdout.write(summary(run.verdict, gaps, run.promises) + "\n")
    return conclude(settings, run, console)


def execute(settings: Settings, cpp_python: Path | None, console: Console) -> Run:
    """Run it once, with every process ended afterwards, and judge it.

    Raises:
        NotReadyError, ProcessDiedError, trio.TooSlowError: the group did not start.
    """
    folder = settings.keep or Path(tempfile.mkdtemp(prefix="dledger-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"seed {settings.seed}, stores and logs in {folder}", highlight=False)
    broker_conf = BROKER_CONF if settings.with_streams else SMALL_SEGMENTS
    with (
        Group(folder, settings=broker_conf) as group,
        Recorder(folder / "history.jsonl") as history,
    ):
        demo = Demo(settings, group, history, console)
        group.start()
        group.wait_listening(START_TIMEOUT_S)
        try:
            trio.run(demo.run, cpp_python)
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
    verdict = check(history.events, drained=demo.drained)
    promises = judge(
        history.events,
        streams=STREAMS if settings.with_streams else (),
        ordered_group=ORDERED_GROUP,
        probe=workload.PRODUCER,
    )
    return Run(folder, history.events, promises.added_to(verdict), promises)


def conclude(settings: Settings, run: Run, console: Console) -> int:
    """Print the report, keep or remove the folder, and return the exit status."""
    gaps = failover_gaps_ms(run.events, workload.PRODUCER)
    print_report(console, run.events, run.verdict, gaps, run.promises)
    if run.verdict.valid and settings.keep is None:
        shutil.rmtree(run.folder, ignore_errors=True)
    else:
        console.print(f"history and logs: {run.folder}", highlight=False)
    return {True: VALID, False: INVALID, None: UNKNOWN}[run.verdict.valid]


def summary(verdict: Verdict, gaps_ms: Sequence[float | None], promises: Promises) -> str:
    """Return the line for scripts: plain messages first, then a member for each stream."""
    known = [gap for gap in gaps_ms if gap is not None]
    failover = {
        "p50": round(percentile(known, 50)) if known else None,
        "max": round(max(known)) if known else None,
    }
    line = {
        "acknowledged": verdict.total("acknowledged"),
        "received": verdict.total("received"),
        "lost": verdict.total("lost"),
        "duplicated": verdict.total("duplicated"),
        "kills": len(gaps_ms),
        "failover_ms": failover,
        **promises.counts,
    }
    return msgspec.json.encode(line).decode()


def read_arguments(arguments: Sequence[str]) -> Settings:
    """Read the command line; exits with status 2 when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m jepsen.demo", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--kills", type=int, default=5, help="how often the leader is killed")
    parser.add_argument("--seconds", type=float, help="how long, without start and drain")
    parser.add_argument("--no-cpp", action="store_true", help="only our own client")
    parser.add_argument("--plain", action="store_true", help="only plain messages")
    parser.add_argument("--seed", type=int, help="of the times of the kills; drawn when not given")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep stores, logs, history there")
    parser.add_argument("--json", action="store_true", help="one line of results on stdout")
    read = parser.parse_args(arguments)
    if read.kills < 0 or (read.seconds is not None and read.seconds <= 0):
        parser.error("--kills and --seconds must not be negative")
    return Settings(
        kills=read.kills,
        seconds=read.seconds or read.kills * SECONDS_PER_KILL + QUIET_END_S,
        with_cpp=not read.no_cpp,
        seed=random.randrange(1_000_000) if read.seed is None else read.seed,
        keep=read.keep,
        as_json=read.json,
        with_streams=not read.plain,
    )


if __name__ == "__main__":
    sys.exit(main())

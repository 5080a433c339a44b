"""Children stop stage by stage, each within its time; a second signal leaves none of them much of it."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from broker.processes.child import Child, Program
from broker.processes.staged_stop import StagedStop, StopStage
from tests.waiting import wait_until

# Each prints what it is sent, and ends at the signal whose number it is given. It waits for signals, and handles none:
# one that comes within a handler's print ends it, and one just before a pause is not seen.
TAKES = """
import signal, sys
taken = {signal.SIGTERM, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, taken)
print("ready", flush=True)
for _ in range(int(sys.argv[1])):
    print(signal.Signals(signal.sigwait(taken)).name, flush=True)
"""
NEVER = 99


def lines_of(child: Child) -> list[str]:
    return child.program.log.read_text().splitlines() if child.program.log.exists() else []


@asynccontextmanager
async def children(folder: Path, *ends_at: int) -> AsyncIterator[list[Child]]:
    """Children that end at so many signals, each of them ready for signals."""
    made = [
        Child(
            Program(
                f"c{n}", (sys.executable, "-c", TAKES, str(count), str(folder)), folder / f"{n}"
            )
        )
        for n, count in enumerate(ends_at)
    ]
    try:
        async with trio.open_nursery() as nursery:
            for child in made:
                nursery.start_soon(child.keep_running, lambda _end: None)
            await wait_until(lambda: all(lines_of(child) for child in made))
            nursery.cancel_scope.cancel()
        yield made
    finally:
        for child in made:
            child.send_signal(signal.SIGKILL)
        for child in made:
            with trio.CancelScope(shield=True):
                await child.wait_ended()


async def test_a_stage_begins_when_the_one_before_has_ended(tmp_path: Path) -> None:
    reported: list[str] = []
    async with children(tmp_path, 1, 2, 1) as (first, slow, last):
        stages = [StopStage([first, slow], 60), StopStage([last], 60)]
        stop = StagedStop(stages, reported.append, hurry_s=60)
        stop.take(signal.SIGTERM)
        assert stop.wanted.is_set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop.run)
            await wait_until(lambda: lines_of(slow) == ["ready", "SIGTERM"])
            await wait_until(lambda: not first.is_running)
            assert lines_of(last) == ["ready"]
            stop.take(signal.SIGINT)  # the one that still runs gets it, and the last stage does not
        assert lines_of(slow) == ["ready", "SIGTERM", "SIGINT"]
        assert lines_of(last) == ["ready", "SIGTERM"]
    assert reported == []


async def test_a_stop_asks_nobody_again_whom_another_one_has_asked(tmp_path: Path) -> None:
    reported: list[str] = []
    async with children(tmp_path, 2, 1) as (slow, quick):
        before = StagedStop([StopStage([slow], 60)], reported.append, hurry_s=60)
        stop = StagedStop([StopStage([quick, slow], 60)], reported.append, hurry_s=60)
        stop.take(signal.SIGTERM)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(before.run)
            await wait_until(lambda: lines_of(slow) == ["ready", "SIGTERM"])
            nursery.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop.run)
            await wait_until(lambda: not quick.is_running)
            assert slow.is_running
            stop.take(signal.SIGINT)  # haste is asked of all
        assert lines_of(slow) == ["ready", "SIGTERM", "SIGINT"]
    assert reported == []


async def test_haste_is_asked_also_of_who_was_asked_before_the_stop_began(tmp_path: Path) -> None:
    reported: list[str] = []
    async with children(tmp_path, 2) as (slow,):
        slow.ask_to_stop()
        await wait_until(lambda: lines_of(slow) == ["ready", "SIGTERM"])
        stop = StagedStop([StopStage([slow], 60)], reported.append, hurry_s=60)
        stop.take(signal.SIGTERM)
        stop.take(signal.SIGTERM)
        await stop.run()
        assert lines_of(slow) == ["ready", "SIGTERM", "SIGTERM"]
    assert reported == []


async def test_what_ignores_the_signal_is_killed_when_its_time_is_over(tmp_path: Path) -> None:
    reported: list[str] = []
    async with children(tmp_path, NEVER, 1) as (deaf, last):
        stop = StagedStop(
            [StopStage([deaf], 0.2), StopStage([last], 60)], reported.append, hurry_s=60
        )
        with trio.fail_after(60):
            await stop.run()
        assert deaf.status.last_end == "was ended by SIGKILL"
        assert not last.is_running
        assert lines_of(last) == ["ready", "SIGTERM"]
    (line,) = reported
    assert re.fullmatch(r"c0 did not stop within \d+ s: killed", line)


async def test_after_a_second_signal_no_stage_takes_longer_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    async with children(tmp_path, NEVER, NEVER) as (deaf, last):
        sent: list[signal.Signals] = []  # it may be killed before it has printed anything
        send_signal = last.send_signal

        def send(number: signal.Signals) -> None:
            sent.append(number)
            send_signal(number)

        monkeypatch.setattr(last, "send_signal", send)
        stop = StagedStop(
            [StopStage([deaf], 1000), StopStage([last], 1000)], reported.append, hurry_s=0.2
        )
        assert (stop.s_max, stop.hurried_s_max) == (2002, 2.4)
        stop.take(signal.SIGTERM)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop.run)
            await wait_until(lambda: lines_of(deaf) == ["ready", "SIGTERM"])
            stop.take(signal.SIGTERM)
            await wait_until(lambda: not (deaf.is_running or last.is_running))
        assert sent == [signal.SIGTERM, signal.SIGKILL]
    assert len(reported) == 2

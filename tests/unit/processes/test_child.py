"""A child is started, started again, taken over; what cannot be done is said, and no process is ever lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from broker.processes import child as child_module
from broker.processes.child import Child, ChildEnd, ChildStatus, Program, status_now
from broker.processes.identity import find_process, process_of
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start again at once."""
    monkeypatch.setattr(child_module, "RESTART_S", 0.01)


SLEEPS = "import time; time.sleep(600)"
# It waits for signals, and handles none: one that comes within a handler's print ends it, and one just before a pause
# is not seen.
NOTES_SIGNALS = """
import signal
taken = {signal.SIGTERM, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, taken)
print("ready", flush=True)
while True:
    print(signal.Signals(signal.sigwait(taken)).name, flush=True)
"""


def program(folder: Path, script: str = SLEEPS) -> Program:
    return Program("child", (sys.executable, "-c", script, str(folder)), folder / "child.log")


@asynccontextmanager
async def kept_running(
    child: Child, ended: Callable[[ChildEnd], None] = lambda _end: None
) -> AsyncIterator[list[ChildEnd]]:
    """A child that is kept running, and its ends, of which `ended` is told at once; it is killed afterwards."""
    ends: list[ChildEnd] = []

    def note(end: ChildEnd) -> None:
        ends.append(end)
        ended(end)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.keep_running, note)
            yield ends
            nursery.cancel_scope.cancel()
    finally:
        child.send_signal(signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await child.wait_ended()


@pytest.mark.parametrize(
    ("script", "how", "has_failed"),
    [
        ("print('some'); print('last words'); exit(3)", "ended with status 3: last words", True),
        ("exit(0)", "ended with status 0: it printed nothing", False),
        (
            r"import sys; sys.stdout.buffer.write(b'\x1b[31mred\0\xff\n \0\n\n'); exit(1)",
            "ended with status 1: [31mred\N{REPLACEMENT CHARACTER}",
            True,
        ),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL", False),
        ("import os; os.kill(os.getpid(), 40)", "was ended by signal 40", False),
    ],
)
async def test_how_it_ended_is_said(
    script: str, how: str, has_failed: bool, tmp_path: Path
) -> None:
    async with kept_running(Child(program(tmp_path, script))) as ends:
        await wait_until(lambda: bool(ends))
    assert (ends[0].how, ends[0].has_failed) == (how, has_failed)
    assert str(ends[0]) == f"child {how}; starting it again in 0.01 s"


async def test_one_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    missing = Program("child", (str(tmp_path / "none"),), tmp_path / "child.log")
    async with kept_running(Child(missing)) as ends:
        await wait_until(lambda: len(ends) >= 2)
    reason = f"cannot be started: {tmp_path}/none: No such file or directory"
    assert [(end.how, end.has_failed, end.wait_s) for end in ends[:2]] == [
        (reason, True, 0.01),
        (reason, True, 0.02),
    ]


async def test_a_log_that_cannot_be_opened_is_said_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a folder should be")
    command = program(tmp_path).command
    child = Child(Program("child", command, tmp_path / "logs" / "child.log"))
    async with kept_running(child) as ends:
        await wait_until(lambda: bool(ends))
    assert ends[0].how == f"cannot be started: {tmp_path}/logs/child.log: Not a directory"


async def test_a_process_that_cannot_be_watched_is_killed_before_the_next_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def refuse(pid: int) -> int:
        started.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("os.pidfd_open", refuse)
    child = Child(program(tmp_path))
    async with kept_running(child) as ends:
        await wait_until(lambda: bool(ends))
        monkeypatch.undo()
        await wait_until(lambda: child.status.pid is not None)
        assert started
        assert ends[0].how == "cannot be started: Too many open files"
        assert [pid for pid in started if process_of(pid)] == []


async def test_a_new_start_is_counted_together_with_its_process(tmp_path: Path) -> None:
    seen: list[tuple[bool, int]] = []
    child = Child(
        program(tmp_path, "exit(0)"),
        lambda: seen.append((child.status.pid is not None, child.status.restarts)),
    )
    async with kept_running(child) as ends:
        await wait_until(lambda: len(ends) >= 2)
    assert seen[:4] == [(True, 0), (False, 0), (True, 1), (False, 1)]


async def test_the_process_of_a_lost_parent_is_taken_over_with_its_history(tmp_path: Path) -> None:
    known = ChildStatus("child", None, 0)
    first = Child(program(tmp_path))
    async with kept_running(first):
        await wait_until(lambda: first.status.pid is not None)
        known = ChildStatus(**{**_fields(first.status), "restarts": 7, "last_end": "was ended"})
        second = Child(program(tmp_path))
        assert second.adopt(known)
        assert second.status == known
        second.send_signal(signal.SIGKILL)
        with trio.fail_after(60):
            await second.wait_ended()
        assert (second.status.pid, second.status.last_end[:6]) == (None, "ended:")
    assert not Child(program(tmp_path)).adopt(known)


async def test_a_process_that_its_parent_could_not_note_is_found_by_its_command(
    tmp_path: Path,
) -> None:
    first = Child(program(tmp_path))
    async with kept_running(first):
        await wait_until(lambda: find_process(first.program.command) is not None)
        for known in (None, ChildStatus("child", None, 5), ChildStatus("child", 1, 5, start="x/1")):
            second = Child(program(tmp_path))
            assert second.adopt(known)
            assert (second.status.pid, second.status.start) == (
                first.status.pid,
                first.status.start,
            )
            assert second.status.since_ms is not None
            assert first.status.since_ms is not None
            assert abs(second.status.since_ms - first.status.since_ms) < 60_000


async def test_when_an_end_was_that_no_parent_saw_is_not_known(tmp_path: Path) -> None:
    child = Child(program(tmp_path))
    async with kept_running(child):
        await wait_until(lambda: child.status.pid is not None)
        known = child.status
    assert known.since_ms is not None
    unseen = status_now(child.program, known)
    assert (unseen.pid, unseen.since_ms) == (None, None)
    assert status_now(child.program, None).since_ms is None
    seen = ChildStatus("child", None, 5, last_end="was ended by SIGKILL")
    assert status_now(child.program, seen) == seen


async def test_who_was_asked_to_stop_is_known_to_the_next_parent_and_asked_once(
    tmp_path: Path,
) -> None:
    first = Child(program(tmp_path, NOTES_SIGNALS))
    async with kept_running(first):
        await wait_until(first.program.log.exists)
        await wait_until(lambda: noted(first) == ["ready"])
        first.ask_to_stop()
        await wait_until(lambda: noted(first) == ["ready", "SIGTERM"])
        second = Child(first.program)
        assert second.adopt(first.status)
        assert second.status.is_stopping
        second.ask_to_stop()
        second.send_signal(signal.SIGINT)
        await wait_until(lambda: "SIGINT" in noted(first))
        assert noted(first) == ["ready", "SIGTERM", "SIGINT"]
        second.ask_to_stop(again=True)
        await wait_until(lambda: noted(first)[-1] == "SIGTERM")
        # One that the parent had not noted may be another than the one that was asked.
        found = status_now(first.program, ChildStatus("child", None, 5, is_stopping=True))
        assert (found.pid, found.is_stopping) == (first.status.pid, False)


async def test_a_process_that_is_started_again_was_not_asked_to_stop(tmp_path: Path) -> None:
    child = Child(program(tmp_path))
    async with kept_running(child) as ends:
        await wait_until(lambda: child.status.pid is not None)
        child.ask_to_stop()
        assert child.status.is_stopping
        await wait_until(lambda: bool(ends) and child.status.pid is not None)
        assert not child.status.is_stopping


async def test_another_process_with_the_id_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen((sys.executable, "-c", SLEEPS)) as other:  # noqa: ASYNC220
        try:
            known = ChildStatus("child", other.pid, 0, start="an-earlier-boot/77")
            assert status_now(program(tmp_path), known).pid is None
            child = Child(program(tmp_path))
            assert not child.adopt(known)
            child.send_signal(signal.SIGKILL)
            assert other.poll() is None
        finally:
            other.kill()


async def test_a_log_is_put_aside_when_it_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "LOG_BYTES_MAX", 10)
    ended = program(tmp_path, "print('a line of some length')")
    logs: list[str] = []

    def read(_end: ChildEnd) -> None:
        """Read both before it is started again, which puts the second one aside."""
        aside = ended.log.with_name("child.log.1")
        logs.append(ended.log.read_text())
        logs.append(aside.read_text() if aside.exists() else "none")

    async with kept_running(Child(ended), read):
        await wait_until(lambda: len(logs) >= 4)
    line = "a line of some length\n"
    assert logs[:4] == [line, "none", line, line]


def noted(child: Child) -> list[str]:
    """What a process has printed that runs NOTES_SIGNALS."""
    return child.program.log.read_text().splitlines()


def _fields(status: ChildStatus) -> dict[str, object]:
    return {name: getattr(status, name) for name in status.__struct_fields__}

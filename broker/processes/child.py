"""One process that is kept running: started, watched, started again when it ends.

A child outlives its parent: it has a session of its own and writes its log itself. So a parent that was killed costs
nothing, and one that starts takes over what it finds running (`adopt`). A child's end is awaited on a pidfd, which
works for both.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import trio

from broker.processes.identity import find_process, is_same_process, process_of

RESTART_S: Final = 0.1
"""Before the first new start: while the process is away, some clients' sends fail (Go) and consumers wait (Java 5)."""

RESTART_S_MAX: Final = 30.0
"""The wait doubles up to here while the process does not live for SETTLED_S."""

SETTLED_S: Final = 5.0
LOG_BYTES_MAX: Final = 64 * 1024 * 1024
"""A log that is larger when its process starts is put aside as `.1`, in the place of the one before."""

LAST_BYTES: Final = 4096
"""Of a log, in which its last line is looked for."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that a child runs.

    Attributes:
        name: of the child, for people.
        command: program and arguments; no other process has the same, if a child of a lost parent is to be found by
            it. Empty for one that is only to be stopped.
        log: file that takes what it prints.
    """

    name: str
    command: tuple[str, ...]
    log: Path


class ChildStatus(msgspec.Struct, frozen=True):
    """The state of one process, as a parent may keep it in a file.

    Attributes:
        name: of the process.
        pid: its id; None while it does not run.
        since_ms: when it started or ended, in milliseconds since 1970; None when nobody saw it end, or start.
        restarts: how often it was started again after an end of its own.
        last_end: how it ended the last time that a parent saw it, and its last words; empty before.
        start: tells it from another process with its id (`RunningProcess.start`); empty while it does not run.
        is_stopping: whether this process was asked to stop.
    """

    name: str
    pid: int | None
    since_ms: int | None
    restarts: int = 0
    last_end: str = ""
    start: str = ""
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """The end of a child, or a start that failed.

    Attributes:
        name: of the child.
        how: it ended, with its last words.
        has_failed: it could not be started, or has exited by itself with a status other than 0. A signal is no failure
            of its own, and an adopted process's status is not known.
        lived_s: from its start, or from the time when it was taken over.
        wait_s: until it is started again.
    """

    name: str
    how: str
    has_failed: bool
    lived_s: float
    wait_s: float

    def __str__(self) -> str:
        return f"{self.name} {self.how}; starting it again in {self.wait_s:g} s"


@dataclass(slots=True)
class _Running:
    """The process of a child.

    Attributes:
        pidfd: becomes readable when it ends.
        process: None for an adopted one: only its parent learns its exit status.
    """

    pidfd: int
    process: subprocess.Popen[bytes] | None


class Child:
    """Keeps one process running.

    Invariant: at most one process runs at a time; `status.pid` is its id.
    """

    def __init__(self, program: Program, changed: Callable[[], None] = lambda: None) -> None:
        """Start nothing yet; `changed` is called whenever `status` is another one, and must not raise."""
        self.program = program
        self.status = ChildStatus(program.name, None, None)
        self._changed = changed
        self._running: _Running | None = None
        self._has_failed = False

    def adopt(self, known: ChildStatus | None) -> bool:
        """Take over the process that an earlier parent has left; False when none runs. `changed` is not called.

        Args:
            known: the state that the parent has kept last; None when it has kept none.
        """
        assert self._running is None, f"{self.program.name} runs already"
        left = status_now(self.program, known)
        if left.pid is None:
            return False
        try:
            pidfd = os.pidfd_open(left.pid)
        except ProcessLookupError:
            return False
        if not is_same_process(left.pid, left.start):  # its id may be another's meanwhile
            os.close(pidfd)
            return False
        self._running = _Running(pidfd, None)
        self.status = left
        return True

    async def keep_running(self, ended: Callable[[ChildEnd], None]) -> None:
        """Start it unless it runs, and again whenever it ends, until cancelled; cancelling leaves it running.

        Args:
            ended: takes each end, before the wait for the next start.
        """
        wait_s = RESTART_S
        while True:
            begun = trio.current_time()
            await self._run_once()
            lived_s = trio.current_time() - begun
            wait_s = RESTART_S if lived_s >= SETTLED_S else wait_s
            how = self.status.last_end
            ended(ChildEnd(self.program.name, how, self._has_failed, lived_s, wait_s))
            await trio.sleep(wait_s)
            wait_s = min(2 * wait_s, RESTART_S_MAX)

    async def _run_once(self) -> None:
        """Start it unless it runs, and wait for its end."""
        if self._running is None:
            try:
                self._start()
            except OSError as error:
                where = f"{error.filename}: " if error.filename else ""
                self._has_failed = True
                self._note_end(f"cannot be started: {where}{error.strerror or error}")
                await trio.lowlevel.checkpoint()
                return
        await self.wait_ended()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to it; nothing when it does not run."""
        if self._running is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._running.pidfd, number)

    def ask_to_stop(self, *, again: bool = False) -> None:
        """Send SIGTERM to it, unless it was asked before; nothing when it does not run.

        Args:
            again: ask also one that was asked before, even by an earlier parent. Many a program takes that for haste.
        """
        if self._running is not None and (again or not self.status.is_stopping):
            self.send_signal(signal.SIGTERM)
            # After the signal: one that is noted and was never asked would be waited for, and killed.
            self._set(msgspec.structs.replace(self.status, is_stopping=True))

    async def wait_ended(self) -> None:
        """Wait until it does not run."""
        running = self._running
        if running is not None:
            await trio.lowlevel.wait_readable(running.pidfd)
            self._ended(running)

    @property
    def is_running(self) -> bool:
        """True from its start until its end was seen."""
        return self._running is not None

    def _last_line(self) -> str:
        """Return the last line of its log."""
        try:
            with self.program.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_BYTES))
                lines = log.read(LAST_BYTES).decode(errors="replace").splitlines()
        except OSError:
            return "it has no log"
        words = ("".join(filter(str.isprintable, line)).strip() for line in reversed(lines))
        return next(filter(None, words), "it printed nothing")

    def _start(self) -> None:
        """Start the process, and open its pidfd before anybody waits for it: until then its id is surely its own.

        Raises:
            OSError: it does not run.
        """
        _put_aside(self.program.log)
        with self.program.log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  # our own programs, as planned
                self.program.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A Ctrl-C at the terminal reaches the parent only, which stops its children in order.
                start_new_session=True,
            )
        try:
            self._running = _Running(os.pidfd_open(process.pid), process)
        except OSError:
            process.kill()
            process.wait()
            raise
        found = process_of(process.pid)
        is_again = bool(self.status.last_end)
        self._set(
            msgspec.structs.replace(
                self.status,
                pid=process.pid,
                start=found.start if found else "",
                since_ms=_now_ms(),
                # At once with `pid`: who adds the end of a process that is down counts no end twice.
                restarts=self.status.restarts + is_again,
            )
        )

    def _ended(self, running: _Running) -> None:
        """Take note of the end of the process."""
        os.close(running.pidfd)
        self._running = None
        code = None if running.process is None else running.process.wait()
        self._has_failed = code is not None and code > 0
        if code is not None and code < 0:
            self._note_end(f"was ended by {_name_of_signal(-code)}")
        else:
            how = "ended" if code is None else f"ended with status {code}"
            self._note_end(f"{how}: {self._last_line()}")

    def _note_end(self, how: str) -> None:
        self._set(
            msgspec.structs.replace(
                self.status,
                pid=None,
                start="",
                since_ms=_now_ms(),
                last_end=how,
                is_stopping=False,
            )
        )

    def _set(self, status: ChildStatus) -> None:
        self.status = status
        self._changed()


def status_now(program: Program, known: ChildStatus | None) -> ChildStatus:
    """Return the state of a program of which another process is, or was, the parent.

    The state that the parent has kept names the process, unless the parent was killed, or its disk was full, before it
    could be written; then the command does.

    Args:
        program: what the child runs.
        known: the state that was kept last; None when none was.
    """
    known = known or ChildStatus(program.name, None, None)
    if known.pid is not None and is_same_process(known.pid, known.start):
        return known
    found = find_process(program.command) if program.command else None
    if found is not None:
        since_ms = _now_ms() - int(found.age_s * 1000)
        return msgspec.structs.replace(
            known, pid=found.pid, start=found.start, since_ms=since_ms, is_stopping=False
        )
    if known.pid is not None:  # it has ended, and nobody saw when
        return msgspec.structs.replace(known, pid=None, start="", since_ms=None, is_stopping=False)
    return known


def _put_aside(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_name(log.name + ".1"))


def _name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

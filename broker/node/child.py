"""One process that a node keeps running: started, watched, started again when it ends.

A child outlives its supervisor: it has a session of its own and writes its log itself. So a supervisor that was
killed costs nothing, and one that starts takes over what it finds running (`adopt`). Its end is awaited on a pidfd,
which works for both.
"""

from __future__ import annotations

import logging
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

from broker.node.plan import ChildPlan

_log = logging.getLogger(__name__)

RESTART_S: Final = 0.5
"""Before the first new start; a crash is over before most clients have noticed."""

RESTART_S_MAX: Final = 30.0
"""The wait doubles up to here while the process does not live for SETTLED_S."""

SETTLED_S: Final = 5.0
LOG_BYTES_MAX: Final = 64 * 1024 * 1024
"""A log that is larger when its process starts is put aside as `.1`, in the place of the one before."""


class ChildStatus(msgspec.Struct, frozen=True):
    """The state of one process, as `node.json` keeps it.

    Attributes:
        name: of the process.
        pid: its id; None while it does not run.
        since_ms: when it started or ended, in milliseconds since 1970.
        restarts: how often it was started again after an end of its own.
        last_end: how it ended last, and its last words; empty before.
    """

    name: str
    pid: int | None
    since_ms: int
    restarts: int = 0
    last_end: str = ""


@dataclass(slots=True)
class _Running:
    pid: int
    pidfd: int
    process: (
        subprocess.Popen[bytes] | None
    )  # None: somebody else's child, whose status nobody tells us


class Child:
    """Keeps one process running.

    Invariant: at most one process runs at a time; `status.pid` is its id.
    """

    def __init__(self, plan: ChildPlan, changed: Callable[[], None]) -> None:
        """Start nothing yet; `changed` is called whenever `status` is another one."""
        self.plan = plan
        self.status = ChildStatus(plan.name, None, _now_ms())
        self._changed = changed
        self._running: _Running | None = None

    def adopt(self, known: ChildStatus) -> bool:
        """Take over the process of an earlier supervisor; False when it runs no more."""
        assert self._running is None, f"{self.plan.name} runs already"
        if not is_alive(known, self.plan):
            return False
        assert known.pid is not None, f"{known.name} is alive without a process"
        try:
            pidfd = os.pidfd_open(known.pid)
        except ProcessLookupError:
            return False
        if not is_alive(known, self.plan):  # it has ended meanwhile, and the id may be another's
            os.close(pidfd)
            return False
        self._running = _Running(known.pid, pidfd, None)
        self._set(known)
        return True

    async def keep_running(self, report: Callable[[str], None]) -> None:
        """Start it, and again whenever it ends, until cancelled; cancelling leaves it running.

        Args:
            report: takes a line for the operator for each end.
        """
        wait_s = RESTART_S
        while True:
            begun = trio.current_time()
            how = await self._run_once()
            wait_s = RESTART_S if trio.current_time() - begun >= SETTLED_S else wait_s
            report(f"{self.plan.name} {how}; starting it again in {wait_s:g} s")
            await trio.sleep(wait_s)
            wait_s = min(2 * wait_s, RESTART_S_MAX)
            self._set(msgspec.structs.replace(self.status, restarts=self.status.restarts + 1))

    async def _run_once(self) -> str:
        """Start it unless it runs, and wait for its end; returns how it ended."""
        if self._running is None:
            try:
                self._start()
            except OSError as error:
                self._note_end(f"cannot be started: {error}")
                return self.status.last_end
        running = self._running
        assert running is not None, f"{self.plan.name} was started and does not run"
        await trio.lowlevel.wait_readable(running.pidfd)
        self._ended(running)
        return self.status.last_end

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to it; nothing when it does not run."""
        if self._running is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._running.pidfd, number)

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
            with self.plan.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
                lines = log.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return "it has no log"
        return lines[-1] if lines else "it printed nothing"

    def _start(self) -> None:
        """Start the process, and open its pidfd before anybody waits for it: until then its id is surely its own."""
        _put_aside(self.plan.log)
        with self.plan.log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  # our own programs, as planned
                self.plan.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A Ctrl-C at the terminal reaches the supervisor only, which stops its children in order.
                start_new_session=True,
            )
        # Until it is waited for, the id stays its own, so this cannot be another process.
        self._running = _Running(process.pid, os.pidfd_open(process.pid), process)
        self._set(msgspec.structs.replace(self.status, pid=process.pid, since_ms=_now_ms()))

    def _ended(self, running: _Running) -> None:
        os.close(running.pidfd)
        self._running = None
        code = None if running.process is None else running.process.wait()
        if code is not None and code < 0:
            self._note_end(f"was ended by {signal.Signals(-code).name}")
        else:
            how = "ended" if code is None else f"ended with status {code}"
            self._note_end(f"{how}: {self._last_line()}")

    def _note_end(self, how: str) -> None:
        self._set(msgspec.structs.replace(self.status, pid=None, since_ms=_now_ms(), last_end=how))

    def _set(self, status: ChildStatus) -> None:
        self.status = status
        self._changed()


def is_alive(known: ChildStatus, plan: ChildPlan) -> bool:
    """Return whether the process of a status runs: its id belongs to a process with the planned command."""
    return known.pid is not None and _command_of(known.pid) == plan.command


def _command_of(pid: int) -> tuple[str, ...]:
    """Return the command line of a process; empty when there is none of this id."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode(errors="replace") for part in raw.split(b"\0")[:-1])


def _put_aside(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_name(log.name + ".1"))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

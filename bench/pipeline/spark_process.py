"""A Spark job as a process that can be killed by SIGKILL: whole, with JVM and workers, or a part of it alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"
_WORKERS: Final = b"pyspark.daemon"
_PARENT_FIELD: Final = 1
_SESSION_FIELD: Final = 3
"""Fields of /proc/PID/stat after the name of the program (proc(5): ppid is the fourth field, session the sixth)."""


class _Member(NamedTuple):
    """A process of the job: its parent, and its command with a NUL after each argument."""

    parent: int
    command: bytes


class SparkProcess:
    """A Python program in a process group of its own; what it prints goes to one file."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self._command = [sys.executable, *command]
        self._log = log
        self._environment = os.environ | environment
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """True while it lives."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start it."""
        assert not self.is_running, "it runs already"
        with self._log.open("ab") as out:
            self._child = subprocess.Popen(
                self._command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=self._environment,
            )

    def kill(self) -> None:
        """Send SIGKILL to its whole session, and to nothing else."""
        if self._child is None:
            return
        with suppress(ProcessLookupError):  # it had ended by itself
            os.killpg(self._child.pid, signal.SIGKILL)
        for pid in self._members():  # the daemon of workers has a group of its own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._child.wait()
        self._child = None

    def executors(self) -> list[int]:
        """Return the process ids of its executors; none in `local[N]`, where the driver is the executor."""
        return [pid for pid, each in self._members().items() if _EXECUTOR in each.command]

    def workers(self) -> list[int]:
        """Return the process ids of its Python workers; those that the daemon of workers keeps at hand included."""
        members = self._members()
        daemons = {pid for pid, each in members.items() if _WORKERS in each.command}
        return [pid for pid in daemons if members[pid].parent in daemons]

    def _members(self) -> dict[int, _Member]:
        """Look at all processes of its session: a JVM and a daemon of workers lead process groups of their own."""
        found: dict[int, _Member] = {}
        if self._child is None:
            return found
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has just ended
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[_SESSION_FIELD]) == self._child.pid:
                    command = (folder / "cmdline").read_bytes()
                    found[int(folder.name)] = _Member(int(fields[_PARENT_FIELD]), command)
        return found

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines that it printed."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def __enter__(self) -> SparkProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

"""A Spark job as a process that can be killed whole: driver, JVM and workers die together, by SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType


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
        """Send SIGKILL to its whole group, and to nothing else."""
        if self._child is None:
            return
        with suppress(ProcessLookupError):  # it had ended by itself
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._child = None

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

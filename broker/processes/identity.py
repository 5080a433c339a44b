"""Which process is which: ids are used again, so a process is known by its id and its start, or by its command.

It reads /proc, and changes nothing.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
_ENDED: Final = (b"Z", b"X")
"""States of a process that has ended and has not been waited for yet."""

_STATE_FIELD: Final = 0
_START_FIELD: Final = 19
"""Fields of /proc/PID/stat after the name of the program (proc(5): state is the third field, starttime the 22nd)."""


class RunningProcess(NamedTuple):
    """A process that runs.

    Attributes:
        pid: its id, which another process may have later.
        start: when it started: the boot, and clock ticks since then. No other process has the same id and start.
        age_s: for how long it runs.
    """

    pid: int
    start: str
    age_s: float


def process_of(pid: int) -> RunningProcess | None:
    """Return the process that has this id now; None when none runs."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
        boot = _boot_id()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()  # the name before may hold blanks and brackets
    if fields[_STATE_FIELD] in _ENDED:
        return None
    ticks = int(fields[_START_FIELD])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return RunningProcess(pid, f"{boot}/{ticks}", max(0.0, age_s))


def is_same_process(pid: int, start: str) -> bool:
    """Return whether the process of this id and start still runs."""
    process = process_of(pid)
    return process is not None and process.start == start


def find_process(command: Sequence[str]) -> RunningProcess | None:
    """Return the process that runs exactly this command, the oldest of several; None when none does.

    It may belong to anybody, so the command has to name what is the caller's own: a file in its folder.
    """
    assert command, "processes of the kernel have no command"
    wanted = b"".join(os.fsencode(part) + b"\0" for part in command)
    found = (
        process_of(int(entry.name))
        for entry in _PROC.iterdir()
        if entry.name.isdigit() and _command_line(entry) == wanted
    )
    return max((one for one in found if one), key=lambda one: one.age_s, default=None)


@functools.cache
def _boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _command_line(process: Path) -> bytes:
    """Return the command of a process, each part ended by a zero byte; empty once it has ended."""
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""

"""Ends the processes that a harness started, once the harness itself has ended: in order, by SIGKILL, or out of memory.

Context managers end what they own, but not when nobody lives to leave them; and an interrupt that comes while a process
is being made leaves a process that nobody knows. So each process that the harness starts carries a mark in its
environment, which whatever it starts inherits: children of supervisors, too. One more process, the keeper, waits for
the end of a pipe that only the harness holds, and then kills whoever carries the mark.

The keeper is this file, run by itself: it needs the standard library alone, and starts in a moment. Without /proc it
finds nobody. It must not know what the processes are.
"""

from __future__ import annotations

import atexit
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK: Final = "DLEDGER_JEPSEN_HARNESS"
"""The variable that names the harness which a process belongs to."""

PAUSE_S: Final = 0.1
QUIET_PASSES: Final = 2
"""So many looks in a row must find nobody: a process that is just being made shows the mark a moment later."""

SWEEP_S: Final = 60.0
"""A process that the kernel holds, as in a frozen cgroup, dies when it is let go: it has had its SIGKILL by then."""

_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class _Keeper:
    """The keeper of this harness.

    Attributes:
        owner: the process id of the harness: a fork of it is another one.
        mark: what its processes carry.
        process: holds the pipe; it ends when its standard input does.
    """

    owner: int
    mark: str
    process: subprocess.Popen[bytes]


_keepers: Final[list[_Keeper]] = []


def marked() -> dict[str, str]:
    """Return what is to be added to the environment of a process, so that it ends when this one has ended."""
    if not _keepers or _keepers[-1].owner != os.getpid():
        _keepers.append(_start())
    return {MARK: _keepers[-1].mark}


def keeper_pids() -> frozenset[int]:
    """Return the keeper of this process: whoever kills its children before it ends must leave that one alone."""
    return frozenset(each.process.pid for each in _keepers if each.owner == os.getpid())


def _start() -> _Keeper:
    """Start the keeper of this process, with a mark that no other harness has."""
    mark = f"{os.getpid()}-{secrets.token_hex(8)}"
    # The keeper carries no mark, not even that of a harness around this one: it would be killed before its work.
    environment = {name: text for name, text in os.environ.items() if name != MARK}
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # whoever reads what the harness says waits for its end, not for the keeper's
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches the harness alone
    )
    keeper = _Keeper(os.getpid(), mark, process)
    atexit.register(_release, keeper)
    return keeper


def _release(keeper: _Keeper) -> None:
    """Let the keeper do its work, and wait for it: whoever waits for the harness finds nothing left."""
    if keeper.owner != os.getpid():
        return
    assert keeper.process.stdin is not None, "it was made with a pipe"
    keeper.process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        keeper.process.wait(SWEEP_S)


def sweep(mark: str, *, patience_s: float = SWEEP_S) -> int:
    """Kill all processes that carry a mark, again and again until none is left; returns how many were killed.

    Args:
        mark: of the harness that has ended.
        patience_s: it ends then, whatever is left.
    """
    wanted = f"{MARK}={mark}".encode()
    deadline, killed, quiet = time.monotonic() + patience_s, 0, 0
    while quiet < QUIET_PASSES and time.monotonic() < deadline:
        found = sum(_kill_if_marked(pid, wanted) for pid in _all_pids())
        killed += found
        quiet = 0 if found else quiet + 1
        time.sleep(PAUSE_S)
    return killed


def _all_pids() -> list[int]:
    if not _PROC.is_dir():
        return []
    return [int(each.name) for each in _PROC.iterdir() if each.name.isdigit()]


def _kill_if_marked(pid: int, wanted: bytes) -> bool:
    """Kill a process that carries the mark; the handle is taken first, so that nobody else is hit under its id."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if wanted not in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:  # it is another user's, or has ended
        return False
    else:
        return True
    finally:
        os.close(pidfd)


def main() -> None:
    """Wait for the end of the harness, and end what it left."""
    # Whoever ends the harness so does not end its keeper.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 4096):
        pass
    sweep(sys.argv[1])


if __name__ == "__main__":
    main()

"""A network of our own: a namespace that has nothing but loopback, and goes with its last process. Needs root and `ip`.

Some servers listen on all addresses and cannot be told otherwise. What is started inside is out of everybody's reach,
and everything inside finds each other on 127.0.0.1. There is no name and no device, so nothing is left behind.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from jepsen.ports import own_block

_CLONE_NEWNET: Final = 0x40000000
_OURS: Final = Path("/proc/thread-self/ns/net")
_COMMAND_TIMEOUT_S: Final = 60.0
_libc: Final = ctypes.CDLL(None, use_errno=True)


def lacking_private_network() -> str | None:
    """Return what this machine lacks for one, found out by making one; None when nothing."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "no commands ip (iproute2) and unshare (util-linux)"
    words = ["unshare", "--net", "ip", "link", "set", "lo", "up"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=_COMMAND_TIMEOUT_S
    )
    if done.returncode:
        return f"a network namespace cannot be made: {done.stderr.strip()}"
    return None


@contextmanager
def private_network() -> Iterator[None]:
    """Be in a new network until the block ends: this thread, and all processes and threads that it starts.

    Other threads stay where they are, and so do sockets.

    Raises:
        OSError: it is not allowed.
        subprocess.CalledProcessError: loopback cannot be brought up.
    """
    assert threading.current_thread() is threading.main_thread(), "processes are started by it"
    own_block()  # its claim is in a network, too: here, it would be worth nothing among those outside
    with _OURS.open("rb") as before:
        _checked(_libc.unshare(_CLONE_NEWNET))
        try:
            subprocess.run(
                ["ip", "link", "set", "lo", "up"], check=True, timeout=_COMMAND_TIMEOUT_S
            )
            yield
        finally:
            _checked(_libc.setns(before.fileno(), _CLONE_NEWNET))


def _checked(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, f"network namespaces: {os.strerror(number)}")

"""Threads of a server share one arena of the C library's allocator."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from dledger.runtime import allocator

THREADS = """
import ctypes, sys, threading
from dledger.runtime.allocator import use_one_arena

if sys.argv[1] == "one":
    use_one_arena()
all_hold = threading.Barrier(5)

def hold():
    held = [bytearray(20_000) for _ in range(20)]
    all_hold.wait()
    all_hold.wait()

threads = [threading.Thread(target=hold) for _ in range(4)]
for thread in threads:
    thread.start()
all_hold.wait()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
all_hold.wait()
"""


def arenas(how: str) -> int:
    command = [sys.executable, "-c", THREADS, how]
    return subprocess.run(command, capture_output=True, check=True).stdout.count(b"<heap nr=")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this C library has no arenas")
def test_threads_allocate_from_one_arena() -> None:
    assert arenas("usual") > 1
    assert arenas("one") == 1


def test_a_library_without_the_option_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def without_options(name: object) -> object:
        asked.append(name)
        return object()

    monkeypatch.setattr("ctypes.CDLL", without_options)
    allocator.use_one_arena()
    assert asked == [None]

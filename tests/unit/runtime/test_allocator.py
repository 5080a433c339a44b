"""Threads of a server share one arena of the C library's allocator, which keeps the buffers that it frees."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from dledger.runtime import allocator

THREADS = """
import ctypes, sys, threading
from dledger.runtime.allocator import tune_allocator

if sys.argv[1] == "one":
    tune_allocator()
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


BUFFERS = """
import resource, sys
from dledger.runtime.allocator import tune_allocator

if sys.argv[1] == "tuned":
    tune_allocator()

def use():
    held = [b"x" * 1_000_000 for _ in range(3)]

use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def arenas(how: str) -> int:
    command = [sys.executable, "-c", THREADS, how]
    return subprocess.run(command, capture_output=True, check=True).stdout.count(b"<heap nr=")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this C library has no arenas")
def test_threads_allocate_from_one_arena() -> None:
    assert arenas("usual") > 1
    assert arenas("one") == 1


def faults(how: str) -> int:
    command = [sys.executable, "-c", BUFFERS, how]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this C library has no thresholds")
def test_buffers_that_were_freed_are_used_again_without_new_pages() -> None:
    assert faults("tuned") < faults("usual") / 10


def test_a_library_without_the_option_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def without_options(name: object) -> object:
        asked.append(name)
        return object()

    monkeypatch.setattr("ctypes.CDLL", without_options)
    allocator.tune_allocator()
    assert asked == [None]

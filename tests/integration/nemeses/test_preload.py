"""The library shifts clocks, fails and slows calls, and knows what a power cut would take, on real processes."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen.nemeses.journal import lose_unsynced
from jepsen.nemeses.preload import (
    CHANGES,
    Control,
    Operation,
    Rule,
    attach_process,
    lacking_preload,
)
from jepsen.processes import Process

pytestmark = pytest.mark.integration

LACKING = lacking_preload()

# Runs one line of Python after the other and prints what came of it.
RUNS_LINES = """
import os, sys, time
for line in sys.stdin:
    try:
        exec(line)
        print("ok", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


class Puppet:
    """A process with the library, and what steers it. Its working folder is the store."""

    def __init__(self, folder: Path) -> None:
        self.store, self.side = folder / "store", folder / "side"
        for each in (self.store, self.side):
            each.mkdir()
        node = Process("puppet", [], log=folder / "log", port=1)
        self.control = attach_process(node, self.store, self.side, with_journal=True)
        self._environment = node.environment
        self.start()

    def start(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", RUNS_LINES],
            env={"PATH": "/usr/bin:/bin", **self._environment},
            cwd=self.store,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def kill(self) -> None:
        self._child.kill()
        self._child.communicate()

    def do(self, line: str) -> str:
        """Let it run a line; "ok", or the errno."""
        return self.ask(line)[-1]

    def ask(self, line: str) -> list[str]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()
        said = [self._child.stdout.readline().strip()]
        while said[-1] != "ok" and not said[-1].isdigit():
            assert said[-1], "it has ended"
            said.append(self._child.stdout.readline().strip())
        return said

    def now(self, clock: str = "time.time()") -> float:
        return float(self.ask(f"print('at', {clock})")[0].split()[1])

    def lose_unsynced(self, seed: int | None = None) -> None:
        self.kill()
        chance = None if seed is None else random.Random(seed)
        lose_unsynced(self.store, self.side / "journal", chance)


@pytest.fixture
def puppet(tmp_path: Path) -> Iterator[Puppet]:
    if LACKING:
        pytest.skip(LACKING)
    made = Puppet(tmp_path)
    try:
        yield made
    finally:
        made.kill()


@pytest.mark.parametrize("ask", ["time.time()", "time.time_ns() / 1e9"])
def test_the_wall_clock_is_shifted_while_the_process_runs(puppet: Puppet, ask: str) -> None:
    assert abs(puppet.now(ask) - time.time()) < 30
    puppet.control.shift_clocks(realtime_ns=3_600_000_000_000)
    assert abs(puppet.now(ask) - time.time() - 3600) < 30
    puppet.control.shift_clocks(realtime_ns=-1_500_000_000)
    assert -31.5 < puppet.now(ask) - time.time() < 28.5
    assert abs(puppet.now("time.monotonic()") - time.monotonic()) < 30


def test_the_monotonic_clock_is_shifted_alone(puppet: Puppet) -> None:
    puppet.control.shift_clocks(monotonic_ns=3_600_000_000_000)
    assert abs(puppet.now("time.monotonic()") - time.monotonic() - 3600) < 30
    assert abs(puppet.now("time.perf_counter()") - time.perf_counter() - 3600) < 30
    assert abs(puppet.now() - time.time()) < 30


WRITES = [
    "os.pwrite(os.open('f', os.O_RDWR), b'x', 0)",
    "os.pwritev(os.open('f', os.O_RDWR), [b'x', b'y'], 0)",
    "os.write(os.open('f', os.O_WRONLY), b'x')",
    "os.writev(os.open('f', os.O_WRONLY), [b'x'])",
    "open('f', 'ab', buffering=0).write(b'x')",
]
CREATES = ["os.open('new', os.O_RDWR | os.O_CREAT)", "open('new', 'wb')", "os.mkdir('new')"]
SYNCS = [
    "os.fsync(os.open('f', os.O_RDWR))",
    "os.fdatasync(os.open('f', os.O_RDWR))",
    "os.fsync(os.open('.', os.O_RDONLY))",
]
NAMES = ["os.rename('f', 'g')", "os.replace('f', 'g')", "os.unlink('f')", "os.remove('f')"]
RESERVES = ["os.posix_fallocate(os.open('f', os.O_RDWR), 0, 4096)"]
CUTS = ["os.ftruncate(os.open('f', os.O_RDWR), 0)", "os.truncate('f', 0)", "open('f', 'wb')"]
READS = ["os.pread(os.open('f', os.O_RDWR), 1, 0)"]


@pytest.mark.parametrize(
    ("operation", "line"),
    [
        *((Operation.WRITE, line) for line in WRITES),
        *((Operation.CREATE, line) for line in CREATES),
        *((Operation.SYNC, line) for line in SYNCS),
        *((Operation.NAME, line) for line in NAMES),
        *((Operation.RESERVE, line) for line in RESERVES),
        *((Operation.CUT, line) for line in CUTS if "os.truncate" not in line),
        *((Operation.READ, line) for line in READS),
        (Operation.OPEN, "os.open('f', os.O_RDWR)"),
    ],
)
def test_a_call_fails_as_told_and_not_elsewhere(
    puppet: Puppet, operation: Operation, line: str, tmp_path: Path
) -> None:
    (puppet.store / "f").write_bytes(b"abc")
    (tmp_path / "f").write_bytes(b"abc")
    puppet.control.set_rules(Rule(operation, error=errno.EIO))
    assert puppet.do(line) == str(errno.EIO)
    assert puppet.control.hits() == 1
    assert (puppet.store / "f").read_bytes() == b"abc"
    assert puppet.do(f"os.chdir({str(tmp_path)!r}); {line}") == "ok"
    assert puppet.control.hits() == 1


def test_calls_pass_first_and_only_so_many_fail(puppet: Puppet) -> None:
    (puppet.store / "f").write_bytes(b"")
    puppet.control.set_rules(Rule(Operation.SYNC, error=errno.EIO, skip=2, count=1))
    assert [puppet.do(SYNCS[1]) for _ in range(5)] == ["ok", "ok", "5", "ok", "ok"]
    puppet.control.set_rules()
    assert puppet.do(SYNCS[1]) == "ok"


def test_a_path_and_a_range_are_chosen(puppet: Puppet) -> None:
    (puppet.store / "index").mkdir()
    (puppet.store / "index" / "f").write_bytes(b"abc")
    (puppet.store / "f").write_bytes(bytes(100))
    puppet.control.set_rules(
        Rule(Operation.SYNC, error=errno.EIO, contains="index/"),
        Rule(Operation.READ, error=errno.EIO, first_byte=10, end_byte=20),
    )
    assert puppet.do(SYNCS[1]) == "ok"
    assert puppet.do(SYNCS[1].replace("'f'", "'index/f'")) == "5"
    assert puppet.do("os.pread(os.open('f', os.O_RDWR), 10, 0)") == "ok"
    assert puppet.do("os.pread(os.open('f', os.O_RDWR), 10, 5)") == "5"
    assert puppet.do("os.pread(os.open('f', os.O_RDWR), 10, 20)") == "ok"


def test_a_full_disk_refuses_only_what_needs_room(puppet: Puppet) -> None:
    (puppet.store / "f").write_bytes(b"abc")
    full = CHANGES & ~Operation.CUT & ~Operation.NAME & ~Operation.OPEN
    puppet.control.set_rules(Rule(full, error=errno.ENOSPC, growing=True))
    no_room = str(errno.ENOSPC)
    assert puppet.do("os.pwrite(os.open('f', os.O_RDWR), b'xyz', 0)") == "ok"
    assert puppet.do("os.pwrite(os.open('f', os.O_RDWR), b'xyz', 1)") == no_room
    assert puppet.do(RESERVES[0]) == no_room
    assert puppet.do("os.posix_fallocate(os.open('f', os.O_RDWR), 0, 2)") == "ok"
    assert puppet.do(CREATES[0]) == no_room
    assert puppet.do("os.unlink('f')") == "ok"


def test_a_slow_call_is_slow(puppet: Puppet) -> None:
    (puppet.store / "f").write_bytes(b"")
    puppet.control.set_rules(Rule(Operation.SYNC, delay_ms=200))
    begin = time.monotonic()
    assert puppet.do(SYNCS[1]) == "ok"
    assert time.monotonic() - begin >= 0.2


def synced(puppet: Puppet) -> None:
    """Files `a` (abc) and `sub/b` (xyz) that a power cut does not take."""
    for line in (
        "a = os.open('a', os.O_RDWR | os.O_CREAT)",
        "os.pwrite(a, b'abc', 0); os.fdatasync(a)",
        "os.mkdir('sub'); b = os.open('sub/b', os.O_RDWR | os.O_CREAT)",
        "os.pwrite(b, b'xyz', 0); os.fsync(b)",
        "os.fsync(os.open('.', os.O_RDONLY)); os.fsync(os.open('sub', os.O_RDONLY))",
    ):
        assert puppet.do(line) == "ok"


def contents(store: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(store)): each.read_bytes()
        for each in sorted(store.rglob("*"))
        if each.is_file()
    }


SYNCED = {"a": b"abc", "sub/b": b"xyz"}


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["os.pwrite(a, b'ABCDEF', 1)"],
        ["os.pwritev(a, [b'AB', b'CD'], 0); os.write(a, b'more'); os.lseek(a, 0, 0)"],
        ["os.ftruncate(a, 1); os.pwrite(a, b'Z', 0)"],
        ["os.posix_fallocate(a, 0, 100000)", "os.pwrite(a, b'A' * 50, 99_000)"],
        ["os.open('new', os.O_RDWR | os.O_CREAT)"],
        ["os.rename('a', 'c')"],
        ["os.rename('a', 'sub/b')", "os.pwrite(a, b'NEW', 0)"],
        ["os.unlink('a')", "os.pwrite(a, b'NEW', 0)"],
        ["os.unlink('a')", "os.unlink('sub/b')", "os.rmdir('sub')", "os.mkdir('sub')"],
        ["open('a', 'wb').write(b'else')"],
        ["os.mkdir('new'); os.mkdir('new/er')", "open('new/er/f', 'wb').write(b'1')"],
        ["c = os.open('c', os.O_RDWR | os.O_CREAT); os.pwrite(c, b'1', 0); os.fsync(c)"],
    ],
)
def test_a_power_cut_takes_all_that_was_not_synced(puppet: Puppet, lines: list[str]) -> None:
    synced(puppet)
    for line in lines:
        assert puppet.do(line) == "ok"
    puppet.lose_unsynced()
    assert contents(puppet.store) == SYNCED


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("os.pwrite(a, b'ABCDEF', 1); os.fdatasync(a)", {**SYNCED, "a": b"aABCDEF"}),
        (
            "os.rename('a', 'c'); os.fsync(os.open('.', os.O_RDONLY)); os.pwrite(a, b'Z', 0)",
            {"c": b"abc", "sub/b": b"xyz"},
        ),
        ("os.unlink('a'); os.fsync(os.open('.', os.O_RDONLY))", {"sub/b": b"xyz"}),
        (
            "c = os.open('c', os.O_RDWR | os.O_CREAT); os.pwrite(c, b'1', 0); os.fsync(c); os.pwrite(c, b'22', 0); "
            + SYNCS[2],
            {**SYNCED, "c": b"1"},
        ),
    ],
)
def test_a_power_cut_takes_nothing_that_was_synced(
    puppet: Puppet, line: str, left: dict[str, bytes]
) -> None:
    synced(puppet)
    assert puppet.do(line) == "ok"
    puppet.lose_unsynced()
    assert contents(puppet.store) == left


def test_the_store_itself_is_lost_unless_the_folder_it_stands_in_was_synced(
    puppet: Puppet,
) -> None:
    folder, store = str(puppet.store.parent), str(puppet.store)
    sync = f"os.fsync(os.open({folder!r}, os.O_RDONLY))"
    assert (
        puppet.do(f"os.chdir({folder!r}); os.rmdir({store!r}); os.mkdir({store!r}); {sync}") == "ok"
    )
    puppet.lose_unsynced()
    assert puppet.store.is_dir()
    puppet.start()
    assert (
        puppet.do(f"os.chdir({folder!r}); os.rmdir({store!r}); {sync}; os.mkdir({store!r})") == "ok"
    )
    puppet.lose_unsynced()
    assert not puppet.store.exists()


def test_a_kill_keeps_the_journal_for_a_later_power_cut(puppet: Puppet) -> None:
    synced(puppet)
    assert puppet.do("os.pwrite(a, b'NEW', 0)") == "ok"
    puppet.kill()
    puppet.start()
    assert puppet.do("a = os.open('a', os.O_RDWR); os.pwrite(a, b'NEWER', 0)") == "ok"
    puppet.lose_unsynced()
    assert contents(puppet.store) == SYNCED


def test_a_failed_sync_makes_nothing_durable(puppet: Puppet) -> None:
    synced(puppet)
    puppet.control.set_rules(Rule(Operation.SYNC, error=errno.EIO, count=1))
    assert puppet.do("os.pwrite(a, b'NEW', 0); os.fdatasync(a)") == "5"
    puppet.lose_unsynced()
    assert contents(puppet.store) == SYNCED


def test_the_derived_state_is_left_alone(puppet: Puppet) -> None:
    synced(puppet)
    assert puppet.do("os.mkdir('derived'); open('derived/f', 'wb').write(b'1')") == "ok"
    puppet.lose_unsynced()
    assert contents(puppet.store) == {**SYNCED, "derived/f": b"1"}


def test_a_control_file_is_found_again(tmp_path: Path) -> None:
    Control(tmp_path / "control").shift_clocks(realtime_ns=-5, monotonic_ns=7)
    assert Control(tmp_path / "control").clocks() == (-5, 7)

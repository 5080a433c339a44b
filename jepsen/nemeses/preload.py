"""The library that stands between a process and its clocks and disk, and the file that steers it.

`native/faults.c` is compiled when it is first needed, with the C compiler of the machine, into the user's cache.
A process gets it by LD_PRELOAD, a control file of its own, and, where a fault asks for it, an undo journal.
"""

from __future__ import annotations

import functools
import mmap
import os
import shutil
import subprocess
from dataclasses import dataclass
from enum import IntFlag
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Final

from jepsen.processes import Process
from jepsen.systems.api import System

SOURCE: Final = Path(__file__).with_name("native") / "faults.c"
COMPILE_TIMEOUT_S: Final = 240.0
RULES_MAX: Final = 8
_CC_FLAGS: Final = ("-O2", "-Wall", "-shared", "-fPIC")
DERIVED: Final = "derived"
"""The part of a broker's store that is never synced and made again at each start: no journal is kept of it."""

_MAGIC: Final = 0x4A465054
_HEAD: Final = Struct("=IIqqq")
_RULE: Final = Struct("=IIiIqqqqqII64s")
_CLOCKS_AT: Final = 8


class Operation(IntFlag):
    """An operation of a process on its disk; `native/faults.c` says which calls these are."""

    WRITE = 1
    SYNC = 2
    READ = 4
    CREATE = 8
    RESERVE = 16
    NAME = 32
    CUT = 64
    OPEN = 128


CHANGES: Final = (
    Operation.WRITE
    | Operation.CREATE
    | Operation.RESERVE
    | Operation.NAME
    | Operation.CUT
    | Operation.OPEN
)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that makes some operations fail, or slow.

    Attributes:
        operations: which.
        error: errno with which they fail; 0: they do not.
        delay_ms: before they are done, or fail.
        contains: text in the path below the store, at most 63 bytes; empty: any file.
        skip: so many pass first.
        count: so many are struck; negative: all from then on.
        first_byte, end_byte: reads and writes that touch this range only; end 0: any.
        growing: only what needs more room on the device.
    """

    operations: Operation
    error: int = 0
    delay_ms: int = 0
    contains: str = ""
    skip: int = 0
    count: int = -1
    first_byte: int = 0
    end_byte: int = 0
    growing: bool = False


class Control:
    """The control file of one process. It may be written before, while and after the process runs."""

    def __init__(self, path: Path) -> None:
        """Make the file, without rules, unless it is there."""
        self.path = path
        size = _HEAD.size + RULES_MAX * _RULE.size
        if not path.exists():
            path.write_bytes(_HEAD.pack(_MAGIC, 0, 0, 0, 0) + bytes(size - _HEAD.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)

    def shift_clocks(self, *, realtime_ns: int = 0, monotonic_ns: int = 0) -> None:
        """Add to what the clocks of the process show, from now on."""
        self._map[_CLOCKS_AT : _CLOCKS_AT + 16] = Struct("=qq").pack(realtime_ns, monotonic_ns)

    def clocks(self) -> tuple[int, int]:
        """Return what is added to the realtime and monotonic clocks, in nanoseconds."""
        realtime_ns, monotonic_ns = Struct("=qq").unpack_from(self._map, _CLOCKS_AT)
        return realtime_ns, monotonic_ns

    def set_rules(self, *rules: Rule) -> None:
        """Replace all rules."""
        assert len(rules) <= RULES_MAX, f"{len(rules)} rules"
        self._arm(Operation(0))
        armed = Operation(0)
        for at in range(RULES_MAX):
            place = _HEAD.size + at * _RULE.size
            self._map[place : place + 4] = bytes(4)  # not active while it is written
            if at < len(rules):
                data = _encode(rules[at])
                self._map[place + 4 : place + _RULE.size] = data[4:]
                self._map[place : place + 4] = data[:4]
                armed |= rules[at].operations
        self._arm(armed)

    def _arm(self, operations: Operation) -> None:
        self._map[4:8] = int(operations).to_bytes(4, "little")

    def hits(self) -> int:
        """Count the calls that the present rules have struck."""
        return sum(
            _RULE.unpack_from(self._map, _HEAD.size + at * _RULE.size)[6] for at in range(RULES_MAX)
        )


def _encode(rule: Rule) -> bytes:
    """Pack a rule as `struct rule` of native/faults.c; the first field marks the place as in use."""
    contains = rule.contains.encode()
    assert len(contains) < 64, f"{rule.contains!r} is too long"
    return _RULE.pack(
        1,
        rule.operations,
        rule.error,
        rule.delay_ms,
        rule.skip,
        rule.count,
        0,
        rule.first_byte,
        rule.end_byte,
        rule.growing,
        0,
        contains,
    )


class PreloadError(Exception):
    """The library cannot be compiled here; the text is the compiler's."""


def lacking_preload() -> str | None:
    """Return what this machine lacks, or None when the library is there or could be made."""
    if shutil.which("cc") is None:
        return "no C compiler (cc) for the library that stands between process and kernel"
    try:
        library()
    except PreloadError as error:
        return str(error)
    return None


@functools.cache
def library(source_file: Path = SOURCE) -> Path:
    """Return the compiled library, made unless it is in the cache.

    Raises:
        PreloadError: it cannot be compiled.
    """
    source = source_file.read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dledger-jepsen"
    path = (
        cache
        / f"{source_file.stem}-{os.uname().machine}-{blake2b(source, digest_size=8).hexdigest()}.so"
    )
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        command = ["cc", *_CC_FLAGS, "-o", str(fresh), str(source_file), "-ldl", "-pthread"]
        try:
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S
            )
        except (OSError, subprocess.SubprocessError) as error:
            words = str(getattr(error, "stderr", None) or error).strip().splitlines()
            raise PreloadError(f"{source_file.name} cannot be compiled: {words[0]}") from error
        fresh.replace(path)
    return path


def side_folder(system: System, name: str) -> Path:
    """Return where control file and journal of a node are, outside of its store."""
    return system.folder / "faults" / name


def attach(system: System, *, with_journal: bool = False) -> None:
    """Let every node start with the library from now on; harmless when it does already."""
    for node in system.nodes:
        side = side_folder(system, node.name)
        side.mkdir(parents=True, exist_ok=True)
        attach_process(node, system.store(node.name), side, with_journal=with_journal)


def attach_process(process: Process, store: Path, side: Path, *, with_journal: bool) -> Control:
    """Let a process start with the library; returns what steers it."""
    control = Control(side / "control")
    store = (
        store.absolute().parent.resolve() / store.name
    )  # the kernel names files by their true paths
    process.environment |= {
        "LD_PRELOAD": str(library()),
        "JEPSEN_FAULTS": str(control.path.absolute()),
        "JEPSEN_FAULTS_ROOT": str(store),
    }
    if with_journal:
        journal = side / "journal"
        journal.mkdir(exist_ok=True)
        process.environment |= {
            "JEPSEN_FAULTS_JOURNAL": str(journal.absolute()),
            "JEPSEN_FAULTS_SKIP": str(store / DERIVED),
        }
    return control


def control_of(system: System, name: str) -> Control:
    """Return what steers a node that was started with the library."""
    return Control(side_folder(system, name) / "control")

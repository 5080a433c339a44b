"""What do opening and memory of a log cost, per entry and per segment?

    python -m bench.opening [--entries 4000000] [--body-bytes 52] [--segment-entries 262144] [--json]

Writes a log of small entries with the store's own writer into a temporary folder, then opens it in a process of its
own, as a node does before it serves: the log, and the core's view of it. Time is processor time, so other work on the
machine does not count, and pages that were just written are in the kernel's cache: a cold disk adds what it needs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console
from rich.table import Table

from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger.storage.posix import PosixDisk
from dledger.storage.segmented_log import SegmentedLog

BATCH_COUNT: Final = 8192
LOOKUP_COUNT: Final = 2000
TERM_ENTRIES: Final = 1_000_000
"""A new term begins after so many entries, as elections make them."""

Figures = dict[str, float]


def _fill(folder: Path, entries: int, body: bytes, segment_bytes: int) -> None:
    """Write a log."""
    log = SegmentedLog.open(
        PosixDisk(str(folder)), segment_size_bytes=segment_bytes, cache_bytes_max=0, syncs=False
    )
    size_bytes = ENTRY_HEADER_BYTES + len(body)
    for start in range(0, entries, BATCH_COUNT):
        last, position = log.last_id.index, log.end_position
        log.append(
            [
                Entry(
                    Index(last + 1 + place),
                    Term(1 + (last + place) // TERM_ENTRIES),
                    Position(position + place * size_bytes),
                    EntryKind.NORMAL,
                    body,
                )
                for place in range(min(BATCH_COUNT, entries - start))
            ]
        )
        while (batch := log.take_writes()) is not None:
            batch.run()
            log.written(batch)
    log.flush_index()
    log.close()


def _rss_mib() -> float:
    """Return this process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def _open(folder: Path, segment_bytes: int) -> Figures:
    """Open the log and look up random entries; return what it cost."""
    before_mib = _rss_mib()
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    log = SegmentedLog.open(PosixDisk(str(folder)), segment_size_bytes=segment_bytes)
    core = log.layout.copy()
    opened_s, opened_cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    opened_mib = _rss_mib() - before_mib
    first, last = core.first_index, core.last_index
    random = Random(0)
    began_cpu_s = time.process_time()
    for _ in range(LOOKUP_COUNT):
        index = Index(random.randint(first, last))
        position = core.position_of(index)
        assert log.layout.index_at(position) == index, f"entry {index} is not found at {position}"
    lookups_s = time.process_time() - began_cpu_s
    return {
        "entries": last - first + 1,
        "segments": len(list((folder / "index").iterdir())),
        "log_mib": log.end_position / (1 << 20),
        "open_s": opened_s,
        "open_cpu_s": opened_cpu_s,
        "open_rss_mib": opened_mib,
        "used_rss_mib": _rss_mib() - before_mib,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "lookup_us": lookups_s / LOOKUP_COUNT * 1e6,
    }


def main() -> int:
    """Write a log, open it in another process, print what that cost."""
    parser = argparse.ArgumentParser(
        prog="bench.opening", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--entries", type=int, default=4_000_000)
    parser.add_argument("--body-bytes", type=int, default=52)
    parser.add_argument("--segment-entries", type=int, default=262_144)
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--open", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    segment_bytes = options.segment_entries * (ENTRY_HEADER_BYTES + options.body_bytes)
    if options.open is not None:
        sys.stdout.write(json.dumps(_open(Path(options.open), segment_bytes)))
        return 0
    with tempfile.TemporaryDirectory(prefix="dledger-opening-") as folder:
        _fill(Path(folder), options.entries, b"x" * options.body_bytes, segment_bytes)
        command = [sys.executable, "-m", "bench.opening", "--open", folder]
        command += ["--body-bytes", str(options.body_bytes)]
        command += ["--segment-entries", str(options.segment_entries)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if options.json:
        sys.stdout.write(answer + "\n")
        return 0
    table = Table("figure", "value", title="opening a log")
    for name, value in json.loads(answer).items():
        table.add_row(name, f"{value:,.2f}".removesuffix(".00"))
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

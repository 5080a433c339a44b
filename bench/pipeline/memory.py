"""How much memory do driver and workers take to read a topic, and does it grow with the topic?

    python -m bench.pipeline memory [--gib 1,2,4] [--times 5] [--json]

Three brokers, one topic of eight queues, bodies of 1 KB. It is filled up to one size after the other, and read at each
by the source and by `format("commitlog")` from the leader's store, into nothing; at the last one as often as `--times`
says in one job, too. Each reading has a session of its own; a figure is the most that any process of its kind has had
resident (VmHWM).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from bench.cpu import tree_cpu_seconds
from bench.pipeline.source import fill
from bench.real_group import BODY_BYTES, broker_group

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC: Final = "Source"
GIB: Final = 1024**3
SOURCE: Final = "source"
LOG: Final = "commitlog"


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """One reading: bytes of bodies, seconds, and MiB at most of each kind of process."""

    case: str
    gib: int
    seconds: float
    driver_mib: int
    jvm_mib: int
    worker_mib: int


def peak_mib(pid: int) -> int:
    """Return the most that a process has had resident; 0 of one that has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1024
    return 0


def _is_java(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    return False


def read_all(case: str, place: str, times: int) -> tuple[float, int, int, int]:
    """Read a topic or a store, so many times in one job; return seconds, and MiB of driver, JVM and largest worker."""
    from pipeline.spark.session import open_session

    spark = open_session("bench")
    reader = spark.read.format("rocketmq").option("nameServer", place).option("topic", TOPIC)
    if case == LOG:
        reader = spark.read.format("commitlog").option("upTo", "end").option("path", place)
    frames: list[DataFrame] = [reader.load() for _ in range(times)]
    began = time.perf_counter()
    reduce(lambda one, other: one.union(other), frames).write.format("noop").mode(
        "overwrite"
    ).save()
    seconds = time.perf_counter() - began
    others = [pid for pid in tree_cpu_seconds(os.getpid()) if pid != os.getpid()]
    jvm = max(peak_mib(pid) for pid in others if _is_java(pid))
    worker = max(peak_mib(pid) for pid in others if not _is_java(pid))
    spark.stop()
    return seconds, peak_mib(os.getpid()), jvm, worker


def measure(sizes: Sequence[int], times: int, folder: Path) -> list[MemoryResult]:
    """Fill the topic, and read it in processes of their own."""
    found: list[MemoryResult] = []
    context = multiprocessing.get_context("spawn")
    with (
        broker_group(folder, TOPIC) as (group, leader, _),
        context.Pool(1, maxtasksperchild=1) as pool,
    ):
        stored = 0
        for gib in sizes:
            count = gib * GIB // BODY_BYTES
            fill(group.namesrv, group.group, count - stored)
            stored = count
            for often in (1, times) if gib == sizes[-1] else (1,):
                for case, place in ((SOURCE, group.namesrv), (LOG, str(folder / leader.name))):
                    took = pool.apply(read_all, (case, place, often))
                    found.append(MemoryResult(case, gib * often, *took))
                    sys.stderr.write(f"{found[-1]}\n")
    return found


def main(arguments: Sequence[str]) -> int:
    """Run it and print the rows."""
    parser = argparse.ArgumentParser(prog="bench.pipeline memory", description=__doc__)
    parser.add_argument("--gib", default="1,2,4")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="bench-memory-"))
    try:
        rows = measure([int(each) for each in options.gib.split(",")], options.times, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        json.dump([asdict(row) for row in rows], sys.stdout)
        sys.stdout.write("\n")
        return 0
    table = Table(title="the most memory that a reading takes, MiB")
    for heading in ("how", "GiB of bodies", "s", "driver", "JVM", "largest worker"):
        table.add_column(heading, justify="left" if heading == "how" else "right")
    for row in rows:
        sizes = (row.driver_mib, row.jvm_mib, row.worker_mib)
        table.add_row(row.case, str(row.gib), f"{row.seconds:.0f}", *map(str, sizes))
    Console().print(table)
    return 0

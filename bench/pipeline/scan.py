"""How fast is a log scanned and archived, beside plain reading of the same files in the same run?

    python -m bench.pipeline scan    [--mib 1024] [--body-bytes 1000] [--json]
    python -m bench.pipeline archive [--mib 1024] [--body-bytes 1000] [--json]

The log is written by the log itself, sixteen messages to an entry, with a key, a tag and two more properties each; the
page cache holds it then, for the reader as for the scans. A small log is scanned or archived first. On a machine that
others use too, CPU time says more than the clock does: it counts all processes, Spark's as well.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.cpu import tree_cpu_seconds
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger.storage.posix import PosixDisk
from dledger.storage.segmented_log import SegmentedLog
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.properties import encode_properties
from dledger_mq.message.record import encode_record
from pipeline.archive.writing import Archive
from pipeline.scan.batches import ScanOptions, scan_batches
from pipeline.scan.columns import LOG_COLUMNS, MESSAGE_COLUMNS
from pipeline.scan.plan import CommittedBound, plan_scan
from pipeline.scan.stores import Store
from pipeline.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pipeline.spark.names import SparkSession

ALL = CommittedBound(None, "benchmark")
MIB = 1024 * 1024
PER_ENTRY = 16
HOST = pack_host("127.0.0.1", 10911)
EVERY = pa.unify_schemas([MESSAGE_COLUMNS, LOG_COLUMNS])


def write_log(folder: Path, mib: int, body_bytes: int) -> int:
    """Fill a store; returns the number of messages."""
    half = body_bytes // 2
    chance = random.Random(1)
    log = SegmentedLog.open(PosixDisk(folder))
    number, position, index = 0, 0, 1
    offsets: dict[tuple[int, int], int] = {}
    while position < mib * MIB:
        entries: list[Entry] = []
        for _ in range(64):
            records, at = [], position + 48
            for _ in range(PER_ENTRY):
                key = (number % 3, number % 8)
                body = chance.randbytes(half) + b"x" * (body_bytes - half)  # half of it compresses
                record = encoded_message(
                    number, key, queue_offset=offsets.setdefault(key, 0), at=at, body=body
                )
                offsets[key] += 1
                records.append(record)
                at += len(record)
                number += 1
            entry = Entry(
                Index(index), Term(1), Position(position), EntryKind.NORMAL, b"".join(records)
            )
            entries.append(entry)
            index, position = index + 1, entry.end_position
        log.append(entries)
        while (batch := log.take_writes()) is not None:
            batch.run()
            log.written(batch)
    log.close()
    return number


def encoded_message(
    number: int, key: tuple[int, int], *, queue_offset: int, at: int, body: bytes
) -> bytes:
    """Encode one message as a producer's would be stored, with the usual properties."""
    named = {
        "UNIQ_KEY": f"{number:032X}",
        "KEYS": f"order-{number}",
        "TAGS": f"Tag{number % 5}",
        "CLUSTER": "DefaultCluster",
    }
    return encode_record(
        topic=b"topic-%d" % key[0],
        queue_id=key[1],
        queue_offset=queue_offset,
        physical_offset=at,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000 + number,
        born_host=HOST,
        store_timestamp_ms=1_700_000_000_001 + number,
        store_host=HOST,
        body=body,
        properties=encode_properties(named),
    )


def read_plainly(folder: Path) -> None:
    """Read the segments and do nothing with them."""
    buffer = bytearray(4 * MIB)
    for path in sorted((folder / "data").iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def scan_here(folder: Path, schema: pa.Schema, *, check_crc: bool) -> None:
    """Scan in this process, one segment after the other."""
    for part in plan_scan(Store(folder), ALL).ranges:
        for _ in scan_batches(part, ScanOptions(schema, check_crc=check_crc)):
            pass


def scan_with_spark(spark: SparkSession, folder: Path, schema: str | StructType | None) -> None:
    """Scan with all cores, and throw the rows away."""
    reader = spark.read.format("commitlog").option("upTo", "end")
    reader = reader if schema is None else reader.schema(schema)
    reader.load(str(folder)).write.format("noop").mode("append").save()


def archive_all(spark: SparkSession, folder: Path, archive: Path) -> None:
    """Archive the whole log: write, read back, compare with a second scan."""
    store = Store(folder)
    with Archive(archive) as opened:
        for stretch in opened.stretches(store, ALL):
            opened.add(spark, store, stretch, broker_name="broker-a", known_by=ALL.known_by)


def timed(what: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds that it takes, by the clock and of CPU in all processes."""
    begun, before = time.perf_counter(), tree_cpu_seconds(os.getpid())
    what()
    took, after = time.perf_counter() - begun, tree_cpu_seconds(os.getpid())
    return took, sum(used - before.get(pid, 0.0) for pid, used in after.items())


def _scans(spark: SparkSession, folder: Path) -> dict[str, Callable[[], None]]:
    """Return the scans to be measured, from the most work per message to the least, in each way."""
    from pipeline.spark.schemas import spark_schema

    return {
        "library, all columns, all checksums": lambda: scan_here(folder, EVERY, check_crc=True),
        "library, message columns, checksums of entries": lambda: scan_here(
            folder, MESSAGE_COLUMNS, check_crc=True
        ),
        "library, message columns, headers only": lambda: scan_here(
            folder, MESSAGE_COLUMNS, check_crc=False
        ),
        "Spark, all columns, all checksums": lambda: scan_with_spark(spark, folder, None),
        "Spark, message columns, checksums of entries": lambda: scan_with_spark(
            spark, folder, spark_schema(MESSAGE_COLUMNS)
        ),
        "Spark, one column, checksums of entries": lambda: scan_with_spark(
            spark, folder, "queueOffset bigint"
        ),
    }


def _warm_up(folder: Path, once: Callable[[Path], None]) -> None:
    """Do it with a small log: the first task of its kind pays for the workers and what they import."""
    small = folder / "small"
    write_log(small, 1, 1000)
    once(small)


def run(arguments: list[str], *, with_archive: bool) -> int:
    """Write a log, measure, and print MB/s."""
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--body-bytes", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dledger-bench-") as name:
        folder = Path(name) / "store"
        messages = write_log(folder, options.mib, options.body_bytes)
        size = plan_scan(Store(folder), ALL).size_bytes
        read_plainly(folder)
        spark = open_session("benchmark")
        if with_archive:
            _warm_up(Path(name), lambda store: archive_all(spark, store, Path(name) / "first"))
        else:
            _warm_up(Path(name), lambda store: scan_with_spark(spark, store, None))
        steps: dict[str, Callable[[], None]] = {"plain file reading": lambda: read_plainly(folder)}
        if with_archive:
            archive = Path(name) / "archive"
            steps["archive, verified"] = lambda: archive_all(spark, folder, archive)
        else:
            steps |= _scans(spark, folder)
        times = {step: timed(what) for step, what in steps.items()}
        rates = {step: round(size / took / 1e6) for step, (took, _) in times.items()}
        costs = {step: round(cpu / messages * 1e6, 1) for step, (_, cpu) in times.items()}
        spark.stop()
    if options.json:
        result = {"bytes": size, "messages": messages, "mb_per_s": rates}
        json.dump(result | {"cpu_us_per_message": costs}, sys.stdout)
        sys.stdout.write("\n")
        return 0
    table = Table(title=f"{size / 1e6:.0f} MB of log, {messages} messages")
    table.add_column("what")
    table.add_column("MB/s", justify="right")
    table.add_column("CPU µs per message", justify="right")
    for step, rate in rates.items():
        table.add_row(step, str(rate), str(costs[step]))
    Console().print(table)
    return 0


def main_scan(arguments: list[str]) -> int:
    """Measure scans."""
    return run(arguments, with_archive=False)


def main_archive(arguments: list[str]) -> int:
    """Measure the archive."""
    return run(arguments, with_archive=True)

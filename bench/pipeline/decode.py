"""What does a message cost from pulled bytes to Arrow, by columns and beside the ordinary decoder in the same run?

    python -m bench.pipeline decode [--messages 8192] [--body-bytes 1000] [--rounds 9] [--json]

No broker, no Spark, one thread: records as a pull brings them, to the columns of the source, checksums of bodies
included. The ordinary decoder reads message by message, as clients do, and Arrow makes columns of its values
(`tests/property/pipeline/test_records_twin.py` holds the two together). The ways take turns; a figure is the least CPU
time of its rounds, which on a machine that others use too says most about the code.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.pipeline.scan import encoded_message
from dledger_mq.message.properties import decode_properties
from dledger_mq.message.record import decode_records
from pipeline.scan.columns import LABEL_COLUMNS, MESSAGE_COLUMNS, record_batches
from pipeline.scan.properties import property_json
from pipeline.scan.records import read_records

COLUMNS = pa.schema([*MESSAGE_COLUMNS, *LABEL_COLUMNS])
WITHOUT_TEXT = pa.schema([each for each in COLUMNS if each.name not in {"body", "properties"}])
ROWS = "message by message"


def records_of(messages: int, body_bytes: int) -> bytes:
    """Return records back to back; half of each body compresses."""
    chance, found, at = random.Random(1), [], 0
    half = body_bytes // 2
    for number in range(messages):
        body = chance.randbytes(half) + b"x" * (body_bytes - half)
        place = (0, number % 8)
        found.append(encoded_message(number, place, queue_offset=number // 8, at=at, body=body))
        at += len(found[-1])
    return b"".join(found)


def by_rows(data: bytes) -> pa.RecordBatch:
    """Decode message by message, and make columns of what that gives."""
    values: dict[str, list[object]] = {name: [] for name in COLUMNS.names}
    for message in decode_records(data):
        named = decode_properties(message.properties)
        row = (
            *(message.topic, message.flag, message.body, property_json(named), "broker-a"),
            *(message.queue_id, message.queue_offset),
            *(message.born_timestamp_ms * 1000, message.store_timestamp_ms * 1000),
            *(named.get("KEYS"), named.get("TAGS")),
        )
        for name, value in zip(values, row, strict=True):
            values[name].append(value)
    arrays = [pa.array(values[field.name], field.type) for field in COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


def by_columns(data: bytes, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Do what a task of the source does."""
    table = read_records(data)
    if "body" in schema.names:
        assert table.body_crc_ok().all(), "a body of this bench's own is damaged"
    return list(record_batches(table, schema, {"brokerName": "broker-a"}))


def measure(data: bytes, messages: int, rounds: int) -> dict[str, float]:
    """Return the CPU time of each way, in µs a message."""
    ways: dict[str, Callable[[], object]] = {
        ROWS: lambda: by_rows(data),
        "by columns": lambda: by_columns(data, COLUMNS),
        "by columns, without bodies and properties": lambda: by_columns(data, WITHOUT_TEXT),
    }
    same = pa.Table.from_batches(by_columns(data, COLUMNS))
    assert same.equals(pa.Table.from_batches([by_rows(data)])), "the ways disagree"
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for way, run in ways.items():
            started = time.process_time()
            run()
            least[way] = min(least[way], (time.process_time() - started) / messages * 1e6)
    return least


def main(arguments: list[str]) -> int:
    """Run it and print the rows."""
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline decode")
    parser.add_argument("--messages", type=int, default=8192)
    parser.add_argument("--body-bytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    data = records_of(options.messages, options.body_bytes)
    costs = measure(data, options.messages, options.rounds)
    if options.json:
        json.dump({"messages": options.messages, "cpu_us_per_message": costs}, sys.stdout)
        sys.stdout.write("\n")
        return 0
    table = Table(
        title=f"{options.messages} messages of {options.body_bytes} B to Arrow, one thread"
    )
    for heading in ("how", "CPU µs per message", "of message by message"):
        table.add_column(heading, justify="left" if heading == "how" else "right")
    for way, cost in costs.items():
        table.add_row(way, f"{cost:.2f}", f"{cost / costs[ROWS]:.2f}")
    Console().print(table)
    return 0

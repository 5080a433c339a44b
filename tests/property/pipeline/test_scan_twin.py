"""Scans of stores against the plain decoder: every record, every flipped bit, every cut, every split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

import numpy as np
import pyarrow as pa

from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index
from dledger_mq.message.record import decode_records
from pipeline.scan.batches import RecordSelection, ScanOptions, scan_batches
from pipeline.scan.columns import CONTROL_COLUMNS, LOG_COLUMNS, MESSAGE_COLUMNS
from pipeline.scan.crc import crc32c_columns
from pipeline.scan.errors import DamagedLogError
from pipeline.scan.plan import CommittedBound, plan_scan
from pipeline.scan.ranges import OnCorrupt
from pipeline.scan.stores import Store
from tests.property.store.scripts import histories, log_of
from tests.unit.pipeline.stores import orders, write_store

ALL_THERE = CommittedBound(None, "test")
COLUMNS = pa.unify_schemas([MESSAGE_COLUMNS, LOG_COLUMNS, CONTROL_COLUMNS])
KEYS = pa.schema(
    [
        LOG_COLUMNS.field("physicalOffset"),
        LOG_COLUMNS.field("crcOk"),
        CONTROL_COLUMNS.field("problem"),
    ]
)


def scanned(
    store: Path,
    *,
    committed: CommittedBound = ALL_THERE,
    split_bytes: int = 1 << 30,
    schema: pa.Schema = COLUMNS,
    on_corrupt: OnCorrupt = OnCorrupt.FAIL,
    which: RecordSelection = RecordSelection.ALL,
) -> list[dict[str, object]]:
    fails = on_corrupt is OnCorrupt.FAIL
    plan = plan_scan(Store(store), committed, split_bytes=split_bytes, fails=fails)
    options = ScanOptions(schema, which, on_corrupt=on_corrupt, broker_name="g")
    return [
        row
        for range_ in plan.ranges
        for batch in scan_batches(range_, options)
        for row in batch.to_pylist()
    ]


def plainly(entries: list[Entry]) -> Iterator[dict[str, object]]:
    """What is in the log, by the decoder that everything else of the project uses."""
    for entry in entries:
        if entry.kind is not EntryKind.NORMAL:
            continue
        for record in decode_records(entry.body):
            yield {
                "topic": record.topic,
                "queueId": record.queue_id,
                "queueOffset": record.queue_offset,
                "body": record.body,
                "physicalOffset": record.physical_offset,
                "size": record.size_bytes,
                "index": entry.index,
                "term": entry.term,
                "crcOk": True,
                "brokerName": "g",
            }


@given(
    st.lists(st.tuples(st.binary(min_size=44, max_size=44), st.integers(0, 2**32 - 1)), max_size=9)
)
def test_checksums_by_columns_are_those_of_the_library(parts: list[tuple[bytes, int]]) -> None:
    pieces = np.frombuffer(b"".join(part for part, _ in parts), np.uint8).reshape(-1, 44)
    before = np.array([crc for _, crc in parts], np.uint32)
    assert crc32c_columns(pieces, before).tolist() == [crc32c(part, crc) for part, crc in parts]


@pytest.mark.slow
@given(histories, st.sampled_from([300, 1000, 1 << 16]), st.sampled_from([100, 700, 1 << 20]))
@settings(max_examples=60)
def test_a_scan_is_what_the_plain_decoder_reads(
    history: list[tuple[list[object], int]], segment_bytes: int, split_bytes: int
) -> None:
    entries = log_of(history)
    with TemporaryDirectory() as folder:
        write_store(Path(folder), entries, segment_bytes)
        rows = scanned(Path(folder), split_bytes=split_bytes)
        bounds = range(0, entries[-1].index + 1, 3)
        bounded = {
            bound: scanned(
                Path(folder), committed=CommittedBound(Index(bound), "test"), schema=KEYS
            )
            for bound in bounds
        }
    wanted = list(plainly(entries))
    assert [
        {name: row[name] for name in plain} for row, plain in zip(rows, wanted, strict=True)
    ] == wanted
    for bound, found in bounded.items():
        assert [row["physicalOffset"] for row in found] == [
            row["physicalOffset"] for row in plainly(entries[:bound])
        ]


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return orders(40).log.entries


@pytest.mark.slow
@given(st.data())
@settings(max_examples=100)
def test_no_flipped_bit_is_overlooked(entries: list[Entry], data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        write_store(Path(folder), entries, 2000)
        segments = sorted((Path(folder) / "data").iterdir())
        segment = data.draw(st.sampled_from(segments))
        end = entries[-1].end_position
        used = min(segment.stat().st_size, end - int(segment.name))
        place = data.draw(st.integers(0, used - 1))
        octets = bytearray(segment.read_bytes())
        octets[place] ^= 1 << data.draw(st.integers(0, 7))
        segment.write_bytes(octets)
        committed = CommittedBound(entries[-1].index, "test")
        with pytest.raises(DamagedLogError) as caught:
            scanned(Path(folder), committed=committed, schema=KEYS)
        assert caught.value.path == str(segment)
        assert caught.value.byte_offset <= place
        position = int(segment.name) + place
        hit = next(each for each in entries if position < each.end_position)
        kept = [
            row["physicalOffset"] for each in entries if each is not hit for row in plainly([each])
        ]
        rows = scanned(Path(folder), schema=KEYS, on_corrupt=OnCorrupt.MARK)
        good = [row["physicalOffset"] for row in rows if row["crcOk"]]
        assert good == kept
        skipped = scanned(Path(folder), schema=KEYS, on_corrupt=OnCorrupt.SKIP)
        assert [row["physicalOffset"] for row in skipped if row["crcOk"]] == good


@pytest.mark.slow
@given(st.data())
@settings(max_examples=40)
def test_a_torn_end_ends_the_log_and_is_no_damage(
    entries: list[Entry], data: st.DataObject
) -> None:
    durable = data.draw(st.integers(1, len(entries)))
    with TemporaryDirectory() as folder:
        sealed = write_store(Path(folder), entries)
        tail = b"".join(each.header + each.body for each in sealed[durable:])
        write_store(Path(folder), entries[:durable])
        (segment,) = (Path(folder) / "data").iterdir()
        torn = tail[: data.draw(st.integers(0, len(tail)))]
        start = sealed[durable - 1].end_position
        octets = segment.read_bytes()[:start] + torn + bytes(data.draw(st.integers(0, 100)))
        segment.write_bytes(octets)
        whole = [each for each in sealed if each.end_position <= start + len(torn)]
        for on_corrupt in OnCorrupt:
            rows = scanned(Path(folder), schema=KEYS, on_corrupt=on_corrupt)
            assert [row["physicalOffset"] for row in rows] == [
                row["physicalOffset"] for row in plainly(whole)
            ]


def test_ranges_begin_and_end_at_entries(entries: list[Entry], tmp_path: Path) -> None:
    write_store(tmp_path, entries)
    plan = plan_scan(Store(tmp_path), ALL_THERE, split_bytes=1000)
    assert len(plan.ranges) > 3
    assert [each.before for each in plan.ranges[1:]] == [each.end for each in plan.ranges[:-1]]
    assert plan.size_bytes == entries[-1].end_position
    assert {each.before.position for each in plan.ranges} <= {each.position for each in entries}

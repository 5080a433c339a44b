"""Trace records: what Java's clients really wrote is read and written again, and what is broken hides no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.message.trace_records import (
    ConsumeEnd,
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TracedKind,
    TraceRecord,
    TraceRecordError,
    decode_trace,
    decode_trace_record,
    encode_trace_record,
    trace_keys,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "trace"
RELEASES = ("4.9.8", "5.3.3")
numbers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=9).filter(lambda text: not {"\1", "\2"} & set(text) and text != "null")


def captured(release: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((GOLDEN / f"java-{release}.json").read_text())
    return found


def records(release: str) -> list[TraceRecord]:
    return [
        one for each in captured(release) for one in decode_trace(each["body"].encode()).records
    ]


@pytest.mark.parametrize("release", RELEASES)
def test_what_java_wrote_is_read_and_written_as_it_was(release: str) -> None:
    for message in captured(release):
        body = decode_trace(message["body"].encode())
        assert body.unreadable == 0
        assert "".join(map(encode_trace_record, body.records)) == message["body"]
        keys = {key for record in body.records for key in trace_keys(record)}
        assert keys == set(message["keys"].split())
    kinds = [type(record) for record in records(release)]
    assert {kinds.count(kind) for kind in (PubTrace, SubBeforeTrace, SubAfterTrace)} == {4}
    assert kinds.count(EndTransactionTrace) == 2


def test_every_field_stands_where_java_has_it() -> None:
    first, _delayed, half, end = records("4.9.8")[:4]
    key = "FD0000000000000000000000000000022AF04E0E2F2A83A4F5DF0000"
    assert first == PubTrace(
        at_ms=1795699826144,
        region="DefaultRegion",
        group="interop_java_producer",
        topic="Traced0",
        message_id=key,
        tags="red",
        keys="key0",
        store_host="127.0.0.1:26486",
        body_bytes=6,
        cost_ms=12,
        kind=TracedKind.NORMAL,
        offset_message_id="7F000001000067760000000000000A40",
        is_success=True,
    )
    assert isinstance(half, PubTrace)
    assert (half.kind, half.tags, half.keys) == (TracedKind.HALF, "", "")
    assert isinstance(end, EndTransactionTrace)
    assert (end.kind, end.transaction_id) == (TracedKind.COMMIT, half.message_id)
    assert (end.state, end.is_from_check) == ("COMMIT_MESSAGE", False)
    before = next(one for one in records("4.9.8") if isinstance(one, SubBeforeTrace))
    after = next(
        one
        for one in records("4.9.8")
        if isinstance(one, SubAfterTrace) and one.request_id == before.request_id
    )
    assert (before.at_ms, before.group, before.message_id) == (1795699831164, "billing0", key)
    assert (before.retry_times, before.keys) == (0, "key0")
    assert (after.is_success, after.end, after.cost_ms) == (False, ConsumeEnd.FAILED, 6)
    assert (after.at_ms, after.group, after.message_id) == (1795699831170, "billing0", key)


@given(texts, texts, numbers, st.booleans())
def test_what_is_written_is_read_again(one: str, other: str, number: int, truth: bool) -> None:
    for record in (
        PubTrace(
            at_ms=number,
            region=one,
            group=other,
            topic="T",
            message_id="ID",
            tags=one,
            keys=other,
            store_host="h:1",
            body_bytes=number,
            cost_ms=number,
            kind=number,
            offset_message_id=one,
            is_success=truth,
        ),
        SubBeforeTrace(number, one, other, "R", "ID", number, one),
        SubAfterTrace("R", "ID", number, truth, one, number, number, other),
        EndTransactionTrace(
            at_ms=number,
            region=one,
            group=other,
            topic="T",
            message_id="ID",
            tags=one,
            keys=other,
            store_host="h:1",
            kind=number,
            transaction_id=one,
            state=other,
            is_from_check=truth,
        ),
        RecallTrace(number, one, other, "T", "ID", truth),
    ):
        assert decode_trace(encode_trace_record(record).encode()).records == (record,)


def test_records_of_older_and_newer_clients_are_read() -> None:
    pub = "Pub\x011\x01r\x01g\x01T\x01ID\x01\x01\x01h\x015\x012\x010"
    old = decode_trace_record(f"{pub}\x01true")
    new = decode_trace_record(f"{pub}\x01OFF\x01false\x0110.0.0.9")
    assert isinstance(old, PubTrace)
    assert isinstance(new, PubTrace)
    assert (old.offset_message_id, old.is_success, old.client_host) == ("", True, "")
    assert (new.offset_message_id, new.is_success, new.client_host) == ("OFF", False, "10.0.0.9")
    short = decode_trace_record("SubAfter\x01R\x01ID\x013\x01true\x01k")
    assert short == SubAfterTrace("R", "ID", 3, is_success=True, keys="k")
    with_time = decode_trace_record("SubAfter\x01R\x01ID\x013\x01true\x01k\x014\x0177")
    assert isinstance(with_time, SubAfterTrace)
    assert (with_time.end, with_time.at_ms, with_time.group) == (ConsumeEnd.FAILED, 77, "")
    bare = decode_trace_record("SubBefore\x011\x01r\x01g\x01R\x01ID\x010")
    assert bare == SubBeforeTrace(1, "r", "g", "R", "ID", 0, keys="")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Other\x011", "'Other' is no kind"),
        ("", "'' is no kind"),
        ("SubAfter\x01R", "SubAfter has 1 fields, none at 1"),
        ("SubAfter\x01R\x01ID\x01many\x01true", "field 2 of SubAfter is 'many', no number"),
        ("SubAfter\x01R\x01ID\x01" + "9" * 20 + "\x01true", "no number"),
        ("Recall\x01-\x01r\x01g\x01T\x01ID\x01true", "field 0 of Recall is '-', no number"),
    ],
)
def test_a_broken_record_is_named_and_hides_no_other(text: str, why: str) -> None:
    with pytest.raises(TraceRecordError, match=why):
        decode_trace_record(text)
    good = encode_trace_record(RecallTrace(1, "r", "g", "T", "ID", is_success=True))
    body = decode_trace(f"{text}\x02{good}".encode())
    assert (len(body.records), body.unreadable) == (1, 1 if text else 0)


@given(st.binary(max_size=60))
def test_any_bytes_are_read(data: bytes) -> None:
    body = decode_trace(data)
    assert body.unreadable + len(body.records) <= data.count(b"\x02") + 1


def test_separators_in_a_value_do_not_break_the_record() -> None:
    record = RecallTrace(1, "a\x01b\x02c", "g", "T", "ID", is_success=False)
    (read,) = decode_trace(encode_trace_record(record).encode()).records
    assert isinstance(read, RecallTrace)
    assert (read.region, read.message_id) == ("abc", "ID")

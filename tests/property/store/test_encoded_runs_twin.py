"""Batches that are encoded when they are staged, against messages that are staged one by one: the same entries."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.server.handlers.plan_staging import stage_plan
from broker.service.refusal import Refusal
from broker.service.shapes import Shapes
from broker.store.parse import parse_records
from broker.store.staging import StagedEntry, Staging
from broker.store.state import BrokerState
from dledger_mq.message import compiled
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.message.errors import RecordError
from dledger_mq.message.record import decode_records
from tests.property.service.test_batches_twin import (
    STAMP,
    agree,
    decided,
    mixed_batches,
    plain_batches,
    with_key,
)
from tests.stages import examples, needs_compiled, stage
from tests.unit.store.lone_broker import BORN, HOST

pytestmark = needs_compiled

NOW_MS = 1_700_000_000_000
V6 = bytes(range(20))

hosts = st.sampled_from([BORN, BORN, BORN, V6])
odd_batches = st.sampled_from(
    [
        encode_batch([BatchItem(0, b"x", with_key(3)), BatchItem(0, b"y", rest)])
        for rest in (b"", b"DELAY\x013\x02", with_key(3, rest=b"KEYS\x01a b\x02"), with_key(3)[:-1])
    ]
)
steps = st.lists(
    st.tuples(plain_batches | odd_batches, st.integers(0, 2), hosts)
    | st.sampled_from(["single", "build", "build", "build one", "withdraw", "cut"]),
    min_size=1,
    max_size=12,
)


class Leader:
    """Stages batches and singles, and builds entries."""

    def __init__(self, *, is_compiled: bool, host: bytes = HOST) -> None:
        self.staging = Staging(BrokerState(), host)
        self.is_compiled = is_compiled
        self.counts: list[int] = []
        self.seen: list[object] = []
        self.position = 5000
        self.ran = 0

    def take(self, step: Any) -> None:
        with stage(is_compiled=self.is_compiled):
            if isinstance(step, tuple):
                self.stage(*step)
            elif step == "single":
                self.staging.stage(
                    b"T",
                    1,  # type: ignore[arg-type]
                    b"one",
                    b"UNIQ_KEY\x01s\x02",
                    born_timestamp_ms=5,
                    born_host=BORN,
                )
                self.counts.append(1)
            elif self.counts and step == "cut":
                self.staging.cut(sum(self.counts[:-1]))
                self.counts.pop()
            elif self.counts:
                count = self.counts[0] if step == "build one" else sum(self.counts)
                self.counts = self.counts[1:] if step == "build one" else []
                built = self.staging.build_entry(self.position, NOW_MS, count)  # type: ignore[arg-type]
                self.note(built, count, is_withdrawn=step == "withdraw")
        self.seen.append((self.staging.staged_count, self.staging.staged_bytes))

    def stage(self, body: bytes, queue_id: int, host: bytes) -> None:
        (plan,) = decided([body], is_compiled=self.is_compiled)
        if isinstance(plan, Refusal):
            return
        plan = type(plan)(
            plan.topic,
            queue_id,
            plan.sys_flag,
            0,
            0,
            plan.messages,  # type: ignore[arg-type]
        )
        place = stage_plan(self.staging, plan, 7, host)
        assert place == sum(self.counts)
        self.counts.append(len(plan.messages))

    def note(self, built: StagedEntry, count: int, *, is_withdrawn: bool) -> None:
        self.ran += built.known is None
        offsets = built.physical_offsets(0, count)
        assert built.packed_offsets(0, count) == struct.pack(f">{count}q", *offsets)
        assert [built.physical_offset(place) for place in range(count)] == offsets
        queue_offsets = [built.queue_offset(place) for place in range(count)]
        assert parse_records(built.body, offsets[0]) == built.records
        self.seen += [built.body, built.records, offsets, queue_offsets]
        if is_withdrawn:
            self.staging.withdraw(built)
        else:
            self.position += 48 + len(built.body)


@examples(200)
@given(steps)
def test_entries_are_the_same(some: list[Any]) -> None:
    fast, ordinary = Leader(is_compiled=True), Leader(is_compiled=False)
    for step in (*some, "build"):
        fast.take(step)
        ordinary.take(step)
        assert fast.seen == ordinary.seen, step


BATCH = encode_batch(
    BatchItem(number, b"body %d" % number, with_key(9, rest=b"TAGS\x01red\x02"))
    for number in range(100)
)


def test_an_entry_of_batches_is_made_of_what_was_encoded_before() -> None:
    leader = Leader(is_compiled=True)
    for step in ((BATCH, 0, BORN), (BATCH, 2, BORN), (BATCH, 0, BORN), "build"):
        leader.take(step)
    assert leader.ran == 1
    body = leader.seen[3]
    assert isinstance(body, bytes)
    assert [record.queue_offset for record in decode_records(body)] == [
        *range(100),
        *range(100),
        *range(100, 200),
    ]


def test_a_store_with_an_ipv6_host_encodes_no_batch_beforehand() -> None:
    leader = Leader(is_compiled=True, host=V6)
    for step in ((BATCH, 0, BORN), "build"):
        leader.take(step)
    assert leader.ran == 0


def test_what_cannot_stand_in_a_record_is_refused_as_ever() -> None:
    with stage(is_compiled=True):
        (plan,) = decided([BATCH], is_compiled=True)
        assert not isinstance(plan, Refusal)
        staging = Staging(BrokerState(), HOST)
        with pytest.raises(RecordError):
            stage_plan(staging, plan, -1, BORN)
    assert staging.staged_count == 0


@given(mixed_batches | plain_batches)
@example(b"")
def test_keys_are_taken_of_plain_batches_without_others(body: bytes) -> None:
    agree(body)
    shapes = Shapes(STAMP)
    with stage(is_compiled=True):
        found, columns = shapes.batch_keys(body), shapes.read_batch(body)
    has_others = columns is None or any(others is not None for _, _, others in columns[4])
    assert found == (None if has_others or columns is None else columns[3])


def records_of(data: Any = BATCH, **others: Any) -> Any:
    usual: dict[str, Any] = {
        "shape_of": Shapes(STAMP).find,
        "queue_id": 1,
        "topic_field": b"\x01T",
        "sys_flag": 0,
        "born_ms": 7,
        "born_host": BORN,
        "store_host": HOST,
        "crc32": zlib.crc32,
    }
    with stage(is_compiled=True):
        return compiled.batch_records(data, *(usual | others).values())


@pytest.mark.parametrize(
    "others",
    [
        {"data": b""},
        {"data": BATCH[:-1]},
        {"data": BATCH + b"x"},
        {"shape_of": lambda *_cut: None},
        {"shape_of": lambda *_cut: (b"x" * 30_000, b"x" * 3_000, 0, None)},
        {"queue_id": -1},
        {"queue_id": 2**31},
        {"queue_id": "1"},
        {"topic_field": b""},
        {"topic_field": b"\x80" + b"t" * 128},
        {"sys_flag": -1},
        {"sys_flag": 2**31},
        {"sys_flag": 4},
        {"sys_flag": 0x10},
        {"sys_flag": 0x20},
        {"born_ms": -1},
        {"born_ms": 2**63},
        {"born_host": V6},
        {"store_host": V6},
    ],
    ids=lambda others: "-".join(others),
)
def test_batches_of_other_kinds_are_declined(others: dict[str, Any]) -> None:
    assert records_of(**others) is None


def test_what_callbacks_raise_is_raised_and_what_changes_meanwhile_is_seen() -> None:
    def fail(*_arguments: Any) -> Any:
        raise ZeroDivisionError

    for named in ({"crc32": fail}, {"shape_of": fail}):
        with pytest.raises(ZeroDivisionError):
            records_of(**named)
    with pytest.raises(TypeError):
        records_of(crc32=lambda _body: None)
    two = encode_batch(
        BatchItem(0, b"b", with_key(1, rest=rest)) for rest in (b"a\x01\x02", b"b\x01\x02")
    )
    longer = iter([b"", b"", b"longer", b"longer"])
    with pytest.raises(RuntimeError, match="changed"):
        records_of(two, shape_of=lambda *_cut: (next(longer), b"", 0, None))
    shorter = iter([b"longer", b"longer", b"", b""])
    with pytest.raises(RuntimeError, match="changed"):
        records_of(two, shape_of=lambda *_cut: (next(shorter), b"", 0, None))
    gone = iter([(b"", b"", 0, None)] * 2)
    with pytest.raises(RuntimeError, match="changed"):
        records_of(two, shape_of=lambda *_cut: next(gone, None))


def placed(runs: Any, starts: Any, first: int = 5048, store_ms: int = NOW_MS) -> Any:
    with stage(is_compiled=True):
        return compiled.place_records(runs, starts, first, store_ms)


def test_runs_of_other_kinds_are_declined() -> None:
    run = records_of()
    assert placed([run], [5]) is not None
    assert placed([], []) == (b"", b"")
    odd: list[Any] = [
        ([run], []),
        ([run[:-1]], [0]),
        ([run + b"x"], [0]),
        ([run, b"\xff" * 95], [0, 0]),
        ([b"\0" * 95], [0]),
        ([bytearray(run)], [0]),
        ([run], [-1]),
        ([run], [2**63]),
        ([run], ["0"]),
    ]
    for runs, starts in odd:
        assert placed(runs, starts) is None
    assert placed([run], [0], first=-1) is None
    assert placed([run], [0], first=2**63 - 5) is None
    wrong: list[Any] = [(None, []), ([run], None)]
    for arguments in wrong:
        with pytest.raises(TypeError):
            placed(*arguments)

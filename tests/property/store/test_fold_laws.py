"""Laws of the fold: the same log gives the same state, however it is cut, kept or known before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.consume_queue import ConsumeQueue
from broker.store.errors import OutOfOrderError
from broker.store.parse import parse_records, parsed
from broker.store.refusals import ALARMS
from broker.store.state import BrokerState, StateLimits
from broker.store.unit_files import SegmentFiles, UnitFiles
from dledger.raft.entry import EntryKind
from dledger_mq.message.record import decode_record
from tests.property.store.scripts import TOPICS, History, committed, histories, log_of

pytestmark = pytest.mark.slow

TIGHT = StateLimits(
    resident_units_max=4,
    keep_units_max=1,
    spill_interval=1,
    index_segment_units=2,
    near_timers_max=4,
)


def answers(state: BrokerState) -> object:
    """Everything that a reader may ask."""
    return (
        state.applied_index,
        state.digests(),
        state.digest(),
        [(queue.key, queue.min_offset, queue.max_offset, units(queue)) for queue in state.queues],
        [
            list(state.key_index.candidates(topic, key, 0, 2**62))
            for topic in ("A", "B")
            for key in ("k1", "k2", "k3", "u1", "u2")
        ],
        list(state.topics),
        state.topics.version,
        list(state.groups),
        state.groups.version,
        list(state.groups.forbidden()),
        [(topic, group, dict(table)) for topic, group, table in state.offsets.items()],
        [state.locks.holder("g", topic, 0, state.last_store_ms) for topic in ("A", "B")],
        dict(state.schedule.progress_table()),
        state.schedule.due(2**40, 100),
        list(state.timers.units()),
        state.timers.next_due_ms(),
        list(state.transactions),
        [state.transactions.verdict(offset) for offset in range(60)],
        [
            state.transactions.newest((topic.encode(), name), 8)
            for topic in TOPICS
            for name in (b"u1", b"u2")
        ],
        state.transactions.due(2**41, timeout_ms=1, interval_ms=1, limit=100),
        [(name, one.batch_id, one.used_ms, list(one.keys)) for name, one in state.sinks],
        (state.sinks.key_count, len(state.sinks)),
        list(state.refusals.newest),
        (state.last_store_ms, state.put_count, state.put_bytes),
    )


def units(queue: ConsumeQueue) -> bytes:
    return bytes(queue.units(queue.min_offset, queue.max_offset))


@given(histories, st.data())
def test_folding_a_log_in_pieces_is_folding_it_at_once(
    history: History, data: st.DataObject
) -> None:
    log = log_of(history)
    cut = data.draw(st.integers(0, len(log)))
    at_once, in_pieces = BrokerState(), BrokerState()
    at_once.apply(log)
    in_pieces.apply(log[:cut])
    for entry in log[cut:]:
        in_pieces.apply([entry])
    assert answers(in_pieces) == answers(at_once)


@given(histories)
def test_how_much_stays_in_memory_changes_no_answer(history: History) -> None:
    log = log_of(history)
    roomy, tight = BrokerState(), BrokerState(limits=TIGHT)
    roomy.apply(log)
    tight.apply(log)
    assert answers(tight) == answers(roomy)


@settings(max_examples=20)
@given(histories)
def test_files_give_the_same_answers_as_memory(history: History) -> None:
    log = log_of(history)
    with TemporaryDirectory() as folder:
        unit_files = UnitFiles(Path(folder), file_bytes=40)
        segment_files = SegmentFiles(Path(folder))
        roomy, on_disk = BrokerState(), BrokerState(unit_files, segment_files, TIGHT)
        roomy.apply(log)
        on_disk.apply(log)
        assert answers(on_disk) == answers(roomy)
        unit_files.close()
        segment_files.close()


@given(histories)
def test_what_the_leader_staged_equals_the_parse(history: History) -> None:
    assert answers(committed(history, parses=False).state) == answers(committed(history).state)


@given(histories)
def test_parsing_for_the_fold_agrees_with_the_codec(history: History) -> None:
    entries = [entry for entry in log_of(history) if entry.kind is EntryKind.NORMAL]
    by_the_codec = []
    for entry in entries:
        records, position = [], 0
        while position < len(entry.body):
            message = decode_record(entry.body, position)
            records.append(parsed(message))
            position += message.size_bytes
        by_the_codec.append(records)
    assert [parse_records(entry.body, entry.position + 48) for entry in entries] == by_the_codec


@given(histories)
def test_a_leader_of_ours_never_raises_an_alarm_about_queue_offsets(history: History) -> None:
    state = committed(history).state
    alarms = {refusal.kind.name for refusal in state.refusals.newest if refusal.kind in ALARMS}
    assert "WRONG_QUEUE_OFFSET" not in alarms


@given(histories.filter(bool))
def test_applying_any_entry_again_is_detected_and_changes_nothing(history: History) -> None:
    log = log_of(history)
    state = BrokerState()
    state.apply(log)
    before = answers(state)
    for entry in log:
        with pytest.raises(OutOfOrderError):
            state.apply([entry])
    assert answers(state) == before


SCRIPT = """
from tests.unit.store.lone_broker import LoneBroker
from broker.store.control import CommitOffsets, OffsetCommit, LockQueues
broker = LoneBroker()
for n in range(50):
    broker.stage(f"T{n % 7}", n % 3, b"x", KEYS=f"k{n}", UNIQ_KEY=f"u{n}")
    commits = [OffsetCommit(f"g{k}", f"T{k}", 0, n) for k in range(3)]
    broker.staging.stage_control(CommitOffsets(commits), broker.now_ms)
    broker.staging.stage_control(LockQueues("g", f"c{n % 3}", [("T1", n % 5)]), broker.now_ms)
    broker.commit()
print(broker.state.digest())
"""


def test_no_answer_depends_on_the_seed_of_hashes() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(digests) == 1
    assert digests != {b""}

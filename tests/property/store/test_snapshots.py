"""Laws of snapshots: wherever state is written down and taken in again, no answer shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store import queue_gathering
from broker.store.control import DeleteTopic, MarkDigests
from broker.store.state import BrokerState, StateLimits
from broker.store.unit_files import SegmentFiles, UnitFiles
from dledger.codec.snapshot import SnapshotMeta
from dledger.raft.entry import Entry
from dledger.raft.ids import Index, Position, Term
from dledger.state_machine import SnapshotOvertakenError, SnapshotRefusedError
from dledger.storage.snapshot_parts import SUFFIXES
from dledger.storage.snapshots import SnapshotStore
from dledger.testing.sim_disk import SimDisk
from tests.property.store.scripts import History, commit_steps, histories, log_of
from tests.property.store.test_fold_laws import TIGHT, answers
from tests.unit.store.lone_broker import LoneBroker

pytestmark = pytest.mark.slow

MIDDLE = StateLimits(
    resident_units_max=6, keep_units_max=2, spill_interval=3, index_segment_units=4, sealed_units=2
)

LARGER = StateLimits(keep_units_max=2, index_segment_units=8, sealed_units=4)


def restored(state: BrokerState, limits: StateLimits = TIGHT) -> BrokerState:
    made = BrokerState(limits=limits)
    made.restore(state.snapshot())
    return made


@given(histories, st.data())
def test_replicas_with_snapshots_and_restarts_at_any_point_agree(
    history: History, data: st.DataObject
) -> None:
    log = log_of(history)
    whole = BrokerState()
    whole.apply(log)
    replicas = [BrokerState(), BrokerState(limits=TIGHT), BrokerState(limits=MIDDLE)]
    for place, entry in enumerate(log):
        for number, replica in enumerate(replicas):
            if data.draw(st.integers(0, 3), label=f"snapshot of {number} at {place}") == 0:
                replicas[number] = restored(replica, data.draw(st.sampled_from([TIGHT, MIDDLE])))
            replicas[number].apply([entry])
    assert all(answers(replica) == answers(whole) for replica in replicas)


@given(histories, st.data())
def test_a_snapshot_read_while_the_fold_goes_on_shows_the_state_at_its_call(
    history: History, data: st.DataObject
) -> None:
    log = log_of(history)
    cut = data.draw(st.integers(0, len(log)))
    state, at_cut = BrokerState(limits=MIDDLE), BrokerState()
    state.apply(log[:cut])
    at_cut.apply(log[:cut])
    chunks = state.snapshot()
    state.apply(log[cut:])
    later = BrokerState(limits=TIGHT)
    try:
        later.restore(chunks)
    except SnapshotOvertakenError:
        return  # a topic was deleted meanwhile: said so, not papered over
    assert answers(later) == answers(at_cut)


@given(histories, st.data())
def test_a_snapshot_that_is_gathered_while_the_fold_goes_on_shows_one_moment(
    history: History, data: st.DataObject
) -> None:
    """Whatever is folded between the steps, topics deleted and made again among it: docs/adr/0188."""
    log = log_of(history)
    state, at_cut = BrokerState(limits=MIDDLE), BrokerState()
    folded = data.draw(st.integers(0, len(log)), label="folded before")
    state.apply(log[:folded])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_gathering, "STEP_QUEUES", 1)
        for must_hold in state.prepare_snapshot():
            if not must_hold:
                count = data.draw(st.integers(0, 2), label="folded between")
                state.apply(log[folded : folded + count])
                folded = min(folded + count, len(log))
    at_cut.apply(log[:folded])
    assert state.digest() == at_cut.digest()
    later = restored(state)
    assert answers(later) == answers(at_cut)


@given(histories.filter(bool), st.data())
def test_what_was_prepared_is_gathered_anew_where_the_fold_did_not_stand_still(
    history: History, data: st.DataObject
) -> None:
    log = log_of(history)
    folded = data.draw(st.integers(0, len(log) - 1))
    state, at_cut = BrokerState(limits=MIDDLE), BrokerState()
    state.apply(log[:folded])
    for _ in state.prepare_snapshot():
        count = data.draw(st.sampled_from([0, 0, 0, 1, 2]), label="folded between")
        state.apply(log[folded : folded + count])
        folded = min(folded + count, len(log))
    count = data.draw(st.integers(0, 1), label="folded behind")
    state.apply(log[folded : folded + count])
    at_cut.apply(log[: folded + count])
    assert state.digest() == at_cut.digest()
    assert answers(restored(state)) == answers(at_cut)


@given(histories, st.data())
def test_snapshots_with_parts_on_a_disk_that_crashes_give_the_state_back(
    history: History, data: st.DataObject
) -> None:
    """Entries are folded, snapshots taken from whatever limits, written to the end or not, and restored: adr/0188.

    What is restored is served from the parts, of whose files one may be damaged: adr/0253.
    """
    log, folded = log_of(history), 0
    chance = Random(data.draw(st.integers(0, 100), label="seed of the disk"))
    damaged_suffix = data.draw(st.sampled_from(["", *SUFFIXES]), label="damaged files")
    disk = SimDisk(chance)
    state, store = BrokerState(limits=MIDDLE), SnapshotStore(disk)
    taken: list[int] = []
    for _ in range(6):
        if folded == len(log):
            break
        count = data.draw(st.integers(1, 3), label="folded")
        state.apply(log[folded : folded + count])
        folded = min(folded + count, len(log))
        meta = SnapshotMeta(Index(folded), Term(1), Position(folded), 0, state.digest())
        writer = store.begin(meta, has_parts=True)
        for item in store.with_parts(state.sealed_snapshot()):
            writer.add([item])
        if data.draw(st.booleans(), label="finished"):
            writer.finish()
            taken.append(folded)
            if data.draw(st.booleans(), label="crashed"):
                disk.crash()
        else:
            disk.crash()
        for path in disk.paths() if damaged_suffix else ():
            if path.endswith(damaged_suffix):
                disk.flip_bit(path, chance.randrange(len(disk.content(path))), 3)
        store = SnapshotStore(disk)
        good, bad = store.newest_first()
        assert not bad
        assert [each.meta.index for each in good] == taken[:-3:-1]
        state = BrokerState(limits=data.draw(st.sampled_from([MIDDLE, LARGER])))
        if good:
            state.restore_sealed(store.sealed_chunks(good[0]))
            assert state.digest() == good[0].meta.digest
        folded = state.applied_index
    whole = BrokerState()
    whole.apply(log[:folded])
    assert answers(state) == answers(whole)


@settings(max_examples=20)
@given(histories)
def test_restored_into_files_the_answers_are_those_of_memory(history: History) -> None:
    state = BrokerState(limits=TIGHT)
    state.apply(log_of(history))
    with TemporaryDirectory() as folder:
        unit_files, segment_files = (
            UnitFiles(Path(folder), file_bytes=40),
            SegmentFiles(Path(folder)),
        )
        on_disk = BrokerState(unit_files, segment_files, TIGHT)
        on_disk.restore(state.snapshot())
        on_disk.restore(state.snapshot())
        assert answers(on_disk) == answers(state)
        assert (on_disk.restored_index, state.restored_index) == (state.applied_index, 0)
        unit_files.close()
        segment_files.close()


@given(histories.filter(bool), st.data())
def test_bytes_that_are_cut_or_go_on_are_refused_and_leave_an_empty_state(
    history: History, data: st.DataObject
) -> None:
    state = BrokerState()
    state.apply(log_of(history))
    whole = b"".join(state.snapshot())
    cut = data.draw(st.integers(0, len(whole) - 1))
    made = BrokerState()
    for wrong in (whole[:cut], whole + b"\0"):
        with pytest.raises(SnapshotRefusedError):
            made.restore(iter([wrong] if wrong else []))
        assert answers(made) == answers(BrokerState())


def test_a_deleted_topic_ends_a_snapshot_that_still_needed_it() -> None:
    broker = LoneBroker()
    broker.stage("T", 0, b"x")
    broker.commit()
    chunks = broker.state.snapshot()
    broker.staging.stage_control(DeleteTopic("T"), broker.now_ms)
    broker.commit()
    with pytest.raises(SnapshotOvertakenError):
        exhaust(chunks)


def exhaust(steps: Iterator[object]) -> None:
    for _ in steps:
        pass


def mark(broker: LoneBroker) -> None:
    index, digests = broker.state.marks.latest()
    broker.staging.stage_control(MarkDigests(index, dict(digests)), broker.now_ms)
    broker.commit()


def test_marks_find_a_replica_that_differs_and_name_component_and_index() -> None:
    broker = LoneBroker()
    broker.stage("T", 0, b"x")
    mark(broker)
    (marked,) = broker.state.marks.kept()
    broker.stage("T", 0, b"y")
    mark(broker)
    odd = restored(broker.state)
    assert not broker.state.marks.divergences
    assert odd.marks.kept() == broker.state.marks.kept()
    last, _ = broker.state.marks.latest()
    assert broker.state.marks.compared_index == marked < last
    had = dict(odd.marks.kept()[last])
    odd.marks.mark(last, had | {"offsets": had["offsets"] ^ 1})
    entry = mark_entry(broker)
    odd.apply([entry])
    (found,) = odd.marks.divergences
    assert (found.index, found.component) == (last, "offsets")
    with pytest.raises(SnapshotOvertakenError, match="offsets"):
        odd.snapshot()


@given(histories.filter(bool), st.data())
def test_replicas_that_fold_the_leaders_marks_find_nothing(
    history: History, data: st.DataObject
) -> None:
    """House rule 1: equal applied index, equal digests; whoever restarts, and however it spills."""
    leader = LoneBroker()
    for steps, pause_ms in history:
        commit_steps(leader, steps, pause_ms)
        mark(leader)
    mark(leader)
    replica = BrokerState(limits=TIGHT)
    for entry in leader.log.entries:
        replica.apply([entry])
        if data.draw(st.integers(0, 3), label=f"restart after {entry.index}") == 0:
            replica = restored(replica, data.draw(st.sampled_from([TIGHT, MIDDLE])))
    assert not leader.state.marks.divergences
    assert not replica.marks.divergences
    assert replica.marks.kept() == leader.state.marks.kept()
    assert leader.state.marks.compared_index > 0


def mark_entry(broker: LoneBroker) -> Entry:
    before = broker.state.applied_index
    mark(broker)
    (entry,) = [each for each in broker.log.entries if each.index > before]
    return entry

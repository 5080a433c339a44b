"""Laws of a state that is taken in beside the one that is shown: whatever goes on meanwhile, each of them is whole."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store import consume_queue, queue_gathering
from broker.store.state import BrokerState
from broker.store.timer_files import TimerFiles
from broker.store.unit_files import SegmentFiles, UnitFiles
from dledger.raft.entry import Entry
from dledger.state_machine import SnapshotOvertakenError, SnapshotRefusedError
from tests.property.store.scripts import History, histories, log_of
from tests.property.store.test_fold_laws import TIGHT, answers
from tests.property.store.test_snapshots import LARGER, MIDDLE, exhaust, restored

pytestmark = pytest.mark.slow

LIMITS = st.sampled_from([TIGHT, MIDDLE, LARGER])


def folded(log: list[Entry]) -> BrokerState:
    state = BrokerState(limits=MIDDLE)
    state.apply(log)
    return state


def given_up(state: BrokerState) -> None:
    exhaust(state.giving_up())


@given(histories, st.data())
def test_what_is_shown_is_the_old_state_until_it_is_the_new_one(
    history: History, data: st.DataObject
) -> None:
    """After each step the answers are the old ones; then those of a state that is restored in one go, or folded."""
    log = log_of(history)
    old, new = sorted(data.draw(st.tuples(*[st.integers(0, len(log))] * 2), label="old, new"))
    state = BrokerState(limits=data.draw(LIMITS))
    state.apply(log[:old])
    before, source = answers(state), folded(log[:new])
    taken_in = state.beside()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consume_queue, "SORT_QUEUES", 2)
        for _ in taken_in.load_steps(source.snapshot()):
            assert answers(state) == before
        assert answers(state) == before
    state.swap(taken_in)
    assert answers(state) == answers(folded(log[:new])) == answers(restored(source))
    assert (state.applied_index, state.restored_index) == (new, new)
    assert answers(taken_in) == before
    given_up(taken_in)
    state.apply(log[new:])
    assert answers(state) == answers(folded(log))


@given(histories, st.data())
def test_a_stop_in_the_middle_leaves_the_old_state(history: History, data: st.DataObject) -> None:
    log = log_of(history)
    old = data.draw(st.integers(0, len(log)), label="old")
    state = BrokerState(limits=TIGHT)
    state.apply(log[:old])
    count = len(list(state.beside().load_steps(folded(log).snapshot())))
    taken_in = state.beside()
    steps = taken_in.load_steps(folded(log).snapshot())
    exhaust(islice(steps, data.draw(st.integers(0, count), label="steps")))
    given_up(taken_in)
    state.apply(log[old:])
    assert answers(state) == answers(folded(log))


@given(histories, st.data())
def test_two_states_that_are_taken_in_at_a_time_do_not_meet(
    history: History, data: st.DataObject
) -> None:
    """A second snapshot comes while the first is half taken in; the one that is shown last stays."""
    log = log_of(history)
    cuts = sorted(data.draw(st.tuples(*[st.integers(0, len(log))] * 3), label="old, one, other"))
    state = BrokerState(limits=TIGHT)
    state.apply(log[: cuts[0]])
    one, other = state.beside(), state.beside()
    steps = {
        name: name.load_steps(folded(log[:cut]).snapshot())
        for name, cut in ((one, cuts[1]), (other, cuts[2]))
    }
    while steps:
        taken_in = data.draw(st.sampled_from(list(steps)), label="next")
        if next(steps[taken_in], "over") == "over":
            del steps[taken_in]
    if data.draw(st.booleans(), label="both are shown"):
        state.swap(one)
        assert answers(state) == answers(folded(log[: cuts[1]]))
    given_up(one)
    state.swap(other)
    assert answers(state) == answers(folded(log[: cuts[2]]))
    given_up(other)
    state.apply(log[cuts[2] :])
    assert answers(state) == answers(folded(log))


@given(histories, st.data())
def test_a_snapshot_that_is_being_taken_is_of_one_state_or_given_up(
    history: History, data: st.DataObject
) -> None:
    """The state changes between two steps of gathering and reading: what is written is the old one, or the new one."""
    log = log_of(history)
    old, new = sorted(data.draw(st.tuples(*[st.integers(0, len(log))] * 2), label="old, new"))
    state = folded(log[:old])
    taken_in = state.beside()
    exhaust(taken_in.load_steps(folded(log[:new]).snapshot()))
    left = data.draw(st.integers(0, 30), label="steps before")

    def passes() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            state.swap(taken_in)
            given_up(taken_in)

    again = BrokerState(limits=TIGHT)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queue_gathering, "STEP_QUEUES", 1)
            for _ in state.prepare_snapshot():
                passes()
        digest, chunks = state.digest(), state.snapshot()
        passes()
        read = []
        for chunk in chunks:
            read.append(chunk)
            passes()
    except SnapshotOvertakenError:
        return
    again.restore(iter(read))
    assert again.digest() == digest
    assert again.applied_index in {old, new}
    assert answers(again) == answers(folded(log[: again.applied_index]))


@settings(max_examples=20)
@given(histories, st.data())
def test_files_change_their_names_with_the_state(history: History, data: st.DataObject) -> None:
    log = log_of(history)
    old = data.draw(st.integers(0, len(log)), label="old")
    with TemporaryDirectory() as name:
        folder = Path(name)
        state = BrokerState(
            UnitFiles(folder, file_bytes=40),
            SegmentFiles(folder),
            TIGHT,
            far_timers=TimerFiles(folder),
        )
        state.apply(log[:old])
        before = answers(state)
        for _ in range(2):
            taken_in = state.beside()
            exhaust(taken_in.load_steps(folded(log).snapshot()))
            assert answers(state) == before
            state.swap(taken_in)
            assert answers(taken_in) == before
            given_up(taken_in)
            before = answers(state)
            assert before == answers(folded(log))
            kinds = {path.name.partition(".")[0] for path in folder.iterdir()}
            assert {path.name for path in folder.iterdir()} >= {"consumequeue", "keyindex"}
            assert len(kinds) == len(list(folder.iterdir())), "what is given up is removed"
        state.close()


@given(histories.filter(bool), st.data())
def test_bytes_that_are_no_state_leave_the_old_one(history: History, data: st.DataObject) -> None:
    log = log_of(history)
    old = data.draw(st.integers(0, len(log)), label="old")
    state = folded(log[:old])
    before, whole = answers(state), b"".join(folded(log).snapshot())
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0"):
        taken_in = state.beside()
        steps = taken_in.load_steps(iter([wrong] if wrong else []))
        with pytest.raises(SnapshotRefusedError):
            exhaust(steps)
        given_up(taken_in)
        assert answers(state) == before

"""The timers against a dumb twin: a dictionary that is sorted when asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.errors import NoRoomError
from broker.store.far_timers import FarTimers, MemoryFarTimers
from broker.store.refusals import RefusalKind
from broker.store.saved import ByteSource
from broker.store.timer_files import TimerFiles
from broker.store.timers import PendingTimer, Timers

KEYS = [b"key-aaaa", b"key-bbbb"]


@dataclass
class Twin:
    pending: dict[tuple[int, int], bytes] = field(default_factory=dict)
    recalled: set[tuple[int, bytes]] = field(default_factory=set)

    def deliver(self, places: list[tuple[int, int]]) -> bool:
        return all([self.pending.pop(place, None) is not None for place in places])  # noqa: C419 - all are popped

    def recall(self, due_ms: int, key: bytes, offsets: list[int]) -> bool:
        if any([self.pending.pop((due_ms, offset), None) is not None for offset in offsets]):  # noqa: C419 - all are popped
            self.recalled.add((due_ms, key))
        return (due_ms, key) in self.recalled


dues = st.integers(0, 30)
puts = st.tuples(st.just("put"), dues, st.sampled_from(KEYS))
steps = st.one_of(
    puts,
    st.tuples(st.just("due"), dues, st.integers(1, 6)),
    st.tuples(st.just("again"), st.integers(0, 200), st.just(0)),
    st.tuples(st.just("recall"), dues, st.sampled_from(KEYS)),
)

long_scripts = st.lists(st.one_of(puts, puts, steps), min_size=15, max_size=60)
"""Most of what they put is far."""


def run(script: list[tuple[str, int, object]], near_max: int, far: FarTimers) -> Timers:
    timers, twin, place = Timers(far, near_max), Twin(), 0
    for what, number, more in script:
        place += 100
        if what == "put":
            assert isinstance(more, bytes)
            timers.add(PendingTimer(number, place))
            twin.pending[number, place] = more
        elif what == "due":
            assert isinstance(more, int)
            due = timers.due(number, more)
            wanted = [item for item in sorted(twin.pending) if item[0] <= number][:more]
            found = [(timer.due_ms, timer.physical_offset) for timer in due]
            assert found == wanted[: len(found)]
            assert found or not wanted, "something due is always near"
            assert timers.deliver(found) is None
            assert twin.deliver(found)
        elif what == "again":
            refusal = timers.deliver([(number % 31, number)])
            assert (refusal is None) == twin.deliver([(number % 31, number)])
            assert refusal in (None, RefusalKind.STALE_PROGRESS)
        else:
            assert isinstance(more, bytes)
            offsets = [at for due_ms, at in sorted(twin.pending) if due_ms == number][:2]
            timers.recall(number, more, offsets, physical_offset=place)
            assert timers.was_recalled(place) == twin.recall(number, more, offsets)
        assert timers.count == len(twin.pending)
        assert timers.near_count <= near_max
        units = list(timers.units())
        assert units == [
            due_ms.to_bytes(8, "big") + at.to_bytes(8, "big") for due_ms, at in sorted(twin.pending)
        ]
        assert timers.next_due_ms() == min((due_ms for due_ms, _ in twin.pending), default=None)
    return timers


@given(st.lists(steps, max_size=60) | long_scripts, st.integers(4, 9))
def test_the_timers_are_a_sorted_dictionary(
    script: list[tuple[str, int, object]], near_max: int
) -> None:
    small = run(script, near_max, MemoryFarTimers())
    assert small.near_count <= near_max


class FullAtTimes(MemoryFarTimers):
    """Has no room whenever the next of the drawn answers says so; holds nothing that it did not take."""

    def __init__(self, answers: list[bool]) -> None:
        super().__init__()
        self._answers = answers

    def add(self, units: Sequence[bytes]) -> None:
        if self._answers and self._answers.pop():
            raise NoRoomError("no room")
        super().add(units)


@given(long_scripts, st.integers(4, 6), st.lists(st.booleans(), max_size=60))
def test_timers_for_which_there_is_no_room_wait_in_memory(
    script: list[tuple[str, int, object]], near_max: int, answers: list[bool]
) -> None:
    full = run(script, near_max, FullAtTimes(answers))
    roomy = run(script, near_max, MemoryFarTimers())
    assert full.digest == roomy.digest
    restored = Timers(FullAtTimes([True] * 5), near_max)
    restored.load(full.dump())
    deque(restored.load_unit_steps(ByteSource(full.saved_units())), maxlen=0)
    assert list(restored.units()) == list(full.units())


@settings(max_examples=25)
@given(st.lists(puts, max_size=80), st.integers(4, 40), st.integers(4, 9))
def test_no_digest_depends_on_what_is_near(
    script: list[tuple[str, int, object]], one_max: int, other_max: int
) -> None:
    with TemporaryDirectory() as folder:
        files = TimerFiles(Path(folder))
        one, other = run(script, one_max, files), run(script, other_max, MemoryFarTimers())
        while places := [(due.due_ms, due.physical_offset) for due in one.due(30, 3)]:
            one.deliver(places)
            other.deliver(places)
            assert one.digest == other.digest
        assert one.count == other.count == 0
        files.close()

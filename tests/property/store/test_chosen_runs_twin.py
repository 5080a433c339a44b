"""The records that a pull gives, chosen by compiled code and by Python: the same, of units of all kinds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.store.reading import _choose
from broker.store.unit_stores import UNIT
from dledger_mq.message import compiled
from tests.stages import needs_compiled, stage

pytestmark = [pytest.mark.slow, needs_compiled]

LAST = (1 << 63) - 1
HASHES = (0, 7, -7, 1 << 40, -(1 << 63))

gaps = st.sampled_from([0, 0, 0, 1, 48, 5000])
sizes = st.sampled_from([91, 91, 1100, 0, 1 << 30])
laid = st.lists(st.tuples(gaps, sizes, st.sampled_from(HASHES)), max_size=40)
odd = st.lists(
    st.tuples(
        st.sampled_from([-1, 0, 91, 1100, LAST, LAST - 91]),
        st.sampled_from([-1, 0, 91, (1 << 31) - 1, -(1 << 31)]),
        st.sampled_from(HASHES),
    ),
    max_size=8,
)
tags = st.none() | st.frozensets(st.sampled_from([*HASHES, 5]), max_size=3)
counts = st.sampled_from([1, 2, 8, 32, 1000])
bounds = st.sampled_from([-1, 1, 91, 5000, 262_144, (1 << 31) - 1, 1 << 70])


def units_of(rows: Sequence[tuple[int, int, int]]) -> memoryview:
    return memoryview(b"".join(UNIT.pack(*row) for row in rows))


def both(
    units: memoryview, tag_hashes: frozenset[int] | None, count_max: int, bytes_max: int
) -> compiled.ChosenRuns:
    with stage(is_compiled=True):
        found = _choose(units, tag_hashes, count_max, bytes_max)
    with stage(is_compiled=False):
        assert _choose(units, tag_hashes, count_max, bytes_max) == found
    return found


@given(laid, tags, counts, bounds)
@example([(0, 91, 7)] * 40, None, 32, 262_144)
def test_of_a_queue(
    rows: list[tuple[int, int, int]],
    tag_hashes: frozenset[int] | None,
    count_max: int,
    bytes_max: int,
) -> None:
    placed, at = [], 1 << 33
    for gap, size_bytes, tag_hash in rows:
        at += gap
        placed.append((at, size_bytes, tag_hash))
        at += size_bytes
    units = units_of(placed)
    runs, count, examined, _, _ = both(units, tag_hashes, count_max, bytes_max)
    assert bool(runs) == bool(count) <= bool(rows)
    assert count <= examined <= len(rows)
    if bytes_max < 1 << 63:
        with stage(is_compiled=True):
            assert compiled.chosen_runs(units, tag_hashes, count_max, bytes_max) is not None


@given(odd, tags, counts, bounds)
def test_of_what_no_queue_has(
    rows: list[tuple[int, int, int]],
    tag_hashes: frozenset[int] | None,
    count_max: int,
    bytes_max: int,
) -> None:
    _, count, examined, _, _ = both(units_of(rows), tag_hashes, count_max, bytes_max)
    assert 0 <= count <= examined <= len(rows)


def test_what_is_not_usual_is_declined() -> None:
    unit, none = units_of([(0, 91, 7)]), frozenset[int]()
    with stage(is_compiled=True):
        assert compiled.chosen_runs(unit, frozenset((7,)), 32, 5000) == ([(0, 91)], 1, 1, 0, 0)
        assert compiled.chosen_runs(unit, none, 32, 5000) == ([], 0, 1, 0, 0)
        for declined in (
            (unit[:-1], none, 32, 5000),
            (unit, {7: 1}.keys(), 32, 5000),
            (unit, none, 1 << 63, 5000),
            (unit, none, 32, 1 << 63),
            (units_of([(0, -1, 7)]), none, 32, 5000),
            (units_of([(-1, 91, 7)]), none, 32, 5000),
            (units_of([(LAST, 91, 7)]), none, 32, 5000),
        ):
            assert compiled.chosen_runs(*declined) is None

"""LogLayout against a plain list of (term, position, size)."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from dledger.raft.ids import Index, Position, Term
from dledger.raft.log_layout import LogBase, LogLayout

STARTS = st.sampled_from(
    [
        LogBase(),
        LogBase(Index(7), Term(2), Position(1000)),
        LogBase(Index(1), Term(1), Position(48)),
    ]
)
APPEND = st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 100))
TRUNCATE = st.tuples(st.just("truncate"), st.integers(0, 99), st.just(0))
FINISH = st.tuples(st.just("finish"), st.integers(0, 99), st.just(0))
FORGET = st.tuples(st.just("forget"), st.integers(0, 99), st.just(0))
MOVES = st.lists(st.one_of(APPEND, APPEND, APPEND, APPEND, FINISH, TRUNCATE, FORGET), max_size=40)


class Part:
    """A finished part that has everything in memory."""

    def __init__(self, entries: list[tuple[int, int, int, int]]) -> None:
        self.first_index = Index(entries[0][0])
        self.end_index = Index(entries[-1][0] + 1)
        self.first_position = Position(entries[0][2])
        self.end_position = Position(entries[-1][2] + entries[-1][3])
        self._positions = array("q", [position for _, _, position, _ in entries])

    def index_at(self, position: Position) -> Index:
        assert self.first_position <= position < self.end_position
        return Index(self.first_index + sum(each <= position for each in self._positions) - 1)

    def positions(self, first: Index, end: Index) -> array[int]:
        assert self.first_index <= first <= end <= self.end_index
        return self._positions[first - self.first_index : end - self.first_index]


class PlainLog:
    """The obvious log: everything is looked up by walking."""

    def __init__(self, start: LogBase) -> None:
        self.start = start
        self.entries: list[tuple[int, int, int]] = []  # term, position, size

    @property
    def end_position(self) -> int:
        return self.entries[-1][1] + self.entries[-1][2] if self.entries else self.start.position

    def append(self, term: int, size: int) -> None:
        self.entries.append((term, self.end_position, size))

    def truncate_from(self, index: int) -> None:
        del self.entries[index - self.start.prev_index - 1 :]

    def forget_before(self, index: int) -> None:
        count = index - self.start.prev_index - 1
        term = self.entries[count - 1][0] if count else self.start.prev_term
        self.start = LogBase(Index(index - 1), Term(term), Position(self.entries[count][1]))
        del self.entries[:count]

    def indexed(self) -> list[tuple[int, int, int, int]]:
        first = self.start.prev_index + 1
        return [(first + place, *entry) for place, entry in enumerate(self.entries)]


def build(start: LogBase, moves: list[tuple[str, int, int]]) -> tuple[LogLayout, PlainLog]:
    layout, plain = LogLayout(start), PlainLog(start)
    for what, a, b in moves:
        if what == "append":
            term = Term(layout.last_term + a)
            layout.append(term, b)
            plain.append(term, b)
        elif plain.entries:
            first = Index(layout.first_index + a % len(plain.entries))
            if what == "truncate":
                layout.truncate_from(first)
                plain.truncate_from(first)
            elif what == "forget":
                layout.forget_before(first)
                plain.forget_before(first)
            elif first >= layout.open_index:
                rows = [row for row in plain.indexed() if layout.open_index <= row[0] <= first]
                layout.finish(Part(rows))
    return layout, plain


@given(STARTS, MOVES, st.data())
def test_columns_are_what_each_entry_says(
    start: LogBase, moves: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    layout, plain = build(start, moves)
    first = data.draw(st.integers(layout.first_index, layout.last_index + 1))
    end = data.draw(st.integers(first, layout.last_index + 1))
    wanted = [entry[1:] for entry in plain.indexed() if first <= entry[0] < end]
    columns = layout.columns(Index(first), Index(end))
    assert [column.typecode for column in columns] == ["q", "q", "i"]
    assert list(zip(*columns, strict=True)) == wanted


@given(STARTS, MOVES)
def test_it_answers_like_a_plain_list(start: LogBase, moves: list[tuple[str, int, int]]) -> None:
    layout, plain = build(start, moves)
    entries = plain.indexed()
    assert layout.last_index - layout.first_index + 1 == len(entries)
    assert layout.end_position == plain.end_position
    assert layout.position_of(Index(layout.last_index + 1)) == plain.end_position
    assert layout.term_of(plain.start.prev_index) == plain.start.prev_term
    assert layout.first_position == plain.start.position
    assert layout.term_of(Index(layout.last_index + 1)) is None
    for index, term, position, size in entries:
        assert layout.term_of(Index(index)) == term
        assert layout.position_of(Index(index)) == position
        for byte in (position, position + size - 1):
            assert layout.index_at(Position(byte)) == index
        same = [i for i, other, _, _ in entries if other == term]
        assert layout.first_index_of_term_at(Index(index)) == same[0]
        assert layout.last_index_of_term(Term(term)) == same[-1]
    assert layout.index_at(Position(layout.end_position)) is None


@given(STARTS, MOVES, st.integers(0, 99), st.integers(0, 500), st.integers(1, 9))
def test_end_within_is_the_longest_row_that_fits(
    start: LogBase, moves: list[tuple[str, int, int]], at: int, bytes_max: int, count_max: int
) -> None:
    layout, plain = build(start, moves)
    first = layout.first_index + at % (len(plain.entries) + 1)
    end = layout.end_within(Index(first), bytes_max=bytes_max, count_max=count_max)
    after = [entry for entry in plain.indexed() if entry[0] >= first]
    count = total = 0
    for _, _, _, size in after[:count_max]:
        if count and total + size > bytes_max:
            break
        total += size
        count += 1
    assert end == first + count


@given(STARTS, MOVES)
def test_a_copy_is_equal_and_independent(start: LogBase, moves: list[tuple[str, int, int]]) -> None:
    layout, _ = build(start, moves)
    twin = layout.copy()
    before = (layout.runs(), layout.last_id, layout.end_position)
    assert (twin.runs(), twin.last_id, twin.end_position) == before
    twin.append(Term(twin.last_term + 1), 10)
    assert (layout.runs(), layout.last_id, layout.end_position) == before


@given(STARTS, MOVES)
def test_runs_rebuild_the_terms(start: LogBase, moves: list[tuple[str, int, int]]) -> None:
    layout, plain = build(start, moves)
    runs = layout.runs()
    ends = [first for first, _ in runs[1:]] + [layout.last_index + 1]
    terms = [
        term for (first, term), end in zip(runs, ends, strict=False) for _ in range(first, end)
    ]
    assert terms == [entry[0] for entry in plain.entries]


@given(STARTS, MOVES, st.integers(0, 99))
def test_many_at_once_are_as_many_one_by_one(
    start: LogBase, moves: list[tuple[str, int, int]], at: int
) -> None:
    layout, plain = build(start, moves)
    split = at % (len(plain.entries) + 1)
    twin = LogLayout(plain.start)
    for term, _, size in plain.entries[:split]:
        twin.append(Term(term), size)
    after = plain.entries[split:]
    if after:
        twin.extend(
            terms=array("q", [term for term, _, _ in after]),
            positions=array("q", [position for _, position, _ in after]),
            end_position=Position(plain.end_position),
        )
    assert (twin.runs(), twin.last_id, twin.end_position) == (
        layout.runs(),
        layout.last_id,
        layout.end_position,
    )
    check_same(twin, plain)


def check_same(twin: LogLayout, plain: PlainLog) -> None:
    for index, term, position, _ in plain.indexed():
        assert (twin.term_of(Index(index)), twin.position_of(Index(index))) == (term, position)


@given(STARTS, MOVES, st.data())
def test_finished_parts_are_as_good_as_entries(
    start: LogBase, moves: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    layout, plain = build(start, moves)
    rows = plain.indexed()
    twin = LogLayout(plain.start)
    while rows:
        count = data.draw(st.integers(1, len(rows)))
        part, rows = rows[:count], rows[count:]
        runs = [
            (Index(index), Term(term))
            for place, (index, term, _, _) in enumerate(part)
            if not place or part[place - 1][1] != term
        ]
        twin.extend_finished(Part(part), runs)
    assert (twin.runs(), twin.last_id, twin.end_position) == (
        layout.runs(),
        layout.last_id,
        layout.end_position,
    )
    assert twin.open_index == twin.last_index + 1
    check_same(twin, plain)

"""What a filter wants, by compiled code and by Python: the same, of records and filters of all kinds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.store.unit_stores import UNIT
from dledger_mq.filters import PropertyFilter, compile_filter, layout
from dledger_mq.message import compiled
from dledger_mq.message.record import record_properties
from tests.property.store.test_asked_values_twin import Laid, laid, numbers, records
from tests.property.store.test_record_shapes_twin import record_of
from tests.stages import needs_compiled, stage

pytestmark = [pytest.mark.slow, needs_compiled]

NAMES = st.sampled_from(["a", "ab", "TAGS"])
TEXTS = st.sampled_from(["", "1", "2", "x", "true", "it''s", "1.5", "-1"])
NUMBERS = st.sampled_from(
    ["0", "1", "2", "-1", "1.5", "2147483647", "2147483648", "-2147483648", "999999999", "1L"]
)
COMPARED = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
quoted = TEXTS.map(lambda text: f"'{text}'")
constants = st.one_of(quoted, NUMBERS, st.sampled_from(["TRUE", "false"]))
leaves = st.one_of(
    st.builds(lambda *parts: " ".join(parts), NAMES, COMPARED, NUMBERS),
    st.builds(lambda *parts: " ".join(parts), NUMBERS, COMPARED, NAMES),
    st.builds(lambda *parts: " ".join(parts), NAMES, st.sampled_from(["=", "<>"]), constants),
    st.builds(lambda *parts: " ".join(parts), constants, st.sampled_from(["=", "<>"]), NAMES),
    st.builds(lambda *parts: " ".join(parts), NAMES, COMPARED, NAMES),
    st.builds(
        lambda name, word, low: f"{name} {word} {low} AND {low}",
        NAMES,
        st.sampled_from(["BETWEEN", "NOT BETWEEN"]),
        NUMBERS,
    ),
    st.builds(
        lambda name, word, among: f"{name} {word} ({', '.join(among)})",
        NAMES,
        st.sampled_from(["IN", "NOT IN"]),
        st.lists(quoted, min_size=1, max_size=3) | st.just(["'2'"] * (layout.TEXTS_MAX + 1)),
    ),
    st.builds(lambda name, word: f"{name} IS {word}", NAMES, st.sampled_from(["NULL", "NOT NULL"])),
    st.builds(
        lambda name, word, text: f"{name} {word} {text}",
        NAMES,
        st.sampled_from(["CONTAINS", "NOT CONTAINS", "STARTSWITH", "ENDSWITH"]),
        quoted,
    ),
    NAMES,
    st.sampled_from(["TRUE", "FALSE", "('x' = 'x') IS NULL"]),
)
conditions = st.recursive(
    leaves,
    lambda of: st.one_of(
        of.map(lambda one: f"NOT ({one})"),
        st.builds(
            lambda word, some: f" {word} ".join(f"({one})" for one in some),
            st.sampled_from(["AND", "OR"]),
            st.lists(of, min_size=2, max_size=3),
        ),
    ),
    max_leaves=6,
)


def judged(given_laid: Laid, wanted: PropertyFilter) -> compiled.Verdicts | None:
    with stage(is_compiled=True):
        return compiled.judged_records(*given_laid, wanted.marks, wanted.layout)


VALUES = [
    b"1",
    b"2",
    b"-1",
    b"+1",
    b"-",
    b"x",
    b"true",
    b"it's",
    b"1.5",
    b"0999999999",
    b"2147483648",
    b"00000001",
]
pairs = st.tuples(st.sampled_from([b"a", b"ab", b"TAGS", b"other"]), st.sampled_from(VALUES))


@given(text=conditions, some=st.lists(st.lists(pairs, max_size=4), min_size=1, max_size=4))
@example(text="a = 1 OR a IS NULL", some=[[(b"a", b"x")], []])
@example(text="NOT (a = 1)", some=[[(b"a", b"x")], [(b"a", b"2")], []])
@example(text="a <= 2147483647 AND a >= -2147483648", some=[[(b"a", b"2147483648")]])
def test_what_is_judged_is_judged_as_the_filter_does(
    text: str, some: list[list[tuple[bytes, bytes]]]
) -> None:
    wanted = compile_filter(text)
    properties = [b"".join(b"%b\x01%b\x02" % pair for pair in each) for each in some]
    found = judged(laid([record_of(each) for each in properties]), wanted)
    assert found is not None
    count, numbers_wanted, left = found
    assert count == len(some)
    assert not {*numbers_wanted} & {*left}
    for number, each in enumerate(properties):
        if number not in left:
            assert wanted.matches(each) == (number in numbers_wanted)


@pytest.mark.parametrize(
    "text",
    ["n < 1", "n < 1 AND colour IN ('red', 'green')", "n BETWEEN -1 AND 5 OR colour <> 'red'",
     "NOT (colour IS NULL) AND 3 >= n", "colour NOT IN ('a') OR n = 1"],
)  # fmt: skip
def test_usual_conditions_are_judged(text: str) -> None:
    some = [record_of(b"n\x01%d\x02colour\x01red\x02" % n) for n in range(4)]
    found = judged(laid([*some, record_of(b""), record_of(b"n\x01many\x02")]), compile_filter(text))
    assert found is not None
    assert found[2] == []


@given(
    some=st.lists(records(), max_size=4),
    breaks=st.lists(st.booleans(), max_size=4),
    between=st.integers(0, 5),
)
def test_records_that_are_not_plain_are_left(
    some: list[bytes], breaks: list[bool], between: int
) -> None:
    wanted = compile_filter("a = '1' OR ab = '2' OR TAGS = 'x'")
    found = judged(laid(some, breaks, between=between), wanted)
    assert found is not None
    count, numbers_wanted, left = found
    assert count == len(some)
    assert [number for number in numbers_wanted if number not in left] == [
        number
        for number, each in enumerate(some)
        if number not in left and wanted.matches(bytes(record_properties(each)))
    ]


@given(
    places=st.lists(st.tuples(numbers, st.integers(-(2**31), 2**31 - 1) | st.integers(0, 200))),
    positions=st.lists(numbers, max_size=4),
    sizes=st.lists(st.integers(0, 300), max_size=4),
)
def test_places_that_make_no_sense_end_in_verdicts_or_are_declined(
    places: list[tuple[int, int]], positions: list[int], sizes: list[int]
) -> None:
    units = b"".join(UNIT.pack(at, size, 0) for at, size in places)
    sound = record_of(b"UNIQ_KEY\x01k\x02a\x01b\x02") * 4
    data = [memoryview(sound[:size]) for size in sizes]
    for cut in (units, units[:-1]):
        found = judged(Laid(memoryview(cut), positions, data), compile_filter("a = 'b'"))
        assert found is None or found[0] <= len(places)


def within(layouts: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return layouts with bytes of them changed, or cut off."""
    return st.builds(
        lambda one, at, byte, end: (one[:at] + byte + one[at + 1 :])[: len(one) - end],
        st.sampled_from(layouts),
        st.integers(0, 60),
        st.binary(min_size=1, max_size=1),
        st.integers(0, 3),
    )


@given(
    laid_out=st.binary(max_size=60)
    | within(
        [
            compile_filter(text).layout
            for text in ("a = 'b' AND NOT (a < 5)", "a IN ('c', 'b') OR a IS NULL", "a = 'b'")
        ]
    )
)
@example(laid_out=b"!\x00\x00\x00\xff" * 100)
@example(laid_out=b"".join(b"!" + (5 * n).to_bytes(4) for n in range(200, 0, -1)))
def test_no_layout_is_believed(laid_out: bytes) -> None:
    places = laid([record_of(b"a\x01b\x02")])
    with stage(is_compiled=True):
        found = compiled.judged_records(*places, (b"a\x01",), laid_out)
    assert found in ((1, [0], []), (1, [], []), (1, [], [0]))

"""Where SQL92 filters and SQLite mean the same, they say the same (H13 to H17, H19).

That is: a name on the left of a constant of its kind, joined by AND, OR and NOT of parentheses. Elsewhere they differ
by the rules: a constant on the left of null (H14), texts that are to be numbers (H9, H11).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dledger_mq.filters import FilterTextError, compile_filter
from dledger_mq.message.properties import encode_properties

NUMBERS = ("n", "m")
TEXTS = ("s", "t")
numbers = st.integers(-5, 5)
texts = st.sampled_from(["", "a", "b", "ab", "ba", "it's", "é"])
kept_texts = texts.filter(bool)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def pair(text: str, sqlite: str | None = None) -> tuple[str, str]:
    """Return a condition for us and for SQLite."""
    return text, sqlite or text


comparisons = st.builds(
    lambda name, symbol, number: pair(f"{name} {symbol} {number}"),
    st.sampled_from(NUMBERS),
    st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
    numbers,
)
betweens = st.builds(
    lambda name, word, bounds: pair(f"{name} {word} {min(bounds)} AND {max(bounds)}"),
    st.sampled_from(NUMBERS),
    st.sampled_from(["BETWEEN", "NOT BETWEEN", "not between"]),
    st.tuples(numbers, numbers),
)
of_texts = st.builds(
    lambda name, symbol, text: pair(f"{name} {symbol} {quoted(text)}"),
    st.sampled_from(TEXTS),
    st.sampled_from(["=", "<>"]),
    texts,
)
lists = st.builds(
    lambda name, word, among: pair(f"{name} {word} ({', '.join(map(quoted, among))})"),
    st.sampled_from(TEXTS),
    st.sampled_from(["IN", "NOT IN"]),
    st.lists(texts, min_size=1, max_size=3),
)
nulls = st.builds(
    lambda name, word: pair(f"{name} {word}"),
    st.sampled_from((*NUMBERS, *TEXTS)),
    st.sampled_from(["IS NULL", "IS NOT NULL"]),
)
searches = st.builds(
    lambda name, text: pair(
        f"{name} CONTAINS {quoted(text)}", f"coalesce(instr({name}, {quoted(text)}) > 0, 0)"
    ),
    st.sampled_from(TEXTS),
    kept_texts,
)


def joined(of: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    return st.one_of(
        st.builds(lambda one: pair(f"NOT ({one[0]})", f"NOT ({one[1]})"), of),
        st.builds(
            lambda word, some: pair(
                f" {word} ".join(f"({one})" for one, _ in some),
                f" {word} ".join(f"({one})" for _, one in some),
            ),
            st.sampled_from(["AND", "OR"]),
            st.lists(of, min_size=2, max_size=4),
        ),
        st.builds(
            lambda one, other: pair(
                f"{one[0]} OR {other[0]} AND {one[0]}", f"{one[1]} OR {other[1]} AND {one[1]}"
            ),
            comparisons,
            nulls,
        ),
    )


conditions = st.recursive(
    st.one_of(comparisons, betweens, of_texts, lists, nulls, searches), joined, max_leaves=12
)
messages = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(NUMBERS, numbers.map(str)) | dict.fromkeys(TEXTS, kept_texts),
)


@pytest.fixture(scope="module")
def sqlite() -> sqlite3.Connection:
    return sqlite3.connect(":memory:")


def sqlite_wants(sqlite: sqlite3.Connection, condition: str, message: Mapping[str, str]) -> bool:
    columns = [
        "NULL"
        if name not in message
        else message[name]
        if name in NUMBERS
        else quoted(message[name])
        for name in (*NUMBERS, *TEXTS)
    ]
    given_as = ", ".join(
        f"{value} AS {name}" for value, name in zip(columns, (*NUMBERS, *TEXTS), strict=True)
    )
    query = f"SELECT count(*) FROM (SELECT {given_as}) WHERE {condition}"
    return bool(sqlite.execute(query).fetchone()[0])


@given(condition=conditions, message=messages)
@example(condition=pair("NOT ((n = 1) AND (s IS NULL))"), message={})
def test_the_same_messages_are_wanted(
    sqlite: sqlite3.Connection, condition: tuple[str, str], message: dict[str, str]
) -> None:
    ours, theirs = condition
    found = compile_filter(ours).matches(encode_properties(message))
    assert found == sqlite_wants(sqlite, theirs, message)


@given(text=st.text(alphabet="ab=<>'()-+.0129eE \n,/*ANDORNOTINIS", max_size=60))
@example(text="a = 'x' AND" + " NOT" * 50)
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    try:
        is_wanted = compile_filter(text).matches(b"a\x011\x02b\x01x\x02")
    except FilterTextError as error:
        is_wanted = not str(error)
    assert is_wanted in (True, False)

"""What is no filter, and what is said of it: rules H3, H4, H6, H7, H12, H17, and the bounds."""

from __future__ import annotations

import pytest

from dledger_mq.filters import TEXT_LENGTH_MAX, FilterTextError, compile_filter

REFUSED = [
    ("", 1, 1, "ends too soon"),
    ("a = 1 AND", 1, 7, "ends too soon"),
    ("a = 1 garbage", 1, 7, "'garbage'"),
    ("a = 007", 1, 6, "'0'"),
    ("a = 0x1F", 1, 6, "'x1F'"),
    ("a = 9223372036854775808", 1, 5, "beyond 64 bits"),
    ("a = 0.0", 1, 5, "write 0"),
    ("a = 1e-400", 1, 5, "1e-400"),
    ("a = 1e400", 1, 5, "too great"),
    ("a LIKE 'x%'", 1, 3, "CONTAINS"),
    ("a + 1 = 2", 1, 3, "arithmetic"),
    ("a * 2 = 2", 1, 3, "arithmetic"),
    ("a != 1", 1, 3, "<>"),
    ("a == 1", 1, 4, "one ="),
    ('a = "x"', 1, 5, "single quotes"),
    ("a = 'x", 1, 5, "no end"),
    ("a = :x", 1, 5, "':x'"),
    ("f(a) = 1", 1, 2, "'('"),
    ("a = NULL", 1, 5, "IS"),
    ("NULL", 1, 1, "IS"),
    ("NOT a > 3", 1, 1, "no order"),
    ("a > 'x'", 1, 1, "'x' has no order"),
    ("a > TRUE", 1, 1, "TRUE has no order"),
    ("a BETWEEN 'a' AND 'b'", 1, 1, "no order"),
    ("a BETWEEN 3 AND 1", 1, 1, "must not be the greater"),
    ("a BETWEEN 1 AND NULL", 1, 17, "IS"),
    ("TRUE = 1", 1, 1, "TRUE cannot be compared with 1"),
    ("a IN ()", 1, 7, "')'"),
    ("a IN (1)", 1, 7, "a text in single quotes"),
    ("'x' IN ('x')", 1, 1, "behind a name"),
    ("a CONTAINS b", 1, 12, "a text in single quotes"),
    ("5 CONTAINS '5'", 1, 1, "behind a name or a text"),
    ("a > -b", 1, 5, "a minus"),
    ("5", 1, 1, "no condition"),
    ("'x' AND a = 1", 1, 1, "no condition"),
    ("NOT 'x'", 1, 1, "no condition"),
    ("a = 1\n  AND b >\n", 2, 9, "ends too soon"),
    ("a = 1\n  AND b ? 1", 2, 9, "'? 1'"),
    ("IN = 1", 1, 1, "'IN'"),
    ("(a = 1", 1, 6, "ends too soon"),
    ("a = 1)", 1, 6, "')'"),
]


@pytest.mark.parametrize(("text", "line", "column", "said"), REFUSED, ids=[c[0] for c in REFUSED])
def test_refused_with_the_place_of_the_mistake(
    text: str, line: int, column: int, said: str
) -> None:
    with pytest.raises(FilterTextError) as refused:
        compile_filter(text)
    assert (refused.value.line, refused.value.column) == (line, column), str(refused.value)
    assert said in str(refused.value)
    assert f"line {line}, column {column}: " in str(refused.value)


def test_a_text_is_bounded_before_it_is_read() -> None:
    fits = "a = 1".ljust(TEXT_LENGTH_MAX)
    assert compile_filter(fits).marks == (b"a\x01",)
    with pytest.raises(FilterTextError, match="4097 characters, at most 4096"):
        compile_filter(fits + " ")


def test_terms_are_bounded() -> None:
    compile_filter("a IN (" + ",".join(["'x'"] * 511) + ")")
    with pytest.raises(FilterTextError, match="more than 512 names and constants"):
        compile_filter("a IN (" + ",".join(["'x'"] * 512) + ")")


@pytest.mark.parametrize(
    ("text", "looks"),
    [
        ("a", 1),
        ("a = 1 OR b = 'x'", 4),
        ("a IN ('1','2','3','4')", 1),
        ("a CONTAINS 'x'", 2),
        ("NOT (a BETWEEN -1 AND 2.5)", 3),
        ("a IS NULL AND b = TRUE", 3),
    ],
)
def test_the_work_of_a_verdict_is_counted(text: str, looks: int) -> None:
    assert compile_filter(text).looks == looks


@pytest.mark.parametrize(
    ("before", "after"), [("(", ")"), ("NOT (", ")"), ("NOT ", ""), ("TRUE = (", ")")]
)
def test_depth_is_bounded(before: str, after: str) -> None:
    def nested(depth: int) -> str:
        return before * depth + "a IS NULL" + after * depth

    compile_filter(nested(10))
    deepest = (TEXT_LENGTH_MAX - 10) // len(before + after)
    for depth in (40, deepest):
        with pytest.raises(FilterTextError, match="nested more than 32 deep"):
            compile_filter(nested(depth))


def test_a_long_row_of_alternatives_is_not_deep() -> None:
    text = " OR ".join(f"a={n}" for n in range(250))
    assert compile_filter(text).matches(b"a\x01249\x02")

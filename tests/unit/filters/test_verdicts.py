"""Which messages a filter wants: rules H2 to H20, worked examples AC13 to AC26."""

from __future__ import annotations

import pytest

from dledger_mq.filters import compile_filter
from dledger_mq.message.properties import encode_properties


def wants(text: str, properties: dict[str, str]) -> bool:
    return compile_filter(text).matches(encode_properties(properties))


YES = [
    ("H9 a float of many digits", "a > 1.5", {"a": "9" * 200}),
    ("AC13", "a > 5", {"a": "10"}),
    ("AC15", "a > 5.0", {"a": "10.5"}),
    ("AC16", "a = 'x' AND b IS NULL", {"a": "x"}),
    ("AC19", "a BETWEEN 1 AND 3", {"a": "3"}),
    ("AC21", "a IN ('x','y')", {"a": "y"}),
    ("AC26", "a = 'x' OR b > 1", {"a": "x"}),
    ("H2 keywords in any case", "a iS nOt NuLl aNd NOT (a In ('y'))", {"a": "x"}),
    ("H2 names that begin like keywords", "notes = 1 AND NOT$x = 2", {"notes": "1", "NOT$x": "2"}),
    ("H2 a quote", "a = 'it''s'", {"a": "it's"}),
    ("H2 comments", "a /* b\n * c */ = -- = 2\n 1 -- OR", {"a": "1"}),
    ("H2 any text", "a = 'é%\"\\'", {"a": 'é%"\\'}),
    ("H3 a suffix", "a = 7L AND b = 8l", {"a": "7", "b": "8"}),
    ("H3 floats", "a = 1.5 AND a < 5. AND a > .5 AND a < 1e3", {"a": "1.5"}),
    ("H3 64 bits", "a = 9223372036854775807", {"a": "9223372036854775807"}),
    ("H5 AND before OR", "a = 1 OR a = 2 AND a = 3", {"a": "1"}),
    ("H5 signs", "a > -5 AND a < +5 AND a > - - 2", {"a": "3"}),
    ("H5 equality after order", "a > 1 = TRUE", {"a": "2"}),
    ("H9 a constant of 64 bits", "a > 3000000000", {"a": "3000000001"}),
    ("H9 signs of properties", "a > 1 AND b < 1", {"a": "+5", "b": "-5"}),
    ("H9 a float as Java reads it", "a > 1.5", {"a": " 2.5f "}),
    ("H9 infinity", "a > 1.5", {"a": "Infinity"}),
    ("H9 a long float", "a > 1.5", {"a": f"2.{'0' * 126}"}),
    ("H9 true", "a = TRUE", {"a": "True"}),
    ("H9 false", "a = FALSE", {"a": "yes"}),
    ("H9 on either side", "TRUE = a AND 5 < b", {"a": "true", "b": "6"}),
    ("H9 a condition beside a text", "(a = 1) = b", {"a": "1", "b": "true"}),
    ("H10 order of properties", "a < b", {"a": "9", "b": "10.5"}),
    ("H13 true or unknown", "b = 1 OR a = 1", {"a": "1"}),
    ("H14 null is null", "a = b", {"c": "1"}),
    ("H14 only the right side null", "NOT (5 = a)", {"c": "1"}),
    ("H14 <> is NOT of =", "5 <> a", {"c": "1"}),
    ("H16 not between", "a NOT BETWEEN 1 AND 3", {"a": "4"}),
    ("H16 names as bounds", "a BETWEEN b AND c", {"a": "2", "b": "1", "c": "3"}),
    ("H16 AND behind it", "a BETWEEN 1 AND 3 AND b = 1", {"a": "2", "b": "1"}),
    ("H17 not in", "a NOT IN ('x')", {"a": "y"}),
    ("H18 NOT of a name", "NOT a", {"a": "true"}),
    ("H19 contains", "a CONTAINS 'b' AND a STARTSWITH 'a' AND a ENDSWITH 'c'", {"a": "abc"}),
    ("H19 not contains", "a NOT CONTAINS 'x' AND a NOT STARTSWITH 'b'", {"a": "abc"}),
    ("H20 constants", "TRUE", {"a": "1"}),
    ("numbers of two kinds", "1 = 1.0 AND '5' = 5", {"a": "1"}),
    ("a property of the system", "TAGS = 'x'", {"TAGS": "x"}),
]

NO = [
    ("AC14", "a > 5", {"a": "10.5"}),
    ("AC17", "NOT (a = 'x')", {"c": "1"}),
    ("AC18", "a <> 'x'", {"c": "1"}),
    ("AC20", "a NOT BETWEEN 1 AND 3", {"a": "3"}),
    ("AC22", "a NOT IN ('x')", {"c": "1"}),
    ("AC23", "a NOT CONTAINS 'q'", {"c": "1"}),
    ("AC25", "a = TRUE", {"a": "yes"}),
    ("H2 case of names", "A = 1", {"a": "1"}),
    ("H6", "NOT a = 1", {"a": "1"}),
    ("H6 the other way", "NOT a = 1", {"a": "2"}),
    ("H9 beyond 32 bits", "a > 5", {"a": "3000000000"}),
    ("H9 beyond 64 bits", "a > 3000000000", {"a": "9223372036854775808"}),
    ("H9 blanks", "a = 5", {"a": " 5"}),
    ("H9 marks of Python's", "a > 5", {"a": "1_0"}),
    ("H9 other digits", "a = 3", {"a": "٣"}),
    ("H9 ever so many digits", "a > 5", {"a": "9" * 5000}),
    ("H9 a text that is no number", "a > 1.5", {"a": "nan"}),
    ("H9 infinity has no suffix", "a > 1.5", {"a": "Infinityd"}),
    ("H9 ever so many digits of no float", "a > 1.5", {"a": f"{'9' * 30_000}x"}),
    ("H10 ever so many digits of no float", "a < b", {"a": f"{'9' * 15_000}x", "b": "1"}),
    ("H9 a condition and a number", "(a = 1) = 1", {"a": "1"}),
    ("H10 texts that are no numbers", "a < b", {"a": "x", "b": "y"}),
    ("H10 equal as texts", "a = b", {"a": "1", "b": "01"}),
    ("H11 an error ends it all", "b > 5 OR a = 1", {"a": "1", "b": "x"}),
    ("H13 false and unknown", "NOT (b = 1 AND a = 1)", {"a": "1"}),
    ("H14 order beside null", "a > b", {"a": "1"}),
    ("H14 the left side null", "a = 1 OR NOT (a = 1)", {"c": "1"}),
    ("H17 null", "a IN ('x')", {"c": "1"}),
    ("H18 a name by itself", "a", {"a": "true"}),
    ("H18 a name and a condition", "a AND b = 1", {"a": "true", "b": "1"}),
    ("H19 an empty text", "a CONTAINS ''", {"a": "x"}),
    ("H19 an empty text, with NOT", "a NOT CONTAINS ''", {"a": "x"}),
    ("H20 unknown", "a = 1", {"c": "1"}),
]


@pytest.mark.parametrize(
    ("text", "properties"), [case[1:] for case in YES], ids=[c[0] for c in YES]
)
def test_wanted(text: str, properties: dict[str, str]) -> None:
    assert wants(text, properties)


@pytest.mark.parametrize(("text", "properties"), [case[1:] for case in NO], ids=[c[0] for c in NO])
def test_not_wanted(text: str, properties: dict[str, str]) -> None:
    assert not wants(text, properties)


def test_h11_what_is_not_needed_is_not_read() -> None:
    assert wants("a = 1 OR b > 5", {"a": "1", "b": "x"})


@pytest.mark.parametrize(
    "properties",
    [
        b"a\x01x\x02",
        b"a\x01x",
        b"b\x01a\x01y\x02a\x01x\x02",
        b"a\x01y\x02a\x01x\x02",
        b"a\x01x\x02a\x01\x02",
        b"ba\x01y\x02a\x01x\x02ca\x01z\x02",
    ],
    ids=[
        "one",
        "no end",
        "a separator in a value",
        "twice",
        "twice, the last empty",
        "like others",
    ],
)
def test_properties_are_found_where_they_stand(properties: bytes) -> None:
    assert compile_filter("a = 'x'").matches(properties)


@pytest.mark.parametrize(
    "properties", [b"", b"\x02", b"a\x01\x02", b"a\x02", b"\x01x\x02", b"aa\x01x"]
)
def test_and_not_where_there_are_none(properties: bytes) -> None:
    assert compile_filter("a IS NULL").matches(properties)


def test_bytes_that_are_no_text_are_values_like_others() -> None:
    assert compile_filter("a <> 'x' AND b = 1").matches(b"a\x01\xff\x02b\x011\x02")


def test_only_what_is_named_is_asked_for() -> None:
    found = compile_filter("b = 1 AND (a > 2 OR b < 5)")
    assert dict(zip(found.marks, found.values(b"x\x01y\x02b\x011\x02"), strict=True)) == {
        b"a\x01": None,
        b"b\x01": b"1",
    }


def test_filters_of_the_same_text_are_equal() -> None:
    assert compile_filter("a = 1") == compile_filter("a = 1") != compile_filter("a = 2")

"""Properties: the fast search agrees with the full reading, and bytes survive changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.message.errors import PropertyError
from dledger_mq.message.properties import (
    decode_properties,
    encode_properties,
    find_property,
    remove_property,
    set_property,
    split_keys,
    terminated,
)

plain_texts = st.text(min_size=1, max_size=8).filter(lambda text: not {"\1", "\2"} & set(text))
# Texts made of the separators and few letters hit every odd case of the format.
odd_bytes = st.lists(st.sampled_from([b"\1", b"\2", b"A", b"B", b"AB"]), max_size=24).map(b"".join)


@given(st.dictionaries(plain_texts, plain_texts))
def test_properties_are_read_as_they_were_written(properties: dict[str, str]) -> None:
    data = encode_properties(properties)
    assert decode_properties(data) == properties
    assert decode_properties(data[:-1]) == properties  # old writers omit the last separator


@given(odd_bytes, st.sampled_from([b"A", b"B", b"AB"]))
def test_the_search_agrees_with_the_full_reading(data: bytes, name: bytes) -> None:
    value = find_property(data, name)
    expected = decode_properties(data).get(name.decode())
    assert (None if value is None else value.decode()) == expected


@given(odd_bytes)
def test_a_removed_property_is_gone_and_the_others_stay(data: bytes) -> None:
    before = decode_properties(data)
    before.pop("A", None)
    assert decode_properties(remove_property(data, b"A")) == before


@given(odd_bytes)
def test_a_set_property_is_there_once(data: bytes) -> None:
    changed = set_property(data, b"A", b"new")
    assert find_property(changed, b"A") == b"new"
    assert decode_properties(changed) == {**decode_properties(data), "A": "new"}


def test_what_node_sends_with_an_empty_name_and_value() -> None:
    data = b"TAGS\x01TagA\x02\x01\x02MIN_OFFSET\x010\x02"
    assert decode_properties(data) == {"TAGS": "TagA", "MIN_OFFSET": "0"}
    assert find_property(data, b"MIN_OFFSET") == b"0"


def test_a_value_may_hold_the_first_separator() -> None:
    assert decode_properties(b"K\x01a\x01b\x02") == {"K": "a\x01b"}
    assert find_property(b"K\x01a\x01b\x02", b"a") is None


@pytest.mark.parametrize("first", [b"", b"A\x01\x02", b"A\x01a\x02"])
def test_thousands_of_empty_pairs_are_no_value(first: bytes) -> None:
    data = first + b"A\x01\x02" * 10_000
    assert find_property(data, b"A") == (b"a" if b"a" in first else None)


def test_bytes_that_are_not_utf8_do_not_hide_the_others() -> None:
    assert decode_properties(b"K\x01\xff\x02TAGS\x01T\x02")["TAGS"] == "T"


@pytest.mark.parametrize(
    "pair", [{"": "v"}, {"k": ""}, {"k\x01": "v"}, {"k": "v\x02"}, {"k": "v" * 32_766}]
)
def test_what_cannot_be_read_back_is_not_written(pair: dict[str, str]) -> None:
    with pytest.raises(PropertyError):
        encode_properties(pair)


def test_small_helpers() -> None:
    assert split_keys(b" k1  k2 ") == [b"k1", b"k2"]
    assert terminated(b"") == b""
    assert terminated(b"a\x01b") == b"a\x01b\x02"

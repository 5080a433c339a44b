"""Batch bodies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.message.batch import BatchItem, encode_batch, split_batch
from dledger_mq.message.errors import BatchError

items = st.builds(
    BatchItem, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), st.binary(max_size=40)
)


@given(st.lists(items, min_size=1, max_size=5))
def test_a_batch_is_split_as_it_was_joined(many: list[BatchItem]) -> None:
    assert split_batch(encode_batch(many)) == many


@given(st.lists(items, min_size=1, max_size=3))
def test_every_truncation_is_refused_or_drops_whole_items(many: list[BatchItem]) -> None:
    data = encode_batch(many)
    ends = {len(encode_batch(many[:count])) for count in range(1, len(many))}
    for size in range(len(data)):
        if size in ends:
            assert split_batch(data[:size]) == many[: len(split_batch(data[:size]))]
        else:
            with pytest.raises(BatchError):
                split_batch(data[:size])


@given(st.binary(max_size=200))
def test_any_bytes_are_split_or_refused(data: bytes) -> None:
    try:
        many = split_batch(data)
    except BatchError:
        return
    assert sum(22 + len(item.body) + len(item.properties) for item in many) == len(data)


def test_the_count_is_bounded() -> None:
    data = encode_batch([BatchItem(0, b"", b"")] * 11)
    assert len(split_batch(data, items_max=11)) == 11
    with pytest.raises(BatchError, match="more than 10 items"):
        split_batch(data, items_max=10)

"""Finding what the fold needs in properties, against the codec, on properties made to mislead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.store.parse import folded_properties, parse_records
from broker.store.staging import Staging
from broker.store.state import BrokerState
from dledger_mq.message.hashes import tags_code_of_bytes
from dledger_mq.message.properties import KEYS, TAGS, UNIQ_KEY, find_property
from tests.unit.store.lone_broker import BORN, HOST

pieces = st.sampled_from(
    [b"TAGS", b"KEYS", b"UNIQ_KEY", b"X", b"\x01", b"\x02", b"TAGS\x01", b"\x02KEYS\x01", b"a b"]
)
misleading = st.lists(pieces, max_size=12).map(b"".join)


@given(misleading)
def test_properties_are_found_as_the_codec_finds_them(properties: bytes) -> None:
    tags = find_property(properties, TAGS)
    assert folded_properties(properties) == (
        tags_code_of_bytes(tags) if tags else 0,
        find_property(properties, UNIQ_KEY),
        find_property(properties, KEYS),
    )


@given(
    st.lists(st.tuples(misleading, st.binary(max_size=50), st.integers(0, 2**31 - 1)), max_size=5)
)
def test_records_are_parsed_as_they_were_staged(given_: list[tuple[bytes, bytes, int]]) -> None:
    staging = Staging(BrokerState(), HOST)
    for properties, body, flags in given_:
        staging.stage(
            b"T", 0, body, properties, born_timestamp_ms=0, born_host=BORN, sys_flag=flags
        )
    staged = staging.build_entry(0, 1)
    assert parse_records(staged.body, 48) == staged.records

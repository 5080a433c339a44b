"""What the fold reads of properties."""

from __future__ import annotations

import pytest

from broker.store.parse import KEY, folded_properties, parse_records
from broker.store.staging import Staging
from broker.store.state import BrokerState
from dledger_mq.message.errors import RecordError
from tests.unit.store.lone_broker import BORN, HOST, START_MS


@pytest.mark.parametrize(
    "before", [b"", b"MY_UNIQ_KEY\x01other\x02", b"a\x01UNIQ_KEY\x02", b"a\x01b\x02"]
)
@pytest.mark.parametrize("after", [b"", b"a\x01b\x02", b"MY_UNIQ_KEY\x01other\x02"])
def test_the_unique_key_is_the_property_of_that_name_and_of_no_longer_one(
    before: bytes, after: bytes
) -> None:
    assert folded_properties(before + b"UNIQ_KEY\x01k\x02" + after)[1] == b"k"


def test_a_longer_name_is_no_unique_key() -> None:
    assert folded_properties(b"MY_UNIQ_KEY\x01other\x02")[1] is None


@pytest.mark.parametrize("topic_length", [2, 4, 200, 255])
def test_a_topic_that_runs_over_the_end_of_its_record_is_refused(topic_length: int) -> None:
    staging = Staging(BrokerState(), HOST)
    staging.stage(b"T", 0, b"body", b"", born_timestamp_ms=1, born_host=BORN)
    body = bytearray(staging.build_entry(0, START_MS).body)
    body[-4] = topic_length
    with pytest.raises(RecordError, match=r"runs over the end|do not add up"):
        parse_records(bytes(body), 48)
    assert parse_records(bytes(body[:-4]) + b"\x01T\0\0", 48)[0][KEY] == (b"T", 0)

"""Settings of the group in the fold: all replicas have the same, and a snapshot keeps them."""

from __future__ import annotations

import msgspec
import pytest
from crc32c import crc32c

from broker.store import saved
from broker.store.control import (
    MalformedControlError,
    PutSettings,
    decode_control,
    encode_control,
)
from broker.store.group_settings import SETTINGS_MAX, GroupSettings
from broker.store.refusals import RefusalKind
from broker.store.state import BrokerState
from dledger.state_machine import SnapshotRefusedError
from dledger_mq.message.numbers import StoreTimeMs
from tests.unit.store.lone_broker import LoneBroker

BY = "10.0.0.9:5123"


def test_a_change_says_who_and_when_and_an_empty_value_removes_it() -> None:
    broker = LoneBroker()
    broker.command(PutSettings({"brokerPermission": "4", "transactionCheckMax": "3"}, BY))
    changed_ms = broker.state.last_store_ms
    found = dict(broker.state.settings.items())
    assert (found["brokerPermission"].value, found["brokerPermission"].by) == ("4", BY)
    assert found["brokerPermission"].at_ms == changed_ms
    assert broker.state.settings.version.counter == 1
    broker.now_ms += 5
    broker.command(PutSettings({"brokerPermission": "", "neverThere": ""}, BY))
    assert broker.state.settings.values() == {"transactionCheckMax": "3"}
    assert broker.state.settings.version.counter == 2


def test_all_of_a_change_or_nothing() -> None:
    table = GroupSettings()
    full = {f"k{number}": "1" for number in range(SETTINGS_MAX)}
    assert table.put(full, BY, StoreTimeMs(1)) is None
    before = table.dump()
    refusal = table.put({"k0": "2", "one more": "1"}, BY, StoreTimeMs(2))
    assert refusal is RefusalKind.OUT_OF_RANGE
    assert table.dump() == before
    assert table.put({"k0": "2"}, BY, StoreTimeMs(2)) is None


def test_a_snapshot_keeps_them_with_their_digest() -> None:
    broker = LoneBroker()
    broker.command(PutSettings({"brokerPermission": "4"}, BY))
    twin = BrokerState()
    twin.restore(broker.state.snapshot())
    assert dict(twin.settings.items()) == dict(broker.state.settings.items())
    assert twin.digests() == broker.state.digests()


def test_a_snapshot_of_the_version_before_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = LoneBroker()
    broker.send()
    tables = broker.state.tables()
    del tables["settings"]
    with monkeypatch.context() as patch:
        patch.setattr(saved, "VERSION", saved.VERSION_BEFORE)
        patch.setattr(broker.state, "tables", lambda: tables)
        chunks = list(broker.state.snapshot())
    twin = BrokerState()
    twin.restore(iter(chunks))
    assert twin.settings.values() == {}
    digests = broker.state.digests()
    assert twin.digests() == digests
    del digests["settings"]
    written = crc32c(repr((broker.state.applied_index, digests)).encode())
    assert twin.digest() == written, "which a start compares"
    own = BrokerState()
    own.restore(twin.snapshot())
    assert own.digest() == twin.digest() == broker.state.digest() != written


def test_a_snapshot_of_this_version_must_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = LoneBroker()
    tables = broker.state.tables()
    del tables["settings"]
    with monkeypatch.context() as patch:
        patch.setattr(broker.state, "tables", lambda: tables)
        chunks = list(broker.state.snapshot())
    with pytest.raises(SnapshotRefusedError, match="the state has the tables"):
        BrokerState().restore(iter(chunks))


@pytest.mark.parametrize(
    "values",
    [{}, {"": "1"}, {"k" * 129: "1"}, {"k": "v" * 4097}, {f"k{n}": "1" for n in range(65)}],
    ids=["none", "no name", "a long name", "a long value", "many"],
)
def test_a_command_out_of_bounds_is_none(values: dict[str, str]) -> None:
    topic, body = encode_control(PutSettings({"k": "1"}, BY))
    raw = msgspec.msgpack.decode(body)
    assert decode_control(topic.decode(), body) == PutSettings({"k": "1"}, BY)
    with pytest.raises(MalformedControlError):
        decode_control(topic.decode(), msgspec.msgpack.encode({**raw, "values": values}))

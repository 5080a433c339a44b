"""A member's record as bytes and as text: golden bytes, and nothing wrong gets through."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from crc32c import crc32c

from dledger.codec.member_record import (
    MemberRecordFormatError,
    decode_handshake_record,
    decode_member_record,
    encode_handshake_record,
    encode_member_record,
)
from dledger.errors import PeerProtocolError
from dledger.raft.configuration import Configuration
from dledger.raft.ids import Index, NodeId
from dledger.raft.member_record import MemberRecord, Start

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
RECORD = MemberRecord("g", "n0", "", Start(3, 77), {N1: Start(2, 5)}, frozenset({N0, N1}))
GOLDEN = bytes.fromhex(
    "444c4d42"  # DLMB
    "0001"  # version
    "97"  # seven fields
    "a167"  # g
    "a26e30"  # n0
    "a0"  # never restored
    "03"  # count
    "4d"  # process
    "81a26e31920205"  # {n1: [2, 5]}
    "92a26e30a26e31"  # members
    "2e94cfcd"  # crc32c of everything before
)
BEFORE = bytes.fromhex("444c4d42000196a167a26e30a0034d81a26e319202054955f8a2")
"""The same, as versions before wrote it: no members."""


def test_a_start_that_the_store_has_missed_stands_at_the_end() -> None:
    """Versions that do not know it pass over it; a store that has missed none is written as before."""
    old = replace(RECORD, missed=Start(4, 78))
    data = encode_member_record(old)
    assert decode_member_record(data) == old
    assert data[6:-4].hex() == "98" + GOLDEN[7:-4].hex() + "92044e"


def test_a_change_of_the_members_stands_at_the_end() -> None:
    """Versions that do not know it pass over it; a store of a group that never changed any is written as before."""
    configuration = Configuration((N0, N1), (N2,), frozenset({N2}), {N2: "h:1"})
    changed = replace(RECORD, configuration=configuration, configuration_index=Index(7))
    data = encode_member_record(changed)
    assert decode_member_record(data) == changed
    body = "9492a26e30a26e3191a26e3291a26e3281a26e32a3683a31"
    assert data[6:-4].hex() == "99" + GOLDEN[7:-4].hex() + "920000" + "93c207c418" + body
    joined = replace(RECORD, has_joined=True)
    assert decode_member_record(encode_member_record(joined)) == joined
    assert (joined.founders, RECORD.founders) == (None, {N0, N1})


def test_a_configuration_that_is_none_is_not_guessed() -> None:
    body = ["g", "n0", "", 3, 77, {}, [], [0, 0], [False, 7, b"no members"]]
    with pytest.raises(MemberRecordFormatError, match="the configuration: no members are named"):
        decode_member_record(sealed(body))


def test_golden_bytes_both_ways() -> None:
    assert encode_member_record(RECORD).hex() == GOLDEN.hex()
    assert decode_member_record(GOLDEN) == RECORD
    assert decode_member_record(BEFORE) == replace(RECORD, members=frozenset())


@pytest.mark.parametrize("restoration", [None, "", "2026-11-21"])
def test_never_restored_is_not_a_new_store(restoration: str | None) -> None:
    record = MemberRecord("g", "n0", restoration, Start(1, 2), {})
    assert decode_member_record(encode_member_record(record)) == record
    told = decode_handshake_record(N0, encode_handshake_record(record, "n1"))
    assert told == MemberRecord("", "n0", restoration, Start(1, 2), {})


def test_every_truncation_every_addition_and_every_flip_is_detected() -> None:
    for size in range(len(GOLDEN)):
        with pytest.raises(MemberRecordFormatError):
            decode_member_record(GOLDEN[:size])
    with pytest.raises(MemberRecordFormatError):
        decode_member_record(GOLDEN + b"\0")
    for place in range(len(GOLDEN)):
        with pytest.raises(MemberRecordFormatError):
            decode_member_record(GOLDEN[:place] + bytes([GOLDEN[place] ^ 4]) + GOLDEN[place + 1 :])


def sealed(body: object, version: int = 1) -> bytes:
    data = b"DLMB" + version.to_bytes(2, "big") + msgspec.msgpack.encode(body)
    return data + crc32c(data).to_bytes(4, "big")


def test_fields_of_a_later_version_are_passed_over_and_another_version_is_not_guessed() -> None:
    body = ["g", "n0", "", 3, 77, {"n1": [2, 5]}, ["n0", "n1"], [0, 0]]
    changed = [False, 0, b""]
    assert decode_member_record(sealed([*body, changed, "more"])) == RECORD
    with pytest.raises(MemberRecordFormatError, match="version 2 is unknown"):
        decode_member_record(sealed(body, version=2))
    with pytest.raises(MemberRecordFormatError, match="byte 6"):
        decode_member_record(sealed(["g", "n0", "", -3, 77, {}]))


def test_what_is_told_fits_an_attribute_and_names_the_target_in_any_case() -> None:
    seen = {NodeId(f"{'x' * 60}{number}"): Start(9, 2**63 - 1) for number in range(30)}
    record = MemberRecord("g", "n0", "r" * 64, Start(2**40, 2**63 - 1), seen)
    for target, start in seen.items():
        text = encode_handshake_record(record, target)
        assert len(text) <= 1024
        told = decode_handshake_record(N0, text)
        assert told.seen[target] == start
        assert len(told.seen) > 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        '["",1,2]',
        '["",-1,2,{}]',
        '["",1,2,{"n1":[1]}]',
        '["",1,2,{"n1":[9223372036854775807,1]}]',
        "[" * 1000,
    ],
)
def test_what_is_no_record_breaks_the_protocol(text: str) -> None:
    with pytest.raises(PeerProtocolError):
        decode_handshake_record(N2, text)

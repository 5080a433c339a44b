"""The address of a sender as a host field of a record."""

from __future__ import annotations

import pytest

from broker.server.requests.origin import host_field


@pytest.mark.parametrize(
    ("address", "field"),
    [
        ("127.0.0.1:10911", bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))),
        ("[::1]:1", bytes(15) + b"\x01" + b"\x00\x00\x00\x01"),
        ("somewhere:1", bytes(8)),
        ("nonsense", bytes(8)),
    ],
)
def test_host_fields(address: str, field: bytes) -> None:
    assert host_field(address) == field

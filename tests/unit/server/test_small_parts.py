"""Rates, proofs of membership, host fields."""

from __future__ import annotations

import pytest

from broker.server.origin import host_field
from broker.server.private_codes import link_proof
from broker.server.rates import Rate


def test_rates_of_three_windows() -> None:
    rate = Rate()
    assert rate.text() == "0.00 0.00 0.00"
    for second in range(0, 125, 5):
        rate.sample(second * 1000, second * 10 if second <= 100 else 1000)
    assert rate.text() == "0.00 6.67 8.33"


def test_a_proof_is_bound_to_everything() -> None:
    proof = link_proof("s", group="g", node_id="n0", nonce="x")
    assert proof == link_proof("s", group="g", node_id="n0", nonce="x")
    others = {
        link_proof(None, group="g", node_id="n0", nonce="x"),
        link_proof("s", group="gn", node_id="0", nonce="x"),
        link_proof("s", group="g", node_id="n1", nonce="x"),
        link_proof("s", group="g", node_id="n0", nonce="y"),
    }
    assert len(others) == 4
    assert proof not in others


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

"""The chain CRC: the checksum in an entry's header that ties the entry to all before it.

It is the CRC32C of the header's other bytes, started with the chain CRC of the entry before. So it identifies the
whole log up to an entry; and since a CRC can be run backwards, a header names the entry before it. Only header
bytes are known here (docs/formats/entry.md), neither fields nor bodies.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from dledger.raft.entry import ENTRY_HEADER_BYTES

CHAIN_CRC_AT: Final = 36
BODY_CRC_AT: Final = 40
"""The bytes of a header at which its two checksums stand, 4 bytes each."""


def expected_chain_crc(header: bytes, prev_chain_crc: int) -> int:
    """Return the chain CRC that these 48 header bytes ought to have."""
    crc: int = crc32c(header[BODY_CRC_AT:], crc32c(header[:CHAIN_CRC_AT], prev_chain_crc))
    return crc


def stored_chain_crc(header: bytes) -> int:
    """Return the chain CRC that a header has, whether right or not."""
    return int.from_bytes(header[CHAIN_CRC_AT:BODY_CRC_AT], "big")


def _chain_step(chain_crc: int) -> int:
    """Return the CRC of an all-zero header's bytes, continued from a chain CRC."""
    crc: int = crc32c(_ZERO_CHAINED, chain_crc)
    return crc


def _invert_chain_step() -> tuple[int, ...]:
    """Return the chain CRC's way back: for every bit of a difference after a header the one before it.

    For bytes of a fixed length a CRC is an affine, invertible function of the CRC that it started
    with (over GF(2)), whatever the bytes are. Gauss-Jordan elimination over its 32 columns.
    """
    zero = _chain_step(0)
    rows = [(_chain_step(1 << bit) ^ zero, 1 << bit) for bit in range(32)]
    for bit in range(32):
        pivot = next(k for k in range(bit, 32) if rows[k][0] >> bit & 1)
        rows[bit], rows[pivot] = rows[pivot], rows[bit]
        image, origin = rows[bit]
        rows = [
            (other ^ image, source ^ origin) if k != bit and other >> bit & 1 else (other, source)
            for k, (other, source) in enumerate(rows)
        ]
    return tuple(origin for _, origin in rows)


_ZERO_CHAINED = bytes(ENTRY_HEADER_BYTES - (BODY_CRC_AT - CHAIN_CRC_AT))
_CHAIN_STEP_BACK = _invert_chain_step()


def preceding_chain_crc(header: bytes) -> int:
    """Return the chain CRC of the only entry that can stand before this header.

    So an intact header names the entry before it, even when that entry is lost.
    """
    difference = stored_chain_crc(header) ^ expected_chain_crc(header, 0)
    found = 0
    for bit, origin in enumerate(_CHAIN_STEP_BACK):
        if difference >> bit & 1:
            found ^= origin
    assert expected_chain_crc(header, found) == stored_chain_crc(header), (
        f"{found:#010x} does not lead here"
    )
    return found

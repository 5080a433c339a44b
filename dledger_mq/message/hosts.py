"""Host fields of a record: address bytes (4 or 16), then the port as int32."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from dledger_mq.message.errors import MessageFormatError

HOST_V4_BYTES: Final = 8
HOST_V6_BYTES: Final = 20


@lru_cache(maxsize=16_384)
def pack_host(address: str, port: int) -> bytes:
    """Write a host field: 8 bytes for IPv4, 20 for IPv6. An IPv4 address mapped into IPv6 is written as IPv4.

    Raises:
        MessageFormatError: `address` is no IP address, or the port is not in 0..65535.
    """
    if not 0 <= port <= 0xFFFF:
        raise MessageFormatError(f"port {port} of host {address!r} is not in 0..65535")
    try:
        parsed: IPv4Address | IPv6Address = ip_address(address)
    except ValueError as error:
        raise MessageFormatError(f"{address!r} is not an IP address") from error
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.packed + port.to_bytes(4, "big")


@lru_cache(maxsize=16_384)
def unpack_host(host: bytes) -> tuple[str, int]:
    """Read address text and port of a host field. The port is the raw int32: a damaged one is only odd.

    Raises:
        MessageFormatError: not 8 or 20 bytes.
    """
    if len(host) == HOST_V4_BYTES:
        address = str(IPv4Address(host[:4]))
    elif len(host) == HOST_V6_BYTES:
        address = str(IPv6Address(host[:16]))
    else:
        raise MessageFormatError(f"a host field has 8 or 20 bytes, not {len(host)}")
    return address, int.from_bytes(host[-4:], "big", signed=True)

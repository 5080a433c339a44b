"""Patterns of client addresses, as plain_acl.yml writes them. Pure.

    *  *.*.*.*  *:*:*:*:*:*:*:*     all addresses
    192.168.0.7  1050::5:600        one
    192.168.0.7,192.168.0.9         these
    192.168.0.{7,9}  1050::{5,6}    the same, with the common part said once
    192.168.*.*  192.168.*          any value of a part; a last `*` stands for all parts that are left
    192.168.3-7.*  1050::5:1-2ff:*  values from, to; hexadecimal in IPv6

Every part of a pattern counts (in RocketMQ those after the first range do not).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from broker.access.errors import AccessRulesError

_ALL: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")

Span = tuple[int, int]
"""The lowest and the highest value of a part."""


@dataclass(frozen=True, slots=True)
class _Family:
    """A kind of addresses, IPv4 or IPv6, and its way of writing them."""

    separator: str
    part_count: int
    base: int
    part_max: int
    digits_max: int


_V4: Final = _Family(".", 4, 10, 255, 3)
_V6: Final = _Family(":", 8, 16, 0xFFFF, 4)


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """A pattern, ready to be compared.

    Attributes:
        text: as it was written.
        spans: the addresses, each as the spans of its parts; 4 parts are IPv4, 8 are IPv6.
        is_any: it stands for all addresses.
    """

    text: str
    spans: tuple[tuple[Span, ...], ...] = ()
    is_any: bool = False

    def matches(self, host: str) -> bool:
        """Return whether a client with this address is meant; never for one without an IP address."""
        if self.is_any:
            return True
        parts = _parts_of(host) if self.spans else ()
        return bool(parts) and any(
            len(spans) == len(parts)
            and all(low <= part <= high for part, (low, high) in zip(parts, spans, strict=True))
            for spans in self.spans
        )


def parse_pattern(text: str) -> AddressPattern:
    """Read a pattern; an empty one stands for no address.

    Raises:
        AccessRulesError: it is no pattern.
    """
    plain = text.strip()
    if plain in _ALL:
        return AddressPattern(text, is_any=True)
    try:
        return AddressPattern(text, tuple(map(_spans, _single(plain))))
    except ValueError as error:
        raise AccessRulesError(f"{text!r} is no address or range of addresses: {error}") from error


def matches_any(patterns: Iterable[AddressPattern], host: str) -> bool:
    """Return whether one of the patterns stands for this address."""
    return any(pattern.matches(host) for pattern in patterns)


def host_of(address: str) -> str:
    """Return the host of host:port."""
    return address.rpartition(":")[0].strip("[]")


def _parts_of(host: str) -> tuple[int, ...]:
    """Return the parts of an IP address; an IPv4 address within IPv6 is one of IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ()
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            packed = address.packed
            return tuple(int.from_bytes(packed[at : at + 2]) for at in range(0, 16, 2))
        address = address.ipv4_mapped
    return tuple(address.packed)


def _single(text: str) -> list[str]:
    """Return the single addresses and ranges that a text enumerates; ValueError if its braces do not fit."""
    if not text.endswith("}"):
        return [item.strip() for item in text.split(",") if item.strip()]
    common, brace, last = text[:-1].partition("{")
    if not brace or "{" in last or not common.endswith((".", ":")):
        raise ValueError("braces stand for the last part, as in 192.168.0.{7,9}")
    return [common + item.strip() for item in last.split(",")]


def _spans(text: str) -> tuple[Span, ...]:
    """Read one address or range; ValueError says what is wrong."""
    family = _V6 if ":" in text else _V4
    if family is _V6 and "::" in text:
        head, _, tail = text.partition("::")
        before, after = _split(head, family), _split(tail, family)
        zeros = family.part_count - len(before) - len(after)
        if "::" in tail or zeros < 1:
            raise ValueError("it has too many parts")
        return (*_read(before, family), *((0, 0),) * zeros, *_read(after, family))
    parts = _split(text, family)
    left = family.part_count - len(parts)
    if parts[-1:] == ["*"] and left > 0:
        parts += ["*"] * left
    if len(parts) != family.part_count:
        raise ValueError(f"it has {len(parts)} parts, not {family.part_count}")
    return _read(parts, family)


def _split(text: str, family: _Family) -> list[str]:
    return [part.strip() for part in text.split(family.separator)] if text else []


def _read(parts: Iterable[str], family: _Family) -> tuple[Span, ...]:
    return tuple((0, family.part_max) if part == "*" else _span(part, family) for part in parts)


def _span(part: str, family: _Family) -> Span:
    low_text, dash, high_text = part.partition("-")
    low = _value(low_text, family)
    high = _value(high_text, family) if dash else low
    if low > high:
        raise ValueError(f"{part} ends before it begins")
    return low, high


def _value(text: str, family: _Family) -> int:
    """Read the value of a part; int() alone would also take signs, blanks and digits of other scripts."""
    if not text.isascii() or not text.isalnum() or len(text) > family.digits_max:
        raise ValueError(f"{text!r} is no part of an address")
    value = int(text, family.base)
    if value > family.part_max:
        raise ValueError(f"{text} is more than {family.part_max}")
    return value

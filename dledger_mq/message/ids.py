"""Message ids: the offset message id of the broker, and the unique key that producers make.

Offset message id: upper-case hex of store host address (4 or 16 bytes), port (int32) and physical
offset (int64): 32 characters for IPv4, 56 for IPv6. Clients take it apart, so it is exact.

Unique key (`UNIQ_KEY`): upper-case hex of client address (4 or 16), process id (low 16 bits), a number
of the process (int32), milliseconds since the start of the month (int32), counter (16 bits). To
everyone but its maker it is an opaque, case-sensitive text.
"""

from __future__ import annotations

from typing import Final

from dledger_mq.message.errors import MessageIdError
from dledger_mq.message.hosts import HOST_V4_BYTES, HOST_V6_BYTES, unpack_host
from dledger_mq.message.numbers import PhysicalOffset

_OFFSET_BYTES: Final = 8
_OFFSET_HEX_CHARS: Final = 2 * _OFFSET_BYTES
_ID_CHARS_V4: Final = 2 * HOST_V4_BYTES + _OFFSET_HEX_CHARS
_ID_CHARS_V6: Final = 2 * HOST_V6_BYTES + _OFFSET_HEX_CHARS

_DAY_MS: Final = 86_400_000
_CLOCK_STEP_BACK_MS: Final = 1_000_000
"""A clock set back by less than this across the start of a month counts as 0, as in the Java client."""


class OffsetIdMaker:
    """Makes offset message ids of one store host; the prefix is worked out once.

    Attributes:
        prefix: what all of them begin with; the physical offset follows, 16 upper-case hex digits.
    """

    __slots__ = ("prefix",)

    def __init__(self, store_host: bytes) -> None:
        self.prefix = store_host.hex().upper()

    def __call__(self, physical_offset: int) -> str:
        """Return the id of the message at `physical_offset` (not negative)."""
        return f"{self.prefix}{physical_offset:016X}"

    def join(self, physical_offsets: bytes) -> str:
        """Return the ids of one or more messages (offsets not negative), with commas between them.

        The offsets are given as they stand in the ids: eight bytes each, big-endian.
        """
        digits = physical_offsets.hex(",", _OFFSET_BYTES)
        return self.prefix + digits.upper().replace(",", f",{self.prefix}")


def offset_msg_id(store_host: bytes, physical_offset: int) -> str:
    """Return the offset message id of one message; `store_host` as packed by `pack_host`."""
    return OffsetIdMaker(store_host)(physical_offset)


def parse_offset_msg_id(text: str) -> tuple[str, int, PhysicalOffset]:
    """Return address, port and physical offset of an offset message id, upper or lower case.

    Raises:
        MessageIdError: not 32 or 56 hex digits, or a negative offset.
    """
    if len(text) not in (_ID_CHARS_V4, _ID_CHARS_V6) or not text.isascii() or not text.isalnum():
        raise MessageIdError(f"{text[:64]!r} is not an offset message id: 32 or 56 hex digits")
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise MessageIdError(f"{text!r} is not an offset message id: not hex") from error
    physical_offset = int.from_bytes(data[-8:], "big", signed=True)
    if physical_offset < 0:
        raise MessageIdError(f"{text!r} holds the negative offset {physical_offset}")
    address, port = unpack_host(data[:-8])
    return address, port, PhysicalOffset(physical_offset)


def month_start_ms(now_ms: int, utc_offset_ms: int = 0) -> int:
    """Return the instant at which the month of `now_ms` began, in a zone that far ahead of UTC.

    Source: the civil-from-days arithmetic of the proleptic Gregorian calendar, years from March.
    """
    day = (now_ms + utc_offset_ms) // _DAY_MS
    shifted = day + 719_468  # days since 0000-03-01
    day_of_era = shifted % 146_097
    year_of_era = (
        day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    day_of_month = day_of_year - (153 * month + 2) // 5
    return (day - day_of_month) * _DAY_MS - utc_offset_ms


class UniqKeyMaker:
    """Makes the unique keys of one process. Not shared between threads.

    Invariant: keys of one maker differ as long as it makes fewer than 65 536 in a millisecond and its
    clock does not step back.
    """

    __slots__ = (
        "_counter",
        "_head",
        "_head_ms",
        "_month_end_ms",
        "_month_start_ms",
        "_prefix",
        "_utc_offset_ms",
    )

    def __init__(
        self, address: bytes, process_id: int, process_number: int, *, utc_offset_ms: int = 0
    ) -> None:
        """Set the fixed part.

        Args:
            address: 4 or 16 bytes of the client's IP address.
            process_id: its low 16 bits are used.
            process_number: any int32 that distinguishes processes with the same id.
            utc_offset_ms: the zone in which months start.
        """
        fixed = (
            address
            + (process_id & 0xFFFF).to_bytes(2, "big")
            + (process_number & 0xFFFF_FFFF).to_bytes(4, "big")
        )
        self._prefix = fixed.hex().upper()
        self._utc_offset_ms = utc_offset_ms
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._counter = 0
        self._head_ms, self._head = -1, ""  # what the keys of a millisecond begin with

    def next_key(self, now_ms: int) -> str:
        """Return the next key: 32 characters for an IPv4 address, 56 for IPv6."""
        if now_ms != self._head_ms:
            self._head = f"{self._prefix}{self._since_month_start_ms(now_ms):08X}"
            self._head_ms = now_ms
        self._counter = (self._counter + 1) & 0xFFFF
        return f"{self._head}{self._counter:04X}"

    def next_keys(self, now_ms: int, count: int) -> list[str]:
        """Return the next keys, as so many calls of `next_key` do."""
        if not count:
            return []
        first = self.next_key(now_ms)
        head, counter = self._head, self._counter
        self._counter = (counter + count - 1) & 0xFFFF
        return [
            first,
            *[f"{head}{each & 0xFFFF:04X}" for each in range(counter + 1, counter + count)],
        ]

    def _since_month_start_ms(self, now_ms: int) -> int:
        since_ms = now_ms - self._month_start_ms
        if now_ms >= self._month_end_ms or since_ms < -_CLOCK_STEP_BACK_MS:
            self._month_start_ms = month_start_ms(now_ms, self._utc_offset_ms)
            # 40 days after the 1st lie in the next month, whatever its length.
            self._month_end_ms = month_start_ms(
                self._month_start_ms + 40 * _DAY_MS, self._utc_offset_ms
            )
            since_ms = now_ms - self._month_start_ms
        return max(since_ms, 0)

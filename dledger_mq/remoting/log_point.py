"""A committed place in a group's log, as brokers and our name server send it to each other.

It travels as JSON in one ext field of a registration (103) and in one of its answer. RocketMQ's own brokers and
name servers neither send nor read them. What cannot be read counts as absent: a notice is not worth a route.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from dledger_mq.remoting.fields import INT64_MAX

COMMITTED_FIELD: Final = "raftCommitted"
"""Ext field of a registration: how far its sender knows the log to be committed."""

FURTHEST_FIELD: Final = "raftFurthest"
"""Ext field of the answer: the furthest place that was reported to the name server before, if it is another one."""

RESTORATION_LENGTH_MAX: Final = 64
TEXT_LENGTH_MAX: Final = 1024

_Number = Annotated[int, msgspec.Meta(ge=1, le=INT64_MAX)]


class LogPoint(msgspec.Struct, frozen=True):
    """A committed entry.

    Attributes:
        index, term: of the entry.
        chain_crc: names the whole log up to it; members with the same log have the same one.
        restoration: what the operator called the restoring of the whole group from backups; empty: there
            was none. Places before and after a restoring are not compared.
    """

    index: _Number
    term: _Number
    chain_crc: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    restoration: Annotated[str, msgspec.Meta(max_length=RESTORATION_LENGTH_MAX)] = ""


_decode: Final = msgspec.json.Decoder(LogPoint).decode


def write_log_point(point: LogPoint | None) -> str:
    """Write a place in the log as the text of a field; empty without one."""
    return "" if point is None else msgspec.json.encode(point).decode()


def read_log_point(text: str | None) -> LogPoint | None:
    """Read a place in the log from the text of a field; return None if it is missing or no place."""
    if not text or len(text) > TEXT_LENGTH_MAX:
        return None
    try:
        return _decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None

"""Rows of an archive as the records that they were made from, for those who know records: `dledger-admin` shows them.

What an archive does not keep is not made up: bodies come unpacked, so their flag says that they are not packed; there
is no checksum of the body as it was stored. Properties that were no text, or came twice, are as the archive has them.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, Final

from dledger_mq.message import sys_flags
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs
from dledger_mq.message.record import StoredMessage

WITHOUT_BODY: Final = (
    *("queueId", "queueOffset", "physicalOffset", "size", "flag", "sysFlag", "reconsumeTimes"),
    *("bornTimestamp", "bornHost", "storeTimestamp", "storeHost", "preparedTransactionOffset"),
    *("properties", "index", "term"),
)
"""The columns that a record needs, but for its body."""

WITH_BODY: Final = (*WITHOUT_BODY, "body")

_UNPACKED: Final = ~(sys_flags.COMPRESSED | sys_flags.COMPRESSION_MASK)
_KINDS_UNPACKED: Final = (sys_flags.COMPRESSION_ZLIB_LEGACY, sys_flags.COMPRESSION_ZLIB)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PORT_BYTES: Final = 4
_MS: Final = datetime.timedelta(milliseconds=1)


def record_of(topic: str, row: Mapping[str, Any]) -> StoredMessage:
    """Return a row's record.

    Args:
        topic: of the row, which stands in its folder's name.
        row: WITHOUT_BODY or WITH_BODY, as Arrow gives them to Python.
    """
    sys_flag: int = row["sysFlag"]
    if sys_flag & sys_flags.COMPRESSION_MASK in _KINDS_UNPACKED:
        sys_flag &= _UNPACKED
    return StoredMessage(
        topic=topic,
        queue_id=QueueId(row["queueId"]),
        queue_offset=QueueOffset(row["queueOffset"]),
        physical_offset=PhysicalOffset(row["physicalOffset"]),
        size_bytes=row["size"],
        flag=row["flag"],
        sys_flag=sys_flag,
        born_timestamp_ms=_ms(row["bornTimestamp"]),
        born_host=_host(row["bornHost"]),
        store_timestamp_ms=StoreTimeMs(_ms(row["storeTimestamp"])),
        store_host=_host(row["storeHost"]),
        reconsume_times=row["reconsumeTimes"],
        prepared_transaction_offset=row["preparedTransactionOffset"],
        body_crc=0,
        body=row.get("body") or b"",
        properties=_properties(row["properties"]),
    )


def _ms(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // _MS


def _host(text: str) -> bytes:
    """Return a host field; its port may be any int32."""
    address, _, port = text.rpartition(":")
    packed = pack_host(address.removeprefix("[").removesuffix("]"), 0)
    return packed[:-_PORT_BYTES] + int(port).to_bytes(_PORT_BYTES, "big", signed=True)


def _properties(text: str | None) -> bytes:
    pairs: dict[str, str] = json.loads(text or "{}")
    return b"".join(
        b"%b\x01%b\x02" % (name.encode(), value.encode()) for name, value in pairs.items()
    )

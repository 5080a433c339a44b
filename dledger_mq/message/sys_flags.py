"""The bits of a message's system flag. Pure constants.

Layout of the int32 (docs/formats/message.md, "System flag"; RocketMQ common/sysflag/MessageSysFlag.java):
bit 0 compressed, bit 1 multi tags, bits 2-3 transaction state, bit 4 and 5 IPv6 hosts, bit 6 and 7 inner
batches (5.x), bits 8-10 compression type. The broker stores the compression bits as sent and never
touches the body: only clients compress and inflate.
"""

from __future__ import annotations

from typing import Final

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2

TRANSACTION_MASK: Final = 0xC
TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20

NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80

COMPRESSION_MASK: Final = 0x700
COMPRESSION_ZLIB_LEGACY: Final = 0x000
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

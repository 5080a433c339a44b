"""Receipts and transaction ids: texts that say all that is needed when they come back, to whichever proxy. Pure.

A receipt is the broker's handle of a popped message, eight texts with blanks between (rule R11), then the position of
the message in its log, as Apache's proxy adds it, then the topic in which it stands. A transaction id is the message's
unique key, the broker group, the offset of the half message in its queue and its position in the log.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.proxy.protocol.numbers import Code
from broker.proxy.refusals import CallRefusedError
from dledger_mq.client.popped_messages import PoppedMessage
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset, StoreTimeMs

TEXT_CHARS_MAX: Final = 2048
_BROKER_PART, _QUEUE_PART, _OFFSET_PART = 5, 6, 7
_RECEIPT_PARTS: Final = 10
_TRANSACTION_PARTS: Final = 4


def receipt_of(message: PoppedMessage) -> str:
    """Return the receipt of a popped message."""
    return f"{message.handle} {message.physical_offset} {message.queue.topic}"


def message_of(receipt: str, topic: str) -> PoppedMessage:
    """Return the message of a receipt, as far as that tells of it: place, position and handle.

    Raises:
        CallRefusedError: it is no receipt.
    """
    parts = receipt.split(" ") if len(receipt) <= TEXT_CHARS_MAX else []
    numbers = [part for part in parts[:4] + parts[6:9] if part.isascii() and part.isdigit()]
    if len(parts) != _RECEIPT_PARTS or len(numbers) != 7 or any(len(one) > 18 for one in numbers):
        raise CallRefusedError(
            Code.INVALID_RECEIPT_HANDLE, f"{receipt[:80]!r} is no receipt of a message"
        )
    return PoppedMessage(
        topic=topic,
        body=b"",
        queue=MessageQueue(parts[-1], parts[_BROKER_PART], int(parts[_QUEUE_PART])),
        queue_offset=QueueOffset(int(parts[_OFFSET_PART])),
        physical_offset=PhysicalOffset(int(parts[-2])),
        message_id="",
        unique_key="",
        tags=None,
        keys=(),
        properties={},
        flag=0,
        born_timestamp_ms=0,
        store_timestamp_ms=StoreTimeMs(0),
        reconsume_times=0,
        handle=" ".join(parts[:8]),
        invisible_until_ms=int(parts[1]) + int(parts[2]),
    )


class OpenTransaction(NamedTuple):
    """A transaction, as its id names it.

    Attributes:
        queue_offset, physical_offset: of the half message.
    """

    unique_key: str
    broker_name: str
    queue_offset: int
    physical_offset: int

    def encode(self) -> str:
        """Return the id."""
        return f"{self.unique_key} {self.broker_name} {self.queue_offset} {self.physical_offset}"

    @staticmethod
    def decode(text: str) -> OpenTransaction:
        """Read an id.

        Raises:
            CallRefusedError: it is none.
        """
        parts = text.split(" ") if len(text) <= TEXT_CHARS_MAX else []
        numbers = [part for part in parts[2:] if part.isascii() and part.isdigit()]
        is_whole = len(parts) == _TRANSACTION_PARTS and all(parts) and len(numbers) == 2
        if not is_whole or any(len(one) > 18 for one in numbers):
            raise CallRefusedError(
                Code.INVALID_TRANSACTION_ID, f"{text[:80]!r} is no transaction id"
            )
        return OpenTransaction(parts[0], parts[1], int(parts[2]), int(parts[3]))

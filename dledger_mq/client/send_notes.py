"""What is noted of a send while it is under way, so that a trace can tell of it once the broker has answered. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from dledger_mq.client.errors import ConnectionLostError
from dledger_mq.client.messages import Message, SendResult
from dledger_mq.message.trace_records import PubTrace, TracedKind

DEFAULT_REGION: Final = "DefaultRegion"


class _Stamps(msgspec.Struct, gc=False):
    """The ext fields of an answer to a send that only traces need."""

    region: str = msgspec.field(name="MSG_REGION", default="")
    trace_on: str = msgspec.field(name="TRACE_ON", default="")


class _StampedAnswer(msgspec.Struct, gc=False):
    fields: _Stamps | None = msgspec.field(name="extFields", default=None)


_decode: Final = msgspec.json.Decoder(_StampedAnswer, strict=False).decode


class SendNote:
    """The messages of one send, and what the answer says beside their place.

    Attributes:
        region: of the broker.
        is_on: it has answered, and wants traces (traceOn).
        address: the node that has answered, host:port.
    """

    __slots__ = ("_began_ms", "_kind", "_messages", "address", "is_on", "region")

    def __init__(
        self, messages: Sequence[Message], began_ms: int, *, is_half: bool = False
    ) -> None:
        self.region = DEFAULT_REGION
        self.is_on = False
        self.address = ""
        self._messages = messages
        self._began_ms = began_ms
        self._kind = (
            TracedKind.HALF
            if is_half
            else TracedKind.DELAY
            if messages[0].is_delayed
            else TracedKind.NORMAL
        )

    def answered(self, header: bytes, address: str) -> None:
        """Take what the answer of a node says.

        Raises:
            ConnectionLostError: it cannot be read.
        """
        try:
            stamps = _decode(header).fields or _Stamps()
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ConnectionLostError(f"the answer to a send cannot be read: {error}") from error
        self.region = stamps.region or DEFAULT_REGION
        self.is_on = stamps.trace_on != "false"
        self.address = address

    def records(self, result: SendResult, group: str) -> Iterator[PubTrace]:
        """Yield what is to be written: of each message one record; nothing where the broker wants none."""
        if not self.is_on:
            return
        cost_ms = max(0, time.time_ns() // 1_000_000 - self._began_ms)
        keys = result.unique_key.split(",")
        ids = result.message_id.split(",")
        for place, (message, unique_key) in enumerate(zip(self._messages, keys, strict=True)):
            yield PubTrace(
                at_ms=self._began_ms,
                region=self.region,
                group=group,
                topic=message.topic,
                message_id=unique_key,
                tags=message.tags or "",
                keys=message.keys if isinstance(message.keys, str) else " ".join(message.keys),
                store_host=self.address,
                body_bytes=len(message.body),
                cost_ms=cost_ms,
                kind=self._kind,
                offset_message_id=ids[place] if place < len(ids) else "",
                is_success=result.status == "SEND_OK",
            )

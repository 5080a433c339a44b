"""The trace of consumption: a handler around a consumer's own, which tells before and after each call (V4, V5)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence

from dledger_mq.client.consume_results import BatchHandler, Result, UnfinishedError, wish_of
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.trace_writer import TraceWriter
from dledger_mq.message.trace_records import ConsumeEnd, SubAfterTrace, SubBeforeTrace


class TracedHandler:
    """Calls the handler, and adds to the trace what comes of it.

    Attributes:
        writer: takes the records; None while the consumer is closed.
    """

    def __init__(self, handler: BatchHandler, group: str) -> None:
        self.writer: TraceWriter | None = None
        self._handler = handler
        self._group = group

    async def __call__(self, messages: tuple[ReceivedMessage, ...]) -> Result:
        """Do what the handler does."""
        writer = self.writer
        told = () if writer is None else _traceable(messages, writer.topic)
        if writer is None or not told:
            return await self._handler(messages)
        call = _Call(writer, self._group, len(messages))
        call.begins(told)
        try:
            result = await self._handler(messages)
        except UnfinishedError:
            raise
        except Exception:
            call.ended(told, ConsumeEnd.EXCEPTION)
            raise
        wish = wish_of(result, len(messages))
        left = () if wish is None else _traceable(messages[wish.consumed :], writer.topic)
        call.ended(told[: len(told) - len(left)], ConsumeEnd.SUCCESS)
        call.ended(left, ConsumeEnd.FAILED)
        return result


class _Call:
    """One call of the handler, as its records name it."""

    def __init__(self, writer: TraceWriter, group: str, count: int) -> None:
        self._writer = writer
        self._group = group
        self._count = count
        self._began_ms = _now_ms()
        self._request_id = uuid.uuid4().hex.upper()

    def begins(self, messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            self._writer.add(
                SubBeforeTrace(
                    at_ms=self._began_ms,
                    region=message.properties.get("MSG_REGION", ""),
                    group=self._group,
                    request_id=self._request_id,
                    message_id=message.unique_key,
                    retry_times=message.reconsume_times,
                    keys=" ".join(message.keys),
                )
            )

    def ended(self, messages: Iterable[ReceivedMessage], end: ConsumeEnd) -> None:
        now_ms = _now_ms()
        cost_ms = max(0, now_ms - self._began_ms) // self._count
        for message in messages:
            self._writer.add(
                SubAfterTrace(
                    request_id=self._request_id,
                    message_id=message.unique_key,
                    cost_ms=cost_ms,
                    is_success=end is ConsumeEnd.SUCCESS,
                    keys=" ".join(message.keys),
                    end=end,
                    at_ms=now_ms,
                    group=self._group,
                )
            )


def _traceable(
    messages: Sequence[ReceivedMessage], trace_topic: str
) -> tuple[ReceivedMessage, ...]:
    """Return those of which a trace may tell: brokers and producers can forbid it, and none tells of itself."""
    return tuple(
        message
        for message in messages
        if message.properties.get("TRACE_ON") != "false" and message.topic != trace_topic
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

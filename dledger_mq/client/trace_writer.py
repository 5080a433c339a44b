"""Trace records on their way to the trace topic: gathered, and sent in batches beside what they tell of.

Nobody waits for a trace, and no failure of it reaches who sends or consumes: records wait in a bounded list, and what
finds no room or no broker is counted as dropped (rule V5). They travel as ordinary messages of a producer of their own.
It must not know who tells of what.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import anyio

from dledger_mq.client.errors import ClientError
from dledger_mq.client.messages import Message, SendResult
from dledger_mq.message.trace_records import TraceRecord, encode_trace_record, trace_keys

TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
"""The producer group that traces are sent in; the beginning of the names of Java's."""

TRACE_TIMEOUT_S: Final = 5.0
WAITING_MAX: Final = 2048
"""Records that have not been sent; more are dropped."""

RECORDS_MAX: Final = 100
BODY_CHARS_MAX: Final = 100_000
KEYS_CHARS_MAX: Final = 8_000
"""Of one message; brokers have room for 32 767 bytes of properties."""

GATHER_S: Final = 0.05
"""More is waited for so long before a message leaves that is not full."""

PAUSE_S: Final = 5.0
"""After a message was not taken; what comes meanwhile waits, or is dropped."""

CLOSE_S: Final = 1.0
"""A client that is left sends what waits for so long."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """The counts of a client's trace records.

    Attributes:
        written: the brokers have them.
        dropped: there was no room for them, or they were refused, or their outcome is unknown.
        waiting: neither yet.
    """

    written: int = 0
    dropped: int = 0
    waiting: int = 0


class TraceCarrier(Protocol):
    """A producer, as far as traces need one."""

    async def send(self, message: Message) -> SendResult:
        """Send a message; raises ClientError."""
        ...


MakeCarrier = Callable[[], AbstractAsyncContextManager[TraceCarrier]]


class TraceWriter:
    """Takes records and has them sent. `run` is its task; `add` is for everybody in the loop.

    Attributes:
        topic: where the records go.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._waiting: deque[TraceRecord] = deque()
        self._written = self._dropped = 0
        self._under_way = 0
        self._arrived = anyio.Event()
        self._closing = anyio.Event()
        self._ended = anyio.Event()

    def statistics(self) -> TraceStatistics:
        """Return what became of the records so far."""
        waiting = len(self._waiting) + self._under_way
        return TraceStatistics(self._written, self._dropped, waiting)

    def add(self, record: TraceRecord) -> None:
        """Take a record; without waiting, and dropped where there is no room."""
        if len(self._waiting) >= WAITING_MAX or self._ended.is_set():
            self._dropped += 1
            return
        self._waiting.append(record)
        self._arrived.set()

    async def run(self, make_carrier: MakeCarrier) -> None:
        """Send records until `close`; what fails here ends the trace, and nothing else."""
        try:
            async with make_carrier() as carrier:
                while self._waiting or not self._closing.is_set():
                    await self._gather()
                    await self._send(carrier)
        except Exception:  # nobody's sends or messages may end for their trace
            log.exception("message trace has failed: no more of it is written")
        finally:
            self._dropped += len(self._waiting) + self._under_way
            self._waiting.clear()
            self._under_way = 0
            self._ended.set()
            if self._dropped:
                log.warning(
                    "%d of the trace records for %s were dropped", self._dropped, self.topic
                )

    async def close(self) -> None:
        """Send what waits, for CLOSE_S at most, and end."""
        self._closing.set()
        self._arrived.set()
        with anyio.move_on_after(CLOSE_S):
            await self._ended.wait()

    async def _gather(self) -> None:
        """Wait for a record, and a little for more of them."""
        if not self._waiting and not self._closing.is_set():
            self._arrived = anyio.Event()
            await self._arrived.wait()
        if len(self._waiting) < RECORDS_MAX:
            with anyio.move_on_after(GATHER_S):
                await self._closing.wait()

    async def _send(self, carrier: TraceCarrier) -> None:
        """Send one message of records, if any waits."""
        message = self._next_message()
        if message is None:
            return
        try:
            await carrier.send(message)
        except ClientError as error:
            self._dropped += self._under_way
            log.info("%d trace records were not taken: %s", self._under_way, error)
            self._under_way = 0
            with anyio.move_on_after(PAUSE_S):
                await self._closing.wait()
        else:
            self._written += self._under_way
            self._under_way = 0

    def _next_message(self) -> Message | None:
        """Take records out of what waits, as many as fit into a message; None: there is none."""
        texts: list[str] = []
        keys: dict[str, None] = {}
        chars = keys_chars = 0
        while self._waiting and len(texts) < RECORDS_MAX:
            record = self._waiting[0]
            text = encode_trace_record(record)
            more = [key for key in trace_keys(record) if key and key not in keys]
            chars += len(text)
            keys_chars += sum(len(key) + 1 for key in more)
            if texts and (chars > BODY_CHARS_MAX or keys_chars > KEYS_CHARS_MAX):
                break
            self._waiting.popleft()
            texts.append(text)
            keys.update(dict.fromkeys(more))
        if not texts:
            return None
        self._under_way = len(texts)
        return Message(self.topic, "".join(texts).encode(), keys=tuple(keys))

"""Making sends: the keys, properties and frames of messages, batches and rows of a producer.

It decides nothing about where a message goes or when. The messages have been checked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from dledger_mq.client.errors import ClientClosedError, InvalidMessageError
from dledger_mq.client.lane import PendingSend
from dledger_mq.client.messages import (
    Message,
    has_labels,
    message_properties,
    pack_body,
)
from dledger_mq.client.producer_settings import ProducerSettings
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.send_frames import SendTemplates
from dledger_mq.client.send_notes import SendNote
from dledger_mq.client.session import Session
from dledger_mq.message.batch import BatchItem, encode_batch, encode_labelled_batch
from dledger_mq.message.errors import BatchError
from dledger_mq.message.properties import PROPERTIES_BYTES_MAX, SINK_ROW, UNIQ_KEY, encode_property
from dledger_mq.message.sys_flags import TRANSACTION_PREPARED


class Row(msgspec.Struct, frozen=True):
    """A message and the key of the row that it is; 8 bytes, see `row_key`."""

    key: bytes
    message: Message


class MessageColumns(msgspec.Struct, frozen=True):
    """Several messages of one topic by columns, for a job that has made and checked them so.

    Each has no flag, no delay, and a UNIQ_KEY that the producer makes.

    Attributes:
        bodies: each of 1 byte to what the producer takes.
        labels: of each the properties behind its UNIQ_KEY, encoded: tag, keys, the application's.
        row_keys: of each the key of the row that it is; None for messages that are no rows.
    """

    bodies: Sequence[bytes]
    labels: Sequence[bytes]
    row_keys: Sequence[bytes] | None = None


class SendMaker:
    """Makes the sends of one producer.

    Attributes:
        session: that of the open producer; None while it is closed.
    """

    def __init__(self, group: str, settings: ProducerSettings) -> None:
        self.session: Session | None = None
        self._group = group
        self._settings = settings
        self._attempts_max = settings.attempts_max
        self._templates = SendTemplates(group, settings.default_queues)

    def open(self, session: Session) -> None:
        """Make sends for this session from now on, signed as it signs."""
        self.session = session
        self._templates = SendTemplates(
            self._group, self._settings.default_queues, session.links.credentials
        )

    def live_session(self) -> Session:
        """Return the session.

        Raises:
            ClientClosedError: the producer is not open.
        """
        if self.session is None:
            raise closed_error()
        return self.session

    def single(
        self,
        message: Message,
        queue: MessageQueue,
        *,
        deadline: float,
        is_oneway: bool = False,
        half_properties: bytes = b"",
    ) -> PendingSend:
        """Make the send of one message; `half_properties` make it a half message.

        Raises:
            InvalidMessageError: the message breaks a limit.
            ClientClosedError: the producer is not open.
        """
        session = self.session
        if session is None:
            raise closed_error()
        now_ms = time.time_ns() // 1_000_000
        settings = self._settings
        if settings.hooks is not None:
            message = settings.hooks.sending(message)
        body = message.body
        note: SendNote | None = None
        if settings.trace and not is_oneway and message.topic != settings.trace_topic:
            note = SendNote((message,), now_ms, is_half=bool(half_properties))
        if not (
            message.flag
            or message.unique_key
            or half_properties
            or is_oneway
            or len(body) >= settings.compress_from_bytes
            or has_labels(message)
        ):
            return self._plain(session, body, queue, now_ms=now_ms, deadline=deadline, note=note)
        unique_key = message.unique_key or session.unique_keys.next_key(now_ms)
        body, sys_flag = pack_body(body, settings.compress_from_bytes, settings.compress_level)
        properties = message_properties(message, unique_key)
        if half_properties:
            properties += half_properties
            sys_flag |= TRANSACTION_PREPARED
            _check_length(properties)
        opaque = session.opaques.take()
        frame = self._templates.frame(
            queue,
            body,
            properties,
            opaque=opaque,
            born_timestamp_ms=now_ms,
            sys_flag=sys_flag,
            flag=message.flag,
            is_oneway=is_oneway,
        )
        return PendingSend(
            queue,
            unique_key,
            frame,
            opaque,
            deadline,
            is_oneway=is_oneway,
            attempts_max=self._attempts_max,
            new_event=session.loop.new_event,
            note=note,
        )

    def _plain(
        self,
        session: Session,
        body: bytes,
        queue: MessageQueue,
        *,
        now_ms: int,
        deadline: float,
        note: SendNote | None,
    ) -> PendingSend:
        """Make the send of a message that has no property but the key that it gets here."""
        unique_key = session.unique_keys.next_key(now_ms)
        opaque = session.opaques.take()
        return PendingSend(
            queue,
            unique_key,
            self._templates.plain(queue, body, unique_key, opaque=opaque, born_timestamp_ms=now_ms),
            opaque,
            deadline,
            attempts_max=self._attempts_max,
            new_event=session.loop.new_event,
            note=note,
        )

    def batch(
        self, messages: Sequence[Message], queue: MessageQueue, *, deadline: float
    ) -> PendingSend:
        """Make one send of several messages.

        Raises:
            InvalidMessageError: all bodies together are too large.
            ClientClosedError: the producer is not open.
        """
        session = self.live_session()
        now_ms = time.time_ns() // 1_000_000
        keys = [one.unique_key or session.unique_keys.next_key(now_ms) for one in messages]
        items = [
            BatchItem(message.flag, message.body, message_properties(message, unique_key))
            for message, unique_key in zip(messages, keys, strict=True)
        ]
        pending = self._several(session, items, keys, queue, now_ms=now_ms, deadline=deadline)
        if self._settings.trace and queue.topic != self._settings.trace_topic:
            pending.note = SendNote(messages, now_ms)
        return pending

    def rows(
        self, rows: Sequence[Row], queue: MessageQueue, *, sink_batch: str, deadline: float
    ) -> PendingSend:
        """Make one send of rows of the batch `sink_batch`, its number and the sink's id.

        Raises:
            InvalidMessageError: a row or all bodies together are too large.
            ClientClosedError: the producer is not open.
        """
        session = self.live_session()
        now_ms = time.time_ns() // 1_000_000
        items = []
        keys = []
        for row in rows:
            message = row.message
            unique_key = message.unique_key or session.unique_keys.next_key(now_ms)
            mark = encode_property(SINK_ROW, f"{row.key.hex()} {sink_batch}".encode())
            properties = message_properties(message, unique_key) + mark
            _check_length(properties)
            items.append(BatchItem(message.flag, message.body, properties))
            keys.append(unique_key)
        return self._several(
            session, items, keys, queue, now_ms=now_ms, deadline=deadline, sink_batch=sink_batch
        )

    def columns(
        self,
        columns: MessageColumns,
        queue: MessageQueue,
        *,
        sink_batch: str | None,
        deadline: float,
    ) -> PendingSend:
        """Make one send as `batch` makes it, or `rows` of those that have row keys; of one message as `single`.

        Raises:
            InvalidMessageError: the properties of one, or all bodies together are too large.
            ClientClosedError: the producer is not open.
        """
        session = self.live_session()
        now_ms = time.time_ns() // 1_000_000
        labels = columns.labels
        if columns.row_keys is not None:
            mark = b" %b\x02" % (sink_batch or "").encode()
            labels = [
                b"%bSINK_ROW\x01%b%b" % (label, key.hex().encode(), mark)
                for label, key in zip(labels, columns.row_keys, strict=True)
            ]
        keys = session.unique_keys.next_keys(now_ms, len(columns.bodies))
        if len(keys) == 1:
            properties = encode_property(UNIQ_KEY, keys[0].encode()) + labels[0]
            _check_length(properties)
            item = BatchItem(0, columns.bodies[0], properties)
            return self._alone(
                session, item, keys, queue, now_ms=now_ms, deadline=deadline, sink_batch=sink_batch
            )
        try:
            body = encode_labelled_batch(columns.bodies, keys, labels)
        except BatchError as error:
            raise InvalidMessageError(str(error)) from error
        return self._batch_send(
            session, body, keys, queue, now_ms=now_ms, deadline=deadline, sink_batch=sink_batch
        )

    def _several(
        self,
        session: Session,
        items: Sequence[BatchItem],
        keys: Sequence[str],
        queue: MessageQueue,
        *,
        now_ms: int,
        deadline: float,
        sink_batch: str | None = None,
    ) -> PendingSend:
        """Make one send; a single row travels as a message, which may be compressed."""
        assert len(items) == len(keys) > 0, f"{len(items)} messages with {len(keys)} keys"
        if sink_batch is None or len(items) > 1:
            return self._batch_send(
                session,
                encode_batch(items),
                keys,
                queue,
                now_ms=now_ms,
                deadline=deadline,
                sink_batch=sink_batch,
            )
        return self._alone(
            session, items[0], keys, queue, now_ms=now_ms, deadline=deadline, sink_batch=sink_batch
        )

    def _alone(
        self,
        session: Session,
        item: BatchItem,
        keys: Sequence[str],
        queue: MessageQueue,
        *,
        now_ms: int,
        deadline: float,
        sink_batch: str | None,
    ) -> PendingSend:
        """Make the send of a single message, which may be compressed."""
        settings = self._settings
        body, sys_flag = pack_body(item.body, settings.compress_from_bytes, settings.compress_level)
        opaque = session.opaques.take()
        frame = self._templates.frame(
            queue,
            body,
            item.properties,
            opaque=opaque,
            born_timestamp_ms=now_ms,
            sys_flag=sys_flag,
            flag=item.flag,
            sink_batch=sink_batch,
        )
        return self._pending(session, frame, keys, queue, opaque=opaque, deadline=deadline)

    def _batch_send(
        self,
        session: Session,
        body: bytes,
        keys: Sequence[str],
        queue: MessageQueue,
        *,
        now_ms: int,
        deadline: float,
        sink_batch: str | None,
    ) -> PendingSend:
        """Make one send of an encoded batch."""
        if len(body) > self._settings.message_bytes_max:
            raise InvalidMessageError(
                f"the batch has {len(body)} bytes, at most {self._settings.message_bytes_max}"
            )
        opaque = session.opaques.take()
        frame = self._templates.frame(
            queue,
            body,
            b"",
            opaque=opaque,
            born_timestamp_ms=now_ms,
            is_batch=True,
            sink_batch=sink_batch,
        )
        return self._pending(session, frame, keys, queue, opaque=opaque, deadline=deadline)

    def _pending(
        self,
        session: Session,
        frame: bytes,
        keys: Sequence[str],
        queue: MessageQueue,
        *,
        opaque: int,
        deadline: float,
    ) -> PendingSend:
        """Make the send of a frame."""
        return PendingSend(
            queue,
            ",".join(keys),
            frame,
            opaque,
            deadline,
            attempts_max=self._attempts_max,
            new_event=session.loop.new_event,
        )


def _check_length(properties: bytes) -> None:
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise InvalidMessageError(
            f"properties have {len(properties)} bytes, at most {PROPERTIES_BYTES_MAX}"
        )


def closed_error() -> ClientClosedError:
    """Return the error of a producer that is not open."""
    return ClientClosedError("the producer is not open; use `async with Producer(...)`")

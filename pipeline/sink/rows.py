"""Messages made from Arrow batches in one pass, with a precise error for a row that cannot be sent."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from dledger_mq import InvalidMessageError, Message
from dledger_mq.client.messages import check_message
from dledger_mq.message.names import topic_problem
from dledger_mq.message.numbers import QueueOffset
from pipeline.errors import BadRowError
from pipeline.sink.columns import SinkColumns
from pipeline.sink.options import SinkOptions
from pipeline.sink.row_keys import RowKeyMaker

if TYPE_CHECKING:
    import pyarrow as pa

SYSTEM_PROPERTIES: Final = frozenset(
    {
        *("UNIQ_KEY", "SINK_ROW", "TAGS", "KEYS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC"),
        *("REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "ORIGIN_MESSAGE_ID"),
        *(
            "RECONSUME_TIME",
            "MAX_RECONSUME_TIMES",
            "MSG_REGION",
            "TRACE_ON",
            "CLUSTER",
            "INNER_NUM",
        ),
        *("INNER_BASE", "TRAN_PREPARED_QUEUE_OFFSET", "__transactionId__", "POP_CK"),
        *("CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_CHECK_TIMES", "TRAN_VERDICT"),
        *("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS"),
        *("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"),
    }
)
"""Belong to one stored message, not to its content: a row that was read from a topic loses them."""

_texts: Final = msgspec.json.Decoder(dict[str, str])
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)


class OutRow(NamedTuple):
    """A row as it is sent.

    Attributes:
        number: in its partition, from 0.
        key: of an exactly-once sink, else empty.
        broker_name, queue_id: as the row says, for queueSelector column.
    """

    number: int
    message: Message
    key: bytes
    broker_name: str | None
    queue_id: int | None


class _GivenRow(NamedTuple):
    """The values of one row, in the order of `_ORDER`; None for a column that the frame lacks."""

    body: bytes | str | None
    topic: str | None
    tags: str | None
    keys: str | list[str | None] | None
    properties: str | list[tuple[str, str | None]] | None
    flag: int | None
    broker_name: str | None
    queue_id: int | None
    queue_offset: QueueOffset | None
    delay_level: int | None
    delay_ms: int | None
    deliver_at: datetime.datetime | None
    row_id: object


class RowReader:
    """Reads the rows of one partition, in order.

    Attributes:
        columns: of its batches.
        count: of the rows that were read, and so the number of the next one.
        keys: makes those of an exactly-once sink.
    """

    def __init__(self, columns: SinkColumns, options: SinkOptions, partition: int) -> None:
        self.columns = columns
        self.count = 0
        self.keys = RowKeyMaker(columns.key_columns, partition)
        self._options = options
        self._partition = partition

    def read(self, batch: pa.RecordBatch) -> Iterator[OutRow]:
        """Yield the rows of an Arrow batch.

        Raises:
            BadRowError: a row cannot be sent.
        """
        given = {
            name: _values(batch.column(place))
            for place, name in enumerate(self.columns.names)
            if name in _ORDER
        }
        nothing: Sequence[None] = [None] * batch.num_rows
        ordered = [given.get(name, nothing) for name in _ORDER]
        for values in zip(*ordered, strict=True):
            number, self.count = self.count, self.count + 1
            try:
                yield self._row(number, _GivenRow._make(values))
            except (InvalidMessageError, ValueError, OverflowError) as error:
                raise self._bad(number, str(error), values) from error

    def _row(self, number: int, given: _GivenRow) -> OutRow:
        """Build a message from one row; raises ValueError with the reason why it cannot be sent."""
        (
            body,
            topic,
            tags,
            keys,
            properties,
            flag,
            broker_name,
            queue_id,
            queue_offset,
            delay_level,
            delay_ms,
            deliver_at,
            row_id,
        ) = given
        target = self._options.topic or topic
        if target is None:
            raise ValueError("topic is null")
        if body is None:
            raise ValueError("body is null")
        pairs = given_properties(properties) if properties else {}
        if tags is None:
            tags = pairs.get("TAGS")
        if keys is None:
            keys = pairs.get("KEYS")
        message = Message(
            target,
            body.encode() if isinstance(body, str) else body,
            tags,
            () if keys is None else keys if isinstance(keys, str) else [k for k in keys if k],
            {name: text for name, text in pairs.items() if name not in SYSTEM_PROPERTIES and text},
            flag or 0,
            delay_level or 0,
            delay_ms=delay_ms or 0,
            deliver_at_ms=None if deliver_at is None else _milliseconds(deliver_at),
        )
        problem = topic_problem(target)
        if problem is not None:
            raise ValueError(problem)
        check_message(message)
        key = b""
        if self._options.is_exactly_once:
            place = (topic, broker_name, queue_id, queue_offset)
            key = self.keys.one(number, row_id, place)
        return OutRow(number, message, key, broker_name, queue_id)

    def _bad(self, number: int, why: str, values: tuple[object, ...]) -> BadRowError:
        named = dict(zip(_ORDER, values, strict=True))
        hints = [f"{name} {named[name]!r}"[:120] for name in ("topic", "keys") if named[name]]
        about = f" ({', '.join(hints)})" if hints else ""
        return BadRowError(
            f"row {number} of partition {self._partition}{about} cannot be sent: {why}"
        )


_ORDER: Final = (
    *(
        "body",
        "topic",
        "tags",
        "keys",
        "properties",
        "flag",
        "brokerName",
        "queueId",
        "queueOffset",
    ),
    *("delayLevel", "delayMs", "deliverAt", "idempotencyKey"),
)
"""The columns in the order in which `_row` takes them."""


def _values(column: pa.Array) -> list[object]:
    values: list[object] = column.to_pylist()
    return values


def given_properties(given: str | Sequence[tuple[str, str | None]]) -> Mapping[str, str]:
    """Return the properties of a row; raises ValueError for a text that holds none."""
    if not isinstance(given, str):
        return {name: text for name, text in given if text is not None}
    try:
        return _texts.decode(given)
    except msgspec.MsgspecError as error:
        raise ValueError(f"properties is no JSON object of texts: {error}") from error


def _milliseconds(moment: datetime.datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - _EPOCH) // _MILLISECOND

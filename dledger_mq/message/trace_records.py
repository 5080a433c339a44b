"""Records of message trace: what a client tells of a message that it sent, consumed or ended (rules V3, V4).

The body of a message on the trace topic is records, each ended by 0x02, of fields parted by 0x01; the KEYS of that
message are the ids and keys of those that the records are about. The kinds and their fields are Java's, of 4.9.8 and
5.3.3, and what is written here Java's own decoder reads. A field without a value is the text `null`, as Java writes it.
Pure: it knows neither who writes records, nor when.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from dledger_mq.message.errors import MessageFormatError

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
NOTHING: Final = "null"

_SEPARATORS: Final = dict.fromkeys(map(ord, FIELD_END + RECORD_END))
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")


class TraceRecordError(MessageFormatError):
    """A text is no trace record of a kind that is known."""


class TracedKind(IntEnum):
    """The kinds of messages that are sent, by Java's numbers."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeEnd(IntEnum):
    """The ends of a call of a handler, by Java's numbers."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


class PubTrace(msgspec.Struct, frozen=True):
    """A message was sent, and the broker has answered.

    Attributes:
        at_ms: when the send began, by the client's clock; ms since 1970.
        message_id: its UNIQ_KEY.
        store_host: the broker's address, host:port.
        body_bytes: of its body.
        cost_ms: until the answer came.
        kind: a `TracedKind`, or a number that is not known here.
        offset_message_id: the broker's id of it; empty in records of old clients.
        is_success: it is stored as sure as the broker can; False: with less certainty.
        client_host: of the sender; only some clients write it.
    """

    at_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    body_bytes: int
    cost_ms: int
    kind: int
    offset_message_id: str
    is_success: bool
    client_host: str = ""


class SubBeforeTrace(msgspec.Struct, frozen=True):
    """A message is about to be handed to the handler of a consumer.

    Attributes:
        at_ms: ms since 1970, by the client's clock.
        request_id: the same in the `SubAfterTrace` of this delivery.
        message_id: its UNIQ_KEY.
        retry_times: how often it was sent back before.
    """

    at_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str


class SubAfterTrace(msgspec.Struct, frozen=True):
    """The handler of a consumer is done with a message.

    Attributes:
        cost_ms: for each message of the call.
        is_success: it is consumed.
        end: a `ConsumeEnd`, or a number that is not known here.
        at_ms: ms since 1970; 0 in records of clients that do not write it.
        group: empty in records of clients that do not write it.
    """

    request_id: str
    message_id: str
    cost_ms: int
    is_success: bool
    keys: str
    end: int = ConsumeEnd.SUCCESS
    at_ms: int = 0
    group: str = ""


class EndTransactionTrace(msgspec.Struct, frozen=True):
    """A producer has decided how a transaction ends.

    Attributes:
        state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW, Java's words.
        is_from_check: the broker had asked.
        Others as in `PubTrace`.
    """

    at_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    kind: int
    transaction_id: str
    state: str
    is_from_check: bool


class RecallTrace(msgspec.Struct, frozen=True):
    """A producer has taken back a message that waited for its due time; clients from 5.3.2 on write it."""

    at_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    is_success: bool


TraceRecord = PubTrace | SubBeforeTrace | SubAfterTrace | EndTransactionTrace | RecallTrace


class TraceBody(msgspec.Struct, frozen=True):
    """The body of a message of the trace topic: its records, and how many of them could not be read."""

    records: tuple[TraceRecord, ...]
    unreadable: int


def encode_trace_record(record: TraceRecord) -> str:
    """Return a record as text, its end included. Separators in a value are left out: there is no place for them."""
    return FIELD_END.join((_WORD[type(record)], *_values(record))) + RECORD_END


def trace_keys(record: TraceRecord) -> Iterator[str]:
    """Yield under what a record is to be found: the message's id, and each of its keys."""
    yield record.message_id
    if not isinstance(record, RecallTrace):
        yield from record.keys.split()


def decode_trace_record(text: str) -> TraceRecord:
    """Read one record, without its end.

    Raises:
        TraceRecordError: it is none of a known kind; says which field is wrong.
    """
    word, *fields = text.split(FIELD_END)
    read = _READERS.get(word)
    if read is None:
        raise TraceRecordError(f"{word[:40]!r} is no kind of trace record")
    return read(_Fields(word, fields))


def decode_trace(body: bytes) -> TraceBody:
    """Read the body of a message of the trace topic; a record that cannot be read does not hide the others."""
    records: list[TraceRecord] = []
    unreadable = 0
    for text in body.decode(errors="replace").split(RECORD_END):
        if not text:
            continue
        try:
            records.append(decode_trace_record(text))
        except TraceRecordError:
            unreadable += 1
    return TraceBody(tuple(records), unreadable)


def _values(record: TraceRecord) -> Iterator[str]:
    """Yield the fields of a record in their order; `client_host`, which 4.9.8 does not know, is not written."""
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name == "client_host":
            continue
        if isinstance(value, bool):
            yield "true" if value else "false"
        elif isinstance(value, int):
            yield str(int(value))
        else:
            yield value.translate(_SEPARATORS) or NOTHING


class _Fields:
    """The fields of one record, read by their places behind its word."""

    def __init__(self, word: str, fields: Sequence[str]) -> None:
        self._word = word
        self._fields = fields

    def __len__(self) -> int:
        return len(self._fields)

    def text(self, place: int) -> str:
        if place >= len(self._fields):
            raise TraceRecordError(f"{self._word} has {len(self._fields)} fields, none at {place}")
        value = self._fields[place]
        return "" if value == NOTHING else value

    def number(self, place: int) -> int:
        value = self.text(place)
        if not _NUMBER.fullmatch(value):
            raise TraceRecordError(f"field {place} of {self._word} is {value[:40]!r}, no number")
        return int(value)

    def truth(self, place: int) -> bool:
        return self.text(place).lower() == "true"


def _read_pub(fields: _Fields) -> PubTrace:
    """Read a Pub; clients before 4.1 have no offset message id, and some later ones the client's host at the end."""
    has_id = len(fields) > 12
    return PubTrace(
        at_ms=fields.number(0),
        region=fields.text(1),
        group=fields.text(2),
        topic=fields.text(3),
        message_id=fields.text(4),
        tags=fields.text(5),
        keys=fields.text(6),
        store_host=fields.text(7),
        body_bytes=fields.number(8),
        cost_ms=fields.number(9),
        kind=fields.number(10),
        offset_message_id=fields.text(11) if has_id else "",
        is_success=fields.truth(12 if has_id else 11),
        client_host=fields.text(13) if len(fields) > 13 else "",
    )


def _read_sub_before(fields: _Fields) -> SubBeforeTrace:
    return SubBeforeTrace(
        at_ms=fields.number(0),
        region=fields.text(1),
        group=fields.text(2),
        request_id=fields.text(3),
        message_id=fields.text(4),
        retry_times=fields.number(5),
        keys=fields.text(6) if len(fields) > 6 else "",
    )


def _read_sub_after(fields: _Fields) -> SubAfterTrace:
    return SubAfterTrace(
        request_id=fields.text(0),
        message_id=fields.text(1),
        cost_ms=fields.number(2),
        is_success=fields.truth(3),
        keys=fields.text(4) if len(fields) > 4 else "",
        end=fields.number(5) if len(fields) > 5 else ConsumeEnd.SUCCESS,
        at_ms=fields.number(6) if len(fields) > 6 else 0,
        group=fields.text(7) if len(fields) > 7 else "",
    )


def _read_end_transaction(fields: _Fields) -> EndTransactionTrace:
    """Read an EndTransaction."""
    return EndTransactionTrace(
        at_ms=fields.number(0),
        region=fields.text(1),
        group=fields.text(2),
        topic=fields.text(3),
        message_id=fields.text(4),
        tags=fields.text(5),
        keys=fields.text(6),
        store_host=fields.text(7),
        kind=fields.number(8),
        transaction_id=fields.text(9),
        state=fields.text(10),
        is_from_check=fields.truth(11),
    )


def _read_recall(fields: _Fields) -> RecallTrace:
    return RecallTrace(
        at_ms=fields.number(0),
        region=fields.text(1),
        group=fields.text(2),
        topic=fields.text(3),
        message_id=fields.text(4),
        is_success=fields.truth(5),
    )


_READERS: Final[dict[str, Callable[[_Fields], TraceRecord]]] = {
    "Pub": _read_pub,
    "SubBefore": _read_sub_before,
    "SubAfter": _read_sub_after,
    "EndTransaction": _read_end_transaction,
    "Recall": _read_recall,
}
_WORD: Final[dict[type[TraceRecord], str]] = {
    PubTrace: "Pub",
    SubBeforeTrace: "SubBefore",
    SubAfterTrace: "SubAfter",
    EndTransactionTrace: "EndTransaction",
    RecallTrace: "Recall",
}

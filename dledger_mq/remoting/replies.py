"""The hot answers, written from byte templates: sends and pulls.

A send answer takes a few hundred nanoseconds this way. Every value is text, as Go and C++ demand, and the
ext object is always there: a successful send without it kills Java and C++ clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct as Layout
from typing import Any, Final

import msgspec

from dledger_mq.message import compiled
from dledger_mq.remoting.header import PROTOCOL_VERSION

_PREFIX: Final = Layout(">II")
_json_text: Final = msgspec.json.Encoder().encode

DEFAULT_REGION: Final = "DefaultRegion"


class SendReplies:
    """Writes the answers to sends of one broker."""

    __slots__ = ("_plain", "_segments", "_start", "_with_recall_handle", "_with_transaction_id")

    def __init__(self, region: str = DEFAULT_REGION, *, trace_on: bool = True) -> None:
        region_text = _json_text(region).replace(b"%", b"%%")
        trace_text = b'"true"' if trace_on else b'"false"'
        start = (
            b'{"code":%%d,"extFields":{"MSG_REGION":%b,"TRACE_ON":%b,"msgId":"%%b","queueId":"%%d",'
            % (
                region_text,
                trace_text,
            )
        )
        end = (
            b'},"flag":1,"language":"JAVA","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
            % PROTOCOL_VERSION
        )
        self._segments = (
            b'{"code":0,"extFields":{"MSG_REGION":%b,"TRACE_ON":%b,"msgId":"'
            % (_json_text(region), trace_text),
            b'","queueId":"',
            b'","queueOffset":"',
            b'"},"flag":1,"language":"JAVA","opaque":',
            b',"serializeTypeCurrentRPC":"JSON","version":%d}' % PROTOCOL_VERSION,
        )
        self._start, self._plain = start, start + b'"queueOffset":"%d"' + end
        self._with_transaction_id = start + b'"queueOffset":"%d","transactionId":%b' + end
        self._with_recall_handle = start + b'"queueOffset":"%d","recallHandle":"%b"' + end

    def encode(
        self,
        opaque: int,
        *,
        msg_id: bytes,
        queue_id: int,
        queue_offset: int,
        transaction_id: str | None = None,
        recall_handle: str | None = None,
        code: int = 0,
    ) -> bytes:
        """Encode one answer as a frame.

        Args:
            opaque: of the request.
            msg_id: offset message id (hex digits), or several joined by commas for a batch.
            queue_id: where it was stored.
            queue_offset: of the message, or of the first one of a batch.
            transaction_id: the unique key; any text.
            recall_handle: of a message with a due time; Base64.
            code: SUCCESS, or one of the statuses that mean stored as well.
        """
        if recall_handle is not None:
            header = self._with_recall_handle % (
                code,
                msg_id,
                queue_id,
                queue_offset,
                recall_handle.encode(),
                opaque,
            )
        elif transaction_id is None:
            header = self._plain % (code, msg_id, queue_id, queue_offset, opaque)
        else:
            header = self._with_transaction_id % (
                code,
                msg_id,
                queue_id,
                queue_offset,
                _json_text(transaction_id),
                opaque,
            )
        length = len(header)
        return _PREFIX.pack(4 + length, length) + header

    def join_plain(self, id_prefix: bytes, records: list[Any], opaques: list[int]) -> bytes:
        """Return the answers to sends of one message each, as frames.

        Args:
            id_prefix: of the messages' ids, before the physical offset: hex digits.
            records: what was stored of each; tuples that begin with the queue, whose id is second, the queue offset
                and the physical one, and have seven parts.
            opaques: of their requests.
        """
        joined = compiled.join_answers(self._segments_with(id_prefix), records, opaques)
        if joined is None:
            joined = b"".join(self._each_plain(id_prefix, records, opaques))
        return joined

    def each_plain(
        self, id_prefix: bytes, records: list[Any], opaques: list[int]
    ) -> Iterable[bytes]:
        """Return the same answers, each by itself; see `join_plain`."""
        answers = compiled.each_answer(self._segments_with(id_prefix), records, opaques)
        return self._each_plain(id_prefix, records, opaques) if answers is None else answers

    def _segments_with(self, id_prefix: bytes) -> tuple[bytes, ...]:
        before, *between, after = self._segments
        return before + id_prefix, *between, after

    def _each_plain(
        self, id_prefix: bytes, records: list[Any], opaques: list[int]
    ) -> Iterator[bytes]:
        for opaque, ((_, queue_id), queue_offset, physical_offset, *_) in zip(
            opaques, records, strict=True
        ):
            yield self.encode(
                opaque,
                msg_id=b"%b%016X" % (id_prefix, physical_offset),
                queue_id=queue_id,
                queue_offset=queue_offset,
            )


_PULL_HEADER: Final = (
    b'{"code":%%d,"extFields":{"maxOffset":"%%d","minOffset":"%%d","nextBeginOffset":"%%d",'
    b'"suggestWhichBrokerId":"%%d"},"flag":1,"language":"JAVA","opaque":%%d,"remark":"%%b",'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}' % PROTOCOL_VERSION
)

PULL_REMARKS: Final = {
    0: b"FOUND",
    19: b"OFFSET_OVERFLOW_ONE",
    20: b"NO_MATCHED_MESSAGE",
    21: b"OFFSET_OVERFLOW_BADLY",
}
"""The usual status name by response code; callers may say it more exactly."""


def pull_reply_head(
    opaque: int,
    code: int,
    *,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
    body_bytes: int,
    suggested_broker_id: int = 0,
    remark: bytes | None = None,
) -> bytes:
    """Encode a pull answer up to its body, which follows with exactly `body_bytes` bytes.

    All four offsets are there for 0, 19, 20 and 21: Java fails without them, C++ starts again at 0.

    Args:
        opaque: of the request.
        code: SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY or PULL_OFFSET_MOVED.
        next_begin_offset: queue offset to ask for next.
        min_offset: first queue offset that is kept.
        max_offset: next queue offset to be written.
        body_bytes: length of the records that follow; the caller keeps it below the frame limit.
        suggested_broker_id: the broker to ask next; 0 is the leader.
        remark: name of the status in upper-case ASCII letters; the usual one when None.
    """
    header = _PULL_HEADER % (
        code,
        max_offset,
        min_offset,
        next_begin_offset,
        suggested_broker_id,
        opaque,
        PULL_REMARKS.get(code, b"") if remark is None else remark,
    )
    return _PREFIX.pack(4 + len(header) + body_bytes, len(header)) + header

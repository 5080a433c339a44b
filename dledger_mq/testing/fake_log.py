"""The messages of the broker group in memory: stored, found again, and read by pulls.

One perfect log that all nodes share. It knows nothing of connections, nor of who leads.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Final, NamedTuple

import anyio

from dledger_mq.filters import FilterTextError, compile_filter
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset
from dledger_mq.message.properties import find_property
from dledger_mq.message.record import (
    StoredMessage,
    decode_record,
    encode_record,
    record_properties,
)
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.header import encode_command, make_response
from dledger_mq.remoting.heartbeat import EXPRESSION_SQL92
from dledger_mq.remoting.replies import pull_reply_head
from dledger_mq.remoting.requests import PullRequest

STORE_HOST: Final = pack_host("127.0.0.1", 10911)
_STEP: Final = 1000  # from one physical offset to the next


class FakePlace(NamedTuple):
    """The place of a message."""

    queue_id: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset

    @property
    def message_id(self) -> str:
        """The offset message id."""
        return offset_msg_id(STORE_HOST, self.physical_offset)


class FakeLog:
    """Topics with their queues of records.

    Attributes:
        queues: by topic, the records of each queue; an empty one stands for what retention has dropped.
        deduplicates: whether a UNIQ_KEY that was stored is not stored again.
    """

    def __init__(self, queue_count: int) -> None:
        self.queues: dict[str, list[list[bytes]]] = {}
        self.deduplicates = True
        self._queue_count = queue_count
        self._known_keys: dict[tuple[str, str], FakePlace] = {}
        self._physical_offsets = itertools.count(0, _STEP)
        self._records: dict[PhysicalOffset, bytes] = {}
        self._grown: dict[str, anyio.Event] = defaultdict(anyio.Event)

    def create_topic(self, topic: str, queues: int | None = None) -> None:
        """Make a topic unless it exists."""
        count = self._queue_count if queues is None else queues
        self.queues.setdefault(topic, [[] for _ in range(count)])

    def queue(self, topic: str, queue_id: int) -> list[bytes]:
        """Return the records of a queue; of one that does not exist, none."""
        return self.queues[topic][queue_id] if topic in self.queues else []

    def store(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        sys_flag: int,
        flag: int,
        born_ms: int,
        reconsume_times: int = 0,
    ) -> FakePlace:
        """Store one message unless its key is known; return where it stands."""
        self.create_topic(topic)
        key = (topic, (find_property(properties, b"UNIQ_KEY") or b"").decode())
        if key[1] and not reconsume_times and self.deduplicates and key in self._known_keys:
            return self._known_keys[key]
        queue = self.queues[topic][queue_id]
        place = FakePlace(
            queue_id, QueueOffset(len(queue)), PhysicalOffset(next(self._physical_offsets))
        )
        record = encode_record(
            topic=topic.encode(),
            queue_id=queue_id,
            queue_offset=place.queue_offset,
            physical_offset=place.physical_offset,
            sys_flag=sys_flag,
            flag=flag,
            born_timestamp_ms=born_ms,
            born_host=STORE_HOST,
            store_timestamp_ms=born_ms,
            store_host=STORE_HOST,
            body=body,
            properties=properties,
            reconsume_times=reconsume_times,
        )
        queue.append(record)
        self._records[place.physical_offset] = record
        self._known_keys[key] = place
        self.wake(topic)
        return place

    def at(self, physical_offset: int) -> StoredMessage:
        """Return the message at a place in the log."""
        return decode_record(self._records[PhysicalOffset(physical_offset)])

    def messages(self, topic: str, queue_id: int | None = None) -> list[StoredMessage]:
        """Return what is stored, queue after queue."""
        queues = self.queues.get(topic, [])
        chosen = queues if queue_id is None else [queues[queue_id]]
        return [decode_record(record) for queue in chosen for record in queue]

    def drop_before(self, topic: str, queue_id: int, offset: int) -> None:
        """Forget the first messages of a queue, as retention does."""
        queue = self.queues[topic][queue_id]
        queue[:offset] = [b""] * offset

    def wake(self, topic: str) -> None:
        """Let those look again who wait for something in a topic."""
        self._grown.pop(topic, anyio.Event()).set()

    async def wait_grown(self, topic: str) -> None:
        """Wait until a message is stored under a topic, or somebody is woken."""
        await self._grown[topic].wait()

    def answer_pull(self, request: PullRequest) -> bytes | None:
        """Return the answer to a pull, None when there is nothing to read yet."""
        fields = request.fields
        if fields.topic not in self.queues:
            return encode_command(
                make_response(request.opaque, ResponseCode.TOPIC_NOT_EXIST, "no such topic")
            )
        queue = self.queue(fields.topic, fields.queue_id)
        first, offset = first_kept(queue), fields.queue_offset
        if offset > len(queue) or offset < first:
            return self.answer_nothing(
                request, ResponseCode.PULL_OFFSET_MOVED, first if offset < first else len(queue)
            )
        records = queue[offset : offset + fields.max_msg_nums]
        if not records:
            return None
        try:
            body = b"".join(
                record
                for record in records
                if self.matches(record, fields.subscription, fields.expression_type)
            )
        except FilterTextError as error:
            code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
            return encode_command(make_response(request.opaque, code, str(error)))
        code = ResponseCode.SUCCESS if body else ResponseCode.PULL_RETRY_IMMEDIATELY
        head = pull_reply_head(
            request.opaque,
            code,
            next_begin_offset=QueueOffset(offset + len(records)),
            min_offset=first,
            max_offset=QueueOffset(len(queue)),
            body_bytes=len(body),
        )
        return head + body

    def answer_nothing(
        self, request: PullRequest, code: int, next_offset: int | None = None
    ) -> bytes:
        """Return the answer to a pull that finds no message."""
        fields = request.fields
        queue = self.queue(fields.topic, fields.queue_id)
        wanted = fields.queue_offset if next_offset is None else next_offset
        return pull_reply_head(
            request.opaque,
            code,
            next_begin_offset=QueueOffset(wanted),
            min_offset=first_kept(queue),
            max_offset=QueueOffset(len(queue)),
            body_bytes=0,
        )

    def matches(self, record: bytes, expression: str | None, expression_type: str | None) -> bool:
        """Return whether a record is one that a pull or a pop wants, by its tag or its properties.

        Raises:
            FilterTextError: the filter is none.
        """
        if not expression or expression == "*":
            return True
        if expression_type == EXPRESSION_SQL92:
            return compile_filter(expression).matches(record_properties(record))
        tags = {tag.strip().encode() for tag in expression.split("||")}
        return decode_record(record).find(b"TAGS") in tags


def first_kept(queue: list[bytes]) -> QueueOffset:
    """Return the first offset that retention has left."""
    return QueueOffset(next((offset for offset, record in enumerate(queue) if record), len(queue)))

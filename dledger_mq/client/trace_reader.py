"""Reading the trace of a message: what clients have told of it, joined to sends, ends of transactions and deliveries.

Records are found as any messages with a key are. A trace says what clients have written, and no more: records get lost,
and clocks differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from dledger_mq.client.inspector import MATCHES_MAX, Inspector
from dledger_mq.client.messages import unpack_body
from dledger_mq.message.errors import MessageFormatError
from dledger_mq.message.hosts import unpack_host
from dledger_mq.message.names import TRACE_TOPIC
from dledger_mq.message.record import StoredMessage
from dledger_mq.message.trace_records import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
    decode_trace,
)


@dataclass(frozen=True, slots=True)
class TracedSend:
    """A send of the message; `client` is the sender's address."""

    told: PubTrace
    client: str


@dataclass(frozen=True, slots=True)
class TracedEnd:
    """The end of the message's transaction, as its producer, or one that was asked, decided it."""

    told: EndTransactionTrace
    client: str


@dataclass(frozen=True, slots=True)
class TracedRecall:
    """A recall of the message."""

    told: RecallTrace
    client: str


@dataclass(frozen=True, slots=True)
class TracedDelivery:
    """A call of a consumer's handler with the message; one of the records may be missing.

    Attributes:
        before, after: what was told before and after the call.
        client: the consumer's address.
    """

    before: SubBeforeTrace | None
    after: SubAfterTrace | None
    client: str

    @property
    def group(self) -> str:
        """The consumer group; empty: nobody has said."""
        return (
            self.before.group if self.before is not None else self.after.group if self.after else ""
        )

    @property
    def began_ms(self) -> int:
        """The time at which the call began, or ended where only that is known; ms since 1970, 0: not known."""
        if self.before is not None:
            return self.before.at_ms
        return self.after.at_ms if self.after is not None else 0


@dataclass(frozen=True, slots=True)
class ClientTrace:
    """All that the trace topic has of one message, each list in the order of the clients' clocks.

    Attributes:
        message_id: its UNIQ_KEY.
        unreadable: records beside these that are of no known kind, or broken; maybe of other messages.
        is_cut: there may be older records that were not looked at.
    """

    message_id: str
    sends: tuple[TracedSend, ...] = ()
    ends: tuple[TracedEnd, ...] = ()
    recalls: tuple[TracedRecall, ...] = ()
    deliveries: tuple[TracedDelivery, ...] = ()
    unreadable: int = 0
    is_cut: bool = False

    @property
    def is_empty(self) -> bool:
        """True if nothing is known of the message."""
        return not (self.sends or self.ends or self.recalls or self.deliveries)


async def read_trace(
    inspector: Inspector, message_id: str, *, topic: str = TRACE_TOPIC
) -> ClientTrace:
    """Read the trace of a message from all broker groups that have the trace topic.

    Args:
        inspector: asks them.
        message_id: the UNIQ_KEY of the message.
        topic: where clients write their records.

    Raises:
        NoRouteError: no broker has the topic: message trace is off.
        ClientError: a group could not be asked.
    """
    queues = await inspector.reader.live_session().routes.read_queues(topic)
    messages: list[StoredMessage] = []
    is_cut = False
    for name in sorted({queue.broker_name for queue in queues}):
        found = (await inspector.find(name, topic, message_id)).messages
        is_cut = is_cut or len(found) >= MATCHES_MAX
        messages += found
    return replace(trace_of(message_id, messages), is_cut=is_cut)


def trace_of(message_id: str, messages: Iterable[StoredMessage]) -> ClientTrace:
    """Join what some messages of the trace topic tell of one message."""
    join = _Join(message_id)
    for message in messages:
        client = _client(message)
        body = decode_trace(unpack_body(message.body, message.sys_flag))
        join.unreadable += body.unreadable
        for record in body.records:
            if record.message_id == message_id:
                join.take(record, client)
    return join.trace()


@dataclass(slots=True)
class _Join:
    """Gathers the records of one message; a record that came twice, since a send was repeated, counts once."""

    message_id: str
    unreadable: int = 0
    sends: dict[TracedSend, None] = field(default_factory=dict)
    ends: dict[TracedEnd, None] = field(default_factory=dict)
    recalls: dict[TracedRecall, None] = field(default_factory=dict)
    before: dict[str, tuple[SubBeforeTrace, str]] = field(default_factory=dict)
    after: dict[str, tuple[SubAfterTrace, str]] = field(default_factory=dict)

    def take(self, record: TraceRecord, client: str) -> None:
        match record:
            case PubTrace():
                self.sends[TracedSend(record, client)] = None
            case EndTransactionTrace():
                self.ends[TracedEnd(record, client)] = None
            case RecallTrace():
                self.recalls[TracedRecall(record, client)] = None
            case SubBeforeTrace():
                self.before[record.request_id] = record, client
            case SubAfterTrace():
                self.after[record.request_id] = record, client

    def trace(self) -> ClientTrace:
        return ClientTrace(
            self.message_id,
            tuple(sorted(self.sends, key=lambda one: one.told.at_ms)),
            tuple(sorted(self.ends, key=lambda one: one.told.at_ms)),
            tuple(sorted(self.recalls, key=lambda one: one.told.at_ms)),
            tuple(sorted(self._deliveries(), key=lambda one: one.began_ms)),
            self.unreadable,
        )

    def _deliveries(self) -> Iterator[TracedDelivery]:
        for request_id in dict.fromkeys([*self.before, *self.after]):
            before, client = self.before.get(request_id, (None, ""))
            after, client_after = self.after.get(request_id, (None, ""))
            yield TracedDelivery(before, after, client or client_after)


def _client(message: StoredMessage) -> str:
    """Return from which address a message came."""
    try:
        return unpack_host(message.born_host)[0]
    except MessageFormatError:
        return ""

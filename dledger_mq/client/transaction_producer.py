"""Sending messages that become visible only if something else happened too.

    async def book(message: Message, transaction_id: str) -> TransactionState:
        ...  # the local transaction, noted under its id
        return TransactionState.COMMIT

    async def look_up(message: ReceivedMessage) -> TransactionState:
        ...  # was the transaction message.unique_key committed?

    async with TransactionProducer("127.0.0.1:9876", "shop", checker=look_up) as producer:
        await producer.send_in_transaction(Message("Orders", b"one"), book)

The message is stored first, where no consumer sees it; then the local transaction runs; then its end is sent
to the broker. If that message does not come, because this process died or did not know, the broker asks any
producer of the group, whose checker answers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, Unpack

import msgspec

from dledger_mq.client.arguments import check_callable, check_int, wrong_type
from dledger_mq.client.errors import (
    ClientClosedError,
    ClientUsageError,
    ConnectionLostError,
    InvalidMessageError,
    NoRouteError,
    RequestFailedError,
    RequestTimeoutError,
)
from dledger_mq.client.lane import PendingSend
from dledger_mq.client.link import Link
from dledger_mq.client.messages import (
    Message,
    ReceivedMessage,
    SendResult,
    check_message,
    received,
)
from dledger_mq.client.producer import Producer
from dledger_mq.client.producer_settings import ProducerOptions
from dledger_mq.client.queues import MessageQueue, QueueSelector
from dledger_mq.client.session import Session
from dledger_mq.message.errors import RecordError
from dledger_mq.message.ids import parse_offset_msg_id
from dledger_mq.message.record import decode_record
from dledger_mq.message.trace_records import EndTransactionTrace, TracedKind
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

CHECKS_MAX: Final = 100
"""Checks that run at the same time; the broker asks again about those that found no room."""

END_TIMEOUT_S: Final = 10.0
_DECISION: Final = "commitOrRollback"

log = logging.getLogger(__name__)


class TransactionState(Enum):
    """The end of a transaction, as a local transaction or a checker says; the numbers are the protocol's."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


LocalTransaction = Callable[[Message, str], Awaitable[TransactionState | None]]
"""Gets the message and the transaction id; None means UNKNOWN."""

Checker = Callable[[ReceivedMessage], Awaitable[TransactionState | None]]
"""Gets the stored message; its `unique_key` is the transaction id. None means UNKNOWN."""

_STATE_WORDS: Final = {
    TransactionState.UNKNOWN: "UNKNOW",  # Java's spelling
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
}
_RECORDED: Final = {
    int(ResponseCode.TRANSACTION_SHOULD_COMMIT): TransactionState.COMMIT,
    int(ResponseCode.TRANSACTION_SHOULD_ROLLBACK): TransactionState.ROLLBACK,
}


class TransactionResult(msgspec.Struct, frozen=True):
    """The result of a transaction.

    Attributes:
        sent: where the half message stands; `sent.transaction_id` names the transaction.
        state: how it ended: what the broker recorded, if it is confirmed. A check may have been
            answered otherwise before, and then that counts.
        is_confirmed: whether the broker said so. If not, it will ask the checker.
    """

    sent: SendResult
    state: TransactionState
    is_confirmed: bool

    @property
    def transaction_id(self) -> str:
        """The name of the transaction, here and in checks."""
        return self.sent.transaction_id or self.sent.unique_key


class TransactionProducer(Producer):
    """A producer that also sends in transactions, and answers for all producers of its group.

    Args:
        namesrv: name servers, "host:port", several joined with ";".
        group: the producer group; every member must be able to answer for the others.
        checker: says how a transaction ended, long after and maybe in another process.
        options: as `Producer` takes them; `timeout_s` is for a send, and for the message about its end.
    """

    def __init__(
        self, namesrv: str, group: str, *, checker: Checker, **options: Unpack[ProducerOptions]
    ) -> None:
        check_callable("checker", checker)
        super().__init__(namesrv, group, **options)
        self._checker = checker
        self._local: set[str] = set()
        self._checking: set[str] = set()

    async def __aenter__(self) -> TransactionProducer:
        await super().__aenter__()
        return self

    def _opened(self, session: Session) -> None:
        session.handle(RequestCode.CHECK_TRANSACTION_STATE, self._on_check)

    async def send_in_transaction(
        self,
        message: Message,
        local: LocalTransaction,
        *,
        queue: MessageQueue | None = None,
        key: str | bytes | None = None,
        selector: QueueSelector | None = None,
        timeout_s: float | None = None,
        check_after_s: int | None = None,
    ) -> TransactionResult:
        """Store a message, run the local transaction, and make the message visible if it committed.

        What `local` raises goes to the caller; the transaction is then open, and the checker decides.
        The same holds when this is cancelled. `local` does not run unless the message is stored. A
        delay of the message begins with its commit.

        Args:
            message: with a topic, which need not exist yet.
            local: the local transaction.
            queue: where the message goes; `key` and `selector` as for `send`.
            key: messages of one key go to one queue.
            selector: chooses from all queues.
            timeout_s: for the send, and again for the message about its end.
            check_after_s: how long the broker waits before it asks for the first time, instead of its
                own 6 s; after that only answers to checks count.

        Raises:
            InvalidMessageError, NoRouteError, NameServersUnreachableError: nothing was sent.
            SendRefusedError: surely not stored; `local` did not run.
            SendOutcomeUnknownError: may be stored; `local` did not run. The checker is asked, and should
                say ROLLBACK about a transaction that it does not know.
            RequestFailedError: the broker refused the message about the end.
        """
        check_callable("local", local)
        more = _half_properties(self.group, check_after_s)
        self._live()
        check_message(message, self._body_bytes_max)
        if (
            message.message_group is not None
        ):  # which would be in order by its half, not by its commit
            raise InvalidMessageError("a message of a transaction has no message group")
        deadline = self._deadline(timeout_s)
        target = await self._choose(
            message, queue=queue, key=key, selector=selector, deadline=deadline
        )
        await self.wait_for_room()
        pending = self._maker.single(message, target, deadline=deadline, half_properties=more)
        self._local.add(pending.unique_key)
        try:
            sent, state = await self._send_and_run(message, pending, local)
        finally:
            self._local.discard(pending.unique_key)
        ext = self._ext_of(message.topic, sent)
        transaction_id = ext["transactionId"]
        if state is None or state is TransactionState.UNKNOWN:
            self._trace_end(pending, TransactionState.UNKNOWN)
            return TransactionResult(sent, TransactionState.UNKNOWN, is_confirmed=False)
        left = self.timeout_s if timeout_s is None else timeout_s
        try:
            recorded = await self._end(sent.queue.broker_name, ext, state, timeout_s=left)
        except (ConnectionLostError, RequestTimeoutError, NoRouteError) as error:
            log.info("the end of transaction %s is not confirmed: %s", transaction_id, error)
            self._trace_end(pending, state)
            return TransactionResult(sent, state, is_confirmed=False)
        is_confirmed = recorded is not TransactionState.UNKNOWN
        self._trace_end(pending, recorded if is_confirmed else state)
        return TransactionResult(sent, recorded, is_confirmed)

    def _trace_end(self, pending: PendingSend, state: TransactionState) -> None:
        """Add to the trace, where one is written, how a transaction of ours ended."""
        note = pending.note
        if self._tracer is None or note is None or pending.result is None or not note.is_on:
            return
        for sent in note.records(pending.result, self.group):
            self._tracer.add(
                EndTransactionTrace(
                    at_ms=time.time_ns() // 1_000_000,
                    region=sent.region,
                    group=sent.group,
                    topic=sent.topic,
                    message_id=sent.message_id,
                    tags=sent.tags,
                    keys=sent.keys,
                    store_host=sent.store_host,
                    kind=TracedKind.COMMIT,
                    transaction_id=pending.result.transaction_id or sent.message_id,
                    state=_STATE_WORDS[state],
                    is_from_check=False,
                )
            )

    def _trace_checked(
        self, link: Link, message: ReceivedMessage, transaction_id: str, state: TransactionState
    ) -> None:
        """Add to the trace, where one is written, what the checker has said."""
        if self._tracer is None or message.properties.get("TRACE_ON") == "false":
            return
        self._tracer.add(
            EndTransactionTrace(
                at_ms=time.time_ns() // 1_000_000,
                region=message.properties.get("MSG_REGION", ""),
                group=self.group,
                topic=message.topic,
                message_id=message.unique_key,
                tags=message.tags or "",
                keys=" ".join(message.keys),
                store_host=link.address,
                kind=TracedKind.COMMIT,
                transaction_id=transaction_id,
                state=_STATE_WORDS[state],
                is_from_check=True,
            )
        )

    async def _send_and_run(
        self, message: Message, pending: PendingSend, local: LocalTransaction
    ) -> tuple[SendResult, TransactionState | None]:
        """Store the half message, and run the local transaction if it is surely stored (O3)."""
        sent = await self._carry_out(pending)
        if sent.status != "SEND_OK":
            return sent, TransactionState.ROLLBACK
        return sent, await local(message, sent.transaction_id or sent.unique_key)

    def _ext_of(self, topic: str, sent: SendResult) -> dict[str, str]:
        """Return the fields of END_TRANSACTION for a half message, without the decision (O4)."""
        return {
            "topic": topic,
            "producerGroup": self.group,
            "tranStateTableOffset": str(sent.queue_offset),
            "commitLogOffset": str(parse_offset_msg_id(sent.message_id)[2]),
            "msgId": sent.unique_key,
            "transactionId": sent.transaction_id or sent.unique_key,
        }

    async def _end(
        self, broker_name: str, ext: dict[str, str], state: TransactionState, *, timeout_s: float
    ) -> TransactionState:
        """Send the broker the end of a transaction; return what it recorded, UNKNOWN for nothing yet."""
        answer = await self._live().call_group(
            broker_name,
            RequestCode.END_TRANSACTION,
            {**ext, _DECISION: str(state.value)},
            timeout_s=timeout_s,
        )
        if answer.code == ResponseCode.SUCCESS:
            return state
        if answer.code == ResponseCode.ILLEGAL_OPERATION:  # it waits for the answer to a check
            return TransactionState.UNKNOWN
        recorded = _RECORDED.get(answer.code)
        if recorded is None:
            raise RequestFailedError(answer.code, answer.remark or "")
        log.warning(
            "transaction %s: %s was asked for, the broker says: %s",
            ext["transactionId"],
            state.name,
            answer.remark,
        )
        return recorded

    def _on_check(self, link: Link, command: RemotingCommand) -> None:
        """Answer a broker that asks about a transaction of our group; nothing while this is being closed."""
        session = self._maker.session
        if session is None:
            return
        try:
            record = decode_record(command.body)
        except RecordError as error:
            log.warning("%s asks about a message that cannot be read: %s", link.address, error)
            return
        broker_name = command.ext.get("bname", "")
        message = received(record, broker_name)
        if message.properties.get("PGROUP") != self.group:
            return
        transaction_id = message.properties.get("UNIQ_KEY", "")
        if transaction_id in self._local:
            return  # it is under way here, and its end still to come
        if transaction_id in self._checking or len(self._checking) >= CHECKS_MAX:
            return
        ext = {
            "topic": message.topic,
            "producerGroup": self.group,
            "tranStateTableOffset": command.ext.get("tranStateTableOffset", ""),
            "commitLogOffset": command.ext.get("commitLogOffset", ""),
            "msgId": transaction_id,
            "transactionId": command.ext.get("transactionId") or transaction_id,
            "fromTransactionCheck": "true",
        }
        self._checking.add(transaction_id)
        session.nursery.start_soon(self._check, link, broker_name, message, ext)

    async def _check(
        self, link: Link, broker_name: str, message: ReceivedMessage, ext: dict[str, str]
    ) -> None:
        """Ask the application how a transaction ended and report it.

        A lost answer is harmless, the broker checks again.
        """
        try:
            state = await self._ask_checker(message) or TransactionState.UNKNOWN
            self._trace_checked(link, message, ext["transactionId"], state)
            if state is TransactionState.UNKNOWN:
                return
            if broker_name:
                await self._end(broker_name, ext, state, timeout_s=END_TIMEOUT_S)
            else:  # brokers before 5.0 do not name themselves
                link.post(RequestCode.END_TRANSACTION, {**ext, _DECISION: str(state.value)})
        except (
            ClientClosedError,
            ConnectionLostError,
            RequestTimeoutError,
            RequestFailedError,
            NoRouteError,
        ) as error:
            log.info("the answer about %s did not arrive: %s", ext["transactionId"], error)
        finally:
            self._checking.discard(ext["msgId"])

    async def _ask_checker(self, message: ReceivedMessage) -> TransactionState | None:
        try:
            answer: object = await self._checker(message)
        except Exception:  # the application's own code; the broker asks again
            log.exception("the checker failed on transaction %s", message.unique_key)
            return None
        if answer is None or isinstance(answer, TransactionState):
            return answer
        wrong = wrong_type("its answer", answer, "a TransactionState or None")
        log.error("the checker failed on transaction %s: %s", message.unique_key, wrong)
        return None


def _half_properties(group: str, check_after_s: int | None) -> bytes:
    """Return the properties that make a message a half message (O1)."""
    more = b""
    if check_after_s is not None:
        if check_int("check_after_s", check_after_s) < 0:
            raise ClientUsageError(f"check_after_s is {check_after_s}, it must not be negative")
        more = b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01%d\x02" % check_after_s
    return b"TRAN_MSG\x01true\x02PGROUP\x01%b\x02%b" % (group.encode(), more)

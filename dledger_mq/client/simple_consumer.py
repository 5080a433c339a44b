"""Receiving messages for a time, and acknowledging each: RocketMQ 5's simple consumer, over pop.

    async with SimpleConsumer("127.0.0.1:9876", "billing", subscriptions={"Orders": "*"}) as consumer:
        for message in await consumer.receive(max_messages=16, invisible_s=30, wait_s=10):
            print(message.body)
            await consumer.ack(message)

The brokers hand out messages and remember who has them (docs/pop.md). So any number of consumers of a group may
receive from one queue, none keeps an offset, and one that dies leaves nothing behind but messages that come again when
their time is over. What a consumer cannot finish in its time it prolongs (`change_invisible_time`) or gets again.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal

import anyio
from anyio.abc import TaskGroup

from dledger_mq.client.acknowledging import Acknowledging
from dledger_mq.client.arguments import (
    check_credentials,
    check_group,
    check_int,
    check_optional_text,
    check_optional_truth,
    check_seconds,
    check_tls,
    wrong_type,
)
from dledger_mq.client.credentials import Credentials
from dledger_mq.client.errors import ClientClosedError, ClientUsageError
from dledger_mq.client.lifetime import Lifetime
from dledger_mq.client.name_servers import parse_name_servers
from dledger_mq.client.pop_requests import POP_MAX, GroupPops
from dledger_mq.client.pop_watch import PopWatch
from dledger_mq.client.popped_messages import PoppedMessage
from dledger_mq.client.receiving import Receiver
from dledger_mq.client.service import BodyFailure, open_service_nursery
from dledger_mq.client.session import Session
from dledger_mq.client.subscriptions import BySql, subscribe_all
from dledger_mq.remoting.heartbeat import (
    ConsumeFromWhere,
    ConsumerEntry,
    ConsumeType,
    Heartbeat,
    MessageModel,
)

TIMEOUT_S: Final = 10.0  # outlives a failover
INVISIBLE_S: Final = 60.0  # the Java client's in pop mode
INVISIBLE_S_MAX: Final = 3 * 24 * 3600  # the brokers'
WAIT_S: Final = 15.0

Begin = Literal["last", "first"]
"""The beginning of a group without an offset: with what comes, or with everything that is kept."""

_FROM_WHERE: Final[Mapping[str, ConsumeFromWhere]] = {
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
}


class SimpleConsumer(Lifetime):
    """Receives messages of a group for a time, and acknowledges them. Use as an async context manager.

    Args:
        namesrv: name servers, "host:port", several joined with ";".
        group: the consumer group. Its consumers should subscribe alike, and should all receive: one that pulls
            (`PushConsumer`) gets the messages that no other has received.
        subscriptions: topic -> "*", tags joined with "||", or `BySql` with a condition on properties.
        ordered: the messages of a queue are handed out in order: nothing of a queue follows before all that was
            received of it is acknowledged, or its time is over. None: as the group is set at the brokers, which are
            asked every 10 s; else the consumers of the group must agree.
        start_from: where a group without an offset begins: "last" (only what comes) or "first" (everything that is
            kept). Brokers that still hold the first message of a queue begin there all the same.
        timeout_s: how long a request is tried, over all nodes and failovers.
        instance: part of the client id; made up when not given.
        tls: encrypts the connections, see `make_tls_context`; None: plain text.
        credentials: the account that signs all requests, see `read_credentials`; None: nothing is signed.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        *,
        subscriptions: Mapping[str, str | BySql],
        ordered: bool | None = None,
        start_from: Begin = "last",
        timeout_s: float = TIMEOUT_S,
        instance: str | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.group = check_group(group)
        self.subscriptions = subscribe_all(self.group, subscriptions, with_retries=True)
        self.ordered = check_optional_truth("ordered", ordered)
        _check_begin(start_from)
        self.timeout_s = check_seconds("timeout_s", timeout_s)
        if self.timeout_s <= 0:
            raise ClientUsageError(f"timeout_s {timeout_s} must be above 0")
        self._start_from = start_from
        self._name_servers = parse_name_servers(namesrv)
        self._instance = check_optional_text("instance", instance)
        self._tls = check_tls(tls)
        self._credentials = check_credentials(credentials)
        self._receiver: Receiver | None = None
        self._acknowledging: Acknowledging | None = None

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        """Open the session for the body; an error of the body leaves as itself, without the task group's wrapping."""
        failure = BodyFailure()
        async with open_service_nursery() as service:
            session = Session(
                self._name_servers,
                service,
                instance=self._instance,
                heartbeat=lambda: self._make_heartbeat(session.client_id),
                tls=self._tls,
                credentials=self._credentials,
            )
            session.start()
            try:
                async with anyio.create_task_group() as nursery:
                    self._open(session, nursery)
                    with failure:
                        yield
                    nursery.cancel_scope.cancel()
            finally:
                self._receiver = self._acknowledging = None
                with anyio.CancelScope(shield=True):
                    await session.unregister(consumer_group=self.group)
        failure.raise_again()

    def _open(self, session: Session, nursery: TaskGroup) -> None:
        """Make what the calls use; its tasks run in the nursery."""
        requests = GroupPops(
            session,
            self.group,
            ordered=self.ordered,
            from_end=self._start_from == "last",
            timeout_s=self.timeout_s,
        )
        self._acknowledging = Acknowledging(session, self.group, timeout_s=self.timeout_s)
        self._receiver = Receiver(
            session,
            requests,
            PopWatch(session, requests, nursery),
            self._acknowledging,
            subscriptions=tuple(self.subscriptions.values()),
            timeout_s=self.timeout_s,
        )

    def _make_heartbeat(self, client_id: str) -> Heartbeat:
        """Build the heartbeat: whoever receives is one that pulls, as RocketMQ's proxy says it of simple consumers."""
        entry = ConsumerEntry(
            self.group,
            ConsumeType.CONSUME_ACTIVELY,
            MessageModel.CLUSTERING,
            _FROM_WHERE[self._start_from],
            tuple(item.reported() for item in self.subscriptions.values()),
        )
        return Heartbeat(client_id=client_id, consumers=(entry,))

    async def receive(
        self,
        max_messages: int = POP_MAX,
        invisible_s: float = INVISIBLE_S,
        wait_s: float = WAIT_S,
    ) -> tuple[PoppedMessage, ...]:
        """Return messages of one queue, that nobody else of the group gets for a while; none when none came in time.

        Topics, broker groups and queues take turns. A call that is cancelled may leave messages handed out to nobody:
        they come again when their time is over.

        Args:
            max_messages: at most so many, 1 to 32. Brokers give 256 KiB at once, and one message at least.
            invisible_s: for how long nobody else gets them, 0.001 s to 3 days.
            wait_s: how long to wait for the first one; 0 asks once.

        Raises:
            ClientError: a request was refused, or nobody could be asked, also not in `timeout_s` after `wait_s`.
        """
        if not 1 <= check_int("max_messages", max_messages) <= POP_MAX:
            raise ClientUsageError(f"max_messages {max_messages} is not in 1..{POP_MAX}")
        if check_seconds("wait_s", wait_s) < 0:
            raise ClientUsageError(f"wait_s {wait_s} is below 0")
        invisible_ms = _invisible_ms(invisible_s)
        if self._receiver is None:
            raise ClientClosedError("not open; use it in an `async with` block")
        return await self._receiver.receive(max_messages, invisible_ms, wait_s)

    async def ack(self, messages: PoppedMessage | Iterable[PoppedMessage]) -> None:
        """Say that messages are done: they never come again. Several of them go in one request to each broker group.

        Raises:
            HandleExpiredError: some were not in flight any more; they may come again, or have.
            AckRefusedError: some were surely not acknowledged; the call may be repeated.
            AckOutcomeUnknownError: of some nobody can say; at worst they come again.
        """
        if isinstance(messages, PoppedMessage):
            messages = (messages,)
        if not isinstance(messages, Iterable):
            raise ClientUsageError(wrong_type("messages", messages, "a message, or a list of them"))
        wanted = [_checked(message) for message in messages]
        await self._handles().acknowledge(wanted)

    async def change_invisible_time(
        self, message: PoppedMessage, invisible_s: float
    ) -> PoppedMessage:
        """Let nobody else get a message for so long from now on: longer to finish it, or shortly to get it again.

        Returns:
            The message with its new handle; the old one is dead.

        Raises:
            HandleExpiredError: it was not in flight any more.
            AckRefusedError: nothing was changed; the call may be repeated.
            AckOutcomeUnknownError: nobody can say. If it was changed the handle is dead; the message comes again.
        """
        invisible_ms = _invisible_ms(invisible_s)
        return await self._handles().change(_checked(message), invisible_ms)

    def _handles(self) -> Acknowledging:
        if self._acknowledging is None:
            raise ClientClosedError("not open; use it in an `async with` block")
        return self._acknowledging


def _check_begin(start_from: object) -> None:
    if not isinstance(start_from, str) or start_from not in _FROM_WHERE:
        raise ClientUsageError(wrong_type("start_from", start_from, "'last' or 'first'"))


def _checked(message: object) -> PoppedMessage:
    if not isinstance(message, PoppedMessage):
        raise ClientUsageError(wrong_type("message", message, "one that `receive` has returned"))
    return message


def _invisible_ms(invisible_s: object) -> int:
    seconds = check_seconds("invisible_s", invisible_s)
    if not 0.001 <= seconds <= INVISIBLE_S_MAX:
        raise ClientUsageError(f"invisible_s {seconds:g} is not in 0.001..{INVISIBLE_S_MAX}")
    return int(seconds * 1000)

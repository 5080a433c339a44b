"""Who is connected: each client's settings, when it was last heard of, and the stream that leads to it.

Brokers know the proxy as one client, which is in the groups of all of its own. A client that has been silent for a
while is forgotten, and what the proxy keeps for it with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from broker.access.rules import Needs
from broker.proxy.accounts import ANYBODY, CallSender, to_consume, to_send
from broker.proxy.protocol.numbers import ClientType, Code, FilterType
from broker.proxy.refusals import CallRefusedError
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.subscriptions import BySql, TopicSubscription, subscribe
from dledger_mq.remoting.heartbeat import (
    ConsumeFromWhere,
    ConsumerEntry,
    ConsumeType,
    Heartbeat,
    MessageModel,
)

SILENT_S: Final = 60.0
"""ProxyClients send a heartbeat every 10 s."""

CLIENTS_MAX: Final = 2_500
"""Each has a stream, and waits in some calls (server.CALLS_MAX)."""

TOPICS_MAX: Final = 256
"""Of one client; bounds what it can make the proxy and brokers remember."""

EXPRESSION_CHARS_MAX: Final = 16_384

FORGOTTEN: Final = "forgotten"
"""The end of the stream of a client that has not left by itself."""

COMMANDS_MAX: Final = 64
"""That wait for a client which does not read them; more are dropped, brokers ask again."""


@dataclass(slots=True)
class ProxyClient:
    """One client.

    Attributes:
        sender: who has registered it.
        namespace: in which it names topics; empty: none.
        topics: to which a producer sends.
        group: of a consumer; empty: a producer.
        subscriptions: of a consumer, by topic.
        commands: to be sent to it, by the call that reads them.
        seen_at: seconds of the loop's clock.
        is_gone: it was forgotten, perhaps while a call of it waits.
    """

    client_id: str
    kind: ClientType
    sender: CallSender = ANYBODY
    namespace: str = ""
    topics: frozenset[str] = frozenset()
    group: str = ""
    subscriptions: dict[str, TopicSubscription] = field(default_factory=dict)
    commands: MemoryObjectSendStream[Any] | None = None
    seen_at: float = 0.0
    is_gone: bool = False

    @property
    def needs(self) -> Needs:
        """The rights that it has to have."""
        if self.group:
            return to_consume(self.group, self.subscriptions)
        return to_send(self.topics)


class ProxyClients:
    """All clients of the proxy.

    Attributes:
        on_change: called when groups or topics come or go, so that brokers are told.
        on_gone: called with the id of a client that is forgotten.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._clients: dict[str, ProxyClient] = {}
        self.on_change: Callable[[], None] = lambda: None
        self.on_gone: Callable[[str], None] = lambda client_id: None

    def __len__(self) -> int:
        return len(self._clients)

    def register(self, client: ProxyClient) -> None:
        """Take in a client, or what has changed of one; its stream stays.

        Raises:
            CallRefusedError: there are too many.
        """
        known = self._clients.get(client.client_id)
        if known is None and len(self._clients) >= CLIENTS_MAX:
            raise CallRefusedError(
                Code.TOO_MANY_REQUESTS, f"{CLIENTS_MAX} clients are connected already"
            )
        if known is not None:
            client.commands = known.commands
        client.seen_at = self._now()
        self._clients[client.client_id] = client
        self.on_change()

    def seen(self, client_id: str) -> None:
        """Note that a client was heard of.

        Raises:
            CallRefusedError: its settings are not known.
        """
        client = self._clients.get(client_id)
        if client is None:
            text = f"the settings of client {client_id!r} are not known: they are told by Telemetry"
            raise CallRefusedError(Code.UNRECOGNIZED_CLIENT_TYPE, text)
        client.seen_at = self._now()

    def receives(self, client: ProxyClient) -> ProxyClient:
        """Note that a consumer has asked for messages, as `client` describes it; return it as it is known.

        One whose settings went to another proxy, or to this one before a restart, is taken in by its request.

        Raises:
            CallRefusedError: it has said that it is of another group; or there are too many clients, or topics of it.
        """
        known = self._clients.get(client.client_id)
        if known is None:
            self.register(client)
            return client
        if known.group != client.group:
            text = f"client {client.client_id} is of group {known.group!r}, not {client.group}"
            raise CallRefusedError(Code.FORBIDDEN, text)
        known.seen_at = self._now()
        for topic, wanted in client.subscriptions.items():
            if topic not in known.subscriptions:
                check_count(len(known.subscriptions) + 1)
                known.subscriptions[topic] = wanted
                self.on_change()
        return known

    def open_stream(self, client_id: str) -> MemoryObjectReceiveStream[Any]:
        """Return what is sent to a client from now on; it ends when the client is forgotten, or opens another."""
        client = self._clients[client_id]
        if client.commands is not None:
            client.commands.close()
        client.commands, received = anyio.create_memory_object_stream[Any](COMMANDS_MAX)
        return received

    def forget(self, client_id: str, last: object = None) -> None:
        """Forget a client that has left; `last` is what its stream ends with, if anything."""
        client = self._clients.pop(client_id, None)
        if client is None:
            return
        client.is_gone = True
        if client.commands is not None:
            if last is not None:
                with suppress(anyio.WouldBlock, anyio.BrokenResourceError):
                    client.commands.send_nowait(last)
            client.commands.close()
        self.on_gone(client_id)
        self.on_change()

    def knows(self, client_id: str) -> bool:
        """Return whether a client is registered."""
        return client_id in self._clients

    def forget_where(self, is_unwanted: Callable[[ProxyClient], bool]) -> None:
        """Forget clients that do not know it: their streams end with FORGOTTEN."""
        for client_id in [one.client_id for one in self._clients.values() if is_unwanted(one)]:
            self.forget(client_id, FORGOTTEN)

    def forget_silent(self) -> None:
        """Forget those that have not been heard of for SILENT_S."""
        limit = self._now() - SILENT_S
        self.forget_where(lambda one: one.seen_at < limit)

    def send_to_producer(self, topic: str, make: Callable[[str], Any]) -> bool:
        """Send a command to one of the producers of a topic; return whether one could be told.

        Args:
            topic: the topic.
            make: makes the command for a producer that names topics in a namespace.
        """
        found = [one for one in self._clients.values() if topic in one.topics and one.commands]
        random.shuffle(found)
        for client in found:
            assert client.commands is not None, "the list above holds those with a stream"
            try:
                client.commands.send_nowait(make(client.namespace))
            except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
                continue
            return True
        return False

    def groups(self) -> set[str]:
        """Return the consumer groups of all clients."""
        return {one.group for one in self._clients.values() if one.group}

    def topics(self) -> set[str]:
        """Return all topics to which or from which clients send and receive."""
        return {
            topic
            for one in self._clients.values()
            for topic in (one.subscriptions if one.group else one.topics)
        }

    def heartbeat(self, proxy_id: str) -> Heartbeat | None:
        """Return what brokers are told: the groups of all clients as the proxy's; None: there are none."""
        if not self._clients:
            return None
        producers = {topic for one in self._clients.values() for topic in one.topics}
        return Heartbeat(proxy_id, tuple(sorted(producers)), tuple(self._consumers()))

    def _consumers(self) -> Iterator[ConsumerEntry]:
        """Yield the consumer groups, each with the topics of all of its clients."""
        by_group: dict[str, dict[str, TopicSubscription]] = {}
        for client in self._clients.values():
            if client.group:
                by_group.setdefault(client.group, {}).update(client.subscriptions)
        for group, subscriptions in sorted(by_group.items()):
            yield ConsumerEntry(
                group,
                ConsumeType.CONSUME_ACTIVELY,
                MessageModel.CLUSTERING,
                ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                tuple(one.reported() for one in subscriptions.values()),
            )


def check_count(count: int) -> None:
    """Refuse a client that names more topics than TOPICS_MAX.

    Raises:
        CallRefusedError: it does.
    """
    if count > TOPICS_MAX:
        raise CallRefusedError(
            Code.BAD_REQUEST, f"the client names {count} topics, at most {TOPICS_MAX}"
        )


def subscription_of(topic: str, expression: Any, version: int) -> TopicSubscription:
    """Read a `FilterExpression`.

    Raises:
        CallRefusedError: it is none, and says where; or it is too long.
    """
    text = str(expression.expression) or "*"
    if len(text) > EXPRESSION_CHARS_MAX:
        problem = f"the filter has {len(text)} characters, at most {EXPRESSION_CHARS_MAX}"
        raise CallRefusedError(Code.ILLEGAL_FILTER_EXPRESSION, problem)
    try:
        return subscribe(topic, BySql(text) if expression.type == FilterType.SQL else text, version)
    except ClientUsageError as error:
        raise CallRefusedError(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from error

"""The settings of a producer: those of RocketMQ's user guide, under names of our own, and bounds of ours."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from dledger_mq.client.arguments import (
    check_callable,
    check_credentials,
    check_instance,
    check_int,
    check_optional_text,
    check_seconds,
    check_tls,
    check_topic,
    check_truth,
)
from dledger_mq.client.credentials import Credentials
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.hooks import ClientHooks
from dledger_mq.client.lane import ATTEMPTS_MAX
from dledger_mq.client.messages import BODY_BYTES_MAX, COMPRESS_FROM_BYTES, COMPRESSION_LEVEL
from dledger_mq.client.queues import MessageQueue, QueueSelector
from dledger_mq.client.send_frames import AUTO_CREATE_QUEUES
from dledger_mq.message.names import TRACE_TOPIC

SEND_TIMEOUT_S: Final = 10.0  # a failover takes one to three seconds; a send should outlive it
PENDING_MAX: Final = 10_000
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024


class ProducerOptions(TypedDict, total=False):
    """Keyword arguments that every producer takes; the meanings are those of `ProducerSettings`."""

    timeout_s: float
    pending_max: int
    pending_bytes_max: int
    instance: str | None
    retries: int | None
    compress_from_bytes: int
    compress_level: int
    message_bytes_max: int
    default_queues: int
    serializer: Callable[[Any], bytes] | None
    hooks: ClientHooks | None
    trace: bool
    trace_topic: str
    tls: ssl.SSLContext | None
    credentials: Credentials | None


class SendChoices(TypedDict, total=False):
    """Keyword arguments of a send: where the message goes, and how long it is tried; see `Producer.send`."""

    queue: MessageQueue | None
    key: str | bytes | None
    selector: QueueSelector | None
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The settings of a producer.

    Attributes:
        timeout_s: how long a send is tried, over all nodes and failovers.
        pending_max: bound on sends without an answer; `send` and `submit` wait at it.
        pending_bytes_max: the same in bytes.
        instance: the part of the client id that distinguishes producers of one machine; made up when None.
        retries: how often a send is put on a connection again, within its time; None: no bound, its
            time alone decides.
        compress_from_bytes: bodies of so many bytes and more travel compressed.
        compress_level: of zlib, 0 to 9.
        message_bytes_max: larger bodies are refused here; brokers have a bound of their own (4 MiB).
        default_queues: queues of a topic that comes to be with its first message.
        serializer: makes the body of what `Producer.message` is given.
        hooks: called on sends.
        trace: write records of sends and ends of transactions to the trace topic, where tools find them.
        trace_topic: another topic for them than RocketMQ's.
        tls: encrypts the connections, see `make_tls_context`; None: plain text.
        credentials: the account that signs all requests, see `read_credentials`; None: nothing is signed.
    """

    timeout_s: float = SEND_TIMEOUT_S
    pending_max: int = PENDING_MAX
    pending_bytes_max: int = PENDING_BYTES_MAX
    instance: str | None = None
    retries: int | None = None
    compress_from_bytes: int = COMPRESS_FROM_BYTES
    compress_level: int = COMPRESSION_LEVEL
    message_bytes_max: int = BODY_BYTES_MAX
    default_queues: int = AUTO_CREATE_QUEUES
    serializer: Callable[[Any], bytes] | None = None
    hooks: ClientHooks | None = None
    trace: bool = False
    trace_topic: str = TRACE_TOPIC
    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant.

        Raises:
            ClientUsageError: says which and why.
        """
        self._check_types()
        if self.timeout_s <= 0 or self.pending_max < 1 or self.pending_bytes_max < 1:
            raise ClientUsageError(
                f"timeout_s {self.timeout_s}, pending_max {self.pending_max} and pending_bytes_max "
                f"{self.pending_bytes_max} must be above 0"
            )
        if self.retries is not None and self.retries < 0:
            raise ClientUsageError(f"retries {self.retries} is below 0")
        if not 0 <= self.compress_level <= 9:
            raise ClientUsageError(f"compress_level {self.compress_level} is not in 0..9")
        if min(self.compress_from_bytes, self.message_bytes_max, self.default_queues) < 1:
            raise ClientUsageError(
                f"compress_from_bytes {self.compress_from_bytes}, message_bytes_max "
                f"{self.message_bytes_max} and default_queues {self.default_queues} must be above 0"
            )

    def _check_types(self) -> None:
        """Raise ClientUsageError for a setting of a wrong type, before the checks of ranges compare it."""
        check_seconds("timeout_s", self.timeout_s)
        check_int("pending_max", self.pending_max)
        check_int("pending_bytes_max", self.pending_bytes_max)
        check_optional_text("instance", self.instance)
        check_tls(self.tls)
        check_credentials(self.credentials)
        if self.retries is not None:
            check_int("retries", self.retries)
        check_int("compress_from_bytes", self.compress_from_bytes)
        check_int("compress_level", self.compress_level)
        check_int("message_bytes_max", self.message_bytes_max)
        check_int("default_queues", self.default_queues)
        if self.serializer is not None:
            check_callable("serializer", self.serializer)
        if self.hooks is not None:
            check_instance("hooks", self.hooks, ClientHooks)
        check_truth("trace", self.trace)
        check_topic(self.trace_topic)

    @property
    def attempts_max(self) -> int:
        """The bound on how often a send is put on a connection."""
        return ATTEMPTS_MAX if self.retries is None else self.retries + 1

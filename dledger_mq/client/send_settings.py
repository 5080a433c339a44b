"""The producer settings of RocketMQ's user guide, under names of our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.hooks import ClientHooks
from dledger_mq.client.lane import ATTEMPTS_MAX
from dledger_mq.client.messages import BODY_BYTES_MAX, COMPRESS_FROM_BYTES, COMPRESSION_LEVEL
from dledger_mq.client.send_frames import AUTO_CREATE_QUEUES


class SendOptions(TypedDict, total=False):
    """Keyword arguments that every producer takes; the meanings are those of `SendSettings`."""

    retries: int | None
    compress_from_bytes: int
    compress_level: int
    message_bytes_max: int
    default_queues: int
    serializer: Callable[[Any], bytes] | None
    hooks: ClientHooks | None


@dataclass(frozen=True, slots=True)
class SendSettings:
    """How messages are sent.

    Attributes:
        retries: how often a send is put on a connection again, within its time; None: no bound, its
            time alone decides.
        compress_from_bytes: bodies of so many bytes and more travel compressed.
        compress_level: of zlib, 0 to 9.
        message_bytes_max: larger bodies are refused here; brokers have a bound of their own (4 MiB).
        default_queues: queues of a topic that comes to be with its first message.
        serializer: makes the body of what `Producer.message` is given.
        hooks: is told of sends.
    """

    retries: int | None = None
    compress_from_bytes: int = COMPRESS_FROM_BYTES
    compress_level: int = COMPRESSION_LEVEL
    message_bytes_max: int = BODY_BYTES_MAX
    default_queues: int = AUTO_CREATE_QUEUES
    serializer: Callable[[Any], bytes] | None = None
    hooks: ClientHooks | None = None

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant.

        Raises:
            ClientUsageError: says which and why.
        """
        if self.retries is not None and self.retries < 0:
            raise ClientUsageError(f"retries {self.retries} is below 0")
        if not 0 <= self.compress_level <= 9:
            raise ClientUsageError(f"compress_level {self.compress_level} is not in 0..9")
        if min(self.compress_from_bytes, self.message_bytes_max, self.default_queues) < 1:
            raise ClientUsageError(
                f"compress_from_bytes {self.compress_from_bytes}, message_bytes_max "
                f"{self.message_bytes_max} and default_queues {self.default_queues} must be above 0"
            )

    @property
    def attempts_max(self) -> int:
        """How often a send may be put on a connection."""
        return ATTEMPTS_MAX if self.retries is None else self.retries + 1

"""What handlers take and return, and how a consumer hands messages to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from dledger_mq.client.arguments import check_int, check_seconds
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.hooks import ClientHooks
from dledger_mq.client.messages import DELAY_LEVEL_MAX, ReceivedMessage

SUSPEND_S: Final = 1.0  # an ordered queue waits this long after a failure of its handler
SUSPEND_LEAST_S: Final = 0.01
SUSPEND_MOST_S: Final = 30.0  # rule L17
DEAD_LETTER_LEVEL: Final = -1  # rule L6
BROKER_DECIDES: Final = 0  # rule L7: 3 + the times it came back


class ConsumeResult(Enum):
    """The results that a handler may return; None counts as SUCCESS."""

    SUCCESS = "consumed"
    LATER = "deliver it again later"


@dataclass(frozen=True, slots=True)
class Later:
    """Deliver again later, as a handler may return it to say more than ConsumeResult.LATER does.

    Attributes:
        delay_level: 1..18, how much later; 0: the broker decides, growing with each time; -1: not at
            all, it goes to the dead letter topic. Default: the consumer's `retry_delay_level`.
            Ordered consumers, which never let a message go, do not look at it.
        consumed: of a batch, how many messages from its start are consumed all the same (RocketMQ's
            ack index + 1); only the others come again.
        suspend_s: an ordered queue waits this long before the next try, 0.01 to 30. Default: the
            consumer's `suspend_s`.
    """

    delay_level: int | None = None
    consumed: int = 0
    suspend_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no broker would take.

        Raises:
            ClientUsageError: says which and why.
        """
        if self.delay_level is not None:
            check_delay_level(check_int("delay_level", self.delay_level))
        if self.suspend_s is not None:
            check_suspend(check_seconds("suspend_s", self.suspend_s))
        if check_int("consumed", self.consumed) < 0:
            raise ClientUsageError(f"consumed {self.consumed} is below 0")


Result = ConsumeResult | Later | None
Handler = Callable[[ReceivedMessage], Awaitable[Result]]
BatchHandler = Callable[[tuple[ReceivedMessage, ...]], Awaitable[Result]]
AnyHandler = Handler | Callable[[ReceivedMessage], Result]
AnyBatchHandler = BatchHandler | Callable[[tuple[ReceivedMessage, ...]], Result]
"""With `async`, or without; those run in worker threads."""


def one_by_one(handler: Handler) -> BatchHandler:
    """Return a handler of batches of one."""

    async def handle(messages: tuple[ReceivedMessage, ...]) -> Result:
        (message,) = messages
        return await handler(message)

    return handle


def decoded(handler: BatchHandler, deserializer: Callable[[bytes], object]) -> BatchHandler:
    """Return a handler that gets messages with their `value`; what cannot be read has failed."""

    async def handle(messages: tuple[ReceivedMessage, ...]) -> Result:
        return await handler(
            tuple(
                msgspec.structs.replace(message, value=deserializer(message.body))
                for message in messages
            )
        )

    return handle


def observed(handler: BatchHandler, hooks: ClientHooks) -> BatchHandler:
    """Return the handler, wrapped in the calls of the hooks."""

    async def handle(messages: tuple[ReceivedMessage, ...]) -> Result:
        with hooks.consuming(messages):
            return await handler(messages)

    return handle


def wish_of(result: Result, count: int) -> Later | None:
    """Return what a handler of `count` messages wishes for those that are left to be consumed; None: none is left."""
    if result is ConsumeResult.LATER:
        return Later()
    if isinstance(result, Later) and result.consumed < count:
        return result
    return None


def check_delay_level(level: int) -> None:
    """Raise ClientUsageError unless -1, 0 or 1..18."""
    if not DEAD_LETTER_LEVEL <= level <= DELAY_LEVEL_MAX:
        raise ClientUsageError(f"delay level {level} is not in -1..{DELAY_LEVEL_MAX}")


def check_suspend(seconds: float) -> None:
    """Raise ClientUsageError unless in 0.01..30."""
    if not SUSPEND_LEAST_S <= seconds <= SUSPEND_MOST_S:
        raise ClientUsageError(
            f"suspend_s {seconds} is not in {SUSPEND_LEAST_S}..{SUSPEND_MOST_S:g}"
        )


class UnfinishedError(Exception):
    """Raised by a handler of ours that was left in the middle: the message is neither consumed nor failed."""

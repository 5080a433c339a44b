"""Decisions on due times, and on recalls of messages that wait for one: rules N1 to N5, N13, N14.

Pure. Due times are exact to the millisecond; RocketMQ rounds them to seconds (docs/divergence.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.service.refusal import Refusal
from dledger_mq.message import names
from dledger_mq.message.properties import (
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    find_property,
)
from dledger_mq.message.recall_handle import HandleError, RecallHandle
from dledger_mq.remoting.codes import ResponseCode

DELAY_MAX_SEC_DEFAULT: Final = 259_200
"""Three days, RocketMQ's timerMaxDelaySec."""

_INT64_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_WISHES: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)


@dataclass(frozen=True, slots=True)
class TimerRules:
    """Decides on due times.

    Attributes:
        delay_max_ms: the furthest that they may lie ahead; at least 0.
        now_ms: the leader's clock, never before the log's last store time.
    """

    delay_max_ms: int
    now_ms: Callable[[], int]

    @staticmethod
    def asks(properties: bytes) -> bool:
        """Return True if a message asks for a due time of its own."""
        if find_property(properties, TIMER_OUT_MS) is not None:  # N2: it had one before
            return False
        return any(find_property(properties, name) is not None for name in _WISHES)

    def due_ms(self, properties: bytes) -> int | Refusal:
        """Return the due time in ms since 1970, 0 for at once; the first property that is there decides."""
        if find_property(properties, TIMER_OUT_MS) is not None:  # N2
            return 0
        for name in _WISHES:
            text = find_property(properties, name)
            if text is not None:
                return self._due_of(name, text)
        return 0

    def _due_of(self, name: bytes, text: bytes) -> int | Refusal:
        """Return the due time in ms since 1970, or 0 if it has passed.

        The property is a time in ms, or a delay in s or ms.
        """
        number = int(text) if _NUMBER.fullmatch(text) else None
        if number is None or not -_INT64_MAX - 1 <= number <= _INT64_MAX:
            return _illegal(f"{name.decode()}={text[:64].decode(errors='replace')} is not a number")
        now_ms = self.now_ms()
        assert now_ms >= 0, f"the leader's clock is at {now_ms} ms"
        if name == TIMER_DELAY_SEC:
            number *= 1000
        due_ms = number if name == TIMER_DELIVER_MS else now_ms + number
        if due_ms <= now_ms:  # N3
            return 0
        if due_ms - now_ms > self.delay_max_ms:  # N4
            return _illegal(
                f"{name.decode()}: {due_ms - now_ms} ms ahead, at most {self.delay_max_ms} "
                "(timerMaxDelaySec)"
            )
        return due_ms


def _illegal(text: str) -> Refusal:
    return Refusal(
        ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal: {text}; nothing was stored"
    )


@dataclass(frozen=True, slots=True)
class RecallRules:
    """Decides on recalls, as far as that is possible before the log has spoken (N13, N14)."""

    enabled: bool
    broker_name: str
    has_topic: Callable[[str], bool]

    def decide(self, topic: str, handle_text: str) -> RecallHandle | Refusal:
        """Decide on one recall: the message that is meant, or why there can be none.

        Args:
            topic: of the request.
            handle_text: from the answer to the send.
        """
        if not self.enabled:
            return Refusal(
                ResponseCode.NO_PERMISSION,
                "recall is disabled (recallMessageEnable=false); nothing was recalled",
            )
        if not self.has_topic(topic):
            return Refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic[:255]}] not exist; nothing was recalled",
            )
        if names.is_control_topic(topic):
            return Refusal(
                ResponseCode.NO_PERMISSION,
                f"topic[{topic}] is the system's: nothing can be recalled from it",
            )
        try:
            handle = RecallHandle.decode(handle_text)
        except HandleError as error:
            return _no_handle(f"recall handle cannot be read: {error}")
        if handle.topic != topic:
            return _no_handle(
                f"topic not match: the handle is for {handle.topic[:255]}, the request for {topic[:255]}"
            )
        if handle.broker_name != self.broker_name:
            return _no_handle(
                f"broker not match: the handle is for {handle.broker_name[:255]}, this is {self.broker_name}"
            )
        return handle


def _no_handle(text: str) -> Refusal:
    return Refusal(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {text}; nothing was recalled")

"""Why a topic that somebody asks for is not there, where more can be said than that. Pure."""

from __future__ import annotations

from typing import Final

from dledger_mq.message.names import TRACE_TOPIC

TRACE_IS_OFF: Final = (
    "Message trace is off here: traceTopicEnable=true in broker.conf creates this topic, or the one that "
    "msgTraceTopicName names"
)


def missing_because(topic: str) -> str:
    """Return a sentence to be put behind "it does not exist", with a space before it; empty: nothing is known."""
    return f" {TRACE_IS_OFF}." if topic == TRACE_TOPIC else ""

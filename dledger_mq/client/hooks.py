"""The hooks of metrics and tracing: what a client reports while it sends and consumes.

Nothing is required of the outside: OpenTelemetry, Prometheus or a counter of one's own override what they
need. The methods run in the client's loop, on the way of every message, and must not block.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from dledger_mq.client.errors import SendError
from dledger_mq.client.messages import Message, ReceivedMessage


class ClientHooks:
    """Called by producers and push consumers that are given one; a subclass overrides what it needs."""

    def sending(self, message: Message) -> Message:
        """Return the message as it shall leave, such as with a trace context among its properties."""
        return message

    def sent(self, topic: str, elapsed_s: float, error: SendError | None) -> None:
        """Take note of the end of a send: stored, or an error. A batch is one send. What this raises is logged."""

    def consuming(self, messages: tuple[ReceivedMessage, ...]) -> AbstractContextManager[object]:
        """Return what surrounds the call of the handler, such as a span.

        An exception that passes through it means that the messages come again; so does a handler's result
        that says so, which is not seen here.
        """
        return nullcontext()

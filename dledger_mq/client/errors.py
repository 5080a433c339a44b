"""What can go wrong for a client of the broker, and what the caller may conclude from it.

The class answers the question that matters for a send: is the message stored? `SendRefusedError`
means surely not, `SendOutcomeUnknownError` means that it may be, and names the UNIQ_KEY under which
the same message may be sent again without being stored twice. Everything else here is about requests
that change nothing, or about the caller's own arguments.
"""

from __future__ import annotations

from typing import ClassVar

from dledger_mq.remoting.codes import is_definite


class ClientError(Exception):
    """Root of all errors of the client.

    Attributes:
        definite: whether the caller knows that nothing happened.
        retriable: whether the same call may succeed a little later.
    """

    definite: bool = True
    retriable: ClassVar[bool] = False


class ClientUsageError(ClientError, ValueError):
    """The caller broke a rule; nothing was sent."""


class InvalidMessageError(ClientUsageError):
    """The message breaks a limit (topic name, body size, properties); it was not sent."""


class ClientClosedError(ClientError):
    """The client object was left or never entered."""


class ClosedMeanwhileError(ClientClosedError):
    """The client object was left during the call: what it had sent may have been carried out."""

    definite = False


class NoRouteError(ClientError):
    """No name server knows a broker for the topic."""

    retriable = True

    def __init__(self, topic: str, detail: str = "") -> None:
        self.topic = topic
        super().__init__(f"no route for topic {topic!r}{': ' + detail if detail else ''}")


class NameServersUnreachableError(ClientError):
    """None of the name servers answered."""

    retriable = True


class ConnectionLostError(ClientError):
    """The connection broke, or could not be made, while requests waited for an answer."""

    definite = False
    retriable = True


class NotConnectedError(ConnectionLostError):
    """The connection could not be made, or was gone before the request was sent."""

    definite = True


class RequestTimeoutError(ClientError):
    """No answer came in time."""

    definite = False
    retriable = True


class TooLateError(RequestTimeoutError):
    """The time was over before the request was sent."""

    definite = True


class NoReplyError(ClientError):
    """A request message is stored, and no reply to it came in time: it may have been carried out, or may yet be.

    Attributes:
        unique_key: the message's UNIQ_KEY.
    """

    definite = False

    def __init__(self, topic: str, unique_key: str, timeout_s: float) -> None:
        self.topic = topic
        self.unique_key = unique_key
        super().__init__(
            f"no reply came in {timeout_s:g} s to the message {unique_key} of {topic}, which is stored"
        )


class RequestFailedError(ClientError):
    """A broker or name server answered with an error code.

    Attributes:
        code: the response code (dledger_mq.remoting.codes.ResponseCode).
        definite: as the code says (docs/errors.md).
        remark: the server's own words.
    """

    def __init__(self, code: int, remark: str) -> None:
        self.code = code
        self.definite = is_definite(code)
        self.remark = remark
        super().__init__(f"response code {code}: {remark}")


class SendError(ClientError):
    """A send did not end in a result.

    Attributes:
        topic: the message's topic.
        unique_key: the message's UNIQ_KEY, the same over all tries.
        code: the last response code, None when there was no answer.
        attempts: how often the message was put on a connection.
    """

    def __init__(
        self, text: str, *, topic: str, unique_key: str, code: int | None, attempts: int
    ) -> None:
        self.topic = topic
        self.unique_key = unique_key
        self.code = code
        self.attempts = attempts
        super().__init__(text)


class SendRefusedError(SendError):
    """The message is surely not stored, and nothing in flight will store it."""


class SendOutcomeUnknownError(SendError):
    """The message may be stored, or may yet be; sending it again with `unique_key` is harmless."""

    definite = False
    retriable = True

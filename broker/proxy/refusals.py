"""A call that is refused: the wire's code, and the true cause; and what brokers' refusals and silences become. Pure.

A client that reads `PROXY_TIMEOUT` knows that what it asked for may have been done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.proxy.protocol import Status
from broker.proxy.protocol.numbers import Code
from dledger_mq.client.errors import ClientError, NoRouteError, RequestFailedError
from dledger_mq.remoting.codes import ResponseCode, is_definite

_CODES: Final[Mapping[int, Code]] = {
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.MESSAGE_ILLEGAL: Code.MESSAGE_CORRUPTED,
    ResponseCode.SERVICE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.NO_MESSAGE: Code.MESSAGE_NOT_FOUND,
}

_DUE_TIME_REFUSED: Final = "timer message illegal"
"""So begins what a broker says to a due time that lies too far ahead; RocketMQ's does too."""


class CallRefusedError(Exception):
    """A call that is not carried out, or of which nobody knows."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


def status(code: Code, text: str = "") -> Any:
    """Return a `Status`; without a text its name stands there, as Apache's proxy has it."""
    return Status(code=code, message=text or code.name)


def refusal_of(error: ClientError) -> CallRefusedError:
    """Return what a failed request to brokers means to who has asked for it."""
    if not error.definite:
        return CallRefusedError(Code.PROXY_TIMEOUT, f"it may have been done: {error}")
    if isinstance(error, RequestFailedError):
        return refused_with(error.code, str(error))
    code = Code.TOPIC_NOT_FOUND if isinstance(error, NoRouteError) else Code.HA_NOT_AVAILABLE
    return CallRefusedError(code, f"nothing was done: {error}")


def refused_with(code: int, remark: str) -> CallRefusedError:
    """Return what a broker's answer with a code means; after some codes nobody knows whether it was done."""
    text = remark or f"code {code}"
    if not is_definite(code):
        return CallRefusedError(Code.PROXY_TIMEOUT, f"it may have been done: {text}")
    if code == ResponseCode.MESSAGE_ILLEGAL and text.startswith(_DUE_TIME_REFUSED):
        return CallRefusedError(Code.ILLEGAL_DELIVERY_TIME, text)
    return CallRefusedError(_CODES.get(code, Code.INTERNAL_SERVER_ERROR), text)


def joined(statuses: Iterable[Any]) -> Any:
    """Return the status of a call with several results: theirs if they agree."""
    found = list(statuses)
    codes = {each.code for each in found}
    return found[0] if len(codes) == 1 else status(Code.MULTIPLE_RESULTS)

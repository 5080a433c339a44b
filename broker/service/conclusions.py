"""The conclusions from a failed try of a request: the next leader is asked, or the client is answered.

One place for the rule of docs/guarantees.md, 8: done, surely not done, or unknown, and never one for the other. What
follows depends on what doing a request twice would do, which is its `RequestKind`:

    kind        the try was refused         its outcome is unknown        the link to the leader broke
    SEND        the next leader is asked    the client is answered        the client is answered
    SEND_BACK   the same                    the client is answered        the client is answered
    UPDATE      the same                    the next leader is asked      the next leader is asked
    ADMIN       the same                    the client is answered        the next leader is asked
    READ        the same                    the next leader is asked      the next leader is asked
    QUESTION    the same                    the next leader is asked      the next leader is asked

A refusal for good (too large for any leader) is passed on to the client. Pure; it must not know
any request, only its kind.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from broker.service.refusal import Refusal
from dledger.errors import DLedgerError, RefusedError
from dledger_mq.remoting.codes import ResponseCode, is_definite


class RequestKind(Enum):
    """The effect of a request, and so the effect of doing it twice."""

    SEND = "stores messages of a producer: twice is not once; refused at once without a majority that has room"
    SEND_BACK = "stores a message that a consumer gives back: twice is not once"
    UPDATE = "changes what the group keeps: twice is as once"
    ADMIN = "changes topics and groups for a tool: twice is as once, but somebody watches"
    READ = "changes nothing, so that it never is of unknown outcome"
    QUESTION = (
        "changes nothing, and its client must get an answer in time, and never a plain refusal"
    )

    @property
    def is_repeatable(self) -> bool:
        """True if doing it twice is the same as once."""
        return self not in _NOT_TWICE

    @property
    def changes_nothing(self) -> bool:
        """True if it only reads."""
        return self in _READS


_NOT_TWICE = frozenset({RequestKind.SEND, RequestKind.SEND_BACK})
_READS = frozenset({RequestKind.READ, RequestKind.QUESTION})


class AskNext(NamedTuple):
    """The decision to ask whoever leads next.

    Attributes:
        may_be_done: the try is of unknown outcome, so it is not surely undone any more.
    """

    may_be_done: bool


def unconfirmed(kind: RequestKind, error: DLedgerError) -> AskNext | Refusal:
    """Conclude what follows when the records of a request, or the entry that it waited for, are not confirmed."""
    if kind.changes_nothing:
        return AskNext(may_be_done=False)
    is_refused = isinstance(error, RefusedError)
    if is_refused and error.retriable:
        return AskNext(may_be_done=False)
    if kind is RequestKind.UPDATE and not is_refused:
        return AskNext(may_be_done=True)
    if kind is RequestKind.ADMIN:
        text = f"outcome unknown: {error}; the change may have been made"
    elif is_refused:
        what = "nothing was done" if kind is RequestKind.UPDATE else "the message was not stored"
        return Refusal(ResponseCode.MESSAGE_ILLEGAL, f"{what}: {error}")
    else:
        text = f"outcome unknown: {error}; the message may have been stored"
    return Refusal(ResponseCode.SYSTEM_ERROR, text)


def unanswered(kind: RequestKind, reason: str) -> AskNext | Refusal:
    """Conclude what follows when a request was passed on to the leader and no answer came."""
    if kind.is_repeatable:
        return AskNext(may_be_done=not kind.changes_nothing)
    return Refusal(
        ResponseCode.SYSTEM_ERROR,
        f"outcome unknown: {reason} after the request was passed on; it may have been carried out",
    )


def mistaken(kind: RequestKind, error: Exception) -> Refusal:
    """Return the refusal of a request in whose work a mistake of ours came up, at once or after a wait."""
    text = f"internal error ({type(error).__name__}), which this node has logged"
    if kind.changes_nothing:
        return Refusal(ResponseCode.SYSTEM_ERROR, f"{text}; nothing is said of what this asks for")
    return Refusal(
        ResponseCode.SYSTEM_ERROR, f"outcome unknown: {text}; it may have been carried out"
    )


def refusal_after(code: ResponseCode, remark: str, *, may_be_done: bool) -> Refusal:
    """Return the refusal for the client: after a try of unknown outcome, nothing is reported as surely not done."""
    if may_be_done and is_definite(code):
        text = f"outcome unknown: {remark}; an earlier try may have been carried out"
        return Refusal(ResponseCode.SYSTEM_ERROR, text)
    return Refusal(code, remark)

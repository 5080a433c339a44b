"""The types of `value` in a history, by the operation's `f` and by who writes it. Pure.

A value is JSON, and nothing in an `Op` says of which shape. Whoever reads one names the shape, and `shaped` checks it:
a history with other values than its readers expect is refused, where it would else be judged by what is missing.
The meaning of the shapes of workloads stands in `checkers/messages.py`, `transactions.py`, `ordered.py` and
`popped.py`; members that only a workload itself needs are its own.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, NotRequired, Required, TypedDict, TypeVar

import msgspec

from dledger.raft.ids import Index, Term
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset
from jepsen.history.ops import NEMESIS, Op, OpType

Shape = TypeVar("Shape")


def shaped(value: object, shape: type[Shape]) -> Shape:
    """Return a value in its shape; members that the shape does not name are left out.

    Raises:
        msgspec.ValidationError: it has another one; names the member.
    """
    return msgspec.convert(value, shape)


# Of workers.


class SendAsked(TypedDict):
    """One message that is to be sent. `client` is who sends it, where that is not a client of ours."""

    key: str
    queue: NotRequired[str | None]
    content: NotRequired[str | None]
    due_ns: NotRequired[int]
    client: NotRequired[str]


class SendAnswer(TypedDict, total=False):
    """The answer to a send, with every field that a client reports."""

    queue: str | None
    offset: QueueOffset | None
    uniq: str | None
    id: str | None
    due_ns: int


class BatchAsked(TypedDict):
    """Messages that are to be sent as a batch."""

    queue: NotRequired[str | None]
    keys: list[str]


class BatchAnswer(TypedDict, total=False):
    """The answer to a batch, in the order of its keys."""

    queue: str | None
    offsets: list[QueueOffset]
    uniqs: list[str]


class FrameAsked(TypedDict):
    """One request of several; `messages` are (key, content)."""

    queue: str
    messages: list[tuple[str, str | None]]
    half: NotRequired[bool]


class FramesAsked(TypedDict):
    """Requests that need not wait for each other."""

    frames: list[FrameAsked]


class FrameEnd(TypedDict, total=False):
    """The end of one request: place of its first message, ids of all."""

    end: Required[OpType]
    queue: str
    offset: QueueOffset
    ids: list[str]
    error: str


class FramesAnswer(TypedDict, total=False):
    """The ends of requests, in their order."""

    frames: list[FrameEnd]


class PolledMessage(msgspec.Struct, array_like=True, frozen=True):
    """One message of a `poll` or `receive`: a list in the history, its last members where they are known."""

    offset: QueueOffset
    key: str
    uniq: str = ""
    at: PhysicalOffset | None = None
    content: str | None = None


Rows = dict[str, list[PolledMessage]]
"""The messages of a `poll` or `receive`, by queue."""

Ends = dict[str, QueueOffset]
"""The ends of queues, by name."""


class Joined(TypedDict):
    """The consumer group for which a process reads from here on."""

    group: str


class GroupDrained(TypedDict):
    """The places that the members of a consumer group have passed."""

    group: str
    ends: Ends


class Keyed(NamedTuple):
    """A value of an object that has a key: what is done with it, or what came of it."""

    key: str | int
    what: object


class OffsetAsked(TypedDict):
    """A question for a committed offset."""

    queue: str
    group: NotRequired[str | None]


class CommitAsked(TypedDict):
    """A consumer offset that is to be committed."""

    queue: str
    offset: QueueOffset
    group: NotRequired[str | None]


class OffsetRead(TypedDict):
    """A committed offset as it was answered; None for a group that has none."""

    queue: str
    offset: QueueOffset | None
    group: NotRequired[str | None]


Decision = Literal["commit", "rollback", "none"]


class TxnAsked(TypedDict):
    """A transaction, and how it is to be decided."""

    key: str
    decision: Decision
    content: NotRequired[str | None]


class TxnAnswer(TypedDict, total=False):
    """The course of a transaction."""

    decided_ns: int
    confirmed: str
    id: str | None


class PushDelivery(TypedDict):
    """A message that a listener works on."""

    queue: str
    offset: QueueOffset
    key: str
    member: NotRequired[str | None]


class PoppedRow(msgspec.Struct, array_like=True, frozen=True):
    """One message that a pop handed out: a list in the history.

    Attributes:
        offset: in its queue, which may be one of a retry topic.
        popped_ms: the pop time, by the log's clock; with group, queue and offset it is the handle.
        invisible_ms: nobody else gets the message for so long from then on.
        times: its reconsume count.
    """

    queue: str
    offset: QueueOffset
    key: str
    popped_ms: int
    invisible_ms: int
    times: int
    content: str | None = None


class UsedHandle(msgspec.Struct, array_like=True, frozen=True):
    """A handle that is acknowledged or given another time: a list in the history."""

    queue: str
    offset: QueueOffset
    popped_ms: int
    key: str


class PopAsked(TypedDict):
    """A pop in the name of a group; `ordered` if it takes the messages of a queue in order."""

    group: str
    ordered: bool
    invisible_ms: int


class PopAnswer(TypedDict, total=False):
    """Messages that a pop handed out, in the order of the answer."""

    rows: list[PoppedRow]


class AckAsked(TypedDict):
    """Handles of messages that are done."""

    group: str
    handles: list[UsedHandle]


HandleEnd = Literal["ok", "gone", "fail", "info"]
"""The end of a handle; "gone": nothing was in flight under it, and the request has changed nothing."""


class AckAnswer(TypedDict, total=False):
    """The end of each handle, in their order; known of acknowledgements that failed, too."""

    ends: list[HandleEnd]


class ChangeAsked(TypedDict):
    """A message that nobody else is to get for so long from now on."""

    group: str
    handle: UsedHandle
    invisible_ms: int


class ChangeAnswer(TypedDict, total=False):
    """The pop time of the new handle; or what became of the old one."""

    popped_ms: int
    end: HandleEnd


class DeadRow(msgspec.Struct, array_like=True, frozen=True):
    """One dead letter; `stored_ms` is when it was stored, by the log's clock."""

    queue: str
    offset: QueueOffset
    key: str
    times: int
    stored_ms: int


class DeadRead(TypedDict, total=False):
    """All dead letters of a group."""

    group: Required[str]
    rows: list[DeadRow]


class GroupPassed(TypedDict, total=False):
    """Places of a group in all queues that it pops, which are at their ends or behind them."""

    group: Required[str]
    stands: Ends
    ends: Ends


# Of the nemesis and the observer.


class Strike(TypedDict, total=False):
    """A step of a fault: `do` alone when it begins, with `done` when it has ended."""

    do: str
    done: str
    broken: str
    missing: str
    took_ms: int


class LeaderSeen(TypedDict):
    """A change of the lead; of which group, where there are several."""

    term: Term
    group: NotRequired[str]


class Digest(TypedDict):
    """The digests of a replica at an applied index; of which group, where there are several."""

    index: Index
    digests: dict[str, object]
    group: NotRequired[str]
    alarm: NotRequired[str | None]


class EndSeen(TypedDict):
    """The end of a process that nobody had ended."""

    status: int
    words: str
    excused: bool


class Healed(TypedDict):
    """The state of a group after the last cure."""

    whole: bool
    waited_ms: int


BEGINS_INJECTION: Strike = {"do": "inject"}
"""Noted when a fault begins to strike; what it did follows in a second note."""


def strike_of(op: Op) -> Strike | None:
    """Return the step of a fault that an operation is; None for what is none."""
    if op.process != NEMESIS or not isinstance(op.value, dict):
        return None
    return shaped(op.value, Strike)

"""What was popped, read from a history for the checker of pops (`pops.py`). Pure; it judges nothing.

The shapes (`f`: values of the invocation and of the completion):

    pop      invoke {"group": ..., "ordered": ..., "invisible_ms": n}
             ok     {"rows": [[queue, offset, key, pop time, invisible time, reconsume count, content], ...]}
             Anything else: it may have handed out messages to nobody.
    ack      invoke {"group": ..., "handles": [[queue, offset, pop time, key], ...]}
             any    {"ends": what became of each: "ok", "gone", "fail", "info"}; without it all ended as the operation
    change   invoke {"group": ..., "handle": as above, "invisible_ms": n}
             ok     {"popped_ms": the pop time of the new handle}
             fail   {"end": "gone"} if nothing was in flight under the handle
    dead     ok     {"group": ..., "rows": [[queue, offset, key, reconsume count, store time], ...]}: all dead letters
    passed   ok     {"group": ..., "stands": {queue: n}, "ends": {queue: n}}: the group has popped its queues to the end

A *handing* is one time for which somebody has a message to himself: from a pop on, or from a change of its time. Its
handle is group, queue, offset and pop time. Pop times of one message rise in the order of the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dledger_mq.message import names
from dledger_mq.message.numbers import QueueOffset
from jepsen.checkers.messages import SendOp, operations, read_queue_history
from jepsen.history.ops import Op, OpType, Pair
from jepsen.history.values import (
    AckAnswer,
    AckAsked,
    ChangeAnswer,
    ChangeAsked,
    DeadRead,
    DeadRow,
    Ends,
    GroupPassed,
    HandleEnd,
    PopAnswer,
    PopAsked,
    UsedHandle,
    shaped,
)

GroupPlace = tuple[str, str, QueueOffset]
"""Group, queue, offset: a message as a group has it."""

ORIGINAL: Final = (0, 0)
"""The generation of a message where it was sent to."""

_RETRY: Final = 1
_DEAD: Final = (2, 0)


@dataclass(frozen=True, slots=True)
class HandedOut:
    """One time for which somebody has a message to himself.

    Attributes:
        place: whose message it is, and which.
        is_change: its holder has changed the time.
        invoke, completion: the operation that brought it.
    """

    place: GroupPlace
    key: str
    popped_ms: int
    invisible_ms: int
    invoke: Op
    completion: Op
    content: str | None = None
    is_change: bool = False

    @property
    def ops(self) -> tuple[int, ...]:
        """The indexes of its operations."""
        return (self.invoke.index, self.completion.index)


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a handle: an acknowledgement, or a change of its time.

    Attributes:
        invisible_ms: the time that a change asks for; None for an acknowledgement.
        completion: None if it has none.
    """

    place: GroupPlace
    key: str
    popped_ms: int
    end: HandleEnd
    invoke: Op
    completion: Op | None
    invisible_ms: int | None = None

    @property
    def is_ack(self) -> bool:
        """True for an acknowledgement."""
        return self.invisible_ms is None

    @property
    def ops(self) -> tuple[int, ...]:
        """The indexes of its operations."""
        return tuple(op.index for op in (self.invoke, self.completion) if op is not None)


@dataclass(frozen=True, slots=True)
class Passed:
    """The word of the leader that a group has popped its queues to the end."""

    invoke: Op
    ends: Ends


@dataclass(frozen=True, slots=True)
class PopAnswered:
    """A pop that was answered with messages."""

    group: str
    is_ordered: bool
    handings: tuple[HandedOut, ...]


@dataclass(slots=True)
class PopHistory:
    """A history of pops, read once.

    Attributes:
        sends: by key.
        refused: keys of messages that were surely not stored.
        answers: pops with messages, in order of invocation.
        handings: of each message of a group, by pop time.
        uses: of each message of a group, in order of invocation.
        dead: dead letters by group and key, with the operation that read them.
        passed: by group, the last word about it.
        last_due_ns: by group: what is in flight is due by then, by the clock of the run and as far as anybody knows.
    """

    sends: dict[str, SendOp] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    answers: list[PopAnswered] = field(default_factory=list)
    handings: dict[GroupPlace, list[HandedOut]] = field(default_factory=lambda: defaultdict(list))
    uses: dict[GroupPlace, list[Use]] = field(default_factory=lambda: defaultdict(list))
    dead: dict[tuple[str, str], list[tuple[DeadRow, Op]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    passed: dict[str, Passed] = field(default_factory=dict)
    last_due_ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def groups(self) -> list[str]:
        """All groups that popped, sorted."""
        return sorted({group for group, _, _ in self.handings} | self.last_due_ns.keys())

    def acks(self, *ends: HandleEnd) -> list[Use]:
        """Return the acknowledgements that ended so."""
        return [
            use for uses in self.uses.values() for use in uses if use.is_ack and use.end in ends
        ]


def generation(place: GroupPlace) -> tuple[int, int]:
    """Return how often a message was copied on its way there: a copy is later than what it was copied from."""
    _, queue, offset = place
    topic = queue.split("/")[0]
    if names.is_retry_topic(topic):
        return (_RETRY, offset)
    return _DEAD if names.is_dlq_topic(topic) else ORIGINAL


def read_pop_history(ops: Sequence[Op]) -> PopHistory:
    """Gather the operations on popped messages.

    Raises:
        ValueError: the history is none, see `jepsen.history.ops.pairs`.
        msgspec.ValidationError: a value has another shape than this module's text says.
    """
    queues = read_queue_history(ops)
    history = PopHistory({send.key: send for send in queues.sends}, set(queues.refused()))
    end_ns = ops[-1].t_ns if ops else 0
    for pair in operations(ops):
        match pair.invoke.f:
            case "pop":
                _pop(pair, history, end_ns)
            case "ack":
                _ack(pair, history)
            case "change":
                _change(pair, history, end_ns)
            case "dead" if pair.completion is not None and pair.type == "ok":
                read = shaped(pair.completion.value, DeadRead)
                for row in read.get("rows", []):
                    _note_dead(history, read["group"], row, pair.completion)
            case "passed" if pair.completion is not None and pair.type == "ok":
                passed = shaped(pair.completion.value, GroupPassed)
                history.passed[passed["group"]] = Passed(pair.invoke, passed.get("ends", {}))
            case _:
                pass
    for handings in history.handings.values():
        handings.sort(key=lambda each: (each.popped_ms, each.completion.index))
    return history


def _note_dead(history: PopHistory, group: str, row: DeadRow, op: Op) -> None:
    """Note a dead letter once, however often it is read."""
    rows = history.dead[group, row.key]
    if all((row.queue, row.offset) != (known.queue, known.offset) for known, _ in rows):
        rows.append((row, op))


def _note_time(
    history: PopHistory, group: str, pair: Pair, invisible_ms: int, *, end_ns: int
) -> None:
    """Note that something may be in flight for so long from the end of an operation on."""
    if pair.type != "fail":
        ended_ns = end_ns if pair.completion is None else pair.completion.t_ns
        due_ns = ended_ns + invisible_ms * 1_000_000
        history.last_due_ns[group] = max(history.last_due_ns[group], due_ns)


def _pop(pair: Pair, history: PopHistory, end_ns: int) -> None:
    """Note the messages that a pop handed out, and how long what it asked for may be in flight."""
    asked = shaped(pair.invoke.value, PopAsked)
    group = asked["group"]
    if pair.completion is None or pair.type != "ok":
        _note_time(history, group, pair, asked["invisible_ms"], end_ns=end_ns)
        return
    rows = shaped(pair.completion.value or {}, PopAnswer).get("rows", [])
    handings = tuple(
        HandedOut(
            (group, row.queue, row.offset),
            row.key,
            row.popped_ms,
            row.invisible_ms,
            pair.invoke,
            pair.completion,
            row.content,
        )
        for row in rows
    )
    for handing in handings:
        history.handings[handing.place].append(handing)
    history.last_due_ns.setdefault(group, 0)
    if handings:
        _note_time(history, group, pair, asked["invisible_ms"], end_ns=end_ns)
        history.answers.append(PopAnswered(group, asked["ordered"], handings))


def _ack(pair: Pair, history: PopHistory) -> None:
    asked = shaped(pair.invoke.value, AckAsked)
    told = pair.completion.value if pair.completion is not None else None
    answer = shaped(told, AckAnswer) if isinstance(told, dict) else {}
    ends = answer.get("ends") or [_end_of(pair.type)] * len(asked["handles"])
    for handle, end in zip(asked["handles"], ends, strict=True):
        place = (asked["group"], handle.queue, handle.offset)
        use = Use(place, handle.key, handle.popped_ms, end, pair.invoke, pair.completion)
        history.uses[place].append(use)


def _change(pair: Pair, history: PopHistory, end_ns: int) -> None:
    """Note a handle that was given another time, and the new one as handed out."""
    asked = shaped(pair.invoke.value, ChangeAsked)
    handle: UsedHandle = asked["handle"]
    told = pair.completion.value if pair.completion is not None else None
    answer = shaped(told, ChangeAnswer) if isinstance(told, dict) else {}
    place = (asked["group"], handle.queue, handle.offset)
    end = answer.get("end") or _end_of(pair.type)
    wanted_ms = asked["invisible_ms"]
    use = Use(place, handle.key, handle.popped_ms, end, pair.invoke, pair.completion, wanted_ms)
    history.uses[place].append(use)
    _note_time(history, asked["group"], pair, wanted_ms, end_ns=end_ns)
    if pair.completion is not None and pair.type == "ok":
        handing = HandedOut(
            place,
            handle.key,
            answer["popped_ms"],
            wanted_ms,
            pair.invoke,
            pair.completion,
            is_change=True,
        )
        history.handings[place].append(handing)


def _end_of(type_: OpType) -> HandleEnd:
    assert type_ != "invoke", "an operation has ended, or nobody knows"
    return type_

"""Queue operations as checkers see them: sends, polls and drains, read from a history. Pure.

The shapes (`f`: values of the invocation and of the completion; a completion that is `fail` or `info` may leave
its value out). `queue` is a name of its own such as "topic/broker/3", `key` names a message for ever: but for
`frames`, it is never sent twice by the workload.

    send        invoke {"key": "p3-17", "queue": "topic/broker/3" or null, "content": text}
                ok     {..., "queue": ..., "offset": 41, "uniq": UNIQ_KEY, "id": the offset message id}
                `content` is the same for messages that are the same, and only for them; it may be left out, as may
                `uniq`, `offset` and `id` where a client does not have them.
                A message with a due time has "due_ns" too, in time of the run: on `invoke` the earliest moment at
                which it may come, on `ok` the latest at which it falls due (the same, when it names its time).
    send-batch  invoke {"queue": ..., "keys": [...]}
                ok     {..., "offsets": [...], "uniqs": [...]}
    frames      invoke {"frames": [{"queue": ..., "messages": [[key, content], ...]}, ...]}: requests that need not
                wait for each other. A key that comes again is the very same message, for the same queue, of which
                nobody was answered that it is stored. With "half" it is a half message that was committed if it is `ok`
                ok     {"frames": [{"end": "ok", "fail" or "info", "queue": ..., "offset": of the first message,
                "ids": of all}, ...]}
    poll        ok     {queue: [[offset, key], ...], ...}; further members, where they are known: the UNIQ_KEY,
                the place in the log (a byte), the content
                An empty list says that the queue was asked and had nothing.
    receive     ok     as `poll`; stands alone, without an invocation: what a push consumer was handed
    assign      ok     anything: from here on the process reads from other places; `poll` and `receive` of it are
                compared with each other only between two of these
    join        ok     {"group": ...}: what the process reads from here on, it reads for that group; all who join none
                read together. A group of its own must get every message, whatever others got
    leave       ok     anything: the process reads no more; of a group that all have left nothing is asked
    group-drained ok   {"group": ..., "ends": as `drained`}: its members have passed these places
    drained     ok     {queue: end, ...}: all offsets below `end` were asked for, and `end` was the queue's max offset
    commit      invoke {"queue": ..., "offset": n, "group": ...}
    committed   ok     {"queue": ..., "offset": n or null, "group": ...}
    txn         see transactions.py
    process     see ordered.py
    digest      see replicas.py

A client that does not say of which group a queue is leaves it out on `ok`, and writes "topic//3" of what it was handed;
both are named by what others say of the message (`known_queues.py`).

A queue that nobody drained cannot show a loss: what is missing there is *unseen*, and the verdict unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dledger_mq.message.numbers import PhysicalOffset, QueueOffset
from jepsen.checkers.known_queues import KnownQueues, is_nameless
from jepsen.checkers.results import Anomaly
from jepsen.history.ops import RECEIVE, Op, OpType, Pair, pairs
from jepsen.history.values import (
    BatchAnswer,
    BatchAsked,
    Ends,
    FrameEnd,
    FramesAnswer,
    FramesAsked,
    GroupDrained,
    Joined,
    PolledMessage,
    Rows,
    SendAnswer,
    SendAsked,
    Shape,
    shaped,
)

READS: Final = ("poll", RECEIVE)

Place = tuple[str, QueueOffset]  # queue, offset


@dataclass(frozen=True, slots=True)
class SendOp:
    """The send of one message, over all of its attempts.

    Attributes:
        key: its name.
        queue: where it went, None when that is not known.
        type: how the send ended.
        offset: where it stands, None when no answer named it.
        uniq: its UNIQ_KEY, empty when that is not known.
        invoke, completion: the operations.
        asked: the queue that it was meant for, None when any would do.
        id: its offset message id, empty when no answer named it.
        content: what was sent; None when that is not known.
        due_from_ns, due_to_ns: bounds of its due time; None for a message without.
        is_half: whether it was acknowledged as a half message.
    """

    key: str
    queue: str | None
    type: OpType
    offset: QueueOffset | None
    uniq: str
    invoke: Op
    completion: Op | None
    due_from_ns: int | None = None
    due_to_ns: int | None = None
    asked: str | None = None
    id: str = ""
    content: str | None = None
    is_half: bool = False

    @property
    def is_parked(self) -> bool:
        """True when it was acknowledged where it waits, and is read elsewhere."""
        return self.is_half or self.due_from_ns is not None

    @property
    def is_ok(self) -> bool:
        """True when it was acknowledged."""
        return self.type == "ok"

    @property
    def ops(self) -> tuple[int, ...]:
        """The indexes of its operations in the history."""
        return tuple(op.index for op in (self.invoke, self.completion) if op is not None)


@dataclass(frozen=True, slots=True)
class ReadMessage:
    """A message as it was read; `at` is the byte of the log at which it stands, None when not known."""

    queue: str
    offset: QueueOffset
    key: str
    uniq: str = ""
    at: PhysicalOffset | None = None
    content: str | None = None

    @property
    def place(self) -> Place:
        """The queue and the offset at which it stands."""
        return (self.queue, self.offset)


@dataclass(frozen=True, slots=True)
class Poll:
    """One answer with messages.

    Attributes:
        process: who read.
        assignment: how often the process had changed its places before.
        invoke: the question; what was handed over without one stands here itself.
        completion: the answer.
        group: for whom; "" stands for all who joined none.
        queues: what it held by queue, in the order of the answer.
    """

    process: int | str
    assignment: int
    invoke: Op
    completion: Op
    group: str
    queues: Mapping[str, Sequence[ReadMessage]]

    @property
    def messages(self) -> Iterable[ReadMessage]:
        """The messages of all queues in the answer."""
        return (message for messages in self.queues.values() for message in messages)


@dataclass(frozen=True, slots=True)
class Drain:
    """A queue that was read to its end.

    Attributes:
        end: max offset of the queue.
        op: index of the operation that began to ask for the end.
    """

    end: QueueOffset
    op: int


@dataclass(slots=True)
class QueueHistory:
    """A history of queues, read once.

    Attributes:
        sends: in order of invocation; those of a batch stand as sends of their own.
        batches: the acknowledged ones, each as its sends.
        polls: answers, in order of completion.
        drained: by queue, up to where it was read when it was last read to the end.
        groups: the same for each group of its own that has members; what these passed.
    """

    sends: list[SendOp] = field(default_factory=list)
    batches: list[list[SendOp]] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    drained: dict[str, Drain] = field(default_factory=dict)
    groups: dict[str, dict[str, Drain]] = field(default_factory=dict)

    def refused(self) -> dict[str, SendOp]:
        """Return the sends of messages that were surely not stored, however often they were sent; by key."""
        last = {send.key: send for send in self.sends}
        for send in self.sends:
            if send.type != "fail":
                last.pop(send.key, None)
        return last

    def is_drained_after(self, send: SendOp, group: str = "") -> bool:
        """Return whether its queue was read to the end, by the group, once it was acknowledged.

        That end may lie before the message: a log that lost its tail is drained soon. Of a message whose queue nobody
        knows, every queue must have been.
        """
        drains = self.groups[group] if group else self.drained
        names = {send.queue} if send.queue is not None else self.queues
        found = [drains.get(name) for name in names]
        completion = send.completion
        return (
            bool(found)
            and completion is not None
            and all(drain is not None and completion.index < drain.op for drain in found)
        )

    @property
    def queues(self) -> set[str]:
        """The names of all queues of which anything is known."""
        sent = {send.queue for send in self.sends if send.queue is not None}
        read = {queue for poll in self.polls for queue in poll.queues if not is_nameless(queue)}
        return sent | read | self.drained.keys()


def operations(ops: Sequence[Op]) -> list[Pair]:
    """Return the operations of workers, without what stands alone.

    Raises:
        ValueError: the history is none, see `jepsen.history.ops.pairs`.
    """
    return pairs([op for op in ops if op.f != RECEIVE])


def read_queue_history(ops: Sequence[Op]) -> QueueHistory:
    """Gather the operations on queues.

    Raises:
        ValueError: the history is none, see `jepsen.history.ops.pairs`.
        msgspec.ValidationError: a value has another shape than this module's text says.
    """
    history = QueueHistory()
    polled: dict[int, Op] = {}
    for pair in operations(ops):
        _gather(pair, history)
        if pair.invoke.f == "poll" and pair.completion is not None:
            polled[pair.completion.index] = pair.invoke
    assignments: dict[int | str, int] = defaultdict(int)
    members: dict[int | str, str] = {}
    for op in ops:
        if op.type != "ok" or not op.is_client:
            continue
        if op.f == "assign":
            assignments[op.process] += 1
        elif op.f == "join":
            members[op.process] = shaped(op.value, Joined)["group"]
            history.groups.setdefault(members[op.process], {})
        elif op.f == "leave":
            group = members.pop(op.process, "")
            if group not in members.values():
                history.groups.pop(group, None)
        elif op.f in READS:
            invoke = polled.get(op.index, op)
            queues = {
                queue: [_message(queue, row) for row in rows]
                for queue, rows in shaped(op.value or {}, Rows).items()
            }
            group = members.get(op.process, "")
            assignment = assignments[op.process]
            history.polls.append(Poll(op.process, assignment, invoke, op, group, queues))
    _name_queues(history)
    return history


def _name_queues(history: QueueHistory) -> None:
    """Name the queues of messages that a client placed without saying of which group."""
    known = KnownQueues()
    for send in history.sends:
        if send.queue is not None and send.offset is not None:
            known.note(send.key, send.queue, send.offset)
    for poll in history.polls:
        for message in poll.messages:
            known.note(message.key, message.queue, message.offset)
    for at, send in enumerate(history.sends):
        if send.queue is None and send.offset is not None:
            queue = known.queue_of(send.key, send.offset)
            offset = send.offset if queue is not None else None
            history.sends[at] = replace(send, queue=queue, offset=offset)
    for at, poll in enumerate(history.polls):
        if any(is_nameless(queue) for queue in poll.queues):
            history.polls[at] = replace(poll, queues=_named(poll.messages, known))


def _named(messages: Iterable[ReadMessage], known: KnownQueues) -> dict[str, list[ReadMessage]]:
    """Return messages by queue, each in the queue in which it is known to stand; else where its reader said."""
    found: dict[str, list[ReadMessage]] = defaultdict(list)
    for message in messages:
        queue = message.queue
        if is_nameless(queue):
            queue = known.queue_of(message.key, message.offset, queue) or queue
        found[queue].append(replace(message, queue=queue))
    return found


def _gather(pair: Pair, history: QueueHistory) -> None:
    """Add one operation's sends, or the end of a queue that it read, to what was gathered."""
    begin = pair.invoke.index
    match pair.invoke.f:
        case "send":
            history.sends.append(_send(pair))
        case "send-batch":
            batch = _batch(pair)
            history.sends += batch
            if pair.type == "ok":
                history.batches.append(batch)
        case "frames":
            history.sends += _frames(pair)
        case "drained":
            history.drained |= _drains(_answer(pair, Ends), begin)
        case "group-drained" if pair.type == "ok":
            passed = _answer(pair, GroupDrained)
            history.groups.setdefault(passed["group"], {}).update(_drains(passed["ends"], begin))
        case _:
            pass


def _drains(ends: Mapping[str, QueueOffset], begin: int) -> dict[str, Drain]:
    return {queue: Drain(end, begin) for queue, end in ends.items()}


def never_sent(history: QueueHistory, known: Container[str]) -> Iterator[Anomaly]:
    """Yield an anomaly for each message that was read and that nobody had sent.

    Args:
        history: what was read, and what was sent plainly.
        known: keys that were sent in other ways.
    """
    begun: dict[str, int] = {}
    for send in history.sends:
        begun.setdefault(send.key, send.invoke.index)
    seen: set[str] = set()
    for poll in history.polls:  # in order of completion
        for message in poll.messages:
            if message.key in seen:
                continue
            seen.add(message.key)
            at = begun.get(message.key)
            when = "before it was sent" if at is not None else "and never sent"
            if message.key not in known and (at is None or poll.completion.index < at):
                text = f"{message.key} was read at {message.offset} of {message.queue} {when}"
                ops = (poll.completion.index, *(() if at is None else (at,)))
                yield Anomaly("unexpected", text, ops)


def _send(pair: Pair) -> SendOp:
    """Read one send; what the answer says (its queue, above all) counts more than what was asked for."""
    asked, answer = shaped(pair.invoke.value, SendAsked), _answer(pair, SendAnswer)
    return SendOp(
        key=asked["key"],
        queue=answer.get("queue") or asked.get("queue"),
        type=pair.type,
        offset=answer.get("offset"),
        uniq=answer.get("uniq") or "",
        invoke=pair.invoke,
        completion=pair.completion,
        due_from_ns=asked.get("due_ns"),
        due_to_ns=answer.get("due_ns"),
        asked=asked.get("queue"),
        id=answer.get("id") or "",
        content=asked.get("content"),
    )


def _batch(pair: Pair) -> list[SendOp]:
    asked, answer = shaped(pair.invoke.value, BatchAsked), _answer(pair, BatchAnswer)
    keys = asked["keys"]
    offsets: Sequence[QueueOffset | None] = answer.get("offsets") or [None] * len(keys)
    uniqs = answer.get("uniqs") or [""] * len(keys)
    queue = answer.get("queue") or asked.get("queue")
    return [
        SendOp(key, queue, pair.type, offset, uniq, pair.invoke, pair.completion)
        for key, offset, uniq in zip(keys, offsets, uniqs, strict=True)
    ]


def _frames(pair: Pair) -> Iterator[SendOp]:
    """Yield the messages of all frames; an answer gives the offset of a frame's first message only, and each id."""
    asked = shaped(pair.invoke.value, FramesAsked)["frames"]
    unknown: FrameEnd = {"end": "info" if pair.type == "ok" else pair.type}
    ends = _answer(pair, FramesAnswer).get("frames") or [unknown] * len(asked)
    for frame, end in zip(asked, ends, strict=True):
        ids = end.get("ids") or [""] * len(frame["messages"])
        for place, (key, content) in enumerate(frame["messages"]):
            yield SendOp(
                key,
                end.get("queue") or frame["queue"],
                end["end"],
                None if place else end.get("offset"),
                "",
                pair.invoke,
                pair.completion,
                asked=frame["queue"],
                id=ids[place],
                content=content,
                is_half=bool(frame.get("half")),
            )


def _answer(pair: Pair, shape: type[Shape]) -> Shape:
    """Return the value of an acknowledgement; any other completion says nothing."""
    is_ok = pair.completion is not None and pair.type == "ok"
    return shaped(pair.completion.value if pair.completion is not None and is_ok else {}, shape)


def _message(queue: str, row: PolledMessage) -> ReadMessage:
    return ReadMessage(queue, row.offset, row.key, row.uniq, row.at, row.content)

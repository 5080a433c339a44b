"""Judges each queue as a log: an offset names one message for ever, and readers meet them in order.

The model, that of Jepsen's Kafka tests. A queue is a list of messages without holes, and an offset is a place in it. An
acknowledged send names the place; of two sends to a queue, one over before the other began, the later one
stands after it. A reader that keeps its places gets a queue's messages in order and leaves none out.

    inconsistent-offset        two messages at one offset, in whatever answers
    lost                       acknowledged at an offset below what readers have seen or drained, read by nobody; or
                               known to stand at an offset at which its queue ended later, read before or not
    aborted-read               read, though each of its sends was surely refused
    duplicate                  one message at two offsets, under the same UNIQ_KEY or none known
    nonmonotonic-send          a send began after another was acknowledged, and stands at or before it
    nonmonotonic-send-internal the same within a batch
    nonmonotonic-poll          a reader got an offset at or before one it had got in an earlier answer
    nonmonotonic-poll-internal the same within an answer
    poll-skip                  a reader went past an offset that is known to hold a message
    poll-skip-internal         the same within an answer

Counted only: *rekeyed* (one message at two offsets under different UNIQ_KEYs: a client sent it again as another one,
which no broker can recognise), *unseen* (acknowledged after everything that was read), *redelivered*, and the *worst
lag*: how long ago the oldest message was acknowledged that a reader at its place should have had next when it asked.

Readers of a group that hand queues to each other start again at the committed offset; they say so with `assign`.
What a push consumer is handed (`receive`) may go back without that to what its group was handed before (its queue was
taken away and came back): it is counted as redelivered. Skips are judged all the same, and so is a step back to what
nobody of the group had.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from jepsen.checkers.messages import Poll, QueueHistory, ReadMessage, SendOp, read_queue_history
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import RECEIVE, Op
from jepsen.history.phases import span_of

NAME = "queue-log"


@dataclass(slots=True)
class _Log:
    """The known content of one queue: who holds which offset, and which op says so."""

    keys: dict[int, dict[str, int]] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)

    def note(self, offset: int, key: str, op: int) -> None:
        """Note that operation `op` saw the message `key` at an offset."""
        self.keys.setdefault(offset, {}).setdefault(key, op)


def check_queue_log(ops: Sequence[Op]) -> CheckResult:
    """Judge the offsets of all queues; `messages.py` describes the operations."""
    history = read_queue_history(ops)
    logs = _logs(history)
    lost, unseen = _lost(history, logs)
    duplicates, rekeyed = _duplicates(history)
    walk = _walk_polls(history, logs)
    anomalies = [
        *_inconsistent(logs),
        *lost,
        *_aborted(history),
        *duplicates,
        *_sends_back(history.sends),
        *_batches_back(history.batches),
        *walk.anomalies,
    ]
    counts: dict[str, object] = {
        "queues": len(logs),
        "acknowledged": sum(send.is_ok for send in history.sends),
        "read": sum(len(log.read) for log in logs.values()),
        "lost": len(lost),
        "unseen": unseen,
        "duplicate": len(duplicates),
        "rekeyed": rekeyed,
        "redelivered": walk.redelivered,
        "worst_lag_s": round(_worst_lag_ns(history, span_of(ops, "breaking")) / 1e9, 3),
    }
    # Messages of transactions are not sent by `send`: then what was read can be judged alone.
    is_silent = not counts["acknowledged"] and (history.sends or not counts["read"])
    why = "no send was acknowledged" if is_silent else ""
    return judged(NAME, anomalies, counts, why)


def _logs(history: QueueHistory) -> dict[str, _Log]:
    logs: dict[str, _Log] = defaultdict(_Log)
    for send in history.sends:
        if send.queue is not None and send.offset is not None:
            logs[send.queue].note(send.offset, send.key, send.ops[-1])
    for poll in history.polls:
        for message in poll.messages:
            log = logs[message.queue]
            log.note(message.offset, message.key, poll.completion.index)
            log.read.add(message.offset)
    return dict(sorted(logs.items()))


def _inconsistent(logs: dict[str, _Log]) -> Iterator[Anomaly]:
    for queue, log in logs.items():
        for offset, keys in sorted(log.keys.items()):
            if len(keys) > 1:
                text = f"offset {offset} of {queue} holds {' and '.join(sorted(keys))}"
                yield Anomaly("inconsistent-offset", text, tuple(sorted(keys.values())))


def _lost(history: QueueHistory, logs: dict[str, _Log]) -> tuple[list[Anomaly], int]:
    """Return acknowledged messages that should have been read and were not; and how many lie beyond the last read."""
    found, unseen = [], 0
    ends = {queue: max(log.read, default=-1) + 1 for queue, log in logs.items()}
    keys_read = {message.key for poll in history.polls for message in poll.messages}
    for key, anomaly in _cut_off(history, logs):
        found.append(anomaly)
        keys_read.add(key)  # judged already
    for send in history.sends:
        if send.queue is None or send.offset is None or send.key in keys_read:
            continue
        if send.offset < ends[send.queue] or history.is_drained_after(send):
            text = (
                f"{send.key} was acknowledged at offset {send.offset} of {send.queue}, "
                f"which was read up to {ends[send.queue]}, and never read"
            )
            found.append(Anomaly("lost", text, send.ops))
        else:
            unseen += 1
    return found, unseen


def _cut_off(history: QueueHistory, logs: dict[str, _Log]) -> Iterator[tuple[str, Anomaly]]:
    """Yield keys that stood where their queue had no more messages later: a log that lost its end, or everything."""
    for queue, drain in history.drained.items():
        known = logs[queue].keys if queue in logs else {}
        for offset in sorted(each for each in known if each >= drain.end):
            for key, op in known[offset].items():
                if op < drain.op:
                    text = f"{key} stood at {offset} of {queue}, which ended at {drain.end} later"
                    yield key, Anomaly("lost", text, (op, drain.op))


def _aborted(history: QueueHistory) -> Iterator[Anomaly]:
    refused = history.refused()
    for poll in history.polls:
        for message in poll.messages:
            send = refused.pop(message.key, None)
            if send is not None:
                text = (
                    f"{message.key} was refused and stands at {message.offset} of {message.queue}"
                )
                yield Anomaly("aborted-read", text, (*send.ops, poll.completion.index))


def _duplicates(history: QueueHistory) -> tuple[list[Anomaly], int]:
    """Return messages at more than one place under one UNIQ_KEY, and how many stand there under several."""
    places: dict[str, dict[tuple[str, int], tuple[str, int]]] = defaultdict(dict)
    for send in history.sends:
        if send.queue is not None and send.offset is not None:
            places[send.key][send.queue, send.offset] = (send.uniq, send.ops[-1])
    for poll in history.polls:
        for message in poll.messages:
            known = places[message.key].get(message.place)
            if known is None or not known[0]:
                places[message.key][message.place] = (message.uniq, poll.completion.index)
    found, rekeyed = [], 0
    for key, at in places.items():
        if len(at) == 1:
            continue
        uniqs = [uniq for uniq, _ in at.values()]
        if all(uniqs) and len(set(uniqs)) == len(at):
            rekeyed += 1
            continue
        text = f"{key} stands at {' and '.join(f'{offset} of {queue}' for queue, offset in sorted(at))}"
        found.append(Anomaly("duplicate", text, tuple(sorted(op for _, op in at.values()))))
    return found, rekeyed


def _sends_back(sends: Sequence[SendOp]) -> Iterator[Anomaly]:
    """Yield pairs of sends, one begun after the other ended, that are stored in the opposite order.

    A message that is sent again began when it was sent first, and its place is no news then.
    """
    by_queue: dict[str, list[SendOp]] = defaultdict(list)
    begun: set[str] = set()
    for send in sends:
        is_first = send.key not in begun
        begun.add(send.key)
        if is_first and send.queue is not None and send.offset is not None:
            by_queue[send.queue].append(send)
    for queue, row in sorted(by_queue.items()):
        ended = sorted(row, key=lambda send: send.ops[-1])
        at, highest = 0, None
        for send in row:  # in order of invocation
            while at < len(ended) and ended[at].ops[-1] < send.invoke.index:
                highest = max(highest or ended[at], ended[at], key=lambda one: one.offset or 0)
                at += 1
            if highest is not None and (send.offset or 0) <= (highest.offset or 0):
                text = (
                    f"{send.key} stands at {send.offset} of {queue} and was sent after {highest.key} "
                    f"was acknowledged at {highest.offset}"
                )
                yield Anomaly("nonmonotonic-send", text, (*highest.ops, *send.ops))


def _batches_back(batches: Iterable[Sequence[SendOp]]) -> Iterator[Anomaly]:
    for batch in batches:
        for one, other in pairwise(batch):
            if one.offset is not None and other.offset is not None and other.offset <= one.offset:
                text = f"{other.key} at {other.offset} follows {one.key} at {one.offset} in a batch"
                yield Anomaly("nonmonotonic-send-internal", text, one.ops)


@dataclass(slots=True)
class _Walk:
    """The findings about all readers."""

    anomalies: list[Anomaly] = field(default_factory=list)
    redelivered: int = 0


def _walk_polls(history: QueueHistory, logs: dict[str, _Log]) -> _Walk:
    """Follow each reader along each queue."""
    walk = _Walk()
    known = {queue: sorted(log.keys) for queue, log in logs.items()}
    last: dict[tuple[int | str, int, str], tuple[int, int]] = {}  # offset, op
    handed: set[tuple[str, str, int]] = set()  # group, queue, offset
    for poll in history.polls:
        for queue, messages in poll.queues.items():
            reader = (poll.process, poll.assignment, queue)
            before = last.get(reader)
            for at, message in enumerate(messages):
                place = (poll.group, queue, message.offset)
                is_again = poll.completion.f == RECEIVE and place in handed
                if poll.completion.f == RECEIVE:
                    handed.add(place)
                if before is not None:
                    walk.redelivered += message.offset <= before[0]
                    if not (is_again and message.offset <= before[0]):
                        walk.anomalies += _step(
                            before, message, poll, known[queue], is_internal=at > 0
                        )
                before = (message.offset, poll.completion.index)
            if before is not None:
                last[reader] = before
    return walk


def _step(
    before: tuple[int, int],
    message: ReadMessage,
    poll: Poll,
    known: Sequence[int],
    *,
    is_internal: bool,
) -> Iterator[Anomaly]:
    """Judge the step from one message of a queue to the next one that the same reader got."""
    offset, op = before
    suffix = "-internal" if is_internal else ""
    ops = (poll.completion.index,) if is_internal else (op, poll.completion.index)
    who = f"process {poll.process} got offset {message.offset} of {message.queue} after {offset}"
    if message.offset <= offset:
        yield Anomaly(f"nonmonotonic-poll{suffix}", who, ops)
        return
    skipped = known[bisect_right(known, offset) : bisect_left(known, message.offset)]
    if skipped:
        text = f"{who}, past {len(skipped)} known messages from {skipped[0]} on"
        yield Anomaly(f"poll-skip{suffix}", text, ops)


def _worst_lag_ns(history: QueueHistory, span: tuple[int, int]) -> int:
    """Return how far behind a reader was at worst, of those that asked in this time: later everything is read anew."""
    acked: dict[str, list[tuple[int, int]]] = defaultdict(list)  # offset, when acknowledged
    for send in history.sends:
        if send.queue is not None and send.offset is not None and send.completion is not None:
            acked[send.queue].append((send.offset, send.completion.t_ns))
    earliest = {queue: _earliest_from(row) for queue, row in acked.items()}
    worst = 0
    for poll in history.polls:
        if not span[0] <= poll.invoke.t_ns <= span[1]:
            continue
        for queue, messages in poll.queues.items():
            if queue not in earliest or not messages:
                continue
            offsets, times = earliest[queue]
            at = bisect_right(offsets, messages[-1].offset)
            if at < len(offsets):
                worst = max(worst, poll.invoke.t_ns - times[at])
    return worst


def _earliest_from(row: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return, by offset, when the first message from there on was acknowledged."""
    ordered = sorted(row)
    times = [when for _, when in ordered]
    for at in range(len(times) - 2, -1, -1):
        times[at] = min(times[at], times[at + 1])
    return [offset for offset, _ in ordered], times

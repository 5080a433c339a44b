"""Judges that machines which share several broker groups use each of them, and counts by group.

The model. Groups know nothing of each other. A message stands in queues of one group only: the one that acknowledged
it, or for which it was meant. Everything else that must hold in a group holds for each of its queues, and is judged
there (`queue_log.py`, `total_queue.py`, ...): the names of queues say whose they are.

    two-groups  one message, under the same UNIQ_KEY or none known, in queues of several groups

Counted by group are messages acknowledged there, read there (each once, however often it came), and *lost*:
acknowledged and not read though the queue was drained; messages with a due time and half messages are left out of the
last. A client that sends a message to another group under a new UNIQ_KEY makes another message of it, which is counted
as *sent again*. The verdict is unknown when one of the groups acknowledged nothing: what it would have lost was not
tested. A message of a transaction that was read somewhere was acknowledged there.

Where no messages are sent in operations, but keys belong to groups (consumer groups whose offsets are committed in
one), it is counted what was acknowledged of the keys of each: `check_groups_of_keys`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass

from jepsen.checkers.messages import QueueHistory, operations, read_queue_history
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op
from jepsen.history.values import Keyed, TxnAsked, shaped

NAME = "groups"


@dataclass(slots=True)
class GroupTally:
    """The messages of one group."""

    acknowledged: int = 0
    read: int = 0
    lost: int = 0


def check_groups(ops: Sequence[Op], *, groups: int) -> CheckResult:
    """Count messages by the group in whose queues they stand, and look for those that stand in several.

    Args:
        ops: the history.
        groups: how many there are.
    """
    history = read_queue_history(ops)
    found = tallies_by_group(history)
    anomalies, sent_again = _in_several(history)
    counts: dict[str, object] = {
        "groups": len(found),
        "acknowledged": sum(tally.acknowledged for tally in found.values()),
        "read": sum(tally.read for tally in found.values()),
        "lost": sum(tally.lost for tally in found.values()),
        "sent_again": sent_again,
        "by_group": {group: asdict(tally) for group, tally in found.items()},
    }
    used = {group for group, tally in found.items() if tally.acknowledged}
    used |= _with_transactions(ops, history)
    why = "" if len(used) >= groups else f"{len(used)} of {groups} groups acknowledged a message"
    return judged(NAME, anomalies, counts, why)


def _with_transactions(ops: Sequence[Op], history: QueueHistory) -> set[str]:
    """Return the groups in which messages of transactions were read: that one was prepared there names no queue."""
    prepared = {
        shaped(pair.invoke.value, TxnAsked)["key"]
        for pair in operations(ops)
        if pair.invoke.f == "txn" and pair.type == "ok"
    }
    read = (message for poll in history.polls for message in poll.messages)
    return {group_of(message.queue) for message in read if message.key in prepared}


def check_groups_of_keys(ops: Sequence[Op], *, groups: int, writes: Collection[str]) -> CheckResult:
    """Count acknowledged writes by the group whose name, with a hyphen, begins the key.

    Args:
        ops: the history, whose values are [key, argument].
        groups: how many there are.
        writes: the operations that something must come of in each group: an answer that there is nothing tests little.
    """
    found: Counter[str] = Counter()
    for pair in operations(ops):
        if pair.invoke.f in writes and pair.type == "ok":
            found[str(shaped(pair.invoke.value, Keyed).key).rpartition("-")[0]] += 1
    counts: dict[str, object] = {
        "groups": len(found),
        "acknowledged": found.total(),
        "by_group": {group: {"acknowledged": found[group]} for group in sorted(found)},
    }
    used = len(found)
    why = (
        "" if used >= groups else f"{used} of {groups} groups acknowledged a {' or '.join(writes)}"
    )
    return judged(NAME, (), counts, why)


def group_of(queue: str) -> str:
    """Return the broker name in the name of a queue."""
    return queue.rsplit("/", 2)[1]


def tallies_by_group(history: QueueHistory) -> dict[str, GroupTally]:
    """Count the messages of each group, by its name."""
    found: dict[str, GroupTally] = defaultdict(GroupTally)
    read: dict[str, set[str]] = defaultdict(set)  # by queue
    for poll in history.polls:
        for message in poll.messages:
            read[message.queue].add(message.key)
    for queue, keys in read.items():
        found[group_of(queue)].read += len(keys)
    seen = {key for keys in read.values() for key in keys}
    for send in history.sends:
        if send.is_ok and send.queue is not None:
            tally = found[group_of(send.queue)]
            tally.acknowledged += 1
            is_missing = send.key not in seen and history.is_drained_after(send)
            tally.lost += is_missing and not send.is_parked
    return dict(sorted(found.items()))


def _in_several(history: QueueHistory) -> tuple[list[Anomaly], int]:
    """Return messages that stand in several groups, and how many were sent again as others."""
    places: dict[str, dict[str, tuple[str, str, int]]] = defaultdict(dict)
    for key, queue, uniq, op in _standing(history):
        known = places[key].get(group_of(queue))
        if known is None or not known[1]:
            places[key][group_of(queue)] = (queue, uniq, op)
    found, sent_again = [], 0
    for key, at in places.items():
        if len(at) == 1:
            continue
        uniqs = [uniq for _, uniq, _ in at.values()]
        if all(uniqs) and len(set(uniqs)) == len(at):
            sent_again += 1
            continue
        text = f"{key} stands in {' and '.join(sorted(queue for queue, _, _ in at.values()))}"
        found.append(Anomaly("two-groups", text, tuple(sorted(op for _, _, op in at.values()))))
    return found, sent_again


def _standing(history: QueueHistory) -> Iterator[tuple[str, str, str, int]]:
    """Yield key, queue, UNIQ_KEY and operation of whatever says in which queue a message stands."""
    for send in history.sends:
        if send.is_ok and send.queue is not None:
            yield send.key, send.queue, send.uniq, send.ops[-1]
    for poll in history.polls:
        for message in poll.messages:
            yield message.key, message.queue, message.uniq, poll.completion.index

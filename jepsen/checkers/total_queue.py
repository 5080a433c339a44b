"""Judges all queues as one bag: every acknowledged message must be read.

The model. All queues together are a bag. A send that was acknowledged is in it for ever, one that was refused
never is, and one that ended unknown may be. Reading takes nothing out: delivery is at least once, so a message
may come again; the order is none of this model's business. Each consumer group has the whole bag for itself: what
one got is none the less lost for another.

    lost         acknowledged, and the group never got it though its queue was drained
    unexpected   read, but never sent, or only ever refused
    duplicated   read at more than one queue offset; counted here, judged in `queue_log.py`
    recovered    read though the send ended unknown; counted

When queues were not drained, acknowledged messages that nobody read are *unseen*, and the verdict is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from jepsen.checkers.messages import Place, SendOp, never_sent, read_queue_history
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op

NAME = "total-queue"


def check_total_queue(ops: Sequence[Op]) -> CheckResult:
    """Compare acknowledged sends with the messages that were read."""
    history = read_queue_history(ops)
    sent: dict[str, SendOp] = {send.key: send for send in history.sends}
    places: dict[str, set[Place]] = defaultdict(set)
    got: dict[str, set[str]] = defaultdict(set)
    first_seen: dict[str, int] = {}
    for poll in history.polls:
        for message in poll.messages:
            got[poll.group].add(message.key)
            places[message.key].add(message.place)
            first_seen.setdefault(message.key, poll.completion.index)
    lost: list[Anomaly] = []
    unseen: list[SendOp] = []
    for group in ("", *sorted(history.groups)):
        missing = [send for send in history.sends if send.is_ok and send.key not in got[group]]
        lost += [_lost(send, group) for send in missing if history.is_drained_after(send, group)]
        unseen += [send for send in missing if not history.is_drained_after(send, group)]
    never = history.refused()
    refused = [_refused(never[key], index) for key, index in first_seen.items() if key in never]
    unexpected = [*never_sent(history, ()), *refused]
    acknowledged = sum(send.is_ok for send in history.sends)
    counts: dict[str, object] = {
        "sent": len(history.sends),
        "acknowledged": acknowledged,
        "received": len(places),
        "lost": len(lost),
        "unseen": len(unseen),
        "unexpected": len(unexpected),
        "duplicated": sum(len(found) > 1 for found in places.values()),
        "recovered": sum(send.type == "info" and key in places for key, send in sent.items()),
    }
    why = ""
    if not acknowledged:
        why = "no send was acknowledged"
    elif unseen:
        why = f"{len(unseen)} acknowledged messages were not read, in queues that were not drained"
    return judged(NAME, [*lost, *unexpected], counts, why)


def _lost(send: SendOp, group: str) -> Anomaly:
    where = send.queue if send.offset is None else f"offset {send.offset} of {send.queue}"
    text = f"{send.key} was acknowledged at {where} and never read"
    return Anomaly("lost", f"{text} by {group}" if group else text, send.ops)


def _refused(send: SendOp, index: int) -> Anomaly:
    text = f"{send.key} was read though its send was refused"
    return Anomaly("unexpected", text, (*send.ops, index))

"""What went in comes out: the queues of a run as one bag of messages.

The model. All queues together are a bag. A send that was acknowledged is in it for ever, one that was refused
never is, and one that ended unknown may be. Reading takes nothing out: delivery is at least once, so a message
may come again; the order is none of this model's business.

    lost         acknowledged, and nobody read it though its queue was drained
    unexpected   read, but never sent, or only ever refused
    duplicated   read at more than one queue offset; counted here, judged in `queue_log.py`
    recovered    read though the send ended unknown; counted

When queues were not drained, acknowledged messages that nobody read are *unseen*, and the verdict is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from jepsen.checkers.messages import Place, QueueHistory, Send, read_queue_history
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.ops import Op

NAME = "total-queue"


def check_total_queue(ops: Sequence[Op]) -> CheckResult:
    """Judge sends against reads; for the shapes see `messages.py`."""
    history = read_queue_history(ops)
    sent: dict[str, Send] = {send.key: send for send in history.sends}
    places: dict[str, set[Place]] = defaultdict(set)
    first_seen: dict[str, int] = {}
    for poll in history.polls:
        for message in poll.messages:
            places[message.key].add(message.place)
            first_seen.setdefault(message.key, poll.completion.index)
    lost, unseen = _missing(history, places)
    unexpected = [
        _unexpected(key, sent.get(key), index)
        for key, index in first_seen.items()
        if key not in sent or sent[key].type == "fail"
    ]
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
        why = f"{len(unseen)} acknowledged messages were not read, in queues that nobody drained"
    return judged(NAME, [*map(_lost, lost), *unexpected], counts, why)


def _missing(history: QueueHistory, places: dict[str, set[Place]]) -> tuple[list[Send], list[Send]]:
    """Acknowledged and not read: in drained queues, and in others."""
    missing = [send for send in history.sends if send.is_ok and send.key not in places]
    lost = [send for send in missing if history.is_drained_after(send)]
    return lost, [send for send in missing if not history.is_drained_after(send)]


def _lost(send: Send) -> Anomaly:
    text = f"{send.key} was acknowledged at offset {send.offset} of {send.queue} and never read"
    return Anomaly("lost", text, send.ops)


def _unexpected(key: str, send: Send | None, index: int) -> Anomaly:
    if send is None:
        return Anomaly("unexpected", f"{key} was read and never sent", (index,))
    return Anomaly("unexpected", f"{key} was read though its send was refused", (*send.ops, index))

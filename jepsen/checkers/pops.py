"""Judges what was popped: for a time, by one at a time, until it is acknowledged. The shapes: `popped.py`.

The model. A group has each message of its queues: not handed out yet, in flight under one handle until its invisible
time is over, acknowledged, or a dead letter. Time is the log's, which pop times say and which never runs faster than
the clock of the run; from one leader to the next it stands still. So there are two bounds, and both are judged: by the
log's clock the next pop time is at least the last one and its invisible time, to the millisecond; by the clock of the
run an answer comes no earlier than the question before it and that time, with the grace that `delay.py` gives clocks.

    acknowledged  handed out again, or a dead letter, after an acknowledgement was answered with success
    early         handed out to somebody else, or moved, before the invisible time of who had it was over
    shared-handle  handed out twice under one handle
    dead-handle   one handle was used twice with success, or after its message was handed out again
    forgotten     a handle was answered as not in flight while its time was not over, and nobody had used it
    overtaken     in order: handed out before all earlier messages of the queue were acknowledged or dead
    lost          stored, and in the end neither acknowledged nor a dead letter, though the group passed all queues
                  SETTLE_NS after everything was due again
    two-places    one message at two places of its topic, or twice among the dead letters
    other-message, other-content  what was handed out is not what was stored there
    unexpected    refused or never sent, and handed out

Of an operation of unknown outcome both is allowed: an acknowledgement of this kind ends nothing for sure, and lets
nobody say that the message is lost; a change of time may have made it as short as it asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from dledger_mq.message.numbers import QueueOffset
from jepsen.checkers.delay import CLOCK_NS, SLEW_PER_MILLE
from jepsen.checkers.popped import (
    ORIGINAL,
    GroupPlace,
    HandedOut,
    PopAnswered,
    PopHistory,
    Use,
    generation,
    read_pop_history,
)
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import NEMESIS, Op

NAME: Final = "pops"

SETTLE_NS: Final = 10_000_000_000
"""A message that is due comes by then: who asks finds a leader, and it is popped among the others."""

_MS_NS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Left:
    """The messages that are missing in the end: for sure, or nobody looked long enough."""

    lost: list[Anomaly]
    unseen: int


def check_pops(ops: Sequence[Op]) -> CheckResult:
    """Judge the operations on popped messages."""
    history = read_pop_history(ops)
    slew = SLEW_PER_MILLE if _are_clocks_set(ops) else 0
    left = _left(history)
    found = [
        *_acknowledged(history),
        *_early(history, slew),
        *_dead_handles(history),
        *_forgotten(history, slew),
        *_overtaken(history),
        *left.lost,
        *_two_places(history),
        *_others(history),
    ]
    kinds = [one.kind for one in found]
    counts: dict[str, object] = {
        "sent": sum(send.is_ok for send in history.sends.values()),
        "groups": {group: _counts(history, group) for group in history.groups},
        "unseen": left.unseen,
        **{kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
    }
    return judged(NAME, found, counts, _why_unknown(history, left))


def _are_clocks_set(ops: Sequence[Op]) -> bool:
    return any(op.process == NEMESIS and op.f.startswith("clock") for op in ops)


def _counts(history: PopHistory, group: str) -> dict[str, int]:
    """Return what was done in the name of a group."""
    of_group = {at: rows for at, rows in history.handings.items() if at[0] == group}
    pops = [[each for each in rows if not each.is_change] for rows in of_group.values()]
    uses = [use for at, rows in history.uses.items() if at[0] == group for use in rows]
    acks = [use.end for use in uses if use.is_ack]
    return {
        "handed_out": sum(map(len, pops)),
        "again": sum(len(rows) - 1 for rows in pops if rows),
        "changed": sum(each.is_change for rows in of_group.values() for each in rows),
        "acknowledged": acks.count("ok"),
        "not_in_flight": acks.count("gone"),
        "unknown": acks.count("info"),
        "returned": sum(generation(at)[0] == 1 for at in of_group),
        "dead": sum(name == group for name, _ in history.dead),
    }


def _why_unknown(history: PopHistory, left: _Left) -> str:
    acknowledged = {use.place[0] for use in history.acks("ok")}
    idle = [group for group in history.groups if group not in acknowledged]
    if idle or not acknowledged:
        return f"nothing was acknowledged: {', '.join(idle) or 'nobody popped'}"
    if not any(sum(not each.is_change for each in rows) > 1 for rows in history.handings.values()):
        return "nothing was handed out again"
    if left.unseen:
        return f"{left.unseen} messages are missing, and nobody waited for them long enough"
    return ""


def _by_key(history: PopHistory) -> dict[tuple[str, str], list[GroupPlace]]:
    """Return the places at which each message was handed out to a group."""
    places: dict[tuple[str, str], list[GroupPlace]] = defaultdict(list)
    for place, handings in history.handings.items():
        for key in dict.fromkeys(each.key for each in handings):
            places[place[0], key].append(place)
    return places


def _acknowledged(history: PopHistory) -> Iterator[Anomaly]:
    """Yield what comes again after success, where it was or as a copy."""
    by_key = _by_key(history)
    for ack in history.acks("ok"):
        done = ack.completion
        assert done is not None, "it was answered"
        later = [
            each
            for each in history.handings[ack.place]
            if each.popped_ms > ack.popped_ms
            or (not each.is_change and each.invoke.index > done.index)
        ]
        for place in by_key[ack.place[0], ack.key]:
            if generation(place) > generation(ack.place):
                later += history.handings[place]
            elif generation(place) < generation(ack.place):
                later += [
                    each for each in history.handings[place] if each.invoke.index > done.index
                ]
        for each in later[:1]:
            text = (
                f"{_of(each.place, each.key)} was handed out with the pop time {each.popped_ms}, and acknowledged with "
                f"success under {ack.popped_ms}"
            )
            yield Anomaly("acknowledged", text, (*ack.ops, *each.ops))
        for row, op in history.dead.get((ack.place[0], ack.key), [])[: not later]:
            text = (
                f"{_of(ack.place, ack.key)} was acknowledged with success, and is the dead letter at {row.offset} of "
                f"{row.queue}"
            )
            yield Anomaly("acknowledged", text, (*ack.ops, op.index))


def _until_ms(history: PopHistory, had: HandedOut, before: int) -> int:
    """Return until when nobody else gets a message, by the log's clock and at least.

    Args:
        history: with the changes of unknown outcome.
        had: the time for which somebody has it.
        before: a change that begins after this operation does not count.
    """
    shortest = [
        use.invisible_ms
        for use in history.uses.get(had.place, ())
        if use.invisible_ms is not None
        and (use.popped_ms, use.end) == (had.popped_ms, "info")
        and use.invoke.index < before
    ]
    return had.popped_ms + min([had.invisible_ms, *shortest])


def _early(history: PopHistory, slew_per_mille: int) -> Iterator[Anomaly]:
    """Yield what somebody else was handed, or what was moved, while somebody had it."""
    for place, handings in history.handings.items():
        for had, got in pairwise(handings):
            if had.popped_ms == got.popped_ms:
                text = f"{_of(place, got.key)} was handed out twice under {got.popped_ms}"
                yield Anomaly("shared-handle", text, (*had.ops, *got.ops))
            elif not got.is_change:
                yield from _too_soon(history, had, got, slew_per_mille)
    for (group, key), places in _by_key(history).items():
        places.sort(key=generation)
        for before, after in pairwise(places):
            if generation(before) < generation(after):
                got = history.handings[after][0]
                earlier = [
                    each
                    for each in history.handings[before]
                    if each.invoke.index < got.invoke.index
                ]
                for last in earlier[-1:]:
                    yield from _too_soon(history, last, got, slew_per_mille)
        for row, op in history.dead.get((group, key), ()):
            had = history.handings[places[-1]][-1]
            short_ms = _until_ms(history, had, op.index) - row.stored_ms
            if short_ms > 0:
                text = (
                    f"{_of(places[-1], key)} became a dead letter {short_ms} ms before its time was over, by the log's "
                    "clock"
                )
                yield Anomaly("early", text, (*had.ops, op.index))


def _too_soon(
    history: PopHistory, had: HandedOut, got: HandedOut, slew_per_mille: int
) -> Iterator[Anomaly]:
    """Yield that a message came to somebody else before its time was over, by one clock or the other."""
    until_ms = _until_ms(history, had, got.completion.index)
    least_ns = (until_ms - had.popped_ms) * _MS_NS
    grace_ns = CLOCK_NS + least_ns * slew_per_mille // 1000
    took_ns = got.completion.t_ns - had.invoke.t_ns
    if got.popped_ms < until_ms:
        text = f"{until_ms - got.popped_ms} ms before its time was over, by the log's clock"
    elif took_ns < least_ns - grace_ns:
        text = f"{(least_ns - took_ns) / 1e6:.0f} ms too early by the clock of the run"
    else:
        return
    text = (
        f"{_of(got.place, got.key)} was handed out again {text}: {had.popped_ms}, {got.popped_ms}"
    )
    yield Anomaly("early", text, (*had.ops, *got.ops))


def _dead_handles(history: PopHistory) -> Iterator[Anomaly]:
    """Yield handles that were used with success more often than once, or too late."""
    for place, uses in history.uses.items():
        good = [use for use in uses if use.end == "ok"]
        first: dict[int, Use] = {}
        for use in good:
            known = first.setdefault(use.popped_ms, use)
            if known is not use:
                text = f"the handle {use.popped_ms} of {_of(place, use.key)} was used twice with success"
                yield Anomaly("dead-handle", text, (*known.ops, *use.ops))
        for use in good:
            if use.is_ack:  # what comes after it is judged as acknowledged
                continue
            new_ms = next(
                (
                    each.popped_ms
                    for each in history.handings[place]
                    if each.is_change and each.invoke.index == use.invoke.index
                ),
                use.popped_ms,
            )
            between = [
                each
                for each in history.handings[place]
                if not each.is_change and use.popped_ms < each.popped_ms < new_ms
            ]
            for each in between[:1]:
                text = (
                    f"the time of {_of(place, use.key)} was changed under {use.popped_ms}, and it had been handed out "
                    f"again under {each.popped_ms}"
                )
                yield Anomaly("dead-handle", text, (*use.ops, *each.ops))


def _forgotten(history: PopHistory, slew_per_mille: int) -> Iterator[Anomaly]:
    """Yield handles that are said to be dead while they cannot be.

    Not of groups in order: an attempt whose answer was lost may take the messages again under other handles.
    """
    in_order = {answer.group for answer in history.answers if answer.is_ordered}
    for place, uses in history.uses.items():
        if place[0] in in_order:
            continue
        handings = {each.popped_ms: each for each in history.handings.get(place, ())}
        for use in uses:
            had, done = handings.get(use.popped_ms), use.completion
            if use.end != "gone" or had is None or done is None:
                continue
            least_ns = had.invisible_ms * _MS_NS
            grace_ns = CLOCK_NS + least_ns * slew_per_mille // 1000
            others = [
                other
                for other in uses
                if other is not use
                and other.popped_ms == use.popped_ms
                and other.end in ("ok", "info")
                and other.invoke.index < done.index
            ]
            left_ns = had.invoke.t_ns + least_ns - grace_ns - done.t_ns
            if left_ns > 0 and not others:
                text = (
                    f"nothing was in flight under {use.popped_ms} of {_of(place, use.key)}, "
                    f"{left_ns / 1e6:.0f} ms before its time can be over"
                )
                yield Anomaly("forgotten", text, (*had.ops, *use.ops))


def _overtaken(history: PopHistory) -> Iterator[Anomaly]:
    """Yield what was handed out in order while something before it was not done."""
    by_queue: dict[tuple[str, str], list[PopAnswered]] = defaultdict(list)
    for answer in history.answers:
        group, queue, _ = answer.handings[0].place
        if answer.is_ordered and generation(answer.handings[0].place) == ORIGINAL:
            by_queue[group, queue].append(answer)
    stored: dict[str, dict[QueueOffset, str]] = defaultdict(dict)
    for send in history.sends.values():
        if send.is_ok and send.queue is not None and send.offset is not None:
            stored[send.queue][send.offset] = send.key
    for (group, queue), answers in by_queue.items():
        answers.sort(key=lambda each: each.handings[0].popped_ms)
        keys = dict(stored[queue])
        for answer in answers:
            keys |= {each.place[2]: each.key for each in answer.handings}
        yield from _overtaken_in(history, group, queue, answers=answers, keys=keys)


def _overtaken_in(
    history: PopHistory,
    group: str,
    queue: str,
    *,
    answers: Sequence[PopAnswered],
    keys: dict[QueueOffset, str],
) -> Iterator[Anomaly]:
    """Go through the answers of a queue, by pop time; `keys` are the messages that are known to stand there."""
    waiting = sorted(keys, reverse=True)  # the lowest last
    pending: set[QueueOffset] = set()
    highest = -1
    for answer in answers:
        offsets = [each.place[2] for each in answer.handings]
        completion = answer.handings[0].completion
        if offsets != sorted(set(offsets)):
            text = f"{group} was answered with {offsets} of {queue}"
            yield Anomaly("overtaken", text, answer.handings[0].ops)
        new = max(offsets)
        if new <= highest:
            continue
        highest = new
        while waiting and waiting[-1] < new:
            pending.add(waiting.pop())
        for offset in sorted(pending - set(offsets)):
            is_done = (group, keys[offset]) in history.dead or any(
                use.is_ack and use.end in ("ok", "info") and use.invoke.index < completion.index
                for use in history.uses.get((group, queue, offset), ())
            )
            pending.discard(offset)
            if not is_done:
                text = f"{group} was handed out {new} of {queue} before {keys[offset]} at {offset} was acknowledged"
                ops = history.sends[keys[offset]].ops if keys[offset] in history.sends else ()
                yield Anomaly("overtaken", text, (*ops, *answer.handings[0].ops))


def _left(history: PopHistory) -> _Left:
    """Find the stored messages that no group acknowledged, and that are no dead letters."""
    lost: list[Anomaly] = []
    unseen = 0
    done = {(use.place[0], use.key) for use in history.acks("ok", "info")} | history.dead.keys()
    popped = _by_key(history)
    for group in history.groups:
        passed = history.passed.get(group)
        for send in history.sends.values():
            if not send.is_ok or (group, send.key) in done:
                continue
            if passed is None:
                unseen += 1
                continue
            if send.queue not in passed.ends:  # nobody promised to pop that
                continue
            is_late = passed.invoke.t_ns >= history.last_due_ns[group] + SETTLE_NS
            if not is_late or send.completion is None or send.ops[-1] > passed.invoke.index:
                unseen += 1
                continue
            places = popped.get((group, send.key), [])
            how = f"was handed out at {places}" if places else "was never handed out"
            text = (
                f"{send.key} of {send.queue} {how} to {group}, and is neither acknowledged nor dead"
            )
            lost.append(Anomaly("lost", text, (*send.ops, passed.invoke.index)))
    return _Left(lost, unseen)


def _two_places(history: PopHistory) -> Iterator[Anomaly]:
    """Yield messages that stand at two places where they can stand at one only."""
    for (_, key), places in _by_key(history).items():
        plain = [place for place in places if generation(place) == ORIGINAL]
        for one, other in pairwise(sorted(plain)):
            ops = (*history.handings[one][0].ops, *history.handings[other][0].ops)
            yield Anomaly("two-places", f"{key} was handed out at {one} and at {other}", ops)
    for (group, key), rows in history.dead.items():
        for (first, op), (second, _) in pairwise(rows):
            text = f"{key} is a dead letter of {group} at {first.offset} and at {second.offset}"
            yield Anomaly("two-places", text, (op.index,))


def _others(history: PopHistory) -> Iterator[Anomaly]:
    """Yield what was handed out, and is not what was sent there."""
    for place, handings in history.handings.items():
        each = handings[0]
        if each.is_change:
            continue
        send = history.sends.get(each.key)
        if send is None or each.key in history.refused:
            how = "never sent" if send is None else "refused"
            text = f"{_of(place, each.key)} was handed out, and {how}"
            yield Anomaly("unexpected", text, (*(send.ops if send else ()), *each.ops))
            continue
        if generation(place) == ORIGINAL and send.is_ok and send.offset is not None:
            told = (send.queue, send.offset)
            if told != place[1:]:
                text = f"{each.key} was stored at {told}, and handed out at {place[1:]}"
                yield Anomaly("other-message", text, (*send.ops, *each.ops))
        contents = {one.content for one in handings if one.content is not None}
        if send.content is not None and contents - {send.content}:
            text = f"{_of(place, each.key)} was sent as {send.content}, and handed out as {sorted(contents)}"
            yield Anomaly("other-content", text, (*send.ops, *each.ops))


def _of(place: GroupPlace, key: str) -> str:
    group, queue, offset = place
    return f"{key} at {offset} of {queue} for {group}"

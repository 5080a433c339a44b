"""Sends that came before, at the leader: what of a new one stands already, or is on its way with another one.

What stands is found in the window of recent sends (`service.repeats`). What is staged or in flight is noted here by its
keys until it is decided. Looking changes nothing: a send that has known parts then *joins* the sends that these are in
flight with, and is answered once all of its parts are decided.

Most sends are noted together with those that came with them (`SendsTogether`), and by themselves once another one has
the same key.

It knows nothing of how sends are answered, or of what a failure means to a client: see sends.py and router.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, Protocol

import msgspec

from broker.server.requests.request import PendingRequest
from broker.service.repeats import EarlierSend, Mismatches, Repeats
from broker.service.sameness import RequestedMessage, is_same, requested_by_plan
from broker.service.send import SendPlan
from broker.store.recent_sends import COPIES_MAX
from broker.store.staging import StagedEntry
from dledger import DLedgerError, RefusedError
from dledger_mq.message.numbers import PhysicalOffset, QueueId

_log = logging.getLogger(__name__)

_UNDECIDED = SendPlan("", QueueId(0), 0, 0, 0, ())

PlaceOf = Callable[[SendPlan, StagedEntry, int], EarlierSend]
"""Returns where the message of a plan stands that was staged at a place of an entry."""


class SendInFlight(PendingRequest, eq=False):
    """A send that others can join while what was staged of it is not decided.

    Attributes:
        born_ms: the time at which its client made it, by the client's clock.
        plan: what is staged of it.
        parts: its parts, some of which came before; None when nothing of it did.
        joined: sends that have parts in what is staged of this one; None for none.
        steps: the places in `plan` of each key and body, once they were asked for.
    """

    born_ms: int = 0
    plan: SendPlan = _UNDECIDED
    parts: KnownParts | None = None
    joined: list[SendInFlight] | None = None
    steps: dict[tuple[bytes, bytes], list[int]] | None = None

    def steps_of(self, key: bytes, body: bytes) -> list[int]:
        """Return which messages of `plan` have this key and body, in their order."""
        if self.steps is None:
            self.steps = {}
            for step, message in enumerate(self.plan.messages):
                self.steps.setdefault((message.uniq_key, message.body), []).append(step)
        return self.steps.get((key, body), [])


class SendsTogether(Protocol):
    """Sends in flight that are noted together, each under a key that no other one has."""

    def single_out(self, key: bytes) -> SendInFlight:
        """Return the send with that key, which others can join from now on; always the same one."""
        ...


class InFlightMessage(NamedTuple):
    """A message that is in flight: the send it came with, and its place in what is staged of that."""

    first: SendInFlight
    step: int

    @property
    def queue_id(self) -> QueueId:
        """The queue that it will stand in."""
        return self.first.plan.queue_id


Part = EarlierSend | InFlightMessage | None
"""The place of a message of a send, or what it is in flight with; None: it is new."""


class PartlyKnownSend(NamedTuple):
    """A send of which a part is known.

    Attributes:
        parts: one for each of its messages.
        rest: the plan of those that are new.
    """

    parts: list[Part]
    rest: SendPlan


@dataclass(slots=True, eq=False)
class KnownParts:
    """The parts of a send of which some came before, until all of them are decided.

    Attributes:
        asked: what its client sent; the `plan` of the send is the rest of that.
        parts: one for each message of `asked`. Invariant: each stands once `open_count` is 0 and nothing failed.
        own: physical offsets of those parts that no other send in flight is answered with.
        open_count: entries that decide about its parts and are not decided yet, at least 0.
        error: the failure of one of them. One of unknown outcome makes the whole send so.
    """

    asked: SendPlan
    parts: list[Part]
    own: list[PhysicalOffset]
    open_count: int
    error: DLedgerError | None = None

    def decide(self, error: DLedgerError | None) -> bool:
        """Count one entry as decided, with what it failed with; return True if it was the last one."""
        assert self.open_count > 0, f"{error} decides about a send that was decided on"
        self.open_count -= 1
        if error is not None and (self.error is None or isinstance(self.error, RefusedError)):
            self.error = error
        return not self.open_count

    @property
    def standing(self) -> list[EarlierSend]:
        """Those parts that stand, in the order of the send."""
        return [part for part in self.parts if isinstance(part, EarlierSend)]


class KnownSends:
    """Finds what came before, and lets sends wait for one another.

    Invariant: `ahead` has a send under the keys of its plan from `enter` to `leave`, at most COPIES_MAX under each.

    Attributes:
        ahead: what is in flight, by key. Whoever enters sends together writes here, under new keys only.
    """

    def __init__(self, repeats: Repeats, place_of: PlaceOf) -> None:
        self._repeats = repeats
        self._place_of = place_of
        self.ahead: dict[bytes, tuple[SendInFlight, ...] | SendsTogether] = {}

    @property
    def recent_keys(self) -> Container[bytes]:
        """See `Repeats`."""
        return self._repeats.recent_keys

    def knows_any(self, keys: list[bytes]) -> bool:
        """Return whether one of these keys is in flight, or in the window."""
        return not self.ahead.keys().isdisjoint(keys) or self._repeats.has_recent(keys)

    def look_back(
        self, plan: SendPlan, born_ms: int, *, only_ahead: bool
    ) -> PartlyKnownSend | None:
        """Find what of a send stands already, or is in flight; return None if nothing does.

        All parts are in one queue, since one answer names one: if the client leaves the queue to the broker, the first
        part that is found decides.

        Args:
            plan: the send.
            born_ms: the born time in the request.
            only_ahead: whether nothing that stands counts, since its topic is being deleted.

        Raises:
            RecordError: a message cannot be stored as it is.
            EntryDamagedError: what was stored before cannot be read now.
        """
        keys = plan.uniq_keys()
        if not self.knows_any(keys):
            return None
        return self._look_closely(plan, born_ms, only_ahead=only_ahead)

    def _look_closely(
        self, plan: SendPlan, born_ms: int, *, only_ahead: bool
    ) -> PartlyKnownSend | None:
        """Compare each message with those of its key."""
        ahead, recent = self.ahead, self._repeats.recent_keys
        parts: list[Part] = []
        taken: set[object] = set()
        untaken_by_text: dict[tuple[bytes, bytes], list[InFlightMessage]] = {}
        mismatches = Mismatches()
        for message in plan.messages:
            part: Part = None
            key = message.uniq_key
            if (key in recent or key in ahead) and not mismatches.are_too_many:
                asked = requested_by_plan(plan, message)
                untaken = self._untaken(key, asked.body, untaken_by_text)
                part = self._find_ahead(plan, asked, untaken, mismatches=mismatches)
                if part is None and not only_ahead:
                    part = self._repeats.find(
                        key,
                        asked,
                        born_ms,
                        any_queue=plan.any_queue,
                        taken=taken,
                        mismatches=mismatches,
                    )
            if part is not None:
                taken.add(part.physical_offset if isinstance(part, EarlierSend) else part)
                if plan.any_queue:
                    plan = msgspec.structs.replace(plan, queue_id=part.queue_id, any_queue=False)
            parts.append(part)
        if not taken:
            return None
        fresh = tuple(
            message for message, part in zip(plan.messages, parts, strict=True) if part is None
        )
        assert len(taken) + len(fresh) == len(parts), "two messages of a send are one earlier one"
        _log.debug("%d of %d messages were sent before", len(parts) - len(fresh), len(parts))
        return PartlyKnownSend(parts, msgspec.structs.replace(plan, messages=fresh))

    def _untaken(
        self, key: bytes, body: bytes, by_text: dict[tuple[bytes, bytes], list[InFlightMessage]]
    ) -> list[InFlightMessage]:
        """Return what is in flight with a key and a body and no message of the same send repeats yet, the newest last.

        The newest one counts: between it and an older one its topic may be deleted, and made again.
        """
        untaken = by_text.get((key, body))
        if untaken is None:
            untaken = by_text[key, body] = [
                InFlightMessage(first, step)
                for first in self._held(key)
                for step in reversed(first.steps_of(key, body))
            ]
        return untaken

    def _find_ahead(
        self,
        plan: SendPlan,
        asked: RequestedMessage,
        untaken: list[InFlightMessage],
        *,
        mismatches: Mismatches,
    ) -> InFlightMessage | None:
        """Take the same message out of those in flight. It was not answered yet, so its outcome is that of both."""
        for at in range(1, min(len(untaken), COPIES_MAX) + 1):
            found = untaken[-at]
            own, message = found.first.plan, found.first.plan.messages[found.step]
            if is_same(asked, requested_by_plan(own, message), any_queue=plan.any_queue):
                del untaken[-at]
                return found
            mismatches.add(len(message.body) + len(message.properties))
        return None

    def _held(self, key: bytes) -> tuple[SendInFlight, ...]:
        """Return the sends in flight with a key, each by itself."""
        held = self.ahead.get(key, ())
        if not isinstance(held, tuple):
            held = self.ahead[key] = (held.single_out(key),)
        return held

    def enter(self, send: SendInFlight) -> None:
        """Note that what is staged of a send is in flight."""
        assert send.plan.messages, f"nothing of send {send.opaque} is staged"
        ahead, alone, keys = self.ahead, (send,), send.plan.uniq_keys()
        if ahead.keys().isdisjoint(keys):
            ahead.update(dict.fromkeys(keys, alone))
            return
        for key in keys:
            if ahead.setdefault(key, alone) is not alone:
                held = self._held(key)
                if held[-1] is not send:
                    ahead[key] = (*held, send)[-COPIES_MAX:]

    def leave(self, send: SendInFlight) -> None:
        """Note that what was staged of a send is decided: from now on it is found in the window, or is new."""
        ahead, alone, keys = self.ahead, (send,), send.plan.uniq_keys()
        # In C what is usual: no other send has one of its keys.
        gone = list(map(ahead.pop, keys, repeat(None)))
        if gone.count(alone) == len(gone):
            return
        ahead.update((key, held) for key, held in zip(keys, gone, strict=True) if held is not None)
        for key in keys:
            held = ahead.get(key)
            if not isinstance(held, tuple):
                continue  # this one was pushed out by newer ones, which have left
            if len(held) == 1 and held[0] is send:
                del ahead[key]
            else:
                ahead[key] = tuple(other for other in held if other is not send)

    def leave_together(self, keys: Iterable[bytes]) -> None:
        """Note that sends which were entered together, and of which none was singled out, are decided."""
        ahead = self.ahead
        for key in keys:
            del ahead[key]

    # Sends with known parts.

    def join(self, send: SendInFlight, asked: SendPlan, found: PartlyKnownSend) -> KnownParts:
        """Claim what stands of a send already, and join the sends that other parts of it are in flight with."""
        own = [part.physical_offset for part in found.parts if isinstance(part, EarlierSend)]
        self._repeats.claim(own, send.born_ms)
        firsts = {part.first: None for part in found.parts if isinstance(part, InFlightMessage)}
        for first in firsts:
            assert first is not send, f"send {send.opaque} waits for itself"
            first.joined = [*(first.joined or ()), send]
        open_count = len(firsts) + bool(found.rest.messages)
        send.parts = KnownParts(asked, found.parts, own, open_count)
        return send.parts

    def rest_committed(
        self, send: SendInFlight, known: KnownParts, staged: StagedEntry, place: int
    ) -> None:
        """Note where the rest of a send stands, of which other parts came before; its client has no answer yet."""
        end = place + len(send.plan.messages)
        known_count = len(known.own)
        for at, part in enumerate(known.parts):
            if part is None:
                known.parts[at] = self._place_of(send.plan, staged, place)
                known.own.append(staged.physical_offset(place))
                place += 1
        assert place == end, f"{end - place} messages of the rest are no part of the send"
        if not send.is_oneway:
            self._repeats.not_answered(known.own[known_count:])

    def ahead_committed(
        self, send: SendInFlight, staged: StagedEntry, place: int, *, first: SendInFlight
    ) -> None:
        """Note where those parts of a send stand that were in flight with another one, from `place` on."""
        known = send.parts
        assert known is not None, f"send {send.opaque} joined another one without a part in it"
        for at, part in enumerate(known.parts):
            if isinstance(part, InFlightMessage) and part.first is first:
                known.parts[at] = self._place_of(first.plan, staged, place + part.step)

    def failed(self, send: SendInFlight, known: KnownParts) -> None:
        """Release the parts of a send that is not answered with them, so that a retry finds those that stand."""
        assert send.parts is known, "these are the parts of another send"
        self._repeats.not_answered(part.physical_offset for part in known.standing)
        send.parts = None  # it may be staged again

    def answered(self, send: SendInFlight, known: KnownParts, until_ms: int) -> None:
        """Note that a send was answered with its parts; its client had no answer up to `until_ms` of its clock."""
        offsets = [part.physical_offset for part in known.standing]
        self._repeats.note_asked(offsets, until_ms)
        if send.is_received:
            self._repeats.answered(offsets)
        else:
            self._repeats.note_answer(known.own, is_received=False, link=send.link)

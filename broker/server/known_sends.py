"""Sends that came before, at the leader: what of a new one stands already, or is on its way with another one.

What stands is found in the window of recent sends (`service.repeats`). What is staged or in flight is noted here by its
keys until it is decided. Looking changes nothing: what is found is the caller's to claim.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import NamedTuple, Protocol

import msgspec

from broker.service.repeats import EarlierSend, Repeats
from broker.service.sameness import RequestedMessage, is_same, requested_by_plan
from broker.service.send import SendPlan
from broker.store.recent_sends import COPIES_MAX

_log = logging.getLogger(__name__)


class SendOnItsWay(Protocol):
    """A send that is staged or in flight.

    Attributes:
        plan: what is staged of it.
    """

    plan: SendPlan

    def steps_of(self, key: bytes, body: bytes) -> list[int]:
        """Which messages of `plan` have a key and a body."""
        ...


class Ahead(NamedTuple):
    """A message that is on its way: of which send, and which of what is staged of that."""

    first: SendOnItsWay
    step: int

    @property
    def queue_id(self) -> int:
        """The queue that it will stand in."""
        return self.first.plan.queue_id


Part = EarlierSend | Ahead | None
"""Where a message of a send stands, or whose fate it shares; None: it is new."""


class Found(NamedTuple):
    """A send of which a part is known.

    Attributes:
        parts: for each of its messages.
        rest: what is new of it.
    """

    parts: list[Part]
    rest: SendPlan


class KnownSends:
    """Finds what came before."""

    def __init__(self, repeats: Repeats) -> None:
        self._repeats = repeats
        self._ahead: dict[bytes, tuple[SendOnItsWay, ...]] = {}

    def look_back(self, plan: SendPlan, born_ms: int) -> Found | None:
        """Find what of a send stands already, or is on its way; None: nothing.

        All parts are in one queue, since one answer names one: if the client leaves the queue to the broker, the first
        part that is found decides.

        Raises:
            RecordError: a message cannot be stored as it is.
            EntryDamagedError: what was stored before cannot be read now.
        """
        ahead, recent = self._ahead, self._repeats.recent_keys
        for message in plan.messages:
            if message.uniq_key in recent or message.uniq_key in ahead:
                return self._look_closely(plan, born_ms)
        return None

    def _look_closely(self, plan: SendPlan, born_ms: int) -> Found | None:
        ahead, recent = self._ahead, self._repeats.recent_keys
        parts: list[Part] = []
        taken: set[object] = set()
        for message in plan.messages:
            part: Part = None
            key = message.uniq_key
            if key in recent or key in ahead:
                asked = requested_by_plan(plan, message)
                part = self._find_ahead(plan, key, asked, taken) or self._repeats.find(
                    key, asked, born_ms, any_queue=plan.any_queue, taken=taken
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
        _log.debug("%d of %d messages were sent before", len(parts) - len(fresh), len(parts))
        return Found(parts, msgspec.structs.replace(plan, messages=fresh))

    def _find_ahead(
        self, plan: SendPlan, key: bytes, asked: RequestedMessage, taken: set[object]
    ) -> Ahead | None:
        """The same message on its way. Nobody was told yet, so whatever becomes of it is the answer."""
        candidates = (
            Ahead(first, step)
            for first in self._ahead.get(key, ())
            for step in first.steps_of(key, asked.body)
        )
        for found in islice(candidates, COPIES_MAX):
            own = found.first.plan
            if found not in taken and is_same(
                asked, requested_by_plan(own, own.messages[found.step]), any_queue=plan.any_queue
            ):
                return found
        return None

    def enter(self, send: SendOnItsWay) -> None:
        """What is staged of a send is on its way."""
        ahead, alone = self._ahead, (send,)
        for message in send.plan.messages:
            held = ahead.setdefault(message.uniq_key, alone)
            if held is not alone and held[-1] is not send:
                ahead[message.uniq_key] = (*held, send)[-COPIES_MAX:]

    def leave(self, send: SendOnItsWay) -> None:
        """What was staged of a send is decided: it is found in the window, or is new."""
        ahead = self._ahead
        for message in send.plan.messages:
            held = ahead.pop(message.uniq_key, None)
            if held is not None and (len(held) > 1 or held[0] is not send):
                ahead[message.uniq_key] = tuple(other for other in held if other is not send)

"""Disputes: broker names for which a second group tries to register. Pure: time comes in.

It must not know how a rival was found out, nor who has the name.
"""

from __future__ import annotations

from typing import Final, NamedTuple

DISPUTE_MS: Final = 40_000
"""A dispute is over when nobody else has tried for the name for this long; a broker tries each second."""

RING_MS: Final = 5_000
"""The least time between two rounds in which those who have the name are made to register again for it."""


class _Dispute(NamedTuple):
    """A rival that tried for a broker name. Invariant: rung_ms <= tried_ms."""

    rival: str
    tried_ms: int
    rung_ms: int


class DisputeState(NamedTuple):
    """The state of a dispute after a rival tried.

    Attributes:
        is_new: nobody else tried for the name for a while.
        rings: the brokers that have the name are to register again now, to learn of the rival.
    """

    is_new: bool
    rings: bool


class Disputes:
    """Rivals by broker name; few at any time, since a rival has to try again and again."""

    def __init__(self) -> None:
        self._disputes: dict[str, _Dispute] = {}

    def rival_of(self, broker_name: str, now_ms: int) -> str:
        """Return the address of the rival that tried last; empty without one."""
        self._disputes = {
            name: each
            for name, each in self._disputes.items()
            if now_ms - each.tried_ms <= DISPUTE_MS
        }
        dispute = self._disputes.get(broker_name)
        return "" if dispute is None else dispute.rival

    def note(self, broker_name: str, *, rival: str, now_ms: int) -> DisputeState:
        """Note that a rival tried for a name."""
        is_new = self.rival_of(broker_name, now_ms) == ""
        known = self._disputes.get(broker_name)
        rings = known is None or now_ms - known.rung_ms >= RING_MS
        rung_ms = now_ms if known is None or rings else known.rung_ms
        assert rung_ms <= now_ms, (
            f"{broker_name} was last rung for at {rung_ms} ms, and it is {now_ms} ms"
        )
        self._disputes[broker_name] = _Dispute(rival, now_ms, rung_ms)
        return DisputeState(is_new, rings)

    def settle(self, broker_name: str) -> None:
        """Forget the dispute: the name has new owners, and who tried for it before is no rival until it tries again."""
        self._disputes.pop(broker_name, None)

"""What the state still needs of the log, by its place: nothing from there on may be forgotten.

Asked by the fold, which forgets nothing that is needed, and ahead of it by the leader, which wants to know how far it
can go and what stops it. New needs are of new records only, so the fold finds what the leader was told, but for a timer
that came meanwhile into the 64 KiB where the kept part was to begin: then nothing is forgotten this time.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from broker.store.pins import Pins
from broker.store.recent_sends import RecentSends
from broker.store.schedule import Schedule
from broker.store.timers import Timers
from broker.store.transactions import Transactions
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs


class NeedingTables(Protocol):
    """The part of `BrokerState` that names records of the log and reads them later."""

    schedule: Schedule
    recent_sends: RecentSends
    transactions: Transactions
    timers: Timers


class Need(NamedTuple):
    """Something that needs the log from a place on; `what` is for people."""

    physical_offset: PhysicalOffset
    what: str


def oldest_need(tables: NeedingTables, now_ms: StoreTimeMs, *, end: PhysicalOffset) -> Need | None:
    """Return what needs the oldest part of the log, None if nothing needs any of it.

    Args:
        tables: the state.
        now_ms: sends that are older than any client repeats them are not needed at this time.
        end: where the log ends; sends that stand too far before it are not needed either.
    """
    places = (
        (tables.schedule.oldest_waiting(), "a delayed message that is not delivered"),
        (tables.timers.oldest_pending(), "a timed message that is not delivered"),
        (tables.transactions.oldest_open(), "a transaction that is open"),
        (tables.recent_sends.oldest(now_ms, end), "a send that its client may still repeat"),
    )
    needs = (Need(place, what) for place, what in places if place is not None)
    return min(needs, default=None)


def oldest_pin(pins: Pins, now_ms: StoreTimeMs, *, end: PhysicalOffset) -> Need | None:
    """Return the oldest place that is pinned, as `oldest_need` does; a disk that is fairly full overrules it."""
    held = pins.oldest(now_ms, end)
    return None if held is None else Need(held.position, f"the pin {held.name!r}")

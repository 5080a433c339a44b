"""The parts of a broker that figures are read from. It must not read any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.server.config import BrokerConfig
from broker.server.handlers.disk_room import DiskRoom
from broker.server.services import Services
from broker.store.state import BrokerState
from dledger import LogServer


@dataclass(frozen=True, slots=True)
class Observed:
    """One broker, as those see it who only look.

    Attributes:
        config: returns the settings as they hold now.
        room: returns the room on the store's disk; None: the disk cannot say.
        connection_count: returns the number of clients' connections.
        turned_away_count: returns how many connections were turned away, since there were too many.
        stop_stage: returns how far an orderly stop is, in words; empty: none is wanted.
        wall_ms: returns the milliseconds since 1970.
        clock_ahead_ms: returns the distance of the wall clock ahead of what most members show.
    """

    log: LogServer
    state: BrokerState
    services: Services
    config: Callable[[], BrokerConfig]
    room: Callable[[], DiskRoom | None]
    connection_count: Callable[[], int]
    turned_away_count: Callable[[], int]
    stop_stage: Callable[[], str]
    wall_ms: Callable[[], int]
    clock_ahead_ms: Callable[[], int]

    @property
    def is_open(self) -> bool:
        """True once the log is open; before, it cannot be asked where it begins and ends."""
        return self.log.status.statistics().sync_durations is not None

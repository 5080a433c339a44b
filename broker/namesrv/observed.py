"""What the figures of a name server are read from; it knows nothing of how they are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.namesrv.kv import KvStore
from broker.namesrv.routes import RouteTable


@dataclass(slots=True)
class RequestCounts:
    """Requests since the start, by code; how many were refused as busy; brokers that were silent and taken out."""

    by_code: dict[int, int]
    busy: int = 0
    silent: int = 0


@dataclass(frozen=True, slots=True)
class NameServerParts:
    """The parts of a name server that figures are read from.

    Attributes:
        node_id: what it is called in the figures: its address.
        connection_count, turned_away_count: return the connections now, and those that there was no room for.
    """

    node_id: str
    routes: RouteTable
    kv: KvStore
    requests: RequestCounts
    connection_count: Callable[[], int]
    turned_away_count: Callable[[], int]

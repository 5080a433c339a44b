"""The figures of a name server, and whether it is ready. Gathered when somebody asks; it changes nothing."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from broker.metrics.endpoint import Endpoint, Readiness
from broker.metrics.families import Families
from broker.namesrv.observed import NameServerParts
from dledger_mq.remoting.codes import RequestCode

NODE_TYPE: Final = "nameserver"
SERIES_MAX: Final = 10_000


class NameServerFigures(Collector):
    """The collector of a name server's figures."""

    def __init__(self, parts: NameServerParts) -> None:
        self._parts = parts
        labels = {"cluster": "", "node_type": NODE_TYPE, "node_id": parts.node_id}
        self._families = Families(labels, series_max=SERIES_MAX)

    def describe(self) -> Iterator[Metric]:
        """Return nothing: names are not known before somebody asks."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the families; see `Families` for their parts."""
        parts, families = self._parts, self._families
        groups = parts.routes.registered_groups()
        yield from families.gauges(
            "dledger_namesrv_brokers",
            "nodes of a group that are registered",
            ["broker"],
            [([each.broker_name], each.node_count) for each in groups],
        )
        yield from families.gauges(
            "dledger_namesrv_leader_registered",
            "1 while the leader of a group is registered, and no follower has to stand in for it",
            ["broker"],
            [([each.broker_name], each.has_leader) for each in groups],
        )
        yield families.gauge("dledger_namesrv_topics", "topics", len(parts.routes.topics()))
        yield families.gauge(
            "dledger_namesrv_kv_ready", "1 while values can change", parts.kv.is_ready
        )
        yield families.gauge("dledger_namesrv_connections", "connections", parts.connection_count())
        yield families.counter(
            "dledger_namesrv_connections_refused",
            "connections that were turned away, since there were too many",
            parts.turned_away_count(),
        )
        yield families.counter(
            "dledger_namesrv_requests_busy", "requests refused as busy", parts.requests.busy
        )
        yield families.counter(
            "dledger_namesrv_silent_brokers",
            "registrations that ended by silence",
            parts.requests.silent,
        )
        yield from families.counters(
            "dledger_namesrv_requests",
            "requests by code",
            ["request_code"],
            by_name(parts.requests.by_code).items(),
        )


def by_name(by_code: Mapping[int, int]) -> Mapping[tuple[str], int]:
    """Return counts by the names of codes; those that nobody knows have one name together, whoever sends them."""
    found: dict[tuple[str], int] = {}
    for code, count in by_code.items():
        try:
            name = RequestCode(code).name.lower()
        except ValueError:
            name = "unknown"
        found[name,] = found.get((name,), 0) + count
    return found


def make_endpoint(
    sock: socket.socket, parts: NameServerParts, tls: Callable[[], ssl.SSLContext | None]
) -> Endpoint:
    """Build the registry of a name server, and the endpoint that gives it on a socket."""
    registry = CollectorRegistry()
    registry.register(NameServerFigures(parts))
    ProcessCollector(registry=registry)

    def readiness() -> Readiness:
        groups = parts.routes.registered_groups()
        causes = () if parts.kv.is_ready else ("the name servers have no leader for their values",)
        leaderless = sorted(each.broker_name for each in groups if not each.has_leader)
        return Readiness(causes, {"groups": len(groups), "groupsWithoutLeader": leaderless})

    return Endpoint(sock, registry, readiness, tls=tls)

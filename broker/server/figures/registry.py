"""The one registry of a broker's figures, and the endpoint that gives them. It must not know what any figure means."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from broker.metrics.endpoint import Endpoint
from broker.metrics.families import Families
from broker.server.figures.group_figures import GroupFigures
from broker.server.figures.lag_times import LagTimes
from broker.server.figures.member_figures import MemberFigures
from broker.server.figures.observed import Observed
from broker.server.figures.readiness import readiness_of
from broker.server.figures.traffic_figures import TrafficFigures
from broker.server.figures.waiting_topics import WaitingTopics
from dledger.version import __version__

NODE_TYPE: Final = "broker"


class SeriesLeftOut(Collector):
    """The collector of how many series are over the limit; the last one, since it counts for those before it."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def describe(self) -> Iterator[Metric]:
        """Return nothing: names are not known before somebody asks."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield one series for each family that is cut short."""
        yield from self._families.gauges(
            "dledger_metrics_left_out_series",
            "series of a family over metricsOtelCardinalityLimit, which are not shown",
            ["family"],
            [([name], count) for name, count in self._families.left_out.items()],
        )
        yield from self._families.gauges(
            "dledger_build_info", "1; the version of the program", ["version"], [([__version__], 1)]
        )


def make_endpoint(
    sock: socket.socket, observed: Observed, tls: Callable[[], ssl.SSLContext | None]
) -> Endpoint:
    """Build the registry of a broker, and the endpoint that gives it on a socket."""
    config = observed.config()
    families = Families(
        {
            "cluster": config.cluster,
            "node_type": NODE_TYPE,
            "node_id": config.broker_name,
            "member": config.node_id,
        },
        series_max=config.metrics.series_max,
    )
    lag_times = LagTimes(observed.state, observed.log.reader)
    waiting_topics = WaitingTopics(observed.state, observed.log.reader)
    registry = CollectorRegistry()
    for collector in (
        MemberFigures(families, observed),
        TrafficFigures(families, observed),
        GroupFigures(families, observed, lag_times, waiting_topics),
        SeriesLeftOut(families),
    ):
        registry.register(collector)
    ProcessCollector(registry=registry)

    async def before() -> None:
        if observed.log.is_serving:
            await lag_times.refresh()
            await waiting_topics.refresh()

    return Endpoint(sock, registry, partial(readiness_of, observed), before=before, tls=tls)

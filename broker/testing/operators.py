"""An operator who makes the leader hand over now and then: planned, as before work on a machine."""

from __future__ import annotations

from collections import Counter
from random import Random

from broker.testing.broker_cluster import BrokerCluster
from broker.testing.settings import BrokerSimSettings
from dledger.errors import RefusedError
from dledger.raft.effects import Failed, Outcome, TransferDone


class Operator:
    """Orders hand-overs, each to whom the leader finds best.

    Attributes:
        is_stopped: orders no more.
    """

    def __init__(
        self, cluster: BrokerCluster, settings: BrokerSimSettings, counts: Counter[str]
    ) -> None:
        self.is_stopped = False
        self._cluster = cluster
        self._mean_ms = settings.hand_over_interval_ms
        self._rng = Random(f"operator/{settings.seed}")
        self._counts = counts

    def start(self) -> None:
        """Begin, if there is anything to do."""
        if self._mean_ms:
            self._schedule()

    def _schedule(self) -> None:
        pause_ms = 1 + int(self._rng.expovariate(1 / self._mean_ms))
        self._cluster.at(self._cluster.now_ms + pause_ms, self._order)

    def _order(self) -> None:
        if self.is_stopped:
            return
        self._schedule()
        leader = self._cluster.leader()
        if leader is None:
            return
        self._cluster.order_transfer(leader, self._answered)

    def _answered(self, outcome: Outcome) -> None:
        is_refused = isinstance(outcome, Failed) and isinstance(outcome.error, RefusedError)
        self._counts["hand_overs_refused"] += is_refused
        self._counts["handed-over"] += isinstance(outcome, TransferDone)

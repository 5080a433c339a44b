"""One run with brokers from one seed: the log's three parts, and everything that brokers promise beside.

Nothing here knows how a broker works: it begins, bends and ends a run.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from broker.server.controller import BrokerController
from broker.store.refusals import RefusalKind
from broker.store.state import BrokerState
from broker.testing.broker_cluster import BrokerCluster
from broker.testing.client import SimClient
from broker.testing.consumers import SimConsumer
from broker.testing.dropping import DroppingBrokers
from broker.testing.jugglers import Juggler
from broker.testing.keepers import Keeper
from broker.testing.operators import Operator
from broker.testing.poppers import Popper
from broker.testing.probes import Probe
from broker.testing.producers import SimProducer, SimTransactionProducer
from broker.testing.setters import Setter
from broker.testing.settings import BrokerSimSettings, draw_broker_settings
from dledger.engine import Engine
from dledger.raft.ids import NodeId
from dledger.testing.cluster import SimCluster
from dledger.testing.sim_clients import CallCounts
from dledger.testing.sim_settings import SimSettings
from dledger.testing.sim_trace import Trace
from dledger.testing.simulation import Clients, SimResult, Simulation
from dledger.testing.state_checker import Violation

FILLING_MS = 1_500
"""The time for which others work beside keepers."""

BROKER_STATES = (
    "snapshot-restored",
    "served-from-parts",
    "snapshot-fetched",
    "snapshot-refused",
    "handed-over",
)
"""The states that runs with brokers are to lead to, beside `STATES`."""


class BrokerClients:
    """All clients of one group; see `Clients`."""

    def __init__(self, cluster: BrokerCluster, settings: BrokerSimSettings) -> None:
        self.done: Counter[str] = Counter()
        self._cluster = cluster
        self._settings = settings
        kinds: list[tuple[type[SimClient], str, int]] = [
            (SimProducer, "p", settings.producer_count),
            (SimTransactionProducer, "t", settings.transaction_count),
            (SimConsumer, "c", settings.consumer_count),
            (Keeper, "k", settings.keeper_count),
            (Juggler, "j", settings.juggler_count),
            (Setter, "s", settings.setter_count),
            (Popper, "o", settings.popper_count),
        ]
        self._clients = [
            kind(cluster, settings, f"{letter}{number}", self.done)
            for kind, letter, count in kinds
            for number in range(count)
        ]
        self._operator = Operator(cluster, settings, self.done)
        self._probes: list[Probe] = []

    @property
    def counts(self) -> CallCounts:
        """The counts of sends by how they ended."""
        done = self.done
        return CallCounts(done["acknowledged"], done["refused"], done["unknown"])

    @property
    def is_stopped(self) -> bool:
        """True once the clients begin no more requests."""
        return self._operator.is_stopped

    @is_stopped.setter
    def is_stopped(self, value: bool) -> None:
        self._operator.is_stopped = value
        for client in self._clients:
            client.is_stopped = value

    def start(self) -> None:
        """Let every client begin."""
        self._operator.start()
        if self._settings.keeper_count:
            self._cluster.at(self._cluster.now_ms + FILLING_MS, self._leave_to_keepers)
        for client in self._clients:
            client.start()

    def _leave_to_keepers(self) -> None:
        """Stop the producers: the queue has enough messages, and offset commits should not wait for sends."""
        for client in self._clients:
            client.is_stopped = client.is_stopped or not isinstance(client, Keeper)

    def check_settings(self, state: BrokerState) -> None:
        """Demand that a replica that has applied everything has the settings that operators were told it has.

        Raises:
            Violation: it has others.
        """
        for client in self._clients:
            if isinstance(client, Setter):
                client.check(state.settings)

    def probe(self) -> None:
        """Send a message that must get through."""
        probe = Probe(self._cluster, self._settings, f"probe{len(self._probes)}", self.done)
        self._probes.append(probe)
        probe.start()

    @property
    def is_probe_acknowledged(self) -> bool:
        """True if the last probe was acknowledged."""
        return bool(self._probes) and self._probes[-1].is_done

    def unanswered(self) -> list[str]:
        """Return no request: clients are impatient, so nobody is owed an answer for ever."""
        return []


class BrokerSimulation(Simulation):
    """The brokers, clients and faults of one run."""

    def __init__(
        self,
        settings: BrokerSimSettings,
        *,
        engine_type: type[Engine] = Engine,
        state_type: type[BrokerState] = BrokerState,
        controller_type: type[BrokerController] = BrokerController,
        trace: Trace | None = None,
    ) -> None:
        self._broker_settings = settings
        self._state_type = state_type
        self._controller_type = controller_type
        super().__init__(settings, engine_type=engine_type, trace=trace)

    def _make_cluster(self, engine_type: type[Engine]) -> SimCluster:
        cluster_type = DroppingBrokers if self._broker_settings.drops_log else BrokerCluster
        self._brokers = cluster_type(
            self._broker_settings,
            engine_type=engine_type,
            state_type=self._state_type,
            controller_type=self._controller_type,
            trace=self._trace,
        )
        return self._brokers

    def _make_clients(self) -> Clients:
        self._broker_clients = BrokerClients(self._brokers, self._broker_settings)
        return self._broker_clients

    def _is_settled(self) -> bool:
        if not super()._is_settled():
            return False
        if len(self._brokers.calm) < len(self._brokers.node_ids):
            return True
        applied = {
            node.node_id: self._brokers.brokers[node.node_id].driver.applied_index
            for node in self._calm_members()
        }
        is_applied = len(set(applied.values())) == 1 and not self._brokers.model.waiting_count
        return is_applied and not self._wrongly_linked()

    def _wrongly_linked(self) -> list[NodeId]:
        """Return members that have no link to the leader, and nodes that have one and are none; in runs that change."""
        if not self._settings.changes_members:
            return []
        leader, members = self._brokers.leader(), self._brokers.configuration().members
        return [
            node.node_id
            for node in self._brokers.running()
            if node is not leader
            and self._brokers.brokers[node.node_id].controller.link.is_open
            is not (node.node_id in members)
        ]

    def _why_not_settled(self) -> str:
        model = self._brokers.model
        wrong = self._wrongly_linked()
        if wrong and super()._is_settled():
            return f"{', '.join(wrong)} have no link to the leader as members, or have one as none"
        if model.waiting_count and super()._is_settled():
            return (
                f"{model.waiting_count} messages still wait for their time or their transaction's end; "
                f"{model.unpopped_count} of them to be popped"
            )
        return super()._why_not_settled()

    def _compare(self) -> None:
        """Compare each broker with a replay of the log, and demand that nothing was refused.

        One that is no member has not applied everything; what it has applied is what the others had then.
        """
        super()._compare()
        brokers = self._brokers
        members = brokers.configuration().members
        for node in brokers.running():
            state = brokers.brokers[node.node_id].state
            brokers.model.compare_with_replay(state)
            if node.node_id in members:
                self._broker_clients.check_settings(state)
            if state.marks.divergences:
                raise Violation(f"{node.node_id}: the marks differ: {state.marks.divergences[0]}")
            # A timer that came while the record was on its way may keep what was to be forgotten.
            refused = [
                each for each in state.refusals.newest if each.kind is not RefusalKind.STILL_NEEDED
            ]
            if refused:
                raise Violation(f"{node.node_id} has refused {len(refused)} records: {refused[0]}")

    def _coverage(self) -> dict[str, int]:
        return {**super()._coverage(), **self._brokers.wires.counts}

    def _reached(self) -> dict[str, int]:
        counts = self._brokers.counts + self._broker_clients.done
        return {**super()._reached(), **{name: counts[name] for name in BROKER_STATES}}

    def _work(self) -> dict[str, int]:
        return {**self._broker_clients.done, **self._brokers.model.counts, **self._brokers.counts}


def run_broker_settings(settings: SimSettings, *, trace: Trace | None = None) -> SimResult:
    """Run settings, drawn by `draw_broker_settings` or made by hand."""
    with silence():
        return BrokerSimulation(cast("BrokerSimSettings", settings), trace=trace).run()


@contextmanager
def silence() -> Iterator[None]:
    """Silence the log lines of the brokers, which would be long: a run is full of faults."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def run_broker_seed(seed: int, *, trace: Trace | None = None) -> SimResult:
    """Run one seed."""
    return run_broker_settings(draw_broker_settings(seed), trace=trace)

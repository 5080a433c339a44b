"""A broker whose state is replaced by another member's: whoever asks for something gets it from the new one."""

from __future__ import annotations

import gc
import weakref

from broker.store.state import BrokerState
from broker.testing.broker_cluster import BrokerCluster
from broker.testing.settings import BrokerSimSettings


def test_nothing_of_a_broker_keeps_a_part_of_the_state_that_was_replaced() -> None:
    """Each service asks the state when it needs a part: one that it kept would tell for ever what was."""
    cluster = BrokerCluster(BrokerSimSettings(1, node_count=1, snapshot_interval_ms=0))
    node = cluster.nodes[cluster.voters[0]]
    cluster.start(node)
    broker = cluster.brokers[node.node_id]
    assert cluster.run_until(60_000, lambda: broker.log.is_serving)
    state, taken_in = broker.state, broker.state.beside()
    for _ in taken_in.load_steps(state.snapshot()):
        pass
    parts = {
        name: weakref.ref(part)
        for name, part in vars(state).items()
        if type(part).__module__.startswith("broker.store") and name != "_limits"
    }
    assert {"queues", "topics", "locks", "transactions", "settings"} <= parts.keys()
    before, index = state.digest(), state.applied_index
    state.swap(taken_in)
    for _ in taken_in.giving_up():
        pass
    del taken_in
    if any(part() is not None for part in parts.values()):
        gc.collect()  # what refers to itself; it looks at all that the process has
    assert [name for name, part in parts.items() if part() is not None] == []
    assert (broker.state.digest(), broker.state.applied_index) == (before, index)
    assert type(broker.state) is BrokerState

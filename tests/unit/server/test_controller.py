"""The order in which a broker takes up and lays down leadership; a wrong one stops the node."""

from __future__ import annotations

from functools import partial
from unittest.mock import MagicMock

import pytest

from broker.server.config import BrokerConfig
from broker.server.controller import BrokerController
from dledger import NodeId, RoleView, Term, TransferringError
from dledger.raft.effects import Role
from dledger_mq.message.names import AUTO_CREATE_TOPIC
from tests.unit.server.test_commits import Bench

LEADING = RoleView(Role.LEADER, Term(3), NodeId("n0"), True)
FOLLOWING = RoleView(Role.FOLLOWER, Term(4), NodeId("n1"), False)


def controller(staged_count: int = 0) -> BrokerController:
    made = BrokerController.__new__(BrokerController)
    made._was_serving, made._led_term = False, Term(0)
    for name in ("commits", "services", "link", "members", "_router", "_offsets", "_set_up"):
        setattr(made, name, MagicMock())
    made.commits.staging.staged_count = staged_count
    return made


def test_a_term_is_led_once() -> None:
    made = controller()
    made.role_changed(LEADING)
    made.role_changed(FOLLOWING)
    with pytest.raises(AssertionError, match="term 3 is led after 3"):
        made.role_changed(LEADING)


def test_nothing_is_staged_by_those_who_learn_that_leadership_is_lost() -> None:
    made = controller(staged_count=2)
    made.role_changed(LEADING)
    with pytest.raises(AssertionError, match="2 records are staged after term 4"):
        made.role_changed(FOLLOWING)


def test_a_configuration_that_the_log_refuses_is_staged_again() -> None:
    """A hand-over that nobody takes refuses the leader's first entry: its topics would be missing for a whole term."""
    bench = Bench(entry_bytes_max=10_000)
    made = controller()
    made._config = BrokerConfig(group="g", broker_name="b", node_id="n0", peers=(), store_path="")
    made._state, made._next_expiry_ms, made._outputs = bench.state, 10**9, MagicMock()
    made.delays = made.timers = made.runtime = made._dispatch = MagicMock()
    made.commits, made._set_up = bench.commits, partial(BrokerController._set_up, made)  # type: ignore[method-assign]
    bench.log.refusal = TransferringError("leadership is being handed to n1")
    made.role_changed(LEADING)
    bench.commits.flush()
    assert bench.commits.is_idle
    bench.log.refusal = None
    made.tick(0)
    bench.commits.flush()
    assert AUTO_CREATE_TOPIC.encode() in bench.log.proposed[0][0]
    made.tick(50)
    assert not bench.commits.staging.staged_count, "it is on its way"

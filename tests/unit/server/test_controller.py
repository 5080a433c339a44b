"""The order in which a broker takes up and lays down leadership; a wrong one stops the node."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from broker.server.controller import BrokerController
from dledger import NodeId, RoleView, Term
from dledger.raft.effects import Role

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

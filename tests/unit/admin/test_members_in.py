"""Where `dledger-admin members` finds a group: what the brokers say of it."""

from __future__ import annotations

import json

import pytest

from broker.admin.ask import NobodyAnsweredError, NodeAnswer
from broker.admin.members import members_in


def answer_of(serving: bool, **logs: str) -> NodeAnswer:
    table = {
        "raftServing": str(serving).lower(),
        "raftLogGroup": "g",
        "raftMemberAddresses": json.dumps({name: {"log": at} for name, at in logs.items()}),
    }
    return NodeAnswer("h:1", table)


def test_the_leader_is_believed_first_and_all_that_are_named_are_known() -> None:
    behind, leader = answer_of(False, n0="h:1", n1="h:2"), answer_of(True, n1="h:9", n3="h:4")
    group, peers = members_in([behind, leader])
    assert group == "g"
    assert [str(peer) for peer in peers] == ["n1-h:9", "n3-h:4", "n0-h:1"]


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"n0": 7}', '{"n0": {}}', '{"n0": {"log": "x"}}']
)
def test_who_says_nothing_that_can_be_used_is_passed_over(text: str) -> None:
    useless = NodeAnswer("h:5", {"raftLogGroup": "g", "raftMemberAddresses": text})
    silent = NodeAnswer("h:6", problem="no answer within 5 s")
    with pytest.raises(NobodyAnsweredError, match="where the group's members are: h:6: no answer"):
        members_in([useless, silent])
    _, (peer,) = members_in([useless, answer_of(True, n0="h:1"), silent])
    assert str(peer) == "n0-h:1"

"""Modes of groups as tools set them (401): what the log would not take is refused before it is stored."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from broker.server.handlers.assignments import Assignments
from broker.service.catalog import Catalog, group_for_use
from broker.store.groups import SubscriptionGroupConfig
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from tests.unit.server.lone_leader import Asker, LoneLeader
from tests.unit.server.pending import pending

CODE = RequestCode.SET_MESSAGE_REQUEST_MODE


def set_mode(leader: LoneLeader, *, auto_create: bool = True, **members: object) -> int:
    """The code of the answer to a tool that sets how G consumes T."""
    catalog = Catalog(leader.state.topics.get, leader.state.groups.get)
    assignments = Assignments(
        leader.state,
        leader.commits,
        leader.router,
        members=cast("Any", None),
        broker_name="broker-a",
        find_group=lambda name: group_for_use(catalog, name, auto_create=auto_create),
        find_route=None,
    )
    body = json.dumps({"consumerGroup": "G", "topic": "T", **members}).encode()
    command = RemotingCommand(code=CODE, opaque=9, body=body)
    asker = Asker()
    serve = cast("Any", assignments.set_mode)
    leader.router.carry_out(pending(asker, CODE, command=command, serve=serve))
    leader.commit()
    decoder = FrameDecoder()
    decoder.feed(b"".join(asker.frames))
    (frame,) = decoder.frames()
    return decode_command(frame).code


@pytest.fixture
def leader() -> LoneLeader:
    leader = LoneLeader()
    leader.create(SubscriptionGroupConfig("G"))
    return leader


@pytest.mark.parametrize("mode", [None, "push", 1, True, ["POP"], {"POP": 1}])
def test_a_mode_that_is_none_is_refused(leader: LoneLeader, mode: object) -> None:
    """Whatever it is in JSON: where the leader is confirmed first, nobody would catch another error."""
    assert set_mode(leader, mode=mode) == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("share", ["1", 1.5, True, [1]])
def test_a_share_that_is_no_number_is_refused(leader: LoneLeader, share: object) -> None:
    """A truth counts as a number in Python, and the fold refuses it: it was answered with success, and not done."""
    assert set_mode(leader, mode="POP", popShareQueueNum=share) == ResponseCode.SYSTEM_ERROR
    assert leader.state.pops.mode("G", "T") is None


@pytest.mark.parametrize(("share", "kept"), [(0, 0), (-1, 0), (3, 3), (2**70, 2**31 - 1)])
def test_a_share_is_kept_within_its_bounds(leader: LoneLeader, share: int, kept: int) -> None:
    assert set_mode(leader, mode="POP", popShareQueueNum=share) == ResponseCode.SUCCESS
    mode = leader.state.pops.mode("G", "T")
    assert mode is not None
    assert mode.share_count == kept
    assert not leader.state.refusals.newest


def test_a_group_that_is_not_there_yet_is_created_with_its_mode(leader: LoneLeader) -> None:
    """Operators set the mode before the first consumer starts, as RocketMQ's own tests do."""
    assert set_mode(leader, consumerGroup="New", mode="POP") == ResponseCode.SUCCESS
    assert "New" in leader.state.groups
    mode = leader.state.pops.mode("New", "T")
    assert mode is not None
    assert mode.is_pop


@pytest.mark.parametrize(("name", "auto_create"), [("New", False), ("not a name", True)])
def test_a_group_that_nothing_creates_is_refused(
    leader: LoneLeader, name: str, *, auto_create: bool
) -> None:
    code = set_mode(leader, auto_create=auto_create, consumerGroup=name, mode="POP")
    assert code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert name not in leader.state.groups
    assert leader.state.pops.mode(name, "T") is None

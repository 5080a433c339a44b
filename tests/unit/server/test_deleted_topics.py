"""A topic's deletion takes effect where it stands in the log, for sends after it and for pulls that wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.server.requests.request import HOLD_MS as ROUTER_HOLD_MS
from broker.service.pull import PullGrant
from broker.service.refusal import Refusal
from broker.store.control import Command, DeleteTopic, PutTopic
from broker.store.state import BrokerState
from broker.store.topics import PERM_ALL, TopicConfig
from dledger import DLedgerError, NotLeaderError
from dledger_mq.message.names import AUTO_CREATE_TOPIC
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from dledger_mq.remoting.requests import PullFields
from tests.unit.server.lone_leader import Asker, LoneLeader
from tests.unit.server.test_pulls_of_damaged_entries import Bench, bodies

HOLD_MS = 15_000


@pytest.fixture
def leader() -> LoneLeader:
    leader = LoneLeader()
    leader.send(b"old")
    leader.commit()
    return leader


def delete(leader: LoneLeader) -> None:
    """Stage it and propose it; the rest of what follows is up to the test."""
    leader.commits.stage_control(DeleteTopic("T"))
    leader.commits.flush()


def answer_of(asker: Asker) -> RemotingCommand:
    decoder = FrameDecoder()
    decoder.feed(b"".join(asker.frames))
    (frame,) = decoder.frames()
    return decode_command(frame)


def test_a_send_after_a_deletion_on_its_way_finds_no_topic(leader: LoneLeader) -> None:
    delete(leader)
    asker = leader.send(b"new")
    assert answer_of(asker).code == ResponseCode.TOPIC_NOT_EXIST
    leader.commit()
    assert leader.stored() == []


def test_it_makes_the_topic_anew_where_sends_may(leader: LoneLeader) -> None:
    leader.create(TopicConfig(AUTO_CREATE_TOPIC, 4, 4, PERM_ALL))
    delete(leader)
    askers = [leader.send(b"first"), leader.send(b"second")]
    leader.commit()
    assert [answer_of(asker).ext["queueOffset"] for asker in askers] == ["0", "1"]
    assert "T" in leader.state.topics
    assert [message.body for message in leader.stored()] == [b"first", b"second"]


def test_a_deletion_that_failed_deletes_nothing(leader: LoneLeader) -> None:
    leader.commits.stage_control(DeleteTopic("T"))
    leader.commits.lost(NotLeaderError("n1", 2))
    asker = leader.send(b"new")
    leader.commit()
    assert answer_of(asker).ext["queueOffset"] == "1"


def test_deleted_made_and_deleted_again_while_all_of_it_is_on_its_way(leader: LoneLeader) -> None:
    leader.create(TopicConfig(AUTO_CREATE_TOPIC, 4, 4, PERM_ALL))
    delete(leader)
    made = leader.send(b"between")
    leader.commits.flush()
    delete(leader)
    leader.log.commit()
    last = leader.send(b"last")
    leader.commit()
    assert [answer_of(asker).ext["queueOffset"] for asker in (made, last)] == ["0", "0"]
    assert [message.body for message in leader.stored()] == [b"last"]


class Rules:
    """Know no other topics than the applied ones."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def check(self, fields: PullFields) -> PullGrant | Refusal:
        if fields.topic not in self._state.topics:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, "gone")
        return PullGrant(None)


class Deleting(Bench):
    """Two messages stand in the topic."""

    def __init__(self) -> None:
        super().__init__()
        self.pulls._rules = Rules(self.broker.state)  # type: ignore[assignment]
        self.does(PUT)
        for _ in range(2):
            self.broker.send()

    def does(self, *commands: Command) -> None:
        for command in commands:
            self.broker.command(command)
        self.pulls.applied()


PUT, DELETE = PutTopic(TopicConfig("T", 4, 4)), DeleteTopic("T")


def test_a_held_pull_is_answered_when_its_topic_is_deleted() -> None:
    bench = Deleting()
    origin = bench.pull(2, HOLD_MS)
    assert origin.frames == []
    bench.does(DELETE)
    (answer,) = origin.answers()
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_it_is_led_to_the_first_message_of_a_topic_that_was_made_anew_at_once() -> None:
    bench = Deleting()
    origin = bench.pull(2, HOLD_MS)
    bench.does(DELETE, PUT)
    (answer,) = origin.answers()
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext["nextBeginOffset"] == "0"
    bench.broker.send(body=b"new")
    assert bodies(bench.pull(0)) == [b"new"]


def test_other_changes_of_topics_leave_it_where_it_is() -> None:
    bench = Deleting()
    origin = bench.pull(2, HOLD_MS)
    bench.does(PutTopic(TopicConfig("U", 4, 4)), DeleteTopic("U"))
    assert origin.frames == []
    bench.broker.send(body=b"new")
    bench.pulls.applied()
    assert bodies(origin) == [b"new"]


def test_a_node_that_may_be_behind_sends_its_client_elsewhere() -> None:
    """The topic may exist again by now."""
    bench = Deleting()
    bench.log.is_serving = False
    bench.send_away()
    origin = bench.pull(2, HOLD_MS)
    bench.does(DELETE)
    assert origin.frames == []
    bench.expire(ROUTER_HOLD_MS)
    (answer,) = origin.answers()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_leader_that_may_be_deposed_denies_no_topic(
    leader: LoneLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one may have created it."""
    confirm: list[Callable[[], None]] = []
    linear = leader.router._linear
    monkeypatch.setattr(linear, "read", lambda act, _failed: confirm.append(act), raising=False)
    there, missing = leader.send(topic="New"), leader.send(topic="Missing")
    assert (there.frames, missing.frames) == ([], [])
    leader.create(TopicConfig("New", 4, 4))
    for act in confirm:
        act()
    leader.commit()
    assert answer_of(there).code == 0
    assert [message.body for message in leader.stored("New")] == [b"body"]
    assert answer_of(missing).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_send_to_a_topic_that_nobody_confirms_goes_to_the_next_leader(
    leader: LoneLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unconfirmed(_act: object, failed: Callable[[DLedgerError], None]) -> None:
        failed(NotLeaderError("n1", 2))

    monkeypatch.setattr(leader.router._linear, "read", unconfirmed, raising=False)
    assert leader.send(topic="New").frames == []
    assert len(leader.router.held) == 1

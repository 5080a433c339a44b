"""Retries over simulated time: the whole way from a failing consumer to the dead letters (L, AC12)."""

from __future__ import annotations

import pytest

from broker.store.control import LockQueues
from broker.store.groups import SubscriptionGroupConfig
from dledger_mq.message.properties import PROPERTIES_BYTES_MAX, decode_properties
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import decode_command
from tests.unit.server.lone_leader import Asker, LoneLeader

MINUTE_S, HOUR_S = 60, 3600
AC12_S = [10, 30, *(minute * MINUTE_S for minute in (*range(1, 11), 20, 30)), HOUR_S, 2 * HOUR_S]


def code(asker: Asker) -> int:
    decoder = FrameDecoder()
    decoder.feed(b"".join(asker.frames))
    (answer,) = [decode_command(frame) for frame in decoder.frames()]
    return answer.code


def test_ac12_the_timeline_of_a_failing_consumer() -> None:
    leader = LoneLeader()
    leader.send(b"poison", UNIQ_KEY="u", TAGS="TagA")
    leader.commit()
    (message,) = leader.stored()
    waits_s: list[int] = []
    while True:
        failed_at = leader.now_ms
        asker = leader.give_back(message, "g")
        leader.commit()
        assert code(asker) == 0
        if leader.stored("%DLQ%g"):
            break
        known = len(leader.stored("%RETRY%g"))
        leader.pass_until(failed_at + AC12_S[len(waits_s)] * 1000 - 1, step_ms=10_000)
        assert len(leader.stored("%RETRY%g")) == known, "never early"
        leader.pass_until(leader.now_ms + 200)
        message = leader.stored("%RETRY%g")[-1]
        waits_s.append((message.store_timestamp_ms - failed_at) // 1000)
        assert message.reconsume_times == len(waits_s)
    assert waits_s == AC12_S
    (dead,) = leader.stored("%DLQ%g")
    assert (dead.body, dead.reconsume_times, dead.queue_id) == (b"poison", 17, 0)
    found = decode_properties(dead.properties)
    assert (found["RETRY_TOPIC"], found["UNIQ_KEY"], found["TAGS"]) == ("T", "u", "TagA")
    assert "DELAY" not in found
    topics = leader.state.topics
    for name in ("%RETRY%g", "%DLQ%g"):
        config = topics.get(name)
        assert config is not None
        assert (config.perm, config.write_queue_count) == (6, 1), "L2, L6"


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_l5_the_groups_own_limit(limit: int) -> None:
    leader = LoneLeader()
    leader.create(SubscriptionGroupConfig("g", retry_times_max=limit))
    leader.send(b"poison")
    leader.commit()
    (message,) = leader.stored()
    for _ in range(limit):
        leader.give_back(message, "g")
        leader.commit()
        leader.pass_until(leader.now_ms + 3 * MINUTE_S * 1000, step_ms=1000)
        message = leader.stored("%RETRY%g")[-1]
    assert not leader.stored("%DLQ%g")
    leader.give_back(message, "g")
    leader.commit()
    assert len(leader.stored("%DLQ%g")) == 1
    assert len(leader.stored("%RETRY%g")) == limit


def test_l6_a_negative_level_is_the_end() -> None:
    leader = LoneLeader()
    leader.send(b"poison")
    leader.commit()
    leader.give_back(leader.stored()[0], "g", level=-1)
    leader.commit()
    assert len(leader.stored("%DLQ%g")) == 1


def test_l13_l15_a_client_that_gives_back_by_sending() -> None:
    leader = LoneLeader()
    leader.create(SubscriptionGroupConfig("g", retry_times_max=2))
    named = {"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "ID"}
    leader.send(b"one", "%RETRY%g", 2, DELAY="3", **named)
    leader.send(b"two", "%RETRY%g", 3, DELAY="3", **named)
    leader.commit()
    (dead,) = leader.stored("%DLQ%g")
    assert (dead.body, dead.find(b"DLQ_ORIGIN_TOPIC")) == (b"two", b"T")
    assert dead.find(b"DLQ_ORIGIN_MESSAGE_ID") == b"ID"
    leader.pass_until(leader.now_ms + 10_100)
    assert [message.body for message in leader.stored("%RETRY%g")] == [b"one"]


def test_l16_an_ordered_group_buries_at_once_until_its_locks_expire() -> None:
    leader = LoneLeader()
    leader.create(SubscriptionGroupConfig("g"))
    leader.commits.stage_control(LockQueues("g", "client", [("T", 0)]))
    leader.commit()
    leader.send(b"one", "%RETRY%g", 1, DELAY="1", RETRY_TOPIC="T")
    leader.commit()
    assert [message.body for message in leader.stored("%DLQ%g")] == [b"one"]
    leader.pass_until(leader.now_ms + 61_000, step_ms=1000)
    leader.send(b"two", "%RETRY%g", 1, DELAY="1", RETRY_TOPIC="T")
    leader.commit()
    leader.pass_until(leader.now_ms + 1100)
    assert [message.body for message in leader.stored("%RETRY%g")] == [b"two"]


def test_m2_a_message_with_a_due_time_that_is_given_back_follows_the_levels() -> None:
    leader = LoneLeader()
    leader.send(b"later", UNIQ_KEY="u", TIMER_DELAY_MS="100")
    leader.commit()
    leader.pass_until(leader.now_ms + 150)
    (message,) = leader.stored()
    leader.give_back(message, "g")
    leader.commit()
    leader.pass_until(leader.now_ms + 9_900)
    assert not leader.stored("%RETRY%g")
    leader.pass_until(leader.now_ms + 200)
    (again,) = leader.stored("%RETRY%g")
    found = decode_properties(again.properties)
    assert not {"TIMER_DELAY_MS", "TIMER_OUT_MS"} & found.keys()


def test_l9_a_message_that_cannot_be_stored_again_is_answered_with_1_as_by_rocketmq() -> None:
    """Its first retry adds properties for which there is no room; a send of its like would get 13."""
    leader = LoneLeader()
    leader.send(b"poison", UNIQ_KEY="u", filler="x" * (PROPERTIES_BYTES_MAX - 40))
    leader.commit()
    (message,) = leader.stored()
    asker = leader.give_back(message, "g")
    leader.commit()
    assert code(asker) == ResponseCode.SYSTEM_ERROR
    assert leader.stored("%RETRY%g") == []

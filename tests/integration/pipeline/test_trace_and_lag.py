"""The story of a message, and where groups stand, asked of a real group."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dledger_mq import ConsumeResult, Message, ReceivedMessage
from dledger_mq.blocking import PullConsumer, PushConsumer
from dledger_mq.client.lag import by_topic
from jepsen.processes import poll
from pipeline.cli import main
from pipeline.jobs.lag import ask_lags
from pipeline.trace import MessageTrace, trace
from tests.integration.pipeline.topics import PATIENCE_S, Topics

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def test_a_message_that_is_given_back_until_it_is_a_dead_letter(
    topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, told, group = topics.fresh(), topics.fresh(), "refuses"
    topics.send([Message(told, b"no record")])  # somebody must create it
    (sent,) = topics.send([Message(topic, b"poison", keys="order-5", delay_level=1)])
    seen: list[int] = []

    def refuse(message: ReceivedMessage) -> ConsumeResult:
        seen.append(message.reconsume_times)
        return ConsumeResult.LATER

    with PushConsumer(
        topics.namesrv,
        group,
        refuse,
        subscriptions={topic: "*"},
        start_from="first",
        max_reconsume_times=1,
        retry_delay_level=1,
        commit_interval_s=0.2,
        trace=True,
        trace_topic=told,
    ):
        assert poll(lambda: any("dead letter" in step for step in steps(topics, topic)), PATIENCE_S)
        assert poll(lambda: all(one.is_done for one in story(topics, topic).standings), PATIENCE_S)
        assert poll(lambda: len(deliveries(topics, topic, told)) == 2, PATIENCE_S)
    assert seen == [0, 1]
    assert steps(topics, topic) == [
        "waits (delay level 1)",
        "delivered after its wait",
        "given back by refuses, waits (delay level 1)",
        "retry 1 for refuses",
        "dead letter of refuses, which gave it back 2 times",
    ]
    whole = story(topics, topic)
    assert whole.unique_key == sent.unique_key
    delivered = next(step for step in whole.steps if step.what.startswith("delivered"))
    assert trace(topics.namesrv, delivered.message_id) == [whole], "by its offset message id"
    assert main(["trace", "order-5", "--topic", topic, "--name-server", topics.namesrv]) == 0
    shown = capsys.readouterr().out
    assert "refuses is done with it" in shown
    assert "dead letter" in shown
    assert "told by clients" not in shown, "they have told it elsewhere"
    where = ["--topic", topic, "--name-server", topics.namesrv, "--trace-topic", told]
    assert main(["trace", "order-5", *where]) == 0
    assert capsys.readouterr().out.count("delivered  refuses at 127.0.0.1: to come again") == 2
    assert main(["trace", "order-5", *where, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["messages"]
    assert [one["retry_times"] for one in found["told"]["deliveries"]] == [0, 1]


def deliveries(topics: Topics, topic: str, told: str) -> list[int]:
    """How often the message was sent back before each delivery whose end is told, too."""
    (found,) = trace(topics.namesrv, "order-5", topic=topic, trace_topic=told)
    return [one.before.retry_times for one in found.told.deliveries if one.before and one.after]


def story(topics: Topics, topic: str) -> MessageTrace:
    (found,) = trace(topics.namesrv, "order-5", topic=topic)
    return found


def steps(topics: Topics, topic: str) -> list[str]:
    return [step.what for step in story(topics, topic).steps]


def test_a_group_that_has_committed_nothing_is_in_the_story(topics: Topics) -> None:
    topic, group = topics.fresh(), "never-commits"
    topics.send([Message(topic, b"poison", keys="order-5")])
    seen: list[int] = []

    def refuse(message: ReceivedMessage) -> ConsumeResult:
        seen.append(message.reconsume_times)
        return ConsumeResult.LATER if len(seen) == 1 else ConsumeResult.SUCCESS

    with PushConsumer(
        topics.namesrv,
        group,
        refuse,
        subscriptions={topic: "*"},
        start_from="first",
        retry_delay_level=1,
        commit_interval_s=3600,
    ):
        assert poll(lambda: "retry 1 for never-commits" in steps(topics, topic), PATIENCE_S), steps(
            topics, topic
        )


def test_what_cannot_be_traced(topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--name-server", topics.namesrv]
    assert main(["trace", "nothing", "--topic", "Ready", "--json", *where]) == 1
    assert json.loads(capsys.readouterr().out) == {"messages": []}
    assert main(["trace", "order-5", "--topic", "NoSuchTopic", *where]) == 2
    assert "topic NoSuchTopic does not exist" in capsys.readouterr().err
    assert main(["trace", "order-5", *where]) == 2
    assert "no offset message id" in capsys.readouterr().err
    assert main(["trace", "0" * 32, *where]) == 1
    assert main(["lag", "--name-server", "127.0.0.1:1"]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_lag_by_group_topic_and_queue(
    topics: Topics, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    topic = topics.fresh()
    topics.fill(topic, 40)
    with PullConsumer(topics.namesrv, "slow", timeout_s=PATIENCE_S) as consumer:
        queues = consumer.queues(topic)
        consumer.commit_all({queues[0]: 10, queues[1]: 3, queues[2]: 0})
    assert poll(lambda: len(ask_lags(topics.namesrv, group="slow")) == 3, PATIENCE_S)
    lags = ask_lags(topics.namesrv, group="slow", topic=topic)
    assert [(one.queue_id, one.committed, one.end, one.lag) for one in lags] == [
        (0, 10, 10, 0),
        (1, 3, 10, 7),
        (2, 0, 10, 10),
    ]
    (total,) = by_topic(lags)
    assert (total.lag, total.missed, total.worst.queue_id) == (17, 0, 2)
    command = ["lag", "--name-server", topics.namesrv, "--group", "slow", "--topic", topic]
    assert main([*command, "--max-lag", "17"]) == 0
    assert main([*command, "--max-lag", "16", "--queues"]) == 1
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["groups"] == [{"group": "slow", "topic": topic, "lag": 17, "missed": 0}]
    assert len(found["queues"]) == 3

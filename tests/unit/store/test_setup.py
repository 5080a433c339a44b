"""What a new leader writes before it serves."""

from __future__ import annotations

from broker.store.control import Command, PutTopic, SetDelayLevels
from broker.store.schedule import DELAY_LEVELS_TEXT, parse_delay_levels
from broker.store.setup import missing_setup
from tests.unit.store.lone_broker import LoneBroker

STANDARD = parse_delay_levels(DELAY_LEVELS_TEXT)


def missing(broker: LoneBroker, levels: list[int], *, cluster: str = "c") -> list[Command]:
    return missing_setup(
        broker.state,
        cluster=cluster,
        broker="b",
        auto_create=True,
        trace=True,
        delay_levels_ms=levels,
    )


def test_b6_a_fresh_broker_lacks_what_the_configuration_names() -> None:
    broker = LoneBroker()
    commands = missing(broker, STANDARD)
    assert [command.config.name for command in commands if isinstance(command, PutTopic)] == [
        "TBW102",
        "RMQ_SYS_TRACE_TOPIC",
        "c",
        "b",
        "c_REPLY_TOPIC",
        "rmq_sys_REVIVE_LOG_c",
        "rmq_sys_SYNC_BROKER_MEMBER_b",
    ]
    for command in commands:
        broker.command(command)
    assert missing(broker, STANDARD) == []
    assert broker.state.refusals.count == 0


def test_m1_other_delay_levels_arrive_as_records() -> None:
    broker = LoneBroker()
    for command in missing(broker, STANDARD):
        broker.command(command)
    assert missing(broker, [1000, 2000]) == [SetDelayLevels([1000, 2000])]
    longer = [1000] * 30
    for command in missing(broker, longer):
        broker.command(command)
    schedule_topic = broker.state.topics.get("SCHEDULE_TOPIC_XXXX")
    assert schedule_topic is not None
    assert schedule_topic.write_queue_count == 30
    assert list(broker.state.schedule.delays_ms) == longer
    assert missing(broker, longer) == []

"""What a new leader writes into the log before it serves: what the configuration names and the state lacks.

The fold must not read a node's configuration, so what follows from it (topics named after the cluster,
the delay levels) arrives as control records like everything else.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.store import names
from broker.store.control import Command, PutTopic, SetDelayLevels
from broker.store.state import BrokerState
from broker.store.topics import TopicConfig, configured_system_topics


def missing_setup(
    state: BrokerState,
    *,
    cluster: str,
    broker: str,
    auto_create: bool,
    trace: bool,
    delay_levels_ms: Sequence[int],
) -> list[Command]:
    """The control records to stage at the start of a term; none when the state agrees already."""
    wanted = configured_system_topics(cluster, broker, auto_create=auto_create, trace=trace)
    if len(delay_levels_ms) > _schedule_queue_count(state):
        count = len(delay_levels_ms)
        wanted.append(TopicConfig(names.SCHEDULE_TOPIC, count, count))
    commands: list[Command] = [
        PutTopic(config)
        for config in wanted
        if config.name not in state.topics or config.name == names.SCHEDULE_TOPIC
    ]
    if tuple(delay_levels_ms) != tuple(state.schedule.delays_ms):
        commands.append(SetDelayLevels(list(delay_levels_ms)))
    return commands


def _schedule_queue_count(state: BrokerState) -> int:
    config = state.topics.get(names.SCHEDULE_TOPIC)
    return config.write_queue_count if config else 0

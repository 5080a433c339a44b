"""Answers to tools that ask how much was put and got lately (315). The names of statistics are RocketMQ's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.server.requests.request import Handler, PendingRequest, Where
from broker.server.watches.counter_windows import Growth
from broker.server.watches.traffic_stats import Traffic, TrafficStats
from broker.service.conclusions import RequestKind
from broker.store.state import BrokerState
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import write_json

_OF_ALL: Final = {"BROKER_PUT_NUMS": True, "BROKER_GET_NUMS": False}
_OF_TOPICS: Final = {"TOPIC_PUT_NUMS": False, "TOPIC_PUT_SIZE": True}
_OF_GROUPS: Final = {"GROUP_GET_NUMS": False, "GROUP_GET_SIZE": True}
"""By name: whether bytes are counted."""


class TrafficReads:
    """The answers; of this node, at once: what it gave nobody else knows."""

    def __init__(self, state: BrokerState, stats: TrafficStats, *, cluster: str) -> None:
        self._state = state
        self._stats = stats
        self._cluster = cluster

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code = RequestCode.VIEW_BROKER_STATS_DATA
        return (Handler(code, self.view, RequestKind.READ, Where.HERE),)

    def view(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer VIEW_BROKER_STATS_DATA.

        Raises:
            FieldError: name or key is missing.
        """
        name = fields.text(command.ext, "statsName")
        key = fields.text(command.ext, "statsKey")
        growths = self._growths(name, key)
        if growths is None:
            text = f"The stats <{name}> <{key}> not exist"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
            return
        in_bytes = _OF_TOPICS.get(name, False) or _OF_GROUPS.get(name, False)
        request.answer(ResponseCode.SUCCESS, body=stats_body(growths, in_bytes=in_bytes))

    def _growths(self, name: str, key: str) -> Sequence[Growth] | None:
        """Return a statistic of the last minute, hour and day; None: there is none of that name or key."""
        if name in _OF_ALL:
            is_known = key == self._cluster
            return self._stats.growth_of_all(is_put=_OF_ALL[name]) if is_known else None
        if name in _OF_TOPICS:
            return self._stats.growth(Traffic.PUT, key) if key in self._state.topics else None
        topic, _, group = key.partition("@")
        if name not in _OF_GROUPS or topic not in self._state.topics:
            return None
        return self._stats.growth(Traffic.GIVEN, topic, group)


def stats_body(growths: Sequence[Growth], *, in_bytes: bool) -> bytes:
    """Encode the body of VIEW_BROKER_STATS_DATA (315)."""
    names = ("statsMinute", "statsHour", "statsDay")
    return write_json(
        {name: _item(growth, in_bytes) for name, growth in zip(names, growths, strict=True)}
    )


def _item(growth: Growth, in_bytes: bool) -> dict[str, float]:
    total = growth.size_bytes if in_bytes else growth.messages
    return {
        "avgpt": total / growth.messages if growth.messages else 0.0,
        "sum": total,
        "tps": total * 1000 / growth.span_ms if growth.span_ms else 0.0,
    }

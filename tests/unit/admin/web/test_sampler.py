"""The one task that asks: what it makes of answers, and that it asks in turn and within bounds."""

from __future__ import annotations

import json

import pytest

from broker.admin.answers import QueueStats
from broker.admin.broker_tables import BrokerRefusedError, BrokerTables
from broker.admin.looks import Looks
from broker.admin.web import sampler as module
from broker.admin.web.sampler import GroupTables, Sampler
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.json_body import write_json
from dledger_mq.remoting.message_queue import WireQueue
from tests.unit.admin.runtime_tables import GROUP, table_of
from tests.unit.admin.test_survey import Server, beside, name_server
from tests.unit.admin.web.consoles import tables_of, whole_look

TOPICS = [f"T{number}" for number in range(5)]
CODE = RequestCode


def queue_table(row: dict[str, int], topic: str = "T0") -> dict[WireQueue, dict[str, int]]:
    return {WireQueue(GROUP, 0, topic): row}


BODIES: dict[int, object] = {
    CODE.GET_ALL_TOPIC_CONFIG: {
        "topicConfigTable": {name: {"topicName": name, "perm": 6} for name in TOPICS}
    },
    CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {
        "subscriptionGroupTable": {"g": {"groupName": "g"}, "h": {"groupName": "h"}}
    },
    CODE.GET_TOPIC_STATS_INFO: {"offsetTable": queue_table({"minOffset": 2, "maxOffset": 9})},
    CODE.GET_ALL_CONSUMER_OFFSET: {
        "offsetTable": {"T0@g": {0: 4}, "T0@lone": {0: 3}, "T1@g": {7: 1}}
    },
    CODE.GET_BROKER_CONSUME_STATS: {
        "consumeStatsList": [
            {"g": [{"offsetTable": queue_table({"brokerOffset": 9, "consumerOffset": 5})}]}
        ]
    },
    CODE.QUERY_CONSUME_TIME_SPAN: {
        "consumeTimeSpanSet": [
            {"messageQueue": WireQueue(GROUP, 0, "T0"), "delayTime": 7000, "minTimeStamp": 1}
        ]
    },
}


class Broker(Server):
    """A lone leader that answers everything; `bodies` may be changed.

    Attributes:
        stored: messages that it says are stored.
    """

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.bodies = dict(BODIES)
        self.stored = 100

    def _answer(self, code: int) -> bytes | None:
        if code == CODE.GET_BROKER_RUNTIME_INFO:
            addresses = json.dumps({"n0": {"clients": self.address}})
            figures = {"putMessageTimesTotal": str(self.stored), "raftSyncMs": "1.25"}
            table = table_of("n0", raftMembers="n0", raftMemberAddresses=addresses, **figures)
            return write_json({"table": table})
        body = self.bodies.get(code)
        return body if body is None or isinstance(body, bytes) else write_json(body)


class Clock:
    """A wall clock that tests set."""

    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


async def with_sampler(broker: Broker, *rounds: str) -> Sampler:
    """Return a sampler after so many looks and rounds of questions, a second apart."""
    names = name_server({GROUP: [broker.address]})
    clock = Clock()
    sampler = Sampler(Looks((names.address,)), clock)

    async def act() -> None:
        for each in rounds:
            await (sampler.look_once() if each == "look" else sampler.ask_once())
            clock.now_ms += 1000
            broker.stored += 50

    await beside([broker, names], act)
    return sampler


async def test_a_round_brings_topics_groups_lags_and_delays() -> None:
    tables = (await with_sampler(Broker(), "ask")).tables[GROUP]
    assert (tables.problem, tables.at_ms) == ("", 1_000_000)
    assert sorted(tables.topics) == TOPICS
    assert sorted(tables.groups) == ["g", "h"]
    assert tables.queues["T0"][0].max_offset == 9
    assert tables.lags("g") == {"T0": 4}
    assert tables.delays_ms == {("g", "T0"): 7000, ("lone", "T0"): 7000}


async def test_rates_come_of_two_looks() -> None:
    sampler = await with_sampler(Broker(), "look", "look")
    assert sampler.rates.rate(("stored", GROUP)) == 50.0
    assert list(sampler.history.series(f"stored/{GROUP}"))[1:] == [50.0]
    assert list(sampler.history.series(f"sync/{GROUP}/n0")) == [1.25, 1.25]


async def test_so_many_topics_a_round_and_the_others_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TOPICS_A_ROUND", 2)
    broker = Broker()
    sampler = await with_sampler(broker, "ask")
    assert sorted(sampler.tables[GROUP].queues) == ["T0", "T1"]
    assert broker.asked.count(CODE.GET_TOPIC_STATS_INFO) == 2
    sampler = await with_sampler(Broker(), "ask", "ask", "ask")
    assert sorted(sampler.tables[GROUP].queues) == TOPICS


async def test_groups_without_settings_are_seen() -> None:
    tables = (await with_sampler(Broker(), "ask")).tables[GROUP]
    assert (tables.lags("g"), tables.lags("lone")) == ({"T0": 4}, {"T0": 6})
    assert tables.lag("g", WireQueue(GROUP, 7, "T1")) is None, "its end is not known"


async def test_where_there_are_too_many_queues_for_one_answer_ends_are_those_of_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(_self: BrokerTables) -> None:
        raise BrokerRefusedError("ask for one group at a time", 1)

    monkeypatch.setattr(BrokerTables, "all_consumed", refuse)
    tables = (await with_sampler(Broker(), "ask")).tables[GROUP]
    assert tables.problem == ""
    assert (tables.lags("g"), tables.lags("lone")) == ({"T0": 5}, {"T0": 6})


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"topicConfigTable":{"T0":{"perm":"x"}}}', b"[" * 100, b"\xff"]
)
async def test_an_answer_that_cannot_be_read_is_a_problem_and_what_was_known_stays(
    body: bytes,
) -> None:
    broker = Broker()
    names = name_server({GROUP: [broker.address]})
    sampler = Sampler(Looks((names.address,)), Clock())

    async def act() -> None:
        await sampler.ask_once()
        broker.bodies[CODE.GET_ALL_TOPIC_CONFIG] = body
        await sampler.ask_once()

    await beside([broker, names], act)
    tables = sampler.tables[GROUP]
    assert broker.address in tables.problem
    assert sorted(tables.topics) == TOPICS


@pytest.mark.parametrize(
    ("code", "member"),
    [(CODE.GET_TOPIC_STATS_INFO, "maxOffset"), (CODE.GET_TOPIC_STATS_INFO, "minOffset")],
)
async def test_figures_longer_than_those_of_java_do_not_end_the_task(
    code: int, member: str
) -> None:
    broker = Broker()
    broker.bodies[code] = {"offsetTable": queue_table({member: int("9" * 18)})}
    body = write_json(broker.bodies[code]).replace(b"9" * 18, b'"%s"' % (b"9" * 400))
    broker.bodies[code] = body
    tables = (await with_sampler(broker, "ask", "ask")).tables[GROUP]
    assert "unreadable answer" in tables.problem


async def test_topics_that_are_refused_do_not_keep_the_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, asked_delays = BrokerTables.queues, BrokerTables.delays_ms

    async def queues(self: BrokerTables, topic: str) -> dict[int, QueueStats]:
        if topic in TOPICS[:3]:
            raise BrokerRefusedError(f"No default permission for topic:{topic}", 16)
        return await asked(self, topic)

    async def delays_ms(self: BrokerTables, group: str, topic: str) -> dict[int, int]:
        if group == "g":
            raise BrokerRefusedError("No default permission for group:g", 16)
        return await asked_delays(self, group, topic)

    monkeypatch.setattr(BrokerTables, "queues", queues)
    monkeypatch.setattr(BrokerTables, "delays_ms", delays_ms)
    monkeypatch.setattr(module, "TOPICS_A_ROUND", 3)
    broker = Broker()
    offsets = {"T3@g": {0: 4}, "T3@lone": {0: 3}}
    broker.bodies[CODE.GET_ALL_CONSUMER_OFFSET] = {"offsetTable": offsets}
    broker.bodies[CODE.GET_BROKER_CONSUME_STATS] = {"consumeStatsList": []}
    tables = (await with_sampler(broker, "ask", "ask")).tables[GROUP]
    assert sorted(tables.queues) == TOPICS[3:]
    assert tables.delays_ms == {("lone", "T3"): 7000}
    assert tables.problem == ""


async def test_without_a_member_the_tables_say_so() -> None:
    sampler = Sampler(Looks(()), Clock())
    sampler.look = whole_look(raftNode="")
    sampler.tables[GROUP] = tables_of()
    await sampler.ask_once()
    assert sampler.tables[GROUP].problem == "no member answers"
    assert sampler.tables[GROUP].lags("billing") == {}, "nothing was summed up"


def test_a_lag_counts_what_can_still_be_consumed() -> None:
    tables = tables_of()
    tables.sum_up()
    assert tables.lags("billing") == {"Orders": 5}, "and no queue without an offset"
    assert GroupTables().lag("billing", WireQueue(GROUP, 0, "Orders")) is None
    gone = tables_of()
    gone.queues["Orders"][0] = type(gone.queues["Orders"][0])(28, 30)
    gone.sum_up()
    assert gone.lags("billing") == {"Orders": 2}, "three are gone"


def test_turns_go_on_after_the_last_and_begin_again() -> None:
    turns = [module._in_turn("abcd", after, 3) for after in ("", "b", "d", "bb")]
    assert turns == [["a", "b", "c"], ["c", "d", "a"], ["a", "b", "c"], ["c", "d", "a"]]

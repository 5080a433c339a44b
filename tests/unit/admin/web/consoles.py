"""Consoles in memory, for tests: a sampler that has seen a cluster, and a client that asks for pages."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from broker.admin.answers import GroupPlace, QueueStats, WireGroupConfig
from broker.admin.ask import NodeAnswer
from broker.admin.health import Sight, judge
from broker.admin.looks import Look, Looks
from broker.admin.web.access import Access
from broker.admin.web.app import make_app
from broker.admin.web.console import Console
from broker.admin.web.sampler import GroupTables, Sampler
from broker.admin.web.sessions import SignIns
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.remoting.topic_config import WireTopicConfig
from tests.unit.admin.runtime_tables import ADDRESSES, GROUP, answer_of

NOW_MS = 1_750_000_000_000
NAME_SERVER = "127.0.0.1:1"
PLACE = "http://127.0.0.1:8088"
TOKEN = "a token for tests, long enough"


def look_of(answers: Mapping[str, NodeAnswer], *, at_ms: int = NOW_MS, **more: str) -> Look:
    """Return a look at which these have answered."""
    sight = Sight({NAME_SERVER: ""}, {GROUP: frozenset(ADDRESSES.values())}, answers)
    return Look(judge(sight, {}), at_ms / 1000, **more)


def whole_look(at_ms: int = NOW_MS, **more: str) -> Look:
    """Return a look at a group of three in which nothing is wrong but what is said."""
    return look_of({ADDRESSES[name]: answer_of(name, **more) for name in ADDRESSES}, at_ms=at_ms)


def sampler_of(look: Look | None, tables: Mapping[str, GroupTables] | None = None) -> Sampler:
    """Return a sampler that has seen this, and asks nobody."""
    sampler = Sampler(Looks(()), lambda: NOW_MS)
    sampler.look = look
    if look is not None:
        sampler.timeline.note(NOW_MS, look.health)
    sampler.tables.update(tables or {})
    for each in sampler.tables.values():
        each.sum_up()
    return sampler


def tables_of(topic: str = "Orders", group: str = "billing") -> GroupTables:
    """Return the tables of a broker group with one topic of two queues, and one consumer group, 5 messages behind."""
    return GroupTables(
        at_ms=NOW_MS,
        topics={topic: WireTopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2)},
        groups={group: WireGroupConfig(group_name=group)},
        queues={topic: {0: QueueStats(10, 30, NOW_MS - 1000), 1: QueueStats(0, 7, NOW_MS)}},
        consumed={
            group: {
                WireQueue(GROUP, 0, topic): GroupPlace(30, 25),
                WireQueue(GROUP, 1, topic): GroupPlace(7, -1),
            }
        },
        delays_ms={(group, topic): 42_000},
    )


def console_of(sampler: Sampler, access: Access | None = None) -> Console:
    return Console(sampler, SignIns(access or Access()), NAME_SERVER, wall_ms=lambda: NOW_MS)


def client_of(console: Console, *host_names: str) -> httpx.AsyncClient:
    """Return a client of a console; a page that fails is an answer, as over a socket."""
    app = make_app(console, host_names)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url=PLACE)

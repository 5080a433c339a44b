"""The figures of a name server over HTTP, against who has registered and what was asked."""

from __future__ import annotations

import msgspec
import pytest
import trio

from broker.metrics import endpoint
from broker.namesrv.config import NameServerConfig
from broker.namesrv.server import NameServer
from dledger_mq.net.address import Address
from dledger_mq.net.connecting import connect
from tests.integration.broker.scraping import fetch, readiness, scrape
from tests.integration.namesrv.test_server import LEADER, TIMEOUT_S, Client

LOOPBACK = Address("127.0.0.1", 0)


@pytest.fixture(autouse=True)
def _always_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FRESH_S", 0.0)


async def test_a_name_server_shows_who_is_registered_and_what_was_asked() -> None:
    server = NameServer(NameServerConfig(LOOPBACK, metrics=LOOPBACK))
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(server.run)
            empty = await readiness(server.metrics_address)
            connection = await connect(address, nursery, timeout_s=TIMEOUT_S)
            client = Client(connection)
            follower = msgspec.structs.replace(LEADER, broker_addr="10.0.0.2:10911", broker_id=2)
            await client.register(follower)
            alone = await scrape(server.metrics_address)
            await client.register()
            await client.call(105, {"topic": "TopicA"})
            await client.call(9_999)
            figures = await scrape(server.metrics_address)
            both = await readiness(server.metrics_address)
            health = await fetch(server.metrics_address, "/healthz")
            connection.close("the test is over")
            nursery.cancel_scope.cancel()
    assert empty == (200, {"ready": True, "causes": [], "groups": 0, "groupsWithoutLeader": []})
    assert alone.one("dledger_namesrv_leader_registered", broker="broker-a") == 0
    own = {"node_type": "nameserver", "node_id": str(address)}
    assert figures.one("dledger_namesrv_leader_registered", broker="broker-a", **own) == 1
    assert figures.one("dledger_namesrv_brokers", broker="broker-a", **own) == 2
    assert figures.one("dledger_namesrv_topics", **own) == 2
    assert figures.one("dledger_namesrv_connections", **own) == 1
    asked = {
        code: figures.one("dledger_namesrv_requests_total", request_code=code)
        for code in ("register_broker", "get_routeinfo_by_topic", "unknown")
    }
    assert asked == {"register_broker": 2, "get_routeinfo_by_topic": 1, "unknown": 1}
    assert both[1]["groupsWithoutLeader"] == []
    assert health == (200, b"ok\n")

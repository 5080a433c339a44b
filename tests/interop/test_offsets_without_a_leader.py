"""A consumer starts at a node that was restarted and knows of no leader: it skips nothing and rewinds nothing.

Most clients take an error for "the group has no offset", and begin at the end of the queue, or at its start
(docs/adr/0153). So the node answers each of them in its own way, until there is a leader again.
"""

from __future__ import annotations

import json
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product

import pytest

from dledger_mq import Message
from dledger_mq.blocking import Producer
from jepsen.processes import Process, poll
from tests.interop.conftest import (
    WAIT_S,
    ForeignClient,
    Listener,
    RunningGroup,
    present,
    request,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STORED, COMMITTED = 10, 4
CLIENTS = [
    ("cpp", ()),
    ("node", ("--fast-timers", "--from", "last")),
    ("node", ("--fast-timers", "--from", "first")),
]


class OldRoute(socketserver.BaseRequestHandler):
    """A name server that goes on telling what it was told: clients ask every 30 s only, and brokers come back sooner.

    A node that was restarted alone has applied nothing, so it registers no topic.
    """

    body = b""

    def handle(self) -> None:
        with self.request.makefile("rb") as stream:
            while prefix := stream.read(8):
                size, header_size = struct.unpack(">ii", prefix)
                asked = json.loads(stream.read(header_size))
                stream.read(size - 4 - header_size)
                known = asked["code"] == 105 and b"RETRY" not in str(asked["extFields"]).encode()
                code, body = (0, self.body) if known else (17, b"")
                answer = {"code": code, "flag": 1, "language": "JAVA", "opaque": asked["opaque"]}
                header = json.dumps(answer | {"version": 409, "remark": "no"}).encode()
                head = struct.pack(">ii", 4 + len(header) + len(body), len(header))
                self.request.sendall(head + header + body)


@contextmanager
def old_route(group: RunningGroup, topic: str, node: Process) -> Iterator[str]:
    """The address of a name server that names this node as the leader."""
    ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
    route = json.loads(request(group.namesrv, 105, ext)[1])
    route["brokerDatas"][0]["brokerAddrs"] = {"0": node.address}
    handler = type("Handler", (OldRoute,), {"body": json.dumps(route).encode()})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_consumer_goes_on_where_its_group_was(
    request: pytest.FixtureRequest, group: RunningGroup, name: str
) -> None:
    """Each in a topic of its own, and all of them while the same nodes are away."""
    there = present(request, {kind for kind, _ in CLIENTS})
    clients = [(kind, options) for kind, options in CLIENTS if kind in there]
    topics = [group.create_topic(f"{name}-{number}", queues=1) for number, _ in enumerate(clients)]
    with Producer(group.namesrv, "P", timeout_s=WAIT_S) as producer:
        for topic, number in product(topics, range(STORED)):
            producer.send(Message(topic, b"%d" % number))
    for topic in topics:
        place = {"consumerGroup": topic, "topic": topic, "queueId": "0"}
        group.ask(15, {**place, "commitOffset": str(COMMITTED)})
    nodes = group.processes.nodes
    with ExitStack() as running:
        routes = [running.enter_context(old_route(group, topic, nodes[0])) for topic in topics]
        for node in nodes:
            node.kill()
        nodes[0].start()
        assert poll(nodes[0].is_listening, WAIT_S)
        consuming = [
            running.enter_context(
                Listener(
                    ForeignClient(kind, namesrv).start(
                        *("consume", "--topic", topic, "--group", topic, "--timeout", "200"),
                        *("--count", str(STORED - COMMITTED), "--linger", "2", *options),
                    )
                )
            )
            for (kind, options), topic, namesrv in zip(clients, topics, routes, strict=True)
        ]
        # The others are brought back once each has tried to take its queues up.
        for said in consuming:
            said.wait_lines(1)
        for node in nodes[1:]:
            node.start()
        for client, said in zip(clients, consuming, strict=True):
            lines = said.wait_end()
            offsets = [line["queue_offset"] for line in lines if line.get("action") == "ok"]
            assert sorted(offsets) == list(range(COMMITTED, STORED)), (client, lines)

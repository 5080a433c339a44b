"""A consumer starts at a node that was restarted and knows of no leader: it skips nothing and rewinds nothing.

Most clients take an error for "the group has no offset", and begin at the end of the queue, or at its start
(docs/adr/0153). So the node answers each of them in its own way, until there is a leader again.
"""

from __future__ import annotations

import json
import socketserver
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dledger_mq import Message
from dledger_mq.blocking import Producer
from jepsen.processes import Group, Process, poll
from tests.interop.conftest import (
    WAIT_S,
    ForeignClient,
    Listener,
    RunningGroup,
    client_or_skip,
    request,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STORED, COMMITTED = 10, 4
CLIENTS = [
    ("cpp", ()),
    ("node", ("--fast-timers", "--from", "last")),
    ("node", ("--fast-timers", "--from", "first")),
]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RunningGroup]:
    with Group(tmp_path) as processes:
        processes.start()
        processes.wait_listening()
        running = RunningGroup(processes)
        running.wait_leader()
        yield running


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


@pytest.mark.parametrize(("kind", "options"), CLIENTS, ids=["-".join([k, *o]) for k, o in CLIENTS])
def test_a_consumer_goes_on_where_its_group_was(
    group: RunningGroup, name: str, kind: str, options: tuple[str, ...]
) -> None:
    client = client_or_skip(kind, group)
    topic = group.create_topic(name, queues=1)
    with Producer(group.namesrv, "P", timeout_s=WAIT_S) as producer:
        for number in range(STORED):
            producer.send(Message(topic, b"%d" % number))
    place = {"consumerGroup": name, "topic": topic, "queueId": "0"}
    group.ask(15, {**place, "commitOffset": str(COMMITTED)})
    nodes = group.processes.nodes
    count = STORED - COMMITTED
    with old_route(group, topic, nodes[0]) as namesrv:
        for node in nodes:
            node.kill()
        nodes[0].start()
        assert poll(nodes[0].is_listening, WAIT_S)
        consumer = ForeignClient(client.kind, namesrv).start(
            "consume", "--topic", topic, "--group", name, "--count", str(count), "--linger", "2",
            "--timeout", "200", *options,
        )  # fmt: skip
        lines = watch(consumer, nodes)
    offsets = [line["queue_offset"] for line in lines if line.get("action") == "ok"]
    assert sorted(offsets) == list(range(COMMITTED, STORED)), lines


def watch(consumer: subprocess.Popen[str], nodes: list[Process]) -> list[dict[str, Any]]:
    """Bring the others back once it has tried to take its queues up; what it says to its end."""
    with Listener(consumer) as said:
        said.wait_lines(1)
        for node in nodes[1:]:
            node.start()
        return said.wait_end()

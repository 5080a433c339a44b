"""Whole brokers in this process, on loopback, and a client that says exactly what it is told to say."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from broker.server.broker import Broker
from broker.server.config import BrokerConfig
from broker.server.settings.raft_times import RaftTimes
from broker.server.watches import counter_windows
from dledger import DLedgerError, NodeId, Peer, parse_peers
from dledger_mq.message.record import StoredMessage, decode_records
from dledger_mq.net.address import Address
from dledger_mq.net.connecting import connect
from dledger_mq.net.connection import Connection
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.header import (
    RemotingCommand,
    decode_command,
    encode_command,
    make_request,
    make_response,
)
from jepsen.ports import free_ports

FRAMES = Path(__file__).parents[2] / "golden" / "frames"
ANSWER_S = 120.0
"""Nothing takes that long; a test that waits for more has failed."""
LOOK_S = 0.005
"""Between two looks at a condition that has no event of its own."""
DELAYS_MS = (20, 40, 60, 80, 100, 120)

NEVER_SLOW = RaftTimes(slow_disk_ms=600_000)
"""No leader hands over because the disk of a busy machine keeps it waiting: tests say when the lead moves."""


def recorded(name: str) -> bytes:
    """A frame that a real client sent (tests/golden/frames/INDEX.md)."""
    return (FRAMES / f"{name}.bin").read_bytes()


def header_of(frame: bytes) -> RemotingCommand:
    decoder = FrameDecoder()
    decoder.feed(frame)
    whole = decoder.next_frame()
    assert whole is not None
    return decode_command(whole)


class Wire:
    """A connection to a broker; answers by opaque, and what the broker says by itself."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.pushed: list[RemotingCommand] = []
        self.heard = trio.Event()
        self._answers: dict[int, RemotingCommand] = {}
        self._opaques = count(1000)

    async def run(self) -> None:
        while frames := await self.connection.receive():
            for frame in frames:
                self._take(frame)
            heard, self.heard = self.heard, trio.Event()
            heard.set()
        self.heard.set()

    def _take(self, frame: Frame) -> None:
        command = decode_command(frame)
        if command.is_response:
            self._answers[command.opaque] = command
        else:
            self.pushed.append(command)

    def send_request(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **more: Any
    ) -> int:
        """Send a request; its opaque."""
        opaque = next(self._opaques)
        command = make_request(code, opaque, ext, body)
        if more:
            command = RemotingCommand(
                code=code, opaque=opaque, ext=dict(ext or {}), body=body, **more
            )
        self.connection.send_nowait(encode_command(command))
        return opaque

    def send_recorded(self, name: str) -> int:
        frame = recorded(name)
        self.connection.send_nowait(frame)
        return header_of(frame).opaque

    async def answer(self, opaque: int, timeout_s: float = ANSWER_S) -> RemotingCommand:
        with trio.fail_after(timeout_s):
            while opaque not in self._answers:
                assert not self.connection.is_closed, self.connection.close_reason
                await self.heard.wait()
        return self._answers.pop(opaque)

    def has_answer(self, opaque: int) -> bool:
        return opaque in self._answers

    async def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **more: Any
    ) -> RemotingCommand:
        return await self.answer(self.send_request(code, ext, body, **more))

    async def replay(self, name: str) -> RemotingCommand:
        return await self.answer(self.send_recorded(name))

    def reply(
        self, request: RemotingCommand, body: bytes = b"", code: int = 0, **more: Any
    ) -> None:
        """Answer a request of the broker."""
        answer = make_response(request.opaque, code, body=body, **more)
        self.connection.send_nowait(encode_command(answer))

    async def push(self, code: int) -> RemotingCommand:
        """Wait for a request of the broker."""
        with trio.fail_after(ANSWER_S):
            while not any(command.code == code for command in self.pushed):
                await self.heard.wait()
        found = next(command for command in self.pushed if command.code == code)
        self.pushed.remove(found)
        return found

    # The requests that nearly every test makes.

    async def send(
        self, topic: str, body: bytes = b"x", queue: int = 0, properties: str = ""
    ) -> RemotingCommand:
        return await self.ask(310, send_ext(topic, queue, properties), body)

    async def pull(
        self,
        topic: str,
        queue: int = 0,
        offset: int = 0,
        *,
        group: str = "G",
        tags: str = "*",
        suspend_ms: int = 0,
    ) -> RemotingCommand:
        return await self.answer(
            self.send_pull(topic, queue, offset, group=group, tags=tags, suspend_ms=suspend_ms)
        )

    def send_pull(
        self,
        topic: str,
        queue: int = 0,
        offset: int = 0,
        *,
        group: str = "G",
        tags: str = "*",
        suspend_ms: int = 0,
    ) -> int:
        return self.send_request(
            11,
            {
                "consumerGroup": group,
                "topic": topic,
                "queueId": str(queue),
                "queueOffset": str(offset),
                "maxMsgNums": "32",
                "sysFlag": "6" if suspend_ms else "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": str(suspend_ms),
                "subscription": tags,
                "subVersion": "0",
            },
        )

    async def coming(
        self, topic: str, queue: int = 0, offset: int = 0, *, tags: str = "*"
    ) -> list[StoredMessage]:
        """Wait for messages: a pull that is held is answered without any long before a test has waited enough."""
        with trio.fail_after(ANSWER_S):
            while True:
                answer = await self.pull(topic, queue, offset, tags=tags, suspend_ms=5_000)
                if answer.code == 0:
                    return decode_records(answer.body)
                assert answer.code in (19, 20), answer.remark

    async def messages(
        self, topic: str, queue: int = 0, offset: int = 0, group: str = "G"
    ) -> list[StoredMessage]:
        answer = await self.pull(topic, queue, offset, group=group)
        return decode_records(answer.body) if answer.code == 0 else []


def send_ext(topic: str, queue: int = 0, properties: str = "") -> dict[str, str]:
    return {
        "a": "P",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
    }


def pull_ext(topic: str) -> dict[str, str]:
    return {
        "consumerGroup": "G",
        "topic": topic,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }


class Cluster:
    """Brokers of one group in this process."""

    def __init__(
        self, folder: Path, nursery: trio.Nursery, nodes: int, settings: dict[str, Any]
    ) -> None:
        ports = free_ports(nodes)
        self.peers: tuple[Peer, ...] = parse_peers(
            ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        )
        self.brokers: dict[str, Broker] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._ended: dict[str, trio.Event] = {}
        self._folder = folder
        self._nursery = nursery
        self._settings = settings

    async def start(self, node: str) -> Broker:
        config = BrokerConfig(
            group="broker-a",
            node_id=node,
            peers=self.peers,
            store_path=str(self._folder / node),
            broker_name="broker-a",
            listen=Address("127.0.0.1", 0),
            delay_levels_ms=DELAYS_MS,
            segment_size_bytes=8 * 1024 * 1024,
            stop_forward_s=0,
            times=NEVER_SLOW,
        )
        broker = Broker(dataclasses.replace(config, **self._settings))
        self.brokers[node] = broker
        self._ended[node] = trio.Event()
        await self._nursery.start(self._run, node, broker)
        return broker

    async def _run(self, node: str, broker: Broker, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as scope:
            self._scopes[node] = scope
            await broker.run(task_status=task_status)
        self._ended[node].set()

    async def kill(self, node: str) -> None:
        """End a node without an orderly stop."""
        self._scopes[node].cancel()
        await self._ended[node].wait()
        del self.brokers[node]

    async def stop(self, node: str) -> None:
        """End a node in order."""
        self.brokers[node].stop()
        with trio.fail_after(ANSWER_S):
            await self._ended[node].wait()
        del self.brokers[node]

    async def wait(self, condition: Callable[[], bool], timeout_s: float = ANSWER_S) -> None:
        with trio.fail_after(timeout_s):
            while not condition():  # noqa: ASYNC110 - conditions have no event of their own
                await trio.sleep(LOOK_S)

    async def leader(self) -> Broker:
        await self.wait(lambda: any(broker.is_serving for broker in self.brokers.values()))
        return next(broker for broker in self.brokers.values() if broker.is_serving)

    async def followers(self) -> list[Broker]:
        found: list[Broker] = []

        def follow() -> bool:
            """Looked at anew each time: leadership may move meanwhile."""
            leaders = [broker for broker in self.brokers.values() if broker.is_serving]
            found[:] = [broker for broker in self.brokers.values() if broker not in leaders]
            return len(leaders) == 1 and all(
                broker.log.leader_id == leaders[0].log.node_id for broker in found
            )

        await self.wait(follow)
        return found

    async def transfer(self, target: str | None = None) -> None:
        """Let another node lead; asked for again when a node that stood still does not take it."""
        first = await self.leader()
        with trio.fail_after(ANSWER_S):
            while True:
                leader = await self.leader()
                if leader.log.node_id == target or (target is None and leader is not first):
                    return  # or it was taken after the time for it
                with suppress(DLedgerError):
                    await leader.log.transfer(target and NodeId(target), timeout_s=ANSWER_S)
                    return

    @asynccontextmanager
    async def wire(self, broker: Broker) -> AsyncIterator[Wire]:
        async with trio.open_nursery() as nursery:
            connection = await connect(broker.addresses[0], nursery, timeout_s=ANSWER_S)
            wire = Wire(connection)
            nursery.start_soon(wire.run)
            try:
                yield wire
            finally:
                connection.close("the test is over")
                nursery.cancel_scope.cancel()


HOLDERS = (
    "handlers.pops",
    "handlers.pulls",
    "handlers.replies",
    "handlers.send_bursts",
    "handlers.sends",
    "requests.dispatch",
    "requests.questions",
    "requests.router",
)
"""The modules that know how long a request waits for a leader."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brokers give nothing up for as long as a test waits: what is judged is what comes, not how soon.

    Else a slow machine would see a request refused whose leader was elected too late for it, an answer without the
    registration that it waits for, or the end of a node that was passing requests on.
    """
    for module in HOLDERS:
        monkeypatch.setattr(f"broker.server.{module}.HOLD_MS", 1000 * round(ANSWER_S))
    monkeypatch.setattr("broker.server.requests.router.ANSWER_MS", 1000 * round(ANSWER_S))
    monkeypatch.setattr("broker.admin.ask.ASK_TIMEOUT_S", ANSWER_S)
    for name in ("CALL_MS", "NODE_CALL_MS"):
        monkeypatch.setattr(f"broker.server.handlers.client_calls.{name}", 1000 * round(ANSWER_S))
    for name in (
        "handlers.client_exchange.CREATE_TIMEOUT_S",
        "handlers.members.CREATE_TIMEOUT_S",
        "route_waits.ROUTE_WAIT_S",
        "stopping.DRAIN_S",
        "stopping.LEADERLESS_S",
    ):
        monkeypatch.setattr(f"broker.server.{name}", ANSWER_S)


@pytest.fixture
def long_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let statistics of the last minute look back for an hour: a busy machine may take more than one for a test."""
    hour_ms, windows = counter_windows.HOUR_MS, counter_windows
    _, *others = windows._SPANS
    monkeypatch.setattr(windows, "MINUTE_MS", hour_ms)
    monkeypatch.setattr(windows, "_SPANS", ((hour_ms, 10_000), *others))


ClusterMaker = Callable[..., Awaitable[Cluster]]


@pytest.fixture
async def make_cluster(tmp_path: Path, nursery: trio.Nursery) -> ClusterMaker:
    async def make(nodes: int = 1, **settings: Any) -> Cluster:
        cluster = Cluster(tmp_path, nursery, nodes, settings)
        for peer in cluster.peers:
            await cluster.start(str(peer.node_id))
        await cluster.leader()
        return cluster

    return make


@pytest.fixture
async def one(make_cluster: ClusterMaker) -> AsyncIterator[Wire]:
    """A client of a broker that stands alone."""
    cluster = await make_cluster(1)
    async with cluster.wire(await cluster.leader()) as wire:
        yield wire

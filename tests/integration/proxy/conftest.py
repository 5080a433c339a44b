"""A group, a proxy in front of it, and calls written by hand."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jepsen.ports import free_ports
from jepsen.processes import Group, Process, poll, program
from tests.interop.conftest import WAIT_S, RunningGroup

pytest.importorskip("grpc", reason="grpcio is not installed (extra `grpc`)")

import grpc

from broker.proxy.protocol import SERVICE, message_class
from broker.proxy.protocol.numbers import Code, MessageType


class Caller:
    """One gRPC client, as far as a test needs one."""

    def __init__(self, address: str, client_id: str | None = None) -> None:
        self.client_id = f"test-{uuid.uuid4().hex}" if client_id is None else client_id
        self.channel = grpc.insecure_channel(address)
        self.endpoints = {"scheme": 1, "addresses": [{"host": "127.0.0.1", "port": 1}]}

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return [("x-mq-client-id", self.client_id), ("x-mq-language", "PYTHON")]

    def call(self, name: str, timeout_s: float = WAIT_S, **fields: Any) -> Any:
        """Ask, and return the answer, or the list of answers of a stream."""
        method = SERVICE.methods_by_name[name]
        path = f"/{SERVICE.full_name}/{name}"
        coders = {
            "request_serializer": message_class(method.input_type.name).SerializeToString,
            "response_deserializer": message_class(method.output_type.name).FromString,
        }
        given = message_class(method.input_type.name)(**fields)
        if method.server_streaming:
            streamed = self.channel.unary_stream(path, **coders)
            return list(streamed(given, metadata=self.metadata, timeout=timeout_s))
        unary = self.channel.unary_unary(path, **coders)
        return unary(given, metadata=self.metadata, timeout=timeout_s)

    def telemetry(self, **settings: Any) -> Any:
        """Tell settings; return the stream, whose next command answers them."""
        command = message_class("TelemetryCommand")
        said = Commands([command(settings=message_class("Settings")(**settings))])
        stream = self.channel.stream_stream(
            f"/{SERVICE.full_name}/Telemetry",
            request_serializer=command.SerializeToString,
            response_deserializer=command.FromString,
        )
        return stream(said, metadata=self.metadata, timeout=WAIT_S)

    def send(self, topic: str, body: bytes, **system: Any) -> Any:
        """Send one message; return its result."""
        system = {
            "message_id": uuid.uuid4().hex.upper(),
            "message_type": MessageType.NORMAL,
            **system,
        }
        message = {"topic": {"name": topic}, "body": body, "system_properties": system}
        return self.call("SendMessage", messages=[message]).entries[0]

    def subscribe(self, group: str, topic: str, *, kind: int = 3, expression: str = "*") -> Any:
        """Become a consumer; return what it is told."""
        wanted = {"topic": {"name": topic}, "expression": {"type": 1, "expression": expression}}
        subscription = {"group": {"name": group}, "subscriptions": [wanted]}
        self.stream = self.telemetry(client_type=kind, subscription=subscription)
        return next(self.stream)

    def receive(self, group: str, topic: str, **fields: Any) -> list[Any]:
        """Receive messages; none is an empty list."""
        fields = {
            "batch_size": 16,
            "invisible_duration": {"seconds": 600},
            "long_polling_timeout": {"seconds": 5},
            "filter_expression": {"type": 1, "expression": "*"},
            **fields,
        }
        queue = {"topic": {"name": topic}, "id": -1}
        answers = self.call("ReceiveMessage", group={"name": group}, message_queue=queue, **fields)
        codes = [one.status.code for one in answers if one.HasField("status")]
        assert codes in ([Code.OK], [Code.MESSAGE_NOT_FOUND]), answers
        return [one.message for one in answers if one.HasField("message")]

    def ack(self, group: str, topic: str, *messages: Any) -> list[int]:
        """Acknowledge messages; return each one's code."""
        entries = [
            {
                "message_id": one.system_properties.message_id,
                "receipt_handle": one.system_properties.receipt_handle,
            }
            for one in messages
        ]
        answer = self.call(
            "AckMessage", group={"name": group}, topic={"name": topic}, entries=entries
        )
        return [one.status.code for one in answer.entries]


def until(caller: Caller, group: str, topic: str, count: int, **fields: Any) -> list[Any]:
    """Receive until so many have come."""
    found: list[Any] = []

    def enough() -> bool:
        found.extend(caller.receive(group, topic, **fields))
        return len(found) >= count

    assert poll(enough, WAIT_S), found
    return found


class Commands:
    """What a client says on its stream: some commands, and then nothing until it ends."""

    def __init__(self, commands: list[Any]) -> None:
        self._commands = iter(commands)
        self._ended = threading.Event()

    def __iter__(self) -> Commands:
        return self

    def __next__(self) -> Any:
        for command in self._commands:
            return command
        self._ended.wait()
        raise StopIteration


class RunningProxy(RunningGroup):
    """A group with a proxy."""

    def __init__(self, processes: Group, proxy: Process) -> None:
        super().__init__(processes)
        self.proxy = proxy

    def caller(self) -> Caller:
        return Caller(self.proxy.address)

    def create_ordered_group(self, name: str, *, retries: int = 16) -> None:
        """Create a consumer group whose messages are handed out in order, and again so often at most."""
        group = {"groupName": name, "consumeMessageOrderly": True, "retryMaxTimes": retries}
        self.ask(200, {}, json.dumps(group).encode())

    def topic(self, kind: str = "") -> str:
        """Create a topic for one kind of messages, or for all."""
        name = f"T{uuid.uuid4().hex[:10]}"
        self.create_topic(name)
        if kind:
            ext = {
                "topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
                "attributes": f"+message.type={kind}",
            }  # fmt: skip
            self.ask(17, ext)
        return name


@contextmanager
def started(processes: Group, proxy: Process) -> Iterator[RunningProxy]:
    """Start a proxy in front of a group that has been started, and end it with the block."""
    processes.wait_listening()
    proxy.start()
    try:
        assert poll(proxy.is_listening, WAIT_S), proxy.log.read_text()
        running = RunningProxy(processes, proxy)
        running.wait_leader()
        yield running
    finally:
        proxy.kill()


@contextmanager
def running_proxy(folder: Path, *options: str) -> Iterator[RunningProxy]:
    """Start a group with a proxy in front of it, and end both with the block; the proxy's log has no defect in it."""
    with Group(folder) as processes:
        processes.start()
        port = next(iter(free_ports(1)))
        command = [
            program("dledger-proxy"),
            "-n",
            processes.namesrv,
            "--listen",
            f"127.0.0.1:{port}",
            *options,
        ]
        proxy = Process("proxy", command, log=folder / "proxy.log", port=port)
        with started(processes, proxy) as running:
            yield running
        assert "is a defect" not in proxy.log.read_text()
        assert "Traceback" not in proxy.log.read_text(), proxy.log.read_text()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    with running_proxy(tmp_path_factory.mktemp("proxied")) as running:
        yield running


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"G{uuid.uuid4().hex[:10]}"

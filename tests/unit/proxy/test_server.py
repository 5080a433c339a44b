"""The port, before a group in memory: streams that end, calls that are malformed, and accounts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

pytest.importorskip("grpc", reason="grpcio is not installed (extra `grpc`)")

import grpc

from broker.proxy import clients, service
from broker.proxy.accounts import Accounts
from broker.proxy.clients import FORGOTTEN, ProxyClients
from broker.proxy.facts import Facts, GroupFacts
from broker.proxy.protocol import SERVICE, message_class
from broker.proxy.protocol.numbers import Code
from broker.proxy.refusals import CallRefusedError
from broker.proxy.server import ProxyConfig, open_proxy
from broker.proxy.service import Service
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.unit.client.test_push_consumer import until
from tests.unit.proxy.test_accounts import RULES, SECRET, signed

pytestmark = pytest.mark.anyio

GROUP, TOPIC = {"name": "billing"}, {"name": "payments"}
CALL_S = 60.0
"""No call here takes that long."""


class Caller:
    """A client of a proxy in this process."""

    def __init__(self, port: int, metadata: Any = ()) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.metadata = (("x-mq-client-id", "c"), *dict(metadata).items())

    def method(self, name: str, *, kind: str = "unary_unary", raw: bool = False) -> Any:
        found = SERVICE.methods_by_name[name]
        given, got = (message_class(one.name) for one in (found.input_type, found.output_type))
        return getattr(self.channel, kind)(
            f"/{SERVICE.full_name}/{name}",
            request_serializer=None if raw else given.SerializeToString,
            response_deserializer=got.FromString,
        )

    async def call(self, name: str, **fields: Any) -> Any:
        given = message_class(SERVICE.methods_by_name[name].input_type.name)(**fields)
        return await self.method(name)(given, metadata=self.metadata, timeout=CALL_S)

    async def receive(self, **fields: Any) -> list[Any]:
        given = message_class("ReceiveMessageRequest")(
            group=GROUP,
            message_queue={"topic": TOPIC},
            invisible_duration={"seconds": 60},
            long_polling_timeout={},
            **fields,
        )
        call = self.method("ReceiveMessage", kind="unary_stream")
        return [part async for part in call(given, metadata=self.metadata, timeout=CALL_S)]

    async def open_stream(self) -> Any:
        stream = self.method("Telemetry", kind="stream_stream")(metadata=self.metadata)
        wanted = {"topic": TOPIC, "expression": {"expression": "*"}}
        settings = {
            "client_type": 3,
            "subscription": {"group": GROUP, "subscriptions": [wanted]},
        }
        await stream.write(message_class("TelemetryCommand")(settings=settings))
        return stream


@pytest.fixture
async def group(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeGroup]:
    async def unknown(*_args: object) -> GroupFacts:
        return GroupFacts()

    monkeypatch.setattr(Facts, "group", unknown)  # the group in memory is not asked for settings
    async with open_fake_group(queues=1) as fake:
        for topic in ("payments", "orders"):
            fake.create_topic(topic)
        yield fake


async def test_a_stream_of_a_client_that_was_forgotten_ends(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_proxy(ProxyConfig("127.0.0.1:0", (group.namesrv,))) as port:
        stream = await Caller(port).open_stream()
        assert (await stream.read()).status.code == Code.OK
        monkeypatch.setattr(clients, "SILENT_S", 0.0)  # not before its settings were answered
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stream.read()
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_stream_of_a_client_that_has_left_ends_without_an_error(group: FakeGroup) -> None:
    """Node's client looks at it no longer by then, and an error would end its process."""
    async with open_proxy(ProxyConfig("127.0.0.1:0", (group.namesrv,))) as port:
        caller = Caller(port)
        stream = await caller.open_stream()
        assert (await stream.read()).status.code == Code.OK
        assert (await caller.call("NotifyClientTermination")).status.code == Code.OK
        assert await stream.read() is grpc.aio.EOF


async def test_a_consumer_is_served_whose_settings_went_elsewhere(group: FakeGroup) -> None:
    async with open_proxy(ProxyConfig("127.0.0.1:0", (group.namesrv,))) as port:
        group.put("payments", 0, b"x")
        caller = Caller(port)
        parts = await caller.receive()
        assert [one.message.body for one in parts if one.HasField("message")] == [b"x"]
        await until(lambda: RequestCode.HEART_BEAT in group.requests)
        assert (await caller.call("Heartbeat")).status.code == Code.OK
        other = await caller.receive(attempt_id="1")
        assert other[0].status.code == Code.MESSAGE_NOT_FOUND


async def test_what_is_no_message_ends_its_call_only(
    group: FakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_proxy(ProxyConfig("127.0.0.1:0", (group.namesrv,))) as port:
        caller = Caller(port)
        for body in (b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f"):
            with pytest.raises(grpc.aio.AioRpcError):
                await caller.method("SendMessage", raw=True)(body, timeout=CALL_S)
        large = {"topic": TOPIC, "endpoints": {"addresses": [{"host": "h" * 3000}]}}
        assert (await caller.call("QueryRoute", **large)).status.code == Code.BAD_REQUEST
        assert (await caller.call("Heartbeat")).status.code == Code.UNRECOGNIZED_CLIENT_TYPE


class RefusedStream:
    """The context of a stream whose caller is nobody, what it sends, and its accounts; tells the order of both ways."""

    def __init__(self) -> None:
        self.order: list[str] = []

    is_open = False

    def sender(self, *_args: object) -> Any:
        raise CallRefusedError(Code.UNAUTHORIZED, "who is that?")

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, command: Any) -> None:
        self.order.append(Code(command.status.code).name)

    async def commands(self, *, is_silent: bool) -> AsyncIterator[Any]:
        if is_silent:
            await anyio.sleep_forever()
        self.order.append("command")
        yield message_class("TelemetryCommand")()

    async def refuse(self, *, is_silent: bool) -> list[str]:
        """Serve a stream, and return what went over it."""
        loop = SimpleNamespace(now=time.monotonic)
        nobody: Any = SimpleNamespace(
            loop=loop, nursery=None, routes=None, handle=lambda *_handler: None
        )
        accounts: Any = self
        served = Service(nobody, ProxyClients(loop.now), accounts)
        await served.Telemetry(self.commands(is_silent=is_silent), self)
        return self.order


class LeavingStream:
    """The context of a producer's stream, which goes while its settings are answered."""

    def __init__(self, last: object) -> None:
        self.order: list[str] = []
        self._last = last
        nursery = SimpleNamespace(start_soon=lambda *_: None)
        loop = SimpleNamespace(now=time.monotonic)
        session: Any = SimpleNamespace(
            loop=loop, nursery=nursery, routes=None, handle=lambda *_handler: None
        )
        self._clients = ProxyClients(loop.now)
        self._service = Service(session, self._clients, Accounts(None))

    def invocation_metadata(self) -> tuple[Any, ...]:
        return (("x-mq-client-id", "c"),)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, command: Any) -> None:
        self.order.append(Code(command.status.code).name)
        self._clients.forget("c", self._last)

    async def abort(self, code: grpc.StatusCode, _text: str) -> None:
        self.order.append(code.name)

    async def commands(self) -> AsyncIterator[Any]:
        settings = {"client_type": 1, "publishing": {"topics": [TOPIC]}}
        yield message_class("TelemetryCommand")(settings=settings)
        await anyio.sleep_forever()

    async def serve(self) -> list[str]:
        """Serve the stream to its end, and return what went over it."""
        with anyio.fail_after(CALL_S):
            await self._service.Telemetry(self.commands(), self)
        return self.order


async def test_who_goes_while_its_settings_are_answered_has_left_or_is_told() -> None:
    assert await LeavingStream(None).serve() == ["OK"]
    assert await LeavingStream(FORGOTTEN).serve() == ["OK", "UNAVAILABLE"]


async def test_a_stranger_is_told_why_after_it_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that ends while its client writes gives that an error of gRPC's own, in place of the reason."""
    assert await RefusedStream().refuse(is_silent=False) == ["command", "UNAUTHORIZED"]
    monkeypatch.setattr(service, "STRANGERS_MAX", 0)
    assert await RefusedStream().refuse(is_silent=False) == ["UNAUTHORIZED"], "too many"
    monkeypatch.undo()
    monkeypatch.setattr(service, "FIRST_COMMAND_S", 0.0)
    assert await RefusedStream().refuse(is_silent=True) == ["UNAUTHORIZED"]


async def test_a_stranger_that_writes_nothing_keeps_no_stream_open(
    group: FakeGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(RULES)
    rules.chmod(0o600)
    monkeypatch.setattr(service, "FIRST_COMMAND_S", 0.05)
    async with open_proxy(ProxyConfig("127.0.0.1:0", (group.namesrv,), acl_file=rules)) as port:
        caller = Caller(port)
        stream = caller.method("Telemetry", kind="stream_stream")(metadata=caller.metadata)
        assert (await stream.read()).status.code == Code.UNAUTHORIZED
        assert await stream.read() is grpc.aio.EOF


async def test_accounts_are_let_in_with_their_rights(group: FakeGroup, tmp_path: Path) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(RULES)
    rules.chmod(0o600)
    config = ProxyConfig("127.0.0.1:0", (group.namesrv,), acl_file=rules)
    async with open_proxy(config) as port:
        stranger, shop = Caller(port), Caller(port, signed(at=datetime.now(UTC)))
        message: dict[str, Any] = {"topic": {"name": "orders"}, "body": b"x"}
        message["system_properties"] = {"message_id": "01A2", "message_type": 1}
        send: dict[str, Any] = {"messages": [message]}
        assert (await stranger.call("SendMessage", **send)).status.code == Code.UNAUTHORIZED
        assert (await stranger.receive())[0].status.code == Code.UNAUTHORIZED
        stream = await stranger.open_stream()
        assert (await stream.read()).status.code == Code.UNAUTHORIZED
        assert await stream.read() is grpc.aio.EOF, "a stranger keeps no stream open"
        assert (await shop.call("SendMessage", **send)).status.code == Code.OK
        assert len(group.messages("orders")) == 1
        message["topic"] = {"name": "payments"}
        assert (await shop.call("SendMessage", **send)).status.code == Code.FORBIDDEN
        group.put("payments", 0, b"paid")
        (receipt,) = [
            one.message.system_properties.receipt_handle
            for one in await shop.receive()
            if one.HasField("message")
        ]
        for name, fields in {
            "AckMessage": {"entries": [{"receipt_handle": receipt}]},
            "ChangeInvisibleDuration": {"receipt_handle": receipt},
            "ForwardMessageToDeadLetterQueue": {"receipt_handle": receipt},
            "QueryAssignment": {},
        }.items():
            given = {"group": {"name": "other"}, "topic": TOPIC, **fields}
            assert (await shop.call(name, **given)).status.code == Code.FORBIDDEN, name
            given = {"group": GROUP, "topic": {"name": "orders"}, **fields}
            assert (await shop.call(name, **given)).status.code == Code.FORBIDDEN, name
        for name in ("EndTransaction", "RecallMessage"):
            assert (await shop.call(name, topic=TOPIC)).status.code == Code.FORBIDDEN, name
        answer = await stranger.call("NotifyClientTermination")
        assert answer.status.code == Code.UNAUTHORIZED
        stream = await shop.open_stream()
        assert (await stream.read()).status.code == Code.OK
        rules.write_text(RULES.replace(SECRET, "exchanged-key").replace("billing=", "bills="))
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.read()  # it may not be there any more
        assert (await shop.call("Heartbeat")).status.code == Code.UNAUTHORIZED

"""Clients that sign: every request, to name servers too, as a broker checks it; and what is said of those refused."""

from __future__ import annotations

import logging
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dledger_mq.testing.fake_group as fake_module
from broker.access.guard import AccessGuard
from broker.access.plain_acl import join_files, parse_file
from dledger_mq import (
    Admin,
    ClientUsageError,
    Credentials,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RequestFailedError,
    SendRefusedError,
    TransactionProducer,
    TransactionState,
    blocking,
    read_credentials,
)
from dledger_mq.client.credentials import CREDENTIALS_VARIABLE, credentials_for_all
from dledger_mq.client.send_frames import SendTemplates
from dledger_mq.net.connection import Connection
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.header import (
    RemotingCommand,
    decode_command,
    encode_command,
    make_request,
    make_response,
)
from dledger_mq.remoting.signature import SIGNATURE, SigningKey, is_signed_with
from dledger_mq.testing import FakeGroup, open_fake_group

pytestmark = pytest.mark.anyio

RULES = """
accounts:
- {accessKey: producer, secretKey: secret-of-p, topicPerms: [T=PUB]}
- {accessKey: consumer, secretKey: secret-of-c, topicPerms: [T=SUB], groupPerms: [G=SUB]}
- {accessKey: both-of-it, secretKey: secret-of-b, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
- {accessKey: operator, secretKey: secret-of-o, admin: true}
"""
PRODUCER = Credentials("producer", "secret-of-p")
CONSUMER = Credentials("consumer", "secret-of-c")
BOTH = Credentials("both-of-it", "secret-of-b", "a token of some cloud")
OPERATOR = Credentials("operator", "secret-of-o")


class Guarded:
    """A group in memory that goes by RULES; what came, but for answers, and what was refused."""

    def __init__(self, fake: FakeGroup, taken: list[RemotingCommand], answers: list[Any]) -> None:
        self.fake, self.taken, self.answers = fake, taken, answers


@asynccontextmanager
async def guarded(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Guarded]:
    rules, _ = join_files([parse_file("x.yml", RULES)])
    guard = AccessGuard(rules)
    taken: list[RemotingCommand] = []
    answers: list[RemotingCommand] = []
    serve = fake_module._serve

    async def serve_guarded(
        sock: Any,
        handle: Callable[[Connection, list[Frame]], None],
        ended: Callable[[Connection], None],
    ) -> None:
        def judge(connection: Connection, frames: list[Frame]) -> None:
            for frame in frames:
                command = decode_command(frame)
                if command.is_response:
                    answers.append(command)
                    continue
                refusal = guard.refusal(connection.peer, frame, command)
                if refusal is None:
                    taken.append(command)
                    handle(connection, [frame])
                elif not command.is_oneway:
                    answer = make_response(command.opaque, 16, refusal)
                    connection.send_nowait(encode_command(answer))

        await serve(sock, judge, ended)

    monkeypatch.setattr(fake_module, "_serve", serve_guarded)
    async with open_fake_group(queues=2) as fake:
        fake.create_topic("T")
        yield Guarded(fake, taken, answers)


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def test_everything_that_clients_send_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[bytes] = []
    done = anyio.Event()

    async def take(message: ReceivedMessage) -> None:
        got.append(message.body)
        if len(got) == 5:
            done.set()

    async def check(_: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    async def local(_message: Message, _transaction_id: str) -> TransactionState:
        return TransactionState.COMMIT

    async with guarded(monkeypatch) as group:
        namesrv = group.fake.namesrv
        async with TransactionProducer(namesrv, "p", checker=check, credentials=BOTH) as producer:
            await producer.send(Message("T", b"plain"))
            await producer.send(Message("T", b"labelled", tags="a", keys=("k",)))
            await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
            await producer.send_oneway(Message("T", b"oneway"))
            await producer.send_in_transaction(Message("T", b"half"), local)
        async with PushConsumer(
            namesrv,
            "G",
            take,
            subscriptions={"T": "*"},
            ordered=True,
            start_from="first",
            credentials=BOTH,
        ) as consumer:
            with anyio.fail_after(60):
                await done.wait()
            # Asked by a broker for what nobody here can do: answered without a signature, as Java answers.
            for connection in group.fake._consumers.connections("G"):
                connection.send_nowait(encode_command(make_request(9999, 1)))
            await until(lambda: group.answers)
            assert consumer.group == "G"
        async with PullConsumer(namesrv, "G", credentials=BOTH) as puller:
            (queue, *_) = await puller.queues("T")
            await puller.commit(queue, await puller.min_offset(queue))
        async with Admin(namesrv, credentials=OPERATOR) as admin:
            await admin.create_group("H")
    codes = {command.code for command in group.taken}
    wanted = RequestCode
    assert codes >= {
        *(wanted.SEND_MESSAGE_V2, wanted.SEND_BATCH_MESSAGE, wanted.END_TRANSACTION),
        *(wanted.PULL_MESSAGE, wanted.LOCK_BATCH_MQ, wanted.HEART_BEAT, wanted.UNREGISTER_CLIENT),
        *(wanted.UPDATE_CONSUMER_OFFSET, wanted.GET_ROUTEINFO_BY_TOPIC),
        wanted.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    }
    assert {command.is_oneway for command in group.taken} == {True, False}
    tokens = {command.ext.get("SecurityToken") for command in group.taken}
    assert tokens == {"a token of some cloud", None}
    assert all(SIGNATURE not in answer.ext for answer in group.answers)


TEXT = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=20)
NUMBER = st.integers(0, 2**31 - 1)


@given(
    TEXT, TEXT, st.none() | TEXT.filter(bool), st.binary(max_size=40), TEXT, NUMBER, st.booleans()
)
def test_a_send_is_signed_as_its_fields_stand_in_its_header(
    group: str, topic: str, token: str | None, body: bytes, rest: str, number: int, is_batch: bool
) -> None:
    templates = SendTemplates(group, number, Credentials('the "key" 100 %d', "secret", token))
    queue, key = MessageQueue(topic, "b", number), SigningKey("secret")
    sink_batch = rest or None
    frames = [
        templates.plain(queue, body, "0A" * 16, opaque=1, born_timestamp_ms=number),
        templates.frame(
            queue,
            body,
            f"K\x01{rest}\x02".encode(),
            opaque=2,
            born_timestamp_ms=number,
            sys_flag=number,
            flag=-number,
            is_batch=is_batch,
            sink_batch=sink_batch,
        ),
    ]
    decoder = FrameDecoder()
    decoder.feed(b"".join(frames))
    are_signed = [
        is_signed_with(key, decode_command(frame).ext, frame.body) for frame in decoder.frames()
    ]
    assert are_signed == [True, True]


async def test_a_client_without_credentials_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(monkeypatch) as group, Producer(group.fake.namesrv, "p") as producer:
        with pytest.raises(RequestFailedError) as refused:
            await producer.send(Message("T", b"x"))
    assert (refused.value.code, refused.value.definite) == (16, True)
    assert "No accessKey is configured (asked without credentials)" in str(refused.value)


@pytest.mark.parametrize(
    ("credentials", "why"),
    [
        (Credentials("nobody-1", "secret-of-n"), "No acl config for nobody-1 (asked as nobody-1)"),
        (
            Credentials("producer", "secret-of-x"),
            "Check signature failed for accessKey=producer (asked as producer)",
        ),
    ],
)
async def test_a_wrong_account_or_secret_is_told(
    monkeypatch: pytest.MonkeyPatch, credentials: Credentials, why: str
) -> None:
    async with (
        guarded(monkeypatch) as group,
        Producer(group.fake.namesrv, "p", credentials=credentials) as producer,
    ):
        with pytest.raises(RequestFailedError, match="16") as refused:
            await producer.send(Message("T", b"x"))
    assert why in str(refused.value)
    assert credentials.secret_key not in str(refused.value)
    assert group.taken == []


async def test_a_missing_right_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(monkeypatch) as group:
        namesrv = group.fake.namesrv
        async with Producer(namesrv, "p", credentials=CONSUMER) as producer:
            with pytest.raises(SendRefusedError) as refused:
                await producer.send(Message("T", b"x"))
        async with Admin(namesrv, credentials=PRODUCER) as admin:
            with pytest.raises(RequestFailedError) as no_admin:
                await admin.create_topic("U")
        caplog.set_level(logging.WARNING)
        async with PushConsumer(
            namesrv, "H", subscriptions={"T": "*"}, credentials=CONSUMER
        ) as consumer:
            await until(lambda: "refuses our heartbeats" in caplog.text)
            assert consumer.group == "H"
    assert "No default permission for topic:T (asked as consumer)" in str(refused.value)
    assert "code=17, but accessKey=producer is not (asked as producer)" in str(no_admin.value)
    assert "No default permission for group:H (asked as consumer)" in caplog.text


async def test_one_choice_for_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(monkeypatch) as group:
        with credentials_for_all(PRODUCER):
            async with Producer(group.fake.namesrv, "p") as producer:
                await producer.send(Message("T", b"x"))
        assert len(group.fake.messages("T")) == 1


async def test_one_choice_for_blocking_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """They work in threads of their own, and may be opened where nothing is chosen any more."""
    async with guarded(monkeypatch) as group:

        def send() -> None:
            with credentials_for_all(PRODUCER):
                producer = blocking.Producer(group.fake.namesrv, "p")
            for body in (b"x", b"y"):
                with producer:
                    producer.send(Message("T", body))

        await anyio.to_thread.run_sync(send)
        assert [message.body for message in group.fake.messages("T")] == [b"x", b"y"]


def test_secrets_are_in_no_repr_and_do_not_travel() -> None:
    for shown in (repr(BOTH), str(BOTH), repr(BOTH.key), f"{BOTH}"):
        assert "secret-of-b" not in shown
        assert "token" not in shown.replace("security_token", "")
    assert "both-of-it" in repr(BOTH)
    with pytest.raises(TypeError):
        pickle.dumps(BOTH)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accessKey: shop-orders\nsecretKey: 12345678\n", ("shop-orders", "12345678", None)),
        (
            "# ours\n\n  secretKey : 'a: b#c' \r\naccessKey:\"x\"\nsecurityToken: t\n",
            ("x", "a: b#c", "t"),
        ),
        ("accessKey: x\nsecretKey: y\nsecurityToken:\n", ("x", "y", None)),
    ],
)
def test_a_file_of_credentials(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    expected: tuple[str, str, str | None],
) -> None:
    path = tmp_path / "keys.yml"
    path.write_text(text)
    assert read_credentials(path) == Credentials(*expected)
    monkeypatch.setenv(CREDENTIALS_VARIABLE, str(path))
    assert read_credentials() == Credentials(*expected)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"accessKey: x\n", "secretKey is missing"),
        (b"", "accessKey and secretKey is missing"),
        (b"accessKey: x\nsecretKey:\n", "secretKey is missing"),
        (b"accessKey: x\nsecretkey: hidden\n", "line 2 begins with none of accessKey:, secretKey:"),
        (b"accessKey: x\nhidden\n", "line 2 begins with none of"),
        (b"secretKey: hidden\nsecretKey: hidden\n", "secretKey stands there twice"),
        (b"accessKey: x\nsecretKey: hidden\xff\n", "it is not text in UTF-8"),
    ],
)
def test_a_file_that_says_something_else(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "keys.yml"
    path.write_bytes(content)
    with pytest.raises(ClientUsageError) as wrong:
        read_credentials(path)
    assert why in str(wrong.value)
    assert str(path) in str(wrong.value)
    assert "hidden" not in str(wrong.value)


def test_no_file_of_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CREDENTIALS_VARIABLE, raising=False)
    with pytest.raises(ClientUsageError, match="DLEDGER_CREDENTIALS"):
        read_credentials()
    with pytest.raises(ClientUsageError, match="No such file"):
        read_credentials(tmp_path / "missing")


@pytest.mark.parametrize("keys", [("", "y"), ("x", ""), ("x", None), (1, "y"), ("x", "y\ud800")])
def test_what_is_no_key_is_refused_without_being_shown(keys: tuple[Any, Any]) -> None:
    with pytest.raises(ClientUsageError, match=r"access_key|secret_key") as wrong:
        Credentials(*keys)
    assert "ud800" not in str(wrong.value)


@pytest.mark.parametrize("make", [Producer, PullConsumer])
def test_credentials_of_another_type_are_refused_without_being_shown(make: Any) -> None:
    with pytest.raises(ClientUsageError, match="credentials is tuple, not Credentials") as wrong:
        make("127.0.0.1:1", "g", credentials=("x", "hidden"))
    assert "hidden" not in str(wrong.value)

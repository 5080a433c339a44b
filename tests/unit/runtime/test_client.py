"""The client: it follows the leader, and says what its caller may conclude."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from dledger import (
    AckTimeoutError,
    Client,
    ConnectionLostError,
    Entry,
    EntryKind,
    HandshakeRefusedError,
    Index,
    LeaderNotReadyError,
    LeadershipLostError,
    LogServer,
    NodeId,
    NotLeaderError,
    OutcomeUnknownError,
    OutOfRangeError,
    Peer,
    PeerProtocolError,
    Position,
    RefusedError,
    StatusAnswer,
    StoppingError,
    SyncClient,
    Term,
    TransferFailedError,
    UnsupportedError,
    UsageError,
)
from dledger.codec.client_rpc import (
    AppendAnswer,
    AppendCall,
    EntriesAnswer,
    decode_call,
    failure_of,
)
from dledger.codec.frame import FRAME_BYTES_MAX, encode_frame
from dledger.codec.wire_types import Header, encode_header
from dledger.errors import DLedgerError
from dledger.runtime.clock import now_s
from dledger.runtime.commands import EXIT_DONE, EXIT_REFUSED, EXIT_UNKNOWN, append
from dledger.runtime.handshake import Identity, accept, opening_decoder
from dledger.runtime.leader_search import LeaderSearch
from dledger.runtime.member_connection import MemberConnection
from dledger.runtime.sockets import FrameStream, listen

OpenGroup = Callable[..., AbstractAsyncContextManager[Any]]
S = 60.0
MEBI = 1024 * 1024
Script = list[Header | DLedgerError | None]


class FakeMember:
    """Shakes hands, counts appends, and answers each as the script says; None: it hangs up."""

    def __init__(self, node_id: str, members: frozenset[NodeId], port_of: socket.socket) -> None:
        self.identity = Identity("g", NodeId(node_id), 1, members, None)
        self.listener = port_of
        self.script: Script = []
        self.append_count = 0
        self.call_count = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(self.listener)
                sock, _ = self.listener.accept()
                sock.setblocking(False)
                nursery.start_soon(self.serve, FrameStream(sock, opening_decoder()))

    async def serve(self, stream: FrameStream) -> None:
        try:
            await accept(stream, self.identity, lambda _, __: None)
            stream.decoder.raise_bounds(frame_bytes_max=FRAME_BYTES_MAX, blob_bytes_max=MEBI)
            while frames := await stream.receive():
                for frame in frames:
                    call = decode_call(frame.header)
                    self.call_count += 1
                    self.append_count += isinstance(call, AppendCall)
                    said = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                    if said is None:
                        return
                    if isinstance(said, DLedgerError):
                        said = failure_of(call.token, said)
                    elif isinstance(said, AppendAnswer):
                        said = AppendAnswer(call.token, said.term, said.index, said.position)
                    elif isinstance(said, EntriesAnswer):
                        said = EntriesAnswer(call.token, said.count)
                    await stream.send(encode_frame(encode_header(said)))
        except (OSError, PeerProtocolError, HandshakeRefusedError):
            pass
        finally:
            stream.close()


@asynccontextmanager
async def fake_group(
    *scripts: Script, timeout_s: float = S
) -> AsyncIterator[tuple[Client, list[FakeMember]]]:
    listeners = [await listen("127.0.0.1", 0) for _ in scripts]
    ids = [NodeId(f"n{i}") for i in range(len(scripts))]
    members = [
        FakeMember(node_id, frozenset(ids), listener)
        for node_id, listener in zip(ids, listeners, strict=True)
    ]
    peers = tuple(
        Peer(node_id, "127.0.0.1", listener.getsockname()[1])
        for node_id, listener in zip(ids, listeners, strict=True)
    )
    with trio.fail_after(2 * S):
        async with trio.open_nursery() as nursery:
            for member, script in zip(members, scripts, strict=True):
                member.script = script
                nursery.start_soon(member.run)
            async with Client(peers, group="g", timeout_s=timeout_s) as client:
                yield client, members
            nursery.cancel_scope.cancel()
    for listener in listeners:
        listener.close()


DONE = AppendAnswer(0, 3, 17, 1000)


def end_in_a_pause(
    monkeypatch: pytest.MonkeyPatch, is_time: Callable[[LeaderSearch], bool] = lambda _search: True
) -> None:
    """Let the deadline fall into a pause of a search: a call under way at that moment would be of unknown outcome."""

    async def pause(search: LeaderSearch) -> None:
        await trio.lowlevel.checkpoint()
        if is_time(search):
            search._deadline_s = 0.0

    monkeypatch.setattr(LeaderSearch, "pause", pause)


async def test_a_redirect_is_followed() -> None:
    async with fake_group([NotLeaderError("n1", 3)], [DONE]) as (client, members):
        assert str(await client.append(b"x")) == "17@3"
        assert [member.append_count for member in members] == [1, 1]
        await client.append(b"y")
        assert [member.append_count for member in members] == [1, 2]


async def test_members_without_a_leader_are_asked_again_until_there_is_one() -> None:
    nobody = NotLeaderError(None, 3)
    async with fake_group([nobody, LeaderNotReadyError("soon"), DONE], [nobody]) as (client, _):
        assert (await client.append(b"x")).index == 17


@pytest.mark.parametrize("lost", [None, LeadershipLostError("lost")])
async def test_a_lost_answer_is_unknown_and_not_sent_again(lost: DLedgerError | None) -> None:
    async with fake_group([lost], [DONE]) as (client, members):
        with pytest.raises(OutcomeUnknownError) as unknown:
            await client.append(b"x")
        assert isinstance(
            unknown.value, ConnectionLostError if lost is None else LeadershipLostError
        )
        assert [member.append_count for member in members] == [1, 0]
        # The next append starts elsewhere.
        await client.append(b"y")
        assert [member.append_count for member in members] == [1, 1]


async def test_who_asks_for_it_gets_an_unknown_append_sent_again() -> None:
    async with fake_group([None], [DONE]) as (client, members):
        assert (await client.append(b"x", retry_unknown=True)).index == 17
        assert [member.append_count for member in members] == [1, 1]


async def test_unknown_once_is_unknown_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = NotLeaderError(None, 3)
    async with fake_group([None, refusing], [refusing]) as (client, members):
        end_in_a_pause(monkeypatch, lambda _: all(member.append_count for member in members))
        with pytest.raises(OutcomeUnknownError):
            await client.append(b"x", retry_unknown=True)


async def test_only_refusals_until_the_deadline_are_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusing = NotLeaderError(None, 3)
    async with fake_group([refusing], [refusing]) as (client, members):
        end_in_a_pause(monkeypatch, lambda _: all(member.append_count for member in members))
        with pytest.raises(RefusedError, match="not done within"):
            await client.append(b"x")
        assert all(member.append_count for member in members)


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.append(b"x"),
        lambda client: client.append(b"x", retry_unknown=True),
        lambda client: client.get(1),
        lambda client: client.get(1, local=NodeId("n0")),
        lambda client: client.transfer(),
    ],
    ids=["append", "append again", "get", "get there", "transfer"],
)
async def test_nothing_is_sent_when_the_time_is_over_before_it_could_be(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Client], Awaitable[object]]
) -> None:
    async with fake_group([DONE]) as (client, (member,)):
        passed_s = 0.0
        connect = client._connect

        async def connect_slowly(node_id: NodeId) -> MemberConnection:
            nonlocal passed_s
            connection = await connect(node_id)
            passed_s = 2 * S
            return connection

        monkeypatch.setattr("dledger.runtime.leader_search.now_s", lambda: now_s() + passed_s)
        monkeypatch.setattr(client, "_connect", connect_slowly)
        with pytest.raises(RefusedError, match="nothing was sent"):
            await ask(client)
        passed_s = 0.0
        assert "nothing was sent" in str((await client.status())[NodeId("n0")])
        # What is sent now is the first that the member sees.
        monkeypatch.undo()
        await client.append(b"y")
        assert member.call_count == 1


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
async def test_a_time_that_is_over_from_the_start_is_a_refusal(timeout_s: float) -> None:
    async with fake_group([DONE]) as (client, (member,)):
        for call in (
            lambda: client.append(b"x", timeout_s=timeout_s),
            lambda: client.get(1, timeout_s=timeout_s),
            lambda: client.get(1, timeout_s=timeout_s, local=NodeId("n0")),
            lambda: client.transfer(timeout_s=timeout_s),
        ):
            with pytest.raises(RefusedError):
                await call()
        assert isinstance((await client.status(timeout_s=timeout_s))[NodeId("n0")], RefusedError)
        assert member.call_count == 0


async def test_a_refusal_after_an_unknown_try_is_unknown() -> None:
    async with fake_group([None], [UnsupportedError("not here")]) as (client, members):
        with pytest.raises(OutcomeUnknownError, match="not here"):
            await client.append(b"x", retry_unknown=True)
        assert [member.append_count for member in members] == [1, 1]


async def test_another_answer_than_to_an_append_is_unknown() -> None:
    async with fake_group([EntriesAnswer(0, 0)]) as (client, _):
        with pytest.raises(OutcomeUnknownError):
            await client.append(b"x")
        with pytest.raises(OutcomeUnknownError):
            await client.transfer()


async def test_another_member_is_asked_instead_of_one_that_stops() -> None:
    async with fake_group([StoppingError("about to stop")], [DONE]) as (client, members):
        assert (await client.append(b"x")).index == 17
        assert [member.append_count for member in members] == [1, 1]


async def test_a_call_over_which_a_blocking_client_is_closed_is_unknown() -> None:
    """The process has one main thread, but any of its threads may call."""
    listener = await listen("127.0.0.1", 0)
    peers = (Peer(NodeId("n0"), "127.0.0.1", listener.getsockname()[1]),)
    found: list[Exception] = []

    def append(client: SyncClient) -> None:
        try:
            client.append(b"x")
        except DLedgerError as error:
            found.append(error)

    def use() -> None:
        with SyncClient(peers, group="g", timeout_s=S) as client:
            thread = threading.Thread(target=append, args=(client,))
            thread.start()
            while not client._client._locks[NodeId("n0")].locked():
                pass  # it has begun to connect
        thread.join(S)

    await trio.to_thread.run_sync(use)
    assert [type(error) for error in found] == [OutcomeUnknownError]
    listener.close()


async def test_silence_until_the_deadline_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = MemberConnection.ask

    async def ask_for_a_moment(*given: Any, timeout_s: float) -> object:
        assert timeout_s > 0.2
        return await ask(*given, timeout_s=0.2)  # from here on: connecting may take its time

    monkeypatch.setattr(MemberConnection, "ask", ask_for_a_moment)
    listener = await listen("127.0.0.1", 0)
    members = frozenset({NodeId("n0")})
    silent = FakeMember("n0", members, listener)
    asked = trio.Event()

    async def run() -> None:
        await trio.lowlevel.wait_readable(listener)
        sock, _ = listener.accept()
        sock.setblocking(False)
        stream = FrameStream(sock, opening_decoder())
        await accept(stream, silent.identity, lambda _, __: None)
        stream.decoder.raise_bounds(frame_bytes_max=FRAME_BYTES_MAX, blob_bytes_max=MEBI)
        await stream.receive()
        asked.set()
        await stream.receive()
        stream.close()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            peers = (Peer(NodeId("n0"), "127.0.0.1", listener.getsockname()[1]),)
            async with Client(peers, group="g") as client:
                with pytest.raises(AckTimeoutError):
                    await client.append(b"x", timeout_s=S)
                await asked.wait()
    listener.close()


async def test_what_can_never_succeed_is_told_at_once() -> None:
    async with fake_group([UnsupportedError("no")], [DONE]) as (client, _):
        with pytest.raises(UnsupportedError):
            await client.append(b"x")
    async with fake_group([TransferFailedError("no")], [DONE]) as (client, _):
        with pytest.raises(TransferFailedError):
            await client.transfer()
    async with fake_group([OutOfRangeError(9, 1, 3)]) as (client, _):
        with pytest.raises(OutOfRangeError):
            await client.get(9)


async def test_a_read_without_an_answer_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_group([None], [None]) as (client, _):
        end_in_a_pause(monkeypatch, lambda search: search.is_unknown)
        with pytest.raises(RefusedError, match="nothing was read"):
            await client.get(1)
        with pytest.raises(RefusedError, match="nothing was read"):
            await client.get(1, local=NodeId("n1"))


async def test_a_range_ends_where_the_log_ends_and_not_where_reading_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client("n0-127.0.0.1:1")
    entry = Entry(Index(1), Term(1), Position(0), EntryKind.NORMAL, b"x")
    answers: list[list[Entry] | RefusedError] = []

    async def get_some(*_: object) -> list[Entry]:
        answer = answers.pop(0)
        if isinstance(answer, RefusedError):
            raise answer
        return answer

    monkeypatch.setattr(client, "_get_some", get_some)
    answers[:] = [[entry], OutOfRangeError(2, 1, 1)]
    assert await client.get(1, 10) == [entry]
    answers[:] = [[entry], RefusedError("nobody leads")]
    with pytest.raises(RefusedError, match="nobody leads"):
        await client.get(1, 10)


async def test_a_wrong_answer_is_a_broken_protocol() -> None:
    async with fake_group([DONE]) as (client, _):
        with pytest.raises(PeerProtocolError):
            await client.get(1)
    async with fake_group([EntriesAnswer(0, 0)]) as (client, _):
        with pytest.raises(PeerProtocolError):
            await client.get(1)


async def test_another_group_turns_the_client_away_at_once() -> None:
    async with fake_group([DONE], [DONE]) as (client, members):
        async with Client(client.peers, group="other") as stranger:
            with pytest.raises(RefusedError, match="this is not group 'other'"):
                await stranger.append(b"x")
        assert sum(member.append_count for member in members) == 0


async def test_nobody_there_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    end_in_a_pause(monkeypatch)
    with socket.socket() as bound:  # and never listening, so that nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        peer = Peer(NodeId("n0"), "127.0.0.1", bound.getsockname()[1])
        async with Client((peer,), timeout_s=S) as client:
            with pytest.raises(RefusedError, match="Connection refused"):
                await client.append(b"x")
            seen = (await client.status())[NodeId("n0")]
            assert isinstance(seen, RefusedError)


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        (DONE, EXIT_DONE, "appended 3 entries, 17 to 17"),
        (UnsupportedError("no"), EXIT_REFUSED, "3 surely not appended: no"),
        (LeadershipLostError("gone"), EXIT_UNKNOWN, "3 of unknown outcome"),
        (None, EXIT_UNKNOWN, "3 of unknown outcome"),
    ],
)
async def test_the_command_says_what_is_known_and_exits_so(
    capsys: pytest.CaptureFixture[str], said: Header | DLedgerError | None, code: int, text: str
) -> None:
    async with fake_group([said]) as (client, _):
        options = {"count": 3, "retry_unknown": False}
        assert await append(client, b"x", as_json=False, **options) == code
        captured = capsys.readouterr()
        assert text in captured.out + captured.err
        assert await append(client, b"x", as_json=True, **options) == code
        result = json.loads(capsys.readouterr().out)
        assert len(result["appended"]) + result["refused"] + result["unknown"] == 3


async def test_wrong_use_is_told() -> None:
    client = Client("n0-127.0.0.1:1")
    with pytest.raises(UsageError):
        await client.append(b"x")
    with pytest.raises(UsageError):
        await client.get(0)
    with pytest.raises(UsageError):
        SyncClient("n0-127.0.0.1:1").append(b"x")
    assert HandshakeRefusedError("group", "x").definite


@pytest.mark.slow
async def test_many_appends_at_once_and_all_of_them_read_back(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all()
        found: dict[int, Index] = {}
        async with Client(group.peers, group="g", secret="geheim", timeout_s=S) as client:

            async def append(number: int) -> None:
                found[number] = (await client.append(b"%d" % number, timeout_s=S)).index

            async with trio.open_nursery() as nursery:
                for number in range(100):
                    nursery.start_soon(append, number)
            entries = await client.get(1, 1000)
            by_index = {entry.index: entry.body for entry in entries}
            assert {by_index[index] for index in found.values()} == {b"%d" % i for i in range(100)}
            status = await client.status()
            assert all(isinstance(seen, StatusAnswer) for seen in status.values())
            leader_id = await client.transfer()
            await client.append(b"after", timeout_s=S)
            assert leader_id in status
            local = await client.get(1, local=leader_id)
            assert local[0].index == 1


@pytest.mark.slow
async def test_a_large_body_there_and_back(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all()
        body = bytes(range(256)) * (5 * MEBI // 256)
        async with Client(group.peers, group="g", secret="geheim", timeout_s=S) as client:
            index = (await client.append(body)).index
            assert (await client.get(index))[0].body == body


@pytest.mark.slow
async def test_the_blocking_client(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all()

        def use() -> None:
            with SyncClient(group.peers, group="g", secret="geheim", timeout_s=S) as client:
                index = client.append(b"blocking").index
                assert client.get(index)[0].body == b"blocking"
                assert len(client.status()) == 3
                with pytest.raises(OutOfRangeError):
                    client.get(10_000)

        await trio.to_thread.run_sync(use)


@pytest.mark.slow
async def test_a_group_may_refuse_clients_appends_and_holds_no_large_ones(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.unit.runtime.conftest.LogServer", partial(LogServer, accepts_appends=False)
    )
    async with open_group(size=1) as group:
        await group.start_all()
        async with Client(group.peers, group="g", secret="geheim", timeout_s=S) as client:
            with pytest.raises(UnsupportedError):
                await client.append(b"x", timeout_s=S)
            with pytest.raises(ConnectionLostError):
                await client.append(bytes(MEBI), timeout_s=S)
            assert isinstance((await client.status())[NodeId("n0")], StatusAnswer)


@pytest.mark.slow
async def test_a_client_that_breaks_the_protocol_is_hung_up_on(open_group: OpenGroup) -> None:
    async with open_group(size=1, secret=None) as group:
        await group.start_all()
        async with Client(group.peers, group="g", timeout_s=S) as client:
            await client.append(b"fine", timeout_s=S)
            connection = await client._connect(NodeId("n0"))
            connection._stream.send_soon(encode_frame(b"\xc1"))
            with pytest.raises((ConnectionLostError, RefusedError)):
                await connection.ask(AppendCall(connection.next_token()), b"x", timeout_s=S)
            await client.append(b"a new connection", timeout_s=S)

"""The plans of the workload `sends`, and who carries them out, against a node that answers by a script."""

import random
import time
from collections.abc import Callable

import pytest
import trio

from dledger_mq import MessageQueue
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.header import decode_command, encode_command, make_response
from dledger_mq.remoting.requests import SendRequest, decode_request
from jepsen.clients import raw
from jepsen.clients.raw import CORKED_S, RawConnection, raw_connection
from jepsen.workloads import sends
from jepsen.workloads.sends import PLANS, Planner, PlanSender, _may_come_again

QUEUES = {f"T/b/{number}": MessageQueue("T", "b", number) for number in range(4)}
ID = "7F00000100002A9F%016X"
HANGS_UP = b""
Script = Callable[[Frame], bytes | None]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for what comes on a busy machine, too; nothing here waits until its time is over."""
    monkeypatch.setattr(raw, "CONNECT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(raw, "LAST_WORDS_S", 60.0)
    monkeypatch.setattr(sends, "ANSWER_S", 60.0)


class Node:
    """Answers each frame as its script says: nothing when that says None, or it hangs up."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[SendRequest] = []
        self.connections = 0
        self.address = ""

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        decoder = FrameDecoder()
        async for data in stream:
            decoder.feed(data)
            for frame in decoder.frames():
                request = decode_request(frame)
                if isinstance(request, SendRequest):
                    self.seen.append(request)
                answer = self.script(frame)
                if answer == HANGS_UP:
                    return
                if answer is not None:
                    await stream.send_all(answer)

    async def listen(self, nursery: trio.Nursery) -> None:
        listeners = await nursery.start(trio.serve_tcp, self.serve, 0)
        self.address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"


def stored(frame: Frame) -> bytes:
    ext = {"msgId": ID % 100, "queueId": "2", "queueOffset": "7"}
    return encode_command(make_response(decode_command(frame).opaque, 0, ext=ext))


def refused(frame: Frame) -> bytes:
    return encode_command(make_response(decode_command(frame).opaque, 1, "no"))


def planner(seed: int = 1) -> Planner:
    return Planner("s1", list(QUEUES), ["a", "b", "c"], random.Random(seed))


def names(frames: list[dict[str, object]]) -> list[list[str]]:
    return [[key for key, _ in frame["messages"]] for frame in frames]  # type: ignore[attr-defined]


@pytest.mark.parametrize("plan", sorted(PLANS))
def test_one_name_is_one_message_in_all_frames_of_a_plan(plan: str) -> None:
    for seed in range(20):
        frames = PLANS[plan](planner(seed))
        assert frames
        seen: dict[str, tuple[object, ...]] = {}
        for frame in frames:
            for (key, content), sent in zip(frame["messages"], frame["sent"], strict=True):
                whole = (frame["queue"], content, *sent)
                assert seen.setdefault(key, whole) == whole
                assert sent[0]


def test_batches_are_regrouped_and_one_key_goes_to_two_queues() -> None:
    groups = {tuple(key.split()[0] for key in row) for row in names(PLANS["regrouped"](planner()))}
    assert groups == {("s1.a", "s1.b"), ("s1.a", "s1.c"), ("s1.a",)}
    one, other = PLANS["spread"](planner())
    assert one["queue"] != other["queue"]
    assert one["sent"] == other["sent"]
    changed = PLANS["changed"](planner())
    assert len({frame["sent"][0][0] for frame in changed}) == 1
    assert len({frame["messages"][0][0] for frame in changed}) == len(changed)


def test_what_was_confirmed_in_another_frame_is_not_sent_again() -> None:
    frames = [
        {"messages": [["a", ""]]},
        {"messages": [["a", ""], ["b", ""]]},
        {"messages": [["c", ""]]},
    ]
    told = [{"end": "ok"}, {"end": "info"}, {"end": "info"}]
    assert [_may_come_again(frames, told, place) for place in range(3)] == [False, False, True]


async def test_a_plan_goes_out_in_one_connection_and_each_frame_is_told_its_place() -> None:
    node = Node(stored)
    async with trio.open_nursery() as nursery:
        await node.listen(nursery)
        frames = PLANS["pipelined"](planner())
        told = await PlanSender({"b": [node.address] * 3}, QUEUES).carry_out(frames)
        nursery.cancel_scope.cancel()
    assert node.connections == 1
    assert len(node.seen) == len(frames)
    assert told == [{"end": "ok", "queue": "T/b/2", "ids": [ID % 100], "offset": 7}] * len(frames)


async def test_what_is_refused_goes_to_the_next_node() -> None:
    nodes = [Node(refused), Node(stored)]
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await node.listen(nursery)
        frames = [PLANS["pipelined"](planner())[0] | {"node": 0}]
        [told] = await PlanSender({"b": [node.address for node in nodes]}, QUEUES).carry_out(frames)
        nursery.cancel_scope.cancel()
    assert told["end"] == "ok"
    assert [len(node.seen) for node in nodes] == [1, 1]


@pytest.mark.parametrize(("ends", "end"), [("-x", "info"), ("x-", "info"), ("xxx", "fail")])
async def test_no_refusal_undoes_a_try_of_unknown_outcome(ends: str, end: str) -> None:
    def script(frame: Frame) -> bytes:
        return gone_wrong(frame) if next(turns) == "x" else HANGS_UP

    def gone_wrong(frame: Frame) -> bytes:
        return encode_command(make_response(decode_command(frame).opaque, 14, "nothing was done"))

    turns = iter(ends.ljust(3, "x"))
    node = Node(script)
    async with trio.open_nursery() as nursery:
        await node.listen(nursery)
        frames = [PLANS["pipelined"](planner())[0] | {"node": 0}]
        [told] = await PlanSender({"b": [node.address] * 3}, QUEUES).carry_out(frames)
        nursery.cancel_scope.cancel()
    assert told["end"] == end
    assert len(node.seen) == 3


async def test_who_hangs_up_waits_for_nothing_and_writes_all() -> None:
    node = Node(lambda _frame: None)
    async with trio.open_nursery() as nursery:
        await node.listen(nursery)
        frames = [PLANS["elsewhere"](planner())[0]]
        told = await PlanSender({"b": [node.address] * 3}, QUEUES).carry_out(frames)
        while not node.seen:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert told == [{"end": "info"}]
    assert node.connections == 1
    assert len(node.seen) == 1


async def test_nobody_there() -> None:
    async with raw_connection("127.0.0.1:1") as connection:
        assert connection is None


async def test_last_words_are_heard() -> None:
    """An answer that was under way when the client gave up counts."""

    async def answer_at_the_end(stream: trio.SocketStream) -> None:
        decoder = FrameDecoder()
        async for data in stream:
            decoder.feed(data)
        for frame in decoder.frames():
            await stream.send_all(stored(frame))
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, answer_at_the_end, 0)
        port = listeners[0].socket.getsockname()[1]
        async with raw_connection(f"127.0.0.1:{port}") as connection:
            assert isinstance(connection, RawConnection)
            frame = PLANS["pipelined"](planner())[0]
            assert await connection.write(PlanSender({}, QUEUES)._encode(frame, 9, 0))
            await connection.give_up()
            assert list(connection.answers) == [9]
        nursery.cancel_scope.cancel()


async def test_what_was_hung_up_too_late_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen once: the harness stood still between its bytes and the end of its connection, and was answered."""
    write = RawConnection.write

    def stand_still() -> None:
        time.sleep(2 * CORKED_S)

    async def written_slowly(self: RawConnection, frames: bytes) -> bool:
        is_written = await write(self, frames)
        stand_still()
        return is_written

    monkeypatch.setattr(RawConnection, "write", written_slowly)
    node = Node(lambda _frame: None)
    async with trio.open_nursery() as nursery:
        await node.listen(nursery)
        told = await PlanSender({"b": [node.address] * 3}, QUEUES).carry_out(
            PLANS["elsewhere"](planner())
        )
        nursery.cancel_scope.cancel()
    assert told == [{"end": "info"}, {"end": "info"}]
    assert node.connections <= 1

"""What one log client can make a member keep in memory."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from dledger.codec.client_rpc import GetCall, SnapshotCall, decode_answer
from dledger.codec.entry import seal
from dledger.codec.frame import FrameDecoder, encode_frame
from dledger.codec.wire_types import Header, encode_header
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger.runtime.client_port import QUEUED_BYTES_MAX, ClientPort
from dledger.runtime.handshake import Remote
from dledger.runtime.snapshotting import SnapshotPart
from dledger.runtime.sockets import FrameStream
from tests.unit.runtime.conftest import PATIENCE_S

CALL_COUNT = 100
LARGE_BYTES = 1 << 20
ENTRY = seal(Entry(Index(1), Term(1), Position(0), EntryKind.NORMAL, bytes(LARGE_BYTES)), 0)


class LargeLog:
    """Gives a large answer to everything, and counts."""

    def __init__(self) -> None:
        self.given_count = 0
        self.reader = self

    def get_range(self, index: Index, *, count_max: int, bytes_max: int) -> list[Entry]:
        self.given_count += 1
        return [ENTRY]

    async def snapshot_part(self, index: Index, offset: int) -> SnapshotPart:
        await trio.lowlevel.checkpoint()
        self.given_count += 1
        return SnapshotPart(Index(1), 0, LARGE_BYTES, ENTRY.body)


def get(token: int) -> Header:
    return GetCall(token, 1, 1, 1, local=True)


def snapshot(token: int) -> Header:
    return SnapshotCall(token, 1, 0)


@pytest.mark.parametrize("call", [get, snapshot])
async def test_a_client_that_takes_no_answers_gets_no_more_made(call: Any) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.sendall(b"".join(encode_frame(encode_header(call(n))) for n in range(CALL_COUNT)))
    theirs.setblocking(False)
    client = FrameStream(theirs, FrameDecoder(blob_bytes_max=2 * LARGE_BYTES))
    stream = FrameStream(ours, FrameDecoder(blob_bytes_max=0))
    log = LargeLog()
    port = ClientPort(log, accepts_appends=False)  # type: ignore[arg-type] # what these calls need
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.serve, stream, Remote(None, 1, SimpleNamespace()))  # type: ignore[arg-type]
        await wait_all_tasks_blocked()
        assert log.given_count * LARGE_BYTES <= QUEUED_BYTES_MAX + 2 * LARGE_BYTES
        tokens: list[int] = []
        with trio.fail_after(PATIENCE_S):
            while len(tokens) < CALL_COUNT:
                tokens += [decode_answer(frame.header).token for frame in await client.receive()]
        assert sorted(tokens) == list(range(CALL_COUNT))
        nursery.cancel_scope.cancel()
    client.close()
    stream.close()


async def test_a_client_that_goes_without_taking_its_answers_is_let_go() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.sendall(b"".join(encode_frame(encode_header(get(n))) for n in range(CALL_COUNT)))
    stream = FrameStream(ours, FrameDecoder(blob_bytes_max=0))
    port = ClientPort(LargeLog(), accepts_appends=False)  # type: ignore[arg-type] # what these calls need
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(port.serve, stream, Remote(None, 1, SimpleNamespace()))  # type: ignore[arg-type]
            await wait_all_tasks_blocked()
            assert stream.queued_bytes > QUEUED_BYTES_MAX
            theirs.sendall(encode_frame(encode_header(get(CALL_COUNT))))
            await wait_all_tasks_blocked()
            theirs.close()
    stream.close()

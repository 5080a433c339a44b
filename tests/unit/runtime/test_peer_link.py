"""What is sent to a member, in which order, and what is dropped; over a real pair of sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.codec.entry import seal
from dledger.codec.frame import FrameDecoder, encode_frames
from dledger.codec.rpc import decode_message, encode_entries, encode_message
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index, NodeId, Position, Term
from dledger.raft.messages import AppendRequest, Message, VoteRequest
from dledger.runtime.peer_link import (
    FLUSH_BYTES_MAX,
    QUEUE_BYTES_MAX,
    SEND_BYTES,
    SMALL_COUNT_MAX,
    FrameCache,
    PeerLink,
)

N0 = NodeId("n0")
MEBI = 1024 * 1024
VOTE = VoteRequest(Term(2), N0, Index(1), Term(1))


def append_request(prev_index: int, body: bytes | None, *, round_: int = 1) -> AppendRequest:
    entries: tuple[Entry, ...] = ()
    if body is not None:
        index = Index(prev_index + 1)
        entries = (seal(Entry(index, Term(2), Position(0), EntryKind.NORMAL, body), 0),)
    return AppendRequest(Term(2), N0, Index(prev_index), Term(2), entries, Index(0), round_)


class Wire:
    """A link, and the other end of its socket."""

    def __init__(self) -> None:
        own, self.other = socket.socketpair()
        own.setblocking(False)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        self.other.setblocking(False)
        self.link = PeerLink(FrameCache())
        self.link.open(own)
        self.decoder = FrameDecoder(blob_bytes_max=256 * MEBI)

    def read(self) -> list[Message]:
        """What has arrived so far."""
        found: list[Message] = []
        while True:
            try:
                data = self.other.recv(MEBI)
            except BlockingIOError:
                return found
            found += [decode_message(each.header, *each.pieces) for each in self.decoder.feed(data)]  # type: ignore[misc]  # no repairs

    def read_all(self) -> list[Message]:
        """Everything, flushing as the socket takes it."""
        found: list[Message] = []
        while self.link.flush():
            found += self.read()
        return found + self.read()


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.link.close()
    wire.other.close()


def test_messages_leave_in_one_write_and_in_order(wire: Wire) -> None:
    said = [append_request(0, b"a"), append_request(1, b"b"), append_request(2, None)]
    for message in said:
        wire.link.post(message)
    assert wire.link.has_waiting
    assert not wire.link.flush()
    assert wire.read() == said
    assert not wire.link.has_waiting


def test_without_a_connection_everything_is_dropped() -> None:
    link = PeerLink(FrameCache())
    link.post(VOTE)
    link.post(append_request(0, b"a"))
    assert link.dropped_count == 2
    assert not link.has_waiting
    assert not link.flush()


def test_a_broken_connection_forgets_what_waited(wire: Wire) -> None:
    wire.link.post(append_request(0, bytes(MEBI)))
    assert wire.link.flush()
    wire.link.close()
    assert not wire.link.has_waiting


def test_votes_and_heartbeats_overtake_a_large_body(wire: Wire) -> None:
    """A member hears of its leader in the middle of a body that takes seconds to arrive."""
    large, behind = append_request(4, bytes(8 * MEBI)), append_request(5, b"behind")
    wire.link.post(large)
    wire.link.post(behind)
    assert wire.link.flush()
    heartbeat = append_request(6, None, round_=7)
    wire.link.post(heartbeat)
    wire.link.post(VOTE)
    found = wire.read_all()
    assert found[0] == VOTE
    twin = found[1]
    assert isinstance(twin, AppendRequest)
    # It claims only what the member may already have: what stands before the large entry.
    assert (twin.prev_index, twin.entries, twin.round) == (4, (), 7)
    assert found[2:] == [large, behind, heartbeat]


class Greedy:
    """A socket whose other end reads as fast as anybody can send."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def sendmsg(self, pieces: list[bytes]) -> int:
        self.taken.append(b"".join(pieces))
        return len(self.taken[-1])

    def close(self) -> None:
        """Do nothing."""


def test_a_member_that_reads_fast_is_sent_no_more_than_a_slice_at_a_time() -> None:
    link, sock = PeerLink(FrameCache()), Greedy()
    link.open(sock)  # type: ignore[arg-type]  # what a link uses of a socket
    for index in range(8):
        link.post(append_request(index, bytes(MEBI)))
    sizes: list[int] = []
    waits = True
    while waits:
        before = link.sent_bytes
        waits = link.flush()
        sizes.append(link.sent_bytes - before)
        assert waits == link.has_waiting
        if len(sizes) == 2:
            link.post(VOTE)
    assert max(sizes) <= FLUSH_BYTES_MAX + 2 * SEND_BYTES
    assert len(sizes) >= 7
    decoder = FrameDecoder(blob_bytes_max=256 * MEBI)
    found = [
        decode_message(each.header, *each.pieces)
        for data in sock.taken
        for each in decoder.feed(data)
    ]
    assert found.index(VOTE) < 4, "it overtakes what waits"
    assert len(found) == 9


def test_waiting_heartbeats_do_not_pile_up(wire: Wire) -> None:
    wire.link.post(append_request(0, bytes(4 * MEBI)))
    wire.link.post(append_request(1, b"next"))
    assert wire.link.flush()
    for round_ in range(2, 50):
        wire.link.post(append_request(2, None, round_=round_))
    found = wire.read_all()
    rounds = [each.round for each in found if isinstance(each, AppendRequest) and not each.entries]
    assert rounds == [49, 49]


def test_the_queue_is_bounded_but_takes_one_large_request(wire: Wire) -> None:
    wire.link.post(append_request(0, bytes(QUEUE_BYTES_MAX + 1)))
    wire.link.post(append_request(1, b"no room"))
    assert wire.link.dropped_count == 1
    for _ in range(SMALL_COUNT_MAX + 3):
        wire.link.post(VOTE)
    assert wire.link.dropped_count == 4


def test_entries_are_encoded_once_for_members_that_get_the_same() -> None:
    cache = FrameCache()
    request = append_request(0, b"shared")
    header = encode_message(request)
    frames = cache.encode(header, request.entries)
    assert cache.encode(header, request.entries) is frames
    assert b"".join(frames[0]) == b"".join(encode_frames(header, encode_entries(request.entries)))
    other = append_request(1, b"other")
    assert cache.encode(encode_message(other), other.entries) != frames
    (frame,) = cache.encode(b"another header", other.entries)
    assert b"another header" in b"".join(frame)


def test_a_large_body_is_sent_from_where_it_is() -> None:
    request = append_request(0, bytes(MEBI))
    frames = FrameCache().encode(encode_message(request), request.entries)
    views = [frame[-1] for frame in frames]
    assert len(views) == 5
    assert {isinstance(view, memoryview) and id(view.obj) for view in views} == {
        id(request.entries[0].body)
    }


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=20))
def test_a_blob_is_always_that_of_its_entries(asked: list[tuple[int, int, bool]]) -> None:
    """Entries of one name are the same entries, whether or not they are the same objects."""
    row: list[Entry] = []
    for number in range(8):
        position = row[-1].end_position if row else Position(0)
        index, body = Index(number + 1), b"x" * number
        row.append(seal(Entry(index, Term(2), position, EntryKind.NORMAL, body), number))
    cache = FrameCache()
    for first, count, is_copied in asked:
        entries = tuple(row[first : first + count])
        if is_copied:
            entries = tuple(map(copy, entries))
        (frame,) = cache.encode(b"header", entries)
        assert [b"".join(frame)] == encode_frames(b"header", encode_entries(entries))


def test_a_closed_socket_is_an_error_of_flush(wire: Wire) -> None:
    wire.other.close()
    wire.link.post(VOTE)
    with pytest.raises(OSError, match=r"Broken pipe|Connection reset"):
        wire.link.flush()

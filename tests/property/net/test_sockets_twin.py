"""Sockets that compiled code reads and writes in one go, against one call of Python's for each: bytes, counts, errors.

The bytes are a client's: cut off anywhere, with lengths that lie.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dledger_mq.message import compiled
from dledger_mq.remoting.frame import HEADER_BYTES_MAX, Frame, FrameDecoder
from tests.property.net.test_cut_frames_twin import lying, pieces, whole
from tests.stages import examples, needs_compiled, stage

pytestmark = needs_compiled

PIECE_BYTES = 200
ROOM_BYTES = 1000
FRAME_BYTES_MAX = 100

received = st.one_of(whole, whole, lying, pieces, st.just(b""), st.none(), st.integers(0, 1))
"""What a client has sent; None: nothing, and it is there; a number: it has gone, and the socket has ended or failed."""


@contextmanager
def pairs(count: int) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """So many connections."""
    made = [socket.socketpair() for _ in range(count)]
    try:
        yield made
    finally:
        for near, far in made:
            near.close()
            far.close()


def send_all(clients: list[tuple[socket.socket, socket.socket]], sent: list[object]) -> None:
    for (near, far), data in zip(clients, sent, strict=True):
        if isinstance(data, bytes):
            near.sendall(data)
        elif data == 0:
            near.close()
        elif data == 1:  # what it has not read makes the end a failure
            far.sendall(b"unread")
            near.close()


def read_one(far: socket.socket) -> Frame | bytes | int:
    """What one read of a socket gives, as Python finds it."""
    try:
        data = far.recv(PIECE_BYTES, socket.MSG_DONTWAIT)
    except OSError as error:
        return error.errno or 0
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    decoder.feed(data)
    try:
        frames = decoder.frames()
    except ValueError:
        return data
    return frames[0] if len(frames) == 1 and not decoder.pending_bytes else data


def fill(sock: socket.socket) -> None:
    """Write until it takes no more."""
    with suppress(BlockingIOError):
        while True:
            sock.send(bytes(10_000), socket.MSG_DONTWAIT)


@given(st.lists(received, max_size=8))
@example([b"\x00\x00\x00\x04\x00\x00\x00\x00", 1, 0, None])
@example([b"\x00\x00\x00\x04\x02\x00\x00\x00", b"\x00\x00\x00\x04\x00\x00\x00\x01"])
@examples(300)
def test_both_ways_receive_the_same(sent: list[object]) -> None:
    with pairs(len(sent)) as first, pairs(len(sent)) as second:
        send_all(first, sent)
        send_all(second, sent)
        with stage(is_compiled=True):
            found = compiled.receive_frames(
                [far.fileno() for _, far in first],
                PIECE_BYTES,
                ROOM_BYTES,
                FRAME_BYTES_MAX,
                HEADER_BYTES_MAX,
                Frame,
            )
        assert found is not None
        with stage(is_compiled=False):
            expected = [read_one(far) for _, far in second]
        assert found == expected[: len(found)]
        sizes = [len(data[:PIECE_BYTES]) if isinstance(data, bytes) else 0 for data in sent]
        # None is left out but for room, and what is left out can be read.
        assert len(found) == len(sent) or ROOM_BYTES - sum(sizes[: len(found)]) < PIECE_BYTES
        assert [read_one(far) for _, far in first[len(found) :]] == expected[len(found) :]


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=50), st.sampled_from(["there", "there", "gone", "full"])
        )
    )
)
@examples(100)
def test_both_ways_send_the_same(sent: list[tuple[bytes, str]]) -> None:
    with pairs(len(sent)) as clients:
        for (near, far), (_, state) in zip(clients, sent, strict=True):
            near.setblocking(False)
            if state == "gone":
                near.close()
            elif state == "full":
                fill(far)
        with stage(is_compiled=True):
            counts = compiled.send_each(
                [far.fileno() for _, far in clients], [data for data, _ in sent]
            )
        failures = {"gone": -errno.EPIPE, "full": -errno.EAGAIN}
        assert counts == [failures.get(state, len(data)) for data, state in sent]
        for (near, _), (data, state) in zip(clients, sent, strict=True):
            if state == "there":
                assert near.recv(1000) == data


def test_what_a_socket_takes_in_part_is_told() -> None:
    with pairs(1) as [(_, far)], stage(is_compiled=True):
        far.setblocking(False)
        counts = compiled.send_each([far.fileno()], [bytes(64 << 20)])
        assert counts is not None
        assert 0 < counts[0] < 64 << 20


@pytest.mark.parametrize(
    ("descriptors", "piece_bytes", "room_bytes"),
    [
        ((), 1, 1),
        ([-1], 1, 1),
        (["x"], 1, 1),
        ([1 << 40], 1, 1),
        ([], 0, 1),
        ([], 2, 1),
        ([0] * 1025, 1, 1),
    ],
)
def test_what_is_asked_wrongly_is_declined(
    descriptors: list[int], piece_bytes: int, room_bytes: int
) -> None:
    with stage(is_compiled=True):
        arguments = (piece_bytes, room_bytes, FRAME_BYTES_MAX, HEADER_BYTES_MAX, Frame)
        assert compiled.receive_frames(descriptors, *arguments) is None
        if piece_bytes == room_bytes:
            assert compiled.send_each(descriptors, [b""] * len(descriptors)) is None


@pytest.mark.parametrize("texts", [[], [b"", b""], ["x"], [bytearray(b"x")], (b"x",)])
def test_what_are_no_bytes_is_declined_before_anything_is_sent(texts: list[bytes]) -> None:
    with pairs(1) as [(near, far)], stage(is_compiled=True):
        assert compiled.send_each([far.fileno()], texts) is None
        near.setblocking(False)
        with pytest.raises(BlockingIOError):
            near.recv(1)
